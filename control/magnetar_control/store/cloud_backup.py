# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups of a cloud: dumps of all databases, and the files of the embedded key manager, in a folder.

``backup.json`` in the folder lists the databases with their URLs and the files with their SHA-256 sums. It is written
last, so a folder without it is no backup. A restore first checks everything, changes the API database last, and can be
repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from magnetar_control.store.engine import schema
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.dumps import ENDINGS, restore_dump, write_dump
from magnetar_control.store.engine.ownership import give_to_owner_of_folder, make_private_folders
from magnetar_control.store.engine.schema_check import SchemaState, refuse_mismatch
from magnetar_control.store.engine.tables import API, CELL
from magnetar_control.store.hosts.processes import fetch_processes
from magnetar_core.errors import InvalidField, MagnetarError, abbreviate_names
from magnetar_core.version import installed_version

from .store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: The file that lists the content of a backup, the version of its form, and the name of the API database in it.
CATALOGUE, FORM, API_NAME = "backup.json", 1, "api"


class UnusableBackup(MagnetarError):
    """A folder that is no complete backup, or whose files have changed."""

    code = "unusable-backup"
    status = 500


class RestoreRefused(MagnetarError):
    """A restore that would overwrite a database, or files of keys, that are in use."""

    code = "restore-refused"
    status = 409


@dataclasses.dataclass(frozen=True)
class CloudLocation:
    """The parts of this machine's settings that say where the data of the cloud is. *api_url*: the URL of the API
    database. *key_folders*: the folders of the embedded key manager, by the name that each has in a backup.
    *down_after*: seconds without a heartbeat after which a process counts as down."""

    api_url: str
    key_folders: Mapping[str, Path]
    down_after: float


@dataclasses.dataclass(frozen=True)
class DumpedDatabase:
    """A database in a backup. *url*: the database's URL with the password. *file*: the file name of the dump.
    *version*: the schema version of the tables."""

    name: str
    url: str
    file: str
    version: str


@dataclasses.dataclass(frozen=True)
class CloudBackup:
    """The content of a backup folder. *files*: the SHA-256 sums of the files, by path in the folder."""

    folder: Path
    release: str
    created_at: str
    databases: Sequence[DumpedDatabase]
    files: Mapping[str, str]


def write_cloud_backup(location: CloudLocation, store: Store, folder: Path) -> CloudBackup:
    """Write a backup of the cloud to the new or empty *folder*. The cells are dumped before the API database. A server
    that is created meanwhile may therefore be missing in the dump of its cell; an audit after the restore reports such
    servers. Raises ``InvalidField`` for a folder with files, ``DumpFailed``, and ``SchemaMismatch`` for databases of
    another release."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise InvalidField("FOLDER", "must be new or empty, for instance named after the day", str(folder))
    databases = [*((cell.name, database) for cell, database in store.databases()), (API_NAME, store.api)]
    versions = {name: _table_version(name, database) for name, database in databases}
    with _emptied_after_failure(folder):
        dumped: list[DumpedDatabase] = []
        for name, database in databases:
            file = f"{len(dumped)}-{re.sub(r'[^A-Za-z0-9_-]', '_', name)}{ENDINGS[database.kind]}"
            write_dump(database, folder / file)
            url = database.url.render_as_string(hide_password=False)
            dumped.append(DumpedDatabase(name, url, file, versions[name]))
        for name, source in location.key_folders.items():
            if source.is_dir():
                shutil.copytree(source, folder / name)
        sums = {str(path.relative_to(folder)): _sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()}
        backup = CloudBackup(folder, installed_version(), utc_now(), dumped, sums)
        _write_catalogue(backup)
    return backup


@contextlib.contextmanager
def _emptied_after_failure(folder: Path) -> Iterator[None]:
    """Remove the content of *folder* if the ``with`` block fails: an incomplete backup takes room on a full disk, and
    has secrets."""
    try:
        yield
    except BaseException:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def _table_version(name: str, database: Database) -> str:
    """Return the version of a database's tables. Raises ``SchemaMismatch`` if this release cannot use them."""
    state = _schema_state(name, database)
    refuse_mismatch(state)
    return state.version or ""


