# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere while it adopts or releases a domain: the next one completes it or undoes it, and the
guest runs on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select, update

from magnetar_control.store.claims import allocations
from magnetar_control.store.engine import tables
from magnetar_core.power import RUNNING
from tests.support.control.adopting import LAN, adopt, define, network, release, with_flavor
from tests.support.control.crashes import until_none
from tests.unit.control.moves.clouds import claims
from tests.unit.control.moves.dying import Died, Fate, ask, through, turn
from tests.unit.control.moves.inside import Inside

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    with Inside(hosts=1, host_down_after=600.0) as found:
        with_flavor(found)
        network(found, "office", "192.168.122.0/24")
        yield found


@pytest.fixture
def adopted(cloud: Inside) -> Iterator[str]:
    """An adopted domain with a port; its uuid."""
    uuid = define(cloud, "mail")
    assert adopt(cloud, "kvm1:mail", networks={LAN: "office"}).status == 200
    yield uuid
    assert release(cloud, uuid).status == 200
    cloud.kvm["kvm1"].fake.undefined_outside(uuid)


def rewind(cloud: Inside, uuid: str) -> None:
    """Put the adopted server back to the moment when its host was just claimed."""
    with cloud.parts.agents.client(cloud.hosts["kvm1"]) as client:
        client.delete("adoption", uuid)
    cloud.services.network.release(uuid)
    with cloud.parts.working.database.write() as connection:
        connection.execute(update(tables.servers).where(tables.servers.c.id == uuid).values(
            vm_state="building", task_state="scheduling", launched_at=None, interfaces="[]", fault=None))


def ports(cloud: Inside, uuid: str) -> list[Any]:
    return list(cloud.services.network.ports(uuid))


def owned(cloud: Inside, uuid: str) -> bool:
    domain = cloud.kvm["kvm1"].fake.domains()[uuid]
    assert domain.state == RUNNING
    return bool(domain.owned)


def rows(cloud: Inside, uuid: str) -> tuple[int, int]:
    """The number of rows of the server, and of mappings to its cell."""
    with cloud.parts.working.database.read() as connection:
        servers = connection.execute(select(tables.servers.c.id).where(tables.servers.c.id == uuid)).all()
    with cloud.parts.api_database.read() as connection:
        mappings = connection.execute(select(tables.server_mappings.c.server_id).where(
            tables.server_mappings.c.server_id == uuid)).all()
    return len(servers), len(mappings)


@pytest.mark.parametrize("late", [False, True])
def test_an_adoption_is_completed(cloud: Inside, adopted: str, late: bool) -> None:
    def step(fate: Fate) -> None:
        rewind(cloud, adopted)
        assert not owned(cloud, adopted) and not ports(cloud, adopted)
        row = through(cloud, adopted, "create", fate)
        assert (row.vm_state, row.host, row.task_state) == ("active", "kvm1", None), (fate.number, row.fault)
        assert owned(cloud, adopted) and claims(cloud, adopted)["server"][0] == "kvm1", fate.number
        assert len(ports(cloud, adopted)) == 1 == row.interfaces.count("port_id"), fate.number

    until_none(cloud, adopted, late, [step])


@pytest.mark.parametrize("late", [False, True])
def test_a_refused_adoption_is_undone(cloud: Inside, adopted: str, late: bool) -> None:
    fake = cloud.kvm["kvm1"].fake
    fake.snapshot_outside(adopted, "before")
    with cloud.parts.api_database.read() as connection:
        (claim,) = allocations.fetch_consumer_claims(connection, adopted)

    def step(fate: Fate) -> None:
        rewind(cloud, adopted)
        with cloud.parts.api_database.write() as connection:
            if not allocations.fetch_consumer_claims(connection, adopted):
                assert allocations.claim_host_resources(connection, adopted, adopted, claim.host_id,
                                                        allocations.Amounts(2, 64, 1, 0))
        with cloud.parts.working.database.write() as connection:
            connection.execute(update(tables.servers).where(tables.servers.c.id == adopted).values(host="kvm1"))
        row = through(cloud, adopted, "create", fate)
        assert (row.vm_state, row.host, row.task_state) == ("error", None, None), (fate.number, row.fault)
        assert not (owned(cloud, adopted) or ports(cloud, adopted) or claims(cloud, adopted)), fate.number
        assert row.interfaces == "[]", fate.number

    until_none(cloud, adopted, late, [step])
    del fake._domains[adopted].snapshots[:]
    assert adopt(cloud, f"kvm1:{adopted}", networks={LAN: "office"}).status == 200
    assert owned(cloud, adopted) and len(ports(cloud, adopted)) == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_release_is_completed(cloud: Inside, adopted: str, late: bool) -> None:
    def step(fate: Fate) -> None:
        if rows(cloud, adopted) == (0, 0):
            assert adopt(cloud, f"kvm1:{adopted}", networks={LAN: "office"}).status == 200
        number, ended = ask(cloud, adopted, "delete", release=True), False
        for _at in range(20):
            try:
                with fate.looms():
                    ended = turn(cloud, number)
            except Died:
                continue
            if ended or rows(cloud, adopted)[0] == 0:
                break
        for thread in fate.working:
            thread.join(20)
        assert rows(cloud, adopted) == (0, 0), fate.number
        assert not (owned(cloud, adopted) or ports(cloud, adopted) or claims(cloud, adopted)), fate.number

    until_none(cloud, adopted, late, [step])
    assert adopt(cloud, f"kvm1:{adopted}", networks={LAN: "office"}).status == 200
