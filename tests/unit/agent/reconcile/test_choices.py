# SPDX-License-Identifier: GPL-3.0-or-later
"""What is chosen is chosen by one at a time, and nothing refers to what is being removed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from magnetar_agent.reconcile.documents import Document
from magnetar_agent.volumes import attaching, exports
from magnetar_core.errors import Conflict, InvalidField, MagnetarError
from magnetar_core.kinds import Flavor, Server, Volume, VolumeAttachment, VolumeExport
from tests.unit.agent.conftest import SMALL, Host

UUID = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"


def together(*works: Callable[[], Any]) -> list[Any]:
    """Do *works* at the same moment; their results, or the errors that they raised."""
    start, found = threading.Barrier(len(works)), [None] * len(works)

    def one(at: int) -> None:
        start.wait()
        try:
            found[at] = works[at]()
        except MagnetarError as error:
            found[at] = error

    threads = [threading.Thread(target=one, args=(at,), daemon=True) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_networks_made_at_once_have_bridges_of_their_own(host: Host) -> None:
    host.fake.delay = 0.01
    made = together(
        *(lambda at=at: host.ensure("network", f"n{at}", {"cidr": f"192.168.{at}.0/24"}) for at in range(6)))
    assert len({one.resource["bridge"] for one in made}) == 6


def test_networks_made_at_once_do_not_overlap(host: Host) -> None:
    host.fake.delay = 0.01
    made = together(*(lambda at=at: host.ensure("network", f"n{at}", {"cidr": "192.168.7.0/24"}) for at in range(4)))
    assert sum(isinstance(one, InvalidField) for one in made) == 3


def test_servers_made_at_once_do_not_share_a_mac(host: Host) -> None:
    host.fake.delay = 0.01
    nic = [{"bridge": "br0", "mac": "52:54:00:00:00:01"}]
    made = together(*(lambda at=at: host.server(f"s{at}", networks=nic) for at in range(4)))
    assert sum(isinstance(one, Conflict) for one in made) == 3


def test_a_network_that_goes_while_a_server_is_made_on_it(host: Host) -> None:
    """Either the server is there and the network stays, or the network is gone and the server was refused."""
    for at in range(10):
        host.ensure("network", "lan", {"cidr": "192.168.7.0/24"})
        together(lambda: host.server(networks=[{"network": "lan"}]), lambda: host.ensure("network", "lan", None))
        there = [{d.name for d in host.agent.host.documents.list(noun)} for noun in ("server", "network")]
        assert there in ([{"web1"}, {"lan"}], [set(), set()]), at
        host.ensure("server", "web1", None)
        host.ensure("network", "lan", None)


def test_nothing_refers_to_what_is_being_removed(host: Host) -> None:
    host.ensure("flavor", "tiny", {"vcpus": 1, "ram": 64})
    document = host.agent.host.documents.find("flavor", "tiny")
    assert document
    document.deleting = True
    host.agent.host.documents.write(document)
    with pytest.raises(InvalidField, match="flavor"):
        host.ensure("server", "web1", {"flavor": "tiny"})


def test_an_image_that_goes_while_a_server_is_made_from_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a blank disk in place of the image's."""
    source = host.root / "image.raw"
    source.write_bytes(b"x" * 4096)
    host.ensure("image", "tiny", {"source": {"path": str(source)}, "disk_format": "raw"})
    disks = host.agent.drivers.of(Server).verbs["disks"]

    def late(task: Any) -> None:
        host.ensure("image", "tiny", None)
        disks(task)

    monkeypatch.setitem(host.agent.drivers.of(Server).verbs, "disks", late)  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="image was removed"):
        host.server(image="tiny")
    assert host.agent.host.documents.list("server") == []
    assert list((host.root / "state/servers").iterdir()) == []


# Nobody waits for ever ---------------------------------------------------------------------------------------------
LIMIT = 120.0


def ended(*works: Callable[[], Any]) -> list[Any]:
    """As ``together``, and none of them hangs."""
    found: list[Any] = []
    threading.Thread(target=lambda: found.append(together(*works)), daemon=True, name="together").start()
    end = time.monotonic() + LIMIT
    while not found and time.monotonic() < end:
        time.sleep(0.01)
    assert found, "they wait for each other"
    return list(found[0])


