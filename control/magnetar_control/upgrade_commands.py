# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar upgrade`` and ``magnetar db version``: whether a cloud is ready for this release, and how far its upgrade
is."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import InvalidSettings, abbreviate_names

from .command_parts import open_parts, print_table
from .settings_file import find_former_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .serve import Parts
    from .store.engine.schema_check import SchemaState
    from .upgrade_checks import UpgradeFinding
    from .upgrade_status import UpgradeStatus
#: Exit statuses of ``magnetar db upgrade --check``.
CURRENT, REFUSED, UPGRADE_NEEDED = 0, 1, 2
#: The finding that an operator still holds the last upgrade.
HELD = "hold_upgrade is true: features of this release are not used. Remove the setting, and migrate the data, " \
       "before the next upgrade."


def add_upgrade_commands(command: Any, group: Any, database_actions: Any) -> None:
    """Add the commands ``magnetar upgrade …`` and ``magnetar db version`` to the command line. *command*: the function
    of ``cli`` that adds a command. *group*: the function of ``cli`` that adds a group of commands. *database_actions*:
    the subparsers of the group ``db``."""
    command(database_actions, "version", run_db_version,
            "Print the version of the tables of each database, and the one that this release needs.",
            "magnetar db version")
    upgrade = group("upgrade", "Prepare and follow an upgrade of the cloud.")
    check = command(upgrade, "check", run_upgrade_check,
                    "Check whether the cloud is ready for an upgrade to this release. Changes nothing. Status 0: it "
                    "is; 1: with a warning; 2: with a failure, so an upgrade would not succeed; 255: an unexpected "
                    "error.",
                    "magnetar upgrade check\n  magnetar upgrade check --backup /srv/backups/cloud.tar --json")
    check.add_argument("--backup", type=Path, metavar="FILE", help="a file of the newest backup, which must not be "
                       "empty, nor older than a day")
    check.add_argument("--json", action="store_true", help="as a JSON list of {check, result, details}")
    status = command(upgrade, "status", run_upgrade_status,
                     "List all processes of the cloud with their releases, and what waits for which processes. Status "
                     "0: nothing waits; 1: something does.",
                     "magnetar upgrade status\n  magnetar upgrade status --json")
    status.add_argument("--json", action="store_true", help="as a JSON object of {complete, newest, processes, "
                        "capabilities, data_migrations, silent_cells}")


def run_db_version(options: argparse.Namespace) -> int:
    """Run ``magnetar db version``. Return the exit status: 1 if a database does not answer, or cannot be used."""
    with open_parts(options) as parts:
        states = list(_database_states(parts))
    for name, state, reason in states:
        version = (state and state.version) or "-"
        print(f"{name}\t{version}\t{_describe_state(state, reason)}")
    return 1 if any(reason for _name, _state, reason in states) else 0


def check_db_upgrade(parts: Parts) -> int:
    """Print what ``magnetar db upgrade`` would do. Return the exit status: ``CURRENT``, ``UPGRADE_NEEDED``, or
    ``REFUSED`` if a database does not answer or cannot be upgraded."""
    status = CURRENT
    for name, state, reason in _database_states(parts):
        print(f"{name}: {_describe_state(state, '')}" if not reason else f"{name}: {reason}",
              file=sys.stderr if reason else sys.stdout)
        if reason:
            status = REFUSED
        elif state is not None and (state.is_empty or state.is_older) and status != REFUSED:
            status = UPGRADE_NEEDED
    return status


def _database_states(parts: Parts) -> Iterator[tuple[str, SchemaState | None, str]]:
    """Yield (name of the database, state of its tables, reason) for each database. The state is ``None`` if the
    database does not answer. The reason says why this release cannot use the database; empty if it can."""
    from .upgrade_checks import CheckedCloud, read_schema_states

    return read_schema_states(CheckedCloud(parts.settings, parts.store))


def require_current_tables(parts: Parts) -> None:
    """Raise ``SchemaMismatch`` if the tables of a database must be created or upgraded first, or cannot be used.
    Databases that do not answer are ignored."""
    from .store.engine.schema_check import SchemaMismatch, schema_details

    for name, state, reason in _database_states(parts):
        if state is not None and (reason or state.is_empty or state.is_older):
            raise SchemaMismatch(reason or f"The tables of {name} have version {state.version}, and this release needs "
                                 f"{state.newest}. Run `magnetar db upgrade` first.", **schema_details(state))


