# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts about a server's disks on storage that several hosts reach. They are kept beside the disks
(``disk_owner``, ``rbd_owner``), so that another host can take over the disks of a host that is off."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import Conflict

if TYPE_CHECKING:
    from magnetar_agent.reconcile.documents import Document, Fields

#: The field of a new server that names the former owner of its disks, and the note of an evacuation that is not
#: confirmed yet: the former owner.
GIVEN, ADOPTED = "adopt_disks", "adopted_disks"
#: Note of a server that has migrated, or may have: its disks belong to the target.
HANDED = "handed_disks"
#: Note that this host has written the facts about a server's RBD images into the pool: {file, digest}.
RECORDED = "recorded_disks"
#: Notes that stay on a host when the server migrates.
OF_HOST = (ADOPTED, HANDED, RECORDED)
#: Notes of a server's document that describe its disks. None is a secret.
NOTES = ("base", "image_name", "iso", "boot", "shutdown_timeout", "disk_layout", "sizes", "made", "root_bytes")
#: Fields of a server's document that describe its disks.
WANTED = ("root_format",)
#: Names of a server's disks: root, swap and ephemeral disks.
DISK_FILE = re.compile(r"disk(?:\.swap|\.ephemeral[0-9]*)?")


def disk_facts(document: Document) -> Fields:
    """Return the facts about the server's disks from its document, as ``{"state": …, "want": …}``: the state fields and
    the requested fields that describe the disks (``NOTES``, ``WANTED``)."""
    state = document.state
    return {"state": {name: state[name] for name in NOTES if name in state},
            "want": {name: document.want[name] for name in WANTED}}


def check_disk_record(document: Document, record: Fields, files: Any = ()) -> None:
    """Raise ``Conflict`` if the *record*, which lies on storage that other hosts can write to, cannot be true. *files*:
    further names of disks in it. Names of disks become paths and names of images, so that only those of disks are
    taken."""
    state, want = record.get("state"), record.get("want")
    if isinstance(state, dict) and isinstance(want, dict):
        made, sizes = state.get("made", []), state.get("sizes", {})
        if isinstance(made, list) and isinstance(files, (list, tuple)) and isinstance(sizes, dict) and all(
                isinstance(file, str) and DISK_FILE.fullmatch(file)
                for file in (*files, *sizes, *(file for file in made if file != "config.iso"))):
            return
    raise Conflict(f"The record beside the disks of server {document.name!r} has names that are not those of disks, or "
                   "lacks facts about them, so the disks are not taken over. Look who can write to the storage, then "
                   "repair the record, or rebuild the server.")


def take_disk_facts(document: Document, record: Fields) -> None:
    """Copy the facts about the server's disks from *record*, which was checked (``check_disk_record``), into its
    *document*, and nothing else. The config drive is not among the disks: it is written again."""
    document.state.update((name, record["state"][name]) for name in NOTES if name in record["state"])
    document.state["made"] = [file for file in document.state.get("made", []) if file != "config.iso"]
    document.want.update((name, record["want"][name]) for name in WANTED if name in record["want"])
