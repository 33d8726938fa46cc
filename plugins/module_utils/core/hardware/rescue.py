# SPDX-License-Identifier: GPL-3.0-or-later
"""Rescue with stable devices: the rescue image's properties name the device type and bus of the rescue disk
(``hw_rescue_device``, ``hw_rescue_bus``), and the guest keeps all its own disks during the rescue. Source: Nova's guide
for rescue.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

from ..errors import InvalidField
from . import machines
from .architectures import NO_BUSES

DEVICE, BUS = "hw_rescue_device", "hw_rescue_bus"
#: Device to the buses that guests can have it on, the default first.
BUSES: Mapping[str, tuple[str, ...]] = {"disk": ("virtio", "scsi", "sata", "usb", "ide"),
                                        "cdrom": ("sata", "scsi", "usb", "ide"), "floppy": ("fdc",)}
#: Bytes of the largest floppy that a guest's controller reads (2.88 MB).
FLOPPY_MAX = 2880 * 1024


def rescue_device_of_image(properties: Mapping[str, Any], machine: str, device: str = DEVICE,
                           bus: str = BUS) -> Optional[dict[str, str]]:
    """Return ``{"device": …, "bus": …}`` of the rescue disk for a server with this *machine* type, from the rescue
    image's *properties*. Return ``None`` if the image has neither property: the server then has none of its volumes
    during the rescue. *device*, *bus*: the names of the two properties. Raises ``InvalidField``.
    """
    kind, behind = properties.get(device), properties.get(bus)
    if not kind and not behind:
        return None
    kind = kind or "disk"
    if kind not in BUSES:
        raise InvalidField(device, "must be one of %s" % ", ".join(BUSES), kind)
    missing_buses = NO_BUSES.get(machines.machine_architecture(machine), ())
    buses = [candidate for candidate in BUSES[kind] if candidate not in missing_buses]
    if not buses:
        raise InvalidField(device, "cannot be %s: machine %s of the server has none; use %s" % (
            kind, machine, " or ".join(sorted(BUSES.keys() - {kind}))), kind)
    behind = behind or buses[0]
    if behind not in BUSES[kind] or behind in missing_buses:
        raise InvalidField(bus, "must be one of %s for a rescue %s of machine %s" % (
            ", ".join(buses), kind, machine), behind)
    if behind == "ide" and "q35" in machine:
        raise InvalidField(bus, "cannot be ide: machine %s of the server has no IDE; use usb or sata, or a server of "
                           "machine pc" % machine, behind)
    return {"device": kind, "bus": behind}
