# SPDX-License-Identifier: GPL-3.0-or-later
"""What root does where QEMU's user may write: a guest that has broken out of QEMU swaps names there all the time."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar_agent.host.hypervisor import Export
from magnetar_agent.host.sockets import bind_unix_socket, pin_socket_path
from magnetar_agent.host.storage import Disk
from magnetar_agent.virt.disks import nbd, qcow2
from magnetar_agent.virt.domain import tpm
from magnetar_agent.volumes import exports
from magnetar_core.errors import HypervisorError
from tests.support.agent.hostile import beside
from tests.support.agent.hostile_qemu import NOBODY, Hypervisor

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and another user")
#: Each name is in turn what it was not: a file, a link to the victim, a folder, a link to the victim's folder.
HOSTILE = """
import os, sys
folder, victim, *names = sys.argv[1:]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
def attempt(call, *arguments):
    try: call(*arguments)
    except OSError: pass
print("up", flush=True)
while True:
    for name in names:
        path = os.path.join(folder, name)
        spare = path + ".swap"
        for make in (lambda: os.symlink(victim, spare), lambda: os.close(os.open(spare, os.O_CREAT | os.O_RDWR, 0o600)),
                     lambda: os.symlink(os.path.dirname(victim), spare), lambda: os.mkdir(spare)):
            attempt(os.rmdir, path)
            attempt(make)
            attempt(os.rename, spare, path)
            attempt(os.unlink, spare)
            attempt(os.rmdir, spare)
"""


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder that the other user can reach."""
    place = Path(f"/run/magnetar-hostile-{os.getpid()}")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o755)
    yield place
    shutil.rmtree(place)


class Victim:
    """A file of root's that nobody else may see, in a folder of root's."""

    def __init__(self, room: Path) -> None:
        self.path = room / "secret" / "key"
        self.path.parent.mkdir(mode=0o711)
        self.path.write_bytes(b"root's")
        self.path.chmod(0o600)
        self.was = self._seen()

    def _seen(self) -> list[tuple[Any, ...]]:
        return [(path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in
                (self.path, self.path.parent)]

    def check(self) -> None:
        assert self._seen() == self.was and self.path.read_bytes() == b"root's"


def hostile(folder: Path, victim: Victim, *names: str) -> AbstractContextManager[None]:
    return beside(HOSTILE, folder, victim.path, *names)


def _export(room: Path, **more: Any) -> Export:
    host: Any = SimpleNamespace(settings=SimpleNamespace(socket=room / "agent.sock"), hypervisor=Hypervisor())
    place = exports.make_export_folder(host, "e1")
    disk = room / "disk"
    qcow2.create_qcow2(disk, 1 << 20)
    os.chown(disk, NOBODY, NOBODY)
    return Export("e1", "volume", Disk(disk, "", "qcow2"), place / "nbd", **more)


def test_permit_gives_away_what_it_found(room: Path) -> None:
    victim, folder = Victim(room), room / "shared"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    hypervisor, until, times = Hypervisor(), time.monotonic() + 5, 0
    with hostile(folder, victim, "one", "two"):
        while time.monotonic() < until or times < 100:
            times += 1
            with suppress(OSError):  # it says so when a name is not what it was
                hypervisor.permit([folder])
    victim.check()


@pytest.mark.parametrize("stand_in", [False, True])
@pytest.mark.skipif(not shutil.which("qemu-nbd"), reason="needs qemu-nbd")
def test_an_export(room: Path, stand_in: bool) -> None:
    """Its folder is root's: whoever is QEMU's user can use the socket, and not replace it."""
    victim, export, hypervisor = Victim(room), _export(room, stand_in=stand_in), Hypervisor()
    with hostile(export.socket.parent, victim, "nbd", nbd.OVERLAY):
        for _time in range(5):
            hypervisor.serve(export)
            hypervisor.unserve(export.id)
        hypervisor.serve(export)
        victim.check()
        seen = export.socket.lstat()
        assert (oct(seen.st_mode), seen.st_uid, seen.st_gid) == ("0o140660", 0, NOBODY)
        use = "import os, socket; os.setgid(65534); os.setuid(65534); s = socket.socket(socket.AF_UNIX); " \
              f"s.connect({str(export.socket)!r}); print(s.recv(8))"
        done = subprocess.run([sys.executable, "-c", use], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "b'NBDMAGIC'"
    hypervisor.unserve(export.id)
    assert list(export.socket.parent.iterdir()) == []
    victim.check()


def test_the_copy_of_a_tpm(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has broken out of swtpm has the folder of its TPM. What goes to another host is nothing but its files."""
    victim, place, copy = Victim(room), room / "swtpm/u1/tpm2", room / "copy"
    place.mkdir(parents=True)
    os.chown(place, NOBODY, NOBODY)
    monkeypatch.setattr(tpm, "SWTPM", room / "swtpm")
    state = place / "tpm2-00.permall"
    for make in (lambda: state.symlink_to(victim.path), lambda: os.mkfifo(state), state.mkdir):
        make()
        with pytest.raises(HypervisorError):
            tpm.Tpms().save_tpm("u1", copy)
        assert not copy.exists()
        state.rmdir() if state.is_dir() and not state.is_symlink() else state.unlink()
    with hostile(place, victim, state.name):
        for _time in range(300):
            with suppress(HypervisorError):  # it says so when the name is no file
                tpm.Tpms().save_tpm("u1", copy)
            assert not copy.exists() or b"root's" not in copy.read_bytes()
    victim.check()


def test_a_folder_that_was_writable_is_taken_back(room: Path) -> None:
    """As an agent of an earlier release has left it."""
    victim, place = Victim(room), room / "links" / "e1"
    place.mkdir(parents=True)
    os.chown(place, 0, NOBODY)
    place.chmod(0o770)
    (place / "nbd").symlink_to(victim.path)
    export, hypervisor = _export(room), Hypervisor()
    assert oct(place.stat().st_mode) == "0o40750"
    hypervisor.serve(export)
    hypervisor.unserve(export.id)
    victim.check()


def test_a_door_leads_to_the_socket_of_its_name_only(room: Path) -> None:
    """What listens there is reached, and not what a link leads to."""
    with bind_unix_socket(room / "libvirt") as libvirt:
        libvirt.listen()
        (room / "qemu").symlink_to(room / "libvirt")
        with pytest.raises(OSError), pin_socket_path(room / "qemu"):
            pytest.fail("it followed the link")
        with pin_socket_path(room / "libvirt") as name, socket.socket(socket.AF_UNIX) as client:
            client.connect(name)
