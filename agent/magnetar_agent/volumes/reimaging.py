# SPDX-License-Identifier: GPL-3.0-or-later
"""A volume whose content is made anew from an image (Cinder's reimage), while no guest runs with it.

``want["reimage"]`` says from which image, and which request asks; ``document.state["reimaged"]`` is what was done last.
From the note ``renewed`` until then the content is not what it is to be: ``made`` is missing, and no server starts with
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.migrations import refuse_while_it_moves
from magnetar_agent.reconcile.documents import CLOUD
from magnetar_core.errors import Conflict
from magnetar_core.power import LIVE, SUSPENDED

from . import attaching, content, holders

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task


def complete(host: LocalHost, found: Fields, document: Document | None) -> int:
    """Turn the image that is named into a uuid; the bytes that it needs, 0 where nothing is asked for anew. Raises
    ``InvalidField``, or ``Conflict`` where a guest runs with the volume."""
    given, old = found.get("reimage"), document.want.get("reimage") if document else None
    if given is None or (old and old["request"] == given["request"]):
        found["reimage"] = old
        return 0
    standing = host.documents.standing("image", given["image"])
    least = content.source_bytes("image", standing, given["image"], "reimage.image")
    found["reimage"] = {**given, "image": standing.id if standing else given["image"]}
    if document:
        _check_unused(host, document)
    return least


def is_asked(want: Fields, have: Fields) -> bool:
    """Whether it was asked for, and is not done."""
    return want.get("reimage") not in (None, have.get("reimaged"))


def begin(task: Task) -> None:
    """Note that the content of before counts no more. A server that was started since it was looked at keeps it: then
    raises ``Conflict``."""
    document, state = task.document, task.document.state
    if state.pop("made", None):
        state.update(renewed=True, begun=True)
        task.keep()
    try:
        _check_unused(task.host, document)
    except Conflict:
        for name in ("renewed", "begun"):
            del state[name]
        state["made"], document.want["reimage"] = True, state.get("reimaged")
        task.keep()
        raise


def _check_unused(host: LocalHost, document: Document) -> None:
    attaching.refuse_while_swapped(host, document.id)
    for one in holders(host, document.id):
        name, what = attaching.server_name(host, one), f"Volume {document.name!r}"
        if one.kind == "volume_export":
            if not document.state.get(CLOUD):  # a cloud sees to it that the server is off
                raise Conflict(f"{what} is attached to server {name!r} of another host, which may be running. Detach "
                               "it first.")
            continue
        refuse_while_it_moves(host, host.documents.get("server", one.want["server"]))
        domain = host.hypervisor.domain(one.want["server"])
        if domain and domain.state in (*LIVE, SUSPENDED):
            raise Conflict(f"{what} is in use: server {name!r} is {domain.state}. Stop it first.")


def check_whole(host: LocalHost, server: str) -> None:
    """Raise ``Conflict`` where the content of one of the server's volumes is made anew just now."""
    for one in attaching.of_server(host, server):
        volume = host.documents.get("volume", one.want["volume"])
        if volume and volume.state.get("renewed"):
            raise Conflict(f"The content of volume {volume.name!r} is being made anew. Start the server when that is "
                           "done; where it has failed, repeat it, or detach the volume.")
