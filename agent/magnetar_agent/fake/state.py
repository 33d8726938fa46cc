# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of the fake that all its parts use: domains, networks, the state file, events, and planned failures."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.hypervisor import Domain, DomainEvent
from magnetar_agent.host.load_meter import GuestUsage
from magnetar_agent.host.networks import Lease, NetworkSeen
from magnetar_agent.virt.domain.domain import parse_domain_xml as _parse
from magnetar_core.errors import GuestSilent, HypervisorDown
from magnetar_core.power import OFF

from .journal import Journal

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from magnetar_agent.host.storage import Injection

parse_domain = lru_cache(maxsize=5000)(_parse)


@dataclass
class FakeDomain:
    """A domain of the fake. *xml*: its definition; *live*: the XML of the running domain. *mirrors*: the running disk
    copies by device name, each ``{path, xml, looks}``: path and XML of the target disk, and how often the copy's
    progress was read. *tpm*: the secret and the content of its TPM. *snapshots*: the names of its internal snapshots.
    """

    xml: str
    state: str = OFF
    reason: str = "unknown"
    persistent: bool = True
    live: str = ""
    mirrors: dict[str, dict[str, Any]] = field(default_factory=dict)
    tpm: str = ""
    autostart: bool = False
    snapshots: list[str] = field(default_factory=list)

    def seen(self) -> Domain:
        """Return the domain as the ``LocalHypervisor`` methods report it."""
        return replace(parse_domain(self.xml), state=self.state, reason=self.reason, persistent=self.persistent)


@dataclass
class FakeNetwork:
    """A libvirt network of the fake: its state, DHCP leases, and reservations (IP address by MAC)."""

    seen: NetworkSeen
    leases: list[Lease] = field(default_factory=list)
    hosts: dict[str, str] = field(default_factory=dict)


def host_of(network: str, mac: str) -> str:
    """Return the name that the journal (the file of the fake's state) has for the DHCP reservation (libvirt's element
    ``host``) of *mac* in *network*."""
    return f"host {network} {mac}"


def hung_file(folder: Path, uuid: str) -> Path:
    """Return the path of the file whose existence makes the fake's QEMU of domain *uuid* hang. *folder*: the folder of
    the fake's state."""
    return folder / f"fake-hung-{uuid}"


class State:
    """The base class of all classes that ``FakeHypervisor``, the fake for tests, is composed of: its state in memory
    and on disk. Methods of ``LocalHypervisor`` access the state with ``_call``; simulated actions of guests and other
    programs change it with ``_change``."""

    #: The datapath of the bridge for ports of OVN, and what the host lacks for OVN.
    datapath, ovn_lacks = "system", ""

    def __init__(self, folder: Path | None = None, bridges: Iterable[str] = ("br0",), kvm: bool = False,
                 delay: float = 0.0, name: str = "fake", guest_agents: bool = False) -> None:
        self.name, self.delay, self.guest_agents = name, delay, guest_agents
        self.deaf: set[str] = set()
        #: The usage of guests that tests have set; other guests use half of their memory, and no CPU.
        self.usages: dict[str, GuestUsage] = {}
        #: Domains whose QEMU does not answer.
        self.hung: set[str] = set()
        #: Domains whose guest agent answers (with *guest_agents* all); the requests to the agents.
        self.talking: set[str] = set()
        self.frozen: set[str] = set()
        self.passwords: dict[tuple[str, str], str] = {}
        self.interrupted: list[str] = []
        self.post_copied: list[str] = []
        self._copies: set[str] = set()
        #: Keys of disks by their uuids, and secrets of TPMs by domain, for incoming domains.
        self.lent: dict[str, str] = {}
        #: The guests' ends of open consoles.
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
        """Begin a call of the ``LocalHypervisor`` method named *method*: wait *delay*, check the connection to libvirt
        (if *needs_libvirt*), and raise the error that a test has planned with ``fail_next``.

        Return the context manager in which the method does its work. *changed*: the name of the object that the call
        changes, see ``_change``; empty if the call changes nothing.
        """
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
        """Hold the lock while the block changes the objects *names*. After the block, store these objects, release the
        lock, and deliver the new events to the listeners. The block may append names to the yielded list.

        Each name is a string in one of these forms: ``domain UUID``, ``network NAME``, ``host NETWORK MAC`` (a DHCP
        reservation), or ``copies`` (the set of domains of which a disk is being copied).
        """
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
        """Make the domain's QEMU stop answering, until ``goes_on`` is called or QEMU ends. If the fake has a folder, a
        file in the folder marks QEMU as hung: other processes may create and remove the file, and it outlasts a restart
        of the agent."""
        if self._folder is None:
            self.hung.add(uuid)
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            hung_file(self._folder, uuid).touch()

    def goes_on(self, uuid: str) -> None:
        """Make the domain's QEMU answer again."""
        self.hung.discard(uuid)
        if self._folder is not None:
            hung_file(self._folder, uuid).unlink(missing_ok=True)

    def _must_answer(self, uuid: str, purpose: str) -> None:
        """Raise ``GuestSilent`` if the domain's QEMU hangs. *purpose*: the verb of the request, for the error message.
        """
        if uuid in self.hung or (self._folder is not None and hung_file(self._folder, uuid).exists()):
            raise GuestSilent(f"The guest {uuid} does not answer: its QEMU is hung and has left libvirt's request to "
                              f"{purpose} without an answer.", guest=uuid)

    def _talks(self, uuid: str) -> bool:
        return self.guest_agents or uuid in self.talking

    def _happened(self, event: DomainEvent) -> None:
        """Do nothing. Subclasses override this to handle *event*, such as closing the consoles of a stopped domain."""

    def _names(self) -> list[str]:
        """Return the names of all domains, networks and DHCP reservations, and ``copies``, in the form that ``_change``
        describes. They are used to write the journal (the file of the fake's state). Networks precede their DHCP
        reservations, so that they can be loaded in this order."""
        return [*(f"domain {uuid}" for uuid in self._domains), *(f"network {name}" for name in self._networks),
                *(host_of(name, mac) for name, network in self._networks.items() for mac in network.hosts), "copies"]

    def _plain(self, key: str) -> Any:
        kind, _blank, name = key.partition(" ")
        if kind == "copies":
            return sorted(self._copies)
        if kind == "domain":
            domain = self._domains.get(name)
            return domain and vars(domain)
        name, _blank, mac = name.partition(" ")
        network = self._networks.get(name)
        if kind == "host":
            return network and network.hosts.get(mac)
        return network and {"seen": asdict(network.seen), "leases": list(map(vars, network.leases))}

    def _load(self, records: dict[str, Any]) -> None:
        self._copies = set(records.pop("copies", ()))
        for key, content in records.items():
            kind, _blank, name = key.partition(" ")
            if kind == "domain":
                self._domains[name] = FakeDomain(**content)
            elif kind == "network":
                leases = [Lease(**lease) for lease in content["leases"]]
                self._networks[name] = FakeNetwork(NetworkSeen(**content["seen"]), leases)
        for key, address in records.items():
            kind, _blank, name = key.partition(" ")
            name, _blank, mac = name.partition(" ")
            if kind == "host" and name in self._networks:  # the host of a removed network was removed with it
                self._networks[name].hosts[mac] = address
