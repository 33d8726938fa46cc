# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes of servers: made and attached with a build, attached and detached later, let go with a deletion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from .work import Work


def prepared(work: Work, host: str) -> list[dict[str, Any]]:
    """The block devices of a new server in the agent's form."""
    return []


def built(work: Work, host: str, resource: Mapping[str, Any]) -> None:
    """The server has its volumes: note it here and at the volume service."""


def let_go(work: Work) -> None:
    """The server goes: its volumes are free, or go with it."""
    for one in orjson.loads(work.server.volumes):
        work.conductor.services.volume.detached(one["attachment_id"])
        if one["delete_on_termination"]:
            work.conductor.services.volume.delete(work.context(), one["volume_id"])
