# SPDX-License-Identifier: GPL-3.0-or-later
"""The connections to libvirt and their places: no guest, and no kind of calls, uses up what the others need.

libvirt's driver for tests answers; a guest that hangs is a call that does not return.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import libvirt
import pytest

from magnetar_agent.virt.connection import limits, pool
from magnetar_agent.virt.connection.gates import WAITERS
from magnetar_agent.virt.connection.limits import Lane, LibvirtLimits
from magnetar_agent.virt.connection.monitors import MonitorState
from magnetar_agent.virt.connection.pool import MIGRATES, ConnectionPool
from magnetar_core.errors import Conflict, GuestSilent, HypervisorDown, HypervisorError, StorageSilent
from magnetar_core.operations import SUCCEEDED, Operations
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 0.3
#: So many that the guests of these tests leave some.
MANY = 60


class Guests:
    """Calls to guests: of a *hung* one the call returns when that *goes on*."""

    def __init__(self, connections: ConnectionPool) -> None:
        self.connections = connections
        self.hung: dict[str, threading.Event] = {}
        #: Calls in flight by connection, and the most that one had.
        self.in_flight: Counter[int] = Counter()
        self.most = 0

    def hang(self, *guests: str) -> None:
        """Let their calls hang from now on."""
        self.hung.update({guest: threading.Event() for guest in guests})

    def go_on(self, *guests: str) -> None:
        """Let their calls return."""
        for guest in guests:
            self.hung.pop(guest).set()

    def act(self, guest: str, lane: Lane = Lane.GUEST, kind: str = "") -> str:
        """Ask the QEMU of a guest."""
        def call(conn: Any) -> str:
            self.in_flight[id(conn)] += 1
            self.most = max(self.most, self.in_flight[id(conn)])
            if guest in self.hung:
                self.hung[guest].wait(60)
            self.in_flight[id(conn)] -= 1
            return f"{guest} did it"
        return self.connections.ask(f"act on {guest}", guest, call, lane, kind)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Guests]]:
    """Makes the connections of a libvirtd with so many workers."""
    monkeypatch.setattr(pool, "FIRST_CHECK", 0.05)
    monkeypatch.setattr(pool, "NEXT_CHECK", 0.05)
    made: list[Guests] = []

    def build(workers: int) -> Guests:
        connections = ConnectionPool("test:///default", lambda _conn: None, limits=LibvirtLimits(workers),
                                     patience=PATIENCE)
        found, began = Guests(connections), time.monotonic()

        def monitor_state(_conn: Any, guest: str) -> MonitorState:
            return MonitorState(time.monotonic() - began + PATIENCE if guest in found.hung else 0.0)

        monkeypatch.setattr(pool, "monitor_state", monitor_state)
        made.append(found)
        return found

    yield build
    for guests in made:
        guests.go_on(*list(guests.hung))
        eventually(lambda guests=guests: not guests.connections.in_flight(), "no call is in flight")
        guests.connections.close()


def test_guests_that_hang_hold_their_own_places_only(make: Callable[[int], Guests]) -> None:
    guests = make(MANY)
    hung = [f"hung{number}" for number in range(20)]
    guests.hang(*hung)
    errors: list[str] = []

    def ask(guest: str) -> None:
        with pytest.raises(GuestSilent) as refused:
            guests.act(guest)
        errors.append(refused.value.message)

    threads = [threading.Thread(target=ask, args=(guest,)) for guest in hung]
    for thread in threads:
        thread.start()
    assert guests.act("healthy") == "healthy did it"
    assert guests.act("healthy", Lane.LONG) == "healthy did it"
    assert guests.connections.call("look", lambda conn: conn.getType()) == "TEST"
    for thread in threads:
        thread.join(60)
    assert {error.partition(" does not answer")[0] for error in errors} == {f"The guest {guest}" for guest in hung}
    assert guests.connections.in_flight() == len(hung)  # they cannot be taken back
    assert guests.most == 1  # on one connection
    assert guests.connections.up()
    assert guests.connections.is_silent("hung3")

    guests.go_on(*hung)
    eventually(lambda: not guests.connections.in_flight(), "all have returned")
    assert guests.act("hung3") == "hung3 did it"
    assert not guests.connections.is_silent("hung3")


def test_calls_to_one_guest_come_one_after_the_other(make: Callable[[int], Guests],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """A few wait; when the first is given up, they and all later ones fail too. What ends the guest does not wait."""
    guests, over = make(MANY), threading.Event()
    monkeypatch.setattr(pool, "monitor_state",
                        lambda _conn, _guest: MonitorState(PATIENCE if over.is_set() else 0.0))
    guests.hang("web")
    refusals: list[Any] = []

    def ask() -> None:
        try:
            guests.act("web")
        except (GuestSilent, Conflict) as error:
            refusals.append(type(error))

    threads = [threading.Thread(target=ask) for _number in range(WAITERS + 3)]
    for thread in threads:
        thread.start()
    eventually(lambda: refusals == [Conflict, Conflict], "all have come, and no more may wait")
    over.set()
    for thread in threads:
        thread.join(60)
    assert Counter(refusals) == {GuestSilent: WAITERS + 1, Conflict: 2}
    with pytest.raises(GuestSilent, match="has left libvirt's request to act on web without an answer"):
        guests.act("web")
    assert guests.connections.in_flight() == 1
    assert guests.connections.ask("stop web", "web", lambda _conn: "stopped", Lane.END, "end") == "stopped"


def hang_all(guests: Guests, places: int) -> list[str]:
    """Let guests hang that hold all *places* but the last one; return them."""
    hung = [f"hung{number}" for number in range(places - 1)]
    guests.hang(*hung)
    for guest in hung:
        with pytest.raises(GuestSilent):
            guests.act(guest)
    return hung


def test_more_guests_than_workers(make: Callable[[int], Guests]) -> None:
    """The error names them. What asks no QEMU goes on, and what ends a guest."""
    guests = make(0)
    places = LibvirtLimits(0).guests
    hung = hang_all(guests, places)
    for guest in ("healthy", "hungtoo"):
        with pytest.raises(GuestSilent, match=f"hold {places - 1} of the {places} calls.*hung0, hung1.*max_workers"):
            guests.act(guest)
    assert guests.connections.in_flight() == places - 1
    for lane in (Lane.READ, Lane.HOST):
        assert guests.connections.call("look", lambda conn: conn.getType(), lane) == "TEST"
    assert guests.connections.ask_storage("look", "pool", lambda conn: conn.getType()) == "TEST"
    assert guests.connections.ask("stop it", hung[0], lambda _conn: "stopped", Lane.END, "end") == "stopped"


def test_the_last_place_is_for_guests_that_answered_since(make: Callable[[int], Guests]) -> None:
    """Those that hang never have all places, so long as one answers between them."""
    guests = make(0)
    guests.hang("first")
    with pytest.raises(GuestSilent):
        guests.act("first")
    assert guests.act("healthy") == "healthy did it"
    hang_all(guests, LibvirtLimits(0).guests - 1)
    for _time in range(3):
        assert guests.act("healthy") == "healthy did it"
    with pytest.raises(GuestSilent, match="first, hung0"):
        guests.act("unknown")
    guests.go_on("first", "hung0")
    eventually(lambda: guests.act("unknown") == "unknown did it", "there is room", passing=(GuestSilent,))


@pytest.mark.parametrize("kinds", [("figures", ""), ("", "figures")])
def test_a_guest_that_hangs_has_one_place(make: Callable[[int], Guests], kinds: tuple[str, str]) -> None:
    """Its figures take no second one, and a change none beside its figures."""
    guests = make(MANY)
    guests.hang("web")
    refused: list[GuestSilent] = []

    def ask(kind: str) -> None:
        with pytest.raises(GuestSilent) as error:
            guests.act("web", kind=kind)
        refused.append(error.value)

    threads = [threading.Thread(target=ask, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
        eventually(guests.connections.in_flight, "the first is in flight")
    for thread in threads:
        thread.join(60)
    assert len(refused) == 2 and guests.connections.in_flight() == 1


def test_figures_pass_by_a_long_call(make: Callable[[int], Guests], monkeypatch: pytest.MonkeyPatch) -> None:
    """And other calls pass by a migration; until the long call hangs."""
    guests, states = make(MANY), [MonitorState()]
    monkeypatch.setattr(pool, "monitor_state", lambda _conn, _guest: states[0])
    event = guests.hung["web"] = threading.Event()
    refused: list[GuestSilent] = []

    def migrate() -> None:
        with pytest.raises(GuestSilent) as error:
            guests.act("web", Lane.LONG, MIGRATES)
        refused.append(error.value)

    thread = threading.Thread(target=migrate)
    thread.start()
    eventually(guests.connections.in_flight, "it is in flight")
    for kind in ("figures", ""):
        assert guests.connections.ask("look", "web", lambda _conn: "done", kind=kind) == "done"
    states[0] = MonitorState(in_job=True)
    thread.join(60)
    assert refused and "act on web" in refused[0].message
    for kind in ("figures", ""):
        with pytest.raises(GuestSilent):
            guests.connections.ask("look", "web", lambda _conn: "done", kind=kind)
    assert guests.connections.in_flight() == 1
    event.set()


def test_storage_pools_that_hang_hold_their_own_places_only(make: Callable[[int], Guests]) -> None:
    """Each has one call in flight, and is named; another pool, guests and the host go on. When they answer again all is
    as before."""
    connections, go_on = make(20).connections, threading.Event()
    assert connections.ask_storage("look", "healthy", lambda _conn: "there") == "there"
    hung, refused = [f"nfs{number}" for number in range(3)], []

    def look(pool: str) -> None:
        with pytest.raises(StorageSilent) as error:
            connections.ask_storage(f"look at {pool}", pool, lambda _conn: go_on.wait(60))
        refused.append(error.value.message)

    threads = [threading.Thread(target=look, args=(pool,)) for pool in (*hung, hung[0])]
    for thread in threads:
        thread.start()
    assert connections.ask_storage("look", "healthy", lambda _conn: "there") == "there"
    for thread in threads:
        thread.join(60)
    assert {message.partition(" does not answer")[0] for message in refused} == {
        f"The storage pool '{pool}'" for pool in hung}
    assert connections.in_flight() == len(hung)
    with pytest.raises(StorageSilent, match="'nfs0' does not answer: libvirt could not look at nfs0"):
        connections.ask_storage("look", "nfs0", lambda _conn: "there")
    for _time in range(3):
        assert connections.ask_storage("look", "healthy", lambda _conn: "there") == "there"
        assert connections.ask("act", "web", lambda _conn: "done") == "done"
        assert connections.call("look", lambda conn: conn.getType(), Lane.HOST) == "TEST"
    with pytest.raises(StorageSilent, match="hold 3 of the 4 calls that libvirtd has for them: nfs0, nfs1, nfs2"):
        connections.ask_storage("look", "unknown", lambda _conn: "there")
    go_on.set()
    eventually(lambda: not connections.in_flight(), "they have returned")
    assert connections.ask_storage("look", "nfs0", lambda _conn: "there") == "there"


def test_a_pool_that_is_wiped_is_looked_at(make: Callable[[int], Guests]) -> None:
    """Wiping takes as long as it takes: it is not given up."""
    connections, over = make(20).connections, threading.Event()
    wiped: list[str] = []

    def wipe() -> None:
        wiped.append(connections.ask_storage("wipe it", "disks", lambda _conn: str(over.wait(60)), wipes=True))

    thread = threading.Thread(target=wipe)
    thread.start()
    eventually(connections.in_flight, "it is in flight")
    time.sleep(PATIENCE * 2)
    for name in ("disks", "others"):
        assert connections.ask_storage("look", name, lambda _conn: "there") == "there"
    over.set()
    thread.join(60)
    assert wiped == ["True"]


def test_an_operation_that_waits_for_a_guest_lends_its_place(make: Callable[[int], Guests],
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    guests = make(MANY)
    monkeypatch.setattr(guests.connections, "patience", 3600.0)
    guests.hang("web")
    operations = Operations(1)
    waits = operations.start("pause", lambda _operation: guests.act("web"))
    others = operations.start("pause", lambda _operation: guests.act("db"))
    assert others.wait(60) and others.status == SUCCEEDED
    assert not waits.wait(0)
    guests.go_on("web")
    assert waits.wait(60) and waits.result == "web did it"
    operations.close()


def lost(conn: Any) -> None:
    """As a call ends whose connection broke."""
    conn.close()
    error = libvirt.libvirtError("the connection broke")
    error.err = (libvirt.VIR_ERR_RPC, 0, "the connection broke", 0, "", None, None, 0, 0)
    raise error


def test_a_look_whose_connection_broke_is_done_again(make: Callable[[int], Guests]) -> None:
    guests, calls = make(MANY), []

    def look(conn: Any) -> str:
        calls.append(conn)
        if len(calls) == 1:
            lost(conn)
        return str(conn.getType())

    assert guests.connections.call("look", look) == "TEST"
    assert len(calls) == 2 and calls[0] is not calls[1]


def test_a_change_whose_connection_broke_says_so(make: Callable[[int], Guests]) -> None:
    """Who asked decides whether it may be done twice. The other connections are as they were."""
    guests = make(MANY)
    generation = guests.connections.generation
    with pytest.raises(HypervisorDown, match="start web: the connection to it broke") as refused:
        guests.connections.ask("start web", "web", lost, Lane.LONG)
    assert refused.value.details == {"lost": True}
    assert guests.connections.generation is generation
    assert guests.act("web") == "web did it"


@pytest.mark.parametrize(("said", "workers"), [
    ("minWorkers     : 5\nmaxWorkers     : 120\nnWorkers       : 7\n", 120), ("nothing of it", None), (None, None)])
def test_libvirtd_is_asked_for_its_workers(monkeypatch: pytest.MonkeyPatch, said: str | None,
                                           workers: int | None) -> None:
    def run(*_arguments: Any) -> str:
        if said is None:
            raise HypervisorError("virt-admin is not installed.")
        return said

    monkeypatch.setattr(limits, "run_program", run)
    assert limits.ask_workers() == workers


@pytest.mark.parametrize("workers", [0, 5, 20, 100])
def test_the_lanes_leave_each_other_places(workers: int) -> None:
    """Of guests no lane has all that there are; together the lanes have no more than libvirtd has workers."""
    found = LibvirtLimits(workers)
    for lane in limits.OF_GUESTS:
        assert 0 < found.max_calls(lane) < found.guests
    others = {Lane.READ, Lane.HOST, Lane.END}
    assert found.guests + found.storage + sum(found.max_calls(lane) for lane in others) <= max(workers, 17)
    assert 0 < found.max_calls(Lane.STORAGE) < found.storage
