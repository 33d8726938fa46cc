# SPDX-License-Identifier: GPL-3.0-or-later
"""volume: a disk that is independent of servers; volume_snapshot: its content at one moment; volume_attachment;
volume_backup: a copy outside the pool; storage_pool: the storage of volumes in a cloud; volume_transfer: the offer of a
volume to other projects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..fields import FIXED, READ, Field, Kind, Record
from ..values import Boolean, Choices, Integer, ListOf, MapOf, Nullable, Text, Uuid, Value
from .common import DESCRIPTION, NAME, REFERENCE, REQUEST, TAG, TIME, Resource
from .export import ORIGIN, PEER

#: Formats of volumes. A volume in the format ``luks`` is encrypted by QEMU with a key of the host.
FORMATS = ("qcow2", "raw", "luks")
#: Encryption key of a disk, which a cloud sends to the host.
DISK_KEY = Nullable(Text(64, 64, "[0-9a-f]*", "must be 64 hexadecimal digits"))
#: Name of a pool in the agent's setting ``pools``.
POOL = Text(1, 63, r"[A-Za-z0-9][A-Za-z0-9_.\-]*", "may have letters, digits, and . - _ only")
SIZE = Integer(1, 2**20)
#: A volume of another host, which a new volume copies: its volume_export (``copied``), and the agent that serves it.
REMOTE_SOURCE = Record(
    export=Field(Uuid(), "The uuid of the volume_export.", required=True),
    peer=Field(PEER, "Common name in the certificate of the agent that has the volume.", required=True),
    address=Field(Text(1, 300), "host:port of that agent.", required=True),
    size=Field(SIZE, "Size in GiB.", required=True),
    bootable=Field(Boolean(), "Whether its content comes from an image.", default=False),
)
#: Cinder's status words that are reported; the last one only by a cloud.
STATUSES = ("creating", "available", "in-use", "error", "awaiting-transfer")


#: Buses that guests see volumes on; they determine the letters of device names.
BUSES = ("virtio", "scsi", "sata")
DEVICE = Text(3, 8, r"(/dev/)?(vd|sd)[a-z]", "must be a device name such as vdb or sda")


def _metadata() -> Field:
    return Field(MapOf(Text(1, 255), Text(0, 255)), "Keys and values, 255 characters each at most.", default={},
                 sample={"role": "db"})


class Volume(Resource):
    """A disk that continues to exist when the servers that used it are deleted."""

    noun, plural = "volume", "volumes"
    sample_actions = ("record", "grow")
    sample_changes = {"size": (10, 20)}
    alternatives = (frozenset(("image", "source_volume", "snapshot")),)

    name = Field(NAME, "The name.", required=True, aliases=("display_name",), sample="data")
    description = Field(DESCRIPTION, "Free text of at most 255 characters.", default="",
                        aliases=("display_description",), sample="for the shop")
    size = Field(SIZE, "Size in GiB. Required for an empty volume; otherwise it defaults to the size of its source, "
                 "rounded up. It can grow, also while a running server has it, and never shrinks.", sample=10)
    pool = Field(POOL, "Its pool, one of the agent's setting C(pools).", default="default", on=FIXED,
                 aliases=("volume_type",), sample="default")
    format = Field(Choices(*FORMATS), "Format of its content on the host; when omitted, the format of an encrypted "
                   "source, or the format of the pool. With V(luks) it is encrypted (AES-256 in XTS mode), in pools "
                   "that are folders; the host generates and keeps the key. A copy of an encrypted volume is also "
                   "encrypted.", on=FIXED, sample="qcow2")
    key = Field(DISK_KEY, "From a cloud: its encryption key.", default=None, on="create update", secret=True,
                option=False, compared=False)
    image = Field(Nullable(REFERENCE), "Image as its source, by name or uuid.", default=None, on=FIXED,
                  sample=None)
    source_volume = Field(Nullable(REFERENCE), "Volume of this host to copy, by name or uuid.",
                          default=None, on=FIXED, aliases=("volume",), sample=None)
    snapshot = Field(Nullable(REFERENCE), "Volume snapshot as its source, by name or uuid.", default=None,
                     on=FIXED, aliases=("snapshot_id",), sample=None)
    adopt = Field(Boolean(), "From a cloud: whether the volume takes over complete content that the pool has under its "
                  "uuid, from a host that held it before.", default=False, on=FIXED, option=False, compared=False,
                  sample=False)
    reimage = Field(
        Nullable(Record(image=Field(Nullable(REFERENCE), "The image, by name or uuid.", default=None),
                        backup=Field(Nullable(Uuid()), "Instead of an image: the backup, by uuid.", default=None),
                        request=Field(REQUEST, "Key of the request: done once for each.", required=True))),
        "Replace its content, which is lost, by the content of an image or a backup.", default=None, on="create update",
        option=False,
        compared=False)
    remote_source = Field(Nullable(REMOTE_SOURCE), "From a cloud: volume of another host to copy.", default=None,
                          on="create update", option=False, compared=False)
    existing = Field(Nullable(Text(1, 255)), "From a cloud: name of content in its pool that it takes over.",
                     default=None, on="create update", option=False, compared=False)
    keep_content = Field(Boolean(), "From a cloud: whether its content stays in the pool when it is removed.",
                         default=False, on="create update", option=False, compared=False)
    move_to = Field(Nullable(POOL), "From a cloud: pool of this host that its content moves to; null when the content "
                    "is there. The pool that it has ends the move. Requests repeat it until it is null: QEMU copies "
                    "the content for a server that runs.", default=None, on="create update", option=False,
                    compared=False)
    metadata = _metadata()
    multiattach = Field(Boolean(), "Whether several servers may use it at the same time. They need a cluster file "
                        "system, and the format V(raw).", default=False, on=FIXED,
                        aliases=("is_multiattach",),
                        sample=False)
    bootable = Field(Boolean(), "Whether its content comes from an image, directly or through copies.", on=READ,
                     sample=False)
    status = Field(Choices(*STATUSES), "Cinder's status word.", on=READ, sample="available")
    attachments = Field(ListOf(Value()), "The servers that have it: {id, server, server_name, device}.", on=READ,
                        sample=[{"id": "5b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11", "device": "vdb", "server_name": "web1",
                                 "server": "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"}])
    shared = Field(Boolean(), "Whether other hosts reach its pool, too.", on=READ, sample=False)
    host = Field(Text(0, 255), "The host.", on=READ, sample="kvm1")
    fault = Field(Nullable(Value()), "{code, message, created} of the last failure, until one succeeds.", on=READ,
                  sample=None)


class VolumeSnapshot(Resource):
    """A copy of a volume's content at one moment, in the same pool. It does not depend on the volume."""

    noun, plural = "volume_snapshot", "volume_snapshots"
    sample_actions = ("record", "make")
    sample_changes = {"description": ("", "before the upgrade")}

    name = Field(NAME, "The name.", required=True, aliases=("display_name",), sample="monday")
    description = Field(DESCRIPTION, "Free text of at most 255 characters.", default="",
                        aliases=("display_description",), sample="for the shop")
    volume = Field(REFERENCE, "The volume, by name or uuid. The snapshot stays when the volume goes.", required=True,
                   on=FIXED, sample="0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")
    metadata = _metadata()
    size = Field(SIZE, "Size in GiB.", on=READ, sample=10)
    pool = Field(POOL, "Its pool, the pool of its volume.", on=READ, sample="default")
    format = Field(Choices(*FORMATS), "Format of its content on the host.", on=READ, sample="qcow2")
    bootable = Field(Boolean(), "Whether its volume was made from an image.", on=READ, sample=False)
    status = Field(Choices("creating", "available", "error"), "Cinder's status word.", on=READ, sample="available")
    host = Field(Text(0, 255), "The host.", on=READ, sample="kvm1")
    fault = Field(Nullable(Value()), "{code, message, created} of the last failure, until one succeeds.", on=READ,
                  sample=None)


