# SPDX-License-Identifier: GPL-3.0-or-later
"""Persistent memory of servers (``hw:pmem``): namespaces of the host that the operator has given labels. Pure.

Source: Nova's *Attaching virtual persistent memory to guests* (spec rows A11, XDEV-10).
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Optional, Sequence

from ..errors import InvalidField
from ..values import Text
from ..versions import Version

#: A label, and what Nova lets the extra spec say.
LABEL = "[A-Za-z0-9_-]{1,64}"
LABELS = "%s(,%s)*" % (LABEL, LABEL)
#: The most of one server: QEMU's devices are in slots, of which it has 256; the guest has a device for each.
MOST = 16
CLASS = "CUSTOM_PMEM_NAMESPACE_"


def class_of(label: str) -> str:
    """The resource class of which namespaces of a *label* are (row A11.6)."""
    return CLASS + re.sub("[^A-Z0-9_]", "_", label.upper())


def labels(text: str) -> list[str]:
    """The labels that a flavor or server names, in order; one may stand several times."""
    return [one for one in text.split(",") if one]


def resources(text: str) -> dict[str, int]:
    """How many of which resource class they are."""
    found: dict[str, int] = {}
    for label in labels(text):
        found[class_of(label)] = found.get(class_of(label), 0) + 1
    return found


class PmemLabels(Text):
    """Labels with commas between."""

    RULE = "must be labels of namespaces with commas between, such as 6GB,LARGE; %d at most" % MOST

    def __init__(self) -> None:
        super().__init__(1, 65 * MOST, LABELS, self.RULE)

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        found = super().check(value, path, version)
        if len(labels(found)) > MOST:
            raise InvalidField(path, self.RULE, value)
        return found


def check_namespaces(given: Mapping[str, Sequence[str]]) -> str:
    """What is wrong with the namespaces by label that settings name; empty when nothing is."""
    seen: dict[str, str] = {}
    classes: dict[str, str] = {}
    for label, names in given.items():
        if not re.fullmatch(LABEL, label):
            return "%r must be a label of letters, digits, _ and -" % label
        other = classes.setdefault(class_of(label), label)
        if other != label:
            return "%s and %s would both be counted as %s; rename one" % (other, label, class_of(label))
        for name in names:
            if name in seen:
                return "%s is named twice, for %s and %s" % (name, seen[name], label)
            seen[name] = label
    return ""
