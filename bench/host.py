# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent of this checkout in a process of its own, on this machine's libvirt, with what servers need.

Everything is in one folder and one libvirt network; both names are fixed, so that the next run finds and removes what
an interrupted run left.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import libvirt
import yaml

from magnetar_agent.host.networks import tap_prefix
from magnetar_agent.virt.network import reservations
from magnetar_agent.virt.network.port_filter import table_name
from magnetar_core.errors import MagnetarError
from magnetar_core.http.client import Client

ROOT = Path(__file__).resolve().parents[1]
GUEST = ROOT / ".cache" / "guest"
FOLDER = Path("/var/lib/mag-bench")
NETWORK, CIDR = "mag-bench", "192.168.231.0/24"
IMAGE = FLAVOR = "bench"
#: The machine type of every server; the guest image is that of the tests.
SIZES = {"vcpus": 1, "ram": 128, "disk": 1}

libvirt.registerErrorHandler(lambda *_error: None, None)  # it prints errors that are expected here


class Host:
    """A running agent with an image, a flavor and a network for servers. A context manager."""

    def __init__(self, virt_type: str) -> None:
        self.virt_type = virt_type
        self.socket = FOLDER / "agent.sock"
        self.endpoint = f"unix://{self.socket}"
        self.state = FOLDER / "state"
        self.libvirt: Any = None
        self.process: subprocess.Popen[bytes] | None = None
        self._claim = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Self:
        try:
            self._claim.bind("\0mag-bench")  # a name without a file: it goes with this process
        except OSError:
            raise SystemExit("Another bench runs on this machine: wait until it has ended.") from None
        self.libvirt = libvirt.open("qemu:///system")
        self.clean()
        try:
            self._prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop()
        self.clean()
        self.libvirt.close()
        self._claim.close()

    def restart(self) -> None:
        """End the agent and start it again."""
        self._stop()
        self._start()

    def _prepare(self) -> None:
        if not (GUEST / "disk.qcow2").exists():
            subprocess.run([sys.executable, ROOT / "tests/support/lab/guest.py", "--out", GUEST], check=True)
        (FOLDER / "import").mkdir(parents=True)
        FOLDER.chmod(0o711)
        shutil.copyfile(GUEST / "disk.qcow2", FOLDER / "import" / "disk.qcow2")
        self._start()
        with self.client() as client:
            client.ensure("image", IMAGE, {"source": {"path": str(FOLDER / "import" / "disk.qcow2")}})
            client.ensure("flavor", FLAVOR, SIZES)
            client.ensure("network", NETWORK, {"cidr": CIDR})

    def _start(self) -> None:
        self.process = agent(FOLDER, {
            "state_dir": str(self.state), "socket": str(self.socket), "image_paths": [str(FOLDER / "import")],
            "tokens_file": str(FOLDER / "tokens.yml"), "virt_type": self.virt_type})  # fmt: skip

    def _stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)

    def client(self) -> Client:
        """Return a client with a connection of its own."""
        return Client(self.endpoint)

    def want(self, **more: Any) -> dict[str, Any]:
        """Return the desired document of a server, with further or other fields *more*."""
        return {"image": IMAGE, "flavor": FLAVOR, "networks": [{"network": NETWORK}], "config_drive": False, **more}

    def off(self, count: int) -> list[str]:
        """Make *count* servers exist that are off, remove all others, and return the names."""
        names = [f"bench-{at:03d}" for at in range(count)]
        with self.client() as client:
            extra = [one["id"] for one in client.list("server") if one["name"] not in names]
            items = [{"key": name, "want": self.want(power="off")} for name in names]
            answer = client.ensure_many("server", [*items, *({"key": id, "want": None} for id in extra)], timeout=600)
        failed = [one["error"]["message"] for one in answer["results"] if "error" in one]
        if failed:
            raise SystemExit(f"Servers cannot be made: {failed[0]}")
        return names

    def rss(self) -> float:
        """Return the resident memory of the agent in MiB."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def clean(self) -> None:
        """Remove the domains whose disks lie in the folder, the network, the filter of its ports, and the folder."""
        for domain in self.libvirt.listAllDomains():
            with suppress(libvirt.libvirtError):
                if f"{FOLDER}/" in domain.XMLDesc():
                    if domain.isActive():
                        domain.destroy()
                    domain.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE)
        with suppress(libvirt.libvirtError):
            network = self.libvirt.networkLookupByName(NETWORK)
            if network.isActive():
                network.destroy()
            network.undefine()
        reservations.remove_reservations(NETWORK)
        for family in ("bridge", "inet"):  # an agent leaves them while it has networks
            subprocess.run(["nft", "delete", "table", family, table_name(tap_prefix(self.state))],
                           stderr=subprocess.DEVNULL, check=False)  # fmt: skip
        shutil.rmtree(FOLDER, ignore_errors=True)


def agent(folder: Path, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start an agent with these *settings*, and return its process when it answers. Its settings file and log are in
    *folder*.
    """
    (folder / "agent.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    # setpriv: it ends with this process, however this ends. Bytecode is kept, as that of an installed agent is.
    words = ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, "-m", "magnetar_agent", "agent",
             "--config", folder / "agent.yml"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".cache" / "src"), "PYTHONDONTWRITEBYTECODE": "",
                   "PYTHONPYCACHEPREFIX": str(FOLDER / "bytecode")}  # fmt: skip
    with (folder / "agent.log").open("ab") as log:
        process = subprocess.Popen(words, cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with suppress(MagnetarError), Client(f"unix://{settings['socket']}") as client:
            if Path(settings["socket"]).exists() and client.get("host")["connected"]:
                return process
        time.sleep(0.1)
    raise SystemExit("The agent does not answer:\n" + (folder / "agent.log").read_text(encoding="utf-8")[-4000:])
