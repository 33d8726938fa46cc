# SPDX-License-Identifier: GPL-3.0-or-later
"""The shares that the operator offers: the embedded share service, whose only kind of share is a folder of hosts."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, NamedTuple

from magnetar_core.errors import InvalidSettings

if TYPE_CHECKING:
    from magnetar_control.settings import Settings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class OfferedShare(NamedTuple):
    """A share of the settings. Without *projects* it is everybody's."""

    name: str
    projects: tuple[str, ...]

    def is_for(self, project_id: str) -> bool:
        """Whether servers of the project may have it."""
        return not self.projects or project_id in self.projects


def offered_shares(settings: Settings) -> dict[str, OfferedShare]:
    """The shares of the setting ``shares``, by uuid. Raises ``InvalidSettings``."""
    found = {}
    for id, told in settings.shares.items():
        try:
            known = str(uuid.UUID(id)) == id
        except (ValueError, AttributeError, TypeError):
            known = False
        name, at, projects = str(told).partition("@")
        if not known or not _NAME.fullmatch(name) or (at and not all(projects.split(","))):
            raise InvalidSettings(f"shares: {id}: must be a uuid in small letters, and NAME or NAME@PROJECT,… with a "
                                  f"name of letters, digits, and . - _ (got {told!r}).")
        found[id] = OfferedShare(name, tuple(projects.split(",")) if at else ())
    return found
