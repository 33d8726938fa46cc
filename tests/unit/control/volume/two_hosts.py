# SPDX-License-Identifier: GPL-3.0-or-later
"""Embedded volumes over the agents of two fake hosts, which speak to each other over TLS links."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select, update

from magnetar_agent.reconcile.documents import Document
from magnetar_agent.volumes import pools
from magnetar_control.agents import Agents
from magnetar_control.services.key_manager import EmbeddedKeys
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume import tables as volume
from magnetar_control.services.volume.pools import save_host_pools
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.tables import cells, host_removals, hosts
from magnetar_core.errors import Conflict, NotFound
from tests.support.agent.pair import Pair
from tests.support.control.serving import ADMIN, ALICE, Asker
from tests.support.ports import free_port

from .conftest import Images

POOLS = ("default", "fast")


class TwoHosts:
    """The hosts ``kvm1`` and ``kvm2``, each with two pools, and the service without threads."""

    def __init__(self, root: Path, database: Database) -> None:
        self.root, self.database = root, database
        self.pair = Pair(root, (free_port(), free_port()), more={name: {"pools": {
            "fast": {"type": "dir", "path": str(root / f"{name}-fast")}}} for name in ("kvm1", "kvm2")})
        self.hosts = {host.name: host for host in (self.pair.one, self.pair.two)}
        pki = self.pair.one.pki
        self.agents = Agents(pki.ca, pki.folder / "admin.pem", pki.folder / "admin.key", timeout=20)
        self.down: set[str] = set()
        for number, host in enumerate(self.hosts.values()):
            with database.write() as connection:
                if number == 0:
                    connection.execute(insert(cells).values(id="c", name="cell1", database_url="",
                                                            created_at=utc_now()))
                connection.execute(insert(hosts).values(id=host.name, name=host.name, number=number, cell_id="c",
                                                        endpoint="", created_at=utc_now()))
            self.report(host.name, 50 if number else 60)
        self.service = self.process()

    def report(self, name: str, free: int = 50, **reports: Any) -> None:
        """Save what the host reports of its pools, each with *free* GiB. *reports*: fields that differ, by pool."""
        with self.database.write() as connection:
            save_host_pools(connection, name, [
                {"name": pool, "kind": "dir", "identity": f"dir:{name}:{pool}",
                 "shared": False, "total_gb": 90, "free_gb": free, "state": "up", "reason": "", **reports.get(pool, {})}
                for pool in POOLS])

    def process(self) -> EmbeddedVolumes:
        """A process of the service."""
        return EmbeddedVolumes(self.database, self.volume_hosts, self.agents, lambda _host, _image: None, Images(),
                               pools=POOLS, pause=0.0, limits={"volumes": -1, "gigabytes": -1},
                               keys=EmbeddedKeys(self.root / "certificates", self.root / "keys"))

    def volume_hosts(self) -> list[dict[str, Any]]:
        """The hosts, as the control plane has them."""
        return [{"name": name, "endpoint": f"https://127.0.0.1:{host.port}", "disk_gb": 80,
                 "disk_gb_free": 50 - number, "up": name not in self.down}
                for number, (name, host) in enumerate(self.hosts.items())]

    def work(self, service: EmbeddedVolumes | None = None, most: int = 30) -> int:
        """Do all that can be done now; how many tasks that were."""
        for done in range(most):
            if not (service or self.service).worker.step():
                return done
        return most

    def document(self, host: str, id: str, noun: str = "volume") -> Document | None:
        """What the agent of a host has of a volume."""
        return self.hosts[host].agent.host.documents.get(noun, id)

    def lies(self, id: str) -> list[str]:
        """HOST/POOL of all content of the volume, and of the documents of the agents, which must agree."""
        content, documents = [], []
        for name, host in self.hosts.items():
            content += [f"{name}/{pool.name}" for pool in pools.all_pools(host.agent.host)
                        if id in {file.partition(".")[0] for file in pool.names()}]
            found = self.document(name, id)
            documents += [f"{name}/{found.want['pool']}"] if found else []
        assert content == documents, (content, documents)
        return content

    def removals(self) -> set[tuple[str, str, bool]]:
        """The removals that are noted for hosts: (host, noun, whether it is due)."""
        with self.database.read() as connection:
            return {(row.host, row.noun, row.due) for row in connection.execute(select(host_removals))}

    def conduct(self) -> None:
        """Remove what is due from hosts, as conductors do, until nothing is left to do."""
        for _round in range(3):
            with self.database.read() as connection:
                rows = connection.execute(select(host_removals).where(host_removals.c.due)).all()
            for row in rows:
                self._conduct(row)

    def _conduct(self, row: Any) -> None:
        with suppress(Conflict):  # an export still has the volume
            with suppress(NotFound), self.agents.client(f"https://127.0.0.1:{self.hosts[row.host].port}") as client:
                client.delete(row.noun, row.key)
            with self.database.write() as connection:
                connection.execute(host_removals.delete().where(
                    host_removals.c.host == row.host, host_removals.c.noun == row.noun, host_removals.c.key == row.key))

    def lease_ends(self, id: str) -> None:
        """The lease of the worker that died has ended."""
        with self.database.write() as connection:
            connection.execute(update(volume.volumes).where(volume.volumes.c.id == id).values(
                lease_until="2020-01-01T00:00:00Z", not_before=None))

    def row(self, id: str) -> Any:
        """The row of a volume."""
        with self.database.read() as connection:
            return connection.execute(select(volume.volumes).where(volume.volumes.c.id == id)).mappings().first()

    def close(self) -> None:
        """End the agents."""
        self.agents.close()
        self.pair.close()


@contextmanager
def two_hosts(database: Database) -> Iterator[TwoHosts]:
    """The hosts, in a folder with a short name, as unix sockets need it."""
    with tempfile.TemporaryDirectory(prefix="mag") as root:
        found = TwoHosts(Path(root), database)
        try:
            yield found
        finally:
            found.close()


def new_volume(ask: Asker, site: TwoHosts, **fields: Any) -> str:
    """Create a volume, on kvm1; its id."""
    id = ask("POST", "/v3/volumes", {"volume": {"size": 1, "name": "data", **fields}}, status=202)["volume"]["id"]
    site.work()
    assert site.row(id)["status"] == "available"
    return str(id)


def attach(site: TwoHosts, id: str, host: str = "kvm1") -> str:
    """Give a running server on *host* the volume; the server's id."""
    with site.agents.client(f"https://127.0.0.1:{site.hosts[host].port}") as agent:
        server = agent.ensure("server", f"web-{id[:8]}", {"flavor": {"vcpus": 1, "ram": 64, "disk": 1}, "image": None})
        server_id = str(server["resource"]["id"])
        agent.ensure("volume_attachment", f"{server_id}:{id}", {"server": server_id, "volume": id})
    attachment = site.service.reserve(ADMIN, id, server_id)
    site.service.attached(attachment["id"], host, "/dev/vdb")
    return server_id


def act_on_volume(ask: Asker, id: str, name: str, body: dict[str, Any], status: int = 202, who: Any = ADMIN) -> str:
    """Ask for an action; the message of a refusal."""
    answer = ask.as_(who)("POST", f"/v3/volumes/{id}/action", {name: body}, status=status)
    return next(iter(answer.values()))["message"] if status >= 400 else ""


def migrate_volume_to(ask: Asker, id: str, host: str, status: int = 202, **more: Any) -> str:
    return act_on_volume(ask, id, "os-migrate_volume", {"host": host, **more}, status)


def retype_volume(ask: Asker, id: str, name: str, status: int = 202, policy: str | None = "on-demand",
           who: Any = ALICE) -> str:
    return act_on_volume(ask, id, "os-retype", {"new_type": name, "migration_policy": policy}, status, who)
