# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds, one file per noun. ``KINDS`` is the list that everything else reads."""

from __future__ import annotations

from .export import VolumeExport
from .flavor import Flavor
from .host import Host
from .image import Image
from .interface import InterfaceAttachment
from .keypair import Keypair
from .migration import Migration
from .network import Network
from .server import Server
from .volume import Volume, VolumeAttachment, VolumeSnapshot

__all__ = ["BY_NOUN", "KINDS", "Flavor", "Host", "Image", "InterfaceAttachment", "Keypair", "Migration", "Network",
           "Server", "Volume", "VolumeAttachment", "VolumeExport", "VolumeSnapshot"]

KINDS = (Server, Flavor, Image, Keypair, Network, Volume, VolumeSnapshot, VolumeAttachment, InterfaceAttachment,
         VolumeExport, Migration, Host)
BY_NOUN = {kind.noun: kind for kind in KINDS}
