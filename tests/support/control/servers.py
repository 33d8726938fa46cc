# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of servers."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from tests.support.control.cloud import Caller, Reply


def ensure(caller: Caller, path: str, want: Any, request_id: str | None = None, **query: Any) -> Reply:
    words = urlencode({name: str(value).lower() for name, value in {"wait": 20, **query}.items()})
    return caller.call("PUT", f"/v1/{path}?{words}", want, headers={"X-Request-Id": request_id} if request_id else {})


def verbs(reply: Reply) -> list[str]:
    assert reply.status == 200, reply
    return [step["verb"] for step in reply.json["steps"]]


WEB = {"flavor": "tiny", "image": "cirros", "networks": [{"network": "default"}], "metadata": {"role": "web"}}
MADE = ["record", "disks", "define", "drive", "start"]
