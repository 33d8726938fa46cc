# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains of libvirt: read, define, start and stop them. A domain without Magnetar's metadata is only read."""

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
from .domain import DomainState, parse_domain_xml, render_domain, with_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from magnetar_agent.host.hypervisor import Domain as DomainSeen
    from magnetar_agent.host.hypervisor import DomainSpec
    from magnetar_agent.host.storage import DiskKey
    from magnetar_agent.virt.connection.pool import ConnectionPool

T = TypeVar("T")
#: The parts of a definition that differ between servers: texts, and attributes with names, paths and addresses.
FREE = re.compile(r'(?<=>)[^<]+(?=<)|'
                  r'(?<= )(?:uuid|file|path|source|address|name|network|bridge|of|port|interfaceid)="[^"]*"')
#: The number of validated forms of definitions that are remembered.
FORMS = 256
#: The folder of domains' definitions. libvirt replaces a domain's file with every change. So ``domains`` reads only the
#: XML of domains whose file has changed since the last call; where the files cannot be read, it reads the XML of all.
_DEFINITIONS = Path("/etc/libvirt/qemu")
_INACTIVE = libvirt.VIR_DOMAIN_XML_INACTIVE
_FORGET = (libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
           | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA)
_FORGET_NVRAM, _KEEP_NVRAM = libvirt.VIR_DOMAIN_UNDEFINE_NVRAM, libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM
_KEEP_TPM = libvirt.VIR_DOMAIN_UNDEFINE_KEEP_TPM
_RUNS = (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_BLOCKED, libvirt.VIR_DOMAIN_SHUTDOWN)


