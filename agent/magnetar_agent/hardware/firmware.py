# SPDX-License-Identifier: GPL-3.0-or-later
"""The firmware of a guest: BIOS or UEFI."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Firmware(NamedTuple):
    """The UEFI firmware of a guest. *variables*: the file of its variables; libvirt creates a missing file from the
    firmware's template. *secure*: whether it has secure boot."""

    variables: Path
    secure: bool


def guest_firmware(hardware: Mapping[str, Any], machine: str, host: Mapping[str, Any], place: Path) -> Firmware | None:
    """Return the UEFI firmware of a server with this *hardware*, whose folder is *place*; ``None`` for BIOS. *machine*:
    its machine type. *host*: fields of ``kinds.Host``.

    With secure boot the file of variables is ``uefi.secure``: it contains keys, without which secure boot is off.
    """
    if hardware.get("firmware") != "uefi":
        return None
    secure_boot = hardware.get("secure_boot")
    secure = secure_boot == "required" or (secure_boot == "optional" and "q35" in machine
                                           and bool(host.get("secure_boot")))
    return Firmware(place / ("uefi.secure" if secure else "uefi"), secure)
