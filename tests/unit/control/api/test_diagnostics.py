# SPDX-License-Identifier: GPL-3.0-or-later
"""diagnostics: both forms, of servers that run only, with nothing made up."""

import contextlib

import pytest

from magnetar_core.errors import NotFound, Unreachable

SERVER = {"flavor": {"vcpus": 2, "ram": 512, "ephemeral": 1, "swap": 0}, "image": "cirros", "power_state": "running",
          "networks": [{"mac": "52:54:00:00:00:01"}], "volumes_attached": [{"id": "a"}], "config_drive": True,
          "virt_type": "auto"}
NEW = {"state", "driver", "hypervisor", "hypervisor_os", "uptime", "config_drive", "num_cpus", "num_nics", "num_disks",
       "cpu_details", "nic_details", "disk_details", "memory_details"}


class Agents:
    """The agent's client; what it tells of the server, or what it raises."""

    def __init__(self, told):
        self.told = told

    @contextlib.contextmanager
    def client(self, endpoint):
        assert endpoint == "https://kvm1.example:6553"
        yield self

    def get(self, noun, key=None):
        if isinstance(self.told, Exception):
            raise self.told
        return {"virt_types": ["kvm", "qemu"]} if noun == "host" else self.told


def asked(compute, told=None, version="2.48", **values):
    told = SERVER if told is None else told
    compute.host("kvm1")
    compute.cloud.agents = Agents(told)
    id = compute.server(**{"host": "kvm1", **values})
    return id, compute.admin.get(f"/servers/{id}/diagnostics", version)


def test_the_form_since_2_48(small):
    _id, reply = asked(small)
    shown = reply.json
    assert set(shown) == NEW
    assert (shown["num_cpus"], shown["num_nics"], shown["num_disks"]) == (2, 1, 3)
    assert (shown["state"], shown["driver"], shown["hypervisor"], shown["config_drive"]) == (
        "running", "libvirt", "kvm", True)
    assert shown["cpu_details"][1] == {"id": 1, "time": None, "utilisation": None}
    assert shown["nic_details"][0]["mac_address"] == "52:54:00:00:00:01"
    assert set(shown["disk_details"][0].values()) == {None}
    assert shown["memory_details"] == {"maximum": 512, "used": None}


def test_the_form_before_2_48(small):
    _id, reply = asked(small, version="2.47")
    shown = reply.json
    assert shown["memory"] == 512 * 1024
    assert {"cpu0_time", "cpu1_time", "vda_read", "vdc_errors", "vnet0_rx"} <= set(shown)
    assert "vdd_read" not in shown


@pytest.mark.parametrize("state", ["off", "paused", "suspended"])
def test_a_server_that_does_not_run_has_none(small, state):
    id, reply = asked(small, {**SERVER, "power_state": state})
    assert (reply.status, reply.message) == (
        409, f"Cannot 'get_diagnostics' instance {id} while it is in power state {state}")


@pytest.mark.parametrize(("told", "host", "status"), [
    (Unreachable(), "kvm1", 503), (NotFound(), "kvm1", 409), (SERVER, None, 409)])
def test_when_nobody_tells(small, told, host, status):
    _id, reply = asked(small, told, host=host)
    assert reply.status == status


def test_who_may_look(small):
    id, _reply = asked(small)
    assert small.alice.get(f"/servers/{id}/diagnostics").status == 403
    assert small.bob.get(f"/servers/{id}/diagnostics").status == 404
    assert small.admin.get(f"/servers/{id}/diagnostics?a=b", "2.102").status == 400
