# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar backup import``: add the backups of a directory or bucket to the database, for instance after its loss."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import InvalidRequest, InvalidSettings, Unreachable

from .command_parts import open_parts

if TYPE_CHECKING:
    from magnetar_core.document import Document
    from magnetar_core.http.s3_location import S3Location

#: The file of each backup that has its facts.
CATALOGUE = "backup.json"
#: Where a host of the control plane has the keys of the object store; agents have them in the same file.
CREDENTIALS = "/etc/magnetar/s3-credentials"


def add_backup_commands(command: Any, group: Any) -> None:
    """Add the subcommand ``magnetar backup import`` to the command line. *command*: the function ``_add_command`` of
    ``cli``, which adds a subcommand. *group*: the function ``_add_group`` of ``cli``, which returns the subparsers of a
    command group."""
    actions = group("backup", "Import backups of volumes.")
    parser = command(actions, "import", run_backup_import,
                     "Add the backups of a directory or bucket to the database, each to its former project. "
                     "Backups that the database has stay as they are. A host with the files then checks each "
                     "backup, which becomes available. Status 1 if a catalogue cannot be imported.",
                     "magnetar backup import /srv/backups\n  magnetar backup import /srv/backups --dry-run\n"
                     "  magnetar backup import s3://backups/clouds/lab --endpoint-url https://s3.example.com")
    parser.add_argument("source", metavar="SOURCE",
                        help=f"the backup directory, a copy of its files */{CATALOGUE}, or s3://BUCKET/PREFIX")
    parser.add_argument("--dry-run", action="store_true", help="only list the backups")
    parser.add_argument("--endpoint-url", metavar="URL", help="the object store of an s3:// source")
    parser.add_argument("--region", default="us-east-1", help="the region of the bucket (default: us-east-1)")
    parser.add_argument("--ca-cert-file", metavar="FILE", help="the CA of the object store's certificate")
    parser.add_argument("--credentials-file", metavar="FILE", default=CREDENTIALS,
                        help=f"the keys of the object store, mode 0600 (default: {CREDENTIALS})")


def run_backup_import(options: argparse.Namespace) -> int:
    """Run ``magnetar backup import``: add the backups in a directory or bucket to the database. Return the exit status:
    1 if a backup cannot be imported."""
    from magnetar_control.services.volume import EmbeddedVolumes

    records, errors = read_backup_catalogues(_catalogue_texts(options))
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


def read_backup_catalogues(catalogues: Iterator[tuple[str, str | Exception]]) -> tuple[list[Document], list[str]]:
    """Parse *catalogues*, the files ``backup.json`` with the metadata of backups, as pairs: the file's path or URL, and
    the file's text or the error of reading it. Return two lists: a backup record for each valid file, and an error text
    for each invalid or unreadable file."""
    from magnetar_control.services.volume.backups import catalogue_record

    records, errors = [], []
    for place, text in catalogues:
        try:
            if isinstance(text, Exception):
                raise ValueError(str(text))  # noqa: TRY004 - it is a result
            records.append(catalogue_record(json.loads(text)))
        except ValueError as error:
            errors.append(f"{place} cannot be imported: {error}.")
    return records, errors


def _catalogue_texts(options: argparse.Namespace) -> Iterator[tuple[str, str | Exception]]:
    """Yield (path or URL, text) of each catalogue, the file ``backup.json`` with a backup's metadata, in the source in
    *options*. An unreadable file has the error in place of the text. Raises ``InvalidSettings`` if there is no such
    source, and ``Unreachable`` if the object store refuses."""
    from magnetar_core.http.s3_location import SCHEME

    if options.source.startswith(SCHEME):
        yield from _bucket_catalogues(_bucket_location(options))
        return
    directory = Path(options.source)
    if not directory.is_dir():
        raise InvalidSettings(f"{directory} is no directory. Name the backup directory, or a copy of its catalogues.")
    for path in sorted(directory.glob(f"*/{CATALOGUE}")):
        try:
            yield str(path), path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            yield str(path), error


def _bucket_location(options: argparse.Namespace) -> S3Location:
    """Return the location of the bucket in an object store, from the command line *options*. Raises ``InvalidSettings``
    for an invalid value."""
    from magnetar_core.http import s3_location

    bucket, _slash, prefix = options.source.removeprefix(s3_location.SCHEME).rstrip("/").partition("/")
    for name, value, check in (("--endpoint-url", options.endpoint_url or "", s3_location.check_s3_endpoint),
                               (f"the bucket of {options.source}", bucket, s3_location.check_s3_bucket),
                               (f"the prefix of {options.source}", prefix, s3_location.check_s3_prefix),
                               ("--region", options.region, s3_location.check_s3_region)):
        if (value or name[:10] != "the prefix") and (wrong := check(value)):
            raise InvalidSettings(f"{name}: {wrong} (got {value!r}).")
    return s3_location.S3Location(options.endpoint_url, bucket, options.credentials_file, prefix, options.region,
                                  options.ca_cert_file)


def _bucket_catalogues(location: S3Location) -> Iterator[tuple[str, str | Exception]]:
    """Yield (URL, text) of each catalogue, the file ``backup.json`` with a backup's metadata, in a bucket. The error is
    in place of a text that is not UTF-8. A backup without a catalogue is incomplete, and left out. Raises
    ``Unreachable``."""
    from magnetar_core.http.s3 import S3Bucket, S3Error

    bucket = S3Bucket(location)
    try:
        for id in sorted(bucket.list_folders()):
            place = location.uri(id, CATALOGUE)
            try:
                yield place, bucket.get_object(f"{id}/{CATALOGUE}").decode()
            except UnicodeDecodeError as error:
                yield place, error
            except S3Error as error:
                if not error.missing:
                    raise
    except S3Error as error:
        raise Unreachable(f"The bucket {location.bucket} at {location.endpoint_url} cannot be read: {error.message}. "
                          f"{error.remedy}") from None
