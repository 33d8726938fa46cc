# SPDX-License-Identifier: GPL-3.0-or-later
"""What every part of the fake shares: its domains and networks, their file, its events, and the failures ordered."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.hypervisor import Domain, DomainEvent
from magnetar_agent.host.networks import Lease, NetworkSeen
from magnetar_agent.virt.domain.domain import parse as _parse
from magnetar_core.errors import GuestSilent, HypervisorDown
from magnetar_core.power import OFF

from .journal import Journal

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from magnetar_agent.host.storage import Injection

parse = lru_cache(maxsize=5000)(_parse)


@dataclass
class FakeDomain:
    """A domain as the fake keeps it: the XML that defines it, its state, the XML of what runs, and the disks that its
    disks are being copied to, by target: {path, xml, looks}. *tpm*: the secret of its TPM, and what is in
    that."""

    xml: str
    state: str = OFF
    reason: str = "unknown"
    persistent: bool = True
    live: str = ""
    mirrors: dict[str, dict[str, Any]] = field(default_factory=dict)
    tpm: str = ""

    def seen(self) -> Domain:
        """As the agent sees it."""
        return replace(parse(self.xml), state=self.state, reason=self.reason, persistent=self.persistent)


@dataclass
class FakeNetwork:
    """A network as the fake keeps it."""

    seen: NetworkSeen
    leases: list[Lease] = field(default_factory=list)
    hosts: dict[str, str] = field(default_factory=dict)


def host_of(network: str, mac: str) -> str:
    """The name of what DHCP of a network knows of a card; see ``State._change``."""
    return f"host {network} {mac}"


def hung_file(folder: Path, uuid: str) -> Path:
    """Return the file that says of a domain of the fake in *folder* that its QEMU does not answer."""
    return folder / f"fake-hung-{uuid}"


class State:
    """The state, and two ways to it: ``_call`` for the protocol, ``_change`` for what comes from outside."""

    #: How the bridge for ports of OVN forwards, and what the host lacks of OVN.
    datapath, ovn_lacks = "system", ""

    def __init__(self, folder: Path | None = None, bridges: Iterable[str] = ("br0",), kvm: bool = False,
                 delay: float = 0.0, name: str = "fake", guest_agents: bool = False) -> None:
        self.name, self.delay, self.guest_agents = name, delay, guest_agents
        self.deaf: set[str] = set()
        #: Domains whose QEMU does not answer.
        self.hung: set[str] = set()
        #: Domains in which a guest agent answers (with *guest_agents* all); what it was asked for.
        self.talking: set[str] = set()
        self.frozen: set[str] = set()
        self.passwords: dict[tuple[str, str], str] = {}
        self.interrupted: list[str] = []
        self.post_copied: list[str] = []
        self._copies: set[str] = set()
        #: Keys of disks by their uuids, and secrets of TPMs by domains, for domains that come.
        self.lent: dict[str, str] = {}
        #: The guests' ends of consoles that are open.
        self._consoles: dict[str, list[socket.socket]] = {}
        self.permitted: list[Path] = []
        self.injected: dict[Path, Injection] = {}
        self.wiped: list[str] = []
        self._bridges, self._kvm = frozenset(bridges), kvm
        self._connected = True
        self._folder = folder
        self._journal = None if folder is None else Journal(folder / "fake-hypervisor.jsonl")
        self._lock = threading.RLock()
        self._failures: dict[str, deque[Exception]] = defaultdict(deque)
        self._events: list[DomainEvent] = []
        self._on_event: list[Callable[[DomainEvent], None]] = []
        self._on_connect: list[Callable[[], None]] = []
        self._domains: dict[str, FakeDomain] = {}
        self._networks: dict[str, FakeNetwork] = {}
        if self._journal:
            self._load(self._journal.read())

    def _call(self, method: str, changed: str = "",
              needs_libvirt: bool = True) -> AbstractContextManager[list[str]]:
        """Every call of the protocol passes here: connection, ordered failures, delay, lock, state file, events.
        *changed*: the name of what it may change; see ``_change``."""
        if self.delay:
            time.sleep(self.delay)
        if needs_libvirt and not self._connected:
            raise HypervisorDown
        with self._lock:
            if self._failures[method]:
                raise self._failures[method].popleft()
        return self._change(changed) if changed else nullcontext([])

    @contextmanager
    def _change(self, *names: str) -> Iterator[list[str]]:
        """Change things under the lock, by name: ``domain UUID``, ``network NAME``, ``host NETWORK MAC``, ``backup``.
        They are written down then, with those that are added to the list; events are told of without the lock."""
        changed = list(names)
        with self._lock:
            yield changed
            if self._journal:
                self._journal.write(changed, self._plain, self._names)
            events, self._events = self._events, []
        for event in events:
            self._happened(event)
            for listener in list(self._on_event):
                listener(event)

    def hangs(self, uuid: str) -> None:
        """QEMU does not answer any more, until ``goes_on`` or its end. With a folder its file there says so, which
        other processes may make and remove: an agent that starts again finds the guest as it was."""
        if self._folder is None:
            self.hung.add(uuid)
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            hung_file(self._folder, uuid).touch()

    def goes_on(self, uuid: str) -> None:
        """QEMU answers again."""
        self.hung.discard(uuid)
        if self._folder is not None:
            hung_file(self._folder, uuid).unlink(missing_ok=True)

    def _must_answer(self, uuid: str, what: str) -> None:
        """Raise ``GuestSilent`` where the QEMU of the domain does not answer."""
        if uuid in self.hung or (self._folder is not None and hung_file(self._folder, uuid).exists()):
            raise GuestSilent(f"The guest {uuid} does not answer: its QEMU is hung and has left libvirt's request to "
                              f"{what} without an answer.", guest=uuid)

    def _talks(self, uuid: str) -> bool:
        return self.guest_agents or uuid in self.talking

    def _happened(self, event: DomainEvent) -> None:
        """For what of the fake ends with a domain."""

    def _names(self) -> list[str]:
        """Of all things, what others need first."""
        return [*(f"domain {uuid}" for uuid in self._domains), *(f"network {name}" for name in self._networks),
                *(host_of(name, mac) for name, one in self._networks.items() for mac in one.hosts), "copies"]

    def _plain(self, thing: str) -> Any:
        kind, _blank, name = thing.partition(" ")
        if kind == "copies":
            return sorted(self._copies)
        if kind == "domain":
            domain = self._domains.get(name)
            return domain and vars(domain)
        name, _blank, mac = name.partition(" ")
        there = self._networks.get(name)
        if kind == "host":
            return there and there.hosts.get(mac)
        return there and {"seen": asdict(there.seen), "leases": list(map(vars, there.leases))}

    def _load(self, things: dict[str, Any]) -> None:
        self._copies = set(things.pop("copies", ()))
        for thing, kept in things.items():
            kind, _blank, name = thing.partition(" ")
            if kind == "domain":
                self._domains[name] = FakeDomain(**kept)
            elif kind == "network":
                leases = [Lease(**one) for one in kept["leases"]]
                self._networks[name] = FakeNetwork(NetworkSeen(**kept["seen"]), leases)
        for thing, address in things.items():
            kind, _blank, name = thing.partition(" ")
            name, _blank, mac = name.partition(" ")
            if kind == "host" and name in self._networks:  # one whose network has gone went with it
                self._networks[name].hosts[mac] = address
