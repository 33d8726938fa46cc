# SPDX-License-Identifier: GPL-3.0-or-later
"""Resize: the disks of a server get the sizes of another flavor.

``have`` is the driver's view; ``sizes`` in ``document.state`` are the bytes of each disk as it was made or grown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from magnetar_agent.servers import GIB, MIB, folder
from magnetar_core.errors import Conflict, Immutable

if TYPE_CHECKING:
    from magnetar_agent.documents import Document, Fields
    from magnetar_agent.task import Task

ROOT, EPHEMERAL, SWAP = "disk", "disk.ephemeral", "disk.swap"


def wanted(flavor: Fields) -> dict[str, int]:
    """Bytes of each disk that *flavor* asks for; 0 for none, and for a root disk as large as its image."""
    return {ROOT: flavor["disk"] * GIB, EPHEMERAL: flavor["ephemeral"] * GIB, SWAP: flavor["swap"] * MIB}


def seen(document: Document) -> Fields:
    """What ``observe`` tells of the disks: *root_bytes*, *ephemeral_bytes*, *swap_bytes*; 0 for none."""
    made, state = document.state.get("made", []), document.state
    # A server of an agent that did not note sizes has what its document says: they could not change.
    sizes = {**{name: size for name, size in wanted(document.want["flavor"]).items() if name in made},
             **state.get("sizes", {})}
    return {"root_bytes": state.get("root_bytes", 0), "ephemeral_bytes": sizes.get(EPHEMERAL, 0),
            "swap_bytes": sizes.get(SWAP, 0)}


def shape(flavor: Fields, ephemeral: float, swap: float) -> Fields:
    """What the domain shows of a flavor."""
    return {"vcpus": flavor["vcpus"], "ram": flavor["ram"], "ephemeral": bool(ephemeral), "swap": bool(swap)}


def differs(want: Fields, have: Fields) -> bool:
    """Whether the domain has to be defined again for the flavor."""
    flavor = want["flavor"]
    return shape(flavor, flavor["ephemeral"], flavor["swap"]) != shape(
        have["flavor"], have.get("ephemeral_bytes", 0), have.get("swap_bytes", 0))


def steps(want: Fields, have: Fields) -> Iterator[str]:
    """The verbs that make the disks have the sizes that are wanted."""
    sizes, rebuild = wanted(want["flavor"]), have.get("rebuild")
    if not rebuild and have.get("swap_bytes", 0) not in (0, sizes[SWAP]):
        yield "drop_swap"
    if not rebuild and sizes[ROOT] > have["root_bytes"] > 0:
        yield "grow"
    if (not rebuild or rebuild["preserve_ephemeral"]) and sizes[EPHEMERAL] > have.get("ephemeral_bytes", 0) > 0:
        yield "grow_ephemeral"


def adds(want: Fields, have: Fields) -> bool:
    """Whether an ephemeral or swap disk is wanted that is not there, or will not be."""
    sizes = wanted(want["flavor"])
    return bool((sizes[EPHEMERAL] and not have.get("ephemeral_bytes", 0))
                or (sizes[SWAP] and have.get("swap_bytes", 0) != sizes[SWAP]))


def check_disks(want: Fields, have: Fields) -> None:
    """Raise ``Immutable`` for a disk that would shrink, ``Conflict`` for one that is lost or cannot be rebuilt."""
    rebuild, name = have.get("rebuild"), want["name"]
    kept = {EPHEMERAL} if rebuild and rebuild["preserve_ephemeral"] else set() if rebuild else {ROOT, EPHEMERAL, SWAP}
    lost = [file for file in have["lost"] if not rebuild or file in kept]
    if lost:
        way = "Restore the file, " + ("or do without preserve_ephemeral." if rebuild else "rebuild the server, or "
                                      "delete it and make it again.")
        raise Conflict(f"{', '.join(lost)} of server {name!r} is gone from the host. {way}", files=lost)
    if rebuild and have.get("gone") is not None and have["gone"] == want["image"]:
        raise Conflict(f"The image that server {name!r} was made from is no longer on this host, or has no content "
                       "there. Register it again and send its content (and that of the kernel that it boots with), or "
                       "rebuild from another image.", field="image")
    sizes = wanted(want["flavor"])
    for file, there, word in ((ROOT, have["root_bytes"], "root"), (EPHEMERAL, have.get("ephemeral_bytes", 0),
                                                                   "ephemeral")):
        if file in kept and sizes[file] < there and (sizes[file] or file == EPHEMERAL):
            raise Immutable(
                f"flavor: the {word} disk of server {name!r} has {there / GIB:g} GiB and cannot shrink to "
                f"{sizes[file] / GIB:g} GiB. Choose a flavor with a larger disk, or delete the server and make it "
                "again.", fields=["flavor"])


def drop_swap(task: Task) -> None:
    """Remove the swap disk; nothing in it outlives a start."""
    forget_files(task, [SWAP])


def grow_ephemeral(task: Task) -> None:
    """Grow the ephemeral disk to the flavor's size; its file system is the guest's to grow."""
    size = wanted(task.document.want["flavor"])[EPHEMERAL]
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
