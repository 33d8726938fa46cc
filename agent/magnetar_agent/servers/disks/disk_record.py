# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts about a server's disks on storage that several hosts reach. They are kept beside the disks
(``disk_owner``, ``rbd_owner``), so that another host can take over the disks of a host that is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def disk_facts(document: Document) -> Fields:
    """Return the facts about the server's disks from its document, as ``{"state": …, "want": …}``: the state fields and
    the requested fields that describe the disks (``NOTES``, ``WANTED``)."""
    state = document.state
    return {"state": {name: state[name] for name in NOTES if name in state},
            "want": {name: document.want[name] for name in WANTED}}


def take_disk_facts(document: Document, record: Fields) -> None:
    """Copy the facts about the server's disks from *record* into its *document*. The config drive is not among the
    disks: it is written again."""
    document.state.update(record["state"])
    document.state["made"] = [file for file in document.state.get("made", []) if file != "config.iso"]
    document.want.update(record["want"])
