# SPDX-License-Identifier: GPL-3.0-or-later
"""``FakeHypervisor``: a host without libvirt, for unit tests and for simulating many hosts.

It keeps to the contract of ``Hypervisor`` (``tests/contract/test_hypervisor.py`` runs against both). Domains and
networks are in memory, and in a JSON file when a folder is given, so that they outlive a killed agent as libvirt's do.
Disks are real small files: sparse raw files and qcow2 headers. Guests obey at once, unless their uuid is in ``deaf``.
"""

from __future__ import annotations

import json
import shutil
import struct
import threading
import time
from collections import defaultdict, deque
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import Conflict, HypervisorDown, HypervisorError

from .documents import now, write_atomically
from .hypervisor import (
    CRASHED,
    OFF,
    PAUSED,
    RUNNING,
    SUSPENDED,
    DiskSeen,
    Domain,
    DomainSpec,
    Event,
    Lease,
    NetworkSeen,
    NetworkSpec,
    Progress,
)
from .virt import iso
from .virt.disks import complete
from .virt.domain import parse as _parse
from .virt.domain import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

parse = lru_cache(maxsize=100_000)(_parse)
_ACTIVE = (RUNNING, PAUSED)
#: Fields of a qcow2 header, version 2: magic, version, offset and length of the backing name, cluster bits, size, …
_QCOW2 = struct.Struct(">4sIQIIQIIQQIIQ")


@dataclass
class FakeDomain:
    """A domain as the fake keeps it: the XML that defines it, and its state."""

    xml: str
    state: str = OFF
    reason: str = "unknown"

    def seen(self) -> Domain:
        """As the agent sees it."""
        return replace(parse(self.xml), state=self.state, reason=self.reason)


@dataclass
class FakeNetwork:
    """A network as the fake keeps it."""

    seen: NetworkSeen
    leases: list[Lease] = field(default_factory=list)


