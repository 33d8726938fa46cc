# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of providers that query parameters describe: resources, traits, aggregates, trees. A test is a function of a
provider. All functions raise ``InvalidRequest``."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable

from magnetar_control.compute.placement.candidates import ProviderFacts
from magnetar_core.errors import InvalidRequest

Test = Callable[[ProviderFacts], bool]


def parse_resources(value: str) -> dict[str, int]:
    """Parse the query parameter ``resources``, such as ``VCPU:2,MEMORY_MB:512``, and return the amounts by resource
    class. Raises ``InvalidRequest``."""
    amounts = {}
    for part in value.split(","):
        match = re.fullmatch(r"([A-Z0-9_]+):([1-9][0-9]{0,9})", part)
        if match is None:
            raise InvalidRequest(f"Badly formed resources parameter: expected VCPU:1,MEMORY_MB:512, got {value[:80]}.")
        if match[1] in amounts:
            raise InvalidRequest(f"Badly formed resources parameter: {match[1]} is there twice.")
        amounts[match[1]] = int(match[2])
    return amounts


def member_of(value: str, minor: int) -> Test:
    """Return a function that tells whether a provider matches the query parameter ``member_of``. *value*: ``UUID`` or
    ``in:UUID,UUID``: the provider must be in at least one of these aggregates. Since 1.32, ``!`` before this value
    means that the provider must be in none of them."""
    against = value.startswith("!")
    if against and minor < 32:
        raise InvalidRequest("member_of: ! is there from microversion 1.32 on.")
    text = value.removeprefix("!")
    group_ids = frozenset(parse_uuids("member_of", text.removeprefix("in:").split(",") if text.startswith("in:")
                                      else [text]))
    return lambda provider: group_ids.isdisjoint(group.uuid for group in provider.aggregates) is against


def in_tree(value: str) -> Test:
    """Return a function that tells whether a provider is in the same provider tree as the provider with the uuid
    *value*. Raises ``InvalidRequest``."""
    [tree_id] = parse_uuids("in_tree", [value])
    return lambda provider: tree_id in provider.tree_ids


def parse_uuids(name: str, words: Iterable[str]) -> list[str]:
    """Return the uuids *words* in lower case with hyphens. *name*: the query parameter, for the error. Raises
    ``InvalidRequest``."""
    try:
        return [str(uuid.UUID(text)) for text in words]
    except ValueError:
        raise InvalidRequest(f"Expected {name} to be a uuid"
                             f"{', or in: and uuids with commas between' if name == 'member_of' else ''}.") from None


def parse_required_traits(value: str, minor: int) -> tuple[Test, frozenset[str]]:
    """Parse the query parameter ``required``. Return a function that tells whether a provider matches it, and the names
    of the traits in it.

    *value*: ``A,B`` (the provider must have all of these traits); since 1.22 also ``!A`` (must not have it); since 1.39
    also ``in:A,B`` (must have at least one). Raises ``InvalidRequest``."""
    if value.startswith("in:"):
        if minor < 39:
            raise InvalidRequest("required: in: is there from microversion 1.39 on.")
        some = _names(value.removeprefix("in:").split(","), value)
        return lambda provider: not some.isdisjoint(provider.traits), some
    words = value.split(",")
    against = _names((name[1:] for name in words if name.startswith("!")), value)
    if against and minor < 22:
        raise InvalidRequest("required: ! is there from microversion 1.22 on.")
    required_names = _names((name for name in words if not name.startswith("!")), value)
    if both := required_names & against:
        raise InvalidRequest(f"Conflicting required and forbidden traits: {', '.join(sorted(both))[:255]}.")
    return lambda provider: required_names <= provider.traits and against.isdisjoint(
        provider.traits), required_names | against


def _names(words: Iterable[str], value: str) -> frozenset[str]:
    names = frozenset(words)
    if wrong := [name for name in names if not re.fullmatch("[A-Z0-9_]{1,255}", name)]:
        raise InvalidRequest(f"Invalid query-string parameters: expected names of traits with commas between, such as "
                             f"CUSTOM_SSD,COMPUTE_NODE, got {wrong[0][:80]!r} in {value[:80]!r}.")
    return names
