# SPDX-License-Identifier: GPL-3.0-or-later
"""How a live migration is steered: what libvirt is asked for, and when, on a domain that only notes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import libvirt
import pytest

from magnetar_agent.host.hypervisor import MigrationParams
from magnetar_agent.migrations import source
from magnetar_agent.virt.domain import migrate
from magnetar_core.errors import Cancelled, HypervisorError, MagnetarError, TimedOut
from tests.support.agent.pair import Held, Pair

XML = """<domain type="kvm"><name>web1</name><devices>
<disk type="file" device="disk"><source file="/here/disk"/><target dev="vda"/></disk></devices></domain>"""
PASSAGE = MigrationParams(Path("/run/libvirt"), Path("/run/qemu"), Path("/run/disks"), "<domain/>",
                  (Path("/here"), Path("/there")))
FLOWING = {"type": 1, "data_processed": 400, "data_total": 1000, "data_remaining": 600, "memory_dirty_rate": 3,
           "memory_page_size": 4096, "memory_processed": 100}


class Domain:
    """A domain that migrates until *ends* is called, and notes what it is asked. *refuse*: for each method, how often
    libvirt refuses it first."""

    def __init__(self, refuse: dict[str, int] | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.refuse = dict(refuse or {})
        self.over = False
        self.error: str | None = None
        #: When it was called so often, the migration ends well.
        self.until: tuple[str, int] = ("", 0)
        #: Looks at which only disks are copied.
        self.disks = 0

    def XMLDesc(self, _flags: int = 0) -> str:  # noqa: N802
        """Its XML."""
        return XML

    def name(self) -> str:
        """A name that no QEMU of this host has."""
        return "web1-of-the-test"

    def jobStats(self) -> dict[str, int]:  # noqa: N802
        """Flows."""
        self._note("jobStats")
        return {**FLOWING, "memory_processed": 0} if self.count("jobStats") <= self.disks else dict(FLOWING)

    def migrateToURI3(self, uri: str, parameters: dict[str, Any], flags: int) -> None:  # noqa: N802
        """Until the end."""
        self.calls.append(("migrateToURI3", uri, parameters, flags))
        deadline = time.monotonic() + 60
        while not self.over and time.monotonic() < deadline:
            time.sleep(0.005)
        if self.error:
            raise libvirt.libvirtError(self.error)

    def migrateSetMaxDowntime(self, milliseconds: int) -> None:  # noqa: N802
        """Notes it."""
        self._note("migrateSetMaxDowntime", milliseconds)

    def migrateStartPostCopy(self) -> None:  # noqa: N802
        """Notes it."""
        self._note("migrateStartPostCopy")

    def suspend(self) -> None:
        """Notes it."""
        self._note("suspend")

    def abortJob(self) -> None:  # noqa: N802
        """Ends it."""
        self._note("abortJob")
        self.error, self.over = "operation aborted", True

    def _note(self, name: str, *given: Any) -> None:
        if self.refuse.get(name):
            self.refuse[name] -= 1
            self.calls.append((f"refused {name}",))
            raise libvirt.libvirtError("Postcopy must be started after migration has been started")
        self.calls.append((name, *given))
        if (name, self.count(name)) == self.until:
            self.over = True

    def count(self, name: str) -> int:
        """How often it was called."""
        return sum(call[0] == name for call in self.calls)


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Any]]]:
    """Migrates a domain with these options of ``MigrationParams``; returns what *going* was told."""
    monkeypatch.setattr(migrate, "POLL_INTERVAL", 0.01)
    monkeypatch.setattr(migrate, "_emulated", lambda _domain: False)

    def run(domain: Domain, going: Callable[[Any], None] | None = None, **options: Any) -> list[Any]:
        told: list[Any] = []
        connection = SimpleNamespace(lookupByUUIDString=lambda _uuid: domain)
        moves = migrate.Migrations()
        moves.connection = SimpleNamespace(  # type: ignore[assignment]
            call=lambda _what, function, _lane=None, _guest="": function(connection),
            ask=lambda _what, _guest, function, _lane, _kind: function(connection))
        params = MigrationParams(**{**vars(PASSAGE), **options})
        moves.migrate("8c7d3c0e", params, going or told.append, lambda: True)
        return told

    yield run


def late(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A time limit that is over at once."""
    made: list[int] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000 * len(made), sleep=time.sleep)
    monkeypatch.setattr(migrate, "time", clock)
    whole = migrate._Watch.__init__

    def init(self: Any, *given: Any) -> None:
        whole(self, *given)
        made.append(1)

    monkeypatch.setattr(migrate._Watch, "__init__", init)
    return {"time_limit": 600}


