# SPDX-License-Identifier: GPL-3.0-or-later
"""The control plane's subcommands of ``magnetar``: serve, api, conductor, audit, db, upgrade, cell, config, policy,
host, balance, backup, incidents, machine-type, image-property."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_core.daemon.report import start_process_report
from magnetar_core.errors import InvalidField, MagnetarError

from . import (
    adoption_commands,
    backup_commands,
    balance_commands,
    data_commands,
    db_backup_commands,
    fence_commands,
    hardware_commands,
    host_commands,
    incident_commands,
    policy_command,
    room_commands,
    upgrade_commands,
)
from . import settings_file as configuration
from .command_parts import open_parts
from .settings_file import url_without_secrets

if TYPE_CHECKING:
    from magnetar_control.store.engine.database import Database
    from magnetar_control.store.store import Store

    from .settings import Settings

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - it has no other name
Command = Callable[[argparse.Namespace], int]
LOCAL_AGENT = Path("/run/magnetar/agent.sock")


def subcommands(commands: Commands) -> None:
    """Add the subcommands of the control plane to the parser of a command line. The agent's command line has these
    subcommands too. *commands*: the subparsers of the parser."""
    serving = [
        _add_command(commands, "serve", run_serve,
                     "Run API, conductor and embedded services in one process, for the hosts of the "
                     "settings, or for this machine.",
                     "magnetar serve\n  magnetar serve --config /etc/magnetar/control.yml",
                     with_api=True, with_conductor=True),
        _add_command(commands, "api", run_serve, "Run the API with the embedded services.",
                     "magnetar api\n  magnetar api --workers 2", with_api=True, with_conductor=False)]
    for command in serving:
        command.add_argument("--workers", type=int, metavar="N",
                             help="API processes that share the port (default: the setting api_workers)")
    _add_command(commands, "conductor", run_serve, "Run the conductor of a cell.", with_api=False, with_conductor=True,
                 workers=1)
    _add_command(commands, "config", run_config, "Check the settings, and show them.")
    look = _add_command(commands, "audit", run_audit,
                        "Compare databases, services and hosts, and report what does not match. Changes nothing. "
                        "Status 1 for any finding, or if a check was not possible.",
                        "magnetar audit\n  magnetar audit --json --config /etc/magnetar-control/conductor.yml")
    look.add_argument("--json", action="store_true", help="findings as a JSON list of {kind, id, place, text}")
    _add_database_commands(commands)
    _add_cell_commands(commands)
    host = _add_group(commands, "host", "Look after the hosts of the cloud.")
    host_commands.add_host_commands(_add_command, host)
    fence_commands.add_fence_commands(_add_command, host)
    room_commands.add_room_command(_add_command, host)
    adoption_commands.add_adoption_command(_add_command, host)
    balance_commands.add_balance_command(_add_command, commands)
    incident_commands.add_incident_commands(_add_command, partial(_add_group, commands))
    policy_command.add_policy_commands(_add_command, partial(_add_group, commands))
    hardware_commands.add_hardware_commands(_add_command, partial(_add_group, commands))
    backup_commands.add_backup_commands(_add_command, partial(_add_group, commands))


def _add_database_commands(commands: Commands) -> None:
    """Add the subcommands of ``magnetar db`` and ``magnetar upgrade`` to *commands*."""
    db = _add_group(commands, "db", "Create, upgrade, back up and restore the databases, and remove old rows.")
    upgrade = _add_command(db, "upgrade", run_db_upgrade, "Create or upgrade the tables of all databases.",
                           "magnetar db upgrade\n  magnetar db upgrade --check")
    upgrade.add_argument("--check", action="store_true", help="only report what would be done. Status 0: nothing; 1: a "
                         "database cannot be used; 2: there is something to do")
    old = _add_command(db, "purge", run_db_purge,
                       "Remove deleted servers for good, with their actions, events and migrations, and incidents and "
                       "fencing requests that have ended.",
                       "magnetar db purge --before 2026-08-01\n  magnetar db purge --before 2026-08-01 "
                       "--archive /srv/archive")
    old.add_argument("--before", metavar="TIME", help="what was deleted or ended before this day or time (ISO 8601, "
                     "UTC); by default, before the number of days of the setting purge_deleted_after")
    old.add_argument("--archive", type=Path, metavar="FOLDER", help="first append the removed rows to files there, "
                     "one JSON object per line")
    old.add_argument("--dry-run", action="store_true", help="only report the numbers")
    data_commands.add_data_command(_add_command, db)
    db_backup_commands.add_db_backup_commands(_add_command, db)
    upgrade_commands.add_upgrade_commands(_add_command, partial(_add_group, commands), db)


def _add_cell_commands(commands: Commands) -> None:
    """Add the subcommands of ``magnetar cell`` to *commands*."""
    cell = _add_group(commands, "cell", "List, create, disable and remove cells.")
    _add_command(cell, "list", run_cell_list, "List the cells.", "magnetar cell list")
    create = _add_command(cell, "create", run_cell_create, "Add a cell, and create its tables.",
                          "magnetar cell create cell2 --database-url postgresql+psycopg://magnetar@db2/cell2")
    create.add_argument("--database-url", help="URL of the cell's database; - reads it from the input, so that no "
                        "list of processes shows its password; by default, the setting")
    create.add_argument("name", nargs="?", help="name of the cell")
    for name, change, text in (("disable", lambda store, name: store.set_cell(name, disabled=True),
                                "Send no new servers to a cell; its servers stay in lists and quotas."),
                               ("enable", lambda store, name: store.set_cell(name, disabled=False),
                                "Use a cell again."),
                               ("delete", lambda store, name: store.remove_cell(name),
                                "Forget a cell that has no hosts and no servers.")):
        _add_command(cell, name, run_cell_change, text, f"magnetar cell {name} cell2", change=change).add_argument(
            "name", help="name of the cell")


def _add_command(commands: Commands, name: str, run: Command, text: str, examples: str = "",
                 **defaults: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text,
                                 epilog=f"Examples:\n  {examples or f'magnetar {name}'}",
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, metavar="FILE",
                        help=f"settings (default: {configuration.FILE} when it exists)")
    parser.set_defaults(run=run, **defaults)
    return parser


def _add_group(commands: Commands, name: str, text: str) -> Commands:
    """Return the subparsers of the command group *name*, such as ``magnetar cell``. If the command line does not have
    the group yet, add the group to *commands*, with the help *text*."""
    if name in commands.choices:
        return next(action for action in commands.choices[name]._actions  # noqa: SLF001 - argparse has no public list
                    if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001
    return commands.add_parser(name, help=text, description=text).add_subparsers(
        dest="action", metavar="ACTION", required=True)


def configure_logging(level: str) -> None:
    """Configure logging: write JSON lines of *level* and above to stderr. The lines contain no source file and line
    number, because finding these takes time."""
    from magnetar_control.web.json_log import BatchedLog, JsonLog

    handler = BatchedLog()
    handler.setFormatter(JsonLog())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging._srcfile = None  # noqa: SLF001 - as the module's documentation has it
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.getLogger("alembic").setLevel(logging.WARNING)


def run_serve(options: argparse.Namespace) -> int:
    """Run ``magnetar serve``, ``magnetar api`` or ``magnetar conductor`` until the process gets SIGTERM. Return the
    exit status."""
    start_process_report(options.command)  # before any thread
    from . import serve as parts
    from .reloading import SettingsReloader

    configure_logging("info")  # for deprecated names of settings
    settings = _serving_settings(options)
    logging.getLogger().setLevel(settings.log_level.upper())
    reloader = SettingsReloader(settings, partial(_serving_settings, options))
    if options.with_api and settings.api_workers > 1:
        from magnetar_control.workers.supervisor import serve_with_workers

        serve_with_workers(settings, settings.api_workers, options.with_conductor, reloader)
        return _end_process(options.with_conductor)
    over = threading.Event()
    signal.signal(signal.SIGHUP, lambda *_given: reloader.ask())
    # uvicorn sends itself the signal again when it has ended; the code after it must still run.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_given: over.set())
    with parts.running_server(settings, options.with_api, options.with_conductor, follow=reloader.follow) as server:
        reloader.start()
        if server is None:
            over.wait()
        elif not over.is_set():
            parts.serve_requests(settings, server)
    return _end_process(options.with_conductor)


def _serving_settings(options: argparse.Namespace) -> Settings:
    """Return the settings for a service with the command line *options*. For ``magnetar serve`` without hosts in the
    settings, add this machine as a host if an agent runs on it. Raises ``InvalidSettings``."""
    settings = configuration.load_settings(options.config)
    if options.workers is not None:
        settings = configuration.replace_settings(settings, api_workers=options.workers)
    if options.with_api and options.with_conductor and not settings.hosts and LOCAL_AGENT.exists():
        import socket

        settings = configuration.replace_settings(settings, hosts={socket.gethostname(): f"unix:{LOCAL_AGENT}"})
    return settings


def _end_process(with_conductor: bool) -> int:
    """Return the exit status after a service has stopped. *with_conductor*: the service has run a conductor; if threads
    of the conductor still run, exit the process immediately. The actions of these threads stay in the queue, and
    another conductor continues them."""
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()
               and not thread.daemon]
    if with_conductor and threads:
        logging.shutdown()
        os._exit(0)
    return 0


def run_config(options: argparse.Namespace) -> int:
    """Run ``magnetar config``: check the settings, and print them without secrets."""
    from magnetar_control.conductor.worker import vendordata_auth
    from magnetar_control.conductor.worker.vendordata import vendordata_targets
    from magnetar_control.fencing.fence_devices import fence_devices, read_device_secrets

    from .reloading import check_service_settings

    settings = configuration.load_settings(options.config)
    check_service_settings(settings)
    for device in fence_devices(settings).values():
        read_device_secrets(device)
    list(vendordata_targets(settings))
    vendordata_auth.checked_auth_options(settings.vendordata_dynamic_auth)
    for line in configuration.printable_settings(settings):
        print(line)
    return 0


def run_audit(options: argparse.Namespace) -> int:
    """Run ``magnetar audit``: compare databases, services and hosts, and print what does not match. Return the exit
    status: 1 if there are findings or a host or cell does not answer."""
    from magnetar_control.conductor.periodic.audit import run_with_state

    with open_parts(options) as parts:
        findings, report = run_with_state(parts.store, parts.agents, parts.services())
        names = {cell.id: cell.name for cell in parts.store.cells()}
    silent = [*(f"host {name}" for name in sorted(report.silent_hosts)),
              *(f"cell {names[id]}" for id in report.silent_cells)]
    if options.json:
        print(json.dumps([finding.as_document() for finding in findings], indent=1))
    else:
        for finding in findings:
            print(f"{finding.kind}\t{finding.text}")
    for name in silent:
        print(f"magnetar: {name} does not answer, and was not looked at.", file=sys.stderr)
    if not findings and not silent:
        print(f"Nothing is amiss: {report.server_count} servers on {report.host_count} hosts.", file=sys.stderr)
    return 1 if findings or silent else 0


def run_db_upgrade(options: argparse.Namespace) -> int:
    """Run ``magnetar db upgrade``: create or upgrade the tables of all databases, and print the result for each. Return
    the exit status: 1 if the database of a cell does not answer."""
    with open_parts(options) as parts:
        if options.check:
            return upgrade_commands.check_db_upgrade(parts)
        for name, changed in parts.upgrade():
            print(f"{name}: {'upgraded' if changed else 'as this version wants it'}")
    for cell, _error in parts.late:
        print(f"magnetar: the database of {cell.name} does not answer ({url_without_secrets(cell.database_url)}). "
              "Its conductor "
              "upgrades it when it starts; or do this again.", file=sys.stderr)
    return 1 if parts.late else 0


def run_db_purge(options: argparse.Namespace) -> int:
    """Run ``magnetar db purge``: remove old rows of deleted servers, ended incidents and ended fencing requests. Return
    the exit status: 1 if the database of a cell does not answer."""
    from sqlalchemy.exc import DBAPIError

    from magnetar_control.store.engine.database import parse_moment, utc_now

    with open_parts(options) as parts:
        days, away = parts.settings.purge_deleted_after, 0
        try:
            cutoff = parse_moment(options.before) if options.before else utc_now(-86400 * days)
        except ValueError:
            raise InvalidField("--before", "must be a day or time such as 2026-08-01", options.before) from None
        if not options.before and not days:
            raise InvalidField("--before", "is needed: the setting purge_deleted_after is 0, which keeps all")
        if options.archive and not options.dry_run:
            options.archive.mkdir(mode=0o700, parents=True, exist_ok=True)
        done = "are there" if options.dry_run else "removed"
        for cell, database in parts.store.databases():
            try:
                counts = _purge_cell(parts.store, database, cutoff, options)
            except DBAPIError:
                away += 1
                print(f"magnetar: the database of {cell.name} does not answer "
                      f"({url_without_secrets(cell.database_url)}). Do this "
                      "again when it does.", file=sys.stderr)
            else:
                for text, count in counts.items():
                    print(f"{cell.name}: {count} {text} before {cutoff[:19]} {done}")
        requests = _purge_requests(parts.store.api, cutoff, options)
        print(f"{requests} fencing requests ended before {cutoff[:19]} {done}")
    return 1 if away else 0


def _purge_cell(store: Store, database: Database, cutoff: str, options: argparse.Namespace) -> dict[str, int]:
    """Remove rows from before *cutoff* from a cell's *database*, or only count them in a dry run. Return the numbers of
    rows, by a description such as "servers deleted"."""
    from magnetar_control.store.hosts import old_incidents
    from magnetar_control.store.servers import deleted_servers

    if options.dry_run:
        return {"servers deleted": deleted_servers.count_purgeable_servers(database, cutoff),
                "incidents ended": old_incidents.count_purgeable_incidents(database, cutoff)}
    return {"servers deleted": deleted_servers.purge_deleted_servers(store, database, cutoff, options.archive),
            "incidents ended": old_incidents.purge_incidents(database, cutoff, options.archive)}


def _purge_requests(api: Database, cutoff: str, options: argparse.Namespace) -> int:
    """Remove fencing requests from before *cutoff* from the API database *api*, or only count them in a dry run. Return
    their number."""
    from magnetar_control.store.hosts import old_incidents

    if options.dry_run:
        return old_incidents.count_purgeable_requests(api, cutoff)
    return old_incidents.purge_fencing_requests(api, cutoff, options.archive)


def run_cell_list(options: argparse.Namespace) -> int:
    """Run ``magnetar cell list``: print the cells. Return the exit status."""
    with open_parts(options) as parts:
        for cell in parts.store.cells(fresh=True):
            state = "disabled" if cell.disabled else "enabled"
            print(f"{cell.name}\t{cell.id}\t{state}\t{url_without_secrets(cell.database_url)}")
    return 0


def run_cell_create(options: argparse.Namespace) -> int:
    """Run ``magnetar cell create``: add a cell or change its database URL, create its tables, and print whether the
    cell is new, changed or unchanged. Return the exit status."""
    from magnetar_control.store.engine import schema
    from magnetar_control.store.engine.tables import CELL
    from magnetar_control.store.store import RESTART

    with open_parts(options) as parts:
        name, url = options.name or parts.settings.cell, options.database_url or parts.settings.url("cell")
        if url == "-":
            url = sys.stdin.readline().strip()
        previous_urls = {cell.name: cell.database_url for cell in parts.store.cells(fresh=True)}
        cell = parts.store.add_cell(name, url)
        changed = schema.upgrade_schema(parts.store.cell(cell.id), CELL) or previous_urls.get(name) != url
    print(f"{cell.name}\t{cell.id}\t{'as it was' if not changed else 'changed' if name in previous_urls else 'made'}")
    if previous_urls.get(name, url) != url:
        print(f"magnetar: cell {name} has another database; what is in the one from before is not carried over: "
              f"{RESTART}.", file=sys.stderr)
    return 0


def run_cell_change(options: argparse.Namespace) -> int:
    """Run ``magnetar cell disable``, ``enable`` or ``delete``. Return the exit status."""
    with open_parts(options) as parts:
        options.change(parts.store, options.name)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with *arguments*, and return the exit status. *arguments*: ``None``: the arguments of the
    process. An expected error is printed to stderr as one sentence."""
    from sqlalchemy.exc import DBAPIError

    top = argparse.ArgumentParser(prog="magnetar", description="Runs a cloud of KVM hosts.")
    subcommands(top.add_subparsers(dest="command", metavar="COMMAND", required=True))
    options = top.parse_args(arguments)
    try:
        return int(options.run(options))
    except (MagnetarError, InvalidField) as error:
        why = error.message
    except DBAPIError as error:
        why = (f"the database does not answer, or not as it should: {str(error.orig).strip()}. See to it, and to the "
               "URLs in the settings (`magnetar config`).")
    except PermissionError as error:
        why = f"{error.filename}: {error.strerror}. Run it as the user of the service, or as root."
    except KeyboardInterrupt:
        return 130
    print(f"magnetar: {why}", file=sys.stderr)
    return 1