def _describe_state(state: SchemaState | None, reason: str) -> str:
    """Return a short text about the state of a database's tables. *reason*: why the database cannot be used; if not
    empty, it is returned unchanged."""
    if state is None or reason:
        return reason
    if state.is_empty:
        return "no tables yet"
    if state.is_older:
        return f"to be upgraded from version {state.version} to {state.newest}"
    return f"upgraded by a newer release; this one needs {state.newest}" if state.is_newer else \
        "as this version wants it"


def run_upgrade_check(options: argparse.Namespace) -> int:
    """Run ``magnetar upgrade check`` and return its exit status: 0 without findings, 1 for warnings, 2 for failures,
    255 for an unexpected error."""
    from .upgrade_checks import FAILURE, STATUSES, WARNING, CheckedCloud, UpgradeFinding, run_upgrade_checks

    try:
        with open_parts(options) as parts:
            warnings = [UpgradeFinding(WARNING, f"{text}.") for text in find_former_names(options.config)]
            if parts.settings.hold_upgrade:
                warnings.append(UpgradeFinding(WARNING, HELD))
            cloud = CheckedCloud(parts.settings, parts.store, options.backup)
            found = {"Settings": warnings, **run_upgrade_checks(cloud)}
    except InvalidSettings as error:
        found = {"Settings": [UpgradeFinding(FAILURE, error.message)]}
    except Exception as error:  # noqa: BLE001 - as nova-status does
        print(f"magnetar: the checks were not completed: {error}", file=sys.stderr)
        return 255
    if options.json:
        print(json.dumps([{"check": name, "result": _worst_level(findings),
                           "details": [finding.text for finding in findings]} for name, findings in found.items()],
                         indent=1))
    else:
        _print_findings(found)
    return max(STATUSES.get(finding.level, 0) for findings in found.values() for finding in findings) if any(
        found.values()) else 0


def _worst_level(findings: Sequence[UpgradeFinding]) -> str:
    """Return the worst level of a check's findings; ``Success`` if there are none."""
    from .upgrade_checks import STATUSES

    return max((finding.level for finding in findings), key=STATUSES.__getitem__, default="Success")


def _print_findings(found: Mapping[str, Sequence[UpgradeFinding]]) -> None:
    """Print the result of each check, followed by its findings. *found*: the findings by name of the check."""
    width = max(map(len, found))
    for name, findings in found.items():
        print(f"{name:<{width}}  {_worst_level(findings)}")
        for finding in findings:
            print(f"  {finding.level}: {finding.text}")


def run_upgrade_status(options: argparse.Namespace) -> int:
    """Run ``magnetar upgrade status`` and return its exit status: 0 if the upgrade is complete, otherwise 1."""
    from .upgrade_status import read_upgrade_status

    with open_parts(options) as parts:
        require_current_tables(parts)
        status = read_upgrade_status(parts.store, parts.settings.host_down_after)
    if options.json:
        print(json.dumps(status.as_document(), indent=1))
    else:
        _print_status(status)
    return 0 if status.complete else 1


def _print_status(status: UpgradeStatus) -> None:
    """Print all processes as a table, and then the capabilities (new features) that the cloud does not use yet, with
    the processes that lack them."""
    print_table(["process", "name", "cell", "release", "seen", "state", "lacks"], [
        [process.kind, process.name, process.cell or "-", process.release, (process.seen_at or "-")[:19],
         "up" if process.up else "down", ", ".join(one.lacks) or "-"]
        for one in status.processes for process in (one.process,)])
    if status.processes:
        print()
    for capability in status.capabilities:
        if capability.waits_for:
            names = [process.title() for process in capability.waits_for]
            print(f"{capability.name} waits for: {abbreviate_names(names)}")
    for one in status.processes:
        if one.process.refusal:
            print(f"host {one.process.name} is refused: {one.process.refusal}")
    for result in status.data:
        print(f"data migration {result.migration.name} in {result.database}: "
              f"{result.problem or f'{result.found} rows remain (magnetar db migrate-data)'}")
    for name in status.silent_cells:
        print(f"magnetar: the database of cell {name} does not answer, or its tables are still to be upgraded, so its "
              "conductors are not known (magnetar db version).", file=sys.stderr)
    if status.complete:
        print(f"Nothing waits: all processes know what release {status.newest} knows.")
