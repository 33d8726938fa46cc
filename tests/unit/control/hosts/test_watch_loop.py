# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that are away: one line in the log for each change, and pauses that grow. TLS: the certificates of the pool."""

from __future__ import annotations

import itertools
import logging
import random
import socket
import ssl
import time

import pytest

from magnetar_control.agents import Agents
from magnetar_control.conductor.hosts import agent_connection, watch_loop
from tests.support.agent.pki import Pki
from tests.support.control.watching import FollowedHost, watched_agent
from tests.support.waiting import eventually


def test_a_host_that_goes_and_comes_is_two_lines_and_longer_and_longer_pauses(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(watch_loop, "PAUSE", 0.02)
    monkeypatch.setattr(watch_loop, "LONGEST", 0.2)
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    path, tried = str(tmp_path / "agent.sock"), []
    opened = agent_connection.AgentConnection.open

    async def open(self, context):
        tried.append(time.monotonic())
        await opened(self, context)

    monkeypatch.setattr(agent_connection.AgentConnection, "open", open)
    followed = FollowedHost(f"unix:{path}", monkeypatch)
    eventually(lambda: len(tried) >= 8)
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert all(pause >= 0.9 * least for pause, least in zip(pauses, (0.02, 0.04, 0.08, 0.16, 0.2, 0.2), strict=False))
    frames = [b'event: servers\ndata: {"servers": []}\n\nevent: ser', b'ver\ndata: {"id": "s"}\n\n']
    with watched_agent(path, frames=frames):
        eventually(lambda: followed.handled == [("servers", {"servers": []}), ("server", {"id": "s"})])
    followed.loop.close()
    lines = [record.getMessage() for record in caplog.records if "kvm1" in record.getMessage()]
    assert [line.partition(":")[0] for line in lines[:2]] == ["host kvm1 does not answer", "host kvm1 answers again"]
    assert followed.saved == [{"vcpus": 8}] and "no such socket" in followed.problems[0]


def test_a_host_is_tried_at_once_when_an_operator_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(watch_loop, "PAUSE", 3600.0)
    monkeypatch.setattr(watch_loop, "LONGEST", 3600.0)
    path = str(tmp_path / "agent.sock")
    followed = FollowedHost(f"unix:{path}", monkeypatch)
    eventually(lambda: followed.problems)
    with watched_agent(path):
        followed.loop.wake("kvm1")
        eventually(lambda: followed.saved)
    followed.loop.close()


def test_an_agent_that_says_nothing_is_away(tmp_path, monkeypatch):
    monkeypatch.setattr(watch_loop, "PAUSE", 3600.0)
    path = str(tmp_path / "agent.sock")
    with watched_agent(path):
        followed = FollowedHost(f"unix:{path}", monkeypatch, heartbeat=0.1)
        eventually(lambda: followed.problems)
        assert "has sent nothing for 0.3 s" in followed.problems[0]
    followed.loop.close()


@pytest.mark.parametrize("trusted", [True, False])
def test_agents_are_followed_over_tls_with_certificates(tmp_path, monkeypatch, trusted):
    monkeypatch.setattr(watch_loop, "PAUSE", 3600.0)
    pki, other = Pki(tmp_path / "pki"), Pki(tmp_path / "other")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*pki.issue("kvm1"))
    tls.load_verify_locations(pki.ca)
    tls.verify_mode = ssl.CERT_REQUIRED
    agents = Agents((pki if trusted else other).ca, *pki.issue("conductor"))
    with watched_agent(("127.0.0.1", 0), tls=tls, family=socket.AF_INET) as listening:
        followed = FollowedHost(f"https://127.0.0.1:{listening.getsockname()[1]}", monkeypatch, agents)
        eventually(lambda: followed.saved or followed.problems)
    followed.loop.close()
    assert followed.saved == ([{"vcpus": 8}] if trusted else [])
    assert trusted or "certificate is not trusted" in followed.problems[0]
