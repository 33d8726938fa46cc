# SPDX-License-Identifier: GPL-3.0-or-later
"""What a failure says: to users, who are not told hosts and addresses, and to administrators."""

from __future__ import annotations

from magnetar_control.agents import plain
from magnetar_core.errors import MagnetarError


def message(error: BaseException) -> str:
    """The whole message."""
    if isinstance(error, MagnetarError):
        return error.message
    return f"{type(error).__name__}: {error}"


def user_message(error: BaseException) -> str:
    """The message without hosts and addresses. Of an unexpected failure users read its class, as in Nova."""
    if isinstance(error, MagnetarError):
        return plain(error)
    return type(error).__name__


def explanation(error: BaseException) -> str:
    """What only administrators read; empty for most failures."""
    return str(error.details.get("explanation") or "") if isinstance(error, MagnetarError) else ""


def admin_message(error: BaseException) -> str:
    """The whole message with its explanation."""
    return f"{message(error)} {explanation(error)}".rstrip()
