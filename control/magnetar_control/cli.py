# SPDX-License-Identifier: GPL-3.0-or-later
"""The control plane's subcommands of ``magnetar``: serve, api, conductor, audit, db, cell, config, policy,
machine-type, image-property."""

from __future__ import annotations

import argparse
import contextlib
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

from magnetar_core.errors import InvalidField, MagnetarError

from . import hardware_commands, policy_command
from . import settings_file as configuration

if TYPE_CHECKING:
    from .serve import Parts

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - it has no other name
Command = Callable[[argparse.Namespace], int]
LOCAL_AGENT = Path("/run/magnetar/agent.sock")
#: Words in names of a database URL's parameters whose values are not printed, such as ``password``.
SECRETS = ("pass", "secret", "token", "key")


def subcommands(commands: Commands) -> None:
    """Add the control plane's subcommands to a command line; the agent's has them too."""
    _command(commands, "serve", serve, "Run API, conductor and embedded services in one process, for the hosts of the "
             "settings, or for this machine.", "magnetar serve\n  magnetar serve --config /etc/magnetar/control.yml",
             with_api=True, with_conductor=True)
    _command(commands, "api", serve, "Run the API with the embedded services.", with_api=True, with_conductor=False)
    _command(commands, "conductor", serve, "Run the conductor of a cell.", with_api=False, with_conductor=True)
    _command(commands, "config", config, "Check the settings, and show them.")
    look = _command(commands, "audit", audit, "Compare databases, services and hosts, and tell what does not fit. "
                    "Changes nothing. Status 1 when something was found, or could not be looked at.",
                    "magnetar audit\n  magnetar audit --json --config /etc/magnetar-control/conductor.yml")
    look.add_argument("--json", action="store_true", help="findings as a JSON list of {kind, id, place, text}")
    db = _group(commands, "db", "Make the databases' tables be as this version wants them, and remove what is old.")
    _command(db, "upgrade", upgrade, "Make or upgrade the tables of all databases.", "magnetar db upgrade")
    old = _command(db, "purge", purge, "Remove deleted servers for good, with their actions, events and migrations.",
                   "magnetar db purge --before 2026-08-01\n  magnetar db purge --before 2026-08-01 "
                   "--archive /srv/archive")
    old.add_argument("--before", metavar="TIME", help="those deleted before this day or time (ISO 8601, UTC); when "
                     "left out, before as many days as the setting purge_deleted_after says")
    old.add_argument("--archive", type=Path, metavar="FOLDER", help="first add what is removed to files there, a JSON "
                     "object a line")
    old.add_argument("--dry-run", action="store_true", help="only say how many there are")
    cell = _group(commands, "cell", "List, make, disable and remove cells.")
    _command(cell, "list", list_cells, "List the cells.", "magnetar cell list")
    create = _command(cell, "create", create_cell, "List a cell, and make its tables.",
                      "magnetar cell create cell2 --database-url postgresql+psycopg://magnetar@db2/cell2")
    create.add_argument("--database-url", help="URL of the cell's database; - reads it from the input, so that its "
                        "password is in no list of processes; the setting when left out")
    create.add_argument("name", nargs="?", help="name of the cell")
    for name, change, text in (("disable", lambda store, name: store.set_cell(name, disabled=True),
                                "Give no new servers to a cell; its servers stay in lists and quotas."),
                               ("enable", lambda store, name: store.set_cell(name, disabled=False),
                                "Use a cell again."),
                               ("delete", lambda store, name: store.remove_cell(name),
                                "Forget a cell that has no hosts and no servers.")):
        _command(cell, name, change_cell, text, f"magnetar cell {name} cell2", change=change).add_argument(
            "name", help="name of the cell")
    policy_command.arguments(_command, partial(_group, commands))
    hardware_commands.arguments(_command, partial(_group, commands))


def _command(commands: Commands, name: str, run: Command, text: str, examples: str = "",
             **defaults: Any) -> argparse.ArgumentParser:
    found = commands.add_parser(name, help=text, description=text,
                                epilog=f"Examples:\n  {examples or f'magnetar {name}'}",
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--config", type=Path, metavar="FILE",
                       help=f"settings (default: {configuration.FILE} when it exists)")
    found.set_defaults(run=run, **defaults)
    return found


