# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder of an export on the host: where it may lie, whether it is empty and has room, and its removal."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_core.errors import Conflict, InvalidField, NoSpace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from magnetar_agent.settings import AgentSettings

#: The list of an export's files with their checksums; it is written last, so with it the export is complete.
CHECKSUMS = "SHA256SUMS"
#: Suffix of files that are being written.
PART = ".part"


def resolve_export_folder(settings: AgentSettings, requested: str | None, name: str) -> Path:
    """Return the absolute path of the folder for a server export (copies of a server's disks, and a domain XML for
    another host). *requested*: the folder that the user has named; ``None`` for the default, which is called like the
    export, *name*. Raises ``InvalidField`` unless the folder, with symbolic links resolved, is inside a folder that the
    setting ``export_paths`` lists."""
    if requested is None and not settings.export_paths:
        raise InvalidField("folder", "is required: the agent's setting export_paths is empty")
    if requested is None and ("/" in name or name in (".", "..")):
        raise InvalidField("folder", "is required: the name of the export cannot be that of a folder", name)
    path = settings.export_paths[0] / name if requested is None else Path(requested)
    real = Path(os.path.realpath(path))
    if not path.is_absolute() or any(ord(character) < 32 for character in str(real)) or not any(
            real != Path(os.path.realpath(allowed)) and real.is_relative_to(os.path.realpath(allowed))
            for allowed in settings.export_paths):
        where = ", ".join(map(str, settings.export_paths)) or "none"
        raise InvalidField("folder", f"must be a folder in one of the agent's export_paths ({where})", str(path))
    return real


def check_empty(folder: Path) -> None:
    """Raise ``Conflict`` unless *folder* is missing or empty."""
    try:
        file_names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(folder, error) from error
    if file_names:
        raise Conflict(f"The folder {folder} is not empty: it has {file_names[0]!r}. Name another folder for the "
                       "export, or empty this one.")


def check_export_room(folder: Path, needed: int) -> None:
    """Raise ``NoSpace`` if fewer than *needed* bytes are free in the file system of *folder*, which need not exist."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        raise _unusable(folder, error) from error
    if needed > free:
        raise NoSpace(f"The export needs up to {needed} bytes, and {free} are free under {existing}. Free some room, "
                      "or name a folder of another file system. Nothing was written.")


def prepare_export_folder(folder: Path) -> None:
    """Make *folder*, which only root can enter. Raises ``Conflict`` if it cannot be made."""
    try:
        make_state_folder(folder.parent, 0o700)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error


def remove_export_files(folder: Path, names: Iterable[str]) -> None:
    """Remove the files *names* from *folder*, the list of checksums first, and the folder if nothing else is in it.
    Missing files are ignored. Raises ``Conflict`` if a file cannot be removed."""
    try:
        for name in (CHECKSUMS, *names):
            for file in (folder / name, folder / f"{name}{PART}"):
                file.unlink(missing_ok=True)
    except NotADirectoryError:
        return
    except OSError as error:
        raise _unusable(folder, error) from error
    with suppress(OSError):
        folder.rmdir()


def _unusable(folder: Path, error: OSError) -> Conflict:
    return Conflict(f"The folder {folder} cannot be used for an export: {error.strerror or error}. On a host whose "
                    "agent systemd confines, the role's variable agent_write_paths must name it.")
