# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices that servers ask for: aliases with counts. Source: Nova's ``pci_passthrough:alias`` and ``[pci]alias``.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Optional

from ..errors import InvalidField
from ..values import Text
from ..versions import Version

#: What Nova lets the extra spec say, and the name of an alias.
ALIASES = r"[^:]+:[0-9]+(,\s*[^:]+:[0-9]+)*"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
#: The most devices of a server.
MOST = 32
_ASKED = re.compile(r"(?P<name>%s):(?P<count>[1-9][0-9]?)" % NAME)


def counts(text: str, field: str = "pci_alias") -> Dict[str, int]:
    """How many devices of which alias *text* (``gpu:1,nic:2``) asks for. Raises ``InvalidField``."""
    found: Dict[str, int] = {}
    for part in text.split(","):
        match = _ASKED.fullmatch(part.strip())
        if not match:
            raise InvalidField(field, "must name aliases and how many devices of each, such as gpu:1 or gpu:1,nic:2",
                               text)
        found[match["name"]] = found.get(match["name"], 0) + int(match["count"])
    if sum(found.values()) > MOST:
        raise InvalidField(field, "must ask for no more than %d devices" % MOST, text)
    return found


class PciAliases(Text):
    """Aliases of PCI devices with counts; the normal form names each once, in order."""

    def __init__(self) -> None:
        super().__init__(3, 255, ".*", "must name aliases and how many devices of each, such as gpu:1 or gpu:1,nic:2")

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        found = counts(super().check(value, path, version), path)
        return ",".join("%s:%d" % one for one in sorted(found.items()))


# What settings say of devices ---------------------------------------------------------------------------------------
_RULES = {
    "name": (NAME, "must have letters, digits, and . - _ only"),
    "address": (r"[0-9a-f:.*?]{1,12}", "must be like 0000:81:00.0, and may have * and ?"),
    "managed": ("yes|no", "must be true or false")}
_ID = (r"[0-9a-f]{4}", "must be four hexadecimal digits as a text, such as \"10de\"")


def checked(word: str, value: Any) -> str:
    """The *value* of a *word* of a device or an alias in its normal form. Raises ``ValueError`` with what is wrong."""
    if isinstance(value, bool):  # as YAML reads yes and no
        value = "yes" if value else "no"
    pattern, rule = _RULES.get(word, _ID)
    text = value.lower() if isinstance(value, str) and word != "name" else value
    if not isinstance(text, str) or not re.fullmatch(pattern, text):
        raise ValueError("%s: %s (got %r)" % (word, rule, value))
    return text
