# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a table take the same arguments
"""Actions of a volume: ``POST /volumes/{id}/action`` with one key, the action."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import Connection, RowMapping, delete, select

from magnetar_control.services import Document
from magnetar_control.web import Answer, Request
from magnetar_core.errors import Forbidden, InvalidRequest, NotFound

from . import attachments, taking
from . import volumes as rules
from .handling import may_write
from .tables import attachments as held
from .tables import volumes
from .work import BELL

if TYPE_CHECKING:
    from .embedded import Embedded

#: What an admin may set a status to.
STATUSES = ("creating", "available", "deleting", "error", "error_deleting", "error_extending", "attaching", "detaching",
            "in-use", "reserved", "maintenance")
#: Actions of Cinder that hosts' own disks do not offer, and why.
NOT_HERE = {
    "os-volume_upload_image": "the agents do not read volumes out; copy it to a volume, or make an image of a server",
    "os-retype": "content stays in its pool; make a new volume of the other type with source_volid",
    "os-migrate_volume": "content stays on its host; servers of other hosts reach it there",
    "os-reimage": "its content is not replaced; make a new volume from the image",
    "revert": "its content is not replaced; make a new volume from the snapshot"}

Act = Callable[[Connection, Request, RowMapping, Any], Document | None]


class Actions:
    """Handlers over the *service*."""

    def __init__(self, service: Embedded) -> None:
        self.database = service.database

    def act(self, request: Request) -> Answer:
        """Do the one that the body names."""
        may_write(request)
        body = request.json()
        if not isinstance(body, dict) or len(body) != 1:
            raise InvalidRequest("The body must hold one action, such as {\"os-extend\": {\"new_size\": 2}}.")
        (name, given), = body.items()
        if name in NOT_HERE:
            raise InvalidRequest(f"Embedded volumes have no {name}: {NOT_HERE[name]}.")
        if name not in ACTIONS:
            raise InvalidRequest(f"There is no such action: {name[:80]}.")
        status, admin, checks, act = ACTIONS[name]
        if admin and not request.context.is_admin:
            raise Forbidden(f"Policy doesn't allow {name} to be performed: it needs the role admin.")
        if given is not None and not isinstance(given, dict):
            raise taking.invalid(name, "It must be an object.")
        values = taking.fields(given or {}, checks)
        with self.database.write() as connection:
            attachments.lock(connection, request.params["id"])
            row = rules.seen(connection, volumes, request.context, request.params["id"])
            found = act(connection, request, row, values)
            self.database.ring(connection, BELL)
        return Answer(found, status)


def _extend(connection: Connection, request: Request, row: RowMapping, given: Document) -> None:
    if not given.get("new_size"):
        raise taking.invalid("new_size", "It is required: the new size in GiB.")
    rules.begin_extend(connection, row, given["new_size"], request.extra["version"] >= (3, 42))


def _bootable(connection: Connection, request: Request, row: RowMapping, given: Document) -> None:
    if "bootable" not in given:
        raise taking.invalid("bootable", "It is required: true or false.")
    rules.set_(connection, volumes, row["id"], bootable=given["bootable"])


def _reset(connection: Connection, request: Request, row: RowMapping, given: Document) -> None:
    """Set the status, as an admin who has looked. Neither content nor task changes but for one thing: what is no longer
    on its way is not gone on with."""
    status = str(given.get("status") or "").lower() or None
    if status is None and not given.get("attach_status"):
        raise taking.invalid("status", "status or attach_status is required.")
    if status is not None and status not in STATUSES:
        raise taking.invalid("status", f"It must be one of {', '.join(STATUSES)}.")
    if given.get("attach_status") == "detached":
        connection.execute(delete(held).where(held.c.volume_id == row["id"]))
    values: Document = {} if status in (None, "creating", "deleting") else {"task": None, "lease_until": None}
    rules.set_(connection, volumes, row["id"], **({"status": status} if status else {}), **values)


def _force_delete(connection: Connection, request: Request, row: RowMapping, given: Document) -> None:
    connection.execute(delete(held).where(held.c.volume_id == row["id"]))
    rules.begin_delete(connection, row, force=True)


def _reserve(connection: Connection, request: Request, row: RowMapping, given: Document) -> None:
    attachments.reserve(connection, request.context, row["id"], None)


def _unreserve(connection: Connection, request: Request, row: RowMapping, given: Document) -> None:
    for id in _those(connection, row, "reserved", "attaching"):
        attachments.drop(connection, id)


def _those(connection: Connection, row: RowMapping, *statuses: str) -> list[str]:
    return list(connection.execute(select(held.c.id).where(
        held.c.volume_id == row["id"], held.c.status.in_(statuses)).order_by(held.c.created_at)).scalars())


def _attach(connection: Connection, request: Request, row: RowMapping, given: Document) -> None:
    """Nova before attachments (Cinder 3.27), and tools: what was reserved becomes a server's."""
    if not given.get("instance_uuid"):
        raise taking.invalid("instance_uuid", "It is required.")
    mode = given.get("mode") or "rw"
    if mode not in ("rw", "ro"):
        raise taking.invalid("mode", "It must be rw or ro.")
    free = _those(connection, row, "reserved", "attaching")
    id = free[0] if free else attachments.reserve(connection, request.context, row["id"], given["instance_uuid"])["id"]
    rules.set_(connection, held, id, server_id=given["instance_uuid"], mode=mode)
    attachments.complete(connection, id, given.get("host_name"), given.get("mountpoint"))


