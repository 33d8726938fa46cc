# SPDX-License-Identifier: GPL-3.0-or-later
"""The source of a migration: mark the server, send it, and remove it once the target has taken it over.

Every step may be repeated. Nothing else changes a marked server (``refuse_while_it_moves``), also after a restart of
the agent, until it is known where the server is."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.host import hypervisor as hv
from magnetar_agent.host.boot import boot_id
from magnetar_agent.host.disk_folder import find_disk_folder
from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.link.rpc import Rpc
from magnetar_agent.reconcile.documents import Document
from magnetar_agent.servers import MIB, server_folder, spec, verbs
from magnetar_agent.servers.adoption.adopted import refuse_adopted
from magnetar_agent.servers.disks import disk_owner, logical_volumes, own_disks
from magnetar_agent.servers.hardware import pci, placement, tpm
from magnetar_agent.servers.nics import nics
from magnetar_core.errors import (
    Conflict,
    GuestSilent,
    HypervisorDown,
    HypervisorError,
    InvalidField,
    MagnetarError,
    NotFound,
    TimedOut,
    Unreachable,
)
from magnetar_core.hardware.merge import SECURITY
from magnetar_core.power import LIVE, OFF, PAUSED, RUNNING, SUSPENDED
from magnetar_core.server_plan import server_hardware

from . import AGENT, DISKS, LIBVIRT, MARK, NATIVE, QEMU, keys, refuse_while_it_moves, volumes
from .coming_disks import SHARED
from .console_logs import LOG, Logs
from .source_cleanup import RUN, guest_runs, is_here, restore_server, server_task, target_address
from .transfer import send_file_frames, stored_bytes

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_agent.reconcile.task import Task

log = logging.getLogger(__name__)
#: Files that no guest writes to; the files of a rescue begin with ``rescue.``.
READ = ("base", "kernel", "ramdisk", "config.iso")
#: Name of the event that completes a live migration which does not converge, as Nova's force complete.
FORCE_COMPLETE = "force_complete"


# Before -----------------------------------------------------------------------------------------------------------
def check_source(host: LocalHost, want: Fields, id: str | None) -> Document:
    """Check that the server can be migrated from this host, and return its document. *want*: the migration's fields.
    *id*: the migration's uuid, ``None`` for a new one. Raises ``InvalidField`` or ``Conflict``. Nothing is changed."""
    server = host.documents.get("server", want["server"])
    if server is None or server.deleting:
        raise InvalidField("server", f"must be a server of this host, and {want['server']} is none")
    refuse_while_it_moves(host, server, id)
    refuse_adopted(server, "migration")
    if server.state.get("unfinished"):
        raise Conflict(f"Server {server.name!r} is not finished: its last change failed. Repeat that change first.")
    if not want.get("address"):
        raise InvalidField("address", "is required on the source: host:port of the target's agent")
    if (want.get("downtime_steps") is None) != (want.get("downtime_delay") is None):
        raise InvalidField("downtime_steps", "must come with downtime_delay, and downtime_delay with it")
    if want.get("downtime_steps") and want["max_downtime"] is None:
        raise InvalidField("downtime_steps", "must come with max_downtime, which the steps lead to")
    target = target_address("", want)
    own_disks.check_disk_ownership(host, server)
    volumes.check_attachments(host, server, want)
    domain = host.hypervisor.domain(server.id)
    power = domain.state if domain else OFF
    if power == SUSPENDED:
        raise Conflict(f"Server {server.name!r} is suspended, and its saved memory cannot go to another host. Resume "
                       "or stop it first.")
    if want["type"] == "live":
        _check_live(server, power)
    host.links.greet(target)
    return server


def _check_live(server: Document, power: str) -> None:
    """Raise ``Conflict`` if the server cannot migrate live. *power*: its current power state."""
    if power not in LIVE:
        raise Conflict(
            f"Server {server.name!r} is {power}; only a running or paused one can go live. Ask for type cold "
                       "or auto.")
    nics.check_nics_live(server, power)
    if server.want.get("rescue"):
        raise Conflict(f"Server {server.name!r} is rescued, and only a server as it is meant to be goes live. Unrescue "
                       "it first, or ask for type cold.")
    if tpm.is_away(server.want):
        raise Conflict(f"Server {server.name!r} has a TPM whose secret this host does not keep (hardware.{SECURITY}: "
                       f"{tpm.tpm_security(server.want)}), so no other host could open it now. Ask for type cold.")


