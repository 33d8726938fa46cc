# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent on a host with systemd: installed from a wheel, run by its unit; its guests outlive it, and a reboot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_core.http.client import Client
from tests.support.lab import guest
from tests.support.lab.agent import CHECKOUT, eventually
from tests.support.lab.bare import wheels
from tests.support.lab.hosts import LabHost

sys.path.insert(0, str(CHECKOUT / "tools"))

import control_plane
import machine

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.lab,
    pytest.mark.deep(shard="one host"),  # test_site.py shows the same of the agents that the role installs
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

UNIT = "magnetar-agent.service"
WANT: dict[str, Any] = {"flavor": {"vcpus": 1, "ram": 128, "disk": 1}, "image": "tiny", "metadata": {"role": "web"}}


def pip(*words: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *words]
    done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout


def wheel(folder: Path) -> Path:
    """The wheel of this checkout, built from a copy: setuptools leaves build folders behind."""
    source = folder / "source"
    skipped = shutil.ignore_patterns("__pycache__")
    for package in ("agent", "control"):
        shutil.copytree(CHECKOUT / package, source / package, ignore=skipped)
    shutil.copytree(CHECKOUT / "plugins/module_utils/core", source / "plugins/module_utils/core", ignore=skipped)
    for name in ("pyproject.toml", "COPYING"):
        shutil.copyfile(CHECKOUT / name, source / name)
    pip("wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    (made,) = folder.glob("*.whl")
    return made


class Host:
    """The agent on a lab host, as seen from the machine: through the host's own socket."""

    def __init__(self, lab: LabHost) -> None:
        self.lab = lab

    def install(self, made: Path) -> None:
        """Environment, group, settings and unit, then the agent at its first start."""
        run = self.lab.run
        self.lab.put(made, f"/srv/{made.name}")
        run(["python3", "-m", "venv", "--system-site-packages", "/opt/magnetar"])
        run(["/opt/magnetar/bin/pip", "install", "-q", "--no-index", "--find-links", "/srv/needed",
             f"/srv/{made.name}[agent,control]"])  # fmt: skip
        run(["groupadd", "--system", "magnetar"])
        run(["mkdir", "-p", "/etc/magnetar", "/var/lib/magnetar/import"])
        run(["tee", "/etc/magnetar/agent.yml"], stdin=b"virt_type: qemu\n")
        for path in (machine.UNIT, *machine.METADATA_UNITS):
            run(["tee", path], stdin=machine.unit_text(path.name).encode())
        run(["systemctl", "enable", "--now", UNIT])
        self.wait()

    def wait(self) -> None:
        """Wait until the agent has libvirt."""
        eventually(self.connected, "the agent answers")

    def connected(self) -> bool:
        with self.client() as client:
            return bool(client.get("host")["connected"])

    def client(self) -> Client:
        return Client(endpoint=f"unix:///proc/{self.lab.leader}/root/run/magnetar/agent.sock", timeout=120)

    def server(self) -> dict[str, Any]:
        with self.client() as client:
            found: dict[str, Any] = client.get("server", "web")
            return found

    def said(self) -> list[str]:
        """What the guest said on its console, of all its starts that the host has kept."""
        text = self.lab.run(["cat", self.server()["console_log"]], check=False).stdout
        return guest.markers(text)

    def up(self, times: int) -> list[str]:
        """Wait until the guest was up so many times."""
        eventually(lambda: sum(one.startswith("ready") for one in self.said()) >= times, f"web is up {times} times")
        return self.said()

    def qemu(self) -> str:
        """The process id of the guest, and when it started."""
        return self.lab.run(["sh", "-c", "ps -o pid=,lstart= $(pidof qemu-system-x86_64)"]).stdout.strip()


@pytest.fixture(scope="module")
def host(guest_image: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A lab host with the agent, an image, and a server called web that is up."""
    made = wheel(tmp_path_factory.mktemp("wheel"))
    with LabHost("lab1", binds={wheels(): "/srv/needed"}) as lab:
        found = Host(lab)
        found.install(made)
        lab.put(guest_image["disk"], "/var/lib/magnetar/import/tiny.qcow2")
        with found.client() as client:
            client.ensure("image", "tiny", {"source": {"path": "/var/lib/magnetar/import/tiny.qcow2"}})
            assert client.ensure("server", "web", WANT)["resource"]["power_state"] == "running"
        yield found


def test_a_server_boots_and_the_agent_is_a_unit(host: Host) -> None:
    assert {"hostname=web", "meta role=web"} <= set(host.up(1))
    assert host.lab.run(["systemctl", "is-active", UNIT]).stdout == "active\n"
    assert host.lab.run(["stat", "-c", "%a %G", "/run/magnetar/agent.sock"]).stdout == "660 magnetar\n"
    assert '"level": "error"' not in host.lab.run(["journalctl", "-u", UNIT, "-q", "-o", "cat"]).stdout
    assert host.lab.run(["magnetar", "version"]).stdout.strip()


def test_the_metadata_service_is_a_unit_of_its_own(host: Host) -> None:
    """It begins with the first guest on a network, and is back when it or the agent is killed."""
    run, unit = host.lab.run, "magnetar-metadata.service"

    def served() -> bool:
        with host.client() as client:
            there = client.get("host")["metadata_service"]
        print(there)
        return bool(there["bridges"]) and not there["reason"]

    def main() -> str:
        return run(["systemctl", "show", "-P", "MainPID", unit]).stdout.strip()

    assert main() == "0"
    with host.client() as client:
        client.ensure("network", "seen", {"mode": "isolated", "cidr": "10.99.8.0/24"})
        client.ensure("server", "seen", {**WANT, "networks": [{"network": "seen"}]})
    try:
        eventually(served, "guests are answered")
        first = main()
        status = dict(line.split(":", 1) for line in run(["cat", f"/proc/{first}/status"]).stdout.splitlines())
        assert 61184 <= int(status["Uid"].split()[0]) <= 65519 and status["NoNewPrivs"].strip() == "1"
        assert "bin/magnetar-metadata" in run(["cat", f"/proc/{first}/cmdline"]).stdout
        for killed in (unit, UNIT):
            before = main()
            run(["systemctl", "kill", "--signal=KILL", "--kill-whom=main", killed])
            eventually(lambda before=before: main() not in ("0", before) and served(), "guests are answered again")
        run(["systemctl", "restart", UNIT])
        host.wait()
        eventually(served, "guests are answered by a new process")
    finally:
        with host.client() as client:
            client.delete("server", "seen")
            client.delete("network", "seen")
    eventually(lambda: main() == "0", "it ends with the last guest")


#: What the quickstart writes where systemd runs, in the host; its last words are the process's.
SERVE = """
useradd --system --user-group --no-create-home --home-dir /var/lib/magnetar/control --shell /usr/sbin/nologin USER
systemctl daemon-reload
systemctl start magnetar-serve.service
for _try in $(seq 120); do
    python3 -c "import urllib.request as r; r.urlopen('http://127.0.0.1:8774/healthz')" 2>/dev/null && break
    sleep 1
done
stat -c '%a %U' /var/lib/magnetar/control /var/lib/magnetar/control/clouds.yaml
grep -E '^(Uid|NoNewPrivs|CapEff|CapBnd|Seccomp):' /proc/$(systemctl show -P MainPID magnetar-serve.service)/status
""".replace("USER", control_plane.USER)


HEARD = """
import sqlite3
database = sqlite3.connect("/var/lib/magnetar/control/api.db")
print(database.execute("select count(*) from hosts where memory_mb > 0").fetchone()[0])
"""


def test_the_control_plane_beside_it(host: Host) -> None:
    """By the quickstart's unit: as its own user, who speaks to the agent."""
    run = host.lab.run
    run(["tee", str(control_plane.UNIT)], stdin=control_plane.control_plane_unit().encode())
    try:
        said = run(["sh", "-ec", SERVE]).stdout
        uid = run(["id", "-u", control_plane.USER]).stdout.strip()
        assert said.split() == [
            "700", control_plane.USER, "600", control_plane.USER, "Uid:", uid, uid, uid, uid, "CapEff:", "0" * 16,
            "CapBnd:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2"], said
        eventually(lambda: run(["python3", "-c", HEARD]).stdout == "1\n", "it hears from the agent what the host has")
    finally:
        run(["systemctl", "stop", control_plane.UNIT.name], check=False)


def test_the_guest_outlives_the_agent(host: Host) -> None:
    host.up(1)
    process = host.qemu()
    host.lab.run(["systemctl", "restart", UNIT])
    host.wait()
    assert host.server()["power_state"] == "running"
    assert host.qemu() == process
    with host.client() as client:
        assert not client.ensure("server", "web", WANT)["changed"]
    host.lab.run(["systemctl", "kill", "--signal=KILL", "--kill-whom=main", UNIT])
    eventually(host.connected, "systemd starts the agent again")
    assert host.qemu() == process


def test_the_guest_comes_back_with_the_host(host: Host) -> None:
    host.up(1)
    boot = host.lab.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout
    boots = sum(one.startswith("ready") for one in host.said())
    host.lab.reboot()
    assert host.lab.run(["cat", "/proc/sys/kernel/random/boot_id"]).stdout != boot
    host.wait()
    host.up(boots + 1)
    shown = host.server()
    assert (shown["power"], shown["power_state"], shown["metadata"]) == ("running", "running", {"role": "web"})
    with host.client() as client:
        assert not client.ensure("server", "web", WANT)["changed"]
        assert client.get("host")["orphans"] == {"domains": [], "files": []}
        client.delete("server", "web")
    assert host.lab.run(["virsh", "-c", "qemu:///system", "list", "--all", "--name"]).stdout.strip() == ""
