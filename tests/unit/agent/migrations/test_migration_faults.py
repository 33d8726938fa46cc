# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes wrong with a migration, and what a crash does, on fake hosts.

After every way that it can end, the guest is there exactly once, runs if it ran, and has its disks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any

import pytest

from magnetar_agent.link.rpc import Rpc
from magnetar_agent.migrations import source
from magnetar_core.errors import Cancelled, Conflict, HypervisorError, MagnetarError, TimedOut, Unreachable
from magnetar_core.flows.migrate import Migrate, abort_host_migration
from tests.support.agent.pair import WAY, Held, Kvm, Pair, brief, killed, quiet
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

Hold = Callable[..., Held]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    """Holds the way of a server, see ``Held``; let go at the end."""
    monkeypatch.setattr(source, "send_file_frames", source.send_file_frames)
    made: list[Held] = []

    def hold(host: Kvm, kind: str, done: int = 0) -> Held:
        made.append(Held(host, kind, done))
        return made[-1]

    yield hold
    for one in made:
        one.on.set()


# What goes wrong --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lose", ["answer", "end"])
def test_libvirts_last_answer_is_lost(pair: Pair, lose: str) -> None:
    id = pair.make()
    pair.one.fake.lose = lose
    with suppress(HypervisorError):
        pair.migrate()
    assert pair.one.runs(id) + pair.two.runs(id) <= 1
    pair.migrate()
    pair.check(id, pair.two)


def test_a_failure_leaves_the_guest_where_it_is(pair: Pair) -> None:
    id = pair.make()
    pair.one.fake.fail_next("migrate", HypervisorError("libvirt could not: operation failed."))
    with pytest.raises(HypervisorError, match="operation failed"):
        pair.migrate()
    assert pair.one.runs(id)
    found = pair.one.side().find("web1")
    assert found and found["status"] == "ACTIVE"
    (half,) = pair.one.side().client.list("migration")
    assert half["status"] == "failed" and "operation failed" in half["fault"]["message"]
    pair.one.side().client.ensure("server", "web1", {"description": "free again"})
    pair.one.restart()  # which does not try again by itself
    assert pair.one.runs(id)
    pair.migrate()
    pair.check(id, pair.two)


def test_abort_after_a_failure(pair: Pair) -> None:
    id = pair.make()
    pair.one.fake.fail_next("migrate", HypervisorError("no."))
    with pytest.raises(HypervisorError):
        pair.migrate()
    abort_host_migration(pair.one.side(), pair.two.side(), "web1")
    pair.check(id, pair.one)
    assert abort_host_migration(pair.one.side(), pair.two.side(), "web1") == []


