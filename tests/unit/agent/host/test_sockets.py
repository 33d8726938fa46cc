# SPDX-License-Identifier: GPL-3.0-or-later
"""Unix sockets that are listened on."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from magnetar_agent.host.sockets import bind_unix_socket


def test_only_the_group_may_use_it_whatever_the_umask(tmp_path: Path) -> None:
    with bind_unix_socket(tmp_path / "a") as listener:
        listener.listen()
        found = (tmp_path / "a").stat()
        assert stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o660
        assert found.st_gid == os.getegid()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "a"))


def test_nobody_but_the_owner_may_use_it_before_its_group_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(os, "chown", lambda path, _uid, gid: seen.append((stat.S_IMODE(path.stat().st_mode), gid)))
    bind_unix_socket(tmp_path / "a", 7).close()
    assert seen == [(0o600, 7)]


def test_a_path_that_is_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(OSError, match="in use"):
        bind_unix_socket(tmp_path / "a")