class FakeHypervisor:
    """See the head of this file. *delay* seconds pass in each call; *folder* keeps the state."""

    def __init__(self, folder: Path | None = None, bridges: Iterable[str] = ("br0",), kvm: bool = False,
                 delay: float = 0.0, name: str = "fake") -> None:
        self.name, self.delay = name, delay
        self.deaf: set[str] = set()
        self.permitted: list[Path] = []
        self._bridges, self._kvm = frozenset(bridges), kvm
        self._connected = True
        self._file = None if folder is None else folder / "fake-hypervisor.json"
        self._lock = threading.RLock()
        self._failures: dict[str, deque[Exception]] = defaultdict(deque)
        self._events: list[Event] = []
        self._on_event: list[Callable[[Event], None]] = []
        self._on_connect: list[Callable[[], None]] = []
        self._domains: dict[str, FakeDomain] = {}
        self._networks: dict[str, FakeNetwork] = {}
        if self._file and self._file.exists():
            self._load(json.loads(self._file.read_text()))

    # What tests do to it ------------------------------------------------------------------------------------------
    def fail_next(self, method: str, error: Exception, times: int = 1) -> None:
        """The next *times* calls of *method* raise *error*, before anything is changed."""
        self._failures[method].extend([error] * times)

    def disconnect(self) -> None:
        """libvirtd is gone."""
        self._connected = False

    def reconnect(self) -> None:
        """libvirtd is back."""
        self._connected = True
        for listener in list(self._on_connect):
            threading.Thread(target=listener, name="fake-connected", daemon=True).start()

    def guest_powers_off(self, uuid: str) -> None:
        """The guest shuts itself down."""
        self._outside(uuid, OFF, "guest", Event(uuid, "stopped", "guest"))

    def guest_reboots(self, uuid: str) -> None:
        """The guest reboots itself."""
        self._outside(uuid, RUNNING, "unknown", Event(uuid, "rebooted"))

    def crash(self, uuid: str, reason: str = "failed") -> None:
        """QEMU dies (``failed``), or the guest panics (``panic``)."""
        self._outside(uuid, CRASHED, reason, Event(uuid, "crashed", reason))

    def destroyed_outside(self, uuid: str) -> None:
        """Somebody runs ``virsh destroy``."""
        self._outside(uuid, OFF, "outside", Event(uuid, "stopped", "outside"))

    def undefined_outside(self, uuid: str) -> None:
        """Somebody runs ``virsh destroy`` and ``virsh undefine``."""
        with self._change():
            del self._domains[uuid]
            self._events += [Event(uuid, "stopped", "outside"), Event(uuid, "undefined")]

    def defined_outside(self, xml: str, state: str = OFF) -> None:
        """Somebody else makes a domain, or edits one."""
        with self._change():
            uuid = parse(xml).uuid
            self._domains[uuid] = FakeDomain(xml, state)
            self._events.append(Event(uuid, "defined"))

    def xml(self, uuid: str) -> str:
        """The XML of a domain."""
        return self._domains[uuid].xml

    def network_outside(self, name: str, active: bool = True) -> None:
        """Somebody else makes a network."""
        with self._change():
            self._networks[name] = FakeNetwork(NetworkSeen(f"outside-{name}", name, active, active, "virbr0"))

    def lease(self, network: str, lease: Lease) -> None:
        """The network gives an address."""
        with self._change():
            self._networks[network].leases.append(lease)

    def host_reboots(self) -> None:
        """Nothing runs any more and nobody knows why; managed saves and definitions are still there."""
        with self._change():
            for domain in self._domains.values():
                if domain.state in (*_ACTIVE, CRASHED):
                    domain.state, domain.reason = OFF, "unknown"

    # The host -----------------------------------------------------------------------------------------------------
    def connected(self) -> bool:
        return self._connected

    def host(self) -> dict[str, Any]:
        with self._call("host"):
            return {"id": f"fake-{self.name}", "name": self.name, "hypervisor_type": "FAKE",
                    "hypervisor_version": "1.0.0", "libvirt_version": "1.0.0", "cpu_model": "fake", "vcpus": 16,
                    "memory_mb": 65536, "kvm": self.kvm(), "virt_types": ["kvm", "qemu"] if self._kvm else ["qemu"]}

    def kvm(self) -> dict[str, Any]:
        return {"usable": self._kvm, "reason": "the fake was told so", "checked_at": now()}

    def bridges(self) -> frozenset[str]:
        return self._bridges

    def on_event(self, listener: Callable[[Event], None]) -> None:
        self._on_event.append(listener)

    def on_connect(self, listener: Callable[[], None]) -> None:
        self._on_connect.append(listener)

    def close(self) -> None:
        self._on_event.clear()
        self._on_connect.clear()

    # Domains ------------------------------------------------------------------------------------------------------
    def domains(self) -> dict[str, Domain]:
        with self._call("domains"):
            return {uuid: domain.seen() for uuid, domain in self._domains.items()}

    def domain(self, uuid: str) -> Domain | None:
        with self._call("domain"):
            found = self._domains.get(uuid)
            return found.seen() if found else None

    def render(self, spec: DomainSpec) -> str:
        return render(spec)

    def define(self, spec: DomainSpec) -> None:
        with self._call("define", change=True):
            for uuid, there in self._domains.items():
                seen = there.seen()
                if (uuid == spec.uuid and not seen.owned) or (uuid != spec.uuid and seen.name == spec.name):
                    raise Conflict(f"The libvirt domain {seen.name} ({uuid}) was not made by Magnetar, so it is not "
                                   "touched. Rename or remove it, or choose another uuid.")
            self._domains.setdefault(spec.uuid, FakeDomain("")).xml = render(spec)
            self._events.append(Event(spec.uuid, "defined"))

    def undefine(self, uuid: str) -> None:
        with self._call("undefine", change=True):
            domain = self._ours(uuid, missing_is_fine=True)
            if domain and domain.state in _ACTIVE:
                raise HypervisorError(f"The domain {uuid} runs, so it is not undefined. Stop it first.")
            if domain:
                del self._domains[uuid]
                self._events.append(Event(uuid, "undefined"))

    def start(self, uuid: str, paused: bool = False) -> None:
        with self._call("start", change=True):
            domain = self._ours(uuid)
            if domain.state in _ACTIVE:
                return
            self._check_parts(domain.seen())
            domain.state, domain.reason = PAUSED if paused else RUNNING, "unknown"
            self._events.append(Event(uuid, "started"))

    def shutdown(self, uuid: str) -> None:
        with self._call("shutdown", change=True):
            domain = self._ours(uuid)
            if domain.state == RUNNING and uuid not in self.deaf:
                self._stop(uuid, domain, OFF, "guest")

    def destroy(self, uuid: str) -> None:
        with self._call("destroy", change=True):
            domain = self._ours(uuid, missing_is_fine=True)
            if domain and domain.state in (*_ACTIVE, CRASHED):
                self._stop(uuid, domain, OFF, "outside")

    def pause(self, uuid: str) -> None:
        with self._call("pause", change=True):
            domain = self._active(uuid, "pause")
            if domain.state == RUNNING:
                domain.state = PAUSED
                self._events.append(Event(uuid, "suspended"))

    def resume(self, uuid: str) -> None:
        with self._call("resume", change=True):
            domain = self._active(uuid, "resume")
            if domain.state == PAUSED:
                domain.state, domain.reason = RUNNING, "unknown"
                self._events.append(Event(uuid, "resumed"))

    def save(self, uuid: str) -> None:
        with self._call("save", change=True):
            if self._ours(uuid).state != SUSPENDED:
                self._stop(uuid, self._active(uuid, "suspend"), SUSPENDED, "saved")

    def discard_save(self, uuid: str) -> None:
        with self._call("discard_save", change=True):
            domain = self._ours(uuid, missing_is_fine=True)
            if domain and domain.state == SUSPENDED:
                domain.state, domain.reason = OFF, "saved"

    def reboot(self, uuid: str) -> None:
        with self._call("reboot", change=True):
            self._active(uuid, "reboot")
            if uuid not in self.deaf:
                self._events.append(Event(uuid, "rebooted"))

    def reset(self, uuid: str) -> None:
        with self._call("reset", change=True):
            self._active(uuid, "reset")
            self._events.append(Event(uuid, "rebooted"))

    # Networks -----------------------------------------------------------------------------------------------------
    def networks(self) -> dict[str, NetworkSeen]:
        with self._call("networks"):
            return {name: network.seen for name, network in self._networks.items()}

    def make_network(self, spec: NetworkSpec) -> None:
        with self._call("make_network", change=True):
            there = self._networks.get(spec.name)
            if there and (not there.seen.owned or there.seen.uuid != spec.uuid):
                raise Conflict(f"The libvirt network {spec.name} was not made by Magnetar for this resource, so it is "
                               "not touched. Choose another name, or remove that network.")
            seen = NetworkSeen(spec.uuid, spec.name, True, True, spec.bridge, True)
            self._networks[spec.name] = FakeNetwork(seen, there.leases if there else [])

    def remove_network(self, name: str) -> None:
        with self._call("remove_network", change=True):
            there = self._networks.get(name)
            if there and not there.seen.owned:
                raise Conflict(f"The libvirt network {name} was not made by Magnetar, so it is not touched.")
            self._networks.pop(name, None)

    def leases(self, network: str) -> list[Lease]:
        with self._call("leases"):
            found = self._networks.get(network)
            return list(found.leases) if found and found.seen.active else []

    # Disks --------------------------------------------------------------------------------------------------------
    def disk(self, path: Path) -> DiskSeen | None:
        with self._call("disk", needs_libvirt=False):
            return _read(path)

    def make_disk(self, path: Path, format: str, size: int, backing: Path | None = None,
                  backing_format: str | None = None,
                  label: str | None = None) -> None:
        with self._call("make_disk", needs_libvirt=False):
            if backing and not backing.exists():
                raise HypervisorError(f"qemu-img could not make the disk {path}: {backing} does not exist.")
            with complete(path) as part:
                _write(part, DiskSeen(format, size, backing))

    def copy_disk(self, source: Path, source_format: str, path: Path, format: str, progress: Progress) -> None:
        with self._call("copy_disk", needs_libvirt=False):
            seen = _read(source)
            if seen is None:
                raise HypervisorError(f"The disk {source} cannot be copied: it does not exist.")
            with complete(path) as part:
                for tenth in range(11):
                    progress(seen.virtual_size * tenth // 10, seen.virtual_size)
                    time.sleep(self.delay / 10)
                if source_format == format == "raw":
                    shutil.copyfile(source, part)
                else:
                    _write(part, DiskSeen(format, seen.virtual_size))

    def grow_disk(self, path: Path, format: str, size: int) -> None:
        with self._call("grow_disk", needs_libvirt=False):
            seen = _read(path)
            if seen is None:
                raise HypervisorError(f"The disk {path} cannot be grown: it does not exist.")
            if seen.virtual_size > size:
                raise HypervisorError(f"The disk {path} has {seen.virtual_size} bytes already; it is not shrunk.")
            _write(path, replace(seen, virtual_size=size))

    def make_iso(self, path: Path, label: str, files: Mapping[str, bytes]) -> None:
        with self._call("make_iso", needs_libvirt=False), complete(path) as part, part.open("wb") as target:
            iso.write(target, label, files)

    def permit(self, paths: Iterable[Path]) -> None:
        with self._call("permit", needs_libvirt=False):
            self.permitted.extend(paths)

    # Inside -------------------------------------------------------------------------------------------------------
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
            if self._file:
                write_atomically(self._file, json.dumps(self._dump()).encode())
            events, self._events = self._events, []
        for event in events:
            for listener in list(self._on_event):
                listener(event)

    def _outside(self, uuid: str, state: str, reason: str, event: Event) -> None:
        with self._change():
            domain = self._domains[uuid]
            domain.state, domain.reason = state, reason
            self._events.append(event)

    def _ours(self, uuid: str, missing_is_fine: bool = False) -> Any:
        domain = self._domains.get(uuid)
        if domain is None and not missing_is_fine:
            raise Conflict(f"The domain {uuid} was undefined from outside. Repeat the call, and the agent makes it "
                           "again.")
        if domain and not domain.seen().owned:
            raise Conflict(f"The libvirt domain {uuid} was not made by Magnetar, so it is not touched.")
        return domain

    def _active(self, uuid: str, what: str) -> FakeDomain:
        domain: FakeDomain = self._ours(uuid)
        if domain.state not in _ACTIVE:
            raise HypervisorError(f"libvirt could not {what} the domain {uuid}: domain is not running.")
        return domain

    def _stop(self, uuid: str, domain: FakeDomain, state: str, reason: str) -> None:
        domain.state, domain.reason = state, reason
        self._events.append(Event(uuid, "stopped", reason))

    def _check_parts(self, domain: Domain) -> None:
        """QEMU does not start without its disks and networks."""
        for disk in domain.disks:
            if not disk.path.exists():
                raise HypervisorError(f"libvirt could not start the domain {domain.uuid}: no file {disk.path}.")
        for nic in domain.nics:
            network = self._networks.get(nic.network or "")
            there = nic.bridge in self._bridges if nic.bridge else bool(network and network.seen.active)
            if not there:
                raise HypervisorError(f"libvirt could not start the domain {domain.uuid}: no network "
                                      f"{nic.network or nic.bridge}.")

    def _dump(self) -> dict[str, Any]:
        return {"domains": {uuid: asdict(domain) for uuid, domain in self._domains.items()},
                "networks": {name: asdict(network) for name, network in self._networks.items()}}

    def _load(self, kept: dict[str, Any]) -> None:
        self._domains = {uuid: FakeDomain(**domain) for uuid, domain in kept["domains"].items()}
        self._networks = {name: FakeNetwork(NetworkSeen(**network["seen"]), [Lease(**x) for x in network["leases"]])
                          for name, network in kept["networks"].items()}


def _write(path: Path, disk: DiskSeen) -> None:
    if disk.format == "raw":
        with path.open("ab") as file:
            file.truncate(disk.virtual_size)
        return
    name = str(disk.backing).encode() if disk.backing else b""
    at = _QCOW2.size if name else 0
    header = _QCOW2.pack(b"QFI\xfb", 2, at, len(name), 16, disk.virtual_size, *(0,) * 7)
    path.write_bytes(header + name)


def _read(path: Path) -> DiskSeen | None:
    if not path.exists():
        return None
    with path.open("rb") as file:
        head = file.read(4096)
    if not head.startswith(b"QFI\xfb") or len(head) < _QCOW2.size:
        return DiskSeen("raw", path.stat().st_size)
    _magic, _version, at, length, _bits, size = _QCOW2.unpack_from(head)[:6]
    return DiskSeen("qcow2", size, Path(head[at:at + length].decode()) if at else None)
