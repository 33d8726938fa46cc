# SPDX-License-Identifier: GPL-3.0-or-later
"""Two hosts whose servers' disks lie in one folder (``instances_path``): disks have one owner, and are never copied,
made anew or removed by another host."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.host.disk_folder import IDENTITY, find_disk_folder
from magnetar_agent.host.host_check import host_findings
from magnetar_agent.migrations import target
from magnetar_agent.servers.disks import disk_owner, own_disks
from magnetar_core.errors import Conflict, HypervisorError, InvalidSettings, MagnetarError
from magnetar_core.flows.migrate import Migrate
from magnetar_core.http.client import Client
from tests.support.agent.pair import WAY, Died, Kvm, Pair, killed, quiet
from tests.support.ports import free_port

pytestmark = pytest.mark.slow
PATTERN = b"pattern" * 1000


class Shared(Pair):
    """A pair whose hosts share the folder of their servers."""

    @property
    def folder(self) -> Path:
        return self.root / "servers"

    def disk(self, id: str) -> bytes:
        """The content of the root disk."""
        return (self.folder / id / "disk").read_bytes()

    def owner(self, id: str) -> str:
        """The name of the host that may use the disks."""
        return str(json.loads((self.folder / id / disk_owner.FILE).read_text())["host"])

    def adopt(self, id: str, client: Client | None = None, **want: Any) -> Any:
        """Build the server on the second host, as an evacuation does."""
        folder = find_disk_folder(self.one.agent.host)
        assert folder is not None
        return (client or self.two.side().client).ensure("server", id, {
            "name": "web1", "flavor": {"vcpus": 1, "ram": 64, "disk": 1}, "image": None,
            "networks": [{"bridge": "br0"}], "adopt_disks": folder.owner, **want})


@contextmanager
def shared_pair(folders: Mapping[str, str]) -> Iterator[Shared]:
    """Two hosts in a folder with a short name, as unix sockets need it. *folders*: by host, its ``instances_path``."""
    root = Path(tempfile.mkdtemp(prefix="mag"))
    for name in set(folders.values()):
        (root / name).mkdir()
    found = Shared(root, (free_port(), free_port()), {
        host: {"instances_path": root / name} for host, name in folders.items()})
    yield found
    found.close()


@pytest.fixture
def pair() -> Iterator[Shared]:
    with shared_pair({"kvm1": "servers", "kvm2": "servers"}) as found:
        yield found


def on(host: Kvm) -> dict[str, Any]:
    """The shared folder as the host reports it."""
    return dict(host.side().host["disk_folder"])


def dies(host: Kvm) -> None:
    """The host loses its power; its agent is up again afterwards."""
    host.stop()
    for domain in host.fake.domains():
        host.fake.destroy(domain)


# The folder -------------------------------------------------------------------------------------------------------
def test_both_hosts_report_one_folder(pair: Shared) -> None:
    one, two = on(pair.one), on(pair.two)
    assert one["id"] == two["id"] == (pair.folder / IDENTITY).read_text().strip()
    assert one["owner"] != two["owner"] and (one["reason"], two["reason"]) == ("", "")


def test_a_folder_without_its_file_system_is_noticed(pair: Shared) -> None:
    id = pair.make()
    pair.one.stop()
    pair.folder.rename(pair.root / "away")
    pair.folder.mkdir()  # the mount point
    pair.one.start()
    assert "is not mounted" in on(pair.one)["reason"]
    host = pair.one.side().host
    assert (host["disk_gb"], "is not mounted" in host["local_disks"]["reason"]) == (0, True)
    for act in (lambda: pair.one.side().client.delete("server", id), lambda: pair.one.side().client.ensure(
            "server", "web2", {"flavor": {"vcpus": 1, "ram": 64, "disk": 1}, "image": None, "networks": []})):
        with pytest.raises(Conflict, match="is not mounted"):
            act()
    assert not list(pair.folder.iterdir())
    pair.folder.rmdir()
    (pair.root / "away").rename(pair.folder)
    assert PATTERN in pair.disk(id)
    pair.one.side().client.delete("server", id)


def test_another_folder_than_before_is_refused(pair: Shared) -> None:
    assert on(pair.one)["id"]
    (pair.folder / IDENTITY).write_text("0d1c6a8e-0f0b-4f5a-9d3e-6a1f0c2b7e44\n")
    with pytest.raises(Conflict, match="another one than before"):
        find_disk_folder(pair.one.agent.host)


def test_folders_that_were_not_moved_are_named() -> None:
    with shared_pair({}) as pair:
        id = pair.make(power="off")
        pair.one.stop()
        pair.folder.mkdir()
        pair.one.more = {"instances_path": pair.folder}
        pair.one.start()
        host = pair.one.agent.host
        with pytest.raises(InvalidSettings, match=f"1 servers of this host have their disks in .*{id}"):
            own_disks.check_folders_moved(host)
        (pair.root / "kvm1" / "servers" / id).rename(pair.folder / id)
        own_disks.check_folders_moved(host)
        pair.one.side().client.event("server", id, "reboot", {"type": "hard"})
        assert pair.one.runs(id) and pair.owner(id) == "kvm1" and PATTERN in pair.disk(id)


def test_a_check_of_the_host_names_the_folder(pair: Shared) -> None:
    found = {name: (fine, remark) for name, fine, remark in host_findings(pair.one.side().host)}
    assert found["disk_folder"] == (True, f"{pair.folder}, {on(pair.one)['id']}")


def test_nobody_reports_servers_of_others_as_orphans(pair: Shared) -> None:
    pair.make()
    assert pair.two.side().host["orphans"] == {"domains": [], "files": []}


# Evacuation -------------------------------------------------------------------------------------------------------
def test_another_host_takes_over_the_disks(pair: Shared) -> None:
    id = pair.make()
    before = {path.name: path.read_bytes() for path in (pair.folder / id).iterdir()}
    dies(pair.one)
    pair.one.start()
    pair.adopt(id, power="running")
    assert pair.two.runs(id) and pair.owner(id) == "kvm2"
    assert pair.disk(id) == before["disk"]
    pair.two.side().client.event("server", id, "keep_disks")
    with pytest.raises(Conflict, match="belong to host kvm2"):
        pair.one.side().client.ensure("server", id, {"power": "running"})
    assert not pair.one.runs(id)
    pair.one.side().client.delete("server", id)  # it was evacuated: its former host removes it
    assert pair.disk(id) == before["disk"] and pair.two.runs(id)
    pair.two.side().client.delete("server", id)
    assert not (pair.folder / id).exists()


def test_disks_of_a_failed_evacuation_go_back(pair: Shared) -> None:
    id = pair.make()
    dies(pair.one)
    pair.two.fake.fail_next("start", HypervisorError("libvirt could not start the domain: no memory."))
    with pytest.raises(HypervisorError):
        pair.adopt(id, power="running")
    assert not pair.two.knows(id) and pair.owner(id) == "kvm1" and PATTERN in pair.disk(id)
    pair.adopt(id, power="running")
    pair.two.side().client.delete("server", id)  # its evacuation was not confirmed
    assert pair.owner(id) == "kvm1" and PATTERN in pair.disk(id)
    pair.one.start()
    pair.one.side().client.ensure("server", id, {"power": "running"})
    assert pair.one.runs(id)


def test_an_agent_that_dies_while_it_takes_over_disks(pair: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    id = pair.make()
    dies(pair.one)

    def dies_here(*_args: Any) -> None:
        raise OSError("dead")

    with monkeypatch.context() as patch:
        patch.setattr(disk_owner, "_write", dies_here)
        with pytest.raises(MagnetarError):
            pair.adopt(id, power="running")
    assert pair.owner(id) == "kvm1" and PATTERN in pair.disk(id)
    pair.adopt(id, power="running")
    assert pair.owner(id) == "kvm2" and pair.two.runs(id)
    pair.one.start()


def test_a_host_that_has_returned_keeps_its_guest(pair: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent that died before it was the owner starts when the former owner runs the guest again. It takes nothing
    over until the cloud asks again."""
    id = pair.make()
    dies(pair.one)
    pair.one.start()

    def dies_here(*_args: Any) -> None:
        pair.two.agent.host.documents.dead = True  # type: ignore[attr-defined]
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(disk_owner, "_write", dies_here)
        side = pair.two.side()
        side.client.timeout = 2.0
        with pytest.raises(MagnetarError):
            pair.adopt(id, side.client, power="running")
    pair.two.die()
    pair.one.side().client.ensure("server", id, {"power": "running"})
    pair.two.start()
    quiet(pair)
    assert pair.two.knows(id) and not pair.two.runs(id) and pair.one.runs(id) and pair.owner(id) == "kvm1"
    for domain in pair.one.fake.domains():
        pair.one.fake.destroy(domain)
    pair.adopt(id, power="running")
    assert pair.owner(id) == "kvm2" and pair.two.runs(id) and PATTERN in pair.disk(id)


