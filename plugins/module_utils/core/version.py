# SPDX-License-Identifier: GPL-3.0-or-later
"""The installed version, and versions as numbers."""

from __future__ import annotations

import functools
import re
from typing import Any, Mapping, Optional

#: The least versions that a host needs: the field of its report, the program, the version (that of Debian 12).
LEAST_VERSIONS = (("libvirt_version", "libvirt", "9.0.0"), ("hypervisor_version", "QEMU", "7.2.0"))
#: Number of the protocol ``/v1``; it increases when something is removed.
API = 1


@functools.cache
def installed_version() -> str:
    """Return the version of the distribution ``magnetar``; ``0+checkout`` for a bare checkout."""
    from importlib import metadata

    try:
        return metadata.version("magnetar")
    except metadata.PackageNotFoundError:
        return "0+checkout"


def version_number(text: str) -> int:
    """Return a version as the number that libvirt and Nova use: ``7.2.22`` is 7002022; a part that is not a number
    counts as 0.
    """
    parts = [int(part) if part.isdigit() else 0 for part in text.split(".")[:3]] + [0, 0, 0]
    return parts[0] * 1000000 + parts[1] * 1000 + parts[2]


def release_number(version: str) -> Optional[int]:
    """Return the number of the release *version*, which increases by 1 with each release: before 1.0.0 the minor
    version. Return ``None`` for a version that is no release, such as the version of a bare checkout.
    """
    numbers = re.match(r"([0-9]{1,9})\.([0-9]{1,9})", version)
    return int(numbers[1]) * 1000 + int(numbers[2]) if numbers else None


def describe_least_versions() -> str:
    """Return ``LEAST_VERSIONS`` as text, such as "libvirt 9.0.0 and QEMU 7.2.0"."""
    return " and ".join("%s %s" % (name, least) for _field, name, least in LEAST_VERSIONS)


def older_programs(report: Mapping[str, Any]) -> list[str]:
    """Return the programs of a host that are older than ``LEAST_VERSIONS``, each with its version. *report*: the
    agent's resource ``host``; other hypervisors than QEMU, and a host without libvirt, have none.
    """
    if report.get("hypervisor_type") != "QEMU":
        return []
    return [f"{name} {report[field]}" for field, name, least in LEAST_VERSIONS
            if report.get(field) and version_number(report[field]) < version_number(least)]
