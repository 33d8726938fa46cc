# SPDX-License-Identifier: GPL-3.0-or-later
"""The conversion of times in the identity tables, which are texts in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from magnetar_control.store.engine.database import parse_moment, utc_now
from magnetar_core.errors import InvalidField


def is_past(text: str, moment: float) -> bool:
    """Return whether the time *text* (as stored in tables) is before *moment* (seconds since the epoch)."""
    return epoch_seconds(text) <= moment


def epoch_seconds(text: str) -> float:
    """Return the time *text* (as stored in tables) as seconds since the epoch."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def parse_expiry(text: Any, purpose: str) -> str | None:
    """Return *text*, the field ``expires_at`` of a request, in the time format of the tables; ``None`` for ``None``.
    *purpose*: a phrase for the error about a past time. Raises ``InvalidField`` if *text* is not a time or is past."""
    if text is None:
        return None
    try:
        expires_at = parse_moment(text)
    except (TypeError, ValueError):
        raise InvalidField("expires_at", "must be a time such as 2030-01-31T12:00:00", text) from None
    if expires_at <= utc_now():
        raise InvalidField("expires_at", f"must be a time to come: {purpose}", text)
    return expires_at
