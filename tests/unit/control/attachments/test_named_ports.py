# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports that new servers name: reserved before the answer, and free again where the server is not built."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from magnetar_control.compute.proxies import networks
from magnetar_control.compute.servers import server_reservations
from magnetar_control.conductor.periodic import audit
from magnetar_control.conductor.steps import nics
from magnetar_core.errors import Cancelled, Conflict
from tests.support.waiting import eventually

from .asking import NETWORK, Owner, macs, network, new_port, ports


def _asked(owner: Owner, port: str, **more: Any) -> Any:
    """The answer to a request for a server with an existing port."""
    body = {"name": "new", "flavorRef": "1", "networks": [{"port": port}], "imageRef": owner.call.image(), **more}
    return owner.call.post("/v2.1/servers", {"server": body}, "2.60")


def _device(owner: Owner, port: str) -> str:
    """The server that has the port, or for which it is reserved; empty for none."""
    return str(owner.call.get(f"{NETWORK}/ports/{port}").json["port"]["device_id"])


def _servers(owner: Owner) -> list[str]:
    return [server["id"] for server in owner.call.get("/v2.1/servers").json["servers"]]


def _findings(owner: Owner) -> list[str]:
    parts = owner.cloud.parts
    return [finding.text for finding in audit.run_with_state(
        parts.store, parts.agents, owner.cloud.services, pause=0.1)[0]]


@pytest.fixture
def port(owner: Owner) -> Iterator[str]:
    """A port, which nobody has when the test's servers are gone."""
    id = new_port(owner)
    yield id
    owner.clear()
    assert _device(owner, id) == ""
    assert owner.call.delete(f"{NETWORK}/ports/{id}").status == 204


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | None], threading.Event]:
    """Holds builds back before they take ports. Set the event to let them go on, or fail as told."""
    def hold(error: Exception | None = None) -> threading.Event:
        go, real = threading.Event(), nics.allocate_nics

        def allocate(work: Any, host: str) -> Any:
            go.wait(30)
            if error:
                raise error
            return real(work, host)

        monkeypatch.setattr(nics, "allocate_nics", allocate)
        return go

    return hold


def test_a_port_is_reserved_before_the_answer(owner: Owner, port: str, held: Any) -> None:
    go, lan = held(), network(owner, "third", "198.19.0.0/24")
    first = _asked(owner, port, networks=[{"uuid": lan}, {"port": port}])
    assert first.status == 202
    server = first.json["server"]["id"]
    assert _device(owner, port) == server
    second = _asked(owner, port)
    assert second.status == 409 and f"Port {port} is still in use" in second.json["conflictingRequest"]["message"]
    assert owner.call.put(f"{NETWORK}/ports/{port}", {"port": {"device_id": ""}}).status == 409
    assert _findings(owner) == [], "the audit knows that the server is built"
    go.set()
    built = owner.call.settled(server)
    assert built and built["status"] == "ACTIVE" and _servers(owner) == [server]
    nics_of = owner.call.get(f"/v2.1/servers/{server}/os-interface").json["interfaceAttachments"]
    assert port in {nic["port_id"] for nic in nics_of} and len(nics_of) == len(macs(owner, server)) == 2
    assert list(built["addresses"]) == ["third", "second"], "NICs are in the order of the request"
    assert owner.call.delete(f"/v2.1/servers/{server}").status == 204
    eventually(lambda: _device(owner, port) == "")
    assert port in ports(owner)