def _group(commands: Commands, name: str, text: str) -> Commands:
    return commands.add_parser(name, help=text, description=text).add_subparsers(
        dest="action", metavar="ACTION", required=True)


def configure(level: str) -> None:
    """Logs are JSON lines on stderr. They do not say which line of the program it was, so nobody looks for it."""
    from magnetar_control.web.asgi import JsonLog

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLog())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging._srcfile = None  # noqa: SLF001 - as the module's documentation has it
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.getLogger("alembic").setLevel(logging.WARNING)


def serve(given: argparse.Namespace) -> int:
    """``magnetar serve``, ``magnetar api`` and ``magnetar conductor``."""
    from . import serve as parts

    settings = configuration.load(given.config)
    if given.with_api and given.with_conductor and not settings.hosts and LOCAL_AGENT.exists():
        import dataclasses
        import socket

        settings = dataclasses.replace(settings, hosts={socket.gethostname(): f"unix:{LOCAL_AGENT}"})
    configure(settings.log_level)
    over = threading.Event()
    # uvicorn sends itself the signal again when it has ended; what comes after it here must still be done.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_given: over.set())
    with parts.running(settings, given.with_api, given.with_conductor) as server:
        if server is None:
            over.wait()
        elif not over.is_set():
            parts.listen(settings, server)
    others = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    if given.with_conductor and others:
        # Work that took longer than it may was given back, and another conductor has it: it must not go on here.
        logging.shutdown()
        os._exit(0)
    return 0


def config(given: argparse.Namespace) -> int:
    """``magnetar config``."""
    from magnetar_control.conductor.worker import vendordata_auth
    from magnetar_control.conductor.worker.vendordata import targets_of
    from magnetar_control.notifications.receivers import receivers_of
    from magnetar_control.scheduler.rules import rules_of

    settings = configuration.load(given.config)
    rules_of(settings)
    receivers_of(settings)
    list(targets_of(settings))
    vendordata_auth.checked(settings.vendordata_dynamic_auth)
    for row in configuration.describe():
        value = getattr(settings, row["name"])
        print(f"{row['name']}: {_printed(row['name'], value)}")
    return 0


def _printed(name: str, value: Any) -> Any:
    """A setting's value without secrets. Of a webhook's URL that is all behind the host."""
    if name == "notification_urls":
        return {receiver: _address(str(url)) for receiver, url in value.items()}
    if name == "vendordata_dynamic_targets":
        return ["@".join((target, _address(url))) for target, _at, url in (str(one).partition("@") for one in value)]
    return _hidden(str(value)) if name.endswith("url") and value else value


def _address(url: str) -> str:
    """Scheme, host and port of a URL, and whether there is more."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{'/...' if parts.path.strip('/') or parts.query or parts.fragment else parts.path}"


def _hidden(url: str) -> str:
    """A URL without its password, and without the secrets of its query; of one that cannot be read, what is behind the
    last @."""
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    try:
        found: URL | None = make_url(url)
    except (ArgumentError, ValueError):
        found = None
    if found is None or "@" in (found.host or ""):
        return f"...@{url.rpartition('@')[2]}" if "@" in url else url
    secret = {name: "..." for name in found.query if any(word in name.lower() for word in SECRETS)}
    return found.update_query_dict(secret).render_as_string(hide_password=True)


def _parts(given: argparse.Namespace) -> contextlib.closing[Parts]:
    from .serve import Parts

    return contextlib.closing(Parts(configuration.load(given.config)))


def audit(given: argparse.Namespace) -> int:
    """``magnetar audit``."""
    from dataclasses import asdict

    from magnetar_control.conductor.periodic.audit import run_with_state

    with _parts(given) as parts:
        found, state = run_with_state(parts.store, parts.agents, parts.services())
        names = {cell.id: cell.name for cell in parts.store.cells()}
    silent = [*(f"host {host.name}" for host in state.hosts.values() if host.name not in state.there),
              *(f"cell {names[id]}" for id in state.silent)]
    if given.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    else:
        for one in found:
            print(f"{one.kind}\t{one.text}")
    for name in silent:
        print(f"magnetar: {name} does not answer, and was not looked at.", file=sys.stderr)
    if not found and not silent:
        print(f"Nothing is amiss: {len(state.servers)} servers on {len(state.there)} hosts.", file=sys.stderr)
    return 1 if found or silent else 0


def upgrade(given: argparse.Namespace) -> int:
    """``magnetar db upgrade``. Says what it did; fails when a cell's database is away."""
    with _parts(given) as parts:
        for name, changed in parts.upgrade():
            print(f"{name}: {'upgraded' if changed else 'as this version wants it'}")
    for cell, _error in parts.late:
        print(f"magnetar: the database of {cell.name} does not answer ({_hidden(cell.database_url)}). Its conductor "
              "upgrades it when it starts; or do this again.", file=sys.stderr)
    return 1 if parts.late else 0