def test_abort_of_another_ones_migration(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.make()
    pair.one.fake.fail_next("migrate", HypervisorError("no."))
    with pytest.raises(HypervisorError):
        pair.migrate()
    third = pair.two.side()
    monkeypatch.setattr(third, "address", "192.0.2.3")
    monkeypatch.setattr(third, "link_name", lambda: "kvm3")
    monkeypatch.setattr(third, "open_migrations", lambda _server: [])
    assert abort_host_migration(pair.one.side(), third, "web1") == []
    assert len(abort_host_migration(pair.one.side(), pair.two.side(), "web1")) == 2


def test_abort_when_the_target_is_down(pair: Pair) -> None:
    id = pair.make()
    pair.one.fake.fail_next("migrate", HypervisorError("no."))
    with pytest.raises(HypervisorError):
        pair.migrate()
    pair.two.stop()
    target = pair.two.side()
    target.client.timeout = 1
    with pytest.raises(MagnetarError):
        abort_host_migration(pair.one.side(), target, "web1")
    assert not pair.one.side().open_migrations(id)
    pair.two.start()


def test_a_failed_live_one_goes_cold(pair: Pair) -> None:
    id = pair.make()
    pair.one.fake.fail_next("migrate", HypervisorError("no."))
    with pytest.raises(HypervisorError):
        pair.migrate()
    assert pair.migrate(type="cold")[0] == "abort"
    pair.check(id, pair.two)


def test_no_way_back_after_the_arrival(pair: Pair) -> None:
    id = pair.make()
    for step in Migrate(pair.one.side(), pair.two.side(), "web1").steps():
        if step.verb == "settle":
            break
    with pytest.raises(MagnetarError, match="has moved to the target"):
        abort_host_migration(pair.one.side(), pair.two.side(), "web1")
    pair.migrate()
    pair.check(id, pair.two)


@pytest.mark.parametrize("kind", ["live", "cold"])
@pytest.mark.parametrize("at", WAY)
def test_the_target_goes_away(pair: Pair, kind: str, at: str) -> None:
    """Before each step; when it is back, running it again goes on."""
    id = pair.make()
    with suppress(MagnetarError):
        for step in Migrate(brief(pair.one), brief(pair.two), "web1", {"type": kind}).steps():
            if step.verb == at:
                pair.two.stop()
    # A coordinator that waits briefly may have gone before the agents are through with a step.
    eventually(lambda: pair.one.runs(id) + pair.two.runs(id) == 1)
    pair.two.start()
    pair.migrate(type=kind)
    pair.check(id, pair.two)


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_the_target_goes_away_on_the_way(pair: Pair, held: Hold, kind: str) -> None:
    id = pair.make()
    way = held(pair.one, kind, 5)
    with ThreadPoolExecutor() as threads:
        going = threads.submit(list, Migrate(brief(pair.one), brief(pair.two), "web1", {"type": kind}).steps())
        assert way.reached.wait(300)
        pair.two.stop()
        way.on.set()
        assert isinstance(going.exception(), MagnetarError)
    assert pair.one.runs(id)
    pair.one.side().client.ensure("server", "web1", {"description": "given back"})
    pair.two.start()
    pair.migrate(type=kind)
    pair.check(id, pair.two)


@pytest.mark.parametrize(("kind", "done"), [("live", 0), ("live", 5), ("live", 10), ("cold", 0)])
def test_abort_on_the_way(pair: Pair, held: Hold, kind: str, done: int) -> None:
    id = pair.make()
    way = held(pair.one, kind, done)
    with ThreadPoolExecutor() as threads:
        going = threads.submit(pair.migrate, type=kind)
        assert way.reached.wait(300)
        assert [step.verb for step in abort_host_migration(pair.one.side(), pair.two.side(), "web1",
                                                           dry_run=True)] == ["abort"] * 2
        assert [step.verb for step in abort_host_migration(pair.one.side(), pair.two.side(), "web1")] == ["abort"] * 2
        assert isinstance(going.exception(), Cancelled)
    pair.check(id, pair.one)
    way.on.set()
    pair.migrate(type=kind)
    pair.check(id, pair.two)


def test_abort_after_the_switchover(pair: Pair, held: Hold) -> None:
    """The guest is at the target, and the source does not know it yet: it goes to its end."""
    id = pair.make()
    way = held(pair.one, "after")
    with ThreadPoolExecutor() as threads:
        going = threads.submit(pair.migrate)
        assert way.reached.wait(300)
        aborting = threads.submit(abort_host_migration, pair.one.side(), pair.two.side(), "web1")
        client, end = pair.one.side().client, time.monotonic() + 120
        while not any(one["cancelling"] for one in client.list("operations")) and time.monotonic() < end:
            time.sleep(0.01)
        way.on.set()
        with suppress(MagnetarError):
            going.result()
        with suppress(Conflict):
            aborting.result()
    assert pair.one.runs(id) + pair.two.runs(id) == 1
    pair.migrate()
    pair.check(id, pair.two)


@pytest.fixture(params=["live", "cold"])
def resumed(pair: Pair, held: Hold, request: pytest.FixtureRequest) -> Held:
    """The source's agent died on the way, and the new one goes on by itself: it is held there."""
    pair.make()
    way = held(pair.one, request.param, 5)
    with ThreadPoolExecutor() as threads:
        going = threads.submit(list, Migrate(brief(pair.one), pair.two.side(), "web1", {"type": request.param}).steps())
        assert way.reached.wait(300)
        pair.one.die()
        assert isinstance(going.exception(), MagnetarError)
    way.reached.clear()
    pair.one.start()
    assert way.reached.wait(300)
    return way


def test_abort_of_what_the_agent_goes_on_with_by_itself(pair: Pair, resumed: Held) -> None:
    """It is an operation as any other: seen, and cancelled."""
    (half,) = pair.one.side().client.list("migration")
    (shown,) = pair.one.side().client.list("operations", kind="migration", key=half["id"], status="running")
    progress = shown["progress"]  # of a cold one that is held before its disk, nothing needs to have gone
    assert (progress["phase"], progress["done"]) == ("memory and disks", 5) or progress["phase"] == "files"
    assert [step.verb for step in abort_host_migration(pair.one.side(), pair.two.side(), "web1")] == ["abort"] * 2
    assert pair.one.agent.host.operations.get(shown["id"]).status == "cancelled"
    pair.check(half["server"], pair.one)
    resumed.on.set()
    pair.migrate()
    pair.check(half["server"], pair.two)


def test_an_agent_that_stops_ends_what_it_goes_on_with_by_itself(pair: Pair, resumed: Held) -> None:
    (half,) = pair.one.side().client.list("migration")
    operations = pair.one.agent.host.operations
    (operation,) = (one for one in operations.list() if one.key == half["id"])
    pair.one.stop()
    assert operation.wait(120) and operation.status == "cancelled"
    pair.one.start()
    assert pair.one.runs(half["server"]) and not pair.two.runs(half["server"])
    assert [one["status"] for one in pair.one.side().client.list("migration")] == ["failed"]
    pair.one.side().client.ensure("server", "web1", {"description": "given back"})
    resumed.on.set()
    pair.migrate()
    pair.check(half["server"], pair.two)


def test_nobody_waits_any_more(pair: Pair, held: Hold) -> None:
    """The task's time is over, and the migration goes on; run again, the task waits on."""
    id = pair.make()
    way = held(pair.one, "live", 5)
    while not way.reached.is_set():  # a busy machine gets less far in a second
        flow = Migrate(pair.one.side(), pair.two.side(), "web1", timeout=1)
        with pytest.raises(TimedOut, match="is still running.*Run the task again"):
            list(flow.steps())
    way.on.set()
    assert pair.migrate() == WAY[2:]
    pair.check(id, pair.two)


# Two at once ------------------------------------------------------------------------------------------------------
def test_two_that_want_the_same(pair: Pair, held: Hold) -> None:
    """The second goes along with the first."""
    id = pair.make()
    way = held(pair.one, "live", 5)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(pair.migrate)
        assert way.reached.wait(300)
        second = threads.submit(pair.migrate)
        time.sleep(0.2)
        way.on.set()
        assert (first.result(), second.result()) == (WAY, WAY[2:])
    pair.check(id, pair.two)


@pytest.mark.parametrize("ahead", [1, 2])
def test_two_that_begin_at_once(pair: Pair, ahead: int) -> None:
    """One of them gets it; the other is refused, and nothing of it is left."""
    id = pair.make()
    first, second = (Migrate(pair.one.side(), pair.two.side(), "web1") for _number in range(2))
    ways = first.steps(), second.steps()
    next(ways[1])
    for _number in range(ahead + 1):
        next(ways[0])
    with pytest.raises(Conflict, match="is on its way|is being migrated"):
        list(ways[1])
    list(ways[0])
    pair.check(id, pair.two)
    for host in (pair.one, pair.two):
        assert [m["status"] for m in host.side().client.list("migration")] == ["completed"]


def test_two_targets(pair: Pair, held: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that came first has it; aborting towards the other leaves it alone."""
    id = pair.make()
    third = pair.two.side()
    monkeypatch.setattr(third, "address", "192.0.2.3")
    monkeypatch.setattr(third, "link_name", lambda: "kvm3")
    monkeypatch.setattr(third, "open_migrations", lambda _server: [])
    way = held(pair.one, "live", 5)
    with ThreadPoolExecutor() as threads:
        going = threads.submit(pair.migrate)
        assert way.reached.wait(300)
        with pytest.raises(Conflict, match="on its way to kvm2"):
            Migrate(pair.one.side(), third, "web1").plan()
        assert abort_host_migration(pair.one.side(), third, "web1") == []
        way.on.set()
        assert going.result() == WAY
    pair.check(id, pair.two)


def test_the_target_is_away(pair: Pair) -> None:
    id = pair.make(power="off")
    steps = Migrate(brief(pair.one), pair.two.side(), "web1").steps()
    assert [next(steps).verb, next(steps).verb, next(steps).verb] == WAY[:3]
    pair.two.stop()
    with pytest.raises(MagnetarError, match="cannot be reached"):
        next(steps)
    found = pair.one.side().find("web1")
    assert found
    pair.one.side().client.ensure("server", "web1", {"power": "running"})  # not decided: given back
    assert pair.one.runs(id)
    pair.two.start()
    pair.migrate()
    pair.check(id, pair.two)


def test_what_is_decided_goes_on_whatever_type_is_asked_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest is at the target, which has not said yet that it has the server: at the source it is off, and auto
    would be cold. It is not taken back, which would start it anew."""
    id = pair.make()
    ask = Rpc.call

    def broken(talk: Rpc, op: str, **words: Any) -> Any:
        if op == "arrive":
            raise Unreachable("The link broke.")
        return ask(talk, op, **words)

    with monkeypatch.context() as patch, pytest.raises(MagnetarError, match="link broke"):
        patch.setattr(Rpc, "call", broken)
        patch.setattr("magnetar_core.http.client.RETRY_FOR", 0.5)
        pair.migrate()
    (half,) = pair.one.side().client.list("migration")
    assert half["status"] == "running" and not pair.one.runs(id)
    assert pair.migrate() == WAY[2:]
    pair.check(id, pair.two)


def test_a_talk_that_ends_late_leaves_what_the_next_was_lent(
        pair: Pair, held: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target hears of the end of the first only while libvirt carries the guest in the second."""
    id = pair.make(hardware={"tpm_version": "2.0", "ephemeral_encryption": True})
    receive, heard, late, over = Rpc.receive, Event(), Event(), Event()

    def slow(talk: Rpc) -> dict[str, Any] | None:
        line = receive(talk)
        if line is None and not heard.is_set():
            heard.set()
            assert late.wait(60)
            close = talk.close
            talk.close = lambda: (close(), over.set())  # type: ignore[method-assign,func-returns-value,return-value]
        return line

    pair.one.fake.fail_next("migrate", HypervisorError("no."))
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Rpc, "receive", slow)
        with pytest.raises(HypervisorError):
            pair.migrate()
        assert heard.wait(60)
    way = held(pair.one, "live")
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(pair.migrate)
        assert way.reached.wait(60)
        lent = dict(pair.two.fake.lent)
        late.set()
        assert over.wait(60)
        still = dict(pair.two.fake.lent)
        way.on.set()
        going.result(60)
    assert len(lent) == 2 and still == lent
    pair.check(id, pair.two)
    eventually(lambda: not pair.two.fake.lent)


def test_a_target_that_dies_before_it_hears_of_the_end(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the migration is done but that: it takes back what libvirt was lent when it comes back."""
    id = pair.make(hardware={"tpm_version": "2.0", "ephemeral_encryption": True})
    receive, over = Rpc.receive, Event()

    def deaf(talk: Rpc) -> dict[str, Any] | None:
        line = receive(talk)
        assert line is not None or over.wait(120)
        return line

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Rpc, "receive", deaf)
        pair.migrate()
        assert len(pair.two.fake.lent) == 2
        pair.two.restart()
    assert not pair.two.fake.lent
    over.set()
    pair.check(id, pair.two)


# Crashes ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["live", "cold"])
@pytest.mark.parametrize("at", range(5))
def test_the_coordinator_dies(pair: Pair, kind: str, at: int) -> None:
    """Between any two steps; another one begins again."""
    id = pair.make()
    for number, _step in enumerate(Migrate(pair.one.side(), pair.two.side(), "web1", {"type": kind}).steps()):
        if number == at:
            break
    assert pair.one.runs(id) + pair.two.runs(id) <= 1
    pair.migrate(type=kind)
    pair.check(id, pair.two)


#: Calls which change or ask for something; all others are between two of these.
# Documents of a server with volumes are written at the same points, and more: test_migration_volumes.py.
POINTS = tuple(pytest.param(side, part, method, marks=[pytest.mark.deep(
    shard="agents that die in a move")] if part == "documents" else []) for side, part, methods in (
        ("source", "documents", ("write", "remove")), ("target", "documents", ("write", "remove")),
        ("source", "hypervisor", ("migrate", "abort_stale_job", "destroy", "undefine", "shutdown", "save_tpm")),
        ("target", "hypervisor", ("resume", "define", "render", "start", "make_disk", "arrived", "load_tpm",
                                  "lend_keys", "take_back_keys")),
    ) for method in methods)


@pytest.mark.parametrize("kind", ["live", "cold"])
@pytest.mark.parametrize(("side", "part", "method"), POINTS)
def test_an_agent_dies(pair: Pair, kind: str, side: str, part: str, method: str) -> None:
    """At each call in turn; then both agents start anew, and somebody runs the flow again. There and back. What is in
    the server's TPM goes with it, its disks are encrypted, and no key is left with libvirt."""
    id = pair.make(hardware={"tpm_version": "2.0", "ephemeral_encryption": True})
    inside = _in_tpm(pair.one, id)
    here, there = pair.one, pair.two
    for number in range(1, 40):
        thing = getattr((here if side == "source" else there).agent.host, part)
        died = killed(thing, method, number, kind, here.side(), there.side())
        assert pair.one.runs(id) + pair.two.runs(id) <= 1
        if died:
            pair.both(Kvm.restart)
            quiet(pair)
        assert pair.one.runs(id) + pair.two.runs(id) <= 1
        for _step in Migrate(here.side(), there.side(), "web1", {"type": kind}).steps():
            pass
        pair.check(id, there)
        assert _in_tpm(there, id) == inside
        eventually(lambda: not pair.one.fake.lent and not pair.two.fake.lent)  # the target sees later that it is over
        if not died:
            return
        here, there = there, here
    raise AssertionError("it never got through")


def _in_tpm(at: Kvm, id: str) -> str:
    """What is in the TPM of a server; nothing of one that has none."""
    path = at.agent.host.settings.state_dir / "tpm"
    at.fake.save_tpm(id, path)
    return path.read_text() if path.exists() else ""
