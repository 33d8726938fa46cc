# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks for growth: clients create and delete servers at full rate, while the memory, threads and descriptors of the
control plane and of a fake host's agent are measured regularly. Run ``bench/soak --minutes 30``.

Deleted servers are purged after a minute, not after 90 days as by default, so that the size of the databases can become
constant; ``--kept 0`` keeps them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

try:
    from control_client import Wire
    from control_cloud import IDLE, Cloud
    from sqlalchemy import func, select, text

    from magnetar_control.store.engine.database import Database, utc_now
    from magnetar_control.store.engine.tables import servers
    from magnetar_control.store.servers.deleted_servers import purge_deleted_servers
    from magnetar_control.store.store import Store
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}. Make the development environment first: ./check mypy") from None

#: Seconds between two requests for a server's status.
LOOK = 0.02
#: Number of hosts of the cloud.
HOSTS = 2
#: Names of the columns.
COLUMNS = ("minute", "servers", "rss", "private", "threads", "fds", "agent rss", "agent threads", "agent fds",
           "databases", "rows")


class Client(threading.Thread):
    """A thread that creates a server, waits until it is active, deletes it, waits until it is gone, and repeats this
    until *over* is set.
    """

    def __init__(self, cloud: Cloud, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.cloud, self.over, self.made, self.failed = cloud, over, 0, ""
        self.wire = Wire(cloud.port)

    def run(self) -> None:
        try:
            while not self.over.is_set():
                self._life()
        except Exception as error:  # noqa: BLE001 - shown at the end
            self.failed = f"{type(error).__name__}: {error}"

    def _ask(self, method: str, path: str, body: Any = None) -> Wire:
        if time.perf_counter() - self.wire.began > IDLE:
            self.wire = Wire(self.cloud.port)
        return self.wire.ask(method, path, self.cloud.token, body)

    def _life(self) -> None:
        found = self._ask("POST", "/v2.1/servers", self.cloud.want(f"soak-{time.monotonic_ns()}"))
        if found.status != 202:
            raise RuntimeError(f"POST /servers: {found.held[:300]!r}")
        path = f"/v2.1/servers/{found.json['server']['id']}"
        while (status := self._ask("GET", path).json["server"]["status"]) == "BUILD":
            time.sleep(LOOK)
        if status != "ACTIVE":
            raise RuntimeError(f"a server is {status}")
        self._ask("DELETE", path)
        while self._ask("GET", path).status != 404:
            time.sleep(LOOK)
        self.made += 1


def taken(pid: int) -> tuple[float, float, int, int]:
    """Return the resident MiB of a process, its private MiB, its threads, and its file descriptors."""
    folder = Path(f"/proc/{pid}")
    rollup = dict(re.findall(r"^(\w+):\s+(\d+) kB", (folder / "smaps_rollup").read_text(), re.MULTILINE))
    own = int(rollup["Private_Clean"]) + int(rollup["Private_Dirty"])
    threads = int(re.findall(r"Threads:\s+(\d+)", (folder / "status").read_text())[0])
    return int(rollup["Rss"]) / 1024, own / 1024, threads, len(list((folder / "fd").iterdir()))


def size(database: Database) -> float:
    """Return the MiB that a database takes on disk."""
    if database.kind == "sqlite":
        file = Path(str(database.url.database))
        return sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*")) / 2**20
    with database.read() as connection:
        return float(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()) / 2**20


def look(cloud: Cloud, clients: list[Client], began: float) -> dict[str, float]:
    """Measure the cloud, and return the figures of one line of the table, by column. *began*: the time when the load
    began."""
    serve, agent = taken(cloud.process.pid), taken(cloud.processes["kvm1"].pid)
    databases = (cloud.api, cloud.cell0, cloud.cell)
    with cloud.cell.read() as connection:
        rows = connection.execute(select(func.count()).select_from(servers)).scalar_one()
    values = ((time.monotonic() - began) / 60, sum(one.made for one in clients), *serve, agent[0], *agent[2:],
              sum(map(size, databases)), rows)
    return dict(zip(COLUMNS, values, strict=True))


def soak(cloud: Cloud, minutes: float, every: float, count: int, kept: float) -> list[dict[str, float]]:
    """Load the cloud with *count* clients for *minutes*, and print a line of figures every *every* seconds. *kept*: the
    seconds after which deleted servers are purged (0: never). Return the figures of all lines."""
    over, found = threading.Event(), []
    clients = [Client(cloud, over) for _at in range(count)]
    began, store = time.monotonic(), Store(cloud.api)
    for one in clients:
        one.start()
    print("  ".join(COLUMNS), flush=True)
    while not over.wait(every) and time.monotonic() - began < minutes * 60:
        for database in (cloud.cell, cloud.cell0) if kept else ():
            purge_deleted_servers(store, database, utc_now(-kept))
        found.append(look(cloud, clients, began))
        print("  ".join(f"{value:{len(name)}.{int(name == 'minute' or isinstance(value, float))}f}"
                        for name, value in found[-1].items()), flush=True)
        if any(one.failed for one in clients):
            break
    over.set()
    for one in clients:
        one.join(60)
    failed = [one.failed for one in clients if one.failed]
    if failed:
        raise SystemExit("\n".join(failed))
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--minutes", type=float, default=30.0, metavar="N", help="how long (default: 30)")
    parser.add_argument("--every", type=float, default=60.0, metavar="SECONDS", help="between two lines (default: 60)")
    parser.add_argument("--clients", type=int, default=4, metavar="N", help="each with one server (default: 4)")
    parser.add_argument("--kept", type=float, default=60.0, metavar="SECONDS",
                        help="for which deleted servers are kept; 0 keeps all (default: 60)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(143))  # so that nothing is left then either
    print(f"{given.engine}, {os.cpu_count()} CPUs; memory and databases in MiB")
    with Cloud(given.engine, HOSTS) as cloud:
        found = soak(cloud, given.minutes, given.every, given.clients, given.kept)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
