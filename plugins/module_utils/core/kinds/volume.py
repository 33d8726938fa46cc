# SPDX-License-Identifier: GPL-3.0-or-later
"""volume: a disk with a life of its own; volume_snapshot: a copy of one as it was at a moment; volume_attachment."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind, Record
from ..values import Boolean, Choices, Integer, ListOf, MapOf, Nullable, Text, Uuid, Value
from .common import REFERENCE, REQUEST, TAG, TIME, Resource
from .export import ORIGIN

#: The last one is encrypted, by QEMU's own LUKS, with a key that the host has.
FORMATS = ("qcow2", "raw", "luks")
#: What a cloud gives for a disk to be encrypted with.
DISK_KEY = Nullable(Text(64, 64, "[0-9a-f]*", "must be 64 hexadecimal digits"))
#: Name of a pool, as the agent's setting ``pools`` has it.
POOL = Text(1, 63, r"[A-Za-z0-9][A-Za-z0-9_.\-]*", "may have letters, digits, and . - _ only")
SIZE = Integer(1, 2**20)
#: Cinder's status words for what a host alone can see.
STATUSES = ("creating", "available", "in-use", "error")


#: What the guest sees a disk behind of; the letters of its name follow from it.
BUSES = ("virtio", "scsi", "sata")
DEVICE = Text(3, 8, r"(/dev/)?(vd|sd)[a-z]", "must be a device name such as vdb or sda")


def _metadata() -> Field:
    return Field(MapOf(Text(1, 255), Text(0, 255)), "Keys and values, 255 characters each at most.", default={},
                 sample={"role": "db"})


class Volume(Resource):
    """A disk that outlives the servers that it is attached to."""

    noun, plural = "volume", "volumes"
    alternatives = (frozenset(("image", "source_volume", "snapshot")),)

    size = Field(SIZE, "Size in GiB. Needed to make an empty one, else that of its source, rounded up. It can grow, "
                 "also while a running server has it, and never shrinks.", sample=10)
    pool = Field(POOL, "The pool it lies in, one of the agent's setting C(pools).", default="default", on=FIXED,
                 aliases=("volume_type",), sample="default")
    format = Field(Choices(*FORMATS), "Format of its content on the host; that of its source when that is encrypted, "
                   "else that of the pool, when omitted. With V(luks) it is encrypted (AES-256 in XTS mode), in pools "
                   "that are folders; the host draws the key and keeps it. A copy of an encrypted volume is encrypted "
                   "too.", on=FIXED, sample="qcow2")
    key = Field(DISK_KEY, "What a cloud has it encrypted with.", default=None, on="create update", secret=True,
                option=False, compared=False)
    image = Field(Nullable(REFERENCE), "Image that it is made from, by name or uuid.", default=None, on=FIXED,
                  sample=None)
    source_volume = Field(Nullable(REFERENCE), "Volume of this host that it is made a copy of, by name or uuid.",
                          default=None, on=FIXED, aliases=("volume",), sample=None)
    snapshot = Field(Nullable(REFERENCE), "Volume snapshot that it is made from, by name or uuid.", default=None,
                     on=FIXED, aliases=("snapshot_id",), sample=None)
    reimage = Field(
        Nullable(Record(image=Field(REFERENCE, "The image, by name or uuid.", required=True),
                        request=Field(REQUEST, "Key of the request: done once for each.", required=True))),
        "Have its content, which is lost, made anew from an image.", default=None, on="create update", option=False,
        compared=False)
    metadata = _metadata()
    multiattach = Field(Boolean(), "Whether several servers may have it at once. They need a file system made for "
                        "that, and the format is V(raw).", default=False, on=FIXED, aliases=("is_multiattach",),
                        sample=False)
    bootable = Field(Boolean(), "Whether it was made from an image, directly or by way of a copy.", on=READ,
                     sample=False)
    status = Field(Choices(*STATUSES), "Cinder's status word.", on=READ, sample="available")
    attachments = Field(ListOf(Value()), "The servers that have it: {id, server, server_name, device}.", on=READ,
                        sample=[{"id": "5b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11", "device": "vdb", "server_name": "web1",
                                 "server": "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"}])
    shared = Field(Boolean(), "Whether its pool is one that other hosts reach too.", on=READ, sample=False)
    host = Field(Text(0, 255), "The host it is on.", on=READ, sample="kvm1")
    fault = Field(Nullable(Value()), "{code, message, created} of the last failure, until one succeeds.", on=READ,
                  sample=None)


class VolumeSnapshot(Resource):
    """The content of a volume as it was at one moment; a copy of its own in the same pool."""

    noun, plural = "volume_snapshot", "volume_snapshots"

    volume = Field(REFERENCE, "The volume, by name or uuid. The snapshot stays when the volume goes.", required=True,
                   on=FIXED, sample="0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")
    metadata = _metadata()
    size = Field(SIZE, "Size in GiB.", on=READ, sample=10)
    pool = Field(POOL, "The pool it lies in, which is its volume's.", on=READ, sample="default")
    format = Field(Choices(*FORMATS), "Format of its content on the host.", on=READ, sample="qcow2")
    bootable = Field(Boolean(), "Whether its volume was made from an image.", on=READ, sample=False)
    status = Field(Choices("creating", "available", "error"), "Cinder's status word.", on=READ, sample="available")
    host = Field(Text(0, 255), "The host it is on.", on=READ, sample="kvm1")
    fault = Field(Nullable(Value()), "{code, message, created} of the last failure, until one succeeds.", on=READ,
                  sample=None)


class VolumeAttachment(Kind):
    """A volume in a server. There is one of the two; its key is SERVER:VOLUME, each a name or a uuid, or its uuid."""

    noun, plural = "volume_attachment", "volume_attachments"

    id = Field(Uuid(), "The uuid, which follows from those of server and volume.", on=FIXED, option=False,
               sample="5b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11")
    name = Field(Text(1, 600), "SERVER:VOLUME, with their uuids.", on=READ,
                 sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d:0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")
    server = Field(REFERENCE, "The server, by name or uuid.", required=True, on=FIXED,
                   sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    volume = Field(REFERENCE, "The volume, by name or uuid.", required=True, on=FIXED,
                   sample="0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")
    device = Field(DEVICE, "Device name such as V(vdb); drawn once when omitted. In a cloud the host gives "
                   "another name where it cannot give this one, as with Nova; the answer has it. A guest finds a "
                   "volume by its serial number, the first 20 characters of its uuid.", on=FIXED, sample="vdb")
    bus = Field(Choices(*BUSES), "What the guest sees it behind of. Only V(virtio) and V(scsi) can be plugged into a "
                "running server.", default="virtio", on=FIXED, aliases=("disk_bus",), sample="virtio")
    tag = Field(Nullable(TAG), "Device tag, shown to the guest in the config drive that is made with the server.",
                default=None, on=FIXED, sample=None)
    readonly = Field(Boolean(), "Whether the guest may only read it.", default=False, on=FIXED, sample=False)
    boot_index = Field(Nullable(Integer(-1, 32)), "Turn of this disk among those to boot from; null or -1 for never. 0 "
                       "is the root disk and is given when the server is made.", default=None, on=FIXED, sample=None)
    delete_on_termination = Field(Boolean(), "Whether the volume is deleted with the server.", default=False,
                                  sample=False)
    replaces = Field(Nullable(REFERENCE), "Volume of the server, by name or uuid, whose place this one takes while the "
                     "server runs: its content is copied, over that of this one, and what the guest writes meanwhile "
                     "too; then the guest goes on with this one, on the same device and with the same serial number, "
                     "and the other one is detached. Said when it is attached; later it means nothing.", default=None,
                     on=FIXED, compared=False, sample=None)
    origin = Field(Nullable(ORIGIN), "Where the volume is, when it is another host's: what the volume_export there "
                   "shows as its origin, with the address.", default=None, option=False, compared=False, sample=None)
    server_name = Field(Text(), "The server's name.", on=READ, sample="web1")
    volume_name = Field(Text(), "The volume's name.", on=READ, sample="data")
    serial = Field(Nullable(Text(0, 64)), "Serial number that the guest sees: the first 20 characters of the volume's "
                   "uuid, or of that of the volume whose place it took.", default=None, on=FIXED, option=False,
                   compared=False, sample="0b9f1a52-6ea0-4b9c-a")
    status = Field(Choices("attaching", "attached", "error"), "Whether the server has it.", on=READ, sample="attached")
    fault = Field(Nullable(Value()), "{code, message, created} of the last failure, until one succeeds.", on=READ,
                  sample=None)
    created_at = Field(TIME, "When it was made, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")
    updated_at = Field(TIME, "When it was last changed, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")
