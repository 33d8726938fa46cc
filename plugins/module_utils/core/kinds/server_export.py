# SPDX-License-Identifier: GPL-3.0-or-later
"""server_export: a copy of a stopped server in a folder of its host, which runs with libvirt alone."""

from __future__ import annotations

from ..fields import FIXED, READ, Field
from ..values import Choices, Integer, ListOf, Nullable, Text, Value
from .common import REFERENCE, Resource


class ServerExport(Resource):
    """A copy of a stopped server in a folder of its host: its disks, and a definition for libvirt. It runs elsewhere
    without Magnetar, and remains when the server is deleted.
    """

    noun, plural = "server_export", "server_exports"
    sample_actions = ("record", "write")
    sample_changes = {"server": (None, "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")}

    server = Field(REFERENCE, "The server, by name or uuid. It must be stopped while it is exported.", required=True,
                   on=FIXED, sample="0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")
    folder = Field(Nullable(Text(1, 1024)), "Folder on the host for the export; new or empty. It must lie in one of "
                   "the agent's C(export_paths). Default: a folder with the name of the export in the first of them.",
                   default=None, on=FIXED, sample="/var/lib/magnetar/exports/web1")
    server_name = Field(Nullable(Text()), "The server's name when it was exported.", on=READ, sample="web1")
    files = Field(ListOf(Value(), 2**31), "The files in the folder: {name, bytes, sha256}.", on=READ,
                  sample=[{"name": "vda.qcow2", "bytes": 1073741824,
                           "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}])
    stored_bytes = Field(Integer(0, 2**63 - 1), "Bytes of all files.", on=READ, sample=1073745920)
    notes = Field(ListOf(Text()), "What differs from the server, or must be checked on the other host.", on=READ,
                  sample=["The guest had access to the share scratch, which the export leaves out."])
    status = Field(Choices("creating", "available", "missing", "error"), "Whether the export is complete; V(missing): "
                   "its files have been moved or removed.", on=READ, sample="available")
    host = Field(Text(0, 255), "The host.", on=READ, sample="kvm1")
    fault = Field(Nullable(Value()), "{code, message, created} of the last failure, until one succeeds.", on=READ,
                  sample=None)
