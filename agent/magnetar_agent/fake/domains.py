# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains of the fake hypervisor; their guests obey immediately."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree as ET

from magnetar_agent.host.hypervisor import Domain, DomainEvent, DomainSpec
from magnetar_agent.host.storage import DiskKey
from magnetar_agent.virt.domain.domain import render_domain
from magnetar_core.errors import Conflict, HypervisorError
from magnetar_core.power import CRASHED, LIVE, OFF, PAUSED, RUNNING, SUSPENDED

from .state import FakeDomain, State, parse_domain


def _variables(xml: str) -> Path | None:
    """Return the path of the file with the UEFI variables of a domain; ``None`` for BIOS."""
    path_text = ET.fromstring(xml).findtext("os/nvram") if "<nvram>" in xml else None  # noqa: S314 (the template's)
    return Path(path_text) if path_text else None


class Domains(State):
    """A base class of ``FakeHypervisor``, the fake for tests: its ``LocalHypervisor`` methods for domains."""

    def domains(self) -> dict[str, Domain]:
        with self._call("domains"):
            # A copy: readers do not hold the lock, and other threads define meanwhile.
            return {uuid: domain.seen() for uuid, domain in list(self._domains.items())}

    def domain(self, uuid: str) -> Domain | None:
        with self._call("domain"):
            fake_domain = self._domains.get(uuid)
            return fake_domain.seen() if fake_domain else None

    def render(self, spec: DomainSpec) -> str:
        return render_domain(spec)

    def define(self, spec: DomainSpec) -> None:
        with self._call("define", f"domain {spec.uuid}"):
            for uuid, existing in self._domains.items():
                parsed = parse_domain(existing.xml)
                if (uuid == spec.uuid and not parsed.owned) or (uuid != spec.uuid and parsed.name == spec.name):
                    raise Conflict(f"The libvirt domain {parsed.name} ({uuid}) was not made by Magnetar, so it is not "
                                   "touched. Rename or remove it, or choose another uuid.")
                if uuid == spec.uuid and parsed.adopted:
                    raise Conflict(f"The libvirt domain {parsed.name} is adopted: the agent never changes its "
                                   "definition.")
            domain = self._domains.setdefault(spec.uuid, FakeDomain(""))
            domain.xml, domain.persistent = render_domain(spec), True
            self._events.append(DomainEvent(spec.uuid, "defined"))

    def undefine(self, uuid: str, keep_nvram: bool = False) -> None:
        with self._call("undefine", f"domain {uuid}"):
            domain = self._ours(uuid, missing_is_fine=True)
            if domain and domain.state in LIVE:
                raise HypervisorError(f"The domain {uuid} runs, so it is not undefined. Stop it first.")
            if domain:
                variables = None if keep_nvram or domain.seen().adopted else _variables(domain.xml)
                if variables:
                    variables.unlink(missing_ok=True)
                del self._domains[uuid]
                self._events.append(DomainEvent(uuid, "undefined"))

    def start(self, uuid: str, paused: bool = False, secret: str | None = None, keys: Sequence[DiskKey] = ()) -> None:
        with self._call("start", f"domain {uuid}"):
            domain = self._ours(uuid)
            if domain.state in LIVE:
                return
            self._check_parts(domain.seen())
            for disk in domain.seen().disks:
                if disk.key and disk.key.id not in [key.id for key in keys if key.secret]:
                    raise HypervisorError(f"libvirt could not start the domain {uuid}: there is no secret "
                                          f"{disk.key.id}.")
            if "<tpm " in domain.xml and not domain.seen().adopted:
                domain.tpm = domain.tpm or f"{secret} {uuid4()}"
                if secret is None or not domain.tpm.startswith(secret):
                    raise HypervisorError(f"libvirt could not start the domain {uuid}: swtpm cannot read what is in "
                                          "its TPM with this secret.")
            variables = _variables(domain.xml)
            if variables and not variables.exists():
                variables.touch(0o600)
                variables.write_bytes(b"as the firmware's template\n")
            if domain.state != SUSPENDED or not domain.live:
                domain.live = domain.xml
            domain.state, domain.reason, domain.mirrors = PAUSED if paused else RUNNING, "unknown", {}
            self._events.append(DomainEvent(uuid, "started"))
            if self._talks(uuid):
                self._events.append(DomainEvent(uuid, "agent"))

    def save_tpm(self, uuid: str, path: Path) -> None:
        with self._call("save_tpm"):
            tpm_state = self._domains[uuid].tpm if uuid in self._domains else ""
            path.unlink(missing_ok=True)
            if tpm_state:
                path.touch(0o600)
                path.write_text(tpm_state)

    def load_tpm(self, uuid: str, path: Path) -> None:
        with self._call("load_tpm", f"domain {uuid}"):
            if path.exists():
                self._ours(uuid).tpm = path.read_text()

    def shutdown(self, uuid: str) -> None:
        with self._call("shutdown", f"domain {uuid}"):
            domain = self._ours(uuid)
            self._must_answer(uuid, "shut down")
            if domain.state == RUNNING and uuid not in self.deaf:
                self._stop(uuid, domain, OFF, "guest")

    def destroy(self, uuid: str) -> None:
        with self._call("destroy", f"domain {uuid}"):
            domain = self._ours(uuid, missing_is_fine=True)
            if domain and domain.state in (*LIVE, CRASHED):
                self._stop(uuid, domain, OFF, "outside")

    def pause(self, uuid: str) -> None:
        with self._call("pause", f"domain {uuid}"):
            domain = self._active(uuid, "pause")
            if domain.state == RUNNING:
                domain.state = PAUSED
                self._events.append(DomainEvent(uuid, "suspended"))

    def resume(self, uuid: str) -> None:
        with self._call("resume", f"domain {uuid}"):
            domain = self._active(uuid, "resume")
            if domain.state == PAUSED:
                domain.state, domain.reason = RUNNING, "unknown"
                self._events.append(DomainEvent(uuid, "resumed"))

    def save(self, uuid: str) -> None:
        with self._call("save", f"domain {uuid}"):
            if self._ours(uuid).state != SUSPENDED:
                self._stop(uuid, self._active(uuid, "suspend"), SUSPENDED, "saved")

    def discard_save(self, uuid: str) -> None:
        with self._call("discard_save", f"domain {uuid}"):
            domain = self._ours(uuid, missing_is_fine=True)
            if domain and domain.state == SUSPENDED:
                domain.state, domain.reason = OFF, "saved"

    def reboot(self, uuid: str) -> None:
        with self._call("reboot", f"domain {uuid}"):
            self._active(uuid, "reboot")
            if uuid not in self.deaf:
                self._events.append(DomainEvent(uuid, "rebooted"))

    def _ours(self, uuid: str, missing_is_fine: bool = False) -> Any:
        domain = self._domains.get(uuid)
        if domain is None and not missing_is_fine:
            raise Conflict(f"The domain {uuid} was undefined from outside. Repeat the call, and the agent makes it "
                           "again.")
        if domain and not domain.seen().owned:
            raise Conflict(f"The libvirt domain {uuid} was not made by Magnetar, so it is not touched.")
        return domain

    def _active(self, uuid: str, purpose: str) -> FakeDomain:
        domain: FakeDomain = self._ours(uuid)
        if domain.state not in LIVE:
            raise HypervisorError(f"libvirt could not {purpose} the domain {uuid}: domain is not running.")
        self._must_answer(uuid, purpose)
        return domain

    def _stop(self, uuid: str, domain: FakeDomain, state: str, reason: str) -> None:
        domain.state, domain.reason = state, reason
        self.goes_on(uuid)
        if not domain.persistent:
            del self._domains[uuid]
        self._events.append(DomainEvent(uuid, "stopped", reason))

    def _check_parts(self, domain: Domain) -> None:
        """Raise ``HypervisorError`` if a disk or network of the domain is missing, as libvirt does at a start."""
        for disk in domain.disks:
            files = [disk.path, *([disk.backing.path] if disk.backing else [])]
            for path in files if disk.remote is None else ():
                if path.is_absolute() and not path.exists():
                    raise HypervisorError(f"libvirt could not start the domain {domain.uuid}: no file {path}.")
        for nic in (nic for nic in domain.nics if not nic.device):
            network = self._networks.get(nic.network or "")
            reachable = not self.ovn_lacks if nic.port else (
                nic.bridge in self._bridges if nic.bridge else bool(network and network.seen.active))
            if not reachable:
                raise HypervisorError(f"libvirt could not start the domain {domain.uuid}: no network "
                                      f"{nic.network or nic.bridge}.")
