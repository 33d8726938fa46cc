# SPDX-License-Identifier: GPL-3.0-or-later
"""image: the content that a server boots from; image_member: a project with which an image is shared."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind, Record
from ..values import Boolean, Choices, Integer, ListOf, MapOf, Nullable, OneOf, Text
from .common import REFERENCE, TIME, Resource

#: Formats that servers boot from, and formats of kernels and ramdisks.
DISKS, BOOT = ("raw", "qcow2", "iso"), ("aki", "ari")
#: Formats that the host converts to qcow2 when it receives them.
CONVERTED_FORMATS = ("vmdk", "vhd", "vhdx")
FORMATS = (*DISKS, *BOOT, *CONVERTED_FORMATS)
CHECKSUM = Text(8, 135, "(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})",
                "must be sha256: or sha512: followed by the lower-case hexadecimal digest")

#: Text that is taken from the description of an OVA.
_DESCRIBED = Text(0, 255)


def _ovf() -> Record:
    """Return the value type of the description of an OVA."""
    return Record(
        guests=Field(Integer(0), "Number of guests that it describes; the other fields are those of the first one."),
        name=Field(_DESCRIBED, "Name of the guest."),
        os=Field(_DESCRIBED, "Its operating system, as the program that exported it names it."),
        vcpus=Field(Nullable(Integer(1)), "Number of virtual CPUs."),
        ram=Field(Nullable(Integer(1)), "Memory in MiB."),
        firmware=Field(Choices("bios", "uefi"), "Its firmware."),
        secure_boot=Field(Boolean(), "Whether UEFI started only signed software."),
        nics=Field(ListOf(Record(network=Field(_DESCRIBED, "Name of its network there."),
                                 model=Field(_DESCRIBED, "Model of the card."))), "Its NICs in order."),
        disks=Field(ListOf(Record(name=Field(_DESCRIBED, "File in the archive."),
                                  size=Field(Nullable(Integer(0)), "Bytes that the guest sees."),
                                  bus=Field(Nullable(_DESCRIBED), "Its bus."),
                                  controller=Field(_DESCRIBED, "Model of its controller."))), "Its disks in order."),
    )


class Image(Resource):
    """Content that servers boot from: a disk (raw, qcow2, vmdk, vhd, vhdx), a CD (iso), a kernel (aki) or a ramdisk
    (ari)."""

    noun, plural = "image", "images"
    sample_actions = ("record", "receive")
    sample_changes = {"min_ram": (64, 128)}
    unfilled = frozenset(("queued",))
    found = {"disk_format": "checksum"}
    of_clouds = frozenset(("visibility", "is_protected"))

    source = Field(
        OneOf(
            Record(path=Field(Text(1, 4096), "A file on the host, in one of the agent's image_paths.", required=True)),
            Record(url=Field(Text(1, 2048, "https?://.+", "must begin with http:// or https://"),
                             "Source URL.", required=True)),
            Record(volume=Field(REFERENCE, "A volume of the host that no server has; it is copied.", required=True)),
            Record(upload=Field(Boolean(), "The content follows with PUT /v1/image/{key}/data.", required=True),
                   size=Field(Integer(0, 2**62), "Number of bytes that will follow. Too many are refused immediately, "
                              "also in a dry run."),
                   location=Field(Text(1, 1024, "rbd://[!-~]+", "must begin with rbd://"), "Location of the content "
                                  "in Ceph. A host that reads there imports it immediately if a checksum is given; "
                                  "otherwise the content follows.")),
        ),
        "Where the content comes from: {path}, {url}, {volume} or {upload: true, size, location}. A url needs a "
        "checksum.",
        on="create", option=False, compared=False)
    checksum = Field(CHECKSUM, "Digest of the content as delivered, sha256:HEX or sha512:HEX.", on=FIXED,
                     sample="sha256:" + "0" * 64)
    disk_format = Field(Choices(*FORMATS), "Format; it is always found from the content, and a wrong claim is refused.",
                        on=FIXED, aliases=("format",), sample="qcow2")
    ova_disk = Field(Nullable(Text(1, 200)), "File of the disk to take out of an OVA that has several.", default=None,
                     on=FIXED, sample=None)
    kernel = Field(Nullable(REFERENCE), "Image of format aki that servers of this image boot.", default=None,
                   on=FIXED, sample=None)
    ramdisk = Field(Nullable(REFERENCE), "Image of format ari for the kernel.", default=None, on=FIXED,
                    sample=None)
    cmdline = Field(Nullable(Text(0, 2048)), "Kernel command line; needs a kernel, or is of format aki itself.",
                    default=None, on=FIXED, sample=None)
    min_disk = Field(Integer(0, 2**20), "Smallest root disk in GiB that a server of this image may have.", default=0,
                     sample=1)
    min_ram = Field(Integer(0, 2**26), "Smallest memory in MiB that a server of this image may have.", default=0,
                    sample=64)
    properties = Field(MapOf(Text(1, 255), Text(0, 255)),
                       "Image properties as in Glance, such as img_config_drive=mandatory.", default={},
                       sample={"os_distro": "debian"})
    visibility = Field(Choices("public", "private", "shared", "community"), "Projects of a cloud that may use it: all "
                       "(V(public), set by administrators), its own (V(private)), or also those that it is shared with "
                       "(V(shared), of a new image when omitted); a V(community) image is for all, by uuid.",
                       sample="shared")
    is_protected = Field(Boolean(), "Whether a cloud refuses to remove it.", aliases=("protected",), sample=False)
    status = Field(Choices("queued", "saving", "active", "error"), "Whether the content is complete.", on=READ,
                   sample="active")
    consistency = Field(Nullable(Choices("stopped", "frozen", "crash-consistent")), "State of the file systems in an "
                        "image that C(create_image) made of a server; null for other images.", on=READ, sample=None)
    size = Field(Integer(0, 2**62), "Bytes stored.", on=READ, sample=20971520)
    virtual_size = Field(Integer(0, 2**62), "Bytes that a guest sees.", on=READ, sample=1073741824)
    ovf = Field(Nullable(_ovf()), "The guest that the OVA describes: C(guests) (their number), C(name), C(os), "
                "C(vcpus), C(ram), C(firmware), C(secure_boot), C(nics) and C(disks). null for an image that does not "
                "come from an OVA.", on=READ, sample=None)


class ImageMember(Kind):
    """A project that may use a shared image of a cloud. Its key is PROJECT:IMAGE."""

    noun, plural = "image_member", "image_members"
    sample_changes = {"image": (None, "5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11")}

    id = Field(Text(), "The uuid, derived from project and image.", on=READ,
               sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(1, 600), "PROJECT:IMAGE, with their ids.", on=READ,
                 sample="0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a:5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11")
    image = Field(REFERENCE, "The image, by name or uuid; by uuid for a project that has not accepted it. Reported by "
                  "uuid.", required=True, on=FIXED, sample="5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11")
    project = Field(Text(1, 255, r"[^:]+", "must be a project by id or name"), "The project, by "
                    "id; for administrators also by name. The login's own when omitted, to accept or reject an image.",
                    on=FIXED, sample="0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a")
    status = Field(Choices("pending", "accepted", "rejected"), "The answer of the project. Lists of images have only "
                   "accepted ones.", option=False, sample="pending")
    created_at = Field(TIME, "When it was shared, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")
    updated_at = Field(TIME, "When the project last answered, ISO 8601 in UTC.", on=READ,
                       sample="2026-11-20T20:00:00Z")
