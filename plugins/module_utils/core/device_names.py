# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of disks as Linux gives them: sda to sdz, then sdaa. Pure."""

from __future__ import annotations

from itertools import product
from string import ascii_lowercase
from typing import Iterator, Tuple

#: Letters behind the prefix of the longest names: 26 and 26 times 26 disks of one kind.
LONGEST = 2


def device_names(prefix: str) -> Iterator[str]:
    """Return all names with the *prefix* (vd, sd, hd) in their order."""
    for length in range(1, LONGEST + 1):
        for letters in product(ascii_lowercase, repeat=length):
            yield prefix + "".join(letters)


def device_order(name: str) -> Tuple[int, str]:
    """Return the key by which device names are sorted: vdz comes before vdaa."""
    return len(name), name