def _begin_detaching(connection: Connection, request: Request, row: RowMapping, given: Document) -> None:
    those = _those(connection, row, "attached")
    if row["status"] != "in-use" or not those:
        raise rules.wrong_status(volumes, row, ("in-use",))
    for id in those:
        rules.set_(connection, held, id, status="detaching")
    rules.follow(connection, row["id"])


def _roll_detaching(connection: Connection, request: Request, row: RowMapping, given: Document) -> None:
    for id in _those(connection, row, "detaching"):
        rules.set_(connection, held, id, status="attached")
    rules.follow(connection, row["id"])


def _detach(connection: Connection, request: Request, row: RowMapping, given: Document) -> None:
    those = _those(connection, row, "attached", "detaching")
    wanted = given.get("attachment_id")
    if wanted is None and len(those) > 1:
        raise InvalidRequest("Invalid volume: The volume is attached to more than one server; attachment_id says from "
                    "which to detach it.")
    if wanted is not None and wanted not in those:
        raise NotFound(f"Volume attachment {wanted} could not be found.")
    for id in [wanted] if wanted else those:
        attachments.drop(connection, id)


def _readonly(connection: Connection, request: Request, row: RowMapping, given: Document) -> None:
    if row["status"] != "available":
        raise rules.wrong_status(volumes, row, ("available",))
    rules.set_(connection, volumes, row["id"], readonly=given.get("readonly", True))


def _show_image(connection: Connection, request: Request, row: RowMapping, given: Document) -> Document:
    return {"metadata": rules.document(row["image_metadata"])}


def _set_image(connection: Connection, request: Request, row: RowMapping, given: Document) -> Document:
    found = {**rules.document(row["image_metadata"]), **given.get("metadata", {})}
    rules.set_(connection, volumes, row["id"], image_metadata=orjson.dumps(found).decode())
    return {"metadata": found}


def _unset_image(connection: Connection, request: Request, row: RowMapping, given: Document) -> None:
    found = rules.document(row["image_metadata"])
    if given.get("key") not in found:
        raise NotFound(f"Metadata key {given.get('key')} is not found.")
    del found[given["key"]]
    rules.set_(connection, volumes, row["id"], image_metadata=orjson.dumps(found).decode())


#: Action to (status of the answer, whether it needs an admin, its fields, what does it).
ACTIONS: dict[str, tuple[int, bool, dict[str, taking.Check], Act]] = {
    "os-extend": (202, False, {"new_size": taking.size}, _extend),
    "os-set_bootable": (200, False, {"bootable": taking.boolean}, _bootable),
    "os-reset_status": (202, True, {"status": taking.text, "attach_status": taking.text,
                                    "migration_status": taking.nothing}, _reset),
    "os-force_delete": (202, True, {}, _force_delete),
    "os-reserve": (202, False, {}, _reserve),
    "os-unreserve": (202, False, {}, _unreserve),
    "os-attach": (202, False, {"instance_uuid": taking.ident, "mountpoint": taking.text, "mode": taking.text,
                               "host_name": taking.text}, _attach),
    "os-begin_detaching": (202, False, {}, _begin_detaching),
    "os-roll_detaching": (202, False, {}, _roll_detaching),
    "os-detach": (202, False, {"attachment_id": taking.ident}, _detach),
    "os-update_readonly_flag": (202, False, {"readonly": taking.boolean}, _readonly),
    "os-show_image_metadata": (200, False, {}, _show_image),
    "os-set_image_metadata": (200, False, {"metadata": taking.metadata}, _set_image),
    "os-unset_image_metadata": (200, False, {"key": taking.text}, _unset_image)}
