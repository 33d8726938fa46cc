# SPDX-License-Identifier: GPL-3.0-or-later
"""Bodies of one-shots of a server, which agents and clouds take alike: ``POST /v1/server/{key}/events``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from .fields import Field, Kind
from .kinds import Image, Server
from .kinds.common import DESCRIPTION, NAME, REFERENCE, REQUEST
from .values import Boolean, Choices, MapOf, Nullable, Text, Value

#: The virtio device has room for 36 bytes.
SHARE_TAG = Text(1, 36, r"[A-Za-z0-9-]+", "must be letters, digits and hyphens")


class EventRequest(Kind):
    """Body of ``POST /v1/{kind}/{key}/events``: something done once, such as a reboot."""

    noun, plural = "event", "events"

    event = Field(Text(1, 64), "What to do: reboot, rebuild, create_image, crash_dump, change_password, "
                  "clear_password; of clouds only: attach_share, change_machine, detach_share, tell_guest.",
                  required=True, sample="reboot")
    args = Field(MapOf(Text(1, 64), Value()), "Arguments of the event; reboot takes type: soft or hard.", default={},
                 sample={"type": "soft"})
    request_id = Field(REQUEST, "Key of the event: sent again with the same key, it is not done again. The "
                       "request's X-Request-Id when it is left out.", sample="deploy-42-reboot-web1")


def subject_of(sent: Mapping[str, Any]) -> Optional[str]:
    """Return the name of what an event *sent* makes, such as an image; ``None`` where it makes nothing with a name."""
    name = (sent.get("args") or {}).get("name")
    return name if isinstance(name, str) else None


class RebootArgs(Kind):
    """Arguments of a reboot."""

    type = Field(Choices("soft", "hard"), "soft asks the guest and falls back to hard; hard powers off, defines the "
                 "domain anew, and starts.", default="soft")


class RebuildArgs(Kind):
    """Arguments of a rebuild; what is left out stays as it is."""

    image = Field(REFERENCE, "The image to make the root disk from; the same again when omitted.")
    key_name = Field(Nullable(REFERENCE), "Keypair whose public key the guest is given.")
    user_data = Field(Server.field("user_data").value, "Base64 data for the guest's first boot.", secret=True)
    metadata = Field(Server.field("metadata").value, "Keys and values, in place of those that there are.")
    preserve_ephemeral = Field(Boolean(), "Whether the ephemeral disk is kept.", default=False)


class CreateImageArgs(Kind):
    """Arguments of making an image."""

    name = Field(NAME, "Name of the image; there must be none of that name.", required=True)
    description = Field(DESCRIPTION, "Free text of at most 255 characters.", default="")
    metadata = Field(Image.field("properties").value, "Properties of the image, besides those of the server's own.",
                     default={})


class CrashDumpArgs(Kind):
    """A crash dump takes no arguments."""


class ClearPasswordArgs(Kind):
    """Clearing the password that a guest has left takes no arguments."""


class DetachShareArgs(Kind):
    """Arguments of taking a share from a server."""

    tag = Field(SHARE_TAG, "Name by which the guest mounts it.", required=True)


class AttachShareArgs(DetachShareArgs):
    """Arguments of giving a share to a server."""

    share = Field(Text(1, 63), "Name of the share in the settings of the host's agent.", required=True)
    share_id = Field(Nullable(Text(1, 63)), "What the guest is told that it is; its name when left out.", default=None)
