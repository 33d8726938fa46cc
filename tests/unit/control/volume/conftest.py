# SPDX-License-Identifier: GPL-3.0-or-later
"""Embedded volumes over the agent of a fake host, which answers at a unix socket."""

from __future__ import annotations

import socket
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.agent import Agent
from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.settings import AgentSettings
from magnetar_control.agents import Agents
from magnetar_control.api.volume.app import VolumeApplication
from magnetar_control.services.key_manager import EmbeddedKeys
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.store.engine.database import Database
from tests.support.agent.serving import served
from tests.support.control.serving import Asker, authenticate

#: The image that there is, by its uuid; 3 MiB of raw content.
IMAGE = str(uuid.uuid5(uuid.NAMESPACE_OID, "image"))


class Images:
    """Knows one image, and those that are made here, with their content in ``contents``."""

    def __init__(self, **properties: str) -> None:
        self.properties = {"hw_disk_bus": "virtio", **properties}
        self.made: dict[str, dict[str, Any]] = {}
        self.contents: dict[str, bytes] = {}

    def create(self, context: Any, name: str | None, **fields: Any) -> dict[str, Any]:
        """A queued image."""
        id = str(uuid.uuid4())
        self.made[id] = {"id": id, "name": name, "status": "queued", "visibility": "shared", "protected": False,
                         "owner": context.project_id, **fields}
        return self.made[id]

    def upload(self, id: str, chunks: Any, size: int | None = None) -> None:
        """Take its content."""
        self.contents[id] = b"".join(chunks)
        assert len(self.contents[id]) == size
        self.made[id]["status"] = "active"

    def fail(self, id: str, why: str) -> None:
        """It stays without content."""
        self.made.get(id, {}).update(status="killed", why=why)

    def show(self, context: Any, id: str) -> dict[str, Any] | None:
        """The image."""
        return self.made.get(id) or self._usual(id)

    def _usual(self, id: str) -> dict[str, Any] | None:
        return {"id": IMAGE, "name": "cirros", "status": "active", "size": 3 << 20, "virtual_size": 3 << 20,
                "min_disk": 1, "min_ram": 0, "disk_format": "raw", "container_format": "bare", "checksum": "0" * 32,
                "properties": self.properties} if id == IMAGE else None


class Cloud:
    """A host ``kvm1`` with its agent, and another that never answers; ``up`` says which the cloud believes to be up."""

    def __init__(self, root: Path) -> None:
        (root / "libvirt").mkdir()
        self.root, self.agents, self.up = root, Agents(timeout=20), {"kvm1"}
        socket_ = root / "agent.sock"
        self.endpoint = f"unix:{socket_}"
        self.agent = Agent(AgentSettings(state_dir=root / "state", socket=socket_, image_paths=(root,), grace=0.1,
                                         backup_directory=root / "backups"), FakeHypervisor(root / "libvirt"))
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(socket_))
        listening.listen()
        self.agent.start()
        self.serving = served(self.agent, listening)
        self.serving.__enter__()

    def hosts(self) -> list[dict[str, Any]]:
        """As the control plane has them."""
        return [{"name": "kvm1", "endpoint": self.endpoint, "disk_gb": 80, "disk_gb_free": 50, "up": "kvm1" in self.up},
                {"name": "kvm2", "endpoint": f"unix:{self.root}/none", "disk_gb": 90,
                 "disk_gb_free": 90, "up": "kvm2" in self.up}]

    def ensure_image(self, host: str, id: str) -> None:
        """Have the host have the image."""
        path = self.root / "image.raw"
        with path.open("wb") as stream:
            stream.truncate(3 << 20)
        with self.agents.client(self.endpoint) as client:
            client.ensure("image", id, {"name": "cirros", "source": {"path": str(path)}, "disk_format": "raw"})

    def on_host(self, noun: str = "volume") -> dict[str, dict[str, Any]]:
        """What the agent has, by uuid."""
        with self.agents.client(self.endpoint) as client:
            return {one["id"]: one for one in client.list(noun)}

    def close(self) -> None:
        """End the agent."""
        self.agents.close()
        self.serving.__exit__(None, None, None)
        self.agent.close()


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """The hosts, in a folder with a short name, as unix sockets need it."""
    with tempfile.TemporaryDirectory(prefix="mag") as root:
        found = Cloud(Path(root))
        yield found
        found.close()


def work(service: EmbeddedVolumes) -> int:
    """Do all that can be done now; how many tasks that were."""
    done = 0
    while service.worker.step():
        done += 1
    return done


@pytest.fixture
def service(database: Database, cloud: Cloud) -> EmbeddedVolumes:
    """Without threads: tests say when the work is done."""
    return EmbeddedVolumes(database, cloud.hosts, cloud.agents, cloud.ensure_image, Images(), pools=("default", "fast"),
                           pause=0.0, keys=EmbeddedKeys(cloud.root / "certificates", cloud.root / "keys"))


@pytest.fixture
def ask(service: EmbeddedVolumes) -> Asker:
    """Asks as a user, at the newest microversion."""
    return Asker(VolumeApplication(service, authenticate), headers={"openstack-api-version": "volume latest"})
