# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains on libvirt: seen, defined, started, stopped. What does not carry Magnetar's metadata is only looked at."""

from __future__ import annotations

import contextlib
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.virt.connection.limits import Lane
from magnetar_agent.virt.disks import disk_keys, qemu_img
from magnetar_agent.virt.disks.disks import direct_io
from magnetar_core.errors import Conflict, HypervisorError

from . import tpm
from .domain import DomainState, parse, render, with_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from magnetar_agent.host.hypervisor import Domain as DomainSeen
    from magnetar_agent.host.hypervisor import DomainSpec
    from magnetar_agent.host.storage import DiskKey
    from magnetar_agent.virt.connection.pool import ConnectionPool

T = TypeVar("T")
#: What differs from server to server in a definition: texts, and attributes that hold names, paths and addresses.
FREE = re.compile(r'(?<=>)[^<]+(?=<)|'
                  r'(?<= )(?:uuid|file|path|source|address|name|network|bridge|of|port|interfaceid)="[^"]*"')
#: How many kinds of definitions are remembered.
FORMS = 256
_DEFINITIONS = Path("/etc/libvirt/qemu")
_INACTIVE = libvirt.VIR_DOMAIN_XML_INACTIVE
_FORGET = (libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
           | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA)
_RUNS = (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_BLOCKED, libvirt.VIR_DOMAIN_SHUTDOWN)


