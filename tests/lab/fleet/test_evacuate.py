# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud over two hosts with real guests. The power of one is cut, its server is evacuated, and the host comes back:
it runs no second copy, loses what it had of the server, and starts the one that is its own still."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from magnetar_control.store.engine import tables
from tests.support.control.cloud import Cloud
from tests.support.waiting import LIMIT, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.lab.bare import Site

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]
#: Seconds for anything that is waited for.


class OverSite(Cloud):
    """A cloud whose hosts are two of a site's."""

    def __init__(self, site: Site) -> None:
        super().__init__(2, links=True, host_down_after=8.0)
        self.site = site

    def _link(self) -> None:
        pki = self.site.folder / "magnetar-pki"
        self.hosts = {name: f"https://{self.site.hosts[name].address}" for name in ("bare1", "bare2")}
        self.settings = {"agent_ca_cert": str(pki / "ca.pem"), "agent_client_cert": str(pki / "clients/admin.pem"),
                         "agent_client_key": str(pki / "clients/admin.key"), **self.settings}

    def start_agent(self, name: str) -> None:
        """They run already."""

    def wait_agent(self, name: str) -> None:
        """They run already."""

    def domains(self, name: str) -> str:
        """The domains of a host."""
        return self.site.hosts[name].run(["virsh", "-q", "-c", "qemu:///system", "list", "--all", "--uuid"]).stdout

    def running(self, name: str) -> str:
        """Those that run."""
        return self.site.hosts[name].run(["virsh", "-q", "-c", "qemu:///system", "list", "--uuid"]).stdout

    def migrations(self, id: str) -> list[str]:
        """Statuses of the server's migrations."""
        with self.parts.working.database.read() as connection:
            return list(connection.execute(select(tables.migrations.c.status).where(
                tables.migrations.c.server_id == id)).scalars())


@pytest.fixture
def cloud(three_hosts: Site, guest_image: dict[str, Path]) -> Iterator[OverSite]:
    with OverSite(three_hosts) as found:
        found.admin.image(content=guest_image["disk"].read_bytes(), disk_format="qcow2")
        yield found
        for one in found.admin.get("/v2.1/servers").json["servers"]:
            found.admin.delete(f"/v2.1/servers/{one['id']}")
            found.admin.settled(one["id"], LIMIT)
        for name in found.hosts:
            with found.parts.agents.client(found.hosts[name]) as client:
                for image in client.list("image"):
                    client.delete("image", image["id"])


def test_a_host_without_power_comes_back(cloud: OverSite) -> None:
    admin, dead = cloud.admin, cloud.site.hosts["bare1"]
    gone, kept = (admin.boot(name, flavorRef="1", networks="none", availability_zone="nova:bare1", version="2.74")["id"]
                  for name in ("gone", "kept"))
    assert {gone, kept} <= set(cloud.running("bare1").split())
    assert admin.act(gone, "evacuate", {}, "2.94").status == 400
    dead.cut_power()
    eventually(lambda: admin.act(gone, "evacuate", {}, "2.94").status == 200, "the host does not count as down")
    server = admin.settled(gone, LIMIT)
    assert server and (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", "bare2"), server
    assert cloud.running("bare2").split() == [gone] and cloud.migrations(gone) == ["done"]
    dead.power_on()
    eventually(lambda: cloud.migrations(gone) == ["completed"], "the host is not cleaned")
    eventually(lambda: cloud.running("bare1").split() == [kept], "what is its own does not run")
    assert cloud.domains("bare1").split() == [kept]
    assert dead.run(["ls", "/var/lib/magnetar/servers"]).stdout.split() == [kept]
    logs = " ".join(f"/var/log/libvirt/qemu/magnetar-{id}.log" for id in (gone, kept))
    journal = dead.run(["sh", "-c", f"cat {logs} | grep -c 'starting up' || true"]).stdout
    assert int(journal) == 3, journal  # both before, and one of them again
    assert cloud.running("bare2").split() == [gone]
    eventually(lambda: admin.server(kept)["status"] == "ACTIVE", "the server is not active")
