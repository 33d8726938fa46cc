# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of image."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from magnetar_agent.drivers.image import ImageDriver
from magnetar_core.operations import Operation
from tests.unit.agent.conftest import Host
from tests.unit.core.images import qcow2

if TYPE_CHECKING:
    pass


GOOD = qcow2()
OTHER = qcow2(size=2**30)


def digest(data: bytes, name: str = "sha256") -> str:
    return f"{name}:{hashlib.new(name, data).hexdigest()}"


def kept(host: Host) -> list[str]:
    """Return the paths of all files and folders in the agent's folder of images."""
    root = host.root / "state" / "images"
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def put(host: Host, data: bytes = GOOD, name: str = "image.qcow2") -> str:
    (host.root / name).write_bytes(data)
    return str(host.root / name)


def file(host: Host, data: bytes = GOOD, **want: Any) -> dict[str, Any]:
    return {"source": {"path": put(host, data)}, **want}


def receive(host: Host, data: bytes, key: str = "img", pieces: Any = None, length: int | None = None) -> Any:
    driver = host.agent.images
    assert isinstance(driver, ImageDriver)
    chunks = pieces if pieces is not None else [data[at:at + 7000] for at in range(0, len(data), 7000)]
    return driver.receive(host.agent.host, key, chunks, len(data) if length is None else length, Operation("upload"))
