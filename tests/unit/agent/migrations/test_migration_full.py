# SPDX-License-Identifier: GPL-3.0-or-later
"""A disk is full at any write of a migration, for that write only or until the end. When there is room again, running
it again brings the server to its target, an abort leaves it at its source, and a deletion leaves nothing on either."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest

from magnetar_agent.migrations import target
from magnetar_agent.reconcile.documents import Document
from magnetar_core.errors import Conflict, MagnetarError, NoSpace
from magnetar_core.flows.migrate import abort_host_migration
from tests.support.agent.full import FullDisk
from tests.support.agent.migration_volumes import Trio, behind_is_closed
from tests.support.agent.pair import Kvm, Pair, quiet
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


def again(pair: Pair, id: str) -> None:
    """Somebody runs it again."""
    pair.migrate(type="live" if pair.one.runs(id) else "auto")
    pair.check(id, pair.two)


def back(pair: Pair, id: str) -> None:
    """Somebody wants it to stay; where it has gone already, it goes on."""
    try:
        abort_host_migration(pair.one.side(), pair.two.side(), "web1")
    except Conflict:
        again(pair, id)
    else:
        pair.check(id, pair.two if pair.two.knows(id) else pair.one)


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("kind", ["live", "cold"])
def test_a_full_disk(pair: Pair, kind: str, side: str, lasting: bool) -> None:
    id = pair.make()
    for number in range(1, 60):
        disk = FullDisk(number, lasting)
        broken(pair, id, kind, side, disk)
        (again, back)[(number + lasting) % 2](pair, id)
        for host in (pair.one, pair.two):
            assert not host.side().open_migrations(id), number
        if not disk.was_full:
            return
        if pair.two.knows(id):
            pair.one, pair.two = pair.two, pair.one
    raise AssertionError("it never got through")


def broken(pair: Pair, id: str, kind: str, side: str, disk: FullDisk) -> None:
    """A migration that the *disk* of one side cuts off, and the abort that follows as long as it is full."""
    with disk.of(pair.one if side == "source" else pair.two):
        with suppress(MagnetarError):
            pair.migrate(type=kind)
        if disk.was_full:
            with suppress(MagnetarError):
                abort_host_migration(pair.one.side(), pair.two.side(), "web1")
    assert pair.one.runs(id) + pair.two.runs(id) <= 1
    quiet(pair)


def arrived(pair: Pair) -> str:
    """The guest is off at the source for good, which could not write that down; at the target it stands still."""
    id = pair.make()
    with FullDisk(8, True).of(pair.one), pytest.raises(NoSpace):
        pair.migrate(type="live")
    assert not pair.one.runs(id) and pair.two.fake.arrived(id)
    return id


@pytest.mark.parametrize("restart", [False, True])
def test_an_abort_that_is_refused_changes_nothing(pair: Pair, restart: bool) -> None:
    """Nor one that a crash of both agents cut off before it was refused: they finish it when they start, and learn."""
    id = arrived(pair)
    for host in (pair.one, pair.two):
        side = host.side()
        [half] = side.open_migrations(id)
        if host is pair.one:
            with pytest.raises(Conflict, match="arrived"):
                side.client.delete("migration", half["id"])
        if restart:
            document = host.agent.host.documents.get("migration", half["id"])
            assert document
            document.deleting = True
            host.agent.host.documents.write(document)
    if restart:
        pair.two.agent.host.documents.write(noted(pair.two, id, "arrived"))
        pair.both(Kvm.restart)
        quiet(pair)
    again(pair, id)


def noted(host: Kvm, server: str, name: str) -> Document:
    """The document of a server's migration, with a note more."""
    [document] = [one for one in host.agent.host.documents.list("migration") if one.want["server"] == server]
    document.state[name] = "2026-01-01T00:00:00Z"
    return document


def test_an_abort_when_the_target_has_given_it_up_by_itself(pair: Pair) -> None:
    """While the guest runs at the source, it is there for sure."""
    id = pair.make()
    with FullDisk(7, True).of(pair.one), pytest.raises(NoSpace):
        pair.migrate(type="live")
    [half] = pair.one.side().open_migrations(id)
    pair.two.side().client.event("migration", half["id"], "discard")
    pair.one.side().client.delete("migration", half["id"])
    pair.check(id, pair.one)


