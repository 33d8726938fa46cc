# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains of other programs on a fake host: listed, adopted, run, released, deleted, and what is refused."""

from __future__ import annotations

import threading
import uuid as uuids
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.host.networks import Lease
from magnetar_agent.migrations import source
from magnetar_agent.reconcile import reconcile
from magnetar_agent.servers import spec
from magnetar_agent.servers.adoption import disk_chains
from magnetar_core.errors import Conflict, HypervisorDown, HypervisorError, Immutable, NotFound
from magnetar_core.kinds import BY_NOUN
from magnetar_core.power import OFF, RUNNING
from tests.support.agent import foreign
from tests.unit.agent.conftest import Host

KIND = BY_NOUN["adoption"]
MAC = "52:54:00:6b:3c:01"


@pytest.fixture
def disks(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    return folder


def define(host: Host, disks: Path, name: str = "old1", state: str = RUNNING, devices: str = "", **more: Any) -> str:
    """A domain that virt-install might have made; its uuid."""
    uuid = str(uuids.uuid4())
    if not devices:
        devices = foreign.file_disk(foreign.overlay(disks, f"{name}.qcow2")) + foreign.network_nic()
    host.fake.network_outside("default")
    host.fake.defined_outside(foreign.foreign_xml(name, devices, uuid, **more), state)
    return uuid


def adopt(host: Host, key: str = "old1", dry_run: bool = False, **want: Any) -> Any:
    return host.ensure("adoption", key, want, dry_run=dry_run)


def report(host: Host, key: str = "old1") -> dict[str, Any]:
    return reconcile.show_resource(host.agent.drivers, KIND, key)


def reasons(host: Host, key: str = "old1") -> list[str]:
    return [one["reason"] for one in report(host, key)["hindrances"]]


def test_what_would_become_of_a_domain(host: Host, disks: Path) -> None:
    uuid = define(host, disks)
    host.fake.autostarts(uuid)
    (shown,) = reconcile.list_resources(host.agent.drivers, KIND, {})
    assert shown == report(host) and shown["status"] == "adoptable" and not shown["hindrances"]
    assert (shown["host"], shown["addresses"]) == (host.agent.host.name, {})
    host.fake.lease("default", Lease(MAC, "192.168.122.5", 4))
    assert report(host)["addresses"] == {MAC: ["192.168.122.5"]}
    assert shown["server"] == {
        "name": "old1", "flavor": {"vcpus": 2, "ram": 64, "disk": 1, "ephemeral": 0, "swap": 0}, "machine": "q35",
        "networks": [{"network": "default", "mac": MAC, "model": "virtio"}], "virt_type": "qemu", "power": "running",
        "resume_on_host_boot": True}
    (disk,) = shown["disks"]
    assert (disk["path"], disk["format"], disk["size"]) == (str(disks / "old1.qcow2"), "qcow2", 32 * 2**20)
    assert disk["backing"] == [{"path": str(disks / "base.qcow2"), "format": "qcow2"}]
    stays = {one["part"]: one["value"] for one in shown["stays"]}
    assert (stays["firmware"], stays["graphics"]) == ("BIOS", "vnc on a free port") and "libosinfo" in stays["metadata"]


def test_a_running_domain_is_adopted_and_released_without_a_change(host: Host, disks: Path) -> None:
    uuid = define(host, disks)
    before = host.fake.xml(uuid)
    planned = adopt(host, dry_run=True)
    assert [step.verb for step in planned.steps] == ["record", "mark_domain"] and host.fake.xml(uuid) == before
    done = adopt(host)
    assert [s.verb for s in done.steps] == ["record", "mark_domain"] and done.resource == report(host)
    assert planned.resource == done.resource and done.resource["status"] == "adopted"
    assert not adopt(host).changed and not adopt(host, uuid).changed
    assert host.fake.domain(uuid).state == RUNNING and host.fake.domain(uuid).adopted
    shown = host.show("old1")
    assert (shown["id"], shown["power_state"], shown["status"]) == (uuid, RUNNING, "ACTIVE")
    assert shown["instance_name"] == "old1" and shown["adopted"]["disks"] == [str(disks / "old1.qcow2")]
    assert host.ensure("adoption", "old1", None, dry_run=True).changed and host.ensure("adoption", "old1", None).changed
    assert host.fake.xml(uuid) == before and not host.ensure("adoption", "old1", None).changed
    assert host.fake.domain(uuid).state == RUNNING and not host.fake.domain(uuid).owned
    assert not (host.root / "state/servers" / uuid).exists()
    with pytest.raises(NotFound):
        host.show("old1")


def test_power_of_an_adopted_server(host: Host, disks: Path) -> None:
    uuid = define(host, disks)
    adopt(host)
    before = host.fake.xml(uuid)
    for power in ("off", "running", "paused", "running", "suspended", "running"):
        assert host.ensure("server", "old1", {"power": power}).changed
        assert host.show("old1")["power_state"] == power and not host.ensure("server", "old1", {"power": power}).changed
    host.event("reboot", "r1", "old1", type="hard")
    host.event("crash_dump", "r2", "old1")
    assert host.fake.domain(uuid).state == RUNNING and host.fake.xml(uuid) == before
    host.fake.guest_powers_off(uuid)
    host.settled()
    assert host.show("old1")["power_state"] == OFF and host.show("old1")["power"] == OFF
    host.ensure("server", uuid, {"power": "running", "name": "shop", "metadata": {"role": "web"}, "tags": ["a"]})
    assert host.show("shop")["metadata"] == {"role": "web"} and host.fake.xml(uuid) == before


@pytest.mark.parametrize("want", [
    {"flavor": {"vcpus": 4}}, {"networks": []}, {"image": "debian"}, {"hardware": {"watchdog": "reset"}},
    {"machine": "pc"}, {"config_drive": True}, {"rescue": {}}, {"user_data": "aGVsbG8="}], ids=str)
def test_a_field_of_the_definition_is_refused_by_name(host: Host, disks: Path, want: dict[str, Any]) -> None:
    uuid = define(host, disks)
    adopt(host)
    before = host.fake.xml(uuid), host.agent.host.documents.get("server", uuid)
    (name,) = want
    for allowed in ({}, {"on_immutable": "recreate"}, {"on_immutable": "rebuild"}, {"allow_reboot": True}):
        with pytest.raises(Conflict, match=f"{name}: not possible for server 'old1'.*release it"):
            host.ensure("server", "old1", want, **allowed)
    assert (host.fake.xml(uuid), host.agent.host.documents.get("server", uuid)) == before


def test_the_fields_that_it_has_are_no_change(host: Host, disks: Path) -> None:
    define(host, disks)
    adopt(host)
    assert not host.ensure("server", "old1", {
        "flavor": {"vcpus": 2, "ram": 64}, "image": None, "networks": [{"network": "default"}], "virt_type": "auto",
        "machine": "auto", "config_drive": False, "hardware": {}}).changed


@pytest.mark.parametrize("event", ["create_image", "rebuild", "change_password", "attach_share", "change_machine",
                                   "tell_guest", "clear_password", "detach_share"])
def test_an_event_that_is_not_supported_is_refused_by_name(host: Host, disks: Path, event: str) -> None:
    uuid = define(host, disks)
    adopt(host)
    args: dict[str, dict[str, Any]] = {
        "create_image": {"name": "i"}, "change_password": {"password": "x"}, "attach_share": {"share": "a", "tag": "a"},
        "detach_share": {"tag": "a"}, "change_machine": {"machine": "pc"},
        "tell_guest": {"revision": 1, "metadata": {}, "guest_data": None}}
    with pytest.raises(Conflict, match=f"{event}: not possible"):
        host.event(event, "r1", "old1", **args.get(event, {}))
    assert host.fake.domain(uuid).state == RUNNING


def test_volumes_nics_and_migrations_are_refused_by_name(host: Host, disks: Path) -> None:
    define(host, disks)
    adopt(host)
    host.ensure("volume", "data", {"size": 1})
    with pytest.raises(Conflict, match="volume_attachment: not possible"):
        host.ensure("volume_attachment", "old1:data", {"server": "old1", "volume": "data"})
    with pytest.raises(Conflict, match="networks: not possible"):
        host.ensure("interface_attachment", "old1:br0", {"server": "old1", "bridge": "br0"})
    with pytest.raises(Conflict, match="migration: not possible"):
        source.check_source(host.agent.host, {"server": host.show("old1")["id"]}, None)


def test_the_agent_never_defines_it_anew(host: Host, disks: Path) -> None:
    uuid = define(host, disks)
    adopt(host)
    before = host.fake.xml(uuid)
    document = host.agent.host.documents.get("server", uuid)
    with pytest.raises(Conflict, match="definition: not possible"):
        spec.domain_spec(host.agent.host, document)
    host.settings["spice"] = True  # a domain of the agent would be defined again
    host.restart()
    host.reboot()
    assert host.fake.xml(uuid) == before and host.agent.host.documents.get("server", uuid).want["power"] == OFF


def test_autostart_decides_what_happens_after_a_boot_of_the_host(host: Host, disks: Path) -> None:
    uuid = define(host, disks)
    host.fake.autostarts(uuid)
    adopt(host)
    host.reboot()
    assert host.show("old1")["power_state"] == RUNNING


@pytest.mark.parametrize("power", [RUNNING, OFF])
def test_a_deleted_server_leaves_its_disks(host: Host, disks: Path, power: str) -> None:
    nvram = disks / "vars.fd"
    nvram.write_bytes(b"variables")
    uuid = define(host, disks, state=power,
                  firmware=f"<loader readonly='yes' type='pflash'>/code.fd</loader><nvram>{nvram}</nvram>")
    adopt(host)
    planned = host.ensure("server", "old1", None, dry_run=True)
    assert str(disks / "old1.qcow2") in next(s.text for s in planned.steps if s.verb == "undefine")
    host.ensure("server", "old1", None)
    assert host.fake.domain(uuid) is None and sorted(path.name for path in disks.iterdir()) == [
        "base.qcow2", "old1.qcow2", "vars.fd"]
    assert not (host.root / "state/servers" / uuid).exists()


def test_what_hinders(host: Host, disks: Path) -> None:
    define(host, disks)
    host.fake.snapshot_outside(report(host)["id"], "before-upgrade")
    assert reasons(host) == ["internal-snapshots"]
    for dry_run in (True, False):
        with pytest.raises(Conflict, match=r"snapshots inside of its disks: before-upgrade. Delete them \(virsh"):
            adopt(host, dry_run=dry_run)
    shared = foreign.raw(disks)
    define(host, disks, "one", devices=foreign.file_disk(shared, format="raw"))
    define(host, disks, "two", devices=foreign.file_disk(shared, format="raw"))
    assert reasons(host, "one") == reasons(host, "two") == ["shared-disk"]
    define(host, disks, "three", devices=foreign.file_disk(disks / "base.qcow2"))
    assert "shared-disk" in reasons(host)  # its backing file is a disk of three
    define(host, disks, "gone", devices=foreign.file_disk(disks / "gone.qcow2"))
    define(host, disks, "odd", devices=foreign.file_disk(foreign.raw(disks, "raw.img")))
    define(host, disks, "pci", devices="<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0' "
           "bus='0x3b' slot='0' function='0'/></source></hostdev>")
    define(host, disks, "magnetar-" + str(uuids.uuid4()), devices=" ")
    uuid = define(host, disks, "passing", devices=" ")
    host.fake.undefined_while_it_runs(uuid)
    found = {one["name"]: [hindrance["reason"] for hindrance in one["hindrances"]]
             for one in reconcile.list_resources(host.agent.drivers, KIND, {"status": ["hindered"]})}
    assert found["gone"] == ["missing-disk"] and found["odd"] == ["unreadable-disk"]
    assert found["pci"] == ["unsupported-device"] and found["passing"] == ["transient"]
    assert [reasons for name, reasons in found.items() if name.startswith("magnetar-")] == [["name"]]


def test_names_and_macs_of_ours_hinder(host: Host, disks: Path) -> None:
    host.server("old1", networks=[{"bridge": "br0", "mac": MAC}])
    define(host, disks)
    assert reasons(host, host.fake.domains() and "old1") == ["name", "mac"]
    host.ensure("server", "old1", None)
    host.server("old1")
    assert adopt(host, server_name="shop").changed and host.show("shop")["instance_name"] == "old1"
    with pytest.raises(Immutable, match="server_name"):
        adopt(host, server_name="other")
    with pytest.raises(Conflict, match="was made by the agent"):
        host.ensure("adoption", host.show("old1")["id"], None)


def test_a_domain_that_vanishes_or_is_renamed_meanwhile(host: Host, disks: Path) -> None:
    uuid = define(host, disks)
    host.fake.fail_next("mark", Conflict("The libvirt domain is gone."))
    with pytest.raises(Conflict, match="gone"):
        adopt(host)
    assert not host.agent.host.documents.list("server") and not (host.root / "state/servers" / uuid).exists()
    adopt(host)
    host.fake.rename_outside(uuid, "new1")
    assert host.show("old1")["instance_name"] == "new1" and report(host, "new1")["status"] == "adopted"
    assert not adopt(host, "new1").changed
    host.fake.undefined_outside(uuid)
    host.settled()
    assert report(host, "old1")["power_state"] == "missing" and host.show("old1")["power_state"] == "missing"
    with pytest.raises(Conflict, match="is gone: another program undefined it"):
        host.ensure("server", "old1", {"power": "running"})
    host.ensure("server", "old1", None)
    assert (disks / "old1.qcow2").exists()


def test_a_definition_without_the_mark_is_marked_again(host: Host, disks: Path) -> None:
    uuid = define(host, disks)
    before = host.fake.xml(uuid)
    adopt(host)
    host.fake.defined_outside(before, RUNNING)  # as `virsh define` of an older file
    assert [s.verb for s in host.ensure("server", "old1", {}).steps] == ["mark_domain"]
    assert host.fake.domain(uuid).adopted
    host.fake.defined_outside(before, RUNNING)
    host.ensure("server", "old1", None)  # the domain is another program's again: it stays
    assert host.fake.domain(uuid).state == RUNNING


def test_a_reboot_never_makes_a_domain_vanish(host: Host, disks: Path) -> None:
    uuid = define(host, disks)
    adopt(host)
    host.fake.undefined_while_it_runs(uuid)
    for power in ("off", "suspended"):
        with pytest.raises(Conflict, match="would vanish when it stops"):
            host.ensure("server", "old1", {"power": power})
    for kind in ("hard", "soft"):
        with pytest.raises(Conflict, match="would vanish when it stops"):
            host.event("reboot", kind, "old1", type=kind)
    assert host.fake.domain(uuid).state == RUNNING
    assert "unfinished" not in host.agent.host.documents.get("server", uuid).state
    host.ensure("server", "old1", {"power": "paused"})


def test_a_late_mark_starts_and_stops_no_guest(host: Host, disks: Path) -> None:
    uuid = define(host, disks)
    host.fake.fail_next("mark", HypervisorDown())
    with pytest.raises(HypervisorDown):
        adopt(host)
    host.fake.guest_powers_off(uuid)
    host.restart()
    assert host.fake.domain(uuid).adopted and host.fake.domain(uuid).state == OFF == host.show("old1")["power"]
    host.fake.defined_outside(foreign.foreign_xml("old1", "", uuid), RUNNING)
    host.ensure("server", "old1", {"tags": ["a"]})
    assert host.fake.domain(uuid).state == RUNNING == host.show("old1")["power"]
    host.fake.defined_outside(foreign.foreign_xml("old1", "", uuid), RUNNING)
    host.ensure("server", "old1", {"power": "off"})
    assert host.fake.domain(uuid).state == OFF and not host.ensure("server", "old1", {"power": "off"}).changed


def test_killed_between_document_and_mark(host: Host, disks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = define(host, disks)
    host.fake.fail_next("mark", HypervisorDown())
    with pytest.raises(HypervisorDown):
        adopt(host)
    assert host.agent.host.documents.get("server", uuid).state["unfinished"]
    assert [step.verb for step in adopt(host, dry_run=True).steps] == ["record", "mark_domain"]
    host.restart()
    assert host.fake.domain(uuid).adopted and report(host)["status"] == "adopted"
    assert "unfinished" not in host.agent.host.documents.get("server", uuid).state
    host.fake.fail_next("unmark", HypervisorDown())
    with pytest.raises(HypervisorDown):
        host.ensure("adoption", "old1", None)
    host.restart()
    assert not host.fake.domain(uuid).owned and host.fake.domain(uuid).state == RUNNING
    assert not host.agent.host.documents.list("server") and report(host)["status"] == "adoptable"


def test_a_file_system_that_does_not_answer(host: Host, disks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define(host, disks)
    wait = threading.Event()
    monkeypatch.setattr(disk_chains, "read_disk_chain", lambda path, format: wait.wait(60))
    host.agent.drivers.by_noun["adoption"].reader = disk_chains.ChainReader(0.05)
    assert reasons(host) == ["silent-storage"]
    with pytest.raises(Conflict, match="did not answer"):
        adopt(host)
    wait.set()


def test_a_batch(host: Host, disks: Path) -> None:
    for number in range(5):
        define(host, disks, f"old{number}", devices=foreign.file_disk(foreign.overlay(disks, f"{number}.qcow2")))
    done = host.many("adoption", [(f"old{number}", {}) for number in range(5)] + [("none", {})])
    assert [one.get("changed") for one in done] == [True] * 5 + [None] and done[5]["error"]["code"] == "not-found"
    assert not any(one["changed"] for one in host.many("adoption", [(f"old{n}", {}) for n in range(5)]))
    assert all(one["changed"] for one in host.many("adoption", [(f"old{n}", None) for n in range(5)]))


def test_two_requests_at_once(host: Host, disks: Path) -> None:
    define(host, disks)
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda _number: adopt(host), range(8)))
    assert sum(one.changed for one in done) == 1 and {one.resource["status"] for one in done} == {"adopted"}
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _number: host.ensure("adoption", "old1", None), range(8)))
    assert report(host)["status"] == "adoptable" and not host.agent.host.documents.list("server")


