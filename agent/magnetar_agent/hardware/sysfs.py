# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders and files of sysfs, which come and go with devices and drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def entries(folder: Path) -> list[Path]:
    """What is in it, by name; nothing where it is not there."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def text(path: Path) -> str:
    """What it says, without blanks at its ends; nothing where it is not there."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
