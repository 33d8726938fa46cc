# SPDX-License-Identifier: GPL-3.0-or-later
"""Encrypted copies of disks in use, with a libvirt that refuses them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock
from uuid import uuid4

import pytest

from magnetar_agent.host.storage import DiskKey
from magnetar_agent.virt.disks.backup import Backups
from magnetar_core.errors import HypervisorError

if TYPE_CHECKING:
    from collections.abc import Callable


class Refusing(Backups):
    """Another job of the domain is under way."""

    templates = Path(str(files("magnetar_agent"))) / "templates"

    def _with(self, what: str, _uuid: str, action: Callable[[Any], None], **_options: Any) -> None:
        domain = MagicMock()
        domain.blockInfo.return_value = (1 << 20, 0, 0)
        domain.backupBegin.side_effect = HypervisorError(f"libvirt could not {what}: another job is active")
        action(domain)


def test_one_that_does_not_begin_leaves_no_file(tmp_path: Path) -> None:
    """Which would tell ``abort_copy`` that the job, somebody else's, is ours."""
    key = DiskKey(str(uuid4()), "0123456789abcdef" * 4)
    with pytest.raises(HypervisorError, match="another job"):
        Refusing().begin_copy(str(uuid4()), "vda", tmp_path / "copy", "luks", key)
    assert not list(tmp_path.iterdir())
