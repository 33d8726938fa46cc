# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar backup import``: add the backups of a backup directory to the database, for instance after its loss."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import InvalidRequest, InvalidSettings

from .command_parts import open_parts

if TYPE_CHECKING:
    from magnetar_core.document import Document

#: The file of each backup that has its facts.
CATALOGUE = "backup.json"


def add_backup_commands(command: Any, group: Any) -> None:
    """Add the subcommand ``magnetar backup import`` to the command line. *command*: the function ``_add_command`` of
    ``cli``, which adds a subcommand. *group*: the function ``_add_group`` of ``cli``, which returns the subparsers of a
    command group."""
    actions = group("backup", "Import backups of volumes.")
    parser = command(actions, "import", run_backup_import,
                     "Add the backups whose catalogues are in a directory to the database, each to its former project. "
                     "Backups that the database has stay as they are. A host with the files then checks each backup, "
                     "which becomes available. Status 1 if a catalogue cannot be imported.",
                     "magnetar backup import /srv/backups\n  magnetar backup import /srv/backups --dry-run")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY",
                        help=f"the backup directory, or a copy of its files */{CATALOGUE}")
    parser.add_argument("--dry-run", action="store_true", help="only list the backups")


def run_backup_import(options: argparse.Namespace) -> int:
    """Run ``magnetar backup import``: add the backups in a directory to the database. Return the exit status: 1 if a
    backup cannot be imported."""
    from magnetar_control.services.volume import EmbeddedVolumes

    records, errors = read_backup_catalogues(options.directory)
    for error in errors:
        print(error, file=sys.stderr)
    imported = []
    if not options.dry_run:
        with open_parts(options) as parts:
            service = parts.services().volume
            if not isinstance(service, EmbeddedVolumes):
                raise InvalidRequest("The volumes of this cloud are in a Cinder, so its backups are too. Use cinder "
                                     "backup-import there.")
            imported = service.backups.import_catalogues(records)
    for record in records:
        state = "found" if options.dry_run else "imported" if record["id"] in imported else "known already"
        print(f"{record['id']}  {record['project_id']}  {record['name'] or '-'}  {state}")
    return 1 if errors else 0


def read_backup_catalogues(directory: Path) -> tuple[list[Document], list[str]]:
    """Read the catalogue (the file ``backup.json``) of each backup in *directory*. Return two lists: a backup record
    for each valid file, and an error text for each invalid file. Raises ``InvalidSettings`` if *directory* does not
    exist."""
    from magnetar_control.services.volume.backups import catalogue_record

    if not directory.is_dir():
        raise InvalidSettings(f"{directory} is no directory. Name the backup directory, or a copy of its catalogues.")
    records, errors = [], []
    for path in sorted(directory.glob(f"*/{CATALOGUE}")):
        try:
            records.append(catalogue_record(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError) as error:
            errors.append(f"{path} cannot be imported: {error}.")
    return records, errors
