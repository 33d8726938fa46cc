# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers with volumes go from host to host, on fake hosts whose agents speak over real TLS links. The volumes stay
where they are: whoever has the server reaches them, and nobody else does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.volumes import exports
from magnetar_agent.volumes.attaching import attachment_id
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, MagnetarError, Unreachable
from magnetar_core.flows.attach import attach_remote_volume, detach_remote_volume
from magnetar_core.flows.migrate import Migrate, abort_host_migration
from tests.support.agent.export import behind
from tests.support.agent.migration_volumes import Trio, behind_is_closed
from tests.support.agent.pair import WAY, Killer, Kvm, Pair, killed
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def trio(pair: Pair) -> Iterator[Trio]:
    """See ``Trio``."""
    third = Kvm(pair.root, pair.one.pki, "kvm3", free_port())
    yield Trio(pair, third)
    third.stop()
    third.fake.close()


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_volumes_go_along_and_back(trio: Trio, kind: str) -> None:
    before = trio.one.side().client.get("server", "web1")["volumes_attached"]
    assert trio.go(trio.one, trio.two, type=kind) == WAY
    trio.check(trio.two)
    after = trio.two.side().client.get("server", "web1")["volumes_attached"]
    assert [(one["id"], one["device"]) for one in after] == [(one["id"], one["device"]) for one in before]
    assert trio.go(trio.two, trio.three, type=kind) == WAY
    trio.check(trio.three)
    assert trio.go(trio.three, trio.one, type=kind) == WAY
    trio.check(trio.one)
    assert trio.go(trio.one, trio.two, type=kind) == WAY
    trio.check(trio.two)
    for name in ("own", "far"):
        detach_remote_volume(trio.two.side(), None, "web1", name)
    for host in (trio.one, trio.two, trio.three):
        assert not host.agent.host.documents.list("volume_attachment") + host.agent.host.documents.list("volume_export")
        assert not list((host.agent.host.settings.socket.parent / "links").glob("*"))


def test_a_server_that_is_off(trio: Trio) -> None:
    trio.one.side().client.ensure("server", "web1", {"power": "off"})
    assert trio.go(trio.one, trio.two) == WAY
    trio.check(trio.two, runs=False)


def sized(trio: Trio) -> tuple[int, int]:
    """GiB of the volume ``own``, as shown and as it lies there."""
    shown = trio.one.side().client.get("volume", "own")
    seen = trio.one.fake.disk(trio.one.agent.host.settings.state_dir / "volumes" / trio.own)
    assert seen
    return shown["size"], seen.virtual_size // 2**30


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_a_volume_whose_server_came_home(trio: Trio, kind: str) -> None:
    """Its server reaches it through the host's own export. While that is off, it grows and is copied."""
    client = trio.one.side().client
    trio.go(trio.one, trio.two, type=kind)
    with pytest.raises(Conflict, match="'web1' of another host"):
        client.ensure("volume", "own", {"size": 2})
    trio.go(trio.two, trio.one, type=kind)
    with pytest.raises(Conflict, match="'web1' came to this host.*Stop the server"):
        client.ensure("volume", "own", {"size": 2})
    client.ensure("volume_snapshot", "awake", {"volume": "own"})
    client.ensure("server", "web1", {"power": "off"})
    assert client.ensure("volume", "own", {"size": 2})["resource"]["fault"] is None
    assert sized(trio) == (2, 2)
    trio.check(trio.one, runs=False)
    assert client.ensure("volume_snapshot", "asleep", {"volume": "own"})["resource"]["size"] == 2
    client.ensure("server", "web1", {"power": "running"})
    trio.check(trio.one)
    trio.go(trio.one, trio.two, type=kind)
    trio.check(trio.two)


@pytest.fixture
def home(trio: Trio) -> Trio:
    """The server came home, and is off."""
    trio.go(trio.one, trio.two)
    trio.go(trio.two, trio.one)
    trio.one.side().client.ensure("server", "web1", {"power": "off"})
    return trio


