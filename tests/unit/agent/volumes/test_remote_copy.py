# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes that are copied from the agent of another host, on fake hosts whose agents speak over real TLS links."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from magnetar_agent.volumes import exports, pools
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, MagnetarError, NotFound, Unreachable
from magnetar_core.http import client
from tests.support.agent.pair import Kvm, Pair

#: In place of the uuid of a server.
MOVE = str(uuid.uuid4())


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is away is not waited for."""
    monkeypatch.setattr(client, "RETRY_FOR", 0.2)


@pytest.fixture
def place(pair: Pair) -> Pair:
    """A volume data on the second host."""
    volume = pair.two.side().client.ensure("volume", "data", {"size": 1, "format": "raw"})["resource"]
    with content(pair.two, volume["id"]).open("r+b") as stream:
        stream.write(b"kept")
    return pair


def content(host: Kvm, id: str) -> Any:
    return pools.find_pool(host.agent.host, "default").disk(id, "raw").path


def offered(place: Pair, **fields: Any) -> dict[str, Any]:
    """Let the first host copy the volume; return its ``remote_source``."""
    id = place.two.agent.host.documents.find("volume", "data").id
    want = {"server": MOVE, "volume": id, "peers": [place.one.side().link_name()], "readonly": True, "copied": True}
    export = place.two.side().client.ensure("volume_export", f"{MOVE}:{id}", want)["resource"]
    return {"export": export["id"], "peer": export["origin"]["peer"], "address": place.two.side().link_address(),
            "size": export["origin"]["size"], "bootable": True, **fields}


def copied(place: Pair, source: dict[str, Any], **want: Any) -> dict[str, Any]:
    id = place.two.agent.host.documents.find("volume", "data").id
    return place.one.side().client.ensure("volume", id, {
        "name": "data", "format": "raw", "remote_source": source, **want})["resource"]


def test_a_volume_is_copied_with_its_uuid(place: Pair) -> None:
    volume = copied(place, offered(place))
    assert (volume["size"], volume["bootable"], volume["status"], volume["host"]) == (1, True, "available", "kvm1")
    with content(place.one, volume["id"]).open("rb") as stream:
        assert stream.read(4) == b"kept"
    assert not list((place.one.agent.host.settings.socket.parent / "links").glob("*"))
    assert not place.one.side().client.ensure("volume", volume["id"], {"size": 1})["changed"]
    place.one.restart()
    assert place.one.side().client.get("volume", volume["id"])["status"] == "available"
    two = place.two.side().client
    two.delete("volume_export", f"{MOVE}:{volume['id']}")
    two.delete("volume", volume["id"])
    assert not content(place.two, volume["id"]).exists() and content(place.one, volume["id"]).exists()


def test_an_encrypted_volume_keeps_its_key(place: Pair) -> None:
    two, key = place.two.side().client, "a" * 64
    two.delete("volume", "data")
    two.ensure("volume", "data", {"size": 1, "format": "luks", "key": key})
    volume = copied(place, offered(place), format="luks", key=key)
    assert (volume["format"], volume["size"]) == ("luks", 1)


def test_it_grows_while_it_is_copied(place: Pair) -> None:
    source = offered(place)
    with pytest.raises(InvalidField, match="size: must be at least 9 GiB"):
        copied(place, {**source, "size": 9}, size=2)
    assert copied(place, source, size=3)["size"] == 3


@pytest.mark.parametrize(("wrong", "why"), [
    ({"peer": "somebody"}, "kvm2|certificate"), ({"export": str(uuid.uuid4())}, "no link"),
    ({"address": "nowhere"}, "remote_source.address: must be host:port"), ({"address": "127.0.0.1:1"}, "127.0.0.1:1"),
], ids=["peer", "export", "address", "port"])
def test_refused(place: Pair, wrong: dict[str, Any], why: str) -> None:
    source = offered(place) | wrong
    with pytest.raises(MagnetarError, match=why):
        copied(place, source)
    assert not place.one.agent.host.documents.list("volume")
    assert not list((place.one.agent.host.settings.socket.parent / "links").glob("*"))


def test_a_source_that_is_away_is_tried_again(place: Pair) -> None:
    source = offered(place)
    place.two.stop()
    with pytest.raises(Unreachable):
        copied(place, source)
    place.two.start()
    assert copied(place, source)["status"] == "available"


def test_a_copy_that_breaks_off_leaves_nothing(place: Pair) -> None:
    source = offered(place)
    place.one.fake.fail_next("copy_disk", HypervisorError("qemu-img: Input/output error"))
    with pytest.raises(HypervisorError):
        copied(place, source)
    assert not place.one.agent.host.documents.list("volume")
    assert not [path for path in content(place.one, "x").parent.glob("*") if path.is_file()]
    assert copied(place, source)["status"] == "available"


def test_only_one_server_or_copy_has_it(place: Pair) -> None:
    server = place.two.side().client.ensure("server", "web2", {"flavor": {"vcpus": 1, "ram": 64, "disk": 1},
                                                               "image": None})["resource"]["id"]
    source = offered(place)
    with pytest.raises(Conflict):
        place.two.side().client.ensure("volume_attachment", f"{server}:data", {"server": server, "volume": "data"})
    with pytest.raises(Conflict):
        place.two.side().client.delete("volume", "data")
    place.two.side().client.delete("volume_export", source["export"])
    place.two.side().client.ensure("volume_attachment", f"{server}:data", {"server": server, "volume": "data"})
    with pytest.raises(Conflict, match="web2"):
        offered(place)
    with pytest.raises(NotFound, match="no link"):
        copied(place, source)


def test_a_shared_pool_is_read_through_the_network(place: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools.FolderPool, "check_usable", lambda _self: None)
    monkeypatch.setattr(pools.FolderPool, "_usable", lambda _self: True)
    host, find_pool = place.two.agent.host, pools.find_pool

    def shared(*args: Any) -> Any:
        pool = find_pool(*args)
        pool.shared = True
        return pool

    monkeypatch.setattr(pools, "find_pool", shared)
    source = offered(place)
    assert exports.desired_export(host, host.documents.get("volume_export", source["export"])) is not None
