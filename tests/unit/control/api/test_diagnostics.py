# SPDX-License-Identifier: GPL-3.0-or-later
"""diagnostics of servers that nobody tells of."""

import pytest

from magnetar_control.api.nova.app import ComputeApplication
from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.compute.cloud import Cloud
from magnetar_control.settings_file import make_settings
from magnetar_core.errors import HypervisorDown, HypervisorError, MagnetarError, NotFound, TimedOut, Unreachable

from .compute import Agents, Caller, Teller

#: What an agent tells of a guest that nobody counts anything of.
NOTHING = {"id": "a", "config_drive": True, "virt_type": None, "uptime": None, "cpus": [], "memory": {}, "disks": [],
           "nics": []}


@pytest.mark.parametrize(("told", "host", "status"), [
    (Unreachable(), "kvm1", 503), (TimedOut(), "kvm1", 503), (HypervisorDown(), "kvm1", 503),
    ({**NOTHING, "power_state": "shutdown"}, "kvm1", 409), ({**NOTHING, "power_state": "running"}, "kvm1", 200),
    ({**NOTHING, "power_state": "paused"}, "kvm1", 200),
    (NotFound("There is no server 'a'.", kind="server", key="a"), "kvm1", 409),
    (NotFound("There is no /v1/server/a/diagnostics."), "kvm1", 501), ({"power_state": "running"}, None, 409)])
def test_when_nobody_tells(small, told, host, status):
    small.host("kvm1")
    small.cloud.agents = Agents(kvm1=Teller(told))
    id = small.server(host=host)
    assert small.admin.get(f"/servers/{id}/diagnostics", "2.48").status == status


@pytest.mark.parametrize(("told", "length", "status", "output"), [
    ("a\nb\nc\n", 2, 200, "c\n"), ("a\nb\nc", 2, 200, "b\nc"), ("a\nb\nc\n", None, 200, "a\nb\nc\n"),
    ("a\nb\nc\n", -1, 200, "a\nb\nc\n"), ("a\n", 9, 200, "a\n"), ("a\n", 0, 200, ""),
    (Unreachable(), 2, 503, None), (TimedOut(), None, 503, None), (HypervisorDown(), None, 503, None),
    (NotFound("There is no server 'a'.", kind="server", key="a"), 2, 409, None)])
def test_a_console_log_has_as_many_lines_as_nova_counts(small, told, length, status, output):
    """``output.split("\\n")`` has *length* items, of which the one after the last line break is empty."""
    small.host("kvm1")
    small.cloud.agents = Agents(kvm1=Teller(told))
    reply = small.admin.post(f"/servers/{small.server(host='kvm1')}/action", {
        "os-getConsoleOutput": {} if length is None else {"length": length}})
    assert reply.status == status and (output is None or reply.json["output"] == output), reply


@pytest.mark.parametrize("error", [
    HypervisorError("qemu-img: /var/lib/magnetar/x on kvm1 failed"), HypervisorDown("no libvirt on kvm1"),
    MagnetarError("boom on kvm1"), Unreachable("kvm1.example:6553 refused"), NotFound("no server", kind="server"),
    NotFound("no route"), None])
def test_who_may_look_and_is_no_administrator_reads_of_no_host(small, error, tmp_path):
    """Nor what agent, libvirt and QEMU said."""
    (tmp_path / "policy.yaml").write_text('"os_compute_api:os-server-diagnostics": "role:member"')
    small.host("kvm1")
    settings = make_settings({"state_dir": str(tmp_path), "policy_file": str(tmp_path / "policy.yaml")})
    cloud = Cloud(settings, small.store, small.cloud.services, Agents(**({"kvm1": Teller(error)} if error else {})))
    alice = Caller(ComputeApplication(cloud, OPERATIONS), "alice")
    refused = alice.get(f"/servers/{small.server(host='kvm1')}/diagnostics", "2.48")
    assert refused.status in (409, 501, 503) and "kvm1" not in refused.message and "qemu" not in refused.message
