# SPDX-License-Identifier: GPL-3.0-or-later
"""Live migration: peer to peer through unix sockets, with local disks. The guest is paused at the target until the
agents agree that it may run. With post-copy, libvirt starts the guest at the target itself.

Without the pause, the guest could run on both hosts. If the target's last answer gets lost, the source's libvirt
resumes the guest, and "there is a small chance" (libvirt's own words) that the guest already runs at the target then.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.virt.connection.limits import Lane
from magnetar_agent.virt.connection.pool import MIGRATES
from magnetar_agent.virt.disks import disk_keys
from magnetar_core.errors import Cancelled, HypervisorError, MagnetarError, TimedOut

from . import cpu_models, tpm
from .migrated_xml import migrated_disks, target_domain_xml

if TYPE_CHECKING:
    from magnetar_agent.host.hypervisor import CutOverCallback, MigrationParams, ProgressCallback
    from magnetar_agent.host.storage import DiskKey
    from magnetar_agent.virt.connection.pool import ConnectionPool

#: Seconds between two checks of a migration.
POLL_INTERVAL = 0.25
#: Seconds until a migration whose agent has ended must notice that its sockets are gone.
STRAY = 30.0
_FLAGS = (libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER | libvirt.VIR_MIGRATE_PERSIST_DEST
          | libvirt.VIR_MIGRATE_ABORT_ON_ERROR)
_ACTIVE = (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_BLOCKED, libvirt.VIR_DOMAIN_PAUSED)


class Migrations:
    """The methods of ``LocalHypervisor`` for live migrations."""

    connection: ConnectionPool

    def libvirt_socket(self) -> Path:
        """Return the path of libvirtd's unix socket, to which the source host of a live migration connects."""
        socket_paths = parse_qs(urlsplit(self.connection.uri).query).get("socket")
        return Path(socket_paths[0] if socket_paths else "/run/libvirt/libvirt-sock")

    def cpu(self, uuid: str) -> str | None:
        """Return the CPU of the running domain *uuid* as XML, so that the target host of a live migration can check it;
        ``None`` without KVM, because an emulated CPU does not depend on the host."""
        def see(conn: Any) -> str | None:
            xml = conn.lookupByUUIDString(uuid).XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE)
            return cpu_models.migratable_cpu(conn, ET.fromstring(xml))  # noqa: S314 (libvirt wrote it)
        return self.connection.call(f"read the CPU of the domain {uuid}", see)

    def cpu_lacks(self, cpu: str) -> str:
        """Return a text with the CPU features of a guest on another host that this host lacks; "" if none. *cpu*: the
        XML element that ``cpu`` returned on the other host."""
        return self.connection.call("compare the CPU", lambda conn: cpu_models.missing_cpu_features(conn, "kvm", cpu),
                                    Lane.HOST)

    def arrived(self, uuid: str) -> bool:
        """Return whether the incoming live migration of the domain *uuid* is complete: the domain is persistent, and
        running or paused. Until the end of the migration, libvirt has only a transient domain."""
        def see(conn: Any) -> bool:
            try:
                domain = conn.lookupByUUIDString(uuid)
                return bool(domain.isPersistent()) and domain.state()[0] in _ACTIVE
            except libvirt.libvirtError as error:
                if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                    return False
                raise
        return self.connection.call(f"read the domain {uuid}", see)

    def lend_keys(self, uuid: str, keys: Sequence[DiskKey], secret: str | None) -> None:
        """Define the disk encryption *keys* and *secret*, the TPM's secret (``None``: no TPM), in libvirt before the
        domain *uuid* arrives by live migration. libvirt stores keys and secret only in memory."""
        def lend(conn: Any) -> None:
            disk_keys.lend_disk_keys(conn, keys)
            if secret is not None:
                tpm.lend_tpm_secret(conn, uuid, secret)
        self.connection.call(f"have the keys of the domain {uuid}", lend, Lane.HOST)

    def take_back_keys(self, uuid: str, ids: Sequence[str]) -> None:
        """Remove the disk keys with these *ids* and the TPM secret of the domain *uuid* from libvirt."""
        def take_back(conn: Any) -> None:
            known_ids = set(conn.listSecrets())
            disk_keys.take_back_disk_keys(conn, known_ids.intersection(ids))
            if uuid in known_ids:
                tpm.take_back_tpm_secret(conn, uuid)
        self.connection.call(f"forget the keys of the domain {uuid}", take_back, Lane.HOST)

    def abort_stale_job(self, uuid: str) -> None:
        """Abort the job of the domain *uuid*, if there is one, and wait until it has ended. Called for a job that a
        killed agent may have left."""
        def end(conn: Any) -> None:
            domain = conn.lookupByUUIDString(uuid)
            deadline = time.monotonic() + STRAY
            while domain.isActive() and domain.jobInfo()[0] != libvirt.VIR_DOMAIN_JOB_NONE:
                if time.monotonic() > deadline:
                    raise HypervisorError(f"libvirt is still busy with an earlier job of the domain {uuid}. Look at "
                                          f"`virsh domjobinfo {uuid}`, then repeat the call.")
                with suppress(libvirt.libvirtError):
                    domain.abortJob()
                time.sleep(POLL_INTERVAL)
        self.connection.ask(f"end an earlier migration of the domain {uuid}", uuid, end, Lane.END)

    def post_copy(self, uuid: str) -> bool:
        """Switch the running migration of the domain *uuid* to post-copy. Return whether this was possible."""
        def begin(conn: Any) -> bool:
            domain = conn.lookupByUUIDString(uuid)
            facts = domain.jobStats()
            return bool(facts.get("memory_processed")) and _post_copied(domain, facts)
        return self.connection.ask(f"go over to post-copy with the domain {uuid}", uuid, begin)

    def migrate(self, uuid: str, params: MigrationParams, on_progress: ProgressCallback,
                on_cut_over: CutOverCallback) -> None:
        """Migrate the running domain *uuid* live, and wait for the end. If QEMU does not respond, raises
        ``GuestSilent``; libvirt's job then continues until ``abort_stale_job`` is called.

        - *params*: the target and the options of the migration.
        - *on_progress*: called with the progress numbers; it may raise ``Cancelled`` to abort the migration.
        - *on_cut_over*: called when the guest has stopped on this host."""
        purpose = f"migrate the domain {uuid}"

        def pause() -> None:
            self.connection.call(purpose, lambda conn: conn.lookupByUUIDString(uuid).suspend(), Lane.END, uuid)

        def move(connection: Any) -> None:
            domain = connection.lookupByUUIDString(uuid)
            parameters = _parameters(domain, params)
            flags = _flags(params, bool(parameters.get(libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS)))
            work = _MigrateThread(domain, f"qemu+unix:///system?socket={params.libvirt}", parameters, flags)
            disks = bool(flags & libvirt.VIR_MIGRATE_NON_SHARED_INC)
            still = _emulated(domain)

            def follow(conn: Any) -> None:
                watched = conn.lookupByUUIDString(uuid)
                with _stopped(conn, watched, disks, pause) if still else nullcontext():
                    _Watch(watched, params, on_progress).wait_for_end(work, on_cut_over)
            self.connection.call(purpose, follow, Lane.WATCH, uuid)
        self.connection.ask(purpose, uuid, move, Lane.LONG, MIGRATES)


