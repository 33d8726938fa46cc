# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of iso."""

from __future__ import annotations

import io

import pycdlib


def read(image: bytes, names: str) -> dict[str, bytes]:
    opened, found = pycdlib.PyCdlib(), {}
    opened.open_fp(io.BytesIO(image))
    for folder, _folders, inside in opened.walk(**{names: "/"}):
        for name in inside:
            content, path = io.BytesIO(), f"{folder.rstrip('/')}/{name}"
            opened.get_file_from_iso_fp(content, **{names: path})
            found[path.lstrip("/")] = content.getvalue()
    opened.close()
    return found
