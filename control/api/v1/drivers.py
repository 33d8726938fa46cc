# SPDX-License-Identifier: GPL-3.0-or-later
"""The drivers of all kinds that the cloud serves, by the word in the path."""

from __future__ import annotations

from collections.abc import Mapping

from .attachment import InterfaceAttachments, VolumeAttachments
from .driver import Driver
from .flavor import Flavors
from .image import Images
from .keypair import Keypairs
from .network import Networks
from .operators import (
    AvailabilityZones,
    Cells,
    ComputeServices,
    Hosts,
    Hypervisors,
    InstanceActions,
    LimitsOf,
)
from .server import Servers
from .volume import Snapshots, Volumes

DRIVERS: Mapping[str, Driver] = {driver.kind.noun: driver for driver in (
    Servers(), Flavors(), Images(), Keypairs(), Networks(), Volumes(), Snapshots(), VolumeAttachments(),
    InterfaceAttachments(), Hosts(), ComputeServices(), Hypervisors(), Cells(), InstanceActions(), LimitsOf(),
    AvailabilityZones())}