@pytest.mark.parametrize(("change", "message"), [
    ("owner", "belong to host kvm1"), ("record", "no disks of server"), ("disk", "disk of server 'web1' is gone")])
def test_disks_that_cannot_be_taken_over(pair: Shared, change: str, message: str) -> None:
    id = pair.make()
    dies(pair.one)
    files = {"record": disk_owner.FILE, "disk": "disk"}
    if change in files:
        (pair.folder / id / files[change]).unlink()
    with pytest.raises(Conflict, match=message):
        pair.adopt(id, **({"adopt_disks": "another"} if change == "owner" else {}))
    assert not pair.two.knows(id)
    assert (pair.folder / id).is_dir()
    pair.one.start()


def test_a_server_with_kept_disks_moves_on(pair: Shared) -> None:
    """To a host without the folder, which gets a copy."""
    id = pair.make()
    dies(pair.one)
    pair.adopt(id, power="running")
    pair.two.side().client.event("server", id, "keep_disks")
    pair.one.more = {}
    pair.one.start()
    pair.one.side().client.delete("server", id)
    assert [step.verb for step in Migrate(pair.two.side(), pair.one.side(), id, {"type": "cold"}).steps()] == WAY
    assert pair.one.runs(id) and not (pair.folder / id).exists()
    assert PATTERN in (pair.root / "kvm1" / "servers" / id / "disk").read_bytes()


