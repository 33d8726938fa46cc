# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks whether a cloud is ready for an upgrade to this release. Each check is a function that yields findings, and
changes nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from magnetar_control.compute.access import policy_files
from magnetar_control.compute.access.policy import build_rule_set
from magnetar_control.store.actions.actions import is_open_action
from magnetar_control.store.engine import schema
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.schema_check import SchemaState
from magnetar_control.store.engine.tables import API, CELL, actions
from magnetar_control.store.hosts import hosts
from magnetar_control.store.hosts.capability_marks import KnownCapabilities
from magnetar_control.store.hosts.host_row import SizedHost
from magnetar_control.store.store import CELL0, CellMapping, Store
from magnetar_core.errors import InvalidField, MagnetarError, abbreviate_names
from magnetar_core.version import describe_least_versions, installed_version, older_programs, release_number

from .data_migrations import DataMigrator
from .settings import Settings

#: Levels of a finding, and the exit status of the worst one, as of ``nova-status upgrade check``.
WARNING, FAILURE = "Warning", "Failure"
STATUSES = {WARNING: 1, FAILURE: 2}
#: Days before the end of a certificate from which it is a finding.
EXPIRES_SOON = 30
#: Free MiB of the folder of databases: below the first a failure, below the second a warning. An upgrade of SQLite
#: tables copies them.
ROOM = (256, 1024)
#: Most hours since a backup.
BACKUP_HOURS = 24.0


class UpgradeFinding(NamedTuple):
    """A problem that an upgrade check has found: its level (``WARNING`` or ``FAILURE``), and a text with the problem
    and its solution."""

    level: str
    text: str


@dataclass
class CheckedCloud:
    """The settings, databases and files that the upgrade checks read. *backup*: a file of the newest backup, from the
    option ``--backup``; ``None`` without this option."""

    settings: Settings
    store: Store
    backup: Path | None = None

    @cached_property
    def cells(self) -> Sequence[tuple[CellMapping, Database]]:
        """All cells with their databases; empty while the API database has no table of cells, or does not answer."""
        try:
            return self.store.databases()
        except DBAPIError:
            return ()

    @cached_property
    def hosts(self) -> Sequence[SizedHost]:
        """All hosts with the reports of their agents; empty while the API database has no table of hosts, or does not
        answer."""
        try:
            with self.store.api.read() as connection:
                return hosts.fetch_every_host(connection, SizedHost)
        except DBAPIError:
            return ()


UpgradeCheckFunction = Callable[[CheckedCloud], Iterator[UpgradeFinding]]


def check_policy_files(cloud: CheckedCloud) -> Iterator[UpgradeFinding]:
    """Yield findings about policy files that cannot be used, and about rules in them that apply to no operation of the
    API."""
    settings = cloud.settings
    try:
        overrides = policy_files.read_policy_files(settings.policy_file, [Path(one) for one in settings.policy_dirs])
        build_rule_set(overrides)
    except InvalidField as error:
        yield UpgradeFinding(FAILURE, error.message)
        return
    for text in overrides.warnings():
        yield UpgradeFinding(WARNING, f"{text}.")


def check_schemas(cloud: CheckedCloud) -> Iterator[UpgradeFinding]:
    """Yield findings about databases that do not answer, that this release cannot use, or whose tables are older than
    this release needs."""
    for name, state, reason in read_schema_states(cloud):
        if reason:
            yield UpgradeFinding(FAILURE, reason)
        elif state is not None and state.is_empty:
            yield UpgradeFinding(FAILURE, f"The database {name} has no tables. Run `magnetar db upgrade`.")
        elif state is not None and state.is_older:
            yield UpgradeFinding(WARNING, f"The tables of {name} have version {state.version}, and this release needs "
                                          f"{state.newest}. `magnetar db upgrade`, or the first start, upgrades them.")


