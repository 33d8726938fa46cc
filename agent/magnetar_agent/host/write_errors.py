# SPDX-License-Identifier: GPL-3.0-or-later
"""The errors for files that the agent could not write."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict, NoSpace

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_core.errors import MagnetarError

#: Error numbers of a write that fails for lack of room: of the disk, of a quota, and of the longest file.
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def convert_write_error(error: OSError, content: str, folder: Path, remedy: str, place: str) -> MagnetarError:
    """Convert *error*, raised while *content* (such as ``backup``) was written to *folder*, to ``NoSpace`` or
    ``Conflict``. *remedy*: what frees room, such as "Delete backups". *place*: what to look at after another error."""
    if error.errno in NO_ROOM:
        return NoSpace(f"No room is left for the {content} in {folder} ({error.strerror}); nothing of it was kept. "
                       f"{remedy}, then repeat the call.")
    return Conflict(f"The {content} cannot be written to {folder}: {error.strerror or error}. Nothing of it was kept. "
                    f"Look at the {place}, then repeat the call.")
