# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the attachment of a volume to a running guest, and its detachment, next to libvirt's own calls."""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import libvirt
from figures import Figure, in_turns, spread, timed
from host import FOLDER, Host

from magnetar_agent.host.storage import Disk
from magnetar_agent.virt.disks.disks import direct_io
from magnetar_agent.virt.domain.domain import render_device

SERVER, VOLUME, PAIR = "bench-disks", "bench-data", "bench-disks:bench-data"
LASTING = libvirt.VIR_DOMAIN_AFFECT_LIVE | libvirt.VIR_DOMAIN_AFFECT_CONFIG
#: Seconds for the guest to boot. It cannot release devices before.
BOOT = 300
READY = "GUEST ready"


class Raw:
    """The floor: virDomainAttachDeviceFlags and virDomainDetachDeviceFlags of an equal disk, for the running domain and
    its definition."""

    def __init__(self, domain: Any, like: Path) -> None:
        self.domain = domain
        disk = Disk(like, "vdb", "qcow2", serial="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
        self.xml = render_device(disk, "none" if direct_io(like.parent) else "writeback")

    def attach(self) -> None:
        """Attach the disk."""
        self.domain.attachDeviceFlags(self.xml, LASTING)

    def detach(self) -> None:
        """Request the detachment, and poll until the guest has released the disk. libvirt itself waits some seconds for
        that."""
        self.domain.detachDeviceFlags(self.xml, LASTING)
        while "<target dev='vdb'" in self.domain.XMLDesc():
            time.sleep(0.01)


def attaching(host: Host, rounds: int) -> list[Figure]:
    """Measure one guest and one disk: by the agent and by hand, in turns."""
    with host.client() as client:
        made = client.ensure("server", SERVER, host.want())["resource"]
        client.ensure("volume", VOLUME, {"size": 1})
        shown = client.ensure("volume", "bench-like", {"size": 1})["resource"]
        booted(Path(made["console_log"]))
        raw = Raw(host.libvirt.lookupByUUIDString(made["id"]), FOLDER / "state/volumes" / shown["id"])
        pair = {"server": SERVER, "volume": VOLUME}
        taken: dict[str, list[float]] = {"attach": [], "detach": [], "raw attach": [], "raw detach": []}

        def agent() -> float:
            taken["attach"].append(timed(lambda: client.ensure("volume_attachment", PAIR, pair)))
            taken["detach"].append(timed(lambda: client.delete("volume_attachment", PAIR)))
            return 0.0

        def by_hand() -> float:
            taken["raw attach"].append(timed(raw.attach))
            taken["raw detach"].append(timed(raw.detach))
            return 0.0

        try:
            in_turns(rounds * 2, {"by hand": by_hand, "agent": agent})
        finally:
            with suppress(libvirt.libvirtError):
                raw.detach()
            client.delete("server", SERVER)
            for name in (VOLUME, "bench-like"):
                client.delete("volume", name)
    found = {name: values[1:] for name, values in taken.items()}  # the first warmed up
    for side in ("", "raw "):
        found[f"{side}both"] = [sum(pair) for pair in zip(found[f"{side}attach"], found[f"{side}detach"], strict=True)]
    return [Figure(f"volume, {words}", statistics.median(found[what]), spread=spread(found[what]), ratio=ratio,
                   floor=statistics.median(found[f"raw {what}"]), floor_name=f"virDomain{call}DeviceFlags")
            for words, what, call, ratio in (("attached and detached", "both", "Attach- and Detach", 1.2),
                                             ("of it attached", "attach", "Attach", None),
                                             ("of it detached", "detach", "Detach", None))]  # fmt: skip


def booted(console: Path) -> None:
    """Wait until the guest reports in its *console* log that it has booted."""
    until = time.monotonic() + BOOT
    while time.monotonic() < until:
        if console.exists() and READY in console.read_text(encoding="utf-8", errors="replace"):
            return
        time.sleep(0.1)
    raise SystemExit(f"The guest did not boot within {BOOT} s: see {console}.")
