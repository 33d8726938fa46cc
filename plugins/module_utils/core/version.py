# SPDX-License-Identifier: GPL-3.0-or-later
"""The installed version, and versions as numbers."""

from __future__ import annotations

import functools
import re
from typing import Any, Mapping, Optional, Tuple

#: The least versions that a host needs: the field of its report, the program, the version (that of Debian 12).
LEAST_VERSIONS = (("libvirt_version", "libvirt", "9.0.0"), ("hypervisor_version", "QEMU", "7.2.0"))
#: Number of the protocol ``/v1``; it increases when something is removed.
API = 1


@functools.cache
def installed_version() -> str:
    """Return the version of the installed Python distribution ``magnetar``; ``0+checkout`` if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("magnetar")
    except metadata.PackageNotFoundError:
        return "0+checkout"


def version_number(text: str) -> int:
    """Return the version *text* as a number, as libvirt and Nova encode it: ``7.2.22`` is 7002022. Parts that are not
    numbers count as 0.
    """
    parts = [int(part) if part.isdigit() else 0 for part in text.split(".")[:3]] + [0, 0, 0]
    return parts[0] * 1000000 + parts[1] * 1000 + parts[2]


def release_number(version: str) -> Optional[int]:
    """Return the number of the release *version*: 1000 times its major version plus its minor version. Return ``None``
    if *version* is not a release, such as ``0+checkout``.
    """
    numbers = re.match(r"([0-9]{1,9})\.([0-9]{1,9})", version)
    return int(numbers[1]) * 1000 + int(numbers[2]) if numbers else None


def releases_fit(one: str, other: str) -> bool:
    """Return whether processes of two releases work together: they are the same, or one is the release before the
    other. True if a version is not a release.
    """
    numbers = release_number(one), release_number(other)
    return None in numbers or abs((numbers[0] or 0) - (numbers[1] or 0)) <= 1


def explain_distant_releases(one: Tuple[str, str], other: Tuple[str, str]) -> Optional[str]:
    """Return why two processes do not work together, and which of them to upgrade; ``None`` if they do. *one*,
    *other*: name and release of a process, such as ("conductor c1", "0.2.0").
    """
    if releases_fit(one[1], other[1]):
        return None
    older, newer = sorted((one, other), key=lambda process: release_number(process[1]) or 0)
    return ("a release works with itself and with the release before. Upgrade the %s to %s, or to the release before "
            "it (docs/howto/upgrade-the-control-plane.md)" % (older[0], newer[1]))


def describe_least_versions() -> str:
    """Return ``LEAST_VERSIONS`` as a text for users, such as "libvirt 9.0.0 and QEMU 7.2.0"."""
    return " and ".join("%s %s" % (name, least) for _field, name, least in LEAST_VERSIONS)


def older_programs(report: Mapping[str, Any]) -> list[str]:
    """Return the programs of a host that are older than ``LEAST_VERSIONS``, with their versions, such as ``QEMU
    5.2.0``. *report*: the agent's resource ``host``. Empty if its hypervisor is not QEMU.
    """
    if report.get("hypervisor_type") != "QEMU":
        return []
    return [f"{name} {report[field]}" for field, name, least in LEAST_VERSIONS
            if report.get(field) and version_number(report[field]) < version_number(least)]
