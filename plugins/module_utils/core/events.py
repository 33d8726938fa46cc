# SPDX-License-Identifier: GPL-3.0-or-later
"""Bodies of a server's one-time actions, the same for agents and clouds: ``POST /v1/server/{key}/events``."""

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
    """Body of ``POST /v1/{kind}/{key}/events``, which performs a one-time action on a resource, such as a reboot."""

    noun, plural = "event", "events"

    event = Field(Text(1, 64), "The action: reboot, rebuild, create_image, crash_dump, change_password, "
                  "clear_password; of a volume: release; in clouds only: attach_share, change_machine, detach_share, "
                  "keep_disks, tell_guest.",
                  required=True, sample="reboot")
    args = Field(MapOf(Text(1, 64), Value()), "Arguments of the event; reboot takes type: soft or hard.", default={},
                 sample={"type": "soft"})
    request_id = Field(REQUEST, "Key of the event. An event with a known key is not repeated. The request's "
                       "X-Request-Id when omitted.", sample="deploy-42-reboot-web1")


def subject_of_event(sent: Mapping[str, Any]) -> Optional[str]:
    """Return the name of the new resource, such as an image, that a one-time action creates; ``None`` if the action
    creates none. *sent*: the body of the request.
    """
    name = (sent.get("args") or {}).get("name")
    return name if isinstance(name, str) else None


class RebootArgs(Kind):
    """Arguments of a reboot."""

    type = Field(Choices("soft", "hard"), "soft asks the guest and falls back to hard; hard powers off, defines the "
                 "domain again, and starts it.", default="soft")


class RebuildArgs(Kind):
    """Arguments of a rebuild; omitted fields of the server stay unchanged."""

    image = Field(REFERENCE, "The image to make the root disk from; the same again when omitted.")
    key_name = Field(Nullable(REFERENCE), "Keypair whose public key the guest is given.")
    user_data = Field(Server.field("user_data").value, "Base64 data for the guest's first boot.", secret=True)
    metadata = Field(Server.field("metadata").value, "Keys and values that replace the existing ones.")
    preserve_ephemeral = Field(Boolean(), "Whether the ephemeral disk is kept.", default=False)


class CreateImageArgs(Kind):
    """Arguments for the creation of an image."""

    name = Field(NAME, "Name of the image; there must be none of that name.", required=True)
    description = Field(DESCRIPTION, "Free text of at most 255 characters.", default="")
    metadata = Field(Image.field("properties").value, "Properties of the image, in addition to the server's own.",
                     default={})


class CrashDumpArgs(Kind):
    """Arguments of a crash dump: there are none."""


class ClearPasswordArgs(Kind):
    """Arguments for clearing the password that the guest has reported: there are none."""


class DetachShareArgs(Kind):
    """Arguments for detaching a share from a server."""

    tag = Field(SHARE_TAG, "Name for the guest's mount command.", required=True)


class AttachShareArgs(DetachShareArgs):
    """Arguments for attaching a share to a server."""

    share = Field(Text(1, 63), "Name of the share in the settings of the host's agent.", required=True)
    share_id = Field(Nullable(Text(1, 63)), "Id of the share in the guest's metadata; its name when omitted.",
                     default=None)