def build_manifest(host: LocalHost, server: Document) -> Fields:
    """Return the manifest of the server: the properties by which the target decides whether it can take the server,
    such as RAM, disks and NICs. It contains no secrets."""
    domain, want = host.hypervisor.domain(server.id), server.want
    place = server_folder(host, server.id)
    power = domain.state if domain else OFF
    disks = []
    for name in spec.guest_written_files(want):
        disk_info = own_disks.inspect_own_disk(host, server, name)
        if disk_info:
            backing = spec.root_backing(want, server.state, place) if name == "disk" else None
            # Earlier agents read "backed".
            disks.append({"name": name, "format": disk_info.format, "virtual_size": disk_info.virtual_size,
                          "backed": backing is not None})
    return {
        "server": server.id, "name": server.name, "power": power, "ram": want["flavor"]["ram"],
        "vcpus": want["flavor"]["vcpus"], "hardware": server_hardware(want), "placement": want.get(placement.FIELD),
        "virt_type": want["virt_type"], "machine": want["machine"], "networks": want["networks"], "disks": disks,
        "root_format": want["root_format"], "disk_folder": folder.id if (folder := find_disk_folder(host)) else None,
        "rbd": own_disks.describe_shared_disks(host, server, spec.guest_written_files(want)),
        "volumes": volumes.describe_volumes(host, server),
        "bytes": sum(path.stat().st_blocks * 512 for path in place.iterdir()
                     if path.is_file() and not path.is_symlink()),
        "cpu": host.hypervisor.cpu(server.id) if power in LIVE else None, "host": host.name,
        "secure_boot": bool((boots := spec.boots_by(host, server)) and boots.secure),
        "spice": bool(power in LIVE and (runs := host.hypervisor.running(server.id)) and runs.spice),
        "host_id": host.hypervisor.host()["id"], "datapath": spec.switch_datapath(host, want["networks"]),
        # Earlier agents would keep the devices' addresses, or the NICs that are devices of the host, in a live guest.
        "moves_devices": True, "pulls_nics": True,
    }


def claim_server(task: Task) -> None:
    """Mark the server in its document as being migrated by this task's migration. From now on no other operation may
    change it."""
    _mark(task)
    task.document.state["claimed"] = True
    task.keep()


def _mark(task: Task) -> Document:
    host, document = task.host, task.document
    with host.locks.hold("server", document.want["server"]):
        server = host.documents.get("server", document.want["server"])
        if server is None:
            raise Conflict(f"The server {document.want['server']} is gone from this host. There is nothing to migrate.")
        refuse_while_it_moves(host, server, document.id)
        if server.state.get(MARK) != document.id:
            server.state[MARK] = document.id
            host.documents.write(server)
        return server


# The move ---------------------------------------------------------------------------------------------------------
def move_server(task: Task) -> None:
    """Send the server to the target. If that fails and the guest is still here, remove from the server's document the
    mark that the server is being migrated, and let the guest run."""
    document = task.document
    document.state["tried"] = True
    document.state.pop("failed", None)
    task.keep()
    try:
        _Move(task).run()
        document.state["moved"] = True
        task.keep()
    except MagnetarError as error:
        # If the guest is certainly here it is restored immediately; otherwise a repetition finds out.
        lost = isinstance(error, HypervisorDown) or document.state.get("decided")
        if not lost and (not isinstance(error, Unreachable) or is_here(task.host, document)):
            restore_server(task)
        raise
    finally:
        task.host.progress.pop(document.id, None)
        task.host.links.cut(document.id)