def read_schema_states(cloud: CheckedCloud) -> Iterator[tuple[str, SchemaState | None, str]]:
    """Yield (name of the database, state of its tables, reason) for each database. The state is ``None`` if the
    database does not answer. The reason says why this release cannot use the database; empty if it can."""
    schema.add_services()
    for name, database, metadata in (("api", cloud.store.api, API),
                                     *((cell.name, database, CELL) for cell, database in cloud.cells)):
        try:
            with database.read() as connection:
                state = schema.read_schema_state(connection, name, metadata)
        except DBAPIError as error:
            yield name, None, (f"The database {name} does not answer ({str(error.orig).strip()}). See that it runs, "
                               "and that its URL is right (`magnetar config`, `magnetar cell list`).")
        else:
            yield name, state, state.mismatch()


def check_data_migrations(cloud: CheckedCloud) -> Iterator[UpgradeFinding]:
    """Yield findings about data migrations that are not complete: rows are still in the form of an earlier release.
    Databases with tables that must first be upgraded are skipped."""
    current = {name for name, state, reason in read_schema_states(cloud)
               if not reason and state is not None and not state.is_empty and not state.is_older}
    if "api" not in current:
        return
    migrator = DataMigrator(cloud.store, KnownCapabilities(cloud.store, lambda: cloud.settings.host_down_after))
    for result in migrator.remaining():
        if result.database in current:
            remains = result.problem or f"{result.found} rows remain"
            yield UpgradeFinding(WARNING, f"Data migration {result.migration.name} in {result.database}: {remains}. "
                                          "`magnetar db migrate-data`, or the conductors, complete it; a later release "
                                          "needs it.")


def check_cells(cloud: CheckedCloud) -> Iterator[UpgradeFinding]:
    """Yield a finding if the cloud has no cell other than cell0."""
    if all(cell.id == CELL0 for cell, _database in cloud.cells):
        yield UpgradeFinding(FAILURE, "The cloud has no cell but cell0, so it can have no servers. Run `magnetar cell "
                                      "create`.")


def check_inventories(cloud: CheckedCloud) -> Iterator[UpgradeFinding]:
    """Yield a finding about hosts for which no CPUs or no memory are stored. The scheduler never chooses these hosts.
    """
    empty = sorted(host.name for host in cloud.hosts if not host.vcpus or not host.memory_mb)
    if empty:
        yield UpgradeFinding(WARNING, f"The agent of {abbreviate_names(empty)} has never reported CPUs and memory, so "
                                      "these hosts get no servers. See that the agents run, and that a conductor of "
                                      "their cell reaches them.")


def check_agent_releases(cloud: CheckedCloud) -> Iterator[UpgradeFinding]:
    """Yield findings about agents that have neither the release of this command nor the previous release."""
    here = release_number(installed_version())
    far: dict[str, list[str]] = {}
    for host in cloud.hosts:
        version = str(host.info.get("agent_version") or "")
        number = release_number(version)
        if here is not None and number is not None and not 0 <= here - number <= 1:
            far.setdefault(version, []).append(host.name)
    for version, names in sorted(far.items()):
        yield UpgradeFinding(FAILURE, f"The agent of {abbreviate_names(sorted(names))} has version {version}; this "
                                      f"release, {installed_version()}, works with agents of its own and the previous "
                                      "release. Upgrade these agents (docs/howto/upgrade-agents.md).")


def check_host_programs(cloud: CheckedCloud) -> Iterator[UpgradeFinding]:
    """Yield findings about hosts whose libvirt or QEMU is older than this release supports."""
    for host in sorted(cloud.hosts, key=lambda host: host.name):
        if older := older_programs(host.info):
            yield UpgradeFinding(FAILURE, f"The host {host.name} has {' and '.join(older)}; this release needs "
                                          f"{describe_least_versions()} or newer. Upgrade its operating system first; "
                                          "its agent would not start.")


def check_running_actions(cloud: CheckedCloud) -> Iterator[UpgradeFinding]:
    """Yield findings about queued or running actions, because conductors of the new release would continue them."""
    for cell, database in cloud.cells:
        try:
            with database.read() as connection:
                count = _count_open_actions(connection)
        except DBAPIError:
            continue  # told by the check of schemas
        if count:
            yield UpgradeFinding(WARNING, f"{count} actions of {cell.name} are queued or running. Stopped conductors "
                                          "leave them to the next ones; wait for them if you want to be able to go "
                                          "back.")


