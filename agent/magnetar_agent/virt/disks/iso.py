# SPDX-License-Identifier: GPL-3.0-or-later
"""ISO 9660 images such as config drives. They have Rock Ridge and Joliet names, which guests read."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO

import pycdlib

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Bytes of a sector. Files begin at a sector.
SECTOR = 2048


def write_iso(target: BinaryIO, label: str, files: Mapping[str, bytes]) -> None:
    """Write an ISO 9660 image with *files* (``{path: content}``) to *target*. *label*: the volume label. Equal contents
    are stored once. The structure of images with the same paths and sizes is cached, so that only contents must be
    written.
    """
    contents = {content: at for at, content in enumerate(dict.fromkeys(files.values()))}
    image, places = _empty(label, tuple((path, contents[files[path]]) for path in sorted(files)),
                           tuple(map(len, contents)))
    done = 0
    for start, content in sorted(zip(places, contents, strict=True)):
        target.write(image[done:start])
        target.write(content)
        done = start + len(content)
    target.write(image[done:])


@lru_cache(maxsize=32)
def _empty(label: str, paths: tuple[tuple[str, int], ...], sizes: tuple[int, ...]) -> tuple[memoryview, list[int]]:
    """Return an ISO image in which all file contents are zeros, and the offset of each content. *paths*: pairs (path,
    index of its content). *sizes*: bytes of each content. The plain ISO 9660 names are numbers; the real names are in
    Joliet and Rock Ridge."""
    image = pycdlib.PyCdlib()
    image.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=label)
    plain, first = {"": ""}, dict[int, str]()
    for path, content in paths:
        folders = path.strip("/").split("/")
        for depth in range(1, len(folders)):
            _add_folder(image, plain, "/".join(folders[:depth]))
        name, joliet = f"{plain['/'.join(folders[:-1])]}/F{len(plain):07d}.;1", "/" + "/".join(folders)
        plain["/".join(folders)] = name
        if content in first:
            image.add_hard_link(iso_old_path=first[content], iso_new_path=name, rr_name=folders[-1])
            image.add_hard_link(iso_old_path=first[content], joliet_new_path=joliet)
        else:
            image.add_fp(io.BytesIO(bytes(sizes[content])), sizes[content], name, rr_name=folders[-1],
                         joliet_path=joliet, file_mode=0o100444)
            first[content] = name
    written = io.BytesIO()
    image.write_fp(written)
    places = [image.get_record(iso_path=first[at]).extent_location() * SECTOR for at in range(len(sizes))]
    image.close()
    return memoryview(written.getvalue()), places


def _add_folder(image: pycdlib.PyCdlib, plain: dict[str, str], path: str) -> None:
    if path not in plain:
        parent, _slash, name = path.rpartition("/")
        plain[path] = f"{plain[parent]}/D{len(plain):07d}"
        image.add_directory(plain[path], rr_name=name, joliet_path="/" + path, file_mode=0o040555)