def test_one_by_uuid_and_one_by_name_at_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds its first lock before either goes on."""
    hold, met, first = host.agent.host.locks.hold, threading.Barrier(2), threading.local()

    @contextmanager
    def meeting(kind: str, name: str) -> Iterator[None]:
        with hold(kind, name):
            # The first of each that the other may want too: for the one by uuid, the lock after that of its key.
            if kind == "volume" and name != f"new {UUID}" and not getattr(first, "met", False):
                first.met = True
                with suppress(threading.BrokenBarrierError):
                    met.wait(1)
            yield

    monkeypatch.setattr(host.agent.host.locks, "hold", meeting)
    made = ended(lambda: host.ensure("volume", UUID, {"name": "data", "size": 1}),
                 lambda: host.ensure("volume", "data", {"id": UUID, "size": 1}))
    assert sorted(one.changed for one in made) == [False, True]
    assert [one.id for one in host.agent.host.documents.list("volume")] == [UUID]


def test_a_name_that_is_its_own_uuid(host: Host) -> None:
    assert ended(lambda: host.ensure("volume", UUID.upper(), {"name": UUID, "size": 1}))[0].changed


def test_two_do_not_get_one_name(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is renamed to what another is made as."""
    host.ensure("flavor", UUID, {"name": "old", "vcpus": 1, "ram": 64})
    driver, met, seen = host.agent.drivers.of(Flavor), threading.Barrier(2), threading.local()
    complete = driver.complete

    def meeting(*given: Any) -> Any:
        if not getattr(seen, "met", False):  # its name has been looked at
            seen.met = True
            with suppress(threading.BrokenBarrierError):
                met.wait(1)
        return complete(*given)

    monkeypatch.setattr(driver, "complete", meeting)
    made = ended(lambda: host.ensure("flavor", UUID, {"name": "new"}),
                 lambda: host.ensure("flavor", "new", {"vcpus": 1, "ram": 64}))
    assert sum(isinstance(one, Conflict) for one in made) == 1
    assert [one.name for one in host.agent.host.documents.list("flavor")].count("new") == 1


def test_a_server_anew_whose_volume_is_served_by_its_own_host(host: Host) -> None:
    """It came home to its volume by a migration: giving the volume back is another change on this very host."""
    host.ensure("volume", "data", {"size": 1})
    host.server(flavor={**SMALL, "disk": 1}, power="off")
    documents = host.agent.host.documents
    server, volume = documents.find("server", "web1"), documents.find("volume", "data")
    assert server and volume
    id, name = attaching.attachment_id(server.id, volume.id), f"{server.id}:{volume.id}"
    both = {"name": name, "server": server.id, "volume": volume.id, "readonly": False}
    documents.write(Document("volume_export", id, name, {
        **VolumeExport.defaults(), **both, "peers": ["me"], "server_name": "web1"}))
    documents.write(Document("volume_attachment", id, name, {
        **VolumeAttachment.defaults(), **both, "device": "vdb", "bus": "virtio", "tag": None, "boot_index": None,
        "delete_on_termination": False,
        "origin": exports.export_origin(host.agent.host, volume) | {"peer": "me", "address": "127.0.0.1:1"}}))
    made = ended(lambda: host.ensure("server", "web1", {"root_format": "raw"}, on_immutable="recreate"))
    assert made[0].changed
    assert not documents.list("volume_export") + documents.list("volume_attachment")
    assert host.show()["root_format"] == "raw"


def test_others_are_made_while_an_old_one_goes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes may take long: a volume is zeroed, another host does not answer."""
    host.ensure("volume", "data", {"size": 1})
    driver = host.agent.drivers.of(Volume)
    drop, goes, on = driver.verbs["drop"], threading.Event(), threading.Event()

    def slow(task: Any) -> None:
        goes.set()
        on.wait(LIMIT)
        drop(task)

    monkeypatch.setitem(driver.verbs, "drop", slow)  # type: ignore[arg-type]

    def meanwhile() -> Any:
        assert goes.wait(LIMIT)
        try:
            return host.ensure("flavor", "other", {"vcpus": 1, "ram": 64}), on.is_set()
        finally:
            on.set()

    timer = threading.Timer(LIMIT / 3, on.set)
    timer.start()
    anew, (made, late) = ended(lambda: host.ensure("volume", "data", {"format": "raw"}, on_immutable="recreate"),
                               meanwhile)
    timer.cancel()
    assert anew.changed and made.changed and not late


def test_what_was_taken_while_the_old_one_went(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the new one is to be is looked at again: nobody has the same MAC."""
    mac = "52:54:00:00:00:01"
    host.server(networks=[{"bridge": "br0"}])
    driver = host.agent.drivers.of(Server)
    erase = driver.verbs["erase"]

    def taken(task: Any) -> None:
        erase(task)
        host.server("web2", networks=[{"bridge": "br0", "mac": mac}])

    want = {"availability_zone": "b", "networks": [{"bridge": "br0", "mac": mac}]}
    with monkeypatch.context() as patch:
        patch.setitem(driver.verbs, "erase", taken)  # type: ignore[arg-type]
        with pytest.raises(Conflict, match="belongs to server 'web2'"):
            host.ensure("server", "web1", want, on_immutable="recreate")
    assert "web2" in host.show()["fault"]["message"]
    host.ensure("server", "web2", None)
    host.restart()
    assert (host.show()["networks"][0]["mac"], host.show()["availability_zone"]) == (mac, "b")


def test_what_was_removed_before_a_crash_is_made_anew_once(host: Host) -> None:
    """A crash after the last step of the removal: nothing is left of it that would create it again again and again."""
    host.ensure("network", "lan", {"cidr": "192.168.7.0/24"})
    document = host.agent.host.documents.find("network", "lan")
    assert document
    host.fake.remove_network("lan")
    document.state.update(replacement={**document.want, "domain": "lab.example"}, unfinished=True)
    host.agent.host.documents.write(document)
    host.restart()
    assert host.agent.host.documents.get("network", document.id).state == {}  # type: ignore[union-attr]
    assert "lan" in host.fake.networks() and not host.ensure("network", "lan", {"domain": "lab.example"}).changed