def test_of_requests_at_once_one_gets_the_port(owner: Owner, port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have seen the port free before any of them reserves it."""
    all_looked, real = threading.Barrier(4), networks.resolve_requested_networks

    def looked(*asked: Any) -> Any:
        found = real(*asked)
        all_looked.wait(30)
        return found

    owner.call.image()
    monkeypatch.setattr(networks, "resolve_requested_networks", looked)
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _number: _asked(owner, port), range(4)))
    assert sorted(reply.status for reply in replies) == [202, 409, 409, 409]
    [server] = [reply.json["server"]["id"] for reply in replies if reply.status == 202]
    built = owner.call.settled(server)
    assert built and built["status"] == "ACTIVE" and _servers(owner) == [server]
    assert _device(owner, port) == server


@pytest.mark.parametrize("how", ["no host", "refused", "deleted"])
def test_a_reserved_port_is_free_when_its_server_is_not_built(owner: Owner, port: str, held: Any, how: str) -> None:
    more = {}
    if how == "no host":
        if owner.call.get("/v2.1/flavors/huge").status == 404:
            owner.call.flavor("huge", ram=1 << 30)
        more["flavorRef"] = "huge"
    go = held(Cancelled("It is deleted.") if how == "deleted" else Conflict("Nothing is left.", everywhere=True))
    server = _asked(owner, port, **more).json["server"]["id"]
    if how == "deleted":
        assert _device(owner, port) == server
        assert owner.call.delete(f"/v2.1/servers/{server}").status == 204
    go.set()
    found = owner.call.settled(server)
    assert found is None if how == "deleted" else found and found["status"] == "ERROR"
    assert _device(owner, port) == "" and _findings(owner) == []
    assert port in ports(owner)


def test_a_refused_volume_leaves_neither_port_nor_server(owner: Owner, port: str,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    volume, volumes = owner.volume(), owner.cloud.services.volume

    def reserve(*_args: Any, **_more: Any) -> Any:
        assert _device(owner, port)
        raise Conflict("Somebody was faster.")

    monkeypatch.setattr(volumes, "reserve", reserve)
    image = owner.call.image()
    blocks = [{"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": image},
              {"source_type": "volume", "destination_type": "volume", "boot_index": None, "uuid": volume}]
    assert _asked(owner, port, block_device_mapping_v2=blocks).status == 409
    assert _servers(owner) == [] and _device(owner, port) == ""


@pytest.mark.parametrize("freed", [False, True], ids=["before", "after"])
def test_an_api_that_dies_while_it_refuses_a_server_leaves_nothing_reserved(
        owner: Owner, port: str, monkeypatch: pytest.MonkeyPatch, freed: bool) -> None:
    """The server is still known then, so a conductor goes on with it."""
    network_service, volume = owner.cloud.services.network, owner.volume()
    release = network_service.release

    def reserve(*_args: Any, **_more: Any) -> Any:
        raise Conflict("Somebody was faster.")

    def dies(server: str, *args: Any, **more: Any) -> None:
        if freed:
            release(server, *args, **more)
        raise RuntimeError

    monkeypatch.setattr(server_reservations, "WITHDRAWN", 0.5)
    monkeypatch.setattr(owner.cloud.services.volume, "reserve", reserve)
    monkeypatch.setattr(network_service, "release", dies)
    blocks = [{"source_type": "image", "destination_type": "local", "boot_index": 0, "uuid": owner.call.image()},
              {"source_type": "volume", "destination_type": "volume", "boot_index": None, "uuid": volume}]
    assert _asked(owner, port, block_device_mapping_v2=blocks).status == 500
    monkeypatch.undo()
    [made] = _servers(owner)
    built = owner.call.settled(made)
    assert built and built["status"] == "ACTIVE" and _device(owner, port) == made
    assert owner.state(volume) == "in-use" and _findings(owner) == []


@pytest.mark.parametrize("reserved", [False, True], ids=["before", "after"])
def test_a_conductor_goes_on_where_the_api_dies(owner: Owner, port: str, monkeypatch: pytest.MonkeyPatch,
                                                reserved: bool) -> None:
    network_service = owner.cloud.services.network
    real = network_service.reserve

    def dies(server: str, port_ids: Any) -> None:
        if reserved:
            real(server, port_ids)
        raise RuntimeError

    monkeypatch.setattr(server_reservations, "HELD", 0.5)
    monkeypatch.setattr(network_service, "reserve", dies)
    assert _asked(owner, port).status == 500
    monkeypatch.undo()
    [made] = _servers(owner)
    built = owner.call.settled(made)
    assert built and built["status"] == "ACTIVE" and _device(owner, port) == made


def test_a_server_that_moves_into_its_cell_meanwhile_keeps_its_port(owner: Owner, port: str,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be seen in neither: its mapping was read before it came, and cell0 after it had left."""
    monkeypatch.setattr(server_reservations.servers, "find_server_rows", lambda _store, ids: (
        owner.call.settled(ids[0]), {})[1])
    server = _asked(owner, port).json["server"]["id"]
    built = owner.call.settled(server)
    assert built and built["status"] == "ACTIVE" and _device(owner, port) == server


def test_a_server_that_is_deleted_meanwhile_keeps_no_port(owner: Owner, port: str,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    network_service = owner.cloud.services.network
    reserve = network_service.reserve

    def late(server: str, port_ids: Any) -> None:
        assert owner.call.delete(f"/v2.1/servers/{server}").status == 204
        assert owner.call.settled(server) is None
        reserve(server, port_ids)

    monkeypatch.setattr(network_service, "reserve", late)
    assert _asked(owner, port).status == 202
    assert _device(owner, port) == ""