class Domains:
    """The methods of ``LocalHypervisor`` that read, define, start and stop libvirt domains."""

    connection: ConnectionPool
    templates: Path
    qemu_user: Callable[[], tuple[int, int]]

    def __init__(self) -> None:
        #: The facts of each domain by uuid from the last call of ``domains`` on this connection, with its file's state.
        self._known: dict[str, tuple[tuple[int, ...] | None, DomainSeen]] = {}
        self._known_by: Any = None
        #: Forms of definitions (without the parts that ``FREE`` matches) that libvirt's schema allows.
        self._forms: set[str] = set()

    def domains(self) -> dict[str, DomainSeen]:
        """Return ``{uuid: domain}`` of all libvirt domains. The XML is read again only for domains whose definition has
        changed."""
        return self.connection.call("list the domains", self._domains)

    def domain(self, uuid: str) -> DomainSeen | None:
        """Return the libvirt domain *uuid* as parsed from its definition, with its state; ``None`` if there is none."""
        def see(conn: Any) -> DomainSeen | None:
            libvirt_domain = lookup_domain(conn, uuid)
            return None if libvirt_domain is None else self._see(libvirt_domain)
        return self.connection.call(f"read the domain {uuid}", see)

    def render(self, spec: DomainSpec) -> str:
        """Return the libvirt domain XML for *spec*. The disks' cache modes depend on whether their file systems support
        O_DIRECT."""
        caches = {disk.target: "writeback" for disk in spec.disks if disk.device != "cdrom" and not disk.block_device
                  and disk.remote is None and not direct_io(disk.path.parent)}
        return render_domain(spec, "none", self.templates, caches)

    def define(self, spec: DomainSpec) -> None:
        """Define the domain in libvirt. Raises ``Conflict`` if a domain that Magnetar did not create has the same uuid
        or name."""
        def define(conn: Any) -> None:
            own_domain = lookup_domain(conn, spec.uuid)
            for existing in (own_domain, _named(conn, spec.name) if own_domain is None or own_domain.name() != spec.name
                             else None):
                if existing is not None and not (self._parse(existing).owned and existing.UUIDString() == spec.uuid):
                    raise _foreign(existing.name(), existing.UUIDString())
            if own_domain is not None and self._parse(own_domain).adopted:
                raise _adopted(own_domain.name())
            # A check against libvirt's schema takes longer than all the rest. A change is made of the same parts, and a
            # new domain often differs from a checked one only in names and numbers: both skip it.
            xml = self.render(spec)
            form = FREE.sub("", xml)
            checked = own_domain or form in self._forms
            conn.defineXMLFlags(xml, 0 if checked else libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
            if not checked and len(self._forms) < FORMS:
                self._forms.add(form)
        self.connection.call(f"define the domain {spec.name}", define, Lane.END)

    def undefine(self, uuid: str, keep_nvram: bool = False) -> None:
        """Undefine the domain *uuid* in libvirt, with its managed save, TPM state, UEFI variables, and metadata of
        snapshots and checkpoints. *keep_nvram*: do not remove the UEFI variables. TPM state and UEFI variables of an
        adopted domain are never removed."""
        kept: list[bool] = []

        def undefine(domain: Any, parsed: DomainSeen) -> None:
            if domain.isActive():
                if domain.state()[0] != libvirt.VIR_DOMAIN_CRASHED:
                    raise HypervisorError(f"The domain {domain.name()} runs, so it is not undefined. Stop it first.")
                domain.destroy()
            kept.append(parsed.adopted)
            if domain.isPersistent():
                domain.undefineFlags(_FORGET | (_KEEP_NVRAM if keep_nvram or parsed.adopted else _FORGET_NVRAM)
                                     | (_KEEP_TPM if parsed.adopted else 0))
        self._with_seen("undefine", uuid, undefine, missing_is_fine=True, flags=_INACTIVE, lane=Lane.END)
        if not any(kept):
            tpm.forget_tpm(uuid)

    def start(self, uuid: str, paused: bool = False, secret: str | None = None, keys: Sequence[DiskKey] = ()) -> None:
        """Boot the domain *uuid*, or restore it from its managed save (virDomainCreate). *paused*: leave the CPUs
        stopped. *secret*: the secret of its TPM. *keys*: the keys of its encrypted disks. Does nothing if the domain is
        running."""
        def start(domain: Any, parsed: DomainSeen) -> None:
            if domain.isActive():
                if domain.state()[0] != libvirt.VIR_DOMAIN_CRASHED:
                    return
                domain.destroy()
            if not parsed.adopted:  # its backing files are those that its definition or its disks name
                qemu_img.check_backing_files(parsed.disks, self.qemu_user())
            with tpm.unlocked_tpm(domain.connect(), uuid, secret), disk_keys.unlocked_disks(domain.connect(), keys):
                domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED if paused else 0)
        self._with_seen("start", uuid, start, flags=_INACTIVE, lane=Lane.START)

    def shutdown(self, uuid: str) -> None:
        """Send an ACPI power button event to the guest of the domain *uuid*."""
        def shutdown(domain: Any) -> None:
            if domain.isActive():
                domain.shutdownFlags(libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
        self._with("shut down", uuid, shutdown)

    def destroy(self, uuid: str) -> None:
        """Power off the domain *uuid* immediately (virDomainDestroy). A missing or stopped domain is ignored."""
        def destroy(domain: Any) -> None:
            try:
                domain.destroy()
            except libvirt.libvirtError:
                if domain.isActive():
                    raise
        self._with("stop", uuid, destroy, missing_is_fine=True, lane=Lane.END)

    def pause(self, uuid: str) -> None:
        """Stop the CPUs of the domain *uuid* (virDomainSuspend)."""
        def pause(domain: Any) -> None:
            if domain.state()[0] != libvirt.VIR_DOMAIN_PAUSED:
                domain.suspend()
        self._with("pause", uuid, pause)

    def resume(self, uuid: str) -> None:
        """Resume the paused CPUs of the domain *uuid* (virDomainResume). A guest that has suspended itself to RAM is
        woken up."""
        def resume(domain: Any) -> None:
            now = domain.state()[0]
            if now == libvirt.VIR_DOMAIN_PMSUSPENDED:
                domain.pMWakeup()
            elif now not in _RUNS:
                domain.resume()
        self._with("resume", uuid, resume)

    def save(self, uuid: str) -> None:
        """Save the memory of the domain *uuid* to disk and stop the domain (virDomainManagedSave). The guest runs after
        the next start, even if it was paused."""
        def save(domain: Any) -> None:
            if domain.isActive() or not domain.hasManagedSaveImage():
                domain.managedSave(libvirt.VIR_DOMAIN_SAVE_RUNNING)
        self._with("suspend", uuid, save, lane=Lane.LONG)

    def discard_save(self, uuid: str) -> None:
        """Remove the managed save of the domain *uuid*, so that the next start boots the domain."""
        def discard(domain: Any) -> None:
            if domain.hasManagedSaveImage():
                domain.managedSaveRemove()
        self._with("drop the saved state of", uuid, discard, missing_is_fine=True)

    def reboot(self, uuid: str) -> None:
        """Ask the guest of the domain *uuid* to reboot by ACPI (virDomainReboot)."""
        self._with("reboot", uuid, lambda domain: domain.reboot(libvirt.VIR_DOMAIN_REBOOT_ACPI_POWER_BTN))

    def _domains(self, conn: Any) -> dict[str, DomainSeen]:
        states = {domain.UUIDString(): (domain, facts["state.state"], facts["state.reason"])
                  for domain, facts in conn.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_STATE)}
        saved = {d.UUIDString() for d in conn.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_MANAGEDSAVE)}
        passing = {d.UUIDString() for d in conn.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_TRANSIENT)}
        generation = self.connection.generation
        # A new libvirtd may fill in more than the old one did.
        definitions = self._known if self._known_by is generation else {}
        domains, now = {}, {}
        for uuid, (domain, state, reason) in states.items():
            with contextlib.suppress(_Gone):
                file = self._file(domain.name())  # before the XML: the next pass notices a change in between
                if file is None or uuid not in definitions or definitions[uuid][0] != file:
                    now[uuid] = file, parse_domain_xml(_gone_is_gone(partial(domain.XMLDesc, _INACTIVE)))
                else:
                    now[uuid] = definitions[uuid]
                domains[uuid] = with_state(now[uuid][1], DomainState(state, reason, uuid in saved, uuid not in passing))
        self._known, self._known_by = now, generation
        return domains

    def _file(self, name: str) -> tuple[int, ...] | None:
        """Return (inode, mtime, size) of libvirt's definition file of the domain *name*, to detect changes of the
        definition; ``None`` if the file cannot be read."""
        if self.connection.uri != "qemu:///system":
            return None
        try:
            status = os.stat(f"{_DEFINITIONS}/{name}.xml")  # noqa: PTH116
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _see(self, domain: Any) -> DomainSeen | None:
        with contextlib.suppress(_Gone):
            state, reason = _gone_is_gone(domain.state)
            # Only a domain that is off starts from a saved image, and only one that is not off can vanish when it ends.
            if state == libvirt.VIR_DOMAIN_SHUTOFF:
                libvirt_state = DomainState(state, reason, saved=bool(_gone_is_gone(domain.hasManagedSaveImage)))
            else:
                libvirt_state = DomainState(state, reason, persistent=bool(_gone_is_gone(domain.isPersistent)))
            return with_state(_gone_is_gone(lambda: self._parse(domain)), libvirt_state)
        return None

    def _parse(self, domain: Any) -> DomainSeen:
        return parse_domain_xml(domain.XMLDesc(_INACTIVE))

    def _with(self, purpose: str, uuid: str, act: Callable[[Any], None], missing_is_fine: bool = False,
              lane: Lane = Lane.GUEST, kind: str = "") -> None:
        """Call *act* with the libvirt object of the domain *uuid*. Raises ``Conflict`` if Magnetar does not own the
        domain, or if it is missing; with *missing_is_fine*, a missing domain is ignored. *purpose*: verb phrase for
        errors. *lane*, *kind*: see ``ConnectionPool.ask``."""
        self._with_seen(purpose, uuid, lambda domain, _seen: act(domain), missing_is_fine, _INACTIVE, lane, kind)

    def _with_seen(self, purpose: str, uuid: str, act: Callable[[Any, DomainSeen], None], missing_is_fine: bool = False,
                   flags: int = 0, lane: Lane = Lane.GUEST, kind: str = "") -> None:
        """Like ``_with``, but call *act* with the libvirt object and the domain as parsed from its XML. *flags*: flags
        for virDomainGetXMLDesc; 0 for the live XML."""
        def run(conn: Any) -> None:
            domain = lookup_domain(conn, uuid)
            if domain is None:
                if missing_is_fine:
                    return
                raise Conflict(f"libvirt could not {purpose} the domain {uuid}: it was undefined from outside. "
                               "Repeat the call, and the agent makes it again.")
            parsed = parse_domain_xml(domain.XMLDesc(flags))
            if not parsed.owned:
                raise _foreign(domain.name(), uuid)
            if missing_is_fine:
                with contextlib.suppress(_Gone):
                    _gone_is_gone(lambda: act(domain, parsed))
            else:
                act(domain, parsed)
        text = f"{purpose} the domain {uuid}"
        if lane is Lane.READ:
            self.connection.call(text, run)
        else:
            self.connection.ask(text, uuid, run, lane, kind)


class _Gone(Exception):
    """Raised when a domain was removed while it was being read."""


def _gone_is_gone(call: Callable[[], T]) -> T:
    try:
        return call()
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            raise _Gone from None
        raise


def lookup_domain(conn: Any, uuid: str) -> Any:
    with contextlib.suppress(_Gone):
        return _gone_is_gone(lambda: conn.lookupByUUIDString(uuid))
    return None


def _named(conn: Any, name: str) -> Any:
    with contextlib.suppress(_Gone):
        return _gone_is_gone(lambda: conn.lookupByName(name))
    return None


def _adopted(name: str) -> Conflict:
    """Return the error for an attempt to change the definition of the adopted domain *name*."""
    return Conflict(f"The libvirt domain {name} is adopted: the agent never changes its definition. Change it with "
                    "virsh edit, or release it first.")


def _foreign(name: str, uuid: str) -> Conflict:
    return Conflict(f"The libvirt domain {name} ({uuid}) was not made by Magnetar, so it is not touched. "
                    "Rename or remove it, or choose another uuid.")
