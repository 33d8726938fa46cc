# SPDX-License-Identifier: GPL-3.0-or-later
"""Resize: the disks of a server get the sizes of another flavor.

``sizes`` in ``document.state`` are the bytes of each disk as it was made or grown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.servers.disks import own_disks
from magnetar_core.local_disks import SWAP
from magnetar_core.server_plan import disk_sizes

if TYPE_CHECKING:
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task


def recorded_sizes(document: Document) -> Fields:
    """Return the sizes of the server's disks in bytes, from its document: ``{"root_bytes": size, "sizes": {file:
    size}}``, with 0 if there is no root disk."""
    return {"root_bytes": document.state.get("root_bytes", 0), "sizes": sizes_of(document.want, document.state)}


def sizes_of(want: Fields, state: Fields) -> dict[str, int]:
    """Return ``{file: bytes}`` of the existing ephemeral and swap disks of a server. *want*, *state*: the desired
    fields and the state fields in its document."""
    made = state.get("made", [])
    # A server of an agent that did not note sizes has those of its document: they could not change.
    return {**{name: size for name, size in disk_sizes(want).items() if name in made},
            **{name: size for name, size in state.get("sizes", {}).items() if size}}


def drop_swap(task: Task) -> None:
    """Remove the swap disk, whose content is not needed any more after the guest has stopped."""
    forget_files(task, [SWAP])


def grow_ephemeral(task: Task) -> None:
    """Grow the ephemeral disks to the flavor's size. The file systems on them are not grown."""
    sizes = recorded_sizes(task.document)["sizes"]
    for file, size in disk_sizes(task.document.want).items():
        if file != SWAP and size > sizes.get(file, size):
            own_disks.grow_own_disk(task, file, size)
            task.document.state["sizes"] = sizes = {**sizes, file: size}
            task.keep()


def forget_files(task: Task, names: list[str]) -> None:
    """Remove the disks in *names*: first from the server's document, then their files, so that after a crash the
    document lists no disk that is missing."""
    state = task.document.state
    sizes = recorded_sizes(task.document)["sizes"]
    state["made"] = [name for name in state.get("made", []) if name not in names]
    state["sizes"] = {name: size for name, size in sizes.items() if name not in names}
    task.keep()
    own_disks.remove_server_files(task.host, task.document, names)
