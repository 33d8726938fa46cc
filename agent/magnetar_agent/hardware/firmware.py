# SPDX-License-Identifier: GPL-3.0-or-later
"""What the guest boots by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Firmware(NamedTuple):
    """UEFI. *variables*: the file in which it keeps what it is told; libvirt makes one that is missing from the
    firmware's template. *secure*: with secure boot."""

    variables: Path
    secure: bool


def firmware(hardware: Mapping[str, Any], machine: str, host: Mapping[str, Any], place: Path) -> Firmware | None:
    """The firmware of a server with its folder at *place*; ``None`` for BIOS. *host*: fields of ``kinds.Host``.

    Variables with secure boot's keys are a file of their own: with those of a guest that had none, secure boot would
    be off."""
    if hardware.get("firmware") != "uefi":
        return None
    word = hardware.get("secure_boot")
    secure = word == "required" or (word == "optional" and "q35" in machine and bool(host.get("secure_boot")))
    return Firmware(place / ("uefi.secure" if secure else "uefi"), secure)