def file_state(path: Path, migration: str, run: str) -> str:
    """Return a text that differs whenever the content of the server's file at *path* may have changed, so that an
    interrupted transfer is continued only with equal content. The text depends on the *migration* (id) and on the
    file's inode number, size and modification time. For files that a guest writes, it also depends on the *run* of the
    guest (id), the boot of the host, and the inode's change time: after a crash, new data may have an old modification
    time. For read-only files the change time is left out, because each new hard link changes it."""
    file_stat = path.stat()
    parts = [migration, file_stat.st_ino, file_stat.st_size, file_stat.st_mtime_ns]
    if path.name not in READ and not path.name.startswith("rescue."):
        parts += [file_stat.st_ctime_ns, run, boot_id()]
    return " ".join(map(str, parts))


class Throughput:
    """An estimator of the remaining time of a transfer, from the average speed so far."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def seconds_left(self, done: int, remaining: int) -> int | None:
        """Return the estimated remaining seconds; ``None`` while the speed is unknown. *done*, *remaining*: bytes. Must
        be called for each measurement."""
        clock = time.monotonic()
        if self._first is None or done <= self._first[1]:
            self._first = clock, done
        since, first = self._first
        return round(remaining * (clock - since) / (done - first)) if done > first else None


@dataclass
class _Counted:
    """Counters of a transfer: the *total* bytes to send, and the bytes that are *done*."""

    total: int
    done: int = 0


class _Move:
    """One attempt to move a server to the target of its migration."""

    def __init__(self, task: Task) -> None:
        self.task, self.host, self.document = task, task.host, task.document
        self.server = server = _mark(task)  # an earlier attempt may have removed the mark
        self.folder = server_folder(task.host, server.id)
        self.remote = target_address(task.document.id, task.document.want)
        self.live = task.document.want["type"] == "live"
        self.logs, self.throughput = Logs(self.folder), Throughput()
        self.arrived = self.shared = False

    def run(self) -> None:
        """Ask the target which steps an earlier attempt has completed, then do the remaining steps."""
        with Rpc(self.host.links.call(self.remote, AGENT)) as talk, contextlib.closing(self.logs):
            reply = talk.call("look")
            self._note_shared(bool(reply.get(SHARED)))
            self.host.hypervisor.abort_stale_job(self.server.id)
            if guest_runs(self.host, self.document) or not reply["arrived"]:
                self._go(talk)
            if not self.arrived:
                self._transfer_ownership(talk)

    def _note_shared(self, shared: bool) -> None:
        """Record in the migration's document whether both hosts share the server's disks. *shared*: the target's
        answer; false if the target's agent is an earlier version without such an answer."""
        self.shared = shared
        if bool(self.document.state.get(SHARED)) != shared:
            self.document.state[SHARED] = shared
            self.task.keep()

    def _transfer_ownership(self, talk: Rpc) -> None:
        """Make the target the owner of the server, by sending it the call ``arrive`` over *talk*, the connection to its
        agent. The guest must be off here, and must not be started here again."""
        if not self.live:  # in a live migration it was done before
            nics.release_source_nics(server_task(self.task, self.server))
        self.document.state["decided"] = True
        self.task.keep()
        volumes.serve_disks(self.host, self.server.id)
        talk.call("arrive")
        self.arrived = True

    def _go(self, talk: Rpc) -> None:
        if self.live and not guest_runs(self.host, self.document):
            raise Conflict(f"The guest of server {self.server.name!r} stopped meanwhile, so it cannot go live. Repeat "
                           "the call with type auto or cold.")
        if not self.live and guest_runs(self.host, self.document):
            self._ran()
            self._stop()
        if RUN not in self.document.state:
            self._ran()
        if not self.live:
            tpm.copy_tpm_state(self.host, self.server)
        else:
            nics.release_source_nics(server_task(self.task, self.server))
        states = {} if self.shared else self._states()
        lent = volumes.share_volumes(self.host, self.server, self.remote.peer, self.live)
        sent = {k: v for k, v in self.server.state.items() if k != MARK}
        plan = talk.call("begin", document={"id": self.server.id, "name": self.server.name, "want": self.server.want,
                                           "state": sent, "created_at": self.server.created_at},
                        live=self.live, disks=[] if self.shared or own_disks.are_shared(self.server.want)
                        else self.document.want["manifest"]["disks"], volumes=lent, shared_disks=self.shared,
                        **keys.export_server_keys(self.host, self.server),
                        native_tls=self.live and self.host.settings.native_tls,
                        files=list(states), states=states)
        self.document.state[NATIVE] = bool(plan.get(NATIVE))
        self._wake()
        self._send(talk, plan.get("kept", {}), states)
        if not self.shared:
            self.logs.send(talk)
        talk.call("ready")
        if self.live:
            self._migrate(talk, plan)

    def _ran(self) -> None:
        """Store a new id for the guest's run (see ``file_state``), because the guest may have changed its disks since
        the last attempt."""
        self.document.state[RUN] = uuid.uuid4().hex
        self.task.keep()

    def _stop(self) -> None:
        """Shut the guest down. The server's document still requests a running server, so the target starts it."""
        power = self.server.want["power"]
        self._say("stop", 0, 1)
        domain = self.host.hypervisor.domain(self.server.id)
        if domain and domain.state == PAUSED:
            self.host.hypervisor.resume(self.server.id)
        verbs.stop(server_task(self.task, self.server))
        self.server.want["power"] = power

    def _wake(self) -> None:
        """Resume a live guest that an earlier attempt left paused on this host. The target must have removed its copy
        of the guest before."""
        domain = self.host.hypervisor.domain(self.server.id)
        if self.live and domain and domain.state == PAUSED and self.server.want["power"] == RUNNING:
            self.host.hypervisor.resume(self.server.id)

    def _states(self) -> dict[str, str]:
        """Return the ``file_state`` of each file to send, by name, the smallest files first."""
        # libvirt copies the disks of a running guest; all other files in the folder are sent as they are, also those
        # that mark an RBD image as complete.
        libvirt_copied = spec.guest_written_files(self.server.want) if self.live and not own_disks.are_shared(
            self.server.want) else ()
        links = set(spec.guest_written_files(self.server.want)) if logical_volumes.uses_logical_volumes(
            self.server.want) else ()
        paths = [path for path in self.folder.iterdir()
                 if (path.exists() if path.name in links else path.is_file() and not path.is_symlink())
                 and path.name not in libvirt_copied and not path.name.startswith(LOG)
                 and path.name != disk_owner.FILE and path.suffix not in (".part", ".at", ".new", ".link")]
        paths.sort(key=lambda path: (stored_bytes(path), path.name))
        return {path.name: file_state(path, self.document.id, self.document.state[RUN]) for path in paths}

    def _send(self, talk: Rpc, present: Fields, states: dict[str, str]) -> None:
        """Send the files in *states* (``file_state`` by name) over *talk*. *present*: how many bytes of each file the
        target has already, by name; ``None``: all. Files that are not in *present* are sent completely."""
        size = {name: stored_bytes(self.folder / name) for name in states}
        bytes_present = sum(size[name] if present.get(name, 0) is None else min(present.get(name, 0), size[name])
                            for name in states)
        counted, throughput, rate = _Counted(sum(size.values()),
                                             bytes_present), Throughput(), self.document.want["bandwidth"]

        began, limit = time.monotonic(), self._limit()

        def sent(count: int) -> None:
            if limit and time.monotonic() > began + limit:
                raise TimedOut(f"The files did not come to an end within the time_limit of {limit} s; the server stays "
                               "where it is. Give it more time or bandwidth, or migrate it live.")
            counted.done = min(counted.done + count, counted.total)
            remaining = counted.total - counted.done
            self._say("files", counted.done, counted.total, remaining=remaining,
                      seconds_left=throughput.seconds_left(counted.done, remaining))

        sent(0)
        for name, content in states.items():
            offset = present.get(name, 0)
            if offset is None:
                continue
            path = self.folder / name
            talk.send({"op": "file", "name": name, "offset": offset, "mode": path.stat().st_mode & 0o777,
                      "state": content})
            send_file_frames(talk, path, offset, sent, rate * MIB if rate else None)
            talk.result()

    def _limit(self) -> int | None:
        """Return the time limit in seconds for sending the files of a cold migration; ``None`` without a limit. Only
        ``on_time_limit: abort`` applies here, since the other actions need a running guest."""
        want = self.document.want
        limit: int | None = want["time_limit"] if not self.live and want["on_time_limit"] == "abort" else None
        return limit

    def _migrate(self, talk: Rpc, plan: Fields) -> None:
        want, links, native = self.document.want, self.host.links, self.document.state[NATIVE]
        run = Path(plan["run"])
        make_state_folder(run.parent)
        make_state_folder(run, 0o750)
        self.host.hypervisor.permit([run])
        try:
            group = run.stat().st_gid
            for endpoint in (LIBVIRT,) if native else (LIBVIRT, QEMU, DISKS):
                links.forward(self.remote, endpoint, run / endpoint, group)
            self.host.hypervisor.migrate(self.server.id, hv.MigrationParams(
                libvirt=run / LIBVIRT, qemu=run / QEMU, disks=run / DISKS, persistent=plan["xml"],
                folder=(self.folder, Path(plan["folder"])),
                nics={mac: (*plug, *[None] * (4 - len(plug))) for mac, plug in plan["nics"].items()},
                devices=dict(self.server.want.get(pci.FIELD) or {}),
                bandwidth=want["bandwidth"], max_downtime=want["max_downtime"],
                downtime_steps=want.get("downtime_steps"), downtime_delay=want.get("downtime_delay"),
                auto_converge=want["auto_converge"], post_copy=bool(want.get("post_copy")),
                time_limit=want["time_limit"], on_time_limit=want["on_time_limit"],
                native=(self.remote.host, self.remote.peer) if native else None,
                copies_disks=not self.shared), self._record_progress,
                lambda: self._cut_over(talk))
        except HypervisorError as error:
            # libvirt's error does not tell where the guest is; the guest does.
            if not guest_runs(self.host, self.document) and self._cut_over(talk):
                return
            if native and not isinstance(error, GuestSilent):
                raise HypervisorError(
                    f"{error.message} The setting native_tls has both QEMUs speak to each other without the agents: "
                    "look whether their certificates are good and believe each other (virt-pki-validate, and "
                    f"migrate_tls_x509_cert_dir in qemu.conf), bear the name {self.remote.peer!r}, and whether "
                    f"libvirt's migration ports are open at {self.remote.host}; or set native_tls to false on one of "
                    "the hosts.") from error
            raise
        finally:
            links.close_forwards(self.document.id)
            shutil.rmtree(run, ignore_errors=True)

    def _cut_over(self, talk: Rpc) -> bool:
        """Ask the target over *talk* whether its copy of the guest is complete. If so, make the target the owner of the
        server; the target then resumes the guest. Return whether the copy is complete. The guest must be off on this
        host."""
        if not talk.call("look")["arrived"]:
            return False
        if not self.shared:
            self.logs.send_rest(talk)
        self._transfer_ownership(talk)
        return True

    def _record_progress(self, facts: Any) -> None:
        self._say("memory and disks", facts["done"], facts["total"], remaining=facts["remaining"],
                  dirty_rate=facts["dirty_rate"],
                  seconds_left=self.throughput.seconds_left(facts["done"], facts["remaining"]))

    def _say(self, phase: str, done: int, total: int, **more: Any) -> None:
        self.host.progress[self.document.id] = {"phase": phase, "done": done, "total": total, **more}
        self.task.operation.advance(done, total, phase=phase)


def force_live_migration(host: LocalHost, key: str) -> None:
    """Complete the live migration *key* soon: switch it to post-copy if the migration's fields allow post-copy and the
    guest's memory is being copied; otherwise pause the guest. A paused guest is resumed on the target, or here if the
    migration fails. Repeating the call is safe. Raises ``NotFound`` if there is no such migration, ``Conflict`` if it
    is not a running live migration from this host."""
    document = host.documents.find("migration", key)
    if document is None:
        raise NotFound(f"There is no migration {key!r} on this host.", kind="migration", key=key)
    want = document.want
    if want["side"] != "source" or want["type"] != "live" or document.id not in host.progress:
        raise Conflict(f"Migration {document.id} is no live migration that is under way from this host. Look at its "
                       "status with migration_info.")
    domain = host.hypervisor.domain(want["server"])
    if domain is not None and domain.state == RUNNING and not (
            want.get("post_copy") and host.hypervisor.post_copy(want["server"])):
        host.hypervisor.pause(want["server"])
