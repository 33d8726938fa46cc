# SPDX-License-Identifier: GPL-3.0-or-later
"""Value types of sets of CPUs and sizes of memory pages, and conversions of their texts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Optional

from ..errors import InvalidField
from ..values import Text
from ..versions import Version

#: A set of CPUs in the notation of Linux and Nova: ``0-3,^2,8``.
CPUS = r"\^?[0-9]+((-[0-9]+)?(,\^?[0-9]+(-[0-9]+)?)*)?"
SIZE = r"(?P<count>[0-9]+)(?P<times>[kKMGT]i?)?(?P<unit>b|bit|B)?"
#: Exclusive limit of CPU numbers.
MOST = 4096


def cpu_set(text: str, field: str = "cpus") -> frozenset[int]:
    """Return the CPU numbers in *text*, which lists ranges and exclusions, such as ``0-3,^2``. Raises ``InvalidField``
    for *field*.
    """
    included: set[int] = set()
    excluded: set[int] = set()
    if not re.fullmatch(CPUS, text):
        raise InvalidField(field, "must be a list of CPUs such as 0-3,^2,8", text)
    for part in text.split(","):
        first, _dash, last = part.lstrip("^").partition("-")
        low, high = int(first), int(last or first)
        if high < low or high >= MOST:
            raise InvalidField(field, "must have ranges that rise, of CPUs below %d" % MOST, text)
        (excluded if part.startswith("^") else included).update(range(low, high + 1))
    return frozenset(included - excluded)


def cpu_text(cpus: Iterable[int]) -> str:
    """Return the CPU numbers *cpus* as a string with ranges, such as ``0-1,3``."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(low) if low == high else "%d-%d" % (low, high) for low, high in parts)


def _text(value: Any) -> Any:
    """Return *value* as a string if it is an integer, otherwise unchanged. This is for CPU lists and page sizes such as
    ``3``, which YAML reads as numbers.
    """
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class CpuSet(Text):
    """The value type of a string that lists CPUs, such as ``0-3,^2``. The normal form has sorted ranges, such as
    ``0-1,3``.
    """

    def __init__(self) -> None:
        super().__init__(1, 255, CPUS, "must be a list of CPUs such as 0-3,^2,8")

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        cpus = cpu_set(super().check(_text(value), path, version), path)
        if not cpus:
            raise InvalidField(path, "must name at least one CPU", value)
        return cpu_text(cpus)


class CpuMask(CpuSet):
    """The value type of a string that lists CPUs or, if it begins with ``^``, all CPUs except the listed ones. The
    normal form contains either included or excluded CPUs, not a mix.
    """

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        text = Text.check(self, _text(value), path, version)
        if not text.startswith("^"):
            return super().check(text, path, version)
        without = ",".join(part[1:] for part in text.split(",") if part.startswith("^"))
        return "^" + super().check(without, path, version).replace(",", ",^")


def masked_cpus(mask: str, count: int) -> frozenset[int]:
    """Return the CPUs that *mask*, the normal form of a ``CpuMask``, selects: the listed ones or, if it begins with
    ``^``, all CPUs below *count* except the listed ones.
    """
    if not mask.startswith("^"):
        return cpu_set(mask)
    return frozenset(range(count)) - cpu_set(mask.replace("^", ""))


class PageSize(Text):
    """The value type of a memory page size: ``small``, ``large``, ``any``, or a number with an optional unit. The
    default unit is KiB; ``b`` and ``bit`` are bits, as in Nova. The normal form of a number is in KiB, without unit, as
    a string.
    """

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
