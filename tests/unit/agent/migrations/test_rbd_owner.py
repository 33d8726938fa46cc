# SPDX-License-Identifier: GPL-3.0-or-later
"""Two hosts whose servers' disks are images in one pool of Ceph: an evacuation takes them over as they are, and a host
that returns neither starts from them nor removes them, wherever the other one died."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.reconcile.documents import Document
from magnetar_agent.servers.disks.rbd_owner import record_all_rbd_disks, report_disk_pool
from magnetar_agent.volumes.pool_reports import report_pools
from magnetar_core.errors import Conflict, HypervisorError, MagnetarError, NotFound
from magnetar_core.http.client import Client
from tests.support.agent.ceph import dead_after, images_of, owner_of, share_ceph
from tests.support.agent.pair import WAY, Killer, Kvm, Pair, quiet
from tests.unit.core.images import iso

pytestmark = pytest.mark.slow
PATTERN = b"pattern" * 1000
IMAGE = "0d1c6a8e-0f0b-4f5a-9d3e-6a1f0c2b7e44"
SIZES = {"vcpus": 1, "ram": 64, "disk": 1, "swap": 8}


class OnCeph:
    """A pair, its pool, and servers on the first host."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.one, self.two = pair, pair.one, pair.two
        self.pool = share_ceph(pair.root, (pair.one, pair.two))

    def make(self, **want: Any) -> str:
        """A server with a pattern on its root disk and on its swap disk."""
        id = str(self.one.side().client.ensure("server", "web1", {
            "flavor": SIZES, "image": None, "networks": [{"bridge": "br0"}], **want})["resource"]["id"])
        for name in self.images(id):
            with (self.pool / name).open("r+b") as image:
                image.write(PATTERN)
        return id

    def images(self, id: str) -> dict[str, bytes]:
        return images_of(self.pool, id)

    def content(self, id: str) -> dict[str, bytes]:
        """The images by file, whatever their marks."""
        found = self.images(id)
        files = {name[46:]: content for name, content in found.items()}
        assert len(files) == len(found), found.keys()
        return files

    def marks(self, id: str) -> set[str]:
        return {name[37:45] for name in self.images(id)}

    def owner(self, id: str) -> str:
        return owner_of(self.pool, id)

    def gives(self) -> str:
        """How the first host is called as an owner."""
        report = report_disk_pool(self.one.agent.host, report_pools(self.one.agent.host))
        assert report is not None
        return str(report["owner"])

    def adopt(self, id: str, client: Client | None = None, **want: Any) -> Any:
        """Build the server on the second host, as an evacuation does."""
        return (client or self.two.side().client).ensure("server", id, {
            "name": "web1", "flavor": SIZES, "image": None, "networks": [{"bridge": "br0"}],
            "adopt_disks": self.gives(), "power": "running", **want})

    def dies(self) -> None:
        """The first host loses its power; its agent is up again afterwards."""
        for domain in self.one.fake.domains():
            self.one.fake.destroy(domain)
        self.one.restart()

    def two_dies_at(self, id: str, at: str, number: int) -> bool:
        """The second host dies while it takes over the server's disks, at a call of Ceph or at a document that it
        writes. Return whether the *number*-th one was reached."""
        if at == "ceph":
            with dead_after(self.two, number) as failed, suppress(MagnetarError):
                self.adopt(id)
            died = bool(failed)
        else:
            side, documents = self.two.side(), self.two.agent.host.documents
            killer = Killer(documents, "write", number, side)
            with suppress(MagnetarError):
                self.adopt(id, side.client)
            delattr(documents, "write")
            died = killer.end()
        self.two.die()
        return died

    def one_is_harmless(self, id: str) -> None:
        """The first host can neither start the server nor change anything in the pool."""
        before = self.images(id)
        with pytest.raises(Conflict, match=r"belong to host kvm2|another host may have taken them over"):
            self.one.side().client.ensure("server", id, {"power": "running"})
        assert not self.one.runs(id)
        self.one.side().client.delete("server", id)
        assert self.images(id) == before and not self.one.knows(id)


@pytest.fixture
def ceph(pair: Pair) -> Iterator[OnCeph]:
    yield OnCeph(pair)


