# SPDX-License-Identifier: GPL-3.0-or-later
"""A volume of one agent in a guest of another, on one libvirt: real qemu-nbd, real TLS, and everything on the way dies.

The guest writes numbers all the time and says so on its console; whatever happens, it only waits, and none gets lost.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from magnetar_core.errors import Conflict, GuestSilent, Unreachable
from magnetar_core.flows.attach import attach_remote_volume, detach_remote_volume
from magnetar_core.flows.migrate import Side
from tests.support.lab.agent import LabAgent, eventually, stopped
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

SIZES = {"vcpus": 1, "ram": 128, "disk": 1}
#: Sector n holds the number n. A failure would be said.
WRITES = """n=0; while :; do n=$((n+1)); printf '%08d' $n | dd of=/dev/{disk} bs=512 seek=$n conv=sync,fsync,notrunc \
2>/dev/null || echo GUEST lost $n; echo GUEST wrote $n; sleep 0.05; done >/dev/console 2>/dev/null </dev/null &"""


def certificates(folder: Path, names: tuple[str, ...]) -> None:
    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new, "-addext", "keyUsage=critical,keyCertSign", "-keyout",
            "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name in names:
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem")


def linked(folder: Path, name: str) -> LabAgent:
    """An agent with TLS, so that it has links."""
    port = free_port()
    return LabAgent(listen=f"127.0.0.1:{port}", tls_cert=str(folder / f"{name}.pem"), detach_timeout=30,
                    tls_key=str(folder / f"{name}.key"), tls_client_ca=str(folder / "ca.pem"), client_certs={})


class Abroad:
    """``home`` has the volume data, ``here`` the booted server s, to which it is attached."""

    def __init__(self, home: LabAgent, here: LabAgent) -> None:
        self.home, self.here = home, here

    def sides(self) -> tuple[Side, Side]:
        return Side(self.here.client(), "127.0.0.1"), Side(self.home.client(), "127.0.0.1")

    def attach(self) -> str:
        """Returns the attachment's uuid."""
        return str(attach_remote_volume(*self.sides(), "s", "data", {})["resource"]["id"])

    def nbd(self) -> int:
        """The process of the volume's qemu-nbd."""
        return next(pid for pid, words in self.home.processes().items() if words.startswith("qemu-nbd"))

    def disk(self) -> str:
        """Its name in the guest."""
        serial = self.home.show("volume", "data")["id"][:20]
        found = eventually(lambda: [one for one in self.here.ask("s", "disks")["disks"] if one["serial"] == serial],
                           "the guest sees the volume")
        return str(found[0]["name"])

    def wrote(self) -> int:
        """The last number; none was lost."""
        said = self.here.console("s")
        assert "GUEST lost" not in said
        return max((int(one) for one in re.findall(r"GUEST wrote (\d+)", said)), default=0)

    def goes_on(self) -> int:
        """Wait until the guest writes further."""
        start = self.wrote()
        eventually(lambda: self.wrote() > start + 3, f"the guest writes further than {start}")
        return self.wrote()


@pytest.fixture(scope="module")
def abroad(guest_image: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Abroad]:
    folder = tmp_path_factory.mktemp("keys")
    certificates(folder, ("kvm1", "kvm2"))
    with linked(folder, "kvm1") as home, linked(folder, "kvm2") as here:
        here.import_image("disk", guest_image["disk"])
        here.ensure("server", "s", {"flavor": SIZES, "image": "disk"})
        home.ensure("volume", "data", {"size": 1})
        here.up("s")
        made = Abroad(home, here)
        made.attach()
        here.sh("s", WRITES.format(disk=made.disk()))
        yield made


def test_the_guest_writes_and_others_are_kept_out(abroad: Abroad) -> None:
    abroad.goes_on()
    assert abroad.home.show("volume", "data")["status"] == "in-use"
    with pytest.raises(Conflict, match="is attached to s"):
        abroad.home.delete("volume", "data")
    words = Path(f"/proc/{abroad.nbd()}/cmdline").read_bytes().decode()
    status = Path(f"/proc/{abroad.nbd()}/status").read_text()
    assert "--port" not in words and "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status
    assert not re.search(r"^Uid:\t0", status, re.MULTILINE)


