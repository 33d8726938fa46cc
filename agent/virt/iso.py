# SPDX-License-Identifier: GPL-3.0-or-later
"""ISO 9660 images such as config drives. Names go into Rock Ridge and Joliet, which is what guests read."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO

import pycdlib

if TYPE_CHECKING:
    from collections.abc import Mapping


def write(target: BinaryIO, label: str, files: Mapping[str, bytes]) -> None:
    """Write an image called *label* with *files* (path with ``/`` between folders, to content) to *target*.

    Plain ISO 9660 knows neither ``meta_data.json`` nor ``2009-04-04``, so its names are only numbers.
    """
    image = pycdlib.PyCdlib()
    image.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=label)
    plain = {"": ""}
    for path in sorted(files):
        folders = path.strip("/").split("/")
        for depth in range(1, len(folders)):
            _add_folder(image, plain, "/".join(folders[:depth]))
        content = files[path]
        parent, name = "/".join(folders[:-1]), folders[-1]
        image.add_fp(io.BytesIO(content), len(content), f"{plain[parent]}/F{len(plain):07d}.;1", rr_name=name,
                     joliet_path="/" + "/".join(folders), file_mode=0o100444)
        plain["/".join(folders)] = ""
    image.write_fp(target)
    image.close()


def _add_folder(image: pycdlib.PyCdlib, plain: dict[str, str], path: str) -> None:
    if path not in plain:
        parent, _slash, name = path.rpartition("/")
        plain[path] = f"{plain[parent]}/D{len(plain):07d}"
        image.add_directory(plain[path], rr_name=name, joliet_path="/" + path, file_mode=0o040555)
