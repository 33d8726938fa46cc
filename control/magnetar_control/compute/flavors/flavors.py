# SPDX-License-Identifier: GPL-3.0-or-later
"""Flavors: sizes of servers. All users see public flavors; administrators create and delete flavors."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.documents import FlavorOfServer
from magnetar_control.notifications import payloads
from magnetar_control.store.accounts import flavors
from magnetar_control.store.accounts.flavors import FlavorRow
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

MANAGE = "os_compute_api:os-flavor-manage:"
#: A limit above any number of flavors.
ALL = 2**31 - 1


def list_flavors(caller: Caller, limit: int = ALL, *, sort: str = "flavorid", descending: bool = False,
                 public: bool | None = True, least_ram: int | None = None, least_disk: int | None = None,
                 name: str | None = None, marker: str | None = None) -> Sequence[FlavorRow]:
    """Return the rows of at most *limit* flavors, beginning after the flavor *marker*. *sort*: the sort key, one of
    ``store.accounts.flavors.SORTS``; *descending*: the sort direction.

    *public*: which flavors administrators get: public (``True``), private (``False``), or all (``None``). Other users
    get public flavors and the private flavors that their project has access to. Filters: *least_ram* (MiB),
    *least_disk* (GiB), and *name* (a regular expression). Raises ``InvalidRequest`` when the flavor *marker* does not
    exist.
    """
    rows = caller.fetch(flavors.fetch_flavor_rows, limit, sort, descending=descending, project=caller.project,
                       public=public if caller.is_admin else True, least_ram=least_ram,
                       least_disk=least_disk, name=name, marker=marker)
    if rows is None:
        raise InvalidRequest(f"marker [{str(marker)[:255]}] not found")
    return rows


def show_flavor(caller: Caller, id: str) -> FlavorRow:
    """Return the row of the flavor *id*. Raises ``NotFound``, also when the caller's project has no access to the
    flavor."""
    row = caller.fetch(flavors.fetch_flavor_row, id, caller.project, everything=caller.is_admin)
    if row is None:
        raise flavor_not_found(id)
    return row


def flavor_not_found(id: str) -> NotFound:
    """Return the error that the flavor *id* does not exist, with Nova's message."""
    return NotFound(f"Flavor {id[:255]} could not be found.")


@use_case(f"{MANAGE}create")
def create_flavor(caller: Caller, /, name: str, *, id: str | int | None = None, **columns: Any) -> FlavorRow:
    """Create a flavor, and return its row. *columns*: values for columns of the table ``flavors`` (``ram`` and ``swap``
    in MiB, ``disk`` and ``ephemeral`` in GiB); the table defines the defaults. *id*: ``None`` or ``auto``: generate it.
    Raises ``Conflict`` when another flavor has the id or the name."""
    id = str(uuid.uuid4()) if id in (None, "auto") else str(id)
    try:
        with caller.cloud.store.api.write() as connection:
            _check_free(flavors.duplicate_flavor_field(connection, id, name), id, name)
            row = flavors.insert_flavor_row(connection, id=id, name=name, **columns)
            notify_flavor(caller, connection, row, "create")
            return row
    except IntegrityError:  # another client created a flavor of that id or name meanwhile
        _check_free(caller.fetch(flavors.duplicate_flavor_field, id, name), id, name)
        raise


def _check_free(taken: str | None, id: str, name: str) -> None:
    if taken:
        raise Conflict(f"Flavor with {f'ID {id}' if taken == 'id' else f'name {name}'} already exists.")


@use_case(f"{MANAGE}update")
def update_flavor(caller: Caller, /, id: str, **columns: Any) -> FlavorRow:
    """Set *columns* of the flavor *id*, and return its row. In the API only the description can be changed."""
    row = show_flavor(caller, id)
    with caller.cloud.store.api.write() as connection:
        flavors.update_flavor_row(connection, row.number, **columns)
        notify_flavor(caller, connection, row, "update", **columns)
    return show_flavor(caller, row.id)


def notify_flavor(caller: Caller, connection: Connection, row: FlavorRow, event: str, **changed: Any) -> None:
    """Send the notification that a flavor was created, updated or deleted (*event*). *row*: the flavor's previous
    state. *changed*: its new values."""
    def payload() -> Any:
        flavor = {**row.column_values(), "extra_specs": row.extra_specs, **changed}
        return payloads.flavor_payload(flavor, None if row.is_public
                                       else flavors.fetch_flavor_projects(connection, row.number))

    caller.notify(connection, payload, f"flavor.{event}")


@use_case(f"{MANAGE}delete")
def delete_flavor(caller: Caller, id: str) -> None:
    """Delete the flavor *id*. Servers that were created with it are not changed. Raises ``NotFound``."""
    with caller.cloud.store.api.write() as connection:
        row = flavors.fetch_flavor_row(connection, id, caller.project,
                                       everything=True) if caller.cloud.notifications else None
        if row is not None:
            notify_flavor(caller, connection, row, "delete")
        if not flavors.remove_flavor_row(connection, id):
            raise flavor_not_found(id)


def check_flavor_memory(flavor: FlavorOfServer, image: str, least: Any) -> None:
    """Raise ``InvalidRequest`` when *flavor* has less memory than *least*, the memory in MiB that an image needs. Do
    nothing if *least* is not a number. *image*: the image's uuid, for the error message."""
    need = int(least) if str(least).isdecimal() else 0
    if flavor["ram"] < need:
        raise InvalidRequest("Flavor's memory is too small for requested image. Flavor "
                             f"{flavor['name']} has {flavor['ram']} MiB, image {image} needs {need} MiB (min_ram). "
                             "Choose a larger flavor.")
