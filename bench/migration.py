# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the live migration of a server between two hosts in containers, which the role has installed. The floor is
``virsh migrate --live --copy-storage-all`` of the same guest between the same hosts over plain TCP."""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Self
from xml.etree import ElementTree as ET

import libvirt
from figures import Figure, in_turns, spread, timed
from host import GUEST, ROOT, Host

from magnetar_core.flows.migrate import Migrate, Side
from magnetar_core.http.client import Client

sys.path.insert(0, str(ROOT))  # where hosts in containers are made

NAMES = ("bare7", "bare8")
RAW = "/var/lib/bench-raw"
#: libvirt on TCP without authentication, for virsh. By default the role closes these ports.
VARIABLES = {"agent_firewall": False, "agent_libvirtd_settings": {
    "host_uuid_source": "machine-id", "auth_tcp": "none"}}  # fmt: skip
SOCKETS = ("libvirtd.socket", "libvirtd-ro.socket", "libvirtd-admin.socket")


class Pause:
    """A measurement of the time between the suspension of a guest on one host and its resumption on the other, from
    libvirt's events."""

    def __init__(self, connections: list[Any]) -> None:
        self.stopped = self.resumed = 0.0
        self._seen = threading.Event()
        for connection in connections:
            connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._event, None)

    def _event(self, _connection: Any, _domain: Any, event: int, _detail: int, _opaque: Any) -> None:
        if event == libvirt.VIR_DOMAIN_EVENT_SUSPENDED and not self.stopped:
            self.stopped = time.monotonic()
        if event == libvirt.VIR_DOMAIN_EVENT_RESUMED:
            self.resumed = time.monotonic()
            self._seen.set()

    def of(self, work: Any) -> tuple[float, float]:
        """Return the milliseconds that *work* takes, and the milliseconds for which the guest is paused."""
        self.stopped = 0.0
        self._seen.clear()
        taken = timed(work)
        self._seen.wait(5)
        return taken, (self.resumed - self.stopped) * 1000


