# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the bill of materials of a release (CycloneDX 1.6, JSON): what its locks put on hosts, and who needs what.

Each package has its version, the hashes of its files as in the locks, and, where the development environment has that
version, the licence that it declares.
"""

from __future__ import annotations

import re
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


def licences(name: str, version: str) -> list[License]:
    """What the installed package declares: an SPDX expression, words, or a classifier; nothing for another version."""
    try:
        told = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    if told["Version"] != version:
        return []
    words = told.get("License-Expression") or told.get("License") or ""
    classes = [one.removeprefix(PREFIX) for one in told.get_all("Classifier", []) if one.startswith(PREFIX)]
    found = [words] if words and "\n" not in words.strip() else classes
    return [LicenseFactory().make_from_string(one.strip(), license_acknowledgement=LicenseAcknowledgement.DECLARED)
            for one in found]


def component(pin: lock.Pin) -> Component:
    """A package of the locks."""
    return Component(
        type=ComponentType.LIBRARY, name=pin.name, version=pin.version, bom_ref=pin.name,
        purl=PackageURL("pypi", name=pin.name, version=pin.version), licenses=licences(pin.name, pin.version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in pin.hashes])


def bom() -> Bom:
    """The release and all that it has on hosts."""
    version = re.search(r"^version: (\S+)$", (lock.ROOT / "galaxy.yml").read_text(encoding="utf-8"), re.MULTILINE)
    made = Bom()
    release = Component(
        type=ComponentType.APPLICATION, group="magnetar", name="compute", version=version[1] if version else None,
        bom_ref="magnetar.compute", licenses=[LicenseFactory().make_from_string("GPL-3.0-or-later")])
    made.metadata.component = release
    locks = [lock.read(name) for name in wheelhouse.NAMES]
    found = {name: component(pin) for pins in locks for name, pin in pins.items()}
    made.components.update(found.values())
    asked = {canonicalize_name(one.name) for name in wheelhouse.NAMES for one in lock.needed()[name]}
    made.register_dependency(release, [found[name] for name in sorted(asked)])
    for name, one in found.items():
        made.register_dependency(
            one, [found[other] for pins in locks for other, pin in pins.items() if name in pin.via])
    return made


def text() -> str:
    """It as JSON."""
    return f"{make_outputter(bom(), OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)}\n"


if __name__ == "__main__":
    print(text(), end="")