class _MigrateThread(threading.Thread):
    """The thread that executes virDomainMigrateToURI3, a call that lasts until the end of the migration."""

    def __init__(self, domain: Any, uri: str, parameters: dict[str, Any], flags: int) -> None:
        super().__init__(name="migrate", daemon=True)
        self._call = (domain, uri, parameters, flags)
        self.error: Any = None
        #: An eventfd, readable once the call has ended.
        self.ended = os.eventfd(0)

    def run(self) -> None:
        domain, uri, parameters, flags = self._call
        try:
            domain.migrateToURI3(uri, parameters, flags)
        except libvirt.libvirtError as error:
            self.error = error
        finally:
            os.eventfd_write(self.ended, 1)


def _emulated(domain: Any) -> bool:
    return ET.fromstring(domain.XMLDesc()).get("type") != "kvm"  # noqa: S314 (libvirt wrote it)


@contextmanager
def _stopped(conn: Any, domain: Any, disks: bool, pause: Callable[[], None]) -> Iterator[None]:
    """Pause a guest without KVM during the ``with`` block while its memory is migrated. Without *disks* to copy, pause
    it now; otherwise call *pause* when the disks are copied and the memory copy begins.

    This avoids a bug: QEMU's emulator sometimes misses that a page was changed after it was sent (seen with 7.2 in one
    of ten migrations, as guest panics on the target). After the migration, the agent of the host that has the guest
    resumes it.
    """
    begun, over = threading.Event(), threading.Event()

    def iteration(_conn: Any, _domain: Any, _number: int, _opaque: Any) -> None:
        begun.set()

    def stop() -> None:
        begun.wait()  # not in libvirt's event thread, where calls to libvirt are not allowed
        with suppress(MagnetarError):
            if not over.is_set():
                pause()

    if not disks:
        domain.suspend()
        yield
        return
    event = conn.domainEventRegisterAny(domain, libvirt.VIR_DOMAIN_EVENT_ID_MIGRATION_ITERATION, iteration, None)
    thread = threading.Thread(target=stop, name="stop for migration", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        begun.set()
        thread.join(POLL_INTERVAL * 20)  # otherwise it could pause a guest that has been taken back
        with suppress(libvirt.libvirtError):
            conn.domainEventDeregisterAny(event)


class _Watch:
    """A monitor of a running migration that reports progress, aborts the migration when it is cancelled, and enforces
    the time limit."""

    def __init__(self, domain: Any, params: MigrationParams, on_progress: ProgressCallback) -> None:
        self.domain, self.params, self.on_progress = domain, params, on_progress
        self.why: Exception | None = None
        self._late = self._aborted = False
        self._deadline = time.monotonic() + params.time_limit if params.time_limit else None
        self._began, self._downtimes = time.monotonic(), downtime_schedule(params)

    def wait_for_end(self, work: _MigrateThread, on_cut_over: CutOverCallback) -> None:
        """Start *work*, the migration, and wait for its end. Raises libvirt's error, or the reason why the migration
        was aborted. No error is raised if *on_cut_over* has returned true: the guest is complete at the target.

        *on_cut_over*: called as soon as the guest's QEMU has ended, which libvirt itself notices up to 0.2 s later.
        """
        process, over = _process(self.domain.name()), False
        watch = select.poll()
        try:
            for descriptor in filter(None, (work.ended, process)):
                watch.register(descriptor, select.POLLIN)
            work.start()
            while work.is_alive():
                ready = [descriptor for descriptor, _event in watch.poll(POLL_INTERVAL * 1000)]
                if process in ready:
                    watch.unregister(process)
                    over = on_cut_over()
                elif work.ended in ready:
                    work.join()
                else:
                    with suppress(libvirt.libvirtError):
                        self._look()
        finally:
            work.join(POLL_INTERVAL)
            for descriptor in filter(None, (process, None if work.is_alive() else work.ended)):
                os.close(descriptor)
        if work.error is not None and not over:
            raise self.why or work.error
        if not over:
            on_cut_over()

    def _look(self) -> None:
        facts = self.domain.jobStats()
        if not facts.get("type"):
            return
        self._allow_downtime()
        if self.why is None:
            try:
                self.on_progress(_job_progress(facts))
            except Cancelled as cancelled:
                self.why = cancelled
        if self.why is None and self._deadline and time.monotonic() > self._deadline and not self._late:
            self._late = self._too_long(facts)  # set after the call: a refused request is repeated
        if self.why is not None and not self._aborted:
            self.domain.abortJob()
            self._aborted = True

    def _allow_downtime(self) -> None:
        """Set the maximum downtime of the migration to the value that ``downtime_schedule`` has for the present time.
        If libvirt refuses, the next check retries."""
        since = time.monotonic() - self._began
        due = [downtime for downtime in self._downtimes if downtime[0] <= since]
        if due:
            with suppress(libvirt.libvirtError):
                self.domain.migrateSetMaxDowntime(due[-1][1])
                del self._downtimes[:len(due)]

    def _too_long(self, facts: dict[str, Any]) -> bool:
        """After the time limit, do what ``on_time_limit`` of the migration parameters says: pause the guest, switch to
        post-copy, or abort the migration. Return whether this is done; if not, the next check retries. *facts*:
        statistics of libvirt's job.

        QEMU cannot switch to post-copy while disks are copied, because the memory copy has not begun.
        """
        action = self.params.on_time_limit
        if action == "pause":
            self.domain.suspend()
        elif action == "post_copy":
            return _post_copied(self.domain, facts)
        else:
            self.why = TimedOut(f"The migration took longer than {self.params.time_limit} s and was aborted; the "
                                "server runs where it was. Give it more time or bandwidth, or set on_time_limit to "
                                "pause or post_copy.")
        return True


def downtime_schedule(params: MigrationParams) -> list[tuple[float, int]]:
    """Return the schedule of the maximum downtime as pairs (seconds since the start of the migration, maximum downtime
    in ms)."""
    most, steps, delay = params.max_downtime, params.downtime_steps, params.downtime_delay
    if most is None:
        return []
    if not steps or not delay:
        return [(0.0, most)]
    return [(float(at * delay), max(1, most * (at + 1) // steps)) for at in range(steps)]


def _post_copied(domain: Any, facts: dict[str, Any]) -> bool:
    """Switch the migration of *domain* to post-copy. Return whether this takes effect: QEMU must have begun to copy
    memory. *facts*: statistics of libvirt's job."""
    domain.migrateStartPostCopy()
    return bool(facts.get("memory_processed"))


def _process(name: str) -> int | None:
    """Return a pidfd of the QEMU process of the domain *name*; ``None`` if the process is not on this machine. The
    pidfd becomes readable when the process ends."""
    try:
        return os.pidfd_open(int(Path(f"/run/libvirt/qemu/{name}.pid").read_text()))
    except (OSError, ValueError):
        return None


def _flags(params: MigrationParams, copies: bool) -> int:
    # libvirt cannot know that both paths of a volume lead to the same content; the agents ensure that.
    flags = int(_FLAGS | libvirt.VIR_MIGRATE_UNSAFE)
    flags |= libvirt.VIR_MIGRATE_NON_SHARED_INC if copies else 0
    post = params.may_post_copy
    flags |= libvirt.VIR_MIGRATE_AUTO_CONVERGE if params.auto_converge and not post else 0
    flags |= libvirt.VIR_MIGRATE_TLS if params.native else 0
    return flags | int(libvirt.VIR_MIGRATE_POSTCOPY if post else libvirt.VIR_MIGRATE_PAUSED)


def _parameters(domain: Any, params: MigrationParams) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: params.persistent,
        libvirt.VIR_MIGRATE_PARAM_DEST_XML: target_domain_xml(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE),
                                                              params),
    }
    disks = migrated_disks(domain.XMLDesc(0), params.folder[0]) if params.copies_disks else []
    if disks:
        parameters[libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS] = disks
    if params.native:
        host, name = params.native
        parameters[libvirt.VIR_MIGRATE_PARAM_URI] = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        parameters[libvirt.VIR_MIGRATE_PARAM_TLS_DESTINATION] = name
    else:
        parameters[libvirt.VIR_MIGRATE_PARAM_URI] = f"unix://{params.qemu}"
        if disks:
            parameters[libvirt.VIR_MIGRATE_PARAM_DISKS_URI] = f"unix://{params.disks}"
    if params.bandwidth is not None:
        parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = params.bandwidth
    return parameters


def _job_progress(facts: dict[str, Any]) -> dict[str, int]:
    """Convert *facts*, libvirt's job statistics, to ``{"done", "total", "remaining", "dirty_rate"}``: bytes of memory
    and disks together, and bytes per second."""
    names = {"done": "data_processed", "total": "data_total", "remaining": "data_remaining"}
    return {**{ours: int(facts.get(name, 0)) for ours, name in names.items()},
            "dirty_rate": int(facts.get("memory_dirty_rate", 0)) * int(facts.get("memory_page_size", 4096))}
