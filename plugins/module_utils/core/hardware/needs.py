# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server's ``hardware`` needs of its host. Pure: agents refuse by it, and the scheduler looks for another host.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

UEFI = "a UEFI firmware that libvirt knows; on Debian the package ovmf has it"
SECURE_BOOT = "a UEFI firmware with secure boot and keys that libvirt knows; on Debian the package ovmf has it"


def lacking(hardware: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each field of *hardware* that a *host* (fields of ``kinds.Host``) cannot give, and what the host lacks for it. A
    host that does not tell what it has has nothing."""
    if hardware.get("firmware") == "uefi" and "uefi" not in (host.get("firmware") or ()):
        yield "firmware", UEFI
    if hardware.get("secure_boot") == "required" and not host.get("secure_boot"):
        yield "secure_boot", SECURE_BOOT
