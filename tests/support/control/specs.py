# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of specs."""

from __future__ import annotations

from tests.support.control.cloud import Caller


def flavor(caller: Caller, id: str, specs: dict[str, str]) -> str:
    """Create a small flavor with the extra *specs*; return its id."""
    caller.post("/v2.1/flavors", {"flavor": {"id": id, "name": id, "ram": 64, "vcpus": 1, "disk": 1}})
    reply = caller.post(f"/v2.1/flavors/{id}/os-extra_specs", {"extra_specs": specs})
    assert reply.status == 200, reply
    return id


def image(caller: Caller, name: str, **properties: str) -> str:
    return caller.image(name, **properties)
