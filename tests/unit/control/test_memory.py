# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory that the C library keeps: returned where that is possible, and nothing where it is not."""

from __future__ import annotations

import ctypes

from magnetar_control import memory


def test_free_memory_is_returned_when_there_is_much(monkeypatch):
    trimmed = []

    class Library:
        def mallinfo2(self):
            return memory._Statistics(fordblks=self.free)

        def malloc_trim(self, pad):
            trimmed.append(pad)
            return 1

    library = Library()
    monkeypatch.setattr(memory, "_glibc", lambda: library)
    library.free = memory.FREE
    assert not memory.return_free_memory() and not trimmed
    library.free = memory.FREE + 1
    assert memory.return_free_memory() and trimmed == [0]


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    memory._glibc.cache_clear()
    try:
        memory.limit_malloc_arenas()
        assert not memory.return_free_memory()
    finally:
        memory._glibc.cache_clear()
