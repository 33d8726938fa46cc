# SPDX-License-Identifier: GPL-3.0-or-later
"""Migration between two agents on fake hosts: what goes, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from magnetar_agent.drivers.migration import plan_migration
from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.host.hypervisor import CutOverCallback, MigrationParams, ProgressCallback
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, MagnetarError, NoSpace, NotFound, Unreachable
from magnetar_core.flows.migrate import Migrate, abort_host_migration
from magnetar_core.plan import Step
from tests.support.agent.pair import WAY, Pair
from tests.support.agent.pki import Pki

pytestmark = pytest.mark.slow
CASES = yaml.safe_load((Path(__file__).parents[3] / "cases/plans/migration.yml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_plan(case: dict[str, Any]) -> None:
    assert [step.verb for step in plan_migration(case["want"], case["have"])] == case["steps"]


# What goes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("wish", "power", "runs"), [
    ({}, "running", True), ({"type": "live"}, "running", True), ({"type": "cold"}, "running", True),
    ({}, "off", False), ({"type": "cold"}, "off", False),
])
def test_a_server_goes(pair: Pair, wish: dict[str, str], power: str, runs: bool) -> None:
    id = pair.make(power=power)
    before = pair.one.side().find("web1")
    assert pair.migrate(**wish) == WAY
    pair.check(id, pair.two, runs)
    after = pair.two.side().find("web1")
    assert before and after
    differs = {name for name in before if before[name] != after[name]}
    assert differs in ({"host", "console_log", "updated_at"}, {"host", "console_log"})
    log = pair.two.agent.host.settings.state_dir / "servers" / id / "console.log"
    assert log.read_text() == "boot\n"
    want = pair.two.agent.host.documents.get("server", id)
    assert want is not None and want.want["user_data"] == "c2VjcmV0"
    assert pair.migrate() == []  # it is there
    answer = pair.two.side().client.ensure("server", "web1", {"metadata": {"role": "web"}})
    assert not answer["changed"]


@pytest.mark.parametrize("kind", ["auto", "live", "cold"])
def test_a_paused_server_stays_paused(pair: Pair, kind: str) -> None:
    id = pair.make()
    pair.one.side().client.ensure("server", "web1", {"power": "paused"})
    pair.migrate(type=kind)
    found = pair.two.fake.domain(id)
    assert found is not None and found.state == "paused"
    assert not pair.one.knows(id)


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_all_of_its_disks_go(pair: Pair, kind: str) -> None:
    id = pair.make(flavor={"vcpus": 1, "ram": 64, "disk": 1, "ephemeral": 3, "swap": 8}, config_drive=True,
                   block_device_mapping=[{"source_type": "blank", "volume_size": size} for size in (1, 2)])
    place = pair.one.agent.host.settings.state_dir / "servers" / id
    for name in ("disk.ephemeral", "disk.ephemeral1", "disk.swap"):
        with (place / name).open("ab") as disk:
            disk.write(name.encode() * 1000)
    names = {"disk", "disk.ephemeral", "disk.ephemeral1", "disk.swap", "config.iso"}
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    targets = {disk.target: disk.path.name for disk in pair.one.fake.domains()[id].disks}
    assert set(targets.values()) == names <= set(before)
    pair.migrate(type=kind)
    pair.check(id, pair.two)
    place = pair.two.agent.host.settings.state_dir / "servers" / id
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    assert {disk.target: disk.path.name for disk in pair.two.fake.domains()[id].disks} == targets


@pytest.mark.parametrize("power", ["running", "off"])
def test_a_rescued_server_goes_cold(pair: Pair, power: str) -> None:
    """Its image need not be at the target."""
    pair.image("system")
    id = pair.make(image="system")
    pair.one.side().client.ensure("server", "web1", {"rescue": {}, "power": power})
    if power == "running":
        refused(pair, Conflict, "rescued.*Unrescue it first, or ask for type cold")
    pair.migrate(type="cold" if power == "running" else "auto")
    found = pair.two.side().client.get("server", id)
    assert (found["status"], found["power_state"]) == ("RESCUE", power)
    assert {disk.path.name for disk in pair.two.fake.domains()[id].disks} == {"disk.rescue", "disk", "config.iso"}
    pair.two.side().client.ensure("server", "web1", {"rescue": None})
    pair.check(id, pair.two, power == "running")


def test_there_and_back(pair: Pair) -> None:
    id = pair.make()
    pair.migrate()
    back = Migrate(pair.two.side(), pair.one.side(), id)
    assert [step.verb for step in back.steps()] == WAY
    pair.check(id, pair.one)


def test_a_plan_changes_nothing(pair: Pair) -> None:
    id = pair.make()
    steps = Migrate(pair.one.side(), pair.two.side(), "web1").plan()
    assert [step.verb for step in steps] == WAY
    assert "live migration to kvm2" in steps[2].text
    pair.check(id, pair.one)
    for host in (pair.one, pair.two):
        assert not host.agent.host.documents.list("migration")


def test_what_is_done_is_kept_as_a_record(pair: Pair) -> None:
    id = pair.make()
    pair.migrate()
    for host, peer in ((pair.one, "kvm2"), (pair.two, "kvm1")):
        (record,) = host.side().client.list("migration")
        assert (record["status"], record["server"], record["peer"], record["host"]) == (
            "completed", id, peer, host.name)


def native(pair: Pair, monkeypatch: pytest.MonkeyPatch, *sides: bool) -> list[tuple[str, str] | None]:
    """Set native_tls of the two hosts; returns where what the first sends goes straight to, for each migration."""
    went: list[tuple[str, str] | None] = []
    for host, on in zip((pair.one, pair.two), sides, strict=True):
        monkeypatch.setattr(host.agent.host, "settings", replace(host.agent.host.settings, native_tls=on))
    migrate = pair.one.fake.migrate

    def noted(uuid: str, params: MigrationParams, going: ProgressCallback, gone: CutOverCallback) -> None:
        went.append(params.native)
        migrate(uuid, params, going, gone)

    monkeypatch.setattr(pair.one.fake, "migrate", noted)
    return went


@pytest.mark.parametrize(("here", "there"), [(True, True), (True, False), (False, True)])
def test_straight_from_qemu_to_qemu_where_both_say_so(
        pair: Pair, monkeypatch: pytest.MonkeyPatch, here: bool, there: bool) -> None:
    """TLS-01; the other host is checked by the name in its certificate."""
    id, went = pair.make(), native(pair, monkeypatch, here, there)
    pair.migrate()
    pair.check(id, pair.two)
    both = here and there
    assert went == [("127.0.0.1", "kvm2") if both else None]
    for host in (pair.one, pair.two):
        (record,) = host.side().client.list("migration")
        assert record["native_tls"] is both


def test_an_error_of_native_tls_says_where_to_look(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    id = pair.make()
    native(pair, monkeypatch, True, True)
    pair.one.fake.fail_next("migrate", HypervisorError("libvirt could not migrate it: certificate of nobody."))
    with pytest.raises(HypervisorError, match=r"of nobody\..*native_tls.*migrate_tls_x509_cert_dir.*'kvm2'.*ports"):
        pair.migrate()
    assert pair.one.runs(id)
    native(pair, monkeypatch, True, False)
    pair.migrate()
    pair.check(id, pair.two)


# What is refused --------------------------------------------------------------------------------------------------
def refused(pair: Pair, error: type[MagnetarError], words: str, **wish: Any) -> None:
    """Refused before anything is done, in a plan too."""
    for act in (lambda: Migrate(pair.one.side(), pair.two.side(), "web1", wish).plan(), lambda: pair.migrate(**wish)):
        with pytest.raises(error, match=words):
            act()
        for host in (pair.one, pair.two):
            assert not host.agent.host.documents.list("migration")


def test_the_same_host(pair: Pair) -> None:
    pair.make()
    with pytest.raises(Conflict, match="this very host"):
        Migrate(pair.one.side(), pair.one.side(), "web1").plan()


def test_a_server_that_is_nowhere(pair: Pair) -> None:
    with pytest.raises(NotFound, match="neither on kvm1 nor on kvm2"):
        pair.migrate("web9")


def test_no_memory(pair: Pair) -> None:
    pair.make(flavor={"vcpus": 1, "ram": 70000, "disk": 1})
    refused(pair, NoSpace, "70000 MiB of memory, and the target has 65536 MiB")


def test_no_room_for_its_disks(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.make()
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(total=2000, used=1000, free=1000))
    refused(pair, NoSpace, "disks of the server take .* Choose another host, or free some")


def on_its_way(pair: Pair, what: str) -> None:
    """A second server web2 on the first host, and web1 as far as before the step *what*."""
    pair.one.side().client.ensure("server", "web2", {
        "flavor": {"vcpus": 1, "ram": 40000, "disk": 1}, "image": None, "networks": [{"bridge": "br0"}]})
    for step in Migrate(pair.one.side(), pair.two.side(), "web1").steps():
        if step.verb == what:
            break


@pytest.mark.parametrize("at", ["claim", "move", "settle", "leave"])
def test_memory_is_kept_for_what_is_on_its_way(pair: Pair, at: str) -> None:
    pair.make(flavor={"vcpus": 1, "ram": 40000, "disk": 1})
    on_its_way(pair, at)
    with pytest.raises(NoSpace, match="40000 MiB of memory, and the target has 25536 MiB left") as raised:
        pair.migrate("web2")
    assert ("on its way there (web1)" in str(raised.value)) is (at in ("claim", "move"))
    if at == "claim":
        abort_host_migration(pair.one.side(), pair.two.side(), "web1")
        assert pair.migrate("web2") == WAY
        with pytest.raises(NoSpace):
            pair.migrate()


def test_two_that_want_the_last_room_at_once(pair: Pair) -> None:
    """Both have been planned; one is let in."""
    pair.make(flavor={"vcpus": 1, "ram": 40000, "disk": 1})
    on_its_way(pair, "prepare")
    ways = [Migrate(pair.one.side(), pair.two.side(), name).steps() for name in ("web1", "web2")]
    assert [next(way).verb for way in ways] == ["prepare", "prepare"]

    def prepared(way: Iterator[Step]) -> str:
        try:
            return next(way).verb
        except NoSpace:
            return "refused"

    with ThreadPoolExecutor() as threads:
        assert sorted(threads.map(prepared, ways)) == ["claim", "refused"]
    assert len(pair.two.agent.host.documents.list("migration")) == 1


def test_room_on_disk_is_kept_for_what_is_on_its_way(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as has not come yet."""
    pair.make()
    on_its_way(pair, "claim")
    (half,) = pair.two.agent.host.documents.list("migration")
    needs = half.want["manifest"]["bytes"]
    room = SimpleNamespace(total=10 * needs, used=0, free=needs + needs // 2)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: room)
    with pytest.raises(NoSpace, match="disks of the server take .*on its way there .web1.; abort what failed"):
        pair.migrate("web2")
    place = pair.two.agent.host.settings.state_dir / "servers" / half.want["server"]
    make_state_folder(place)
    (place / "disk").touch(0o640)
    (place / "disk").write_bytes(b"x" * needs)
    assert Migrate(pair.one.side(), pair.two.side(), "web2").plan()


@pytest.mark.parametrize(("wish", "field"), [
    ({"bandwidth": 0}, "bandwidth"), ({"max_downtime": 0}, "max_downtime"), ({"time_limit": 0}, "time_limit"),
    ({"on_time_limit": "wait"}, "on_time_limit"), ({"downtime_steps": 2}, "downtime_steps"),
    ({"downtime_steps": 5, "downtime_delay": 9}, "downtime_steps"), ({"downtime_delay": 9}, "downtime_steps"),
    ({"downtime_steps": 5, "max_downtime": 9}, "downtime_steps"), ({"type": "warm"}, "type"),
])
def test_options_that_make_no_sense(pair: Pair, wish: dict[str, Any], field: str) -> None:
    """A bandwidth of 0 is not taken for one without limit, as libvirt does."""
    pair.make()
    refused(pair, InvalidField, field, **wish)


def test_another_ca(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.make()
    settings = replace(pair.one.agent.host.settings, tls_client_ca=Pki(pair.root / "other").ca)
    monkeypatch.setattr(pair.one.agent.host.links, "settings", settings)
    refused(pair, Conflict, "kvm2 .* certificate verify failed.* certificates of one CA")


@pytest.mark.parametrize("side", ["source", "target"])
def test_an_expired_certificate(pair: Pair, monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    pair.make()
    name = "kvm1" if side == "source" else "kvm2"
    cert, key = pair.one.pki.issue(name, days=-1)
    if side == "target":  # the coordinator does not speak to it either
        pair.two.stop()
        pair.two.start()
        refused(pair, Unreachable, "certificate has expired")
    else:
        settings = replace(pair.one.agent.host.settings, tls_cert=cert, tls_key=key)
        monkeypatch.setattr(pair.one.agent.host.links, "settings", settings)
        refused(pair, Conflict, "certificates of one CA")


def test_another_cpu(pair: Pair) -> None:
    pair.make()
    pair.two.fake.alien_cpu = "<cpu>fake</cpu>"
    refused(pair, Conflict, "keep on the target the CPU that it sees, fake: .* avx512f. Migrate it cold")
    pair.migrate(type="cold")


def test_a_guest_with_spice(pair: Pair) -> None:
    """It goes where QEMU has SPICE, whatever the settings there say of guests that start."""
    pair.one.agent.host.settings = replace(pair.one.agent.host.settings, spice=True)
    id = pair.make()
    pair.two.fake.spice = False
    refused(pair, Conflict, "target's QEMU has no SPICE. Migrate it cold")
    pair.two.fake.spice = True
    pair.migrate()
    seen = pair.two.fake.running(id)
    assert seen is not None and seen.spice


def test_a_missing_bridge(pair: Pair) -> None:
    pair.make()
    pair.two.fake._bridges = frozenset()
    refused(pair, InvalidField, "must be a bridge of this host")


def test_a_domain_that_is_not_ours(pair: Pair) -> None:
    id = pair.make()
    pair.two.fake.defined_outside(f"<domain><name>foreign</name><uuid>{id}</uuid></domain>")
    refused(pair, Conflict, "foreign.*no server of Magnetar")


def test_a_suspended_server(pair: Pair) -> None:
    pair.make()
    pair.one.side().client.ensure("server", "web1", {"power": "suspended"})
    refused(pair, Conflict, "suspended.*Resume or stop it first")
    refused(pair, Conflict, "suspended.*Resume or stop it first", type="cold")


def test_live_needs_a_running_guest(pair: Pair) -> None:
    pair.make(power="off")
    refused(pair, Conflict, "only a running or paused one can go live", type="live")


def test_no_tls(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.make()
    monkeypatch.setattr(pair.two.agent.host.links, "name", lambda: None)
    refused(pair, Conflict, "kvm2 has no TLS for links")


def test_a_moving_server_is_left_alone(pair: Pair) -> None:
    id = pair.make()
    flow = Migrate(pair.one.side(), pair.two.side(), "web1")
    steps = flow.steps()
    assert [next(steps).verb, next(steps).verb, next(steps).verb] == WAY[:3]
    client = pair.one.side().client
    for act in (lambda: client.ensure("server", "web1", {"description": "x"}), lambda: client.delete("server", "web1"),
                lambda: client.event("server", "web1", "reboot")):
        with pytest.raises(Conflict, match="is being migrated"):
            act()
    assert [step.verb for step in abort_host_migration(pair.one.side(), pair.two.side(), "web1")] == ["abort", "abort"]
    client.ensure("server", "web1", {"description": "x"})
    pair.check(id, pair.one)