class Domains:
    """The domain part of ``LocalHypervisor``."""

    connection: ConnectionPool
    templates: Path
    qemu_user: Callable[[], tuple[int, int]]

    def __init__(self) -> None:
        #: Definitions by uuid, as the last pass over all found them, with the state of their files; of one connection.
        self._known: dict[str, tuple[tuple[int, ...] | None, DomainSeen]] = {}
        self._known_by: Any = None
        #: Definitions without names and numbers that libvirt's schema allows.
        self._forms: set[str] = set()

    def domains(self) -> dict[str, DomainSeen]:
        """Three calls for all domains and one for the XML of each whose definition is new."""
        return self.connection.call("list the domains", self._domains)

    def domain(self, uuid: str) -> DomainSeen | None:
        """The domain with this uuid."""
        def see(conn: Any) -> DomainSeen | None:
            found = _lookup(conn, uuid)
            return None if found is None else self._see(found)
        return self.connection.call(f"read the domain {uuid}", see)

    def render(self, spec: DomainSpec) -> str:
        """See ``domain.render``; the cache mode is what the file system of the disks can do."""
        caches = {disk.target: "writeback" for disk in spec.disks if disk.device != "cdrom" and not disk.block
                  and disk.remote is None and not direct_io(disk.path.parent)}
        return render(spec, "none", self.templates, caches)

    def define(self, spec: DomainSpec) -> None:
        """Define; refused where somebody else's domain has the uuid or the name."""
        def define(conn: Any) -> None:
            known = _lookup(conn, spec.uuid)
            for there in (known, _named(conn, spec.name) if known is None or known.name() != spec.name else None):
                if there is not None and not (self._parse(there).owned and there.UUIDString() == spec.uuid):
                    raise _foreign(there.name(), there.UUIDString())
            # Checking it against libvirt's schema takes longer than all the rest; a change is made of the same parts,
            # and so is whatever differs from what was checked before in names and numbers only.
            xml = self.render(spec)
            form = FREE.sub("", xml)
            checked = known or form in self._forms
            conn.defineXMLFlags(xml, 0 if checked else libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
            if not checked and len(self._forms) < FORMS:
                self._forms.add(form)
        self.connection.call(f"define the domain {spec.name}", define, Lane.END)

    def undefine(self, uuid: str) -> None:
        """Undefine with managed save, NVRAM, TPM and the metadata of snapshots and checkpoints."""
        def undefine(domain: Any) -> None:
            if domain.isActive():
                if domain.state()[0] != libvirt.VIR_DOMAIN_CRASHED:
                    raise HypervisorError(f"The domain {domain.name()} runs, so it is not undefined. Stop it first.")
                domain.destroy()
            if domain.isPersistent():
                domain.undefineFlags(_FORGET)
        self._with("undefine", uuid, undefine, missing_is_fine=True, lane=Lane.END)
        tpm.forget(uuid)

    def start(self, uuid: str, paused: bool = False, secret: str | None = None, keys: Sequence[DiskKey] = ()) -> None:
        """virDomainCreate: boots, or restores the managed save. A crashed one is cleared away first."""
        def start(domain: Any, seen: DomainSeen) -> None:
            if domain.isActive():
                if domain.state()[0] != libvirt.VIR_DOMAIN_CRASHED:
                    return
                domain.destroy()
            qemu_img.check(seen.disks, self.qemu_user())
            with tpm.unlocked(domain.connect(), uuid, secret), disk_keys.unlocked(domain.connect(), keys):
                domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED if paused else 0)
        self._with_seen("start", uuid, start, flags=_INACTIVE, lane=Lane.START)

    def shutdown(self, uuid: str) -> None:
        """virDomainShutdownFlags, by the ACPI power button."""
        def shutdown(domain: Any) -> None:
            if domain.isActive():
                domain.shutdownFlags(libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
        self._with("shut down", uuid, shutdown)

    def destroy(self, uuid: str) -> None:
        """virDomainDestroy; whether it fails because it is off already is seen afterwards."""
        def destroy(domain: Any) -> None:
            try:
                domain.destroy()
            except libvirt.libvirtError:
                if domain.isActive():
                    raise
        self._with("stop", uuid, destroy, missing_is_fine=True, lane=Lane.END)

    def pause(self, uuid: str) -> None:
        """virDomainSuspend."""
        def pause(domain: Any) -> None:
            if domain.state()[0] != libvirt.VIR_DOMAIN_PAUSED:
                domain.suspend()
        self._with("pause", uuid, pause)

    def resume(self, uuid: str) -> None:
        """virDomainResume; from the guest's own sleep virDomainPMWakeup."""
        def resume(domain: Any) -> None:
            now = domain.state()[0]
            if now == libvirt.VIR_DOMAIN_PMSUSPENDED:
                domain.pMWakeup()
            elif now not in _RUNS:
                domain.resume()
        self._with("resume", uuid, resume)

    def save(self, uuid: str) -> None:
        """virDomainManagedSave; the guest runs again after the next start, also when it was paused."""
        def save(domain: Any) -> None:
            if domain.isActive() or not domain.hasManagedSaveImage():
                domain.managedSave(libvirt.VIR_DOMAIN_SAVE_RUNNING)
        self._with("suspend", uuid, save, lane=Lane.LONG)

    def discard_save(self, uuid: str) -> None:
        """virDomainManagedSaveRemove."""
        def discard(domain: Any) -> None:
            if domain.hasManagedSaveImage():
                domain.managedSaveRemove()
        self._with("drop the saved state of", uuid, discard, missing_is_fine=True)

    def reboot(self, uuid: str) -> None:
        """virDomainReboot by ACPI."""
        self._with("reboot", uuid, lambda domain: domain.reboot(libvirt.VIR_DOMAIN_REBOOT_ACPI_POWER_BTN))

    def _domains(self, conn: Any) -> dict[str, DomainSeen]:
        states = {domain.UUIDString(): (domain, facts["state.state"], facts["state.reason"])
                  for domain, facts in conn.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_STATE)}
        saved = {d.UUIDString() for d in conn.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_MANAGEDSAVE)}
        passing = {d.UUIDString() for d in conn.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_TRANSIENT)}
        generation = self.connection.generation
        # A new libvirtd may fill in more than the old one did.
        known = self._known if self._known_by is generation else {}
        found, now = {}, {}
        for uuid, (domain, state, reason) in states.items():
            with contextlib.suppress(_Gone):
                file = self._file(domain.name())  # before the XML: what changes in between is found by the next pass
                if file is None or uuid not in known or known[uuid][0] != file:
                    now[uuid] = file, parse(_gone_is_gone(partial(domain.XMLDesc, _INACTIVE)))
                else:
                    now[uuid] = known[uuid]
                found[uuid] = with_state(now[uuid][1], DomainState(state, reason, uuid in saved, uuid not in passing))
        self._known, self._known_by = now, generation
        return found

    def _file(self, name: str) -> tuple[int, ...] | None:
        """The state of the file in which libvirt keeps a definition: it is replaced with every change, and before
        anybody is shown that. ``None`` when it cannot be seen."""
        if self.connection.uri != "qemu:///system":
            return None
        try:
            seen = os.stat(f"{_DEFINITIONS}/{name}.xml")  # noqa: PTH116
        except OSError:
            return None
        return seen.st_ino, seen.st_mtime_ns, seen.st_size

    def _see(self, domain: Any) -> DomainSeen | None:
        with contextlib.suppress(_Gone):
            state, reason = _gone_is_gone(domain.state)
            # Only what is off starts from a saved image, and only what is not off can vanish when it ends.
            if state == libvirt.VIR_DOMAIN_SHUTOFF:
                seen = DomainState(state, reason, saved=bool(_gone_is_gone(domain.hasManagedSaveImage)))
            else:
                seen = DomainState(state, reason, persistent=bool(_gone_is_gone(domain.isPersistent)))
            return with_state(_gone_is_gone(lambda: self._parse(domain)), seen)
        return None

    def _parse(self, domain: Any) -> DomainSeen:
        return parse(domain.XMLDesc(_INACTIVE))

    def _with(self, what: str, uuid: str, act: Callable[[Any], None], missing_is_fine: bool = False,
              lane: Lane = Lane.GUEST, kind: str = "") -> None:
        """Call *act* with the domain, if it is ours. *lane*, *kind*: see ``ConnectionPool.ask``."""
        self._with_seen(what, uuid, lambda domain, _seen: act(domain), missing_is_fine, _INACTIVE, lane, kind)

    def _with_seen(self, what: str, uuid: str, act: Callable[[Any, DomainSeen], None], missing_is_fine: bool = False,
                   flags: int = 0, lane: Lane = Lane.GUEST, kind: str = "") -> None:
        """Call *act* with the domain and what its XML says (with *flags*; with none, as it runs), if it is ours."""
        def run(conn: Any) -> None:
            domain = _lookup(conn, uuid)
            if domain is None:
                if missing_is_fine:
                    return
                raise Conflict(f"libvirt could not {what} the domain {uuid}: it was undefined from outside. "
                               "Repeat the call, and the agent makes it again.")
            seen = parse(domain.XMLDesc(flags))
            if not seen.owned:
                raise _foreign(domain.name(), uuid)
            if missing_is_fine:
                with contextlib.suppress(_Gone):
                    _gone_is_gone(lambda: act(domain, seen))
            else:
                act(domain, seen)
        text = f"{what} the domain {uuid}"
        if lane is Lane.LOOK:
            self.connection.call(text, run)
        else:
            self.connection.ask(text, uuid, run, lane, kind)


class _Gone(Exception):
    """The domain vanished while it was looked at."""


def _gone_is_gone(call: Callable[[], T]) -> T:
    try:
        return call()
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            raise _Gone from None
        raise


def _lookup(conn: Any, uuid: str) -> Any:
    with contextlib.suppress(_Gone):
        return _gone_is_gone(lambda: conn.lookupByUUIDString(uuid))
    return None


def _named(conn: Any, name: str) -> Any:
    with contextlib.suppress(_Gone):
        return _gone_is_gone(lambda: conn.lookupByName(name))
    return None


def _foreign(name: str, uuid: str) -> Conflict:
    return Conflict(f"The libvirt domain {name} ({uuid}) was not made by Magnetar, so it is not touched. "
                    "Rename or remove it, or choose another uuid.")