# The limit of time -------------------------------------------------------------------------------------------------
def test_post_copy_is_tried_until_memory_flows(
        move: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """QEMU refuses it while disks are copied."""
    domain = Domain({"migrateStartPostCopy": 3})
    domain.until = ("migrateStartPostCopy", 1)
    move(domain, on_time_limit="post_copy", **late(monkeypatch))
    assert domain.count("refused migrateStartPostCopy") == 3
    (flags,) = (call[3] for call in domain.calls if call[0] == "migrateToURI3")
    assert flags & libvirt.VIR_MIGRATE_POSTCOPY and not flags & libvirt.VIR_MIGRATE_PAUSED


def test_post_copy_that_qemu_forgets(move: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """After an earlier migration that failed it does not refuse, and begins again when memory flows."""
    domain = Domain()
    domain.disks, domain.until = 4, ("jobStats", 10)
    move(domain, on_time_limit="post_copy", **late(monkeypatch))
    assert domain.count("migrateStartPostCopy") == 5


@pytest.mark.parametrize(("what", "method"), [("pause", "suspend"), ("post_copy", "migrateStartPostCopy")])
def test_what_was_done_at_the_limit_is_done_once(
        move: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch, what: str, method: str) -> None:
    domain = Domain({method: 1})
    domain.until = ("jobStats", 12)
    told = move(domain, on_time_limit=what, **late(monkeypatch))
    assert domain.count(method) == 1 and domain.count(f"refused {method}") == 1
    assert len(told) >= 11  # and it is told on


@pytest.mark.parametrize("refused", [0, 2])
def test_abort_at_the_limit(
        move: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    domain = Domain({"abortJob": refused})
    with pytest.raises(TimedOut, match="longer than 600 s and was aborted"):
        move(domain, **late(monkeypatch))
    assert (domain.count("abortJob"), domain.count("refused abortJob")) == (1, refused)


def test_no_limit(move: Callable[..., list[Any]]) -> None:
    domain = Domain()
    domain.until = ("jobStats", 5)
    move(domain)
    assert {call[0] for call in domain.calls} == {"jobStats", "migrateToURI3"}


@pytest.mark.parametrize("refused", [0, 2])
def test_a_cancelled_one_is_aborted(move: Callable[..., list[Any]], refused: int) -> None:
    def going(_facts: Any) -> None:
        raise Cancelled("cancelled")

    domain = Domain({"abortJob": refused})
    with pytest.raises(Cancelled):
        move(domain, going)
    assert domain.count("abortJob") == 1


# What libvirt is asked for -----------------------------------------------------------------------------------------
def test_max_downtime_gets_to_libvirt(move: Callable[..., list[Any]]) -> None:
    """Once; what it refuses is tried again, and keeps nothing else from being told."""
    domain = Domain({"migrateSetMaxDowntime": 2})
    domain.until = ("jobStats", 8)
    told = move(domain, max_downtime=200)
    assert [call for call in domain.calls if call[0] == "migrateSetMaxDowntime"] == [("migrateSetMaxDowntime", 200)]
    assert len(told) >= 7


def test_the_downtime_is_raised_step_by_step(
        move: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on a second with each look; what libvirt refuses is made good by the next look."""
    domain = Domain({"migrateSetMaxDowntime": 1})
    domain.until = ("jobStats", 120)
    monkeypatch.setattr(migrate, "time", SimpleNamespace(
        monotonic=lambda: float(domain.count("jobStats")), sleep=time.sleep))
    move(domain, max_downtime=500, downtime_steps=5, downtime_delay=20)
    looks, seen = 0, []
    for call in domain.calls:
        looks += call[0] == "jobStats"
        if call[0] == "migrateSetMaxDowntime":
            seen.append((looks, call[1]))
    assert seen == [(2, 100), (20, 200), (40, 300), (60, 400), (80, 500)]


@pytest.mark.parametrize(("options", "expected"), [
    ({}, []), ({"max_downtime": 300}, [(0.0, 300)]),
    ({"max_downtime": 500, "downtime_steps": 10, "downtime_delay": 150}, [(150.0 * n, 50 * n + 50) for n in range(10)]),
    ({"max_downtime": 1, "downtime_steps": 3, "downtime_delay": 1}, [(0.0, 1), (1.0, 1), (2.0, 1)])])
def test_the_steps_of_the_downtime(options: dict[str, Any], expected: list[tuple[float, int]]) -> None:
    assert migrate.downtime_schedule(MigrationParams(**{**vars(PASSAGE), **options})) == expected


@pytest.mark.parametrize("flowing", [True, False])
def test_post_copy_on_demand(flowing: bool) -> None:
    """It begins when memory flows, and not before."""
    domain = Domain()
    domain.disks = 0 if flowing else 9
    moves = migrate.Migrations()
    moves.connection = SimpleNamespace(ask=lambda _what, _guest, function: function(  # type: ignore[assignment]
        SimpleNamespace(lookupByUUIDString=lambda _uuid: domain)))
    assert moves.post_copy("8c7d3c0e") is flowing and domain.count("migrateStartPostCopy") == flowing


@pytest.mark.parametrize(("options", "flag", "there"), [
    ({}, libvirt.VIR_MIGRATE_AUTO_CONVERGE, True),
    ({"post_copy": True}, libvirt.VIR_MIGRATE_AUTO_CONVERGE, False),
    ({"post_copy": True}, libvirt.VIR_MIGRATE_POSTCOPY, True),
    ({"post_copy": True}, libvirt.VIR_MIGRATE_PAUSED, False),
    ({"on_time_limit": "post_copy", "time_limit": 5}, libvirt.VIR_MIGRATE_AUTO_CONVERGE, False),
    ({"auto_converge": False}, libvirt.VIR_MIGRATE_AUTO_CONVERGE, False),
    ({}, libvirt.VIR_MIGRATE_PAUSED | libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER, True),
    ({}, libvirt.VIR_MIGRATE_NON_SHARED_INC, True),
    ({}, libvirt.VIR_MIGRATE_POSTCOPY, False),
    ({"on_time_limit": "post_copy"}, libvirt.VIR_MIGRATE_POSTCOPY, False),  # there is no limit
    ({}, libvirt.VIR_MIGRATE_TLS, False),
    ({"native": ("kvm2", "kvm2")}, libvirt.VIR_MIGRATE_TLS, True),
])
def test_flags(move: Callable[..., list[Any]], options: dict[str, Any], flag: int, there: bool) -> None:
    domain = Domain()
    domain.until = ("jobStats", 1)
    move(domain, **options)
    ((_name, uri, _parameters, flags),) = (call for call in domain.calls if call[0] == "migrateToURI3")
    assert uri == "qemu+unix:///system?socket=/run/libvirt"
    assert flags & flag == (flag if there else 0)


@pytest.mark.parametrize(("options", "name", "value"), [
    ({"bandwidth": 500}, libvirt.VIR_MIGRATE_PARAM_BANDWIDTH, 500),
    ({}, libvirt.VIR_MIGRATE_PARAM_BANDWIDTH, None),
    ({}, libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS, ["vda"]),
    ({}, libvirt.VIR_MIGRATE_PARAM_URI, "unix:///run/qemu"),
    ({"native": ("fe80::1", "kvm2")}, libvirt.VIR_MIGRATE_PARAM_URI, "tcp://[fe80::1]"),
])
def test_parameters(move: Callable[..., list[Any]], options: dict[str, Any], name: str, value: Any) -> None:
    domain = Domain()
    domain.until = ("jobStats", 1)
    move(domain, **options)
    (parameters,) = (call[2] for call in domain.calls if call[0] == "migrateToURI3")
    assert parameters.get(name) == value


# How far it is -----------------------------------------------------------------------------------------------------
def test_what_is_told(move: Callable[..., list[Any]]) -> None:
    """In bytes; libvirt counts dirty pages."""
    domain = Domain()
    domain.until = ("jobStats", 1)
    assert move(domain)[0] == {"done": 400, "total": 1000, "remaining": 600, "dirty_rate": 3 * 4096}


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_progress_while_it_runs(pair: Pair, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes done and left, bytes that the guest writes in a second, and an estimate."""
    monkeypatch.setattr(source, "send_file_frames", source.send_file_frames)
    pair.make()
    way = Held(pair.one, kind, 5)
    with ThreadPoolExecutor() as threads:
        going = threads.submit(pair.migrate, type=kind)
        try:
            assert way.reached.wait(300)
            (half,) = pair.one.side().client.list("migration", status="running")
        finally:
            way.on.set()
        going.result()
    found = half["progress"]
    assert isinstance(found.pop("seconds_left"), int) or kind == "cold"
    if kind == "live":
        assert found == {"phase": "memory and disks", "done": 5, "total": 10, "remaining": 5, "dirty_rate": 5 * 4096}
    else:
        assert found["phase"] == "files" and found["total"] == found["done"] + found["remaining"] > 0


def test_the_estimate_counts_from_the_first_byte(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done before, such as sending the image, does not make the rest look slow."""
    told: list[Any] = []
    clock = [0.0]
    monkeypatch.setattr(source, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    pair.make()

    def migrate_slowly(_uuid: str, _passage: Any, going: Callable[[Any], None], _gone: Any) -> None:
        clock[0] += 1000
        for done in (0, 0, 100, 200):
            going({"done": done, "total": 1000, "remaining": 1000 - done, "dirty_rate": 7})
            told.append(next(iter(pair.one.agent.host.progress.values())))
            clock[0] += 10
        raise HypervisorError("enough.")

    monkeypatch.setattr(pair.one.fake, "migrate", migrate_slowly)
    with pytest.raises(HypervisorError, match="enough"):
        pair.migrate(type="live")
    assert [one["seconds_left"] for one in told] == [None, None, 90, 80]
    assert {one["dirty_rate"] for one in told} == {7} and told[-1]["remaining"] == 800


def test_libvirts_error(move: Callable[..., list[Any]]) -> None:
    domain = Domain()
    domain.until, domain.error = ("jobStats", 1), "internal error"
    with pytest.raises(libvirt.libvirtError, match="internal error"):
        move(domain)
    assert not isinstance(libvirt.libvirtError("x"), MagnetarError)
