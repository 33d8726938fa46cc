# SPDX-License-Identifier: GPL-3.0-or-later
"""Namespaces of persistent memory are emptied by daxio, and files by making them anew."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from magnetar_core.errors import HypervisorError


class Pmem:
    """The part of ``LocalHypervisor`` for persistent memory."""

    def empty_pmem(self, path: Path) -> None:
        """A file keeps its size; daxio writes zeros to all of a device."""
        try:
            seen = path.stat()
            if stat.S_ISREG(seen.st_mode):
                _empty_file(path, seen.st_size)
                return
            subprocess.run(["daxio", "--zero", "--output", str(path)], check=True, capture_output=True,  # noqa: S603,S607
                           text=True)
        except FileNotFoundError as error:
            what = "daxio is missing. Install it (Debian: pmdk-tools)" if error.filename == "daxio" else \
                f"{path} is gone. Look at the agent's setting pmem_namespaces"
            raise HypervisorError(f"Persistent memory could not be emptied: {what}.") from error
        except subprocess.CalledProcessError as error:
            raise HypervisorError(f"Persistent memory could not be emptied: daxio says of {path}: "
                                  f"{str(error.stderr).strip()[-300:]}") from error
        except OSError as error:
            raise HypervisorError(f"Persistent memory could not be emptied: {error}.") from error


def _empty_file(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(0)
        file.truncate(size)
        os.fsync(file.fileno())
