# SPDX-License-Identifier: GPL-3.0-or-later
"""What a dry run may assume: that an earlier step of the run makes what is named and not there yet, and removes what
still uses what is to go.

Check mode changes nothing, so a playbook that makes a flavor and then a server of it, or removes a server and then its
network, would otherwise fail in check mode where it succeeds. The assumption is told as a warning; a real run refuses.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from magnetar_core.errors import InUse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from magnetar_core.errors import InvalidField

_told: ContextVar[list[str] | None] = ContextVar("foreseen", default=None)


@contextmanager
def foreseeing(dry_run: bool, warnings: list[str]) -> Iterator[None]:
    """In a dry run, `missing` adds to *warnings* in place of raising."""
    token = _told.set(warnings if dry_run else None)
    try:
        yield
    finally:
        _told.reset(token)


def missing(error: InvalidField, kind: str, name: str) -> None:
    """Something named is not there: *error*, unless a dry run may assume it. Then the caller gives a stand-in."""
    told = _told.get()
    if told is None:
        raise error
    text = f"There is no {kind} {name!r} yet; the prediction assumes that it is made before this."
    if text not in told:
        told.append(text)


@contextmanager
def foreseen(dry_run: bool, warnings: list[str]) -> Iterator[None]:
    """In a dry run, the refusal to remove what is in use becomes a warning."""
    try:
        yield
    except InUse as error:
        if not dry_run:
            raise
        warnings.append(f"{error} The prediction assumes that this is done before.")
