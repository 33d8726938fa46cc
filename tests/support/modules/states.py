# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of states."""

from __future__ import annotations

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Zz5bBNJ me@example"
CASES = {
    "flavor": dict(name="f", vcpus=2, ram=256, disk=1, extra_specs={"hw:cpu_policy": "shared"}),
    "image": dict(name="i", filename="disk.raw", disk_format="raw", min_ram=64, properties={"os_distro": "debian"}),
    "keypair": dict(name="k", public_key=KEY),
    "network": dict(name="n", cidr="192.168.98.0/24"),
    "volume": dict(name="v", image="img", metadata={"role": "db", "number": 1}),
    "volume_snapshot": dict(name="vs", volume="data"),
    "server": dict(name="s", flavor="small", image="img", networks=["lan"], key_name="me", userdata={"hostname": "s"},
                   metadata={"role": "web", "number": 1}, tags=["b", "a"]),
}
UPDATES = {
    "flavor": dict(description="new"),
    "image": dict(min_ram=128),
    "keypair": dict(description="new"),
    "network": dict(description="new"),
    "volume": dict(size=2, metadata={"more": "x"}, purge_metadata=False),
    "volume_snapshot": dict(metadata={"more": "x"}),
    "server": dict(description="new", metadata={"more": "x"}, purge_metadata=False, tags=["c"]),
}