def purge(given: argparse.Namespace) -> int:
    """``magnetar db purge``. Fails when a cell's database is away."""
    from sqlalchemy.exc import DBAPIError

    from magnetar_control.store.engine.database import moment, now
    from magnetar_control.store.servers import purge as old

    with _parts(given) as parts:
        days, away = parts.settings.purge_deleted_after, 0
        try:
            before = moment(given.before) if given.before else now(-86400 * days)
        except ValueError:
            raise InvalidField("--before", "must be a day or time such as 2026-08-01", given.before) from None
        if not given.before and not days:
            raise InvalidField("--before", "is needed: the setting purge_deleted_after is 0, which keeps all")
        if given.archive and not given.dry_run:
            given.archive.mkdir(mode=0o700, parents=True, exist_ok=True)
        for cell, database in parts.store.databases():
            try:
                found = old.count(database, before) if given.dry_run else old.purge(
                    parts.store, database, before, given.archive)
            except DBAPIError:
                away += 1
                print(f"magnetar: the database of {cell.name} does not answer ({_hidden(cell.database_url)}). Do this "
                      "again when it does.", file=sys.stderr)
            else:
                done = "are there" if given.dry_run else "removed"
                print(f"{cell.name}: {found} servers deleted before {before[:19]} {done}")
    return 1 if away else 0


def list_cells(given: argparse.Namespace) -> int:
    """``magnetar cell list``."""
    with _parts(given) as parts:
        for cell in parts.store.cells(fresh=True):
            word = "disabled" if cell.disabled else "enabled"
            print(f"{cell.name}\t{cell.id}\t{word}\t{_hidden(cell.database_url)}")
    return 0


def create_cell(given: argparse.Namespace) -> int:
    """``magnetar cell create``. Says whether the cell was made, changed, or as it was."""
    from magnetar_control.store.engine import schema
    from magnetar_control.store.engine.tables import CELL
    from magnetar_control.store.store import RESTART

    with _parts(given) as parts:
        name, url = given.name or parts.settings.cell, given.database_url or parts.settings.url("cell")
        if url == "-":
            url = sys.stdin.readline().strip()
        before = {cell.name: cell.database_url for cell in parts.store.cells(fresh=True)}
        cell = parts.store.add_cell(name, url)
        changed = schema.upgrade(parts.store.cell(cell.id), CELL) or before.get(name) != url
    print(f"{cell.name}\t{cell.id}\t{'as it was' if not changed else 'changed' if name in before else 'made'}")
    if before.get(name, url) != url:
        print(f"magnetar: cell {name} has another database; what is in the one from before is not carried over: "
              f"{RESTART}.", file=sys.stderr)
    return 0


def change_cell(given: argparse.Namespace) -> int:
    """``magnetar cell disable``, ``enable`` and ``delete``."""
    with _parts(given) as parts:
        given.change(parts.store, given.name)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The subcommands. Failures are one sentence on stderr and status 1."""
    from sqlalchemy.exc import DBAPIError

    top = argparse.ArgumentParser(prog="magnetar", description="Runs a cloud of KVM hosts.")
    subcommands(top.add_subparsers(dest="command", metavar="COMMAND", required=True))
    given = top.parse_args(arguments)
    try:
        return int(given.run(given))
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