def _count_open_actions(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(actions).where(is_open_action())).scalar_one()


def check_database_room(cloud: CheckedCloud) -> Iterator[UpgradeFinding]:
    """Yield a finding if the folder of the databases (``state_dir``) is missing or has little free space."""
    folder = cloud.settings.state_dir
    if not folder.is_dir():
        yield UpgradeFinding(FAILURE, f"The folder {folder} of the setting state_dir does not exist.")
        return
    free = shutil.disk_usage(folder).free >> 20
    for level, least in zip((FAILURE, WARNING), ROOM, strict=True):
        if free < least:
            yield UpgradeFinding(level, f"{folder} has {free} MiB left, and an upgrade of tables may need {least} MiB. "
                                        "Free some room.")
            return


def check_certificates(cloud: CheckedCloud) -> Iterator[UpgradeFinding]:
    """Yield findings about certificate files from the settings: files that cannot be read, and certificates that have
    expired or will expire soon."""
    settings, now = cloud.settings, datetime.now(UTC)
    for name in ("tls_cert", "agent_client_cert", "agent_ca_cert"):
        path = getattr(settings, name)
        if path is None:
            continue
        try:
            certificates = x509.load_pem_x509_certificates(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            yield UpgradeFinding(FAILURE, f"{path} of the setting {name} cannot be read: {error}.")
            continue
        end = min(certificate.not_valid_after_utc for certificate in certificates)
        if end < now + timedelta(days=EXPIRES_SOON):
            level, verb = (FAILURE, "expired") if end < now else (WARNING, "expires")
            yield UpgradeFinding(level, f"The certificate {path} of the setting {name} {verb} on {end:%Y-%m-%d}. Renew "
                                        "it before the upgrade.")


def check_backup(cloud: CheckedCloud) -> Iterator[UpgradeFinding]:
    """Yield a finding if the option ``--backup`` is missing, or its file cannot be read, is empty, or is older than
    ``BACKUP_HOURS``. A backup is needed, because an upgrade of the tables cannot be undone."""
    if cloud.backup is None:
        yield UpgradeFinding(WARNING, "No backup was named, and tables are not downgraded. Make one "
                                      "(docs/howto/back-up-and-restore-a-cloud.md), and name it with --backup FILE.")
        return
    try:
        status = cloud.backup.stat()
    except OSError as error:
        yield UpgradeFinding(FAILURE, f"The backup {cloud.backup} cannot be read: {error.strerror}.")
        return
    hours = (time.time() - status.st_mtime) / 3600
    if not status.st_size:
        yield UpgradeFinding(FAILURE, f"The backup {cloud.backup} is empty.")
    elif hours > BACKUP_HOURS:
        yield UpgradeFinding(WARNING, f"The backup {cloud.backup} is {hours:.0f} hours old. Make a new one.")


#: The checks by the name that the command prints, in order.
CHECKS: dict[str, UpgradeCheckFunction] = {
    "Policy files": check_policy_files,
    "Tables of the databases": check_schemas,
    "Data migrations": check_data_migrations,
    "Cells": check_cells,
    "Inventories of hosts": check_inventories,
    "Releases of agents": check_agent_releases,
    "libvirt and QEMU of hosts": check_host_programs,
    "Actions in progress": check_running_actions,
    "Room on disk": check_database_room,
    "Certificates": check_certificates,
    "Backup": check_backup,
}


def run_upgrade_checks(cloud: CheckedCloud) -> dict[str, list[UpgradeFinding]]:
    """Run all upgrade checks; return the findings by name of the check. A check that raises an error has a finding with
    this error."""
    found: dict[str, list[UpgradeFinding]] = {}
    for name, check in CHECKS.items():
        try:
            found[name] = list(check(cloud))
        except (DBAPIError, MagnetarError) as error:
            reason: Any = error.message if isinstance(error, MagnetarError) else error.orig
            found[name] = [UpgradeFinding(FAILURE, f"This could not be checked: {str(reason).strip()}")]
    return found
