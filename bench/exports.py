# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the attachment of a volume of one agent to a guest of another, and its detachment. The floor is the same
work by hand on one host: ``qemu-nbd`` and libvirt's calls."""

from __future__ import annotations

import shutil
import socket
import statistics
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import libvirt
from figures import Figure, in_turns, spread, timed
from host import FOLDER, GUEST, SIZES, Host, agent
from volumes import booted

from magnetar_agent.host.storage import Disk, NetworkSource
from magnetar_agent.virt.domain.domain import render_device
from magnetar_core.flows.attach import attach_remote_volume
from magnetar_core.flows.migrate import Side
from magnetar_core.http.client import Client

LASTING = libvirt.VIR_DOMAIN_AFFECT_LIVE | libvirt.VIR_DOMAIN_AFFECT_CONFIG


class Linked:
    """An agent with TLS that other agents can reach."""

    def __init__(self, name: str, virt_type: str) -> None:
        self.folder = FOLDER / name
        (self.folder / "import").mkdir(parents=True)
        self.folder.chmod(0o711)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        keys = FOLDER / "keys"
        self.settings = {
            "state_dir": str(self.folder / "state"), "socket": str(self.folder / "agent.sock"), "virt_type": virt_type,
            "image_paths": [str(self.folder / "import")], "tokens_file": str(self.folder / "tokens.yml"),
            "listen": f"127.0.0.1:{port}", "tls_cert": str(keys / f"{name}.pem"), "tls_key": str(keys / f"{name}.key"),
            "tls_client_ca": str(keys / "ca.pem"), "client_certs": {},
        }  # fmt: skip
        self.process = agent(self.folder, self.settings)

    def client(self) -> Client:
        """Return a client with a connection of its own."""
        return Client(f"unix://{self.folder}/agent.sock")

    def end(self) -> None:
        """End the agent's process."""
        self.process.terminate()
        self.process.wait(60)


class Raw:
    """The floor, the same work by hand: serve a disk with qemu-nbd and attach it to the domain, then detach it and end
    qemu-nbd."""

    def __init__(self, domain: Any) -> None:
        self.domain, self.folder = domain, FOLDER / "raw"
        self.folder.mkdir(mode=0o755)
        self.disk, self.socket = self.folder / "disk", self.folder / "nbd"
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", self.disk, "1G"], check=True)
        remote = NetworkSource("nbd", "raw", self.socket)
        self.xml = render_device(Disk(self.socket, "vdc", "raw", serial="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d",
                                      remote=remote), "none")  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def attach(self) -> None:
        """Start qemu-nbd, and call virDomainAttachDeviceFlags."""
        self.process = subprocess.Popen(["qemu-nbd", "--persistent", "--shared=0", "--format=qcow2", "--cache=none",
                                         "--aio=native", f"--socket={self.socket}", "--export-name=raw", self.disk])
        while True:
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(self.socket))
                    break
                except OSError:
                    time.sleep(0.005)
        self.socket.chmod(0o666)
        self.domain.attachDeviceFlags(self.xml, LASTING)

    def detach(self) -> None:
        """Call virDomainDetachDeviceFlags, wait for the guest, and end qemu-nbd."""
        self.domain.detachDeviceFlags(self.xml, LASTING)
        while "<target dev='vdc'" in self.domain.XMLDesc():
            time.sleep(0.01)
        self.end()

    def end(self) -> None:
        """End qemu-nbd."""
        if self.process:
            self.process.terminate()
            self.process.wait(30)


def attaching(host: Host, rounds: int) -> list[Figure]:
    """Measure one guest and one disk: by two agents and by hand, in turns."""
    certificates(FOLDER / "keys", "home", "here")
    with ExitStack() as undo:
        home, here = Linked("home", host.virt_type), Linked("here", host.virt_type)
        undo.callback(home.end)
        undo.callback(here.end)
        shutil.copyfile(GUEST / "disk.qcow2", here.folder / "import" / "disk.qcow2")
        client = undo.enter_context(here.client())
        client.ensure("image", "bench", {"source": {"path": str(here.folder / "import" / "disk.qcow2")}})
        made = client.ensure("server", "bench-far", {"image": "bench", "flavor": SIZES})["resource"]
        undo.callback(client.delete, "server", "bench-far")
        sides = Side(client, "127.0.0.1"), Side(undo.enter_context(home.client()), "127.0.0.1")
        sides[1].client.ensure("volume", "data", {"size": 1})
        booted(Path(made["console_log"]))
        raw = Raw(host.libvirt.lookupByUUIDString(made["id"]))
        undo.callback(raw.end)
        taken: dict[str, list[float]] = {"attach": [], "detach": [], "raw attach": [], "raw detach": []}

        def agents() -> float:
            taken["attach"].append(timed(lambda: attach_remote_volume(*sides, "bench-far", "data", {})))
            taken["detach"].append(timed(lambda: client.delete("volume_attachment", "bench-far:data")))
            return 0.0

        def by_hand() -> float:
            taken["raw attach"].append(timed(raw.attach))
            taken["raw detach"].append(timed(raw.detach))
            return 0.0

        in_turns(rounds, {"by hand": by_hand, "agents": agents})
    found = {name: values[1:] for name, values in taken.items()}  # the first warmed up
    for kind in ("", "raw "):
        found[f"{kind}both"] = [sum(pair) for pair in zip(found[f"{kind}attach"], found[f"{kind}detach"], strict=True)]
    return [Figure(f"volume of another host, {words}", statistics.median(found[what]), spread=spread(found[what]),
                   floor=statistics.median(found[f"raw {what}"]), floor_name="qemu-nbd and libvirt", ratio=ratio)
            for words, what, ratio in (("attached and detached", "both", 1.2), ("of it attached", "attach", None),
                                       ("of it detached", "detach", None))]  # fmt: skip


def certificates(folder: Path, *names: str) -> None:
    """Create a CA, and a certificate for each name, in *folder*."""
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    folder.mkdir(mode=0o700)
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name in names:
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem")
