# SPDX-License-Identifier: GPL-3.0-or-later
"""Guests whose QEMU does not answer, and a libvirtd that hangs or dies: nobody else has to wait for them."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import guest
import pytest

from agent import LabAgent, eventually
from magnetar_core.errors import GuestSilent, MagnetarError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

#: As many as libvirtd takes calls at once on one connection: with so many it reads nothing more from that.
HUNG = 5
WANT: dict[str, Any] = {"flavor": {"vcpus": 1, "ram": 128, "disk": 1}, "image": "kernel"}


def agent_with_images(images: dict[str, Path], **settings: Any) -> LabAgent:
    made = LabAgent(shutdown_timeout=10, guest_answer_timeout=5, **settings)
    made.__enter__()
    made.import_image("ramdisk", images["ramdisk"], disk_format="ari")
    made.import_image("kernel", images["kernel"], disk_format="aki", ramdisk="ramdisk", cmdline=guest.KERNEL_ARGS)
    return made


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[LabAgent]:
    """An agent with HUNG servers and one more."""
    made = agent_with_images(guest_image)
    try:
        for name in ("healthy", *names()):
            made.ensure("server", name, WANT)
        yield made
    finally:
        made.close()


def names() -> list[str]:
    """The servers that hang."""
    return [f"hung{number}" for number in range(HUNG)]


@contextmanager
def stopped(*processes: int) -> Iterator[None]:
    """Within, processes do not run."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def asked(lab: LabAgent, key: str, want: dict[str, Any], answers: dict[str, Any]) -> threading.Thread:
    """Ask for a change in a thread, which notes the answer."""
    def ask() -> None:
        try:
            answers[key] = lab.ensure("server", key, want)
        except MagnetarError as error:
            answers[key] = error

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_hung_guests_hold_up_nobody(lab: LabAgent) -> None:
    """While the five are waited for, and after that, a healthy guest is paused, a server is made, and the host is up;
    each hung guest is named. One can be deleted, and the others do as they are told when they go on."""
    answers: dict[str, Any] = {}
    ids = {name: lab.show("server", name)["id"] for name in names()}
    with stopped(*(lab.qemu(name) for name in names())):
        threads = [asked(lab, name, {"power": "paused"}, answers) for name in names()]
        time.sleep(1)
        for _round in range(2):
            assert lab.power("healthy", "paused")["power_state"] == "paused"
            assert lab.show("host")["connected"]
            assert lab.power("healthy", "running")["power_state"] == "running"
            assert set(names()) < set(lab.names("server"))
            if not _round:
                assert lab.ensure("server", "fresh", WANT)["resource"]["power_state"] == "running"
            for thread in threads:
                thread.join(120)
        for name in names():
            assert isinstance(answers[name], GuestSilent), answers[name]
            assert f"The guest {ids[name]} does not answer" in answers[name].message
        with lab.client() as client:
            assert client.get("server", names()[0])["power_state"] == "running"
        lab.delete("server", names()[0])
        lab.delete("server", "fresh")
    for name in names()[1:]:
        eventually(lambda name=name: lab.power(name, "running")["power_state"] == "running", f"{name} answers")
        assert lab.power(name, "paused")["power_state"] == "paused"
        lab.power(name, "running")
    assert not any("connection to libvirt is lost" in str(line) for line in lab.logged())
    lab.ensure("server", names()[0], WANT)
