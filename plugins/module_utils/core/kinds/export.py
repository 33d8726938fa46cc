# SPDX-License-Identifier: GPL-3.0-or-later
"""volume_export: permission for one server of another host to use a volume of this host. server_export: a copy of a
stopped server in a folder of its host, which runs with libvirt alone."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind, Record
from ..values import Boolean, Choices, Integer, ListOf, Nullable, Text, Uuid, Value
from .common import NAME, REFERENCE, TIME, Resource

#: Common name in the certificate of an agent.
PEER = Text(1, 255)
#: The host of an attached volume, where that is not the server's host. Stored with the attachment.
ORIGIN = Record(
    host=Field(Text(0, 255), "The host that has the volume.", required=True),
    peer=Field(Nullable(PEER), "Common name in the certificate of its agent; null for one without TLS.",
               default=None),
    address=Field(Nullable(Text(1, 300)), "host:port of its agent.", default=None),
    volume_name=Field(NAME, "Name of the volume.", required=True),
    size=Field(Integer(1, 2**20), "Size in GiB.", required=True),
    format=Field(Choices("raw", "qcow2"), "Format for QEMU: raw through the network.", required=True),
    multiattach=Field(Boolean(), "Whether several servers may use it at the same time.", required=True),
    pool=Field(Nullable(Text(1, 63)), "Pool of both hosts that it lies in; null when it goes through the network.",
               default=None),
)


class VolumeExport(Kind):
    """Permission for one server of another host to use a volume of this host. Its key is SERVER:VOLUME, and its uuid
    equals the attachment's. The module volume_attachment creates it, a migration of the server changes its ``peers``,
    and it is removed with the attachment.
    """

    noun, plural = "volume_export", "volume_exports"

    id = Field(Uuid(), "The uuid, derived from the uuids of server and volume.", on=FIXED, option=False,
               sample="5b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11")
    name = Field(Text(1, 600), "SERVER:VOLUME, with their uuids.", on=READ,
                 sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d:0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")
    server = Field(Uuid(), "The uuid of the server.", required=True, on=FIXED,
                   sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    server_name = Field(Text(0, 255), "The server's name.", default="", sample="web1")
    volume = Field(REFERENCE, "The volume, by name or uuid.", required=True, on=FIXED,
                   sample="0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")
    peers = Field(ListOf(PEER), "Common names in the certificates of the agents that may use it: one, and two while "
                  "the server goes from one host to another.", required=True, sample=["kvm2"])
    readonly = Field(Boolean(), "Whether it may only be read.", default=False, on=FIXED, sample=False)
    copied = Field(Boolean(), "From a cloud: whether the other host only copies the volume, which no server has. It "
                   "is read through the network, also if both hosts reach its pool.", default=False, on=FIXED,
                   option=False)
    volume_name = Field(Text(), "The volume's name.", on=READ, sample="data")
    origin = Field(Nullable(Value()), "Facts about the volume for the attachment on the other host.", on=READ,
                   sample=None)
    status = Field(Choices("open", "closed"), "Whether it is served now.", on=READ, sample="open")
    fault = Field(Nullable(Value()), "{code, message, created} of the last failure, until one succeeds.", on=READ,
                  sample=None)
    created_at = Field(TIME, "When it was created, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")
    updated_at = Field(TIME, "When it was last changed, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")


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
