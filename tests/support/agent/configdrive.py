# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of configdrive."""

from __future__ import annotations

import base64
import json
from typing import Any

from magnetar_agent.metadata import configdrive
from magnetar_agent.metadata.guest_data import Device, Guest, GuestNic, Key

NIC = GuestNic("52:54:00:00:00:01", "lan", mtu=1400, dns=("192.0.2.53",))
GUEST = Guest(
    uuid="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", name="Web One", hostname="web-one.novalocal", seed=b"\x01" * 512,
    flavor="small", image="0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11", project="p1", launch_index=2, availability_zone="az1",
    keys=(Key("me", "ssh-ed25519 AAAA me"),), metadata={"role": "web"}, security_groups=("default", "web"),
    user_data=base64.b64encode(b"#!/bin/sh\necho hi\n").decode(), nics=(NIC,), admin_pass="Secret12",
    devices=(Device("nic", "pci", ("front",), "0000:01:00.0", mac="52:54:00:00:00:01"),
             Device("disk", "scsi", ("db",), "0:0:0:1", serial="8c7d3c0e", path="/dev/sda")),
    vendor_data={"site": "lab"}, vendor_data2={"join": {"token": "t"}}, dedicated_cpus=(0, 2),
)


def read(name: str, guest: Guest = GUEST) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(configdrive.config_drive_files(guest)[name])
    return found
