# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar machine-type`` and ``magnetar image-property``: the hardware that servers' rows store from their images.
The exit statuses are nova-manage's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import Conflict, InvalidField, MagnetarError, NotFound

from .command_parts import open_parts

if TYPE_CHECKING:
    from magnetar_control.compute.servers.stored_hardware import ClientOf

    from .serve import Parts

_SERVER = "uuid of the server"
_STATUS = "Status {}. On a host its agent is asked, as by a conductor, with whose settings this runs."


def add_hardware_commands(command: Any, group: Any) -> None:
    """Add the command groups ``machine-type`` and ``image-property`` with their commands. *command*, *group*: the
    functions of ``cli`` that add a command and a command group."""
    every = group("machine-type", "Show and change the machine types of servers (nova-manage libvirt).")
    show = command(every, "show", show_machine, "Print the recorded machine type of a server. Status 2 for an "
                   "unknown server, 3 if none is recorded.",
                   "magnetar machine-type show 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    update = command(every, "update", update_machine, "Record a later version of the machine type of a stopped, "
                     "shelved or shelved_offloaded server; its host then changes it. " + _STATUS.format(
                         "2 for an unknown server, 3 if it is not off, 4 if this is not a later version of its "
                         "type, 5 if this is not a machine type"),
                     "magnetar machine-type update 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d pc-q35-8.2")
    unset = command(every, "list-unset", list_unset, "Print the uuids of servers without a recorded machine type, "
                    "which no host has created yet. Status 2 for an unknown cell, 3 if there are such servers.",
                    "magnetar machine-type list-unset\n  magnetar machine-type list-unset --cell cell2")
    every = group("image-property", "Show and change the stored image properties of servers (nova-manage "
                  "image_property).")
    look = command(every, "show", show_property, "Print a stored image property of a server. Status 2 for an unknown "
                   "server, 3 for an unknown property.",
                   "magnetar image-property show 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d hw_disk_bus")
    change = command(every, "set", set_property, "Change stored image properties of a stopped, shelved or "
                     "shelved_offloaded server; its host then applies them. Use it for a device that a later machine "
                     "type lacks. " + _STATUS.format(
                         "2 for an unknown server, 3 if it is not off, 4 for a property without meaning for hardware, "
                         "5 for an invalid value"),
                     "magnetar image-property set 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d --property hw_disk_bus=virtio "
                     "--property hw_cdrom_bus=sata")
    for parser in (show, update, look, change):
        parser.add_argument("server", help=_SERVER)
    update.add_argument("machine", metavar="TYPE", help="the machine type, such as pc-q35-8.2")
    update.add_argument("--force", action="store_true", help="replace any current type: also by an earlier version, "
                        "or q35 by pc. The guest's system may fail to start.")
    unset.add_argument("--cell", "--cell-uuid", "--cell_uuid", metavar="CELL", help="only servers of this cell: its "
                       "name or uuid")
    look.add_argument("name", metavar="PROPERTY", help="name of the property")
    change.add_argument("--property", action="append", default=[], required=True, dest="properties",
                        metavar="NAME=VALUE", help="may be repeated")


def _client_of(parts: Parts) -> ClientOf:
    def client_of(name: str) -> Any:
        host = parts.hosts.get(name)
        if host is None:
            raise NotFound(f"There is no host {name} any more.")
        return parts.agents.client(host.endpoint)
    return client_of


def _command_of(do: Callable[[argparse.Namespace, Parts], int], unknown_status: int, invalid_status: int) -> Callable[
        [argparse.Namespace], int]:
    """Return a command function that opens the databases, calls *do*, prints errors, and returns the exit status.
    *unknown_status*: the exit status for an unknown name. *invalid_status*: the exit status for an invalid request."""
    def run(options: argparse.Namespace) -> int:
        from magnetar_control.compute.servers.stored_hardware import NotOff, UnknownName

        statuses = ((NotOff, 3), (NotFound, 2), (UnknownName, unknown_status), (InvalidField, invalid_status),
                    (Conflict, invalid_status))
        with open_parts(options) as parts:
            try:
                return do(options, parts)
            except (MagnetarError, InvalidField) as error:
                print(f"magnetar: {error.message}", file=sys.stderr)
                return next((status for kind, status in statuses if isinstance(error, kind)), 1)
    return run


def _show_machine(options: argparse.Namespace, parts: Parts) -> int:
    from magnetar_control.compute.servers import stored_hardware

    machine_type = stored_hardware.stored_machine_type(stored_hardware.find_stored_server(parts.store,
                                                                                          options.server)[1])
    return _print_or_explain(
        machine_type, f"No machine type is recorded of server {options.server}: its host chooses one when it makes "
                         "it.")


def _print_or_explain(text: str | None, nothing: str) -> int:
    print(text or f"magnetar: {nothing}", file=sys.stdout if text else sys.stderr)
    return 0 if text else 3


def _update_machine(options: argparse.Namespace, parts: Parts) -> int:
    from magnetar_control.compute.servers import stored_hardware

    previous, recorded = stored_hardware.update_machine_type(parts.store, _client_of(parts), options.server,
                                                             options.machine, options.force)
    print(f"{options.server}\t{previous or 'none'}\t{recorded}")
    return 0


def _list_unset(options: argparse.Namespace, parts: Parts) -> int:
    from magnetar_control.compute.servers import stored_hardware

    cells = [(cell, database) for cell, database in parts.store.databases()
             if options.cell in (None, cell.name, cell.id)]
    if not cells:
        raise NotFound(f"There is no cell {options.cell!r}; `magnetar cell list` shows those that there are.")
    count = 0
    for id in stored_hardware.servers_without_machine_type([database for _cell, database in cells]):
        print(id)
        count += 1
    return 3 if count else 0


def _show_property(options: argparse.Namespace, parts: Parts) -> int:
    from magnetar_control.compute.servers import stored_hardware

    text = stored_hardware.stored_image_property(stored_hardware.find_stored_server(parts.store, options.server)[1],
                                                 options.name)
    return _print_or_explain(text, f"Server {options.server} keeps no image property {options.name}.")


def _set_property(options: argparse.Namespace, parts: Parts) -> int:
    from magnetar_control.compute.servers import stored_hardware

    properties = {}
    for assignment in options.properties:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InvalidField("--property", "must be NAME=VALUE", assignment)
        properties[name] = value
    changed = stored_hardware.set_image_properties(parts.store, _client_of(parts), options.server, properties)
    for name, value in sorted(properties.items()):
        print(f"{name}={value}\t{'changed' if name in changed else 'as it was'}")
    return 0


#: Exit statuses of nova-manage: for unknown names, and for invalid requests.
show_machine, update_machine = _command_of(_show_machine, 1, 1), _command_of(_update_machine, 5, 4)
list_unset, show_property = _command_of(_list_unset, 1, 1), _command_of(_show_property, 1, 1)
set_property = _command_of(_set_property, 4, 5)