class VolumeBackup(Resource):
    """A copy of a volume in the host's backup target. It remains when the volume is deleted."""

    noun, plural = "volume_backup", "volume_backups"
    sample_actions = ("record", "make")
    sample_changes = {"description": ("", "before the upgrade")}

    volume = Field(Nullable(REFERENCE), "The volume to back up, by name or uuid. Without a volume and a snapshot, a "
                   "backup with this uuid is adopted that the host's backup target has already.", default=None,
                   on=FIXED, sample="0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")
    snapshot = Field(Nullable(REFERENCE), "Snapshot of the volume to back up, by name or uuid, instead of the volume "
                     "as it is now.", default=None, on=FIXED, sample=None)
    parent = Field(Nullable(Uuid()), "An earlier backup, by uuid. The new backup is incremental: it stores only what "
                   "differs from its parent, and needs it for a restore.", default=None, on=FIXED, sample=None)
    record = Field(Nullable(MapOf(Text(1, 255), Value())), "From a cloud: its facts about the backup, for the "
                   "catalogue of the backup.", default=None, on="create update", option=False, compared=False)
    size = Field(SIZE, "Size of the volume in GiB.", on=READ, sample=10)
    stored_bytes = Field(Integer(0, 2**63 - 1), "Bytes that the backup takes, without its parents.", on=READ,
                         sample=1073741824)
    stored_chunks = Field(Integer(0, 2**63 - 1), "Chunks of the volume that the backup stores.", on=READ, sample=1024)
    checksum = Field(Nullable(Text(64, 64)), "SHA-256 of the stored chunks, in hexadecimal digits.", on=READ,
                     sample="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")
    encrypted = Field(Boolean(), "Whether its content is encrypted, with the key of the volume.", on=READ, sample=False)
    target = Field(Nullable(Text()), "Identity of the directory or bucket: the same on each host that reaches it.",
                   on=READ, sample="backup:kvm1:/srv/backups")
    status = Field(Choices("creating", "available", "error"), "Cinder's status word.", on=READ, sample="available")
    host = Field(Text(0, 255), "The host.", on=READ, sample="kvm1")
    fault = Field(Nullable(Value()), "{code, message, created} of the last failure, until one succeeds.", on=READ,
                  sample=None)