def _schema_state(name: str, database: Database) -> SchemaState:
    schema.add_services()
    with database.read() as connection:
        return schema.read_schema_state(connection, name, API if name == API_NAME else CELL)


def _write_catalogue(backup: CloudBackup) -> None:
    document = {"form": FORM, "release": backup.release, "created_at": backup.created_at, "files": backup.files,
                "databases": [dataclasses.asdict(dumped) for dumped in backup.databases]}
    path = backup.folder / CATALOGUE
    partial = path.with_suffix(".part")
    partial.touch(mode=0o600)
    with partial.open("w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_cloud_backup(folder: Path) -> CloudBackup:
    """Return the content of a backup. Raises ``UnusableBackup`` for a folder that is no backup, or in which files are
    missing or have changed."""
    try:
        document: dict[str, Any] = json.loads((folder / CATALOGUE).read_text(encoding="utf-8"))
        if document["form"] != FORM:
            raise UnusableBackup(f"{folder} was written by release {document['release']}, in a form that this release "
                                 "does not read. Restore it with that release, then upgrade.")
        backup = CloudBackup(folder, document["release"], document["created_at"], [
            DumpedDatabase(**dumped) for dumped in document["databases"]], document["files"])
    except FileNotFoundError:
        raise UnusableBackup(f"{folder} has no {CATALOGUE}: it is no backup, or writing it was interrupted. Choose "
                             "another one.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableBackup(f"{folder / CATALOGUE} cannot be read ({error}). Choose another backup.") from error
    for name, expected in backup.files.items():
        path = folder / name
        if not path.is_file() or _sha256(path) != expected:
            raise UnusableBackup(f"{path} {'has changed' if path.exists() else 'is missing'}. Copy the backup again, "
                                 "or choose another one.", path=str(path))
    return backup


def restore_cloud_backup(location: CloudLocation, backup: CloudBackup, urls: Mapping[str, str],
                         replace: bool) -> Iterator[str]:
    """Restore all databases and key files of *backup*; yield a text for each when it is restored. *urls*: URLs by
    database name, in place of the URLs in the backup. *replace*: whether to overwrite databases that have tables, and
    key files that have other content. Raises ``RestoreRefused`` or ``InvalidField`` before anything is changed; may
    raise ``DumpFailed`` later."""
    check_restore(location, backup, urls, replace)
    _refuse_running(location)
    yield from _restore_key_files(location, backup)
    with _open_targets(location, backup, urls) as targets:
        for dumped, database in targets:
            restore_dump(database, backup.folder / dumped.file)
            if dumped.name == API_NAME:
                _set_cell_urls(database, urls)
            yield f"database {dumped.name}, of version {dumped.version}"


def check_restore(location: CloudLocation, backup: CloudBackup, urls: Mapping[str, str], replace: bool) -> None:
    """Check that a restore would overwrite nothing; with *replace*, overwriting is allowed. Changes nothing. Raises
    ``RestoreRefused``, or ``InvalidField`` if *urls* names a database that the backup does not have."""
    names = [dumped.name for dumped in backup.databases]
    if unknown := sorted(urls.keys() - set(names)):
        raise InvalidField("--database", f"names no database of the backup; it has {', '.join(names)}", unknown[0])
    if not replace:
        with _open_targets(location, backup, urls) as targets:
            _refuse_existing(location, backup, targets)


@contextlib.contextmanager
def _open_targets(location: CloudLocation, backup: CloudBackup,
                  urls: Mapping[str, str]) -> Iterator[Sequence[tuple[DumpedDatabase, Database]]]:
    """Yield a list of (dumped database, the opened database to which it is restored), the API database last. *urls*:
    URLs by database name, in place of the URLs in the backup."""
    with contextlib.ExitStack() as stack:
        yield [(one, stack.enter_context(contextlib.closing(Database(
            urls.get(one.name) or _target_url(location, one), one.name))))
            for one in sorted(backup.databases, key=lambda one: one.name == API_NAME)]


def _target_url(location: CloudLocation, dumped: DumpedDatabase) -> str:
    """Return the default URL of the database to which *dumped* is restored: for the API database the URL in *location*,
    for other databases the URL in the backup."""
    return location.api_url if dumped.name == API_NAME else dumped.url


def _refuse_existing(location: CloudLocation, backup: CloudBackup,
                     targets: Sequence[tuple[DumpedDatabase, Database]]) -> None:
    """Raise ``RestoreRefused`` if a target has tables already, or if a key file exists with other content than in the
    backup."""
    for dumped, database in targets:
        if _has_tables(dumped.name, database):
            raise RestoreRefused(f"The database {dumped.name} has tables already. Stop all APIs and conductors of the "
                                 "cloud, and say --replace to overwrite its databases, or --database "
                                 f"{dumped.name}=URL to restore this one elsewhere.", database=dumped.name)
    for source, target in _key_files(location, backup):
        if target.exists() and target.read_bytes() != source.read_bytes():
            raise RestoreRefused(f"{target} exists with other content. Say --replace to overwrite it.",
                                 path=str(target))


def _refuse_running(location: CloudLocation) -> None:
    """Raise ``RestoreRefused`` if an API process or a conductor of the cloud was seen lately."""
    with contextlib.closing(Store(Database(location.api_url))) as store:
        if not _has_tables(API_NAME, store.api) or _schema_state(API_NAME, store.api).mismatch():
            return
        running = [process.name for process in fetch_processes(
            store, location.down_after, agents=False).processes if process.up]
    if running:
        raise RestoreRefused(f"Processes of the cloud are running, or were a moment ago: {abbreviate_names(running)}. "
                             "Stop all APIs and conductors, and try again after a minute.", processes=running)


def _has_tables(name: str, database: Database) -> bool:
    """Return whether a database has any of Magnetar's tables. For an SQLite file that does not exist, return ``False``
    without creating the file."""
    if database.kind == "sqlite" and not Path(str(database.url.database)).exists():
        return False
    try:
        return not _schema_state(name, database).is_empty
    except DBAPIError as error:
        raise RestoreRefused(f"The database {name} does not answer ({str(error.orig).strip()}). Create it and start "
                             f"its server, or name another one: --database {name}=URL.", database=name) from error


def _key_files(location: CloudLocation, backup: CloudBackup) -> Iterator[tuple[Path, Path]]:
    """Yield each key file of the backup, and the path to which it is restored."""
    for file in backup.files:
        folder, _slash, name = file.partition("/")
        if folder in location.key_folders and name:
            yield backup.folder / file, location.key_folders[folder] / name


def _restore_key_files(location: CloudLocation, backup: CloudBackup) -> Iterator[str]:
    """Copy the key files of the backup to the key folders of *location*; yield a text for each folder. If root runs
    this, each file and each new folder gets the owner of the folder that it is in."""
    counts: dict[Path, int] = {}
    for source, target in _key_files(location, backup):
        make_private_folders(target.parent)
        partial = target.with_name(f".{target.name}.part")
        shutil.copy2(source, partial)
        give_to_owner_of_folder(partial)
        partial.rename(target)
        counts[target.parent] = counts.get(target.parent, 0) + 1
    for folder, count in counts.items():
        yield f"{count} files of {folder}"


def _set_cell_urls(api: Database, urls: Mapping[str, str]) -> None:
    """Write new URLs of cells to the restored API database. *urls*: by database name; the URL of the API database
    itself is skipped."""
    for name, url in urls.items():
        if name != API_NAME:
            Store(api).add_cell(name, url)
