# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar machine-type`` and ``magnetar image-property``: what servers keep of their image's word on hardware. Their
statuses are those of the commands of nova-manage."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import Conflict, InvalidField, MagnetarError, NotFound

from . import settings_file as configuration

if TYPE_CHECKING:
    from magnetar_control.compute.servers.stored_hardware import ClientOf

    from .serve import Parts

_SERVER = "uuid of the server"
_STATUS = "Status {}. On a host its agent is asked, as by a conductor, with whose settings this runs."


def arguments(command: Any, group: Any) -> None:
    """Add both with their actions. *command* adds one to a *group*, as those of ``cli``."""
    every = group("machine-type", "Show and change the machine types of servers (nova-manage libvirt).")
    show = command(every, "show", show_machine, "Print the machine type that is recorded of a server. Status 2 for a "
                   "server that there is not, 3 where none is recorded.",
                   "magnetar machine-type show 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    update = command(every, "update", update_machine, "Record a later version of the machine type of a server that is "
                     "stopped, shelved or shelved_offloaded, and have its host change it. " + _STATUS.format(
                         "2 for a server that there is not, 3 where it is not off, 4 for what is no later version of "
                         "what it has, 5 for what is no machine type"),
                     "magnetar machine-type update 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d pc-q35-8.2")
    unset = command(every, "list-unset", list_unset, "Print the uuids of servers of which no machine type is recorded: "
                    "those that were never made on a host. Status 2 for a cell that there is not, 3 where there are "
                    "some.", "magnetar machine-type list-unset\n  magnetar machine-type list-unset --cell cell2")
    every = group("image-property", "Show and change the image properties that servers keep (nova-manage "
                  "image_property).")
    look = command(every, "show", show_property, "Print an image property that a server keeps. Status 2 for a server "
                   "that there is not, 3 where it keeps none of that name.",
                   "magnetar image-property show 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d hw_disk_bus")
    change = command(every, "set", set_property, "Change image properties that a server keeps, while it is stopped, "
                     "shelved or shelved_offloaded, and have its host follow: for a device that a later machine type "
                     "has not, say. " + _STATUS.format(
                         "2 for a server that there is not, 3 where it is not off, 4 for a property that asks for no "
                         "hardware, 5 for a value that it cannot have"),
                     "magnetar image-property set 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d --property hw_disk_bus=virtio "
                     "--property hw_cdrom_bus=sata")
    for one in (show, update, look, change):
        one.add_argument("server", help=_SERVER)
    update.add_argument("machine", metavar="TYPE", help="the machine type, such as pc-q35-8.2")
    update.add_argument("--force", action="store_true", help="whatever the server has now: also an earlier version, or "
                        "pc in place of q35. Its system may not start then.")
    unset.add_argument("--cell", "--cell-uuid", "--cell_uuid", metavar="CELL", help="of this cell only: its name or "
                       "uuid")
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


def _command(do: Callable[[argparse.Namespace, Parts], int], odd: int, wrong: int) -> Callable[
        [argparse.Namespace], int]:
    """A command that *do* does. Its status where a name is *odd*, and where what is asked for is *wrong*."""
    def run(given: argparse.Namespace) -> int:
        from magnetar_control.compute.servers.stored_hardware import NotOff, UnknownName

        from .serve import Parts

        statuses = ((NotOff, 3), (NotFound, 2), (UnknownName, odd), (InvalidField, wrong), (Conflict, wrong))
        with contextlib.closing(Parts(configuration.load(given.config))) as parts:
            try:
                return do(given, parts)
            except (MagnetarError, InvalidField) as error:
                print(f"magnetar: {error.message}", file=sys.stderr)
                return next((status for kind, status in statuses if isinstance(error, kind)), 1)
    return run


def _show_machine(given: argparse.Namespace, parts: Parts) -> int:
    from magnetar_control.compute.servers import stored_hardware

    found = stored_hardware.machine(stored_hardware.find(parts.store, given.server)[1])
    return _shown(found, f"No machine type is recorded of server {given.server}: its host chooses one when it makes "
                         "it.")


def _shown(found: str | None, nothing: str) -> int:
    print(found or f"magnetar: {nothing}", file=sys.stdout if found else sys.stderr)
    return 0 if found else 3


def _update_machine(given: argparse.Namespace, parts: Parts) -> int:
    from magnetar_control.compute.servers import stored_hardware

    before, after = stored_hardware.update_machine(parts.store, _client_of(parts), given.server, given.machine,
                                                   given.force)
    print(f"{given.server}\t{before or 'none'}\t{after}")
    return 0


def _list_unset(given: argparse.Namespace, parts: Parts) -> int:
    from magnetar_control.compute.servers import stored_hardware

    cells = [(cell, database) for cell, database in parts.store.databases()
             if given.cell in (None, cell.name, cell.id)]
    if not cells:
        raise NotFound(f"There is no cell {given.cell!r}; `magnetar cell list` shows those that there are.")
    found = 0
    for id in stored_hardware.without_machine([database for _cell, database in cells]):
        print(id)
        found += 1
    return 3 if found else 0


def _show_property(given: argparse.Namespace, parts: Parts) -> int:
    from magnetar_control.compute.servers import stored_hardware

    found = stored_hardware.image_property(stored_hardware.find(parts.store, given.server)[1], given.name)
    return _shown(found, f"Server {given.server} keeps no image property {given.name}.")


def _set_property(given: argparse.Namespace, parts: Parts) -> int:
    from magnetar_control.compute.servers import stored_hardware

    wanted = {}
    for one in given.properties:
        name, equals, value = one.partition("=")
        if not equals:
            raise InvalidField("--property", "must be NAME=VALUE", one)
        wanted[name] = value
    changed = stored_hardware.set_properties(parts.store, _client_of(parts), given.server, wanted)
    for name, value in sorted(wanted.items()):
        print(f"{name}={value}\t{'changed' if name in changed else 'as it was'}")
    return 0


#: Statuses of nova-manage: which of what is asked for is none, and which cannot be.
show_machine, update_machine = _command(_show_machine, 1, 1), _command(_update_machine, 5, 4)
list_unset, show_property = _command(_list_unset, 1, 1), _command(_show_property, 1, 1)
set_property = _command(_set_property, 4, 5)
