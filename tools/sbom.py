# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the bill of materials of a release (CycloneDX 1.6, JSON): the packages that its locks put on hosts, and their
dependencies.

Each package has its version, the hashes of its files as in the locks, and, where the development environment has that
version, its declared licence.
"""

from __future__ import annotations

import os
import re
import uuid
from datetime import UTC, datetime
from importlib import metadata

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License, LicenseAcknowledgement
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from tools import lock, wheelhouse

FILE = "sbom.cdx.json"
PREFIX = "License :: OSI Approved :: "


def declared_licences(name: str, version: str) -> list[License]:
    """Return the licences that the installed package declares: an SPDX expression, words, or classifiers; none for
    another version.
    """
    try:
        package = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    if package["Version"] != version:
        return []
    words = package.get("License-Expression") or package.get("License") or ""
    classes = [classifier.removeprefix(PREFIX) for classifier in package.get_all("Classifier", [])
               if classifier.startswith(PREFIX)]
    licences = [words] if words and "\n" not in words.strip() else classes
    return [LicenseFactory().make_from_string(licence.strip(), license_acknowledgement=LicenseAcknowledgement.DECLARED)
            for licence in licences]


def sbom_component(pin: lock.Pin) -> Component:
    """Return the CycloneDX component for *pin*, a package of the locks."""
    return Component(
        type=ComponentType.LIBRARY, name=pin.name, version=pin.version, bom_ref=pin.name,
        purl=PackageURL("pypi", name=pin.name, version=pin.version), licenses=declared_licences(pin.name, pin.version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in pin.hashes])


def build_bom() -> Bom:
    """Return the bill of materials of the release, with all packages that it puts on hosts."""
    version = re.search(r"^version: (\S+)$", (lock.ROOT / "galaxy.yml").read_text(encoding="utf-8"), re.MULTILINE)
    made = Bom()
    release = Component(
        type=ComponentType.APPLICATION, group="magnetar", name="compute", version=version[1] if version else None,
        bom_ref="magnetar.compute", licenses=[LicenseFactory().make_from_string("GPL-3.0-or-later")])
    made.metadata.component = release
    if moment := os.environ.get("SOURCE_DATE_EPOCH"):  # two builds of a commit are the same
        made.metadata.timestamp = datetime.fromtimestamp(int(moment), UTC)
        made.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"magnetar.compute {release.version} {moment}")
    locks = [lock.read_lock(name) for name in wheelhouse.NAMES]
    components = {name: sbom_component(pin) for pins in locks for name, pin in pins.items()}
    made.components.update(components.values())
    direct = {canonicalize_name(requirement.name) for name in wheelhouse.NAMES
              for requirement in lock.needed_requirements()[name]}
    made.register_dependency(release, [components[name] for name in sorted(direct)])
    for name, component in components.items():
        made.register_dependency(
            component, [components[other] for pins in locks for other, pin in pins.items() if name in pin.via])
    return made


def sbom_text() -> str:
    """Return the bill of materials as JSON."""
    return f"{make_outputter(build_bom(), OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)}\n"


if __name__ == "__main__":
    print(sbom_text(), end="")