#: Statuses of Cinder that a listed backup can have.
BACKUP_STATUSES = ("creating", "available", "restoring", "deleting", "error")


class CloudVolumeBackup(Resource):
    """A copy of a cloud's volume in a directory or bucket. It remains when the volume is deleted."""

    noun, plural = "volume_backup", "volume_backups"
    sample_actions = ("record", "make")
    sample_changes = {"description": ("", "before the upgrade")}

    id = Field(Uuid(), "The uuid; generated when the backup is created.", on=FIXED,
               sample="6d2f7c8e-1b7a-4c1b-8e54-0f6f3b1c9a42")
    name = Field(NAME, "The name of the backup.", required=True, aliases=("display_name",), sample="monday")
    description = Field(DESCRIPTION, "Free text of at most 255 characters.", default="",
                        aliases=("display_description",), sample="for the shop")
    volume = Field(REFERENCE, "The volume to back up, by name or uuid.", on=FIXED, required=True,
                   sample="0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")
    snapshot = Field(Nullable(REFERENCE), "Snapshot of the volume to back up, by name or uuid, instead of the volume "
                     "as it is now.", default=None, on=FIXED, sample=None)
    incremental = Field(Boolean(), "Whether the backup stores only what differs from the volume's latest backup, its "
                        "parent, which a restore then needs too.", default=False, on=FIXED,
                        aliases=("is_incremental",), sample=False)
    container = Field(Nullable(Text(0, 255)), "A label, as in Cinder; the directory or bucket is the same for all.",
                      default=None, on=FIXED, sample=None)
    metadata = Field(MapOf(Text(1, 255), Text(0, 255)), "Keys and values, 255 characters each at most.", default={},
                     sample={"keep": "30d"})
    force = Field(Boolean(), "Whether to back up a volume that servers have, too. With C(state=restored), whether to "
                  "overwrite a volume that was changed after the backup, and to restore a volume again that already "
                  "has the backup's content.", default=False, on="create", compared=False)
    restore = Field(Record(volume=Field(REFERENCE, "The volume, by name or uuid. An unknown name creates a volume.",
                                        required=True),
                           force=Field(Boolean(), "Whether to overwrite a volume that was changed after the backup.",
                                       default=False)),
                    "The volume to which the backup is restored.", on="create", compared=False, option=False)
    parent = Field(Nullable(Uuid()), "The backup that this incremental one needs; null for a full backup.", on=READ,
                   sample=None)
    has_dependent_backups = Field(Boolean(), "Whether incremental backups need this one. It cannot be removed before "
                                  "them.", on=READ, sample=False)
    size = Field(SIZE, "Size of the volume in GiB.", on=READ, sample=10)
    stored_chunks = Field(Integer(0, 2**31), "Parts of the volume, of 1 MiB each, that this backup stores.", on=READ,
                          sample=1024)
    data_timestamp = Field(TIME, "The moment whose content the backup has, ISO 8601 in UTC.", on=READ,
                           sample="2026-11-20T20:00:00Z")
    status = Field(Choices(*BACKUP_STATUSES), "Cinder's status word.", on=READ, sample="available")
    fault = Field(Nullable(Text()), "Why the last task failed.", on=READ, sample=None)
    restored_volume = Field(Nullable(Uuid()), "With C(state=restored), the volume that has the backup's content. Only "
                            "the result of such a task has it.", on=READ, sample=None)


