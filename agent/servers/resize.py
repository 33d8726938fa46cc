# SPDX-License-Identifier: GPL-3.0-or-later
"""Resize: the disks of a server get the sizes of another flavor.

``sizes`` in ``document.state`` are the bytes of each disk as it was made or grown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.servers import folder
from magnetar_core.server_plan import EPHEMERAL, SWAP, disk_sizes

if TYPE_CHECKING:
    from magnetar_agent.documents import Document, Fields
    from magnetar_agent.task import Task


def seen(document: Document) -> Fields:
    """What ``observe`` tells of the disks: *root_bytes*, *ephemeral_bytes*, *swap_bytes*; 0 for none."""
    made, state = document.state.get("made", []), document.state
    # A server of an agent that did not note sizes has what its document says: they could not change.
    sizes = {**{name: size for name, size in disk_sizes(document.want["flavor"]).items() if name in made},
             **state.get("sizes", {})}
    return {"root_bytes": state.get("root_bytes", 0), "ephemeral_bytes": sizes.get(EPHEMERAL, 0),
            "swap_bytes": sizes.get(SWAP, 0)}


def drop_swap(task: Task) -> None:
    """Remove the swap disk; nothing in it outlives a start."""
    forget_files(task, [SWAP])


def grow_ephemeral(task: Task) -> None:
    """Grow the ephemeral disk to the flavor's size; its file system is the guest's to grow."""
    size = disk_sizes(task.document.want["flavor"])[EPHEMERAL]
    task.host.hypervisor.grow_disk(folder(task.host, task.document.id) / EPHEMERAL, "qcow2", size)
    task.document.state.setdefault("sizes", {})[EPHEMERAL] = size
    task.keep()


def forget_files(task: Task, names: list[str]) -> None:
    """Remove disks. The document says first that they are gone, so that nobody relies on them after a crash."""
    state, place = task.document.state, folder(task.host, task.document.id)
    state["made"] = [name for name in state.get("made", []) if name not in names]
    state["sizes"] = {name: size for name, size in seen_sizes(task.document).items() if name not in names}
    task.keep()
    for name in names:
        (place / name).unlink(missing_ok=True)


def seen_sizes(document: Document) -> dict[str, int]:
    """Bytes of the disks other than the root disk."""
    found = seen(document)
    return {name: size for name, size in ((EPHEMERAL, found["ephemeral_bytes"]), (SWAP, found["swap_bytes"])) if size}
