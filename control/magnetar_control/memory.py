# SPDX-License-Identifier: GPL-3.0-or-later
"""Less memory kept by glibc's ``malloc``: fewer arenas, and free memory returned to the kernel. No effect with other C
libraries."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

#: Parameter of ``mallopt`` (malloc.h): the most arenas. By default there are 8 for each CPU, each with free memory of
#: its own that others cannot use. Python and SQLite rarely allocate in parallel.
M_ARENA_MAX, ARENAS = -8, 2
#: Free bytes above which memory is returned to the kernel.
FREE = 4 << 20


class _Statistics(ctypes.Structure):
    """The ``struct mallinfo2`` of glibc, for ctypes."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"))


@functools.cache
def _glibc() -> Any:
    """Return glibc as a ctypes library; ``None`` if the process uses another C library, or a glibc without
    ``mallinfo2``."""
    library = ctypes.CDLL(None)
    if not all(hasattr(library, name) for name in ("mallopt", "mallinfo2", "malloc_trim")):
        return None
    library.mallinfo2.restype = _Statistics
    return library


def limit_malloc_arenas() -> None:
    """Limit the number of glibc's malloc arenas to ``ARENAS``, to save memory in a process with many threads. Call this
    before any thread starts."""
    if glibc := _glibc():
        glibc.mallopt(M_ARENA_MAX, ARENAS)


def return_free_memory() -> bool:
    """Give malloc's free memory back to the kernel, if there is more than ``FREE`` bytes. Return whether any was given
    back. Takes some milliseconds."""
    glibc = _glibc()
    return bool(glibc and glibc.mallinfo2().fordblks > FREE and glibc.malloc_trim(0))
