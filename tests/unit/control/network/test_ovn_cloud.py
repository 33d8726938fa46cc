# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole control plane over OVN's northbound database: what is there of a server while it lives and moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from magnetar_control.conductor.periodic.audit import findings_of_checks
from magnetar_core.kinds import Server
from tests.support.control.audited import read_state
from tests.support.control.cloud import Caller, Cloud
from tests.support.northbound import LabCentral, missing

pytestmark = pytest.mark.slow
NIC = {one.name for one in next(field for field in Server.fields if field.name == "networks").value.item.fields}


@pytest.fixture(scope="module")
def central(tmp_path_factory: Any) -> Iterator[LabCentral]:
    if missing() or "port" not in NIC:
        pytest.skip(missing() or "agents know no ports of OVN")
    made = LabCentral(tmp_path_factory.mktemp("ovn"))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="module")
def cloud(central: LabCentral) -> Iterator[Cloud]:
    with Cloud(links=True, ovn_northbound=central.url, ovn_hosts_wait=0.0) as made:
        yield made


def _port(central: LabCentral, id: str, column: str) -> str:
    return central.nb("--bare", f"--columns={column}", "find", "Logical_Switch_Port", f"name={id}").strip()


def _eventually(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def _of(admin: Caller, server: dict[str, Any]) -> str:
    (port,) = admin.get(f"/network/v2.0/ports?device_id={server['id']}").json["ports"]
    return str(port["id"])


def test_a_server_has_its_port_from_before_its_start_to_its_end(cloud: Cloud, central: LabCentral) -> None:
    admin = cloud.admin
    server = admin.boot("web1")
    assert server["status"] == "ACTIVE", server
    port, host = _of(admin, server), server["OS-EXT-SRV-ATTR:host"]
    # The guest has started, so it has been there.
    assert f"requested-chassis={host}" in _port(central, port, "options")
    address = server["addresses"]["auto_allocated_network"][0]["addr"]
    assert address in _port(central, port, "port_security")
    assert admin.post("/network/v2.0/security-groups", {"security_group": {"name": "web"}}).status == 201
    assert admin.act(server["id"], "addSecurityGroup", {"name": "web"}).status == 202
    groups = ("--bare", "--columns=ports", "find", "Port_Group", 'name!="mag_drop"')
    _eventually(lambda: central.nb(*groups).count("-") >= 8)

    assert admin.act(server["id"], "os-migrateLive", {"host": None, "block_migration": "auto"}, "2.60").status == 202
    moved = admin.settled(server["id"])
    assert moved["OS-EXT-SRV-ATTR:host"] != host
    there = moved["OS-EXT-SRV-ATTR:host"]
    _eventually(lambda: _port(central, port, "options") == f"requested-chassis={there}")
    services = cloud.services
    assert findings_of_checks(read_state(cloud.parts.store, cloud.parts.agents, services)) == []

    assert admin.call("DELETE", f"/v2.1/servers/{server['id']}").status == 204
    _eventually(lambda: not _port(central, port, "name"))


def test_the_audit_finds_what_somebody_changed(cloud: Cloud, central: LabCentral) -> None:
    server = cloud.admin.boot("web2")
    port = _of(cloud.admin, server)
    central.nb("lsp-set-port-security", port)
    state = _eventually(lambda: (found := read_state(cloud.parts.store, cloud.parts.agents, cloud.services)).engine
                        and found)
    assert [(one.kind, one.id) for one in findings_of_checks(state)] == [("engine", f"port/{port}")]
    cloud.services.network.worker.whole()  # type: ignore[attr-defined]
    assert _port(central, port, "port_security")