class VolumeAttachment(Kind):
    """The attachment of a volume to a server; at most one for each pair. Its key is SERVER:VOLUME (names or uuids), or
    its own uuid.
    """

    noun, plural = "volume_attachment", "volume_attachments"
    sample_actions = ("record", "attach")
    sample_changes = {"delete_on_termination": (False, True)}

    id = Field(Uuid(), "The uuid, derived from the uuids of server and volume.", on=FIXED, option=False,
               sample="5b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11")
    name = Field(Text(1, 600), "SERVER:VOLUME, with their uuids.", on=READ,
                 sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d:0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")
    server = Field(REFERENCE, "The server, by name or uuid.", required=True, on=FIXED,
                   sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    volume = Field(REFERENCE, "The volume, by name or uuid.", required=True, on=FIXED,
                   sample="0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")
    device = Field(DEVICE, "Device name such as V(vdb); chosen once when omitted. In a cloud the host chooses another "
                   "name if this one is not possible, as in Nova; the answer has it. A guest finds a volume by its "
                   "serial number, the first 20 characters of its uuid.", on=FIXED, sample="vdb")
    bus = Field(Choices(*BUSES), "Bus of the volume in the guest. Only V(virtio) and V(scsi) can be plugged into a "
                "running server.", default="virtio", on=FIXED, aliases=("disk_bus",), sample="virtio")
    tag = Field(Nullable(TAG), "Device tag, shown to the guest in the config drive that is made with the server.",
                default=None, on=FIXED, sample=None)
    readonly = Field(Boolean(), "Whether the guest may only read it.", default=False, on=FIXED, sample=False)
    boot_index = Field(Nullable(Integer(-1, 32)), "Position of this disk in the boot order; null or -1 for none. 0 is "
                       "the root disk, which only a new server gets.", default=None, on=FIXED, sample=None)
    delete_on_termination = Field(Boolean(), "Whether the volume is deleted with the server.", default=False,
                                  sample=False)
    replaces = Field(Nullable(REFERENCE), "Volume of the server, by name or uuid, that this one replaces while the "
                     "server runs: its content is copied over the content of this one, together with later writes of "
                     "the guest. The guest then continues with this one, on the same device and with the same serial "
                     "number, and the other volume is detached. It acts only when the volume is attached.",
                     default=None,
                     on=FIXED, compared=False, sample=None)
    origin = Field(Nullable(ORIGIN), "Location of another host's volume: the origin that its volume_export shows, "
                   "with the address.", default=None, option=False, compared=False, sample=None)
    server_name = Field(Text(), "The server's name.", on=READ, sample="web1")
    volume_name = Field(Text(), "The volume's name.", on=READ, sample="data")
    serial = Field(Nullable(Text(0, 64)), "Serial number in the guest: the first 20 characters of the volume's uuid, "
                   "or of the uuid of the volume that it replaced.", default=None, on=FIXED,
                   option=False,
                   compared=False, sample="0b9f1a52-6ea0-4b9c-a")
    status = Field(Choices("attaching", "attached", "error"), "Whether the server has it.", on=READ, sample="attached")
    fault = Field(Nullable(Value()), "{code, message, created} of the last failure, until one succeeds.", on=READ,
                  sample=None)
    created_at = Field(TIME, "When it was created, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")
    updated_at = Field(TIME, "When it was last changed, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")


class CloudStoragePool(Kind):
    """A pool of volumes in a cloud, with the hosts that reach it. Pools are defined only in the settings of agents."""

    noun, plural = "storage_pool", "storage_pools"

    id = Field(Uuid(), "The uuid, the same for all hosts that reach the pool.", on=READ,
               sample="2b1f0c7e-3a53-5c0e-9b0e-5f1d2a7c4e91")
    name = Field(POOL, "The pool's name in the settings of the first of its hosts.", on=READ, sample="ceph")
    type = Field(Choices("dir", "nfs", "lvm", "rbd"), "The type of its storage.", on=READ, sample="rbd")
    identity = Field(Text(), "The storage itself, as all its hosts report it.", on=READ,
                     sample="rbd:5d1c6a8e-0f0b-4f5a-9d3e-6a1f0c2b7e44/volumes")
    shared = Field(Boolean(), "Whether several hosts can reach it.", on=READ, sample=True)
    state = Field(Choices("up", "down"), "V(up) if at least one of its hosts can use it now.", on=READ, sample="up")
    total_gb = Field(Nullable(Integer()), "Its size in GiB; null until a host could read it.", on=READ, sample=9000)
    free_gb = Field(Nullable(Integer()), "Its free GiB.", on=READ, sample=7200)
    volumes = Field(Integer(), "Number of volumes in it.", on=READ, sample=12)
    volumes_gb = Field(Integer(), "The GiB that these volumes have together; thin volumes use less.", on=READ,
                       sample=240)
    hosts = Field(ListOf(Value(), 2**31), "The hosts that reach it: {host, name, state, reason}. C(name) is the pool's "
                  "name in the settings of the host's agent, C(reason) says why it is down there.", on=READ,
                  sample=[{"host": "kvm1", "name": "ceph", "state": "up", "reason": ""}])


class VolumeTransfer(Kind):
    """An offer of a cloud's volume to other projects. It ends when a project accepts it or the owner withdraws it."""

    noun, plural = "volume_transfer", "volume_transfers"
    sample_actions = ("record",)
    sample_changes: ClassVar[Mapping[str, tuple[Any, Any]]] = {"volume": (None, "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")}

    id = Field(Uuid(), "The uuid; generated when the transfer is created.", on=FIXED,
               sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(NAME, "The name of the transfer.", on=FIXED, required=True, sample="handover")
    volume = Field(REFERENCE, "The volume, by name or uuid. It must be available.", on=FIXED, required=True,
                   sample="0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11")
    no_snapshots = Field(Boolean(), "Whether the volume's snapshots stay in their project.", on=FIXED, default=False,
                         sample=False)
    auth_key = Field(Nullable(Text()), "The key with which another project accepts the transfer. Only the result of "
                     "the task that creates the transfer has it.", on=READ, sample="31f1a9c0de77e34f6d6b9c1b4c7f5d0e")
    accept = Field(Text(1, 255), "The key of a transfer that the caller's project accepts.", on="create", secret=True,
                   compared=False, option=False)
    created_at = Field(TIME, "When it was created, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")
