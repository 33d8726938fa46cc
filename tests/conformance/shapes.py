# SPDX-License-Identifier: GPL-3.0-or-later
"""Shapes: what a sample says about answers. Elements of a list are united in one shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .classes import allowed
from .samples import escape

#: Contract words: at these keys the text of an answer is one that the sample has.
WORDS = frozenset({
    "rel", "OS-DCF:diskConfig", "OS-EXT-STS:vm_state", "OS-EXT-IPS:type", "OS-EXT-STS:power_state", "version",
    "protocol", "policy", "policies", "event", "result", "action", "host_status", "disabled",
})
#: Keys whose texts are of no class that holds everywhere: ids of another service, names of hosts.
ANY_TEXT = frozenset({"user_id", "project_id", "tenant_id", "dest_host", "dest_node", "source_node", "host"})
#: ``status`` is a contract word of servers only; lists of services and hypervisors depend on the hosts.
STATUS_AREAS = frozenset({"servers", "server actions", "tags"})


def kind_of(value: Any) -> str:
    """The JSON type, integers told from other numbers."""
    names = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
             dict: "object"}
    return names[type(value)]


@dataclass
class Shape:
    """What is allowed at one place."""

    pointer: str
    types: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)
    literals: set[Any] = field(default_factory=set)
    keys: dict[str, Shape] = field(default_factory=dict)
    #: How many objects there were, and how many of them had each key.
    objects: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    item: Shape | None = None
    #: Whether every list here had an element.
    filled: bool = True

    def required(self, key: str) -> bool:
        """Whether every object of the sample has *key*."""
        return self.seen.get(key, 0) == self.objects

    def add(self, value: Any, dynamic: dict[str, str], exact: str) -> None:
        """Unite with what *value* is; *exact* is its own pointer, list indices included."""
        self.types.add(kind_of(value))
        if isinstance(value, dict):
            self.objects += 1
            for key, inner in value.items():
                part = escape(key)
                self.seen[key] = self.seen.get(key, 0) + 1
                self.keys.setdefault(key, Shape(f"{self.pointer}/{part}")).add(inner, dynamic, f"{exact}/{part}")
        elif isinstance(value, list):
            self.filled = self.filled and bool(value)
            if self.item is None:
                self.item = Shape(f"{self.pointer}/*")
            for index, inner in enumerate(value):
                self.item.add(inner, dynamic, f"{exact}/{index}")
        else:
            self.literals.add(value)
            if isinstance(value, str):
                free = exact.rpartition("/")[2] in ANY_TEXT
                self.classes |= {"text"} if free else allowed(dynamic.get(exact), value)


def shape(document: Any, dynamic: dict[str, str]) -> Shape:
    """The shape of a sample."""
    root = Shape("")
    root.add(document, dynamic, "")
    return root


def is_word(key: str, area: str) -> bool:
    """Whether *key* holds a contract word in samples of *area*."""
    return key in WORDS or (key == "status" and area in STATUS_AREAS)
