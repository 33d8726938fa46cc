# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``attach_share`` and ``detach_share``.

The API has saved the entry in ``servers.shares``. The flow asks the host's agent, then saves or removes the entry. Each
step can be repeated. A failure sets the entry's status to error: users then detach the share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.conductor.worker.retry import attempt_action
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.documents import ShareOfServer
from magnetar_core.document import Document
from magnetar_core.errors import MagnetarError, NotFound


def run_share_attachment(work: RunningAction) -> None:
    """Have the agent attach the share of the attachment ``work.args["uuid"]`` to the server. The guest sees the share
    after its next start."""
    share = _share_of_action(work)
    if share is None:
        work.done()
        return

    def attach() -> None:
        with work.client() as client:
            args = {name: share[name] for name in ("share", "tag", "share_id")}
            answer = client.event("server", work.id, "attach_share", args, request_id=work.idempotency_key)
        # A detach that was requested meanwhile has priority.
        _change_share(work, {"location": f"{work.server.host}:{answer['path']}"})
        _change_share(work, {"status": "inactive"}, {"attaching"})

    attempt_action(work, attach, lambda error: _failed(work, error), lambda error: _failed(work, error))


def run_share_detachment(work: RunningAction) -> None:
    """Have the agent detach the share of the attachment ``work.args["uuid"]`` from the server. If the host does not
    have the server, only remove the attachment from the server's row."""
    share = _share_of_action(work)
    if share is None:
        work.done()
        return

    def detach() -> None:
        try:
            with work.client() as client:
                client.event("server", work.id, "detach_share", {"tag": share["tag"]}, request_id=work.idempotency_key)
        except NotFound:
            pass
        _change_share(work, None)

    attempt_action(work, detach, lambda error: _failed(work, error), lambda error: _failed(work, error))


def _failed(work: RunningAction, error: MagnetarError) -> None:
    _change_share(work, {"status": "error"})
    work.failed(error)


def _share_of_action(work: RunningAction) -> ShareOfServer | None:
    return next((share for share in work.shares if share["uuid"] == work.args["uuid"]), None)


def _change_share(work: RunningAction, values: Mapping[str, Any] | None, of: set[str] | None = None) -> None:
    """Change the share attachment of the action in the server's row: set *values*, or remove the attachment if *values*
    is ``None``. *of*: set *values* only if the attachment has one of these statuses (``None``: always)."""
    def all_of(shares: list[Document]) -> list[Document]:
        mine = work.args["uuid"]
        if values is None:
            return [share for share in shares if share["uuid"] != mine]
        return [{**share, **values} if share["uuid"] == mine and (of is None or share["status"] in of) else share
                for share in shares]

    work.revise("shares", all_of)
