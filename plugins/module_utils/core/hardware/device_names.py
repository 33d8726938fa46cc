# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of disks in Linux's order: sda to sdz, then sdaa. Pure."""

from __future__ import annotations

from itertools import product
from string import ascii_lowercase
from typing import Iterator, Tuple

#: Maximum number of letters after the prefix: 26 plus 26 times 26 disks of one kind.
LONGEST = 2


def device_names(prefix: str) -> Iterator[str]:
    """Yield all names of disks with this *prefix* (vd, sd or hd) in Linux's order: vda to vdz, then vdaa."""
    for length in range(1, LONGEST + 1):
        for letters in product(ascii_lowercase, repeat=length):
            yield prefix + "".join(letters)


def device_order(name: str) -> Tuple[int, str]:
    """Return the sort key for the device name *name*, so that vdz comes before vdaa."""
    return len(name), name
