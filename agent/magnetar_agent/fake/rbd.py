# SPDX-License-Identifier: GPL-3.0-or-later
"""Ceph pools of the fake: the folder of a storage pool, with a file for each image. An image NAME is a base if a file
``NAME@base`` is next to it. A file ``NAME@of`` contains the name of the base that NAME is a clone of."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from magnetar_agent.host.storage import NetworkSource
from magnetar_core.errors import Conflict, HypervisorError

#: The monitors of all pools, for QEMU.
MONITORS = (("ceph1", "6789"),)
USER, SECRET = "magnetar", "2f6d8c5e-5d3b-4a53-9c0e-6f6c2f1f7a10"


class FakeRbdPool:
    """A fake Ceph pool whose RBD images are files in *folder*. *call*: ``State._call`` of the fake hypervisor (delay
    and planned errors), which each method runs first."""

    def __init__(self, folder: Path, call: Callable[[str], AbstractContextManager[list[str]]]) -> None:
        self.folder, self._call = folder, call

    def source(self, name: str) -> NetworkSource:
        return NetworkSource("rbd", f"{self.folder.name}/{name}", hosts=MONITORS, user=USER, secret=SECRET)

    def identity(self) -> str:
        return str(self.folder.resolve())

    def names(self) -> list[str]:
        with self._call("rbd_names"):
            return sorted(path.name for path in self.folder.iterdir() if "@" not in path.name and path.name != "room")

    def size(self, name: str) -> int | None:
        with self._call("rbd_size"):
            path = self.folder / name
            return path.stat().st_size if path.exists() else None

    def make(self, name: str, size: int) -> None:
        with self._call("rbd_make"), self._new(name).open("wb") as file:
            file.truncate(size)

    def clone(self, base: str, name: str) -> None:
        with self._call("rbd_clone"):
            if not (self.folder / f"{base}@base").exists():
                raise HypervisorError(f"rbd could not clone {base}: (2) No such file or directory.")
            shutil.copyfile(self.folder / base, self._new(name))
            (self.folder / f"{name}@of").write_text(base)

    def grow(self, name: str, size: int) -> None:
        with self._call("rbd_grow"):
            path = self.folder / name
            if not path.exists():
                raise HypervisorError(f"The image {name} is gone from the pool {self.folder.name!r} of Ceph.")
            if path.stat().st_size < size:
                with path.open("r+b") as file:
                    file.truncate(size)

    def remove(self, name: str) -> None:
        with self._call("rbd_remove"):
            for end in ("", "@of"):
                (self.folder / f"{name}{end}").unlink(missing_ok=True)
            self._note(name).unlink(missing_ok=True)

    def rename(self, name: str, new_name: str) -> None:
        with self._call("rbd_rename"):
            if not (self.folder / name).exists():
                raise HypervisorError(f"rbd could not rename {name}: (2) No such file or directory.")
            new = self._new(new_name)
            if self._note(name).exists():
                self._note(name).rename(self._note(new_name))
            if (self.folder / f"{name}@of").exists():
                (self.folder / f"{name}@of").rename(self.folder / f"{new_name}@of")
            (self.folder / name).rename(new)

    def annotate(self, name: str, note: str) -> None:
        with self._call("rbd_annotate"):
            if not (self.folder / name).exists():
                raise HypervisorError(f"rbd could not describe {name}: (2) No such file or directory.")
            self._note(name).write_text(note)

    def annotation(self, name: str) -> str | None:
        with self._call("rbd_annotation"):
            path = self._note(name)
            return path.read_text() if path.exists() else None

    def block_clients(self, name: str) -> list[str]:
        with self._call("rbd_block_clients"):
            path = self.folder / f"{name}@clients"
            return path.read_text().split() if path.exists() else []

    def is_base(self, name: str) -> bool:
        with self._call("rbd_is_base"):
            return (self.folder / f"{name}@base").exists()

    def protect(self, name: str) -> None:
        with self._call("rbd_protect"):
            (self.folder / f"{name}@base").touch()

    def remove_base(self, name: str) -> None:
        with self._call("rbd_remove_base"):
            if not any(path.read_text() == name for path in self.folder.glob("*@of")):
                for end in ("", "@base"):
                    (self.folder / f"{name}{end}").unlink(missing_ok=True)

    def _note(self, name: str) -> Path:
        """Return the path of the file with the text that ``annotate`` stores for the image *name*. The file is in a
        folder beside the folder of the pool."""
        folder = self.folder.resolve().with_name(f"{self.folder.name}@notes")
        folder.mkdir(exist_ok=True)
        return folder / name

    def _new(self, name: str) -> Path:
        path = self.folder / name
        if path.exists():
            raise Conflict(f"The pool {self.folder.name!r} of Ceph has an image called {name} already.")
        return path
