# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``attach_share`` and ``detach_share``.

The API has saved the entry in ``servers.shares``. The flow asks the host's agent, then saves or removes the entry. Each
step may be done again. What fails is said by the entry's status, error: users detach it then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.conductor.worker.retry import attempt
from magnetar_control.conductor.worker.work import Work
from magnetar_control.services import Document
from magnetar_core.errors import MagnetarError, NotFound


def attach_share(work: Work) -> None:
    """Have the host give the server the share of ``args["uuid"]``; its guest finds it from its next start on."""
    entry = _entry_of(work)
    if entry is None:
        work.done()
        return

    def attach() -> None:
        with work.client() as client:
            args = {name: entry[name] for name in ("share", "tag", "share_id")}
            answer = client.event("server", work.id, "attach_share", args, request_id=work.idempotency_key)
        # Who asks for the detach meanwhile has the last word.
        _change_entry(work, {"location": f"{work.server.host}:{answer['path']}"})
        _change_entry(work, {"status": "inactive"}, {"attaching"})

    attempt(work, attach, lambda error: _failed(work, error), lambda error: _failed(work, error))


def detach_share(work: Work) -> None:
    """Have the host take the share of ``args["uuid"]`` from the server. A server that its host does not have (any
    more) has none there."""
    entry = _entry_of(work)
    if entry is None:
        work.done()
        return

    def detach() -> None:
        try:
            with work.client() as client:
                client.event("server", work.id, "detach_share", {"tag": entry["tag"]}, request_id=work.idempotency_key)
        except NotFound:
            pass
        _change_entry(work, None)

    attempt(work, detach, lambda error: _failed(work, error), lambda error: _failed(work, error))


def _failed(work: Work, error: MagnetarError) -> None:
    _change_entry(work, {"status": "error"})
    work.failed(error)


def _entry_of(work: Work) -> Document | None:
    return next((one for one in work.shares if one["uuid"] == work.args["uuid"]), None)


def _change_entry(work: Work, values: Mapping[str, Any] | None, of: set[str] | None = None) -> None:
    """Change the entry when its status is one *of* these, or remove it (``None``)."""
    def all_of(kept: list[Document]) -> list[Document]:
        mine = work.args["uuid"]
        if values is None:
            return [one for one in kept if one["uuid"] != mine]
        return [{**one, **values} if one["uuid"] == mine and (of is None or one["status"] in of) else one
                for one in kept]

    work.revise("shares", all_of)
