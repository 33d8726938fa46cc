# SPDX-License-Identifier: GPL-3.0-or-later
"""The target of the host's backups: a directory (setting ``backup_directory``), a folder in a pool (``backup_pool``),
or a bucket (``backup_s3_…``). It is reported like a pool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from magnetar_core.errors import Conflict
from magnetar_core.http.s3 import S3Bucket

from .backup_storage import BackupStorage, DirectoryStorage
from .bucket_storage import BucketStorage
from .pools import FolderPool

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_core.http.s3_location import S3Location

#: Names of the targets in the reports of pools; no pool may have them.
DIRECTORY, BUCKET = "backup_directory", "backup_s3"
#: Their kind in the reports of pools.
KIND = "backup"
#: Name of the directory of backups in a pool.
IN_POOL = "backups"
#: Seconds that an object store may be silent when its state is only reported.
LOOK = 10.0


class BackupTarget(Protocol):
    """The interface of backup targets: the directory or bucket for a host's volume backups. Some methods are named as
    in ``Pool``, so that a target is reported like a storage pool."""

    name: str
    kind: str
    shared: bool
    storage: BackupStorage

    def room(self) -> tuple[int, int] | None:
        """Return the total and free bytes of the target; ``None`` if the target does not report them, as an object
        store."""

    def identity(self, host_name: str) -> str:
        """Return a string that identifies the target and is equal on all hosts that use the same target. *host_name*:
        the name of this host."""

    def check_usable(self) -> None:
        """Raise ``Conflict`` if the target cannot be used now."""

    def prepare(self) -> BackupStorage:
        """Return the storage of the target, creating it if it is missing and can be created. Raises ``Conflict`` if it
        cannot be used."""


class BackupDirectory(FolderPool):
    """The directory for volume backups. It is a ``FolderPool`` (a storage pool of files in a directory), so that its
    free space and identity are reported like those of a storage pool. *folder*: the directory, or the pool in which it
    is. *mounted*: whether something must be mounted at *folder*. *inside*: name of the directory in a pool; empty if
    *folder* is the directory."""

    def __init__(self, host: LocalHost, folder: Path, mounted: bool, inside: str = "") -> None:
        super().__init__(DIRECTORY, folder, host.hypervisor, mounted)
        self.kind, self.inside, self.directory = KIND, inside, folder / inside
        self.storage: BackupStorage = DirectoryStorage(self.directory)

    def identity(self, host_name: str) -> str:
        """Return the identity of *folder* (see ``FolderPool.identity``). For a directory in a pool, a slash and the
        directory's name are appended."""
        return "/".join(filter(None, (super().identity(host_name).rstrip("/"), self.inside)))

    def prepare(self) -> BackupStorage:
        self.check_usable()
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Conflict(f"The backup directory {self.directory} cannot be made: {error.strerror}.") from error
        return self.storage

    def check_usable(self) -> None:
        """Raise ``Conflict`` if the settings require a file system to be mounted at the backup directory and none is
        mounted."""
        if self.shared and not self._usable():
            raise Conflict(f"The backup directory cannot be used: nothing is mounted at {self.folder}. Mount it on the "
                           "host, then repeat the call.")


class BackupBucket:
    """The bucket of an object store for volume backups, at *location*. It counts as shared: all hosts with the same
    bucket in their settings use the same backups."""

    name, kind, shared = BUCKET, KIND, True

    def __init__(self, location: S3Location) -> None:
        self.location = location
        self.storage: BackupStorage = BucketStorage(S3Bucket(location))

    def room(self) -> None:
        """Return ``None``, because the S3 protocol does not report the size and free space of an object store."""

    def identity(self, host_name: str) -> str:
        parts = (self.location.endpoint_url.rstrip("/"), self.location.bucket, self.location.prefix)
        return "/".join(filter(None, parts))

    def check_usable(self) -> None:
        BucketStorage(S3Bucket(self.location, attempts=1, timeout=LOOK)).check_access()

    def prepare(self) -> BackupStorage:
        return self.storage


def find_backup_target(host: LocalHost) -> BackupTarget | None:
    """Return the target of this host's backups; ``None`` if the settings name none."""
    location = host.settings.backup_bucket
    if location is not None:
        return BackupBucket(location)
    settings = host.settings
    if settings.backup_pool is not None:
        pool = settings.pools[settings.backup_pool]
        return BackupDirectory(host, Path(pool["path"]), pool["type"] == "nfs", IN_POOL)
    folder = settings.backup_directory
    return None if folder is None else BackupDirectory(host, folder, settings.backup_mounted)


def target_identity(host: LocalHost, target: BackupTarget) -> str:
    """Return the identity of *target*, such as ``backup:…``. It is equal on all hosts that reach the same backups."""
    return f"{target.kind}:{target.identity(host.name)}"