def test_a_host_without_a_shared_folder_takes_over_nothing() -> None:
    with shared_pair({"kvm1": "servers"}) as pair:
        id = pair.make(power="off")
        with pytest.raises(Conflict, match="kvm2 has none"):
            pair.adopt(id)
        assert PATTERN in pair.disk(id)


# Migration --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "power"), [("live", "running"), ("cold", "running"), ("cold", "off")])
def test_a_migration_copies_no_disk(pair: Shared, kind: str, power: str) -> None:
    id = pair.make(power=power, hardware={"firmware": "uefi"})
    inode = (pair.folder / id / "disk").stat().st_ino
    files = {path.name for path in (pair.folder / id).iterdir()}
    assert pair.migrate(type=kind) == WAY
    assert (pair.folder / id / "disk").stat().st_ino == inode and PATTERN in pair.disk(id)
    assert {path.name for path in (pair.folder / id).iterdir()} >= files
    assert pair.owner(id) == "kvm2" and pair.two.runs(id) is (power == "running")
    assert not pair.one.knows(id) and pair.one.fake.domain(id) is None
    back = Migrate(pair.two.side(), pair.one.side(), id, {"type": kind})
    assert [step.verb for step in back.steps()] == WAY
    assert pair.owner(id) == "kvm1" and pair.one.runs(id) is (power == "running")
    pair.one.side().client.delete("server", id)
    assert not (pair.folder / id).exists()


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_an_aborted_migration_leaves_the_disks(pair: Shared, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    id = pair.make()

    def fails(*_args: Any) -> Any:
        raise HypervisorError("the target cannot")

    with monkeypatch.context() as patch:
        patch.setitem(target.OPS, "ready", fails)
        with pytest.raises(HypervisorError):
            pair.migrate(type=kind)
    for migration in pair.two.side().client.list("migration"):
        pair.two.side().client.delete("migration", migration["id"])
    assert pair.one.runs(id) and PATTERN in pair.disk(id) and pair.owner(id) == "kvm1"


@pytest.mark.parametrize("kind", ["live", "cold"])
@pytest.mark.parametrize("side", ["source", "target"])
def test_an_agent_dies_in_a_migration(pair: Shared, kind: str, side: str) -> None:
    """At each document that it writes; then both start again, and somebody repeats the migration. There and back."""
    id, (here, there) = pair.make(), (pair.one, pair.two)
    for number in range(1, 60):
        dead = here if side == "source" else there
        died = killed(dead.agent.host.documents, "write", number, kind, here.side(), there.side())
        assert pair.one.runs(id) + pair.two.runs(id) <= 1 and PATTERN in pair.disk(id)
        if died:
            pair.both(Kvm.restart)
        assert pair.one.runs(id) + pair.two.runs(id) <= 1 and PATTERN in pair.disk(id)
        for _step in Migrate(here.side(), there.side(), id, {"type": kind}).steps():
            pass
        assert there.runs(id) and not here.knows(id), number
        assert PATTERN in pair.disk(id) and pair.owner(id) == there.name, number
        if not died:
            return
        here, there = there, here
    raise AssertionError("it never got through")


def test_hosts_that_do_not_share_copy_as_ever() -> None:
    with shared_pair({"kvm2": "own"}) as pair:
        id = pair.make()
        assert pair.migrate(type="cold") == WAY
        place = pair.root / "own" / id
        assert PATTERN in (place / "disk").read_bytes()
        assert json.loads((place / disk_owner.FILE).read_text())["host"] == "kvm2"
        assert not (pair.root / "kvm1" / "servers" / id).exists()


def test_a_target_never_writes_over_the_disks_of_its_source() -> None:
    """One of two hosts that share has no setting for it."""
    with shared_pair({}) as pair:
        id, shared = pair.make(), pair.root / "kvm1" / "servers"
        pair.two.stop()
        pair.two.more = {"instances_path": shared}
        pair.two.start()
        with pytest.raises(Conflict, match="Set instances_path on both"):
            pair.migrate(type="cold")
        assert PATTERN in (shared / id / "disk").read_bytes() and pair.one.runs(id)
