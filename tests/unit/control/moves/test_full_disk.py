# SPDX-License-Identifier: GPL-3.0-or-later
"""The disk of a host is full at any write of a move, for that write only or for longer: the server is on one host in
the end, and runs. A deletion that follows leaves nothing of it, however the move has ended."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import select

from magnetar_control.conductor.flows.flows import CELL
from magnetar_control.conductor.periodic import audit
from magnetar_control.conductor.periodic.periodic import Periodic
from magnetar_control.conductor.worker import retry
from magnetar_control.store.engine import tables
from tests.support.agent.full import FullDisk

from .clouds import at, check, claims, row
from .dying import ask, take, turn
from .inside import with_flavors  # noqa: F401 - the fixture cloud

#: Writes at which the disk is full: each third one, or as the variable says; 1 is all of them.
EVERY = int(os.environ.get("MAGNETAR_EVERY_WRITE", "3"))


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """What is tried again later is tried again by the test."""
    monkeypatch.setattr(retry, "AGAIN", 86400.0)
    monkeypatch.setattr(retry, "SELDOM", 86400.0)


def ended(cloud, asked):
    """Whether an action has ended."""
    with cloud.parts.working.database.read() as connection:
        return connection.execute(select(tables.actions.c.state).where(
            tables.actions.c.id == asked)).scalar() in ("done", "failed")


def full(cloud, id, side, number, lasting):
    """A full disk, and the host that has it: where the server is, or the other."""
    here = row(cloud, id).host
    name = here if side == "source" else next(name for name in cloud.hosts if name != here)
    return FullDisk(number, lasting), cloud.kvm[name]


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("key", ["os-migrateLive", "migrate"])
def test_a_move(cloud, server, key, side, lasting):
    id = server["id"]
    for number in range(1, 60, EVERY):
        disk, host = full(cloud, id, side, number, lasting)
        asked = ask(cloud, id, key)
        with disk.of(host):
            turn(cloud, asked)
        for _time in range(20):
            if ended(cloud, asked):
                break
            turn(cloud, asked)
        found = row(cloud, id)
        assert found.vm_state in ("active", "resized"), (number, found.fault)
        assert check(cloud, id, waits=found.vm_state == "resized")["power_state"] == "running", number
        if found.vm_state == "resized":
            assert turn(cloud, ask(cloud, id, "confirmResize"))
        if not disk.was_full:
            return
    raise AssertionError


@pytest.mark.parametrize("longer", [False, True])
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("key", ["os-migrateLive", "migrate"])
def test_a_deletion(cloud, key, side, longer):
    """*longer*: the disk is still full when the deletion is tried for the last time."""
    for number in range(1, 60, EVERY):
        id = cloud.admin.boot(flavorRef="small", networks="none")["id"]
        disk, host = full(cloud, id, side, number, True)
        asked = ask(cloud, id, key)
        with disk.of(host):
            last(cloud, asked)
            assert ended(cloud, asked)
            if longer:
                delete = ask(cloud, id, "delete")
                last(cloud, delete)
                assert ended(cloud, delete)
        if not longer:
            assert turn(cloud, ask(cloud, id, "delete"))
        assert row(cloud, id).deleted_at, row(cloud, id).fault
        assert claims(cloud, id) == {}
        nothing_left(cloud, id)
        if not disk.was_full:
            return
    raise AssertionError


def test_a_deletion_is_tried_again(cloud):
    id = cloud.admin.boot(flavorRef="small", networks="none")["id"]
    asked = ask(cloud, id, "delete")
    with FullDisk(1, True).of(cloud.kvm[row(cloud, id).host]):
        assert not turn(cloud, asked)
    assert turn(cloud, asked)
    assert at(cloud, id) == {}


def last(cloud, asked):
    """The last try of an action."""
    work = take(cloud, asked, attempts=retry.TRIES)
    CELL[work.action.action](work)


def nothing_left(cloud, id):
    """After the audit's repairs hosts have nothing of a server."""
    periodic = Periodic(cloud.parts.working)
    for _time in range(5):
        periodic.audit()
    assert audit.run_with_state(cloud.parts.store, cloud.parts.agents, cloud.services, pause=0.1)[0] == []
    assert at(cloud, id) == {}
    for kvm in cloud.kvm.values():
        assert kvm.side().open_migrations(id) == []
        assert kvm.side().host["orphans"] == {"domains": [], "files": []}
        assert kvm.fake.domain(id) is None
        assert not (kvm.agent.host.settings.state_dir / "servers" / id).exists()
