# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar db backup`` and ``magnetar db restore``: all databases and keys of a cloud, to and from a folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import InvalidField

from . import settings_file as configuration
from .command_parts import open_parts

if TYPE_CHECKING:
    from .settings import Settings
    from .store.cloud_backup import CloudLocation


def add_db_backup_commands(command: Any, actions: Any) -> None:
    """Add ``backup`` and ``restore`` to *actions*, the subparsers of the group ``db``. *command*: the function of
    ``cli`` that adds a subcommand."""
    backup = command(actions, "backup", run_db_backup,
                     "Write all databases, and the keys and certificates of the embedded key manager, to a new folder. "
                     "The cloud keeps running. The folder has secrets, and only its owner can read it. Content of "
                     "images and disks is not in it.",
                     "magnetar db backup /srv/backup/2026-11-30")
    backup.add_argument("folder", type=Path, metavar="FOLDER", help="a new or empty folder")
    restore = command(actions, "restore", run_db_restore,
                      "Restore the databases and keys of a backup, to the databases that it came from; the API "
                      "database to that of the settings. First stop all APIs and conductors, afterwards start them and "
                      "run magnetar audit. An interrupted restore can be repeated with --replace.",
                      "magnetar db restore /srv/backup/2026-11-30\n  magnetar db restore /srv/backup/2026-11-30 "
                      "--replace --database cell1=postgresql+psycopg://magnetar@db2/cell1")
    restore.add_argument("folder", type=Path, metavar="FOLDER", help="the folder of magnetar db backup")
    restore.add_argument("--replace", action="store_true", help="overwrite databases that have tables, and other key "
                         "files")
    restore.add_argument("--database", action="append", default=[], metavar="NAME=URL",
                         help="restore a database elsewhere, such as that of a cell; --database NAME=- reads the URL "
                         "from the input, so that no list of processes shows its password")
    restore.add_argument("--check", action="store_true", help="only check that the backup is complete, and "
                         "that nothing would be overwritten without --replace")


def run_db_backup(options: argparse.Namespace) -> int:
    """Run ``magnetar db backup``: back up the databases, keys and certificates of the cloud into a folder, and return
    the exit status."""
    from .store.cloud_backup import write_cloud_backup

    with open_parts(options) as parts:
        backup = write_cloud_backup(_location_of(parts.settings), parts.store, options.folder)
    for dumped in backup.databases:
        size = (backup.folder / dumped.file).stat().st_size
        print(f"{dumped.name}: {dumped.file}, {size / 2 ** 20:.1f} MiB, version {dumped.version}")
    print(f"{len(backup.files) - len(backup.databases)} files of keys and certificates")
    return 0


def run_db_restore(options: argparse.Namespace) -> int:
    """Run ``magnetar db restore``: restore or only check the backup in a folder, and return the exit status."""
    from .store.cloud_backup import check_restore, read_cloud_backup, restore_cloud_backup

    location = _location_of(configuration.load_settings(options.config))
    urls = dict(map(_read_database_option, options.database))
    backup = read_cloud_backup(options.folder)
    if options.check:
        check_restore(location, backup, urls, options.replace)
        print(f"{options.folder} is complete: {', '.join(dumped.name for dumped in backup.databases)}, of release "
              f"{backup.release}, {backup.created_at[:19]} UTC.")
        return 0
    for text in restore_cloud_backup(location, backup, urls, options.replace):
        print(f"restored {text}", flush=True)
    print("Start conductors and APIs, then run magnetar audit.", file=sys.stderr)
    return 0


def _location_of(settings: Settings) -> CloudLocation:
    """Return where *settings* put the cloud's databases and keys."""
    from .store.cloud_backup import API_NAME, CloudLocation

    return CloudLocation(settings.url(API_NAME), {"keys": settings.keys, "certificates": settings.certificates},
                         settings.host_down_after)


def _read_database_option(option: str) -> tuple[str, str]:
    """Return name and URL of an option NAME=URL; for the URL "-", a line of stdin is read as the URL. Raises
    ``InvalidField``."""
    name, equals, url = option.partition("=")
    if not equals or not name or not url:
        raise InvalidField("--database", "must be NAME=URL", option)
    return name, sys.stdin.readline().strip() if url == "-" else url