def test_the_disks_are_taken_over_as_they_are(ceph: OnCeph) -> None:
    id = ceph.make(config_drive=True)
    before, mark = ceph.content(id), ceph.marks(id)
    assert before.keys() == {"disk", "disk.swap"} and ceph.owner(id) == "kvm1"
    ceph.dies()
    ceph.adopt(id, config_drive=True)
    assert ceph.two.runs(id) and ceph.content(id) == before and ceph.owner(id) == "kvm2"
    assert not ceph.marks(id) & mark and PATTERN in before["disk"] and PATTERN in before["disk.swap"]
    ceph.one_is_harmless(id)
    ceph.two.side().client.event("server", id, "keep_disks")
    assert not ceph.two.side().client.ensure("server", id, {"power": "running"})["changed"]
    ceph.two.side().client.delete("server", id)
    assert ceph.images(id) == {}


@pytest.mark.parametrize("blocks", [True, False])
def test_clients_of_the_former_owner_are_blocked(ceph: OnCeph, blocks: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that the host that should be off still has; where Ceph refuses it, or the setting is off, the evacuation
    goes on, since the host is known to be off."""
    id = ceph.make()
    root = min(ceph.images(id))
    (ceph.pool / f"{root}@clients").write_text("10.0.0.7:0/3421")
    ceph.two.more = {**ceph.two.more, "rbd_blocklist": blocks}
    ceph.two.restart()
    ceph.dies()
    if blocks:
        ceph.two.fake.fail_next("rbd_block_clients", HypervisorError("access denied."))
        ceph.adopt(id)
        assert "capability mon 'profile rbd'" in caplog.text
        ceph.two.side().client.delete("server", id)
        caplog.clear()
    ceph.adopt(id)
    assert ("10.0.0.7:0/3421 had the RBD image" in caplog.text) is blocks
    assert ceph.two.runs(id)


def test_a_server_that_boots_from_an_iso_needs_its_content(ceph: OnCeph) -> None:
    for kvm in (ceph.one, ceph.two):
        (ceph.pair.root / "iso").write_bytes(iso())
        kvm.side().client.ensure("image", IMAGE, {"id": IMAGE, "name": "iso", "disk_format": "iso",
                                                  "source": {"path": str(ceph.pair.root / "iso")}})
    id = ceph.make(image=IMAGE)
    before = ceph.content(id)
    ceph.dies()
    ceph.adopt(id, image=IMAGE)
    assert ceph.content(id) == before and ceph.two.runs(id)
    place = Path(ceph.two.agent.host.settings.servers_folder) / id
    assert (place / "base").read_bytes() == iso()


def test_the_image_is_not_needed(ceph: OnCeph) -> None:
    ceph.pair.image("raw")
    id = ceph.make(image="raw")
    image = str(ceph.one.side().client.get("image", "raw")["id"])
    before = ceph.content(id)
    ceph.dies()
    ceph.adopt(id, image=image)
    assert ceph.two.runs(id) and ceph.content(id) == before
    ceph.one.side().client.delete("server", id)
    ceph.one.side().client.delete("image", "raw")
    assert ceph.content(id) == before and any(name.name.startswith("magnetar-base-") for name in ceph.pool.iterdir())


def test_disks_of_a_failed_evacuation_go_back(ceph: OnCeph) -> None:
    id = ceph.make()
    before = ceph.images(id)
    ceph.dies()
    ceph.two.fake.fail_next("start", HypervisorError("libvirt could not start the domain: no memory."))
    with pytest.raises(HypervisorError):
        ceph.adopt(id)
    assert not ceph.two.knows(id) and ceph.images(id) == before and ceph.owner(id) == "kvm1"
    ceph.adopt(id)
    ceph.two.side().client.delete("server", id)  # its evacuation was not confirmed
    assert ceph.images(id) == before and ceph.owner(id) == "kvm1"
    ceph.one.side().client.ensure("server", id, {"power": "running"})
    assert ceph.one.runs(id)
    ceph.one.side().client.delete("server", id)
    assert ceph.images(id) == {}


@pytest.mark.parametrize("at", ["ceph", "documents"])
def test_a_host_that_dies_while_it_takes_over(ceph: OnCeph, at: str) -> None:
    """At each call of Ceph, or at each document that it writes. The host that returns may use its disks if nothing has
    changed, and otherwise does no harm; the new one goes on where it stopped."""
    for number in range(1, 60):
        id = ceph.make()
        before, mark = ceph.content(id), ceph.marks(id)
        ceph.dies()
        died = ceph.two_dies_at(id, at, number)
        assert ceph.content(id) == before, number
        if ceph.owner(id) == "kvm1" and ceph.marks(id) == mark:
            ceph.one.side().client.ensure("server", id, {"power": "running"})
            assert ceph.one.runs(id)
            ceph.dies()
        else:
            ceph.one_is_harmless(id)
        ceph.two.start()
        ceph.adopt(id)
        assert ceph.two.runs(id) and ceph.content(id) == before and ceph.owner(id) == "kvm2", number
        if ceph.one.knows(id):
            ceph.one_is_harmless(id)
        ceph.two.side().client.event("server", id, "keep_disks")
        ceph.two.side().client.delete("server", id)
        assert ceph.images(id) == {}, number
        if not died:
            assert number > 3
            return
    raise AssertionError


def test_a_host_that_has_returned_keeps_its_guest(ceph: OnCeph) -> None:
    """The agent that died before it was the owner starts when the former owner runs the guest again. It takes nothing
    over until the cloud asks again."""
    begun = 0
    for number in range(1, 60):
        id = ceph.make()
        before, mark = ceph.images(id), ceph.marks(id)
        ceph.dies()
        ceph.two_dies_at(id, "documents", number)
        if (ceph.owner(id), ceph.marks(id)) != ("kvm1", mark):
            break
        ceph.one.side().client.ensure("server", id, {"power": "running"})
        ceph.two.start()
        quiet(ceph.pair)
        assert ceph.one.runs(id) and not ceph.two.runs(id), number
        assert ceph.images(id) == before and ceph.owner(id) == "kvm1", number
        begun += ceph.two.knows(id)
        if number % 2:
            ceph.dies()
            ceph.adopt(id)
            assert ceph.two.runs(id) and ceph.owner(id) == "kvm2", number
            ceph.one_is_harmless(id)
        else:
            with suppress(NotFound):
                ceph.two.side().client.delete("server", id)
            assert ceph.images(id) == before and ceph.one.runs(id), number
            ceph.one.side().client.delete("server", id)
    assert begun


def test_a_host_that_dies_while_it_gives_the_disks_back(ceph: OnCeph) -> None:
    for number in range(1, 60):
        id = ceph.make()
        before = ceph.images(id)
        ceph.dies()
        ceph.adopt(id)
        with dead_after(ceph.two, number) as failed, suppress(MagnetarError):
            ceph.two.side().client.delete("server", id)
        died = bool(failed)
        ceph.two.die()
        if ceph.owner(id) == "kvm2":
            with pytest.raises(Conflict):
                ceph.one.side().client.ensure("server", id, {"power": "running"})
        ceph.two.start()
        with suppress(MagnetarError):
            ceph.two.side().client.delete("server", id)
        assert not ceph.two.knows(id) and ceph.images(id) == before and ceph.owner(id) == "kvm1", number
        ceph.one.side().client.ensure("server", id, {"power": "running"})
        ceph.one.side().client.delete("server", id)
        assert ceph.images(id) == {}
        if not died:
            return
    raise AssertionError


def test_a_disk_that_the_former_owner_has_made_anew_is_left_alone(ceph: OnCeph) -> None:
    id = ceph.make()
    ceph.dies()
    former = sorted(ceph.images(id))
    ceph.adopt(id)
    kept = ceph.images(id)
    (ceph.pool / former[0]).write_bytes(b"anew")
    ceph.two.side().client.delete("server", id)
    after = ceph.images(id)
    assert after[former[0]].startswith(b"anew") and set(kept.values()) <= set(after.values())


@pytest.mark.parametrize(("change", "message"), [
    ("owner", "that host another could give away, only of kvm1"), ("record", "could give away, only of nobody"),
    ("disk", "disk.swap of server 'web1' is gone"), ("marks", "under 2 marks"), ("pool", "has none")])
def test_disks_that_cannot_be_taken_over(ceph: OnCeph, change: str, message: str) -> None:
    id = ceph.make()
    notes = ceph.pool.with_name(f"{ceph.pool.name}@notes")
    root, swap = sorted(ceph.images(id))
    ceph.dies()
    if change == "record":
        (notes / root).unlink()
    elif change == "disk":
        (ceph.pool / swap).unlink()
    elif change == "marks":
        other = root.replace(root[37:45], "0123abcd")
        (ceph.pool / other).write_bytes(b"left over")
        (notes / other).write_text((notes / root).read_text())
    elif change == "pool":
        ceph.two.more = {}
        ceph.two.restart()
    before = ceph.images(id)
    with pytest.raises(Conflict, match=message):
        ceph.adopt(id, **({"adopt_disks": "another"} if change == "owner" else {}))
    assert not ceph.two.knows(id) and ceph.images(id) == before


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_a_migration_changes_the_owner(ceph: OnCeph, kind: str) -> None:
    id = ceph.make()
    before = ceph.images(id)
    assert ceph.pair.migrate(type=kind) == WAY
    assert ceph.images(id) == before and ceph.owner(id) == "kvm2"
    ceph.two.side().client.delete("server", id)
    assert ceph.images(id) == {}


def test_the_record_is_written_later(ceph: OnCeph) -> None:
    """For servers of earlier releases, and after a migration without Ceph."""
    id = ceph.make()
    ceph.two.fake.fail_next("rbd_annotate", HypervisorError("The cluster does not answer."))
    assert ceph.pair.migrate(type="live") == WAY
    ceph.two.restart()
    assert ceph.owner(id) == "kvm2"
    documents = ceph.two.agent.host.documents
    document = documents.get("server", id)
    assert document is not None
    del document.state["recorded_disks"]
    documents.write(document)
    for path in ceph.pool.with_name(f"{ceph.pool.name}@notes").iterdir():
        path.unlink()
    ceph.two.restart()
    assert ceph.owner(id) == "kvm2"


def test_the_record_of_a_server_that_migrates_is_not_written(ceph: OnCeph) -> None:
    """Its images may be the target's already."""
    id = ceph.make()
    host = ceph.one.agent.host
    document, = host.documents.list("server")
    del document.state["recorded_disks"]
    document.state["migration"] = IMAGE
    host.documents.write(document)
    for path in (notes := ceph.pool.with_name(f"{ceph.pool.name}@notes")).iterdir():
        path.unlink()
    migration = Document("migration", IMAGE, "", {"server": id, "side": "source"})
    host.documents.write(migration)
    record_all_rbd_disks(host)
    assert not list(notes.iterdir())
    host.documents.remove(migration)
    record_all_rbd_disks(host)
    assert ceph.owner(id) == "kvm1"


def test_a_rebuild_writes_the_record_again(ceph: OnCeph) -> None:
    id = ceph.make()
    ceph.one.side().client.ensure("server", id, {"user_data": "YQ=="}, on_immutable="rebuild")
    assert ceph.owner(id) == "kvm1" and PATTERN not in ceph.content(id)["disk"]
    ceph.dies()
    ceph.adopt(id)
    assert ceph.two.runs(id)


def test_what_the_host_reports(ceph: OnCeph) -> None:
    one, two = (kvm.side().host["disk_pool"] for kvm in (ceph.one, ceph.two))
    assert one["id"] == two["id"] == f"rbd:{ceph.pool.resolve()}" and one["owner"] != two["owner"]
    assert (one["pool"], one["reason"], one["others"]) == ("ceph", "", [])
    id = ceph.make()
    ceph.one.more = {**ceph.one.more, "root_format": "qcow2"}
    ceph.one.restart()
    ceph.one.side().client.ensure("server", "file", {"flavor": {**SIZES, "swap": 0}, "image": None, "networks": []})
    reported = report(ceph.one)
    assert reported["others"] == [ceph.one.side().client.get("server", "file")["id"]] and id not in reported["others"]
    (ceph.one.fake._folder / "pool-rbd0").rename(ceph.one.fake._folder / "away")  # type: ignore[operator]
    ceph.one.restart()
    reported = report(ceph.one)
    assert reported["id"] == one["id"] and "no storage pool" in reported["reason"]


def report(kvm: Kvm) -> dict[str, Any]:
    return dict(kvm.side().host["disk_pool"])


def test_the_record_has_no_secrets(ceph: OnCeph) -> None:
    id = ceph.make(user_data="c2VjcmV0", admin_pass="hidden-word")
    path: Path = next(ceph.pool.with_name(f"{ceph.pool.name}@notes").glob(f"{id}_*"))
    record = json.loads(path.read_text())
    assert record.keys() == {"owner", "host", "files", "base", "state", "want"}
    assert "c2VjcmV0" not in path.read_text() and "hidden-word" not in path.read_text()
