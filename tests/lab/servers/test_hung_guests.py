# SPDX-License-Identifier: GPL-3.0-or-later
"""Guests whose QEMU does not answer, and a libvirtd that hangs or dies: nobody else has to wait for them."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_core.errors import GuestSilent, MagnetarError
from tests.support.lab import guest
from tests.support.lab.agent import LabAgent, eventually, stopped
from tests.support.lab.own_libvirtd import OwnLibvirtd

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


def test_a_guest_that_hangs_within_a_job_is_named(lab: LabAgent) -> None:
    """libvirt shows a job, and not for how long its command is without an answer. When QEMU goes on the job ends."""
    name = names()[1]
    with stopped(lab.qemu(name)):
        with pytest.raises(GuestSilent, match="has left libvirt's request to suspend the domain"):
            lab.power(name, "suspended")
        assert lab.power("healthy", "paused")["power_state"] == "paused"
        with lab.client() as client:
            assert client.get("server", name)["power_state"] == "running"
        assert lab.power("healthy", "running")["power_state"] == "running"
    lab.becomes(name, "suspended")
    assert lab.power(name, "running")["power_state"] == "running"


# A libvirtd that hangs or dies

@pytest.fixture
def libvirtd() -> Iterator[OwnLibvirtd]:
    folder = Path(tempfile.mkdtemp(prefix="magnetar-lab-", dir="/var/tmp"))
    try:
        with OwnLibvirtd(folder) as started:
            yield started
    finally:
        shutil.rmtree(folder)


@pytest.mark.deep(shard="libvirtd hangs and dies")
def test_what_is_built_is_built_whatever_libvirtd_does(libvirtd: OwnLibvirtd, guest_image: dict[str, Path]) -> None:
    """It is killed and started again twice while four servers are made, and stopped for so long that its connections
    are lost. All servers are made; a hung guest is named afterwards as before."""
    lab = agent_with_images(guest_image, libvirt_uri=libvirtd.uri)
    answers: dict[str, Any] = {}
    try:
        threads = [asked(lab, f"web{number}", WANT, answers) for number in range(4)]
        for _time in range(2):
            eventually(lambda: any((lab.state / "documents/server").glob("*.json")), "one is being made")
            libvirtd.kill()
            libvirtd.start()
        for thread in threads:
            thread.join()
        assert {name: answer["resource"]["power_state"] for name, answer in answers.items()} == {
            f"web{number}": "running" for number in range(4)}, answers

        assert libvirtd.process is not None
        with stopped(libvirtd.process.pid):
            thread = asked(lab, "late", WANT, answers)
            eventually(lambda: any("a connection to libvirt is lost" in str(line) for line in lab.logged()[-20:]),
                       "the agent notices")
        thread.join()
        assert answers["late"]["resource"]["power_state"] == "running", answers
        for name in ("late", "web0"):
            assert lab.power(name, "paused")["power_state"] == "paused"
            lab.delete("server", name)
    finally:
        lab.close()


@pytest.mark.deep(shard="libvirtd hangs and dies")
def test_more_guests_hang_than_libvirtd_has_workers(libvirtd: OwnLibvirtd, guest_image: dict[str, Path]) -> None:
    """Requests to guests are refused, which names those that hang; the host is up, guests can be ended, and afterwards
    all is well."""
    lab = agent_with_images(guest_image, libvirt_uri=libvirtd.uri, parallel=16)
    hung = [f"hung{number}" for number in range(10)]
    answers: dict[str, Any] = {}
    try:
        for name in (*hung, "healthy"):
            lab.ensure("server", name, {**WANT, "flavor": {"vcpus": 1, "ram": 64, "disk": 1}})
        with stopped(*(lab.qemu(name) for name in hung)):
            threads = [asked(lab, name, {"power": "paused"}, answers) for name in hung]
            for thread in threads:
                thread.join()
            assert {type(answer) for answer in answers.values()} == {GuestSilent}, answers
            with pytest.raises(GuestSilent, match="guests whose QEMU does not answer"):
                lab.power("healthy", "paused")
            assert lab.show("host")["connected"]
            for name in hung[:5]:
                lab.delete("server", name)
            assert lab.power("healthy", "paused")["power_state"] == "paused"
            assert lab.ensure("server", "fresh", WANT)["resource"]["power_state"] == "running"
        for name in hung[5:]:
            eventually(lambda name=name: lab.power(name, "running")["power_state"] == "running", f"{name} answers")
    finally:
        lab.close()