@pytest.mark.parametrize("what", ["the exporter", "the volume's agent", "the server's agent", "both agents"])
def test_something_dies_while_the_guest_writes(abroad: Abroad, what: str) -> None:
    if what == "the exporter":
        os.kill(abroad.nbd(), signal.SIGKILL)
    agents = {"the volume's agent": [abroad.home], "the server's agent": [abroad.here],
              "both agents": [abroad.here, abroad.home]}.get(what, [])
    for agent in agents:
        agent.kill()
    began = time.monotonic()
    for agent in agents:
        agent.start()
    abroad.goes_on()
    print(f"\nexports: {what}: the guest writes again after {time.monotonic() - began:.1f} s")
    assert abroad.here.show("server", "s")["status"] == "ACTIVE"


@pytest.mark.deep(shard="a disk stops to answer")
def test_a_disk_stops_to_answer(abroad: Abroad) -> None:
    """The guest whose disk it is hangs as soon as QEMU has to wait for it, and is named. Others of its host are made,
    paused and removed meanwhile; when the disk answers again all is as before, and nothing was lost."""
    here, id = abroad.here, abroad.here.show("server", "s")["id"]
    beside = {"flavor": SIZES, "image": "disk"}
    here.ensure("server", "beside", beside)
    abroad.goes_on()
    with stopped(abroad.nbd()):
        time.sleep(1)  # the guest waits for a write of its own
        with pytest.raises(GuestSilent, match=f"The guest {id} does not answer"):
            here.power("s", "paused")
        for state in ("paused", "running"):
            assert here.power("beside", state)["power_state"] == state
        assert here.ensure("server", "fresh", beside)["resource"]["power_state"] == "running"
        here.delete("server", "fresh")
        assert here.show("host")["connected"] and here.show("server", "s")["id"] == id
    eventually(lambda: here.power("s", "running")["power_state"] == "running", "it answers", passing=(GuestSilent,))
    abroad.goes_on()
    here.delete("server", "beside")


def test_swapped_while_the_guest_writes(abroad: Abroad) -> None:
    """For a volume of the server's host, whose agent dies meanwhile, and back. Nothing is lost, and each volume has
    what was written while it was the guest's."""
    abroad.here.ensure("volume", "near", {"size": 1})
    abroad.goes_on()
    with abroad.here.client() as client:
        client.ensure("volume_attachment", "s:near", {"server": "s", "volume": "near", "replaces": "data"}, wait=False)
        abroad.here.kill()
        abroad.here.start()
        eventually(lambda: client.get("volume_attachment", "s:near")["status"] == "attached", "the volume is swapped")
    last = abroad.goes_on()
    assert abroad.here.show("server", "s")["volumes_attached"][0]["name"] == "near"
    eventually(lambda: abroad.home.show("volume", "data")["status"] == "available", "its host knows")
    assert not [one for one in abroad.home.processes().values() if one.startswith("qemu-nbd")]
    left = abroad.home.state / "volumes" / abroad.home.show("volume", "data")["id"]
    said = subprocess.run(["qemu-io", "-r", "-f", "qcow2", "-c", f"read -v {512 * last} 8", str(left)], check=True,
                          capture_output=True, text=True).stdout
    assert "00 00 00 00 00 00 00 00" in said
    attach_remote_volume(*abroad.sides(), "s", "data", {"replaces": "near"})
    last = abroad.goes_on()
    assert abroad.here.delete("volume", "near")["changed"]
    disk = abroad.disk()
    for number in (1, last // 2, last):
        said = abroad.here.sh("s", f"dd if=/dev/{disk} bs=512 skip={number} count=1 2>/dev/null | tr -d '\\000'")
        assert int(said) == number


def test_stopped_and_started_while_the_volumes_host_is_away(abroad: Abroad) -> None:
    last = abroad.goes_on()
    abroad.home.kill()
    abroad.here.becomes("s", "paused")
    abroad.here.power("s", "off")
    with abroad.here.client(timeout=1) as client, pytest.raises(Unreachable, match="as soon as that answers"):
        client.ensure("server", "s", {"power": "running"})
    abroad.home.start()
    abroad.here.up("s", 2)
    disk = abroad.disk()
    for number in (1, last // 2, last):
        said = abroad.here.sh("s", f"dd if=/dev/{disk} bs=512 skip={number} count=1 2>/dev/null | tr -d '\\000'")
        assert int(said) == number


def test_detached_and_attached_at_home(abroad: Abroad) -> None:
    detach_remote_volume(*abroad.sides(), "s", "data")
    assert abroad.home.show("volume", "data")["status"] == "available"
    assert not [one for one in abroad.home.processes().values() if one.startswith("qemu-nbd")]
    for lab in (abroad.home, abroad.here):
        assert not list((lab.folder / "links").glob("*"))
    assert not detach_remote_volume(*abroad.sides(), "s", "data")["changed"]
