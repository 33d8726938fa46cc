# SPDX-License-Identifier: GPL-3.0-or-later
"""A server is deleted in the middle of a move, while its hosts are away: of whichever comes back first the audit
removes what it has, without the other."""

from __future__ import annotations

import itertools

import pytest
from sqlalchemy import select

from magnetar_control.conductor.flows import server_delete
from magnetar_control.conductor.flows.flows import CELL
from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.periodic import audit
from magnetar_control.conductor.periodic.periodic import Periodic
from magnetar_control.conductor.periodic.repair import repair_finding
from magnetar_control.conductor.steps.migration import MigrationTask
from magnetar_control.conductor.worker.work import HostDown
from magnetar_control.store.engine.tables import actions
from magnetar_core.flows.migrate import Migrate
from tests.support.agent.pair import WAY
from tests.support.control.audited import read_state

from .clouds import row
from .dying import ask, take, turn
from .inside import with_flavors  # noqa: F401 - the fixture cloud


def nothing_left(cloud, id, *names):
    """After a repair these hosts have nothing of a server; returns the kinds of what was found there."""
    watch = Periodic(cloud.parts.working).watch
    state = read_state(cloud.parts.store, cloud.parts.agents, cloud.services, names)
    found = [one for one in audit.findings_of_checks(state) if one.id == id]
    for one in found:
        repair_finding(watch, state, one)
    for kvm in (cloud.kvm[name] for name in names):
        assert kvm.side().open_migrations(id) == []
        assert kvm.side().host["orphans"] == {"domains": [], "files": []}
        assert not kvm.knows(id) and kvm.fake.domain(id) is None
        assert not (kvm.agent.host.settings.state_dir / "servers" / id).exists()
    return {one.kind for one in found}


@pytest.mark.parametrize("first", ["source", "target"])
@pytest.mark.parametrize("kind", ["live", "cold"])
@pytest.mark.parametrize("done", range(len(WAY) + 1))
def test_what_a_move_has_left(cloud, monkeypatch, done, kind, first):
    # An agent that is slow to answer connects again, and would be cleaned then.
    monkeypatch.setattr(HostWatch, "_remove_deleted_servers", lambda *_host: None)
    id = cloud.admin.boot(flavorRef="small", networks="none")["id"]
    here = row(cloud, id).host
    there = next(name for name in cloud.hosts if name != here)
    steps = Migrate(cloud.kvm[here].side(), cloud.kvm[there].side(), id, {"type": kind}).steps()
    list(itertools.islice(steps, done + 1))  # the last of them is not done
    with monkeypatch.context() as patch:
        patch.setattr(server_delete, "_delete_on", lambda *_host, **_more: None)
        assert turn(cloud, ask(cloud, id, "delete"))
    assert row(cloud, id).deleted_at
    found = [nothing_left(cloud, id, name) for name in ((here, there) if first == "source" else (there, here))]
    if first == "target":
        found.reverse()
    assert found == [*EXPECTED[done]], (found, done)
    assert nothing_left(cloud, id, here, there) == set()


#: What the audit finds on source and target, by the number of steps that were done.
EXPECTED = (({"left"}, set()), ({"left"}, {"half"}), ({"left"}, {"half"}), ({"left"}, {"left"}), ({"left"}, {"left"}),
            (set(), {"left"}))


def test_what_a_move_that_ended_has_left(cloud):
    """The target has let a server in that stays where it is, and nobody comes for that part any more."""
    id = cloud.admin.boot(flavorRef="small", networks="none")["id"]
    here = row(cloud, id).host
    there = next(name for name in cloud.hosts if name != here)
    steps = Migrate(cloud.kvm[here].side(), cloud.kvm[there].side(), id, {"type": "cold"}).steps()
    assert [step.verb for step in itertools.islice(steps, 2)] == ["prepare", "claim"]  # the second is not done
    assert cloud.kvm[there].side().open_migrations(id) and not cloud.kvm[here].side().open_migrations(id)
    assert nothing_left(cloud, id, there) == {"rest"}
    assert cloud.kvm[here].knows(id) and nothing_left(cloud, id, there) == set()
    assert cloud.admin.server(id)["status"] == "ACTIVE"


def test_a_revert_that_stays_ends_what_was_let_in(cloud, monkeypatch):
    """A try before was let in at the old host and ended there; the next finds that host full."""
    id = cloud.admin.boot(flavorRef="small", networks="none")["id"]
    source = row(cloud, id).host
    assert turn(cloud, ask(cloud, id, "migrate"))
    target = row(cloud, id).host
    assert target != source
    steps = Migrate(cloud.kvm[target].side(), cloud.kvm[source].side(), id, {"type": "cold"}).steps()
    list(itertools.islice(steps, 2))
    assert cloud.kvm[source].side().open_migrations(id)
    monkeypatch.setattr(MigrationTask, "accepts", lambda *_hosts: False)
    assert turn(cloud, ask(cloud, id, "revertResize"))
    assert row(cloud, id).host == target
    assert cloud.kvm[source].side().open_migrations(id) == []


def test_a_move_that_waits_for_its_host_gives_way_to_a_deletion(cloud, monkeypatch):
    """It was in hand when the deletion was asked for, and its host fell silent: it is not tried for a minute."""
    id = cloud.admin.boot(flavorRef="small", networks="none")["id"]
    number, asked = ask(cloud, id, "migrate", host=None), []
    work = take(cloud, number)

    def silent(*_hosts):
        asked.append(ask(cloud, id, "delete"))
        raise HostDown("The agent of the host does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(MigrationTask, "move_server", silent)
        CELL["migrate"](work)
    with work.database.read() as connection:
        assert connection.execute(select(actions.c.state).where(actions.c.id == number)).scalar() == "failed"
    assert len(asked) == 1 and turn(cloud, asked[0]) and row(cloud, id).deleted_at