def test_a_server_with_an_encrypted_volume_goes_cold(pair: Pair) -> None:
    id = pair.make()
    pair.one.side().client.ensure("volume", "hidden", {"size": 1, "format": "luks"})
    attach_remote_volume(pair.one.side(), pair.one.side(), "web1", "hidden", {})
    with pytest.raises(Conflict, match="encrypted, so server 'web1' does not leave this host while it runs"):
        pair.migrate(type="live")
    pair.migrate(type="cold")
    assert pair.two.runs(id) and not pair.one.knows(id)


def test_nobody_serves_a_volume_while_it_grows(home: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks after exports lets it be."""
    grow = home.one.fake.grow_disk

    def slow(*given: Any, **more: Any) -> None:
        home.one.agent.remote_volumes.retry_pending()
        grow(*given, **more)

    monkeypatch.setattr(home.one.fake, "grow_disk", slow)
    home.one.side().client.ensure("volume", "own", {"size": 2})
    assert sized(home) == (2, 2)
    home.check(home.one, runs=False)


def test_a_volume_that_does_not_grow_is_served_again(home: Trio) -> None:
    client, trio = home.one.side().client, home
    trio.one.fake.fail_next("grow_disk", HypervisorError("no."))
    with pytest.raises(HypervisorError, match="no."):
        client.ensure("volume", "own", {"size": 2})
    trio.check(trio.one, runs=False)
    client.ensure("volume", "own", {"size": 2})
    assert sized(trio) == (2, 2)


def test_a_volume_of_a_moving_server_does_not_grow(trio: Trio) -> None:
    steps = Migrate(trio.one.side(), trio.two.side(), "web1").steps()
    assert [next(steps).verb, next(steps).verb, next(steps).verb] == WAY[:3]
    with pytest.raises(Conflict, match="is being migrated"):
        trio.one.side().client.ensure("volume", "own", {"size": 2})
    abort_host_migration(trio.one.side(), trio.two.side(), "web1")
    trio.one.side().client.ensure("volume", "own", {"size": 2})
    assert sized(trio) == (2, 2)


def test_a_running_guest_connects_to_stand_ins_first(trio: Trio) -> None:
    seen = []
    there = trio.two.fake._come  # what libvirt does when a guest begins to come

    def come(sent: dict[str, Any]) -> None:
        seen.extend(behind(trio.two, attachment_id(trio.server, one)) for one in (trio.own, trio.far))
        there(sent)

    trio.two.fake._come = come  # type: ignore[method-assign]
    trio.go(trio.one, trio.two)
    assert seen == [f"{trio.own} stand-in", f"{trio.far} disk"]
    trio.check(trio.two)


@pytest.mark.parametrize("ends", ["failure", "abort"])
def test_what_was_lent_is_taken_back(trio: Trio, ends: str) -> None:
    trio.one.fake.fail_next("migrate", HypervisorError("no."))
    with pytest.raises(HypervisorError):
        trio.go(trio.one, trio.two)
    if ends == "abort":
        abort_host_migration(trio.one.side(), trio.two.side(), "web1")
        assert not trio.two.agent.host.documents.list("volume_attachment")
    assert trio.one.runs(trio.server)
    assert not trio.one.agent.host.documents.list("volume_export")
    (export,) = trio.three.agent.host.documents.list("volume_export")
    assert export.want["peers"] == ["kvm1"]
    assert behind(trio.one, attachment_id(trio.server, trio.far)) == f"{trio.far} disk"
    trio.go(trio.one, trio.two)
    trio.check(trio.two)


def test_a_host_that_could_not_be_told_is_told_later(trio: Trio) -> None:
    def fail(*_given: Any) -> None:
        trio.three.stop()
        raise HypervisorError("no.")

    trio.one.fake.migrate = fail  # type: ignore[method-assign]
    with pytest.raises(HypervisorError):
        trio.go(trio.one, trio.two)
    trio.three.start()
    (export,) = trio.three.agent.host.documents.list("volume_export")
    assert export.want["peers"] == ["kvm1", "kvm2"]
    trio.one.agent.remote_volumes.retry_pending()
    assert trio.three.agent.host.documents.list("volume_export")[0].want["peers"] == ["kvm1"]
    del trio.one.fake.migrate  # type: ignore[method-assign]
    trio.go(trio.one, trio.two)
    trio.check(trio.two)


def test_post_copy_is_refused_for_what_must_change_hands(trio: Trio) -> None:
    for wish in ({"on_time_limit": "post_copy", "time_limit": 5}, {"post_copy": True}):
        with pytest.raises(Conflict, match="post-copy"):
            trio.go(trio.one, trio.two, **wish)
    assert not trio.one.agent.host.documents.list("migration")


def test_volumes_of_a_moving_server_stay(trio: Trio) -> None:
    trio.one.side().client.ensure("volume", "third", {"size": 1})
    steps = Migrate(trio.one.side(), trio.two.side(), "web1").steps()
    assert [next(steps).verb, next(steps).verb, next(steps).verb] == WAY[:3]
    with pytest.raises(Conflict, match="is being migrated"):
        detach_remote_volume(trio.one.side(), None, "web1", "own")
    with pytest.raises(Conflict, match="is being migrated"):
        attach_remote_volume(trio.one.side(), trio.one.side(), "web1", "third", {})
    abort_host_migration(trio.one.side(), trio.two.side(), "web1")


@pytest.fixture
def team(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the pool ``team`` of both hosts, as if it were mounted there from elsewhere; the running server
    web1 of the first host has its volumes ``own``, made by the first host, and ``far``, by the second."""
    folder = pair.root / "nfs"
    folder.mkdir()
    mounted = Path.is_mount
    monkeypatch.setattr(Path, "is_mount", lambda path: path == folder or mounted(path))
    pair.make()
    for host, name in ((pair.one, "own"), (pair.two, "far")):
        local = host.agent.host
        local.settings = replace(local.settings, pools={"team": {"type": "nfs", "path": str(folder)}})
        made = host.side().client.ensure("volume", name, {"size": 1, "pool": "team", "format": "raw"})["resource"]
        with (folder / made["id"]).open("r+b") as disk:
            disk.write(name.encode())
        assert attach_remote_volume(pair.one.side(), host.side(), "web1", name, {})["resource"]["status"] == "attached"
    return folder


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_a_shared_pool_is_used_directly(pair: Pair, team: Path, kind: str) -> None:
    """Nothing is served and nothing copied: QEMU of either host opens the files."""
    hosts, (server,) = (pair.one, pair.two), pair.one.side().client.list("server")
    homes = {pair.one.side().client.get("volume", "own")["id"]: pair.one,
             pair.two.side().client.get("volume", "far")["id"]: pair.two}

    def check(at: Kvm) -> None:
        runs = at.fake.running(server["id"])
        assert runs and {disk.serial: (disk.path, disk.remote) for disk in runs.disks if disk.serial in homes} == {
            id: (team / id, None) for id in homes}
        assert [one["status"] for one in at.side().client.list("volume_attachment")] == ["attached"] * 2
        for id, home in homes.items():
            assert home.side().client.get("volume", id)["status"] == "in-use"
            for host in hosts:
                assert host.fake.serving(attachment_id(server["id"], id)) is None
                assert behind_is_closed(host, attachment_id(server["id"], id))
        for export in pair.one.side().client.list("volume_export") + pair.two.side().client.list("volume_export"):
            assert (export["status"], export["peers"]) == ("open", [at.name])
        assert sorted(path.name for path in team.iterdir()) == sorted(homes)

    check(pair.one)
    for here, there in (hosts, hosts[::-1], hosts):
        assert [step.verb for step in Migrate(here.side(), there.side(), "web1", {"type": kind}).steps()] == WAY
        pair.check(server["id"], there)
        check(there)
    for name in ("own", "far"):
        assert detach_remote_volume(pair.two.side(), None, "web1", name)["changed"]
    for host, name in zip(hosts, ("own", "far"), strict=True):
        shown = host.side().client.get("volume", name)
        assert shown["status"] == "available" and (team / shown["id"]).open("rb").read(3) == name.encode()
        assert not host.agent.host.documents.list("volume_export") + host.agent.host.documents.list("volume_attachment")


def test_a_volume_in_a_shared_pool_grows_at_home(pair: Pair, team: Path) -> None:
    """Also when its server came back and runs."""
    client = pair.one.side().client
    pair.migrate()
    with pytest.raises(Conflict, match="of another host"):
        client.ensure("volume", "own", {"size": 2})
    for _step in Migrate(pair.two.side(), pair.one.side(), "web1").steps():
        pass
    shown = client.ensure("volume", "own", {"size": 2})["resource"]
    assert (shown["size"], shown["fault"]) == (2, None)
    assert (team / shown["id"]).stat().st_size == 2 * 2**30


def test_a_shared_pool_must_be_there(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    told = exports.export_origin
    monkeypatch.setattr(exports, "export_origin", lambda *given: {**told(*given), "pool": "nfs"})
    with pytest.raises(InvalidField, match="pool"):
        trio.go(trio.one, trio.two)
    assert not trio.one.agent.host.documents.list("migration")


@pytest.mark.parametrize("kind", ["live", "cold"])
@pytest.mark.parametrize("at", range(5))
def test_the_coordinator_dies(trio: Trio, kind: str, at: int) -> None:
    for number, _step in enumerate(Migrate(trio.one.side(), trio.two.side(), "web1", {"type": kind}).steps()):
        if number == at:
            break
    trio.go(trio.one, trio.two, type=kind)
    trio.check(trio.two)


#: Calls which change or ask for something: see ``test_migration.POINTS``.
POINTS = tuple((side, part, method) for side, part, methods in (
    ("source", "documents", ("write", "remove")), ("target", "documents", ("write", "remove")),
    ("home", "documents", ("write",)), ("source", "hypervisor", ("serve", "unserve", "migrate")),
    ("target", "hypervisor", ("reconnect_disk", "resume")),
) for method in methods)


@pytest.mark.parametrize("method", ["start", "write"])
def test_an_agent_dies_while_it_gives_a_server_back(trio: Trio, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped for the way, and has not powered itself off. It dies before it starts, and after."""
    thing = trio.one.fake if method == "start" else trio.one.agent.host.documents
    sides = trio.one.side(), trio.two.side()

    def lend(*_given: Any) -> None:
        Killer(thing, method, 1 if method == "start" else 3, *sides)
        raise Unreachable("Nobody is there.")

    with monkeypatch.context() as patched, suppress(MagnetarError):
        patched.setattr("magnetar_agent.migrations.volumes.share_volumes", lend)
        for _step in Migrate(*sides, "web1", {"type": "cold"}).steps():
            pass
    delattr(thing, method)
    assert trio.one.runs(trio.server) is (method == "write")
    trio.one.agent.power_sync.follow(trio.server, "unknown")  # as at the start
    kept = trio.one.agent.host.documents.get("server", trio.server)
    assert kept and kept.want["power"] == "running"
    trio.restart()  # which may also go on with the way
    trio.go(trio.one, trio.two, type="cold")
    trio.check(trio.two)


@pytest.mark.parametrize("kind", ["live", pytest.param("cold", marks=pytest.mark.deep(
    shard="volumes, agents that die in a cold move"))])  # test_migration_faults.py has cold moves, without volumes
@pytest.mark.parametrize(("side", "part", "method"), POINTS)
def test_an_agent_dies(trio: Trio, kind: str, side: str, part: str, method: str) -> None:
    """At each call in turn; then all agents start anew, and somebody runs the flow again. There and back."""
    here, there = trio.one, trio.two
    for number in range(1, 60):
        dies = {"source": here, "target": there, "home": trio.three}[side]
        thing = getattr(dies.agent.host, part)
        died = killed(thing, method, number, kind, here.side(), there.side())
        assert trio.one.runs(trio.server) + trio.two.runs(trio.server) <= 1
        if died:
            trio.restart()
        assert trio.one.runs(trio.server) + trio.two.runs(trio.server) <= 1
        trio.go(here, there, type=kind)
        eventually(partial(trio.rests, there))
        trio.check(there)
        if not died:
            return
        here, there = there, here
    raise AssertionError("it never got through")