def test_libvirt_refuses_the_mark(host: Host, disks: Path) -> None:
    uuid = define(host, disks)
    host.fake.fail_next("mark", HypervisorError("no room for metadata"))
    with pytest.raises(HypervisorError):
        adopt(host)
    assert not host.agent.host.documents.list("server") and not host.fake.domain(uuid).owned


@pytest.mark.parametrize("is_shared", [False, True])
def test_disks_of_servers_are_not_adopted_wherever_they_lie(tmp_path: Path, is_shared: bool) -> None:
    """Servers' disks lie in the state folder, or in a folder that hosts share (``instances_path``)."""
    shared = tmp_path / "shared"
    shared.mkdir()
    host = Host(tmp_path / "host", **({"instances_path": shared} if is_shared else {}))
    host.start()
    try:
        own = Path(host.agent.host.settings.servers_folder) / "a"
        own.mkdir(parents=True)
        define(host, own, "theft")
        assert reasons(host, "theft") == ["disk-of-ours"]
        images = tmp_path / "images"
        images.mkdir()
        uuid = define(host, images)
        before = host.fake.xml(uuid)
        assert adopt(host).changed and host.ensure("adoption", "old1", None).changed
        assert host.fake.xml(uuid) == before and (images / "old1.qcow2").exists() and not (own.parent / uuid).exists()
    finally:
        host.agent.close()
