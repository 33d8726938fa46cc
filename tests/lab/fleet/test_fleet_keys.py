# SPDX-License-Identifier: GPL-3.0-or-later
"""A server with encrypted disks and a TPM goes live from host to host: its guest counts on and finds its pattern whole,
the disks are encrypted wherever it comes, and no libvirt keeps a key."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.support.lab.fleet import COUNT, MAKE, NAMES, Fleet

if TYPE_CHECKING:
    from tests.support.lab.bare import Site

pytestmark = [
    pytest.mark.lab,
    pytest.mark.deep(shard="keys on their way"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

HIDDEN = MAKE.replace('userdata: "{{ count }}"', 'userdata: "{{ count }}", hardware: '
                      '{ephemeral_encryption: true, tpm_version: "2.0", tpm_secret_security: host}')


def test_a_guest_with_encrypted_disks_and_a_tpm_goes_live(three_hosts: Site) -> None:
    fleet = Fleet(three_hosts)
    try:
        fleet.play(HIDDEN, "-e", json.dumps({"count": COUNT}))
        fleet.goes_on("bare1")
        id = fleet.client("bare1").get("server", "counter")["id"]
        for source, target in (("bare1", "bare2"), ("bare2", "bare1")):
            fleet.go(source, target, type="live")
            assert fleet.where() == target
            fleet.goes_on(target)
            for name in ("disk", "disk.ephemeral"):
                path = f"/var/lib/magnetar/servers/{id}/{name}"
                seen = json.loads(fleet.hosts[target].run(["qemu-img", "info", "-U", "--output=json", path]).stdout)
                assert seen["encrypted"] and seen["format-specific"]["data"]["encrypt"]["format"] == "luks"
            fleet.hosts[target].run(["test", "-s", f"/var/lib/libvirt/swtpm/{id}/tpm2/tpm2-00.permall"])
            assert fleet.hosts[source].run(["test", "-e", f"/var/lib/libvirt/swtpm/{id}"], check=False).returncode
            assert [fleet.virsh(name, "secret-list").strip() for name in NAMES] == ["", "", ""]
        fleet.client("bare1").ensure("server", id, {"power": "off"})
        fleet.client("bare1").ensure("server", id, {"power": "running"})  # with the key and the secret that came
        assert fleet.client("bare1").get("server", id)["power_state"] == "running"
    finally:
        fleet.clear()
