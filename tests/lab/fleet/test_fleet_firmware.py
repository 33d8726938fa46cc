# SPDX-License-Identifier: GPL-3.0-or-later
"""A server with UEFI and one with a TPM besides go from host to host, and take along what both keep.

Their guests have nothing to boot: it is the firmware that runs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.lab.fleet import Fleet
from tests.support.lab.fleet_firmware import SIZES, go

if TYPE_CHECKING:
    from tests.support.lab.bare import Site

pytestmark = [
    pytest.mark.lab,
    pytest.mark.deep(shard="firmware and TPM on their way"),  # on fakes it is shown for each death of an agent
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

UEFI = {"firmware": "uefi", "secure_boot": "required"}


def test_live_with_uefi_and_cold_with_a_tpm(three_hosts: Site) -> None:
    fleet = Fleet(three_hosts)
    try:
        _live(fleet)
        _cold(fleet)
    finally:
        fleet.clear()


def _live(fleet: Fleet) -> None:
    id = fleet.client("bare1").ensure("server", "efi", {**SIZES, "hardware": UEFI})["resource"]["id"]
    path = f"/var/lib/magnetar/servers/{id}/uefi.secure"
    mark = b"noted by the guest"
    for source, target in (("bare1", "bare2"), ("bare2", "bare1")):
        go(fleet, source, target, "efi", "live")
        assert fleet.client(target).get("server", id)["power_state"] == "running"
        fleet.hosts[target].run(["test", "-s", path])
        assert fleet.hosts[source].run(["test", "-e", path], check=False).returncode
        assert path in fleet.virsh(target, "dumpxml", f"magnetar-{id}")
    fleet.client("bare1").ensure("server", id, {"power": "off"})
    fleet.hosts["bare1"].run(["sh", "-c", f"cat >>{path}"], stdin=mark)
    go(fleet, "bare1", "bare2", "efi", "cold")
    assert fleet.hosts["bare2"].run(["tail", "-c", str(len(mark)), path]).stdout == mark.decode()


def _cold(fleet: Fleet) -> None:
    want = {**SIZES, "hardware": {**UEFI, "tpm_version": "2.0"}, "shutdown_timeout": 0}
    id = fleet.client("bare1").ensure("server", "tpm", want)["resource"]["id"]
    kept = f"/var/lib/libvirt/swtpm/{id}/tpm2"
    go(fleet, "bare1", "bare2", "tpm", "cold")
    assert fleet.client("bare2").get("server", id)["power_state"] == "running"
    fleet.hosts["bare2"].run(["test", "-d", kept])
    assert fleet.hosts["bare1"].run(["test", "-e", kept], check=False).returncode
    # swtpm's log has it where a TPM is made, which happened at the first host only.
    said = {name: fleet.hosts[name].run(["sh", "-c", "cat /var/log/swtpm/libvirt/qemu/*.log"], check=False).stdout
            for name in ("bare1", "bare2")}
    assert "manufacturing" in said["bare1"] and "manufacturing" not in said["bare2"], said
    fleet.client("bare2").delete("server", id)
    assert fleet.hosts["bare2"].run(["test", "-e", kept], check=False).returncode
