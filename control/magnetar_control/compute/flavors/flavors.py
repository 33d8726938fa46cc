# SPDX-License-Identifier: GPL-3.0-or-later
"""Flavors: sizes of servers. Everybody sees the public ones; administrators make and remove them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.notifications import payloads
from magnetar_control.store.accounts import flavors
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

MANAGE = "os_compute_api:os-flavor-manage:"
#: More rows than there are flavors.
ALL = 2**31 - 1


def page(caller: Caller, limit: int = ALL, *, sort: str = "flavorid", descending: bool = False,
         public: bool | None = True, least_ram: int | None = None, least_disk: int | None = None,
         name: str | None = None, marker: str | None = None) -> Sequence[Any]:
    """Rows of at most *limit* flavors that follow the flavor *marker*. *sort*: a key of
    ``store.accounts.flavors.SORTS``. *public*: which ones administrators see: the public ones (True), the private ones
    (False), or all (``None``); others see the public ones and those that their project has access to. *least_ram* in
    MiB, *least_disk* in GiB, *name*, a regular expression: those that fit only. Raises ``InvalidRequest`` when there is
    no flavor *marker*."""
    rows = caller.fetch(flavors.page, limit, sort, descending=descending, project=caller.project,
                       public=public if caller.is_admin else True, least_ram=least_ram,
                       least_disk=least_disk, name=name, marker=marker)
    if rows is None:
        raise InvalidRequest(f"marker [{str(marker)[:255]}] not found")
    return rows


def show(caller: Caller, id: str) -> Any:
    """The flavor's row. Raises ``NotFound`` when there is none that the caller may see."""
    row = caller.fetch(flavors.find, id, caller.project, everything=caller.is_admin)
    if row is None:
        raise not_found(id)
    return row


def not_found(id: str) -> NotFound:
    """There is no such flavor, in Nova's words."""
    return NotFound(f"Flavor {id[:255]} could not be found.")


@use_case(f"{MANAGE}create")
def create(caller: Caller, /, name: str, *, id: str | int | None = None, **columns: Any) -> Any:
    """Make a flavor of *columns* of the table ``flavors``, which has the defaults; the row. *ram* and *swap* are MiB,
    *disk* and *ephemeral* GiB. *id*: ``None`` or ``auto`` for one that is drawn. Raises ``Conflict`` when another has
    the id or the name."""
    id = str(uuid.uuid4()) if id in (None, "auto") else str(id)
    try:
        with caller.cloud.store.api.write() as connection:
            _check_free(flavors.taken(connection, id, name), id, name)
            row = flavors.make(connection, id=id, name=name, **columns)
            tell(caller, connection, row._mapping, "create")  # noqa: SLF001 - SQLAlchemy's name
            return row
    except IntegrityError:  # somebody else made one of that id or name meanwhile
        _check_free(caller.fetch(flavors.taken, id, name), id, name)
        raise


def _check_free(taken: str | None, id: str, name: str) -> None:
    if taken:
        raise Conflict(f"Flavor with {f'ID {id}' if taken == 'id' else f'name {name}'} already exists.")


@use_case(f"{MANAGE}update")
def update(caller: Caller, /, id: str, **columns: Any) -> Any:
    """Set columns of a flavor: the description. Returns the row. Its sizes never change."""
    row = show(caller, id)
    with caller.cloud.store.api.write() as connection:
        flavors.change(connection, row.number, **columns)
        tell(caller, connection, {**row._mapping, **columns}, "update")  # noqa: SLF001 - SQLAlchemy's name
    return show(caller, row.id)


def tell(caller: Caller, connection: Connection, row: Mapping[Any, Any], what: str) -> None:
    """Tell that a flavor is made (create), changed (update) or deleted (delete); *row*: as it is then."""
    def payload() -> Any:
        return payloads.flavor(row, None if row["is_public"] else flavors.projects(connection, row["number"]))

    caller.notify(connection, payload, f"flavor.{what}")


@use_case(f"{MANAGE}delete")
def delete(caller: Caller, id: str) -> None:
    """Delete it; servers keep the sizes that they were made with. Raises ``NotFound``."""
    with caller.cloud.store.api.write() as connection:
        row = flavors.find(connection, id, caller.project, everything=True) if caller.cloud.notifications else None
        if row is not None:
            tell(caller, connection, row._mapping, "delete")  # noqa: SLF001 - SQLAlchemy's name
        if not flavors.remove(connection, id):
            raise not_found(id)


def check_memory(flavor: Mapping[str, Any], image: str, least: Any) -> None:
    """Raises ``InvalidRequest`` where *flavor* has less memory than the *image*, a uuid, needs at *least*, in MiB, if
    that is known."""
    need = int(least) if str(least).isdecimal() else 0
    if flavor["ram"] < need:
        raise InvalidRequest("Flavor's memory is too small for requested image. Flavor "
                             f"{flavor['name']} has {flavor['ram']} MiB, image {image} needs {need} MiB (min_ram). "
                             "Choose a larger flavor.")
