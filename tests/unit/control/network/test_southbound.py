# SPDX-License-Identifier: GPL-3.0-or-later
"""A southbound database that is not as it should be. Real ones: contract/network/test_southbound.py."""

from __future__ import annotations

import socket
import time

import pytest
from ovsdbapp.backend.ovs_idl import connection
from ovsdbapp.exceptions import TimeoutException

from magnetar_control.services.network.ovn import ovn_servers
from magnetar_control.services.network.ovn.ovn import OvnEngine
from magnetar_control.services.network.ovn.ovn_rows import TABLES
from magnetar_control.services.network.ovn.southbound import Southbound
from magnetar_core.errors import Unavailable


def test_one_that_says_nothing_keeps_nobody_waiting(tmp_path):
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(path))
        line.listen()
        began = time.monotonic()
        with pytest.raises(Unavailable, match="no answer for 0.3 s.* ovn_southbound"):
            Southbound(f"unix:{path}", 0.3).chassis_of("AB12")
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("reach", [
    lambda url: Southbound(url, 2).chassis_of("AB12"), lambda url: OvnEngine(url, patience=2).leads()])
def test_one_that_lets_nobody_in(monkeypatch, reach):
    """It is said; and the connection is closed, so that nobody has a lock who never uses it."""
    closed = []

    def start(self):
        raise TimeoutException

    def close(self):
        closed.append(self)

    schema = {"name": "OVN", "version": "1.0.0", "cksum": "0 0", "tables": {
        name: {"columns": {"name": {"type": "string"}}} for name in ("NB_Global", *TABLES, "Chassis")}}
    monkeypatch.setattr(ovn_servers, "fetch_schema", lambda *words: schema)
    monkeypatch.setattr(connection.Connection, "start", start)
    monkeypatch.setattr(connection.OvsdbIdl, "close", close)
    with pytest.raises(Unavailable, match="no server has let us in within 2 s"):
        reach("unix:/nowhere")
    assert len(closed) == 1
