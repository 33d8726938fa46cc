# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the inventory plugin with a thousand servers on twenty hosts.

The hosts are sockets of this process that repeat an agent's answer about one server, so the inventory is measured, and
not the agents. Agents add the time of ``GET /v1/server``, once, because all are queried in parallel.
"""

from __future__ import annotations

import json
import socketserver
import statistics
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml
from figures import Figure, in_turns, spread, timed
from host import FOLDER, Host
from plays import Plays

HOSTS, EACH = 20, 50
CONFIG = {"plugin": "magnetar.compute.servers", "group_by": ["status", "host", "flavor", "image", "metadata.role"]}


class _Answer(BaseHTTPRequestHandler):
    content = b""

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)


@contextmanager
def _said(number: int, one: dict[str, Any]) -> Iterator[str]:
    """Yield the endpoint of a host that reports fifty servers like *one*."""
    found = [{**one, "id": str(uuid.uuid4()), "name": f"web-{number}-{at}", "host": f"kvm{number}",
              "metadata": {"role": f"role{at % 7}"}} for at in range(EACH)]
    path = FOLDER / f"host{number}.sock"
    answer = type("Answer", (_Answer,), {"content": json.dumps({"servers": found}).encode()})
    with socketserver.ThreadingUnixStreamServer(str(path), answer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"unix://{path}"
        server.shutdown()


def inventory(host: Host, rounds: int) -> list[Figure]:
    """Measure ``ansible-inventory --graph``, which reads the inventory and prints names only, and ``--list``. The floor
    is an inventory with one host.
    """
    name, environment = host.off(1)[0], Plays(host).environment
    with host.client() as client, ExitStack() as hosts:
        one = client.get("server", name)
        endpoints = [hosts.enter_context(_said(number, one)) for number in range(HOSTS)]
        path = FOLDER / "bench.magnetar.yml"
        path.write_text(yaml.safe_dump({**CONFIG, "endpoints": endpoints}), encoding="utf-8")

        def take(source: object, how: str) -> float:
            words = [Path(sys.executable).parent / "ansible-inventory", "-i", source, how]
            return timed(lambda: subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL)) / 1000

        taken = in_turns(rounds, {"one host": lambda: take("localhost,", "--graph"),
                                  "--graph": lambda: take(path, "--graph"), "--list": lambda: take(path, "--list")})
    floor, graph, listed = taken.values()
    count = f"{HOSTS * EACH:,} servers of {HOSTS} hosts"
    return [Figure(f"inventory of {count}", statistics.median(graph), "s", limit=0.9, spread=spread(graph),
                   floor=statistics.median(floor), floor_name="of one host"),
            Figure("the same printed with all variables", statistics.median(listed), "s", spread=spread(listed))]
