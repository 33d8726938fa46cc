# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds, one file per noun. ``KINDS`` is the list that everything else reads."""

from __future__ import annotations

from .flavor import Flavor
from .host import Host
from .image import Image
from .keypair import Keypair
from .migration import Migration
from .network import Network
from .server import Server

__all__ = ["BY_NOUN", "KINDS", "Flavor", "Host", "Image", "Keypair", "Migration", "Network", "Server"]

KINDS = (Server, Flavor, Image, Keypair, Network, Migration, Host)
BY_NOUN = {kind.noun: kind for kind in KINDS}
