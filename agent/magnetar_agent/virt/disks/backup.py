# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups of disks that QEMU writes while the guest runs (virDomainBackupBegin, push mode)."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.reconcile.documents import flush_file
from magnetar_agent.virt.connection.limits import Lane
from magnetar_agent.virt.domain.power import Domains
from magnetar_agent.virt.tools.templates import fill_template
from magnetar_core.errors import Conflict, HypervisorError, NoSpace

from . import disk_keys
from .disks import PART, make_encrypted

if TYPE_CHECKING:
    from magnetar_agent.host.storage import DiskKey, Progress

#: Seconds between two checks of a job.
POLL_INTERVAL = 0.1
#: Seconds within which a job must end after the request to abort it.
END = 120.0


class Backups(Domains):
    """The methods of ``LocalHypervisor`` that copy the disks of running domains, by libvirt backup jobs."""

    def begin_copy(self, uuid: str, target: str, path: Path, format: str = "qcow2", key: DiskKey | None = None) -> None:
        """Start a backup job (virDomainBackupBegin) that copies the disk *target* (such as vda), as it is now, to
        *path*. *format*: the format of the copy. *key*: the key to encrypt the copy with; ``None`` for no encryption.
        An encrypted file is created empty before the job, because QEMU would pause the guest during the key
        derivation."""
        part = path.with_name(path.name + PART)
        part.unlink(missing_ok=True)
        xml = fill_template("backup.xml.j2", {"target": target, "path": part, "format": format, "key": key},
                            self.templates)

        def begin(domain: Any) -> None:
            if key is None:
                domain.backupBegin(xml, None, 0)
                return
            capacity, _allocated, _physical = domain.blockInfo(target)
            try:
                make_encrypted(part, capacity, key)
                with disk_keys.unlocked_disks(domain.connect(), [key]):
                    domain.backupBegin(xml, None, libvirt.VIR_DOMAIN_BACKUP_BEGIN_REUSE_EXTERNAL)
            except BaseException:
                part.unlink(missing_ok=True)  # the file would mark the job as ours: see abort_copy
                raise
        self._with("copy a disk of", uuid, begin, lane=Lane.LONG)

    def finish_copy(self, uuid: str, path: Path, progress: Progress) -> None:
        """Wait for the end of the backup job, whose temporary file is *path* with the suffix ``.part``, and rename this
        file to *path*. *progress*: called with the copied and the total bytes. Raises ``HypervisorError`` or
        ``NoSpace`` if the job has failed."""
        part = path.with_name(path.name + PART)
        try:
            while job := self._job(uuid, 0):
                progress(job.get("disk_processed", 0), job.get("disk_total", 0))
                time.sleep(POLL_INTERVAL)
            ended = self._job(uuid, libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED)
            if not ended.get("success") or not part.exists():
                raise _failed(uuid, str(ended.get("errmsg") or "the copy was ended from outside"))
            progress(ended.get("disk_processed", 0), ended.get("disk_total", 0))
            flush_file(part)
            part.rename(path)
            flush_file(path.parent)
        except BaseException:
            self.abort_copy(uuid, path)
            raise

    def abort_copy(self, uuid: str, path: Path) -> None:
        """Abort the backup job that writes to *path* (virDomainAbortJob), if there is one. Remove *path* and the job's
        temporary file, *path* with the suffix ``.part``. A job is only aborted if the temporary file exists: otherwise
        it belongs to another program."""
        end = time.monotonic() + END
        while path.with_name(path.name + PART).exists() and self._copying(uuid):
            with contextlib.suppress(HypervisorError):  # it may end by itself meanwhile
                self._with("end a copy of", uuid, lambda domain: domain.abortJob())
            if time.monotonic() > end:
                raise HypervisorError(f"libvirt could not end the copy of a disk of the domain {uuid}.")
            time.sleep(POLL_INTERVAL)
        for name in (path.name, path.name + PART):
            path.with_name(name).unlink(missing_ok=True)

    def _copying(self, uuid: str) -> bool:
        try:
            return bool(self._job(uuid, 0).get("operation") == libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP)
        except (HypervisorError, Conflict):  # it does not run, or is gone
            return False

    def _job(self, uuid: str, flags: int) -> dict[str, Any]:
        """Return the statistics of the domain's job (virDomainGetJobStats with *flags*); empty when there is no job."""
        statistics: dict[str, Any] = {}
        self._with("follow a copy of", uuid, lambda domain: statistics.update(domain.jobStats(flags)))
        return statistics if statistics.get("type") else {}


def _failed(uuid: str, why: str) -> HypervisorError | NoSpace:
    if "No space left" in why or "Disk quota exceeded" in why:
        return NoSpace("The host has no room left for the copy of the disk; nothing of it is kept. Free some, then "
                       "repeat the call.")
    return HypervisorError(f"libvirt could not copy a disk of the domain {uuid}: {why}.")
