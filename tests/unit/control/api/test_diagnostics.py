# SPDX-License-Identifier: GPL-3.0-or-later
"""diagnostics: both forms, of servers that run only, with nothing made up."""

import pytest

from magnetar_core.errors import HypervisorDown, NotFound, TimedOut, Unreachable

from .compute import Agents, Teller

DISK = {"read_bytes": 262144, "read_requests": 112, "write_bytes": 5778432, "write_requests": 488, "errors": None}
COUNTED = {"rx_octets": 2070139, "rx_packets": 26701, "rx_errors": 1, "rx_drop": 2, "tx_octets": 140208,
           "tx_packets": 662, "tx_errors": 3, "tx_drop": 4}
TOLD = {
    "id": "a", "power_state": "running", "config_drive": True, "virt_type": "kvm", "uptime": 46664,
    "cpus": [{"id": 0, "time": 17300000000}, {"id": 1, "time": None}],
    "memory": {"maximum": 524288, "actual": 524288, "rss": 247972, "available": 491520, "unused": 51200,
               "usable": 204800},
    "disks": [{"device": "vda", **DISK}, {"device": "vdz", **dict.fromkeys(DISK)}],
    "nics": [{"device": "vnet3", "mac": "52:54:00:00:00:01", **COUNTED},
             {"device": None, "mac": "52:54:00:00:00:02", **dict.fromkeys(COUNTED)}]}


def asked(compute, told=None, version="2.48", **values):
    compute.host("kvm1")
    compute.cloud.agents = Agents(kvm1=Teller(TOLD if told is None else told))
    id = compute.server(**{"host": "kvm1", **values})
    return id, compute.admin.get(f"/servers/{id}/diagnostics", version)


def test_the_form_since_2_48(small):
    _id, reply = asked(small)
    assert reply.json == {
        "state": "running", "driver": "libvirt", "hypervisor": "kvm", "hypervisor_os": "linux", "uptime": 46664,
        "config_drive": True, "num_cpus": 2, "num_nics": 2, "num_disks": 2,
        "cpu_details": [{"id": 0, "time": 17300000000, "utilisation": None},
                        {"id": 1, "time": None, "utilisation": None}],
        "nic_details": [
            {"mac_address": "52:54:00:00:00:01", **COUNTED, "rx_rate": None, "tx_rate": None},
            {"mac_address": "52:54:00:00:00:02", **dict.fromkeys(COUNTED), "rx_rate": None, "tx_rate": None}],
        "disk_details": [
            {"read_bytes": 262144, "read_requests": 112, "write_bytes": 5778432, "write_requests": 488,
             "errors_count": None},
            dict.fromkeys(("read_bytes", "read_requests", "write_bytes", "write_requests", "errors_count"))],
        "memory_details": {"maximum": 512, "used": 280}}


@pytest.mark.parametrize(("memory", "details"), [
    ({"maximum": 524288, "actual": 262144, "available": 491520, "unused": 51200}, {"maximum": 512, "used": 430}),
    ({"maximum": 524288, "actual": 262144, "rss": 1}, {"maximum": 512, "used": 256}),
    ({}, {"maximum": None, "used": None})])
def test_memory_that_a_guest_tells_less_of(small, memory, details):
    _id, reply = asked(small, {**TOLD, "memory": memory})
    assert reply.json["memory_details"] == details


@pytest.mark.parametrize("version", ["2.1", "2.47"])
def test_the_form_before_2_48(small, version):
    _id, reply = asked(small, version=version)
    assert reply.json == {
        "cpu0_time": 17300000000,
        "vda_read": 262144, "vda_read_req": 112, "vda_write": 5778432, "vda_write_req": 488, "vda_errors": -1,
        "vdz_errors": -1,
        "vnet3_rx": 2070139, "vnet3_rx_packets": 26701, "vnet3_rx_errors": 1, "vnet3_rx_drop": 2,
        "vnet3_tx": 140208, "vnet3_tx_packets": 662, "vnet3_tx_errors": 3, "vnet3_tx_drop": 4,
        "memory": 524288, "memory-actual": 524288, "memory-rss": 247972, "memory-available": 491520,
        "memory-unused": 51200, "memory-usable": 204800}


@pytest.mark.parametrize("state", ["off", "paused", "suspended"])
@pytest.mark.parametrize("version", ["2.1", "2.48"])
def test_a_server_that_does_not_run_has_none(small, state, version):
    id, reply = asked(small, {**TOLD, "power_state": state}, version)
    assert (reply.status, reply.message) == (
        409, f"Cannot 'get_diagnostics' instance {id} while it is in power state {state}")


@pytest.mark.parametrize(("told", "host", "status"), [
    (Unreachable(), "kvm1", 409), (TimedOut(), "kvm1", 409), (HypervisorDown(), "kvm1", 409),
    (NotFound("There is no server 'a'.", kind="server", key="a"), "kvm1", 409),
    (NotFound("There is no /v1/server/a/diagnostics."), "kvm1", 501), (TOLD, None, 409)])
def test_when_nobody_tells(small, told, host, status):
    _id, reply = asked(small, told, host=host)
    assert reply.status == status


def test_who_may_look(small):
    id, _reply = asked(small)
    assert small.alice.get(f"/servers/{id}/diagnostics").status == 403
    assert small.bob.get(f"/servers/{id}/diagnostics").status == 404
    assert small.admin.get(f"/servers/{id}/diagnostics?a=b", "2.102").status == 400
