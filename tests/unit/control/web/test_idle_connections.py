# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients that poll over one connection find it open: every server keeps idle connections longer than clients wait."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from novaclient.v2 import shell
from openstack import resource
from osc_lib import utils

from magnetar_agent.api import serve as agent_serve
from magnetar_control import serve
from magnetar_control.settings import Settings
from magnetar_control.web.asgi import AsgiServer
from magnetar_core.http.connections import Connections

#: Each client's function that polls, and its parameter with the seconds between two requests.
POLLING = ((utils.wait_for_status, "sleep_time"), (utils.wait_for_delete, "sleep_time"),
           (shell._poll_for_status, "poll_period"), (resource.wait_for_status, "interval"),
           (resource.wait_for_delete, "interval"))
#: Requests that a client may miss before its connection is closed: an answer may be slow, a machine be busy.
MISSED = 3


def seconds_between_requests(polling: Callable[..., Any], parameter: str) -> float:
    """Return the default interval of a client's function."""
    return float(inspect.signature(polling).parameters[parameter].default)


def api_config(monkeypatch: pytest.MonkeyPatch) -> uvicorn.Config:
    """Return how ``magnetar serve`` configures uvicorn."""
    configs: list[uvicorn.Config] = []

    def run(server: serve.ApiServer, **_options: Any) -> None:
        configs.append(server.config)
        server.started = True

    monkeypatch.setattr(serve.ApiServer, "run", run)
    serve.serve_requests(Settings(), AsgiServer({}, connections=Connections(1)))
    return configs[0]


@pytest.mark.parametrize(("polling", "parameter"), POLLING, ids=lambda value: getattr(value, "__qualname__", value))
def test_the_api_keeps_connections_of_clients_that_poll(
        polling: Callable[..., Any], parameter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = api_config(monkeypatch).timeout_keep_alive
    assert kept > MISSED * seconds_between_requests(polling, parameter)


def test_the_agent_keeps_them_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    agent: Any = None
    kept = agent_serve.make_http_server(agent, agent, None).config.timeout_keep_alive
    assert kept == api_config(monkeypatch).timeout_keep_alive