def test_an_abort_when_only_the_target_knew(pair: Pair) -> None:
    id = arrived(pair)
    [half] = pair.one.side().open_migrations(id)
    pair.two.side().client.event("migration", half["id"], "discard")
    with pytest.raises(Conflict, match="Only the target could say"):
        pair.one.side().client.delete("migration", half["id"])
    pair.one.side().client.event("migration", half["id"], "discard")
    pair.one.side().client.ensure("server", id, {"power": "running"})
    pair.check(id, pair.one)


def test_a_mark_without_a_migration_keeps_nobody_away(pair: Pair) -> None:
    """The half was given up, and the server could not be written."""
    id = arrived(pair)
    [half] = pair.one.side().open_migrations(id)
    with pytest.raises(Conflict, match="is being migrated"):
        pair.one.side().client.ensure("server", id, {"description": "mine"})
    pair.one.side().client.event("migration", half["id"], "discard")
    assert not pair.one.runs(id)
    pair.one.side().client.ensure("server", id, {"power": "running"})
    pair.two.side().client.event("migration", half["id"], "discard")
    pair.check(id, pair.one)
    again(pair, id)


def test_a_server_that_has_arrived_is_not_deleted_before_that_has_ended(pair: Pair) -> None:
    """The migration would bring it again."""
    id = pair.make()
    with FullDisk(10, True).of(pair.two), pytest.raises(NoSpace):
        pair.migrate(type="live")
    assert pair.two.knows(id)
    with pytest.raises(Conflict, match="has arrived with migration"):
        pair.two.side().client.delete("server", id)
    pair.two.restart()
    again(pair, id)
    pair.two.side().client.delete("server", id)


def test_an_agent_starts_though_it_cannot_take_over_what_has_arrived(pair: Pair) -> None:
    id = arrived(pair)
    pair.two.agent.host.documents.write(noted(pair.two, id, "arrived"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "_take_over", full)
        pair.two.restart()
    again(pair, id)


def full(*_given: object) -> None:
    """Nothing can be written."""
    raise NoSpace("No space left on device.")


# A cold one ends in the same ways (test_a_full_disk); a cloud deletes it in tests/unit/control/moves/test_full_disk.py.
# Of a live one each side is full in one way here: a half ends without room either way.
@pytest.mark.parametrize(("kind", "side", "lasting"), [
    ("live", "source", True), ("live", "target", False),
    *(pytest.param(kind, side, lasting, marks=pytest.mark.deep(shard="agents that die in a move"))
      for kind, side, lasting in (("live", "source", False), ("live", "target", True), *product(
          ["cold"], ["source", "target"], [False, True])))])
def test_a_deletion_after_a_full_disk(pair: Pair, kind: str, side: str, lasting: bool) -> None:
    """Neither host asks the other where the server is, so it does not matter who comes first, or whether there is room:
    a half ends without."""
    third = Kvm(pair.root, pair.one.pki, "kvm3", free_port())
    try:
        for number in range(1, 60):
            trio, disk = Trio(pair, third), FullDisk(number, lasting)
            broken(pair, trio.server, kind, side, disk)
            hosts = (pair.one, pair.two) if (number + lasting) % 2 else (pair.two, pair.one)
            for host in hosts:
                with FullDisk(1, True).of(host):
                    discarded(host, trio.server)
            for host in hosts:
                deleted(host, trio.server)
            freed(trio)
            if not disk.was_full:
                return
    finally:
        third.stop()
        third.fake.close()
    raise AssertionError("it never got through")


def discarded(host: Kvm, server: str) -> None:
    """The halves of a server's migrations end on a host."""
    side = host.side()
    for half in side.open_migrations(server):
        side.client.event("migration", half["id"], "discard")
    assert not side.open_migrations(server)


def deleted(host: Kvm, server: str) -> None:
    """The server goes from a host, and nothing is left of it there."""
    host.side().client.delete("server", server)
    assert not host.knows(server) and host.fake.domain(server) is None
    assert host.side().host["orphans"] == {"domains": [], "files": []}
    assert not (host.agent.host.settings.state_dir / "servers" / server).exists()


def freed(trio: Trio) -> None:
    """Nobody has the volumes any more, as after the end of a deletion in a cloud, which takes the exports, too."""
    for host in (trio.one, trio.two, trio.three):
        documents = host.agent.host.documents
        # Where the volume's host did not answer at once, it is told as soon as it does.
        eventually(lambda documents=documents: not documents.list("volume_attachment"))
        for export in documents.list("volume_export"):
            host.side().client.delete("volume_export", export.id)
            assert behind_is_closed(host, export.id)
    for host, name in ((trio.one, "own"), (trio.three, "far")):
        host.side().client.delete("volume", name)
