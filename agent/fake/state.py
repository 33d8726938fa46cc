# SPDX-License-Identifier: GPL-3.0-or-later
"""What every part of the fake shares: its domains and networks, their file, its events, and the failures ordered."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from magnetar_agent.fake.journal import Journal
from magnetar_agent.hypervisor import OFF, Domain, Event
from magnetar_agent.networks import Lease, NetworkSeen
from magnetar_agent.virt.domain import parse as _parse
from magnetar_core.errors import HypervisorDown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

parse = lru_cache(maxsize=100_000)(_parse)


@dataclass
class FakeDomain:
    """A domain as the fake keeps it: the XML that defines it, its state, and the XML of what runs."""

    xml: str
    state: str = OFF
    reason: str = "unknown"
    persistent: bool = True
    live: str = ""

    def seen(self) -> Domain:
        """As the agent sees it."""
        return replace(parse(self.xml), state=self.state, reason=self.reason, persistent=self.persistent)


@dataclass
class FakeNetwork:
    """A network as the fake keeps it."""

    seen: NetworkSeen
    leases: list[Lease] = field(default_factory=list)
    hosts: dict[str, str] = field(default_factory=dict)


class State:
    """The state, and two ways to it: ``_call`` for the protocol, ``_change`` for what comes from outside."""

    def __init__(self, folder: Path | None = None, bridges: Iterable[str] = ("br0",), kvm: bool = False,
                 delay: float = 0.0, name: str = "fake", guest_agents: bool = False) -> None:
        self.name, self.delay, self.guest_agents = name, delay, guest_agents
        self.deaf: set[str] = set()
        #: Domains in which a guest agent answers (with *guest_agents* all); what it was asked for.
        self.talking: set[str] = set()
        self.frozen: set[str] = set()
        self.passwords: dict[tuple[str, str], str] = {}
        self.interrupted: list[str] = []
        self._copies: set[str] = set()
        self.permitted: list[Path] = []
        self.wiped: list[str] = []
        self._bridges, self._kvm = frozenset(bridges), kvm
        self._connected = True
        self._folder = folder
        self._journal = None if folder is None else Journal(folder / "fake-hypervisor.jsonl")
        self._lock = threading.RLock()
        self._failures: dict[str, deque[Exception]] = defaultdict(deque)
        self._events: list[Event] = []
        self._on_event: list[Callable[[Event], None]] = []
        self._on_connect: list[Callable[[], None]] = []
        self._domains: dict[str, FakeDomain] = {}
        self._networks: dict[str, FakeNetwork] = {}
        if self._journal:
            self._load(self._journal.read())

    @contextmanager
    def _call(self, method: str, change: bool = False, needs_libvirt: bool = True) -> Iterator[None]:
        """Every call of the protocol passes here: connection, ordered failures, delay, lock, state file, events."""
        if self.delay:
            time.sleep(self.delay)
        if needs_libvirt and not self._connected:
            raise HypervisorDown
        with self._lock:
            if self._failures[method]:
                raise self._failures[method].popleft()
        if not change:
            yield
            return
        with self._change():
            yield

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Change the state under the lock; then write it down and tell of the events, without the lock."""
        with self._lock:
            yield
            if self._journal:
                self._journal.write(self._things(), self._plain)
            events, self._events = self._events, []
        for event in events:
            for listener in list(self._on_event):
                listener(event)

    def _things(self) -> dict[str, object]:
        """What there is, in a form that is compared quickly."""
        return {
            **{f"domain {uuid}": (one.xml, one.state, one.reason, one.persistent, one.live)
               for uuid, one in self._domains.items()},
            **{f"network {name}": (one.seen, tuple(one.leases), tuple(one.hosts.items()))
               for name, one in self._networks.items()},
            "copies": frozenset(self._copies)}

    def _plain(self, thing: str) -> Any:
        kind, _blank, name = thing.partition(" ")
        if kind == "copies":
            return sorted(self._copies)
        if kind == "domain":
            return vars(self._domains[name])
        there = self._networks[name]
        return {"seen": asdict(there.seen), "leases": list(map(vars, there.leases)), "hosts": there.hosts}

    def _load(self, things: dict[str, Any]) -> None:
        self._copies = set(things.pop("copies", ()))
        for thing, kept in things.items():
            kind, _blank, name = thing.partition(" ")
            if kind == "domain":
                self._domains[name] = FakeDomain(**kept)
            else:
                self._networks[name] = FakeNetwork(
                    NetworkSeen(**kept["seen"]), [Lease(**one) for one in kept["leases"]], kept["hosts"])
