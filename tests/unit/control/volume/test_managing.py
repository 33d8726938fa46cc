# SPDX-License-Identifier: GPL-3.0-or-later
"""Content of hosts' pools becomes volumes (manage), and volumes leave their content there (unmanage)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.fake.disks import write_fake_disk
from magnetar_agent.host.storage import DiskSeen
from magnetar_control.api.volume.app import VolumeApplication
from magnetar_control.services.volume.tables import volumes
from magnetar_control.store.engine.database import Database
from magnetar_core.errors import HypervisorError
from magnetar_core.http import client
from tests.support.control.serving import ADMIN, ALICE, Asker, authenticate

from .two_hosts import TwoHosts, act_on_volume, attach, new_volume, two_hosts

FAST = "kvm1@magnetar#fast"


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is away is not waited for."""
    monkeypatch.setattr(client, "RETRY_FOR", 0.2)


@pytest.fixture
def site(database: Database) -> Iterator[TwoHosts]:
    with two_hosts(database) as found:
        folder = found.root / "kvm1-fast"
        folder.mkdir(exist_ok=True)
        write_fake_disk(folder / "big.raw", DiskSeen("raw", 5 * 2**29))
        write_fake_disk(folder / "small.qcow2", DiskSeen("qcow2", 2**30))
        (folder / "link.raw").symlink_to(folder / "big.raw")
        yield found


@pytest.fixture
def ask(site: TwoHosts) -> Asker:
    """Asks as an administrator, at the newest microversion."""
    return Asker(VolumeApplication(site.service, authenticate), ADMIN, {"openstack-api-version": "volume latest"})


def manage(ask: Asker, name: str, status: int = 202, path: str = "manageable_volumes", host: str = FAST,
           **fields: Any) -> Any:
    body = {"host": host, "ref": {"source-name": name}, "name": "taken", **fields}
    answer = ask("POST", f"/v3/{path}", {"volume": body}, status=status)
    return answer["volume"]["id"] if status == 202 else next(iter(answer.values()))["message"]


