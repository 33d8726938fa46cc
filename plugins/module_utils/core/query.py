# SPDX-License-Identifier: GPL-3.0-or-later
"""Parameters of query strings of ``/v1``, which agents and clouds read alike: a function for each reads its text."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Optional

from .errors import InvalidField, InvalidRequest


def boolean(name: str, text: str) -> bool:
    """true or false."""
    if text not in ("true", "false"):
        raise InvalidField(name, "must be true or false", text)
    return text == "true"


def seconds(name: str, text: str) -> float:
    """A time span."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 86400:
        raise InvalidField(name, "must be a number of seconds from 0 to 86400", text)
    return found


def number(name: str, text: str) -> int:
    """A whole number."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidField(name, "must be a whole number", text)
    return int(text)


def words(_name: str, text: str) -> list[str]:
    """A list separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def plain(_name: str, text: str) -> str:
    """The text itself."""
    return text


def parameters(given: Iterable[tuple[str, str]], known: Mapping[str, Callable[[str, str], Any]],
               shown: Optional[int] = None) -> dict[str, Any]:
    """The parameters *given*, each read by its function of *known*. Others, and repeated ones, are refused.

    *shown*: how many characters of an unknown name are said.
    """
    found: dict[str, Any] = {}
    for name, text in given:
        if name not in known:
            raise InvalidRequest("%s is not a parameter of this route; known are: %s." % (
                name[:shown], ", ".join(known) or "none"), field=name[:shown])
        if name in found:
            raise InvalidRequest("%s is given more than once." % name, field=name)
        found[name] = known[name](name, text)
    return found
