# SPDX-License-Identifier: GPL-3.0-or-later
"""Guests without QEMU: network namespaces with devices on bridges, in a network namespace of the test."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar_agent.host.networks import Tap
from tests.support.waiting import eventually

_libc = ctypes.CDLL(None, use_errno=True)

needs = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nft") or not shutil.which("ip"),
                           reason="needs root, ip and nft")


def ip(words: str) -> str:
    return subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True).stdout


def in_own_network(act: Callable[[], None]) -> None:
    """Run *act* in a thread with a network namespace of its own, which its child processes inherit."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            assert _libc.unshare(0x40000000) == 0
            ip("link set lo up")
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


class Guest:
    """A network namespace with one device, whose other end is a tap on *bridge* ("": on no bridge, as with Open
    vSwitch)."""

    def __init__(self, name: str, bridge: str, server: str, address: str, mac: str) -> None:
        self.process = subprocess.Popen(["unshare", "--net", "sleep", "600"])
        self.name, self.device, self.mac = name, f"eth-{name}", mac
        ours, its = (Path(f"/proc/{process}/ns/net") for process in ("thread-self", self.process.pid))
        eventually(lambda: its.readlink() != ours.readlink())
        ip(f"link add tap-{name} type veth peer name {self.device} netns {self.process.pid}")
        ip(f"link set tap-{name} {f'master {bridge}' if bridge else ''} up")
        self.sh(f"ip link set {self.device} address {mac} up; ip link set lo up; "
                f"ip addr add {address} dev {self.device}; ip route add 169.254.169.254 dev {self.device}")
        number = index(f"tap-{name}")
        self.tap = Tap(server, mac, f"tap-{name}", number, bridge or "br-int", index(bridge) if bridge else number,
                       not bridge)

    def sh(self, script: str, check: bool = True) -> str:
        done = subprocess.run(["nsenter", "-t", str(self.process.pid), "-n", "sh", "-c", script], check=False,
                              capture_output=True, text=True)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def get(self, path: str, *options: str, host: str = "169.254.169.254") -> str:
        words = " ".join(f"'{one}'" for one in options)
        return self.sh(f"curl -gs --max-time 3 {words} 'http://{host}{path}'", check=False)

    def hears_nothing(self, *hosts: str) -> bool:
        """Return whether none of these metadata *hosts* (with ports) answers. All are queried at once."""
        urls = " ".join(f"'http://{host}/openstack'" for host in hosts)
        return not self.sh(f"curl -gsZ --max-time 3 {urls}", check=False)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def index(device: str) -> int:
    return int(ip(f"-o link show {device}").partition(":")[0])
