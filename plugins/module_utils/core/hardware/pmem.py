# SPDX-License-Identifier: GPL-3.0-or-later
"""Persistent memory of servers (``hw:pmem``): namespaces of the host that the operator has labelled. Pure.

Source: Nova's *Attaching virtual persistent memory to guests*.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Optional, Sequence

from ..errors import InvalidField
from ..values import Text
from ..versions import Version

#: Pattern of a label, and of the extra spec's value in Nova.
LABEL = "[A-Za-z0-9_-]{1,64}"
LABELS = "%s(,%s)*" % (LABEL, LABEL)
#: Maximum number of namespaces of a server: the guest has a device for each, and QEMU has 256 slots for devices.
MOST = 16
CLASS = "CUSTOM_PMEM_NAMESPACE_"


def pmem_resource_class(label: str) -> str:
    """Return the resource class that counts persistent memory namespaces with this *label*."""
    return CLASS + re.sub("[^A-Z0-9_]", "_", label.upper())


def parse_pmem_labels(text: str) -> list[str]:
    """Return the labels of persistent memory namespaces that *text*, such as ``6GB,LARGE``, requests. A label may occur
    several times.
    """
    return [label for label in text.split(",") if label]


def pmem_resources(text: str) -> dict[str, int]:
    """Return the number of persistent memory namespaces by resource class that *text*, such as ``6GB,LARGE``, requests.
    """
    amounts: dict[str, int] = {}
    for label in parse_pmem_labels(text):
        amounts[pmem_resource_class(label)] = amounts.get(pmem_resource_class(label), 0) + 1
    return amounts


class PmemLabels(Text):
    """The value type of a string of labels of persistent memory namespaces, separated by commas, such as ``6GB,LARGE``.
    """

    RULE = "must be labels of namespaces with commas between, such as 6GB,LARGE; %d at most" % MOST

    def __init__(self) -> None:
        super().__init__(1, 65 * MOST, LABELS, self.RULE)

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        text = super().check(value, path, version)
        if len(parse_pmem_labels(text)) > MOST:
            raise InvalidField(path, self.RULE, value)
        return text


def check_namespaces(names_by_label: Mapping[str, Sequence[str]]) -> str:
    """Return an error message for the agent's setting *names_by_label* (persistent memory namespaces by label); empty
    if it is valid.
    """
    labels_by_name: dict[str, str] = {}
    classes: dict[str, str] = {}
    for label, names in names_by_label.items():
        if not re.fullmatch(LABEL, label):
            return "%r must be a label of letters, digits, _ and -" % label
        other = classes.setdefault(pmem_resource_class(label), label)
        if other != label:
            return "%s and %s would both be counted as %s; rename one" % (other, label, pmem_resource_class(label))
        for name in names:
            if name in labels_by_name:
                return "%s is named twice, for %s and %s" % (name, labels_by_name[name], label)
            labels_by_name[name] = label
    return ""