class Two:
    """The two hosts with their agents, a server, and its twin: the same guest, known only to libvirt. A context
    manager."""

    def __init__(self, virt_type: str) -> None:
        from tests.support.lab.bare import Site

        self._folder = tempfile.TemporaryDirectory(prefix="mag-bench-")
        self.folder = Path(self._folder.name)
        self.site = Site(self.folder, NAMES, **VARIABLES, agent_settings={"virt_type": virt_type})
        self.connections: list[Any] = []
        #: Number of the host of the server and of its twin.
        self.at = {"server": 0, "raw": 0}
        self._going = True

    def __enter__(self) -> Self:
        self.site.__enter__()
        try:
            self.site.play("magnetar.compute.agents")
            self.hosts = [self.site.hosts[name] for name in NAMES]
            for host in self.hosts:
                host.run(["systemctl", "stop", *SOCKETS, "libvirtd"])
                host.run(["systemctl", "start", "libvirtd-tcp.socket"])
                host.run(["systemctl", "start", *SOCKETS, "libvirtd", "magnetar-agent"])
                socket = f"/proc/{host.leader}/root/run/libvirt/libvirt-sock"
                self.connections.append(libvirt.open(f"qemu+unix:///system?socket={socket}"))
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        for connection in self.connections:
            connection.close()
        self.site.__exit__(None, None, None)
        self._folder.cleanup()

    def client(self, at: int) -> Client:
        """Return a client of the agent of host number *at*."""
        pki = self.folder / "magnetar-pki"
        return Client(f"https://{self.hosts[at].address}", ca_cert=str(pki / "ca.pem"), timeout=300,
                      client_cert=str(pki / "clients/admin.pem"), client_key=str(pki / "clients/admin.key"))

    def _make(self) -> None:
        with self.client(0) as client:
            until = time.monotonic() + 30
            while not client.get("host")["connected"] and time.monotonic() < until:
                time.sleep(0.1)
            made = client.ensure("image", "bench", {"source": {"upload": True}})["resource"]
            client.upload("image", made["id"], GUEST / "disk.qcow2")
            made = client.ensure("server", "bench", {
                "image": "bench", "flavor": {"vcpus": 1, "ram": 128, "disk": 1}, "config_drive": False})["resource"]
        here, place = self.hosts[0], f"/var/lib/magnetar/servers/{made['id']}"
        self.xml = self.connections[0].lookupByUUIDString(made["id"]).XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        self.xml = twin_xml(self.xml, place)
        here.run(["sh", "-c", f"mkdir {RAW} && cp {place}/base {RAW} && cd {RAW} && qemu-img create -q -f qcow2 "
                              f"-b base -F qcow2 disk 1G && chown -R libvirt-qemu: {RAW}"])
        self.connections[0].defineXML(self.xml).create()
        for log in (f"{place}/console.log", f"{RAW}/console.log"):
            here.run(["sh", "-c", f"until grep -q 'GUEST ready' {log}; do sleep 0.2; done"])
        time.sleep(5)  # what a guest does after it has booted is over

    def raw(self) -> None:
        """Migrate the twin to the other host with virsh."""
        here, there = self._turn("raw")
        here.run(["virsh", "-q", "-c", "qemu:///system", "migrate", "--live", "--copy-storage-all", "--persistent",
                  "--undefinesource", "bench-raw", f"qemu+tcp://{there.address}/system"])

    def ready(self) -> None:
        """Create an empty disk for the twin at the target, which virsh requires."""
        there = self.hosts[1 - self.at["raw"]]
        there.run(["sh", "-c", f"rm -rf {RAW} && mkdir {RAW} && cd {RAW} && qemu-img create -q -f qcow2 disk 1G && "
                               f"chown -R libvirt-qemu: {RAW}"])

    def server(self) -> None:
        """Migrate the server to the other host through the agents."""
        at = self.at["server"]
        self._turn("server")
        with self.client(at) as here, self.client(1 - at) as there:
            for _step in Migrate(Side(here), Side(there), "bench").steps():
                pass

    def _turn(self, what: str) -> tuple[Any, Any]:
        at = self.at[what]
        self.at[what] = 1 - at
        return self.hosts[at], self.hosts[1 - at]


def twin_xml(xml: str, folder: str) -> str:
    """Return the definition *xml* of a server in *folder* as its twin's. The twin names no backing file: ``virsh
    migrate --copy-storage-all`` would look for it at the target, where its disk stands alone."""
    root = ET.fromstring(xml.replace(folder, RAW))  # noqa: S314 (libvirt wrote it)
    for name, text in (("name", "bench-raw"), ("uuid", str(uuid.uuid4()))):
        element = root.find(name)
        assert element is not None
        element.text = text
    for metadata in root.findall("metadata"):
        root.remove(metadata)
    for disk in root.iterfind("devices/disk"):
        for chain in disk.findall("backingStore"):
            disk.remove(chain)
    return ET.tostring(root, encoding="unicode")


def _events() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


def migration(host: Host, rounds: int) -> list[Figure]:
    """Measure migrations to and fro; both guests are idle."""
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_events, daemon=True).start()
    paused: dict[str, list[float]] = {"server": [], "raw": []}
    with Two(host.virt_type) as two:
        pause = Pause(two.connections)

        def take(what: str) -> float:
            if what == "raw":
                two.ready()
            taken, still = pause.of(two.server if what == "server" else two.raw)
            paused[what].append(still)
            return taken

        taken = in_turns(rounds, {"virsh": lambda: take("raw"), "agents": lambda: take("server")})
    raw, agents = taken.values()
    still = {what: found[1:] for what, found in paused.items()}
    name = "virsh migrate --live --copy-storage-all"
    return [
        Figure("live migration with a local disk", statistics.median(agents), floor=statistics.median(raw),
               floor_name=name, ratio=1.3, spread=spread(agents)),
        Figure("the guest stands still meanwhile", statistics.median(still["server"]), spread=spread(still["server"]),
               floor=statistics.median(still["raw"]), floor_name=name),
    ]  # fmt: skip
