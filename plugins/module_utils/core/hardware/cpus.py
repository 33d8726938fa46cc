# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets of CPUs and sizes of memory pages, as texts say them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Optional

from ..errors import InvalidField
from ..values import Text
from ..versions import Version

#: A set of CPUs as Linux and Nova write it: ``0-3,^2,8``.
CPUS = r"\^?[0-9]+((-[0-9]+)?(,\^?[0-9]+(-[0-9]+)?)*)?"
SIZE = r"(?P<count>[0-9]+)(?P<times>[kKMGT]i?)?(?P<unit>b|bit|B)?"
#: The number above all CPUs that a set may name.
MOST = 4096


def cpu_set(text: str, field: str = "cpus") -> frozenset[int]:
    """The CPUs that *text* names. Raises ``InvalidField``."""
    found: set[int] = set()
    without: set[int] = set()
    if not re.fullmatch(CPUS, text):
        raise InvalidField(field, "must be a list of CPUs such as 0-3,^2,8", text)
    for part in text.split(","):
        first, _dash, last = part.lstrip("^").partition("-")
        low, high = int(first), int(last or first)
        if high < low or high >= MOST:
            raise InvalidField(field, "must have ranges that rise, of CPUs below %d" % MOST, text)
        (without if part.startswith("^") else found).update(range(low, high + 1))
    return frozenset(found - without)


def cpu_text(cpus: Iterable[int]) -> str:
    """*cpus* as a text with ranges."""
    parts: list[list[int]] = []
    for one in sorted(cpus):
        if parts and parts[-1][1] == one - 1:
            parts[-1][1] = one
        else:
            parts.append([one, one])
    return ",".join(str(low) if low == high else "%d-%d" % (low, high) for low, high in parts)


def _text(value: Any) -> Any:
    """A number as YAML reads it is a text here."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class CpuSet(Text):
    """CPUs; the normal form has ranges in order."""

    def __init__(self) -> None:
        super().__init__(1, 255, CPUS, "must be a list of CPUs such as 0-3,^2,8")

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        found = cpu_set(super().check(_text(value), path, version), path)
        if not found:
            raise InvalidField(path, "must name at least one CPU", value)
        return cpu_text(found)


class CpuMask(CpuSet):
    """CPUs, or with ``^`` at the beginning all but those that are named; the normal form has one of the two."""

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        text = Text.check(self, _text(value), path, version)
        if not text.startswith("^"):
            return super().check(text, path, version)
        without = ",".join(part[1:] for part in text.split(",") if part.startswith("^"))
        return "^" + super().check(without, path, version).replace(",", ",^")


def masked(mask: str, count: int) -> frozenset[int]:
    """Those of *count* CPUs that the normal form of a ``CpuMask`` names; and others, where it names more."""
    if not mask.startswith("^"):
        return cpu_set(mask)
    return frozenset(range(count)) - cpu_set(mask.replace("^", ""))


class PageSize(Text):
    """``small``, ``large``, ``any``, or a size; the normal form of a size is KiB as a text. Without a unit it is KiB;
    ``b`` and ``bit`` are bits, as in Nova."""

    def __init__(self) -> None:
        super().__init__(1, 32, "small|large|any|[0-9]+([kKMGT]i?)?(b|bit|B)?",
                         "must be small, large, any, or a size such as 2048 (KiB), 2MB or 1GiB")

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        text = super().check(_text(value), path, version)
        sized = re.fullmatch(SIZE, text)
        if sized is None:
            return text
        count = int(sized["count"]) * (1024 ** (1 + "KMGT".index(sized["times"][0].upper())) if sized["times"] else
                                       1 if sized["unit"] else 1024)
        if sized["unit"] in ("b", "bit"):
            count //= 8
        if count < 1024 or count % 1024:
            raise InvalidField(path, "must be a whole number of KiB", value)
        return str(count // 1024)
