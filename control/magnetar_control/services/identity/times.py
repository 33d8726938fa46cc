# SPDX-License-Identifier: GPL-3.0-or-later
"""Moments of the identity tables, which are text in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from magnetar_control.store.engine.database import moment, now
from magnetar_core.errors import InvalidField


def over(text: str, moment: float) -> bool:
    """Whether the time *text* of the tables is past."""
    return seconds(text) <= moment


def seconds(text: str) -> float:
    """The time *text* of the tables, in seconds since the epoch."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def parse_expiry(text: Any, purpose: str) -> str | None:
    """Return the moment ``expires_at`` as tables keep it. *purpose*: why it cannot be past.

    Raises ``InvalidField`` for what is no moment, or past.
    """
    if text is None:
        return None
    try:
        found = moment(text)
    except (TypeError, ValueError):
        raise InvalidField("expires_at", "must be a time such as 2030-01-31T12:00:00", text) from None
    if found <= now():
        raise InvalidField("expires_at", f"must be a time to come: {purpose}", text)
    return found
