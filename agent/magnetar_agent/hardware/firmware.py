# SPDX-License-Identifier: GPL-3.0-or-later
"""The firmware of a guest: BIOS or UEFI."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Firmware(NamedTuple):
    """The UEFI firmware of a guest. *variables*: the path of the file with the UEFI variables; libvirt creates a
    missing file from a template. *secure*: whether secure boot is enabled."""

    variables: Path
    secure: bool


def guest_firmware(hardware: Mapping[str, Any], machine: str, host: Mapping[str, Any], folder: Path) -> Firmware | None:
    """Return the UEFI firmware of a server with these *hardware* fields; ``None`` for BIOS. *machine*: the server's
    machine type. *host*: the fields of the API's ``host`` resource. *folder*: the server's folder.

    With secure boot, the file of variables is ``uefi.secure``. It contains the keys that secure boot needs.
    """
    if hardware.get("firmware") != "uefi":
        return None
    secure_boot = hardware.get("secure_boot")
    secure = secure_boot == "required" or (secure_boot == "optional" and "q35" in machine
                                           and bool(host.get("secure_boot")))
    return Firmware(folder / ("uefi.secure" if secure else "uefi"), secure)
