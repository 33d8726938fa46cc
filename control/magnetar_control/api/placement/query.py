# SPDX-License-Identifier: GPL-3.0-or-later
"""Parameters of queries: resources, traits, aggregates and trees, as tests of a provider. All raise
``InvalidRequest``."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable

from magnetar_control.compute.placement.candidates import Described
from magnetar_core.errors import InvalidRequest

Test = Callable[[Described], bool]


def resources(value: str) -> dict[str, int]:
    """``VCPU:2,MEMORY_MB:512``: amounts by resource class."""
    wanted = {}
    for word in value.split(","):
        match = re.fullmatch(r"([A-Z0-9_]+):([1-9][0-9]{0,9})", word)
        if match is None:
            raise InvalidRequest(f"Badly formed resources parameter: expected VCPU:1,MEMORY_MB:512, got {value[:80]}.")
        if match[1] in wanted:
            raise InvalidRequest(f"Badly formed resources parameter: {match[1]} is there twice.")
        wanted[match[1]] = int(match[2])
    return wanted


def member_of(value: str, minor: int) -> Test:
    """``UUID``, ``in:UUID,UUID``; since 1.32 with a ``!`` before it: in none of these."""
    against = value.startswith("!")
    if against and minor < 32:
        raise InvalidRequest("member_of: ! is there from microversion 1.32 on.")
    text = value.removeprefix("!")
    wanted = frozenset(uuids("member_of", text.removeprefix("in:").split(",") if text.startswith("in:") else [text]))
    return lambda one: wanted.isdisjoint(group.uuid for group in one.aggregates) is against


def in_tree(value: str) -> Test:
    """The uuid of a provider of the tree."""
    [wanted] = uuids("in_tree", [value])
    return lambda one: wanted in one.tree_ids


def uuids(name: str, words: Iterable[str]) -> list[str]:
    """They, in normal form."""
    try:
        return [str(uuid.UUID(word)) for word in words]
    except ValueError:
        raise InvalidRequest(f"Expected {name} to be a uuid"
                             f"{', or in: and uuids with commas between' if name == 'member_of' else ''}.") from None


def required(value: str, minor: int) -> tuple[Test, frozenset[str]]:
    """``A,B`` all of them; since 1.22 ``!A`` none of them; since 1.39 ``in:A,B`` one of them. Returns the names,
    too."""
    if value.startswith("in:"):
        if minor < 39:
            raise InvalidRequest("required: in: is there from microversion 1.39 on.")
        some = _names(value.removeprefix("in:").split(","), value)
        return lambda one: not some.isdisjoint(one.traits), some
    words = value.split(",")
    against = _names((word[1:] for word in words if word.startswith("!")), value)
    if against and minor < 22:
        raise InvalidRequest("required: ! is there from microversion 1.22 on.")
    wanted = _names((word for word in words if not word.startswith("!")), value)
    if both := wanted & against:
        raise InvalidRequest(f"Conflicting required and forbidden traits: {', '.join(sorted(both))[:255]}.")
    return lambda one: wanted <= one.traits and against.isdisjoint(one.traits), wanted | against


def _names(words: Iterable[str], value: str) -> frozenset[str]:
    found = frozenset(words)
    if wrong := [name for name in found if not re.fullmatch("[A-Z0-9_]{1,255}", name)]:
        raise InvalidRequest(f"Invalid query-string parameters: expected names of traits with commas between, such as "
                             f"CUSTOM_SSD,COMPUTE_NODE, got {wrong[0][:80]!r} in {value[:80]!r}.")
    return found
