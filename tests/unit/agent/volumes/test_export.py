# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes of one host in servers of another, on fake hosts whose agents speak over real TLS links."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_agent.volumes import exports
from magnetar_agent.volumes.attaching import attachment_id
from magnetar_core.errors import Conflict, InvalidField, Unreachable
from magnetar_core.flows.attach import attach_remote_volume, detach_remote_volume
from magnetar_core.http import client
from tests.support.agent.export import behind
from tests.support.agent.pair import Kvm, Pair

GIB = 2**30
WANT = {"flavor": {"vcpus": 1, "ram": 64, "disk": 1}, "image": None}


@pytest.fixture
def place(pair: Pair) -> Pair:
    """A running server web1 on the first host, and a volume data on the second."""
    pair.make()
    pair.two.side().client.ensure("volume", "data", {"size": 1})
    return pair


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is away is not waited for."""
    monkeypatch.setattr(client, "RETRY_FOR", 0.2)


def give(place: Pair, server: str = "web1", volume: str = "data", **want: Any) -> dict[str, Any]:
    waiting = {name: want.pop(name) for name in ("dry_run",) if name in want}
    return attach_remote_volume(place.one.side(), place.two.side(), server, volume, want, **waiting)


def volume(host: Kvm, name: str = "data") -> dict[str, Any]:
    return host.side().client.get("volume", name)


def clean(place: Pair) -> None:
    """Nothing is left of any attachment."""
    for host in (place.one, place.two):
        assert not host.agent.host.documents.list("volume_attachment") + host.agent.host.documents.list("volume_export")
        assert not list((host.agent.host.settings.socket.parent / "links").glob("*"))
    assert volume(place.two)["status"] == "available"


def test_attach_and_detach(place: Pair) -> None:
    predicted = give(place, dry_run=True)
    assert [s["verb"] for s in predicted["steps"]] == ["record", "open", "record", "attach"]
    clean(place)
    done = give(place)
    found, data = done["resource"], volume(place.two)
    assert [s["verb"] for s in done["steps"]] == ["record", "open", "record", "attach"] and found["device"] == "vdb"
    assert found["id"] == attachment_id(found["server"], data["id"]) and found["volume_name"] == "data"
    assert behind(place.one, found["id"]) == f"{data['id']} disk"
    disk = place.one.fake.running(found["server"]).disks[-1]  # type: ignore[union-attr]
    assert (disk.remote.protocol, disk.remote.socket) == ("nbd", exports.export_socket(
        place.one.agent.host, found["id"]))  # type: ignore[union-attr]
    assert data["status"] == "in-use" and data["attachments"] == [
        {"id": found["id"], "server": found["server"], "server_name": "web1", "device": None}]
    assert not give(place)["changed"]
    gone = place.one.side().client.delete("volume_attachment", "web1:data")
    assert gone["changed"] and [s["verb"] for s in gone["steps"]] == ["detach", "release", "forget"]
    clean(place)
    assert not detach_remote_volume(place.one.side(), place.two.side(), "web1", "data")["changed"]


def test_detach_by_both_endpoints(place: Pair) -> None:
    give(place)
    assert detach_remote_volume(place.one.side(), place.two.side(), "web1", "data", dry_run=True)["changed"]
    assert detach_remote_volume(place.one.side(), place.two.side(), "web1", "data")["changed"]
    clean(place)


def test_an_export_that_was_never_used_goes_too(place: Pair) -> None:
    place.one.fake.fail_next("attach", Conflict("no"))
    with pytest.raises(Conflict):
        give(place)
    detach_remote_volume(place.one.side(), place.two.side(), "web1", "data")
    clean(place)


def test_who_is_not_let_in(place: Pair) -> None:
    give(place)
    id = place.one.agent.host.documents.list("volume_attachment")[0].id
    place.two.side().client.ensure("volume_export", id, {"peers": ["somebody"]})
    assert behind(place.one, id) == ""


@pytest.mark.parametrize(("volume_is", "said"), [("taken there", "web2"), ("taken here", "web1"), ("gone", "volume")])
def test_refused(place: Pair, volume_is: str, said: str) -> None:
    two = place.two.side().client
    server = two.ensure("server", "web2", WANT)["resource"]["id"]
    if volume_is == "taken there":
        two.ensure("volume_attachment", f"{server}:data", {"server": server, "volume": "data"})
    elif volume_is == "taken here":
        give(place)
    with pytest.raises((Conflict, InvalidField), match=said):
        if volume_is == "taken here":
            two.ensure("volume_attachment", f"{server}:data", {"server": server, "volume": "data"})
        else:
            give(place, volume="data" if volume_is == "taken there" else "none")


def test_what_is_attached_abroad_stays_as_it_is(place: Pair) -> None:
    give(place)
    two = place.two.side().client
    for change in (lambda: two.ensure("volume", "data", {"size": 2}),
                   lambda: two.ensure("volume_snapshot", "s", {"volume": "data"}),
                   lambda: two.delete("volume", "data")):
        with pytest.raises(Conflict, match="web1|another host"):
            change()


def test_over_restarts_of_both_agents(place: Pair) -> None:
    id = give(place)["resource"]["id"]
    for host in (place.one, place.two):
        host.stop()
        if host is place.two:
            host.fake.close_exports()  # they end with the agent
        host.start()
        assert behind(place.one, id).endswith("disk")
    assert place.one.side().client.get("volume_attachment", id)["status"] == "attached"


def test_a_server_goes_while_the_volumes_host_is_away(place: Pair) -> None:
    give(place, delete_on_termination=True)
    place.two.stop()
    place.one.side().client.delete("server", "web1")
    assert [one.deleting for one in place.one.agent.host.documents.list("volume_attachment")] == [True]
    place.two.start()
    place.one.agent.remote_volumes.retry_pending()
    documents = place.two.agent.host.documents
    assert not documents.list("volume") and not documents.list("volume_export")
    assert not place.one.agent.host.documents.list("volume_attachment")


def test_detach_while_the_volumes_host_is_away(place: Pair) -> None:
    give(place)
    place.two.stop()
    with pytest.raises(Unreachable, match="cannot be told"):
        place.one.side().client.delete("volume_attachment", "web1:data")
    place.two.start()
    place.one.agent.remote_volumes.retry_pending()
    clean(place)


def test_an_export_that_goes_meanwhile_is_not_opened_again(place: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    id = give(place)["resource"]["id"]
    agent = place.two.agent
    place.two.fake.close_exports()
    monkeypatch.setattr(agent.host.locks, "held", lambda *_name: bool(place.one.side().client.delete(
        "volume_attachment", id)) and False)  # it goes between two lines of the look
    agent.remote_volumes.retry_pending()
    assert place.two.fake.serving(id) is None and not exports.export_folder(agent.host, id).exists()


def test_one_that_cannot_be_opened_holds_no_other_up(place: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    give(place)
    place.two.side().client.ensure("volume", "more", {"size": 1})
    give(place, volume="more")
    place.two.fake.close_exports()
    looked: list[str] = []

    def look(_host: object, id: str) -> None:
        looked.append(id)
        raise FileNotFoundError(id)
    monkeypatch.setattr("magnetar_agent.volumes.exports.reopen_export", look)
    place.two.agent.remote_volumes.retry_pending()
    assert len(looked) == 2


def test_a_guest_that_waits_for_its_disk_runs_on(place: Pair) -> None:
    server = give(place)["resource"]["server"]
    place.one.fake.waits_for_disk(server)
    place.two.stop()
    place.one.agent.remote_volumes.retry_pending()
    assert not place.one.runs(server)
    place.two.start()
    place.one.agent.remote_volumes.retry_pending()
    assert place.one.runs(server)


def test_multiattach(place: Pair) -> None:
    place.two.side().client.ensure("volume", "both", {"size": 1, "multiattach": True})
    server = place.two.side().client.ensure("server", "web2", WANT)
    give(place, volume="both")
    place.two.side().client.ensure("volume_attachment", f"{server['resource']['id']}:both",
                                   {"server": server["resource"]["id"], "volume": "both"})
    assert len(volume(place.two, "both")["attachments"]) == 2


def test_a_server_starts_when_its_volume_can_be_reached(place: Pair) -> None:
    """After an outage of both hosts, of which the volume's comes back later."""
    server = give(place)["resource"]["server"]
    one = place.one.side().client
    one.ensure("server", "web1", {"power": "off"})
    place.two.stop()
    with pytest.raises(Unreachable, match="cannot start without its volume 'data' of kvm2"):
        one.ensure("server", "web1", {"power": "running"})
    place.one.agent.remote_volumes.retry_pending()
    assert not place.one.runs(server)
    place.two.start()
    place.one.agent.remote_volumes.retry_pending()
    assert place.one.runs(server)
    assert one.get("server", "web1")["fault"] is None
    one.ensure("server", "web1", {"power": "off"})
    place.one.agent.remote_volumes.retry_pending()
    assert not place.one.runs(server)