def content(ask: Asker, path: str = "manageable_volumes/detail", more: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask("GET", f"/v3/{path}?host={FAST.replace('#', '%23')}{more}")["manageable-volumes"]
    return found


def files(site: TwoHosts) -> list[str]:
    return sorted(path.name for path in Path(site.root / "kvm1-fast").iterdir() if path.name != "link.raw")


@pytest.mark.parametrize("path", ["manageable_volumes", "os-volume-manage"])
def test_content_becomes_a_volume_and_stays(ask: Asker, site: TwoHosts, path: str) -> None:
    assert content(ask, path) == [
        {"reference": {"source-name": "big.raw"}, "size": 3, "safe_to_manage": True},
        {"reference": {"source-name": "link.raw"}, "size": 0, "safe_to_manage": False},
        {"reference": {"source-name": "small.qcow2"}, "size": 1, "safe_to_manage": True}]
    detailed = content(ask, f"{path}/detail")[0]
    assert detailed["extra_info"] == {"format": "raw"} and detailed["reason_not_safe"] is None
    id = manage(ask, "big.raw", path=path, description="d", metadata={"a": "b"}, bootable=True)
    assert site.row(id)["status"] == "creating" and site.work() == 1
    volume = ask("GET", f"/v3/volumes/{id}")["volume"]
    assert (volume["status"], volume["size"], volume["bootable"], volume["name"]) == ("available", 3, "true", "taken")
    assert volume["os-vol-host-attr:host"] == FAST and volume["volume_type"] == "fast"
    assert site.lies(id) == ["kvm1/fast"]
    [taken] = [found for found in content(ask) if found["cinder_id"]]
    assert (taken["cinder_id"], taken["safe_to_manage"], taken["reason_not_safe"]) == (id, False, "already managed")
    act_on_volume(ask, id, "os-unmanage", {})
    assert site.row(id)["status"] == "unmanaging"
    site.work()
    assert site.row(id) is None and site.document("kvm1", id) is None
    assert files(site) == ["small.qcow2", f"volume-{id}.raw"]
    again = manage(ask, f"volume-{id}.raw")
    site.work()
    ask("DELETE", f"/v3/volumes/{again}")
    site.work()
    assert files(site) == ["small.qcow2"]


def test_pages_and_order(ask: Asker) -> None:
    def names(more: str) -> list[str]:
        return [found["reference"]["source-name"] for found in content(ask, more=more)]

    assert names("&sort=size:desc") == ["big.raw", "small.qcow2", "link.raw"]
    assert names("&limit=1&offset=1") == ["link.raw"] and names("&marker=link.raw") == ["small.qcow2"]
    for query, why in (("", "Either cluster or host"), ("?host=kvm3", "No available service"),
                       (f"?host={FAST.replace('#', '%23')}&sort=name", "sort")):
        assert why in ask("GET", f"/v3/manageable_volumes{query}", status=400)["badRequest"]["message"]
    ask.as_(ALICE)("GET", f"/v3/manageable_volumes?host={FAST.replace('#', '%23')}", status=403)


@pytest.mark.parametrize(("name", "fields", "why"), [
    ("none", {}, "has no content 'none'"), ("link.raw", {}, "cannot be taken over: existing: must be a file"),
    ("big.raw", {"host": "kvm3@magnetar#fast"}, "No available service"), ("big.raw", {"host": ""}, "host: is required"),
    ("big.raw", {"ref": {"id": "x"}}, "ref: must have source-name"), ("big.raw", {"ref": {}}, "ref: must have"),
    ("big.raw", {"volume_type": "default"}, "volumes of the type default are in the pool default"),
    ("big.raw", {"availability_zone": "mars"}, "Availability zone"),
], ids=str)
def test_refused(ask: Asker, site: TwoHosts, name: str, fields: dict[str, Any], why: str) -> None:
    assert why in manage(ask, name, 400, **fields)
    assert site.service.volumes.list(ADMIN) == ([], None) and files(site) == ["big.raw", "small.qcow2"]


def test_types_and_quotas(ask: Asker, site: TwoHosts) -> None:
    ask("POST", "/v3/types", {"volume_type": {"name": "many", "extra_specs": {
        "multiattach": "<is> True", "pool_name": "fast"}}})
    assert ", raw, and small.qcow2 is not" in manage(ask, "small.qcow2", 400, volume_type="many")
    id = manage(ask, "big.raw", volume_type="many")
    site.work()
    assert site.row(id)["multiattach"] and site.document("kvm1", id).want["multiattach"]
    manage(ask, "small.qcow2", 404, volume_type="nothing")
    site.service.set_quotas(str(ADMIN.project_id), {"volumes": 1})
    assert "Quota exceeded" in manage(ask, "small.qcow2", 413)


def test_content_that_cannot_be_taken_stays(ask: Asker, site: TwoHosts) -> None:
    id = manage(ask, "big.raw")
    (site.root / "kvm1-fast/big.raw").rename(site.root / "kvm1-fast/gone.raw")
    site.work()
    assert site.row(id)["status"] == "error_managing" and "must be a file" in site.row(id)["fault"]
    ask("DELETE", f"/v3/volumes/{id}")
    site.work()
    assert site.row(id) is None and files(site) == ["gone.raw", "small.qcow2"]
    site.hosts["kvm1"].fake.fail_next("grow_disk", HypervisorError("no"))
    id = manage(ask, "gone.raw")
    site.work()
    assert site.row(id)["status"] == "error_managing" and files(site) == ["gone.raw", "small.qcow2"]


def test_a_shared_pool_has_volumes_of_other_hosts(ask: Asker, site: TwoHosts) -> None:
    other = new_volume(ask, site)
    (site.root / "kvm1-fast/big.raw").rename(site.root / "kvm1-fast" / other)
    assert {found["cinder_id"]: found["reason_not_safe"] for found in content(ask)}[other] == "already managed"
    assert "already managed" in manage(ask, other, 400)


def test_volumes_that_are_not_unmanaged(ask: Asker, site: TwoHosts) -> None:
    id = new_volume(ask, site)
    act_on_volume(ask, id, "os-unmanage", {}, 403, ALICE)
    act_on_volume(ask, str(uuid.uuid4()), "os-unmanage", {}, 404)
    ask("POST", "/v3/snapshots", {"snapshot": {"volume_id": id}})
    site.work()
    assert "must not have snapshots" in act_on_volume(ask, id, "os-unmanage", {}, 400)
    other = new_volume(ask, site)
    attach(site, other)
    assert "must not be attached" in act_on_volume(ask, other, "os-unmanage", {}, 400)


@pytest.mark.parametrize("known", [True, False], ids=["before", "after"])
def test_the_process_dies_while_it_unmanages(ask: Asker, site: TwoHosts, known: bool) -> None:
    id = manage(ask, "big.raw")
    site.work()
    act_on_volume(ask, id, "os-unmanage", {})
    row = site.service.worker._take(volumes, id)
    if not known:
        site.service.worker.reach.client("kvm1").__enter__().ensure("volume", id, {"keep_content": True})
        site.service.worker.reach.client("kvm1").__enter__().delete("volume", id)
    site.lease_ends(id)
    site.work(site.process())
    site.service.worker._do(volumes, row)
    assert site.row(id) is None and files(site) == ["small.qcow2", f"volume-{id}.raw"]
