# SPDX-License-Identifier: GPL-3.0-or-later
"""Namespaces of persistent memory, overwritten with zeros by daxio, and files used in place of namespaces."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from magnetar_core.errors import HypervisorError

_ZEROS = memoryview(bytes(1 << 20))


class Pmem:
    """The methods of ``LocalHypervisor`` for persistent memory (PMEM)."""

    def empty_pmem(self, path: Path) -> None:
        """Overwrite the PMEM namespace at *path* with zeros, by the program daxio. *path* may also be a regular file
        that is used as a namespace."""
        try:
            if stat.S_ISREG(path.stat().st_mode):
                _empty_file(path)
                return
            subprocess.run(["daxio", "--zero", "--output", str(path)], check=True, capture_output=True,  # noqa: S603,S607
                           text=True)
        except FileNotFoundError as error:
            reason = "daxio is missing. Install it (Debian: pmdk-tools)" if error.filename == "daxio" else \
                f"{path} is gone. Look at the agent's setting pmem_namespaces"
            raise HypervisorError(f"Persistent memory could not be emptied: {reason}.") from error
        except subprocess.CalledProcessError as error:
            raise HypervisorError(f"Persistent memory could not be emptied: daxio says of {path}: "
                                  f"{str(error.stderr).strip()[-300:]}") from error
        except OSError as error:
            raise HypervisorError(f"Persistent memory could not be emptied: {error}.") from error


def _empty_file(path: Path) -> None:
    """Overwrite the file with zeros without changing its size, because the size identifies the namespace even after a
    crash."""
    with path.open("r+b", buffering=0) as file:
        for start, end in _written(file.fileno()):
            at = start
            while at < end:
                at += os.pwrite(file.fileno(), _ZEROS[:end - at], at)
        os.fsync(file.fileno())


def _written(file: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs (start, end) of the byte ranges of the open *file* (a descriptor) that contain data, without its
    holes."""
    end = 0
    while True:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: no data after this offset
                raise
            return
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, end
