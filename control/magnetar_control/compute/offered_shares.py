# SPDX-License-Identifier: GPL-3.0-or-later
"""The shares that the operator offers: the embedded share service, with folders of hosts as its only kind of share."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, NamedTuple

from magnetar_core.errors import InvalidSettings

if TYPE_CHECKING:
    from magnetar_control.settings import Settings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class OfferedShare(NamedTuple):
    """A file share that the settings offer to servers. *projects*: the projects that may use the share; all projects if
    it is empty."""

    name: str
    projects: tuple[str, ...]

    def is_for(self, project_id: str) -> bool:
        """Return whether servers of the project *project_id* may attach the share."""
        return not self.projects or project_id in self.projects


def offered_shares(settings: Settings) -> dict[str, OfferedShare]:
    """Return the file shares of the setting ``shares``, by uuid. Raises ``InvalidSettings``."""
    shares = {}
    for id, text in settings.shares.items():
        try:
            is_uuid = str(uuid.UUID(id)) == id
        except (ValueError, AttributeError, TypeError):
            is_uuid = False
        name, at, projects = str(text).partition("@")
        if not is_uuid or not _NAME.fullmatch(name) or (at and not all(projects.split(","))):
            raise InvalidSettings(f"shares: {id}: must be a uuid in small letters, and NAME or NAME@PROJECT,… with a "
                                  f"name of letters, digits, and . - _ (got {text!r}).")
        shares[id] = OfferedShare(name, tuple(projects.split(",")) if at else ())
    return shares
