# SPDX-License-Identifier: GPL-3.0-or-later
"""OVN's central processes (ovsdb-server twice, ovn-northd), of Debian's package ovn-central, in a folder of a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

#: Folder of the schemas.
SHARE = Path("/usr/share/ovn")
NEEDED = ("ovsdb-server", "ovsdb-tool", "ovn-northd", "ovn-nbctl", "ovn-sbctl", "ovn-trace")


def missing() -> str:
    """Return why OVN's central cannot run on this machine; empty when it can."""
    lacks = [name for name in NEEDED if shutil.which(name) is None]
    return f"needs {', '.join(lacks)} (packages ovn-central, openvswitch-common)" if lacks else ""


class LabProcesses:
    """Processes of Open vSwitch and OVN, with all their files in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.environment = {**os.environ, **{f"{who}_{what}DIR": str(folder) for who in ("OVS", "OVN")
                                             for what in ("RUN", "DB", "LOG")}}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def end(self, name: str) -> None:
        """Kill one process."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        for kind in ("sock", "ctl"):
            (self.folder / f"{name}.{kind}").unlink(missing_ok=True)

    def rss(self) -> dict[str, float]:
        """Return the resident memory of each process in MiB."""
        found = {}
        for name, process in self._processes.items():
            status = Path(f"/proc/{process.pid}/status").read_text()
            found[name] = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        return found

    def stop(self) -> None:
        """Kill all processes."""
        for name in list(self._processes):
            self.end(name)

    def _database(self, name: str, schema: Path, *more: str) -> None:
        """Start the database *name*; create it when it does not exist."""
        file, socket = self.folder / f"{name}.db", self.folder / f"{name}.sock"
        if not file.exists():
            self._run("ovsdb-tool", "create", str(file), str(schema))
        self._spawn(name, "ovsdb-server", str(file), f"--remote=punix:{socket}", f"--unixctl={self.folder}/{name}.ctl",
                    *more)
        deadline = time.monotonic() + 60
        while not (socket.exists() and (self.folder / f"{name}.ctl").exists()):
            assert self._processes[name].poll() is None, (self.folder / f"{name}.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _run(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60)  # noqa: PLW1510
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _spawn(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


class LabCentral(LabProcesses):
    """OVN's central. ``url`` is that of the northbound database, whose server gets the additional arguments *more*."""

    def __init__(self, folder: Path, *more: str) -> None:
        super().__init__(folder)
        self.more = more
        self.url, self.south = f"unix:{folder}/nb.sock", f"unix:{folder}/sb.sock"

    def start(self) -> LabCentral:
        """Start the central with empty databases."""
        for name in ("nb", "sb"):
            self.begin(name)
        self._spawn("northd", "ovn-northd", f"--ovnnb-db={self.url}", f"--ovnsb-db={self.south}")
        return self

    def begin(self, name: str) -> None:
        """Start the database *name* (nb, sb); create it when it does not exist."""
        self._database(name, SHARE / f"ovn-{name}.ovsschema", *(self.more if name == "nb" else ()))

    def nb(self, *words: str) -> str:
        """Return the output of ``ovn-nbctl``."""
        return self._run("ovn-nbctl", f"--db={self.url}", "--timeout=30", *words)

    def sb(self, *words: str) -> str:
        """Return the output of ``ovn-sbctl``."""
        return self._run("ovn-sbctl", f"--db={self.south}", "--timeout=30", *words)

    def passes(self, network: str, flow: str, to: str, state: str = "new") -> bool:
        """Return whether a packet (*flow*: in the syntax of ``ovn-trace``) reaches the port *to*. *state*: the
        connection states that OVN's conntrack finds, one word for each lookup in turn."""
        return f'output to "{to}"' in self.traced(network, flow, state)

    def traced(self, network: str, flow: str, state: str = "new") -> str:
        """Return the output of ``ovn-trace`` for a packet, after ovn-northd has applied all changes."""
        self.nb("--wait=sb", "sync")
        return self._run("ovn-trace", f"--db={self.south}", *(f"--ct={one}" for one in state.split()),
                         network, flow)


class LabCluster(LabCentral):
    """A northbound database on a cluster of three servers, and a southbound one on another. ``url`` names the three."""

    MEMBERS = ("nb1", "nb2", "nb3")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = ",".join(f"unix:{folder}/{name}.sock" for name in self.MEMBERS)

    def start(self) -> LabCluster:
        """Start all servers with empty databases."""
        for name in self.MEMBERS:
            self.begin(name)
        self.begin("sb")
        self._spawn("northd", "ovn-northd", f"--ovnnb-db={self.url}", f"--ovnsb-db={self.south}")
        return self

    def begin(self, name: str) -> None:
        """Start a member; create it when it does not exist: the first creates the cluster, the others join it."""
        file, own = self.folder / f"{name}.db", f"unix:{self.folder}/{name}.raft"
        others = [f"unix:{self.folder}/{one}.raft" for one in self.MEMBERS if one != name]
        if name in self.MEMBERS and not file.exists():
            if not any((self.folder / f"{one}.db").exists() for one in self.MEMBERS):
                self._run("ovsdb-tool", "create-cluster", str(file), str(SHARE / "ovn-nb.ovsschema"), own)
            else:
                self._run("ovsdb-tool", "join-cluster", str(file), "OVN_Northbound", own, *others)
        super().begin(name)

    def recover(self, survivor: str) -> None:
        """Create a new cluster from the data of this member while none runs; the others join it."""
        file, alone = self.folder / f"{survivor}.db", self.folder / "alone.db"
        self._run("ovsdb-tool", "cluster-to-standalone", str(alone), str(file))
        for name in self.MEMBERS:
            (self.folder / f"{name}.db").unlink(missing_ok=True)
        self._run("ovsdb-tool", "create-cluster", str(file), str(alone), f"unix:{self.folder}/{survivor}.raft")
        for name in sorted(self.MEMBERS, key=lambda one: one != survivor):
            self.begin(name)

    def leader(self) -> str:
        """Return the member that leads the cluster; "" when there is none."""
        return next((name for name in self.MEMBERS if name in self._processes
                     and "Leader: self" in self.status(name)), "")

    def status(self, name: str) -> str:
        """Return the cluster's status at a member."""
        return self._run("ovs-appctl", "-t", f"{self.folder}/{name}.ctl", "cluster/status", "OVN_Northbound")


def external(admin: Any, name: str = "ext", cidr: str = "192.0.2.0/24") -> str:
    """Create an external network as the cloud's administrator; return its uuid."""
    body = {"name": name, "provider:network_type": "flat", "provider:physical_network": name, "router:external": True}
    id: str = admin.post("/network/v2.0/networks", {"network": body}).json["network"]["id"]
    subnet = {"network_id": id, "name": f"{name}-{cidr}", "cidr": cidr, "enable_dhcp": False}
    assert admin.post("/network/v2.0/subnets", {"subnet": subnet}).status == 201
    return id
