# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes that come and go with a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.volumes import attachments, pools

if TYPE_CHECKING:
    from magnetar_agent.documents import Document
    from magnetar_agent.drivers import Task


def free(task: Task) -> None:
    """Detach the volumes of a server that goes; those with delete_on_termination go with it, and all that were made
    for it when its own making failed."""
    agent, id = task.agent, task.document.id
    failed = bool(task.document.state.get("unfinished"))
    for one in agent.documents.list("volume_attachment"):
        if one.want["server"] != id:
            continue
        with agent.locks.hold("volume", one.want["volume"]):
            volume = agent.documents.get("volume", one.want["volume"])
            goes = one.want["delete_on_termination"] or (failed and one.state.get("made_with_server"))
            if volume and goes and len(attachments(agent, volume.id)) == 1:
                _remove(task, volume)
            agent.documents.remove(one)


def _remove(task: Task, volume: Document) -> None:
    """A volume and its content; the document is marked first, so that a crash cannot leave half of it."""
    volume.deleting = True
    task.agent.documents.write(volume)
    pools.named(task.agent, volume.want["pool"]).remove(volume.id)
    task.agent.documents.remove(volume)
