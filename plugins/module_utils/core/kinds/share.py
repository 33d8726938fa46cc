# SPDX-License-Identifier: GPL-3.0-or-later
"""share_attachment: a share (a folder that hosts provide) which a server of a cloud mounts."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind
from ..values import Choices, Nullable, Text, Uuid
from .common import REFERENCE


class ShareAttachment(Kind):
    """A shared directory that is attached to a server; the guest mounts it through virtiofs. Its key is SERVER:SHARE.
    """

    noun, plural = "share_attachment", "share_attachments"
    sample_actions = ("record", "attach")
    sample_changes = {"tag": (None, "files")}

    id = Field(Uuid(), "The uuid, which follows from server and share.", on=READ,
               sample="1b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11")
    server = Field(REFERENCE, "The server, by name or uuid.", required=True, on=FIXED,
                   sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    share = Field(REFERENCE, "The share, by its uuid or its name in the cloud's setting C(shares).", required=True,
                  on=FIXED, sample="e8debdc0-447a-4376-a10a-4cd9122d7986")
    tag = Field(Text(1, 36, "[a-zA-Z0-9-]+", "must be letters, digits and hyphens"), "Tag for the guest's mount "
                "command; the share's uuid when omitted.", on=FIXED,
                sample="files")
    server_name = Field(Text(), "The server's name.", on=READ, sample="web1")
    share_name = Field(Text(), "The share's name in the cloud's settings.", on=READ, sample="files")
    status = Field(Choices("attaching", "inactive", "active", "detaching", "error"), "C(active) while the guest is "
                   "on, C(inactive) while it is off; C(error) if the host could not provide it.", on=READ,
                   sample="inactive")
    export_location = Field(Nullable(Text()), "HOST:FOLDER, for administrators.", on=READ, sample="kvm1:/srv/files")
