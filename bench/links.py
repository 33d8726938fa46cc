# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the throughput of a link between two agents, next to plain TLS sockets of the same Python."""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures import Figure, in_turns, spread
from host import ROOT

from magnetar_agent.link import LinkAddress, Links, Offer
from magnetar_agent.settings import AgentSettings

if TYPE_CHECKING:
    from host import Host

sys.path.insert(0, str(ROOT))  # where hosts that serve TLS are made

MIB = 2**20
#: MiB of one measurement, in pieces as QEMU writes them.
COUNT, PIECE = 256, 32 * 1024


def sink(sock: socket.socket, *_peer: object) -> None:
    """Receive all bytes of a measurement from *sock*, then send an acknowledgement."""
    space, left = bytearray(MIB), COUNT * MIB
    while left:
        got = sock.recv_into(space)
        if not got:
            return
        left -= got
    sock.sendall(b".")


def serve(folder: Path, ports: tuple[int, int], told: Any) -> None:
    """Run the other host: an agent that offers a link to kvm1, and a server with a plain TLS socket. *told*: a pipe
    that reports the start."""
    from tests.support.agent.pair import Kvm
    from tests.support.agent.pki import Pki

    pki = Pki(folder / "pki")
    for name in ("kvm1", "admin"):
        pki.issue(name)
    kvm = Kvm(folder, pki, "kvm2", ports[0])
    kvm.agent.host.links.offer(Offer("bench", frozenset(["kvm1"]), {"sink": sink}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kvm.cert, kvm.key)
    with socket.create_server(("127.0.0.1", ports[1])) as listening:
        told.send("ready")
        while True:
            taken, _address = listening.accept()
            with context.wrap_socket(taken, server_side=True) as sock:
                sink(sock)


def _send(sock: socket.socket) -> float:
    data, began = bytes(PIECE), time.perf_counter()
    with sock:
        for _number in range(COUNT * MIB // PIECE):
            sock.sendall(data)
        sock.recv(1)
    return COUNT / (time.perf_counter() - began)


def links(_host: Host, rounds: int) -> list[Figure]:
    """Measure the MiB per second from one process to another."""
    free = [socket.create_server(("127.0.0.1", 0)) for _number in range(2)]
    ports = free[0].getsockname()[1], free[1].getsockname()[1]
    for one in free:
        one.close()
    with tempfile.TemporaryDirectory(prefix="mag-bench-") as name:
        folder, (ours, theirs) = Path(name), multiprocessing.Pipe()
        other = multiprocessing.get_context("fork").Process(target=serve, args=(folder, ports, theirs), daemon=True)
        other.start()
        ours.recv()
        pki = folder / "pki"
        near = Links(AgentSettings(state_dir=folder, listen="127.0.0.1:1", tls_cert=pki / "kvm1.pem",
                                   tls_key=pki / "kvm1.key", tls_client_ca=pki / "ca.pem"))  # fmt: skip
        context = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        remote = LinkAddress("bench", "kvm2", "127.0.0.1", ports[0])
        try:
            taken = in_turns(rounds, {
                "link": lambda: _send(near.call(remote, "sink")),
                "TLS": lambda: _send(context.wrap_socket(socket.create_connection(("127.0.0.1", ports[1])),
                                                         server_hostname="kvm2")),
            })  # fmt: skip
        finally:
            near.close()
            other.terminate()
            other.join()
    link, plain = taken.values()
    return [Figure("link between two agents (more is better)", statistics.median(link), "MiB/s", spread=spread(link),
                   floor=statistics.median(plain), floor_name="TLS socket to TLS socket")]  # fmt: skip
