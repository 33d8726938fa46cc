# SPDX-License-Identifier: GPL-3.0-or-later
"""What is chosen is chosen by one at a time, and nothing refers to what is being removed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_core.errors import Conflict, InvalidField, MagnetarError
from magnetar_core.kinds import Server

if TYPE_CHECKING:
    from .conftest import Host


def together(*works: Callable[[], Any]) -> list[Any]:
    """Do *works* at the same moment; their results, or the errors that they raised."""
    start, found = threading.Barrier(len(works)), [None] * len(works)

    def one(at: int) -> None:
        start.wait()
        try:
            found[at] = works[at]()
        except MagnetarError as error:
            found[at] = error

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(works))]
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
        there = [{d.name for d in host.agent.documents.list(noun)} for noun in ("server", "network")]
        assert there in ([{"web1"}, {"lan"}], [set(), set()]), at
        host.ensure("server", "web1", None)
        host.ensure("network", "lan", None)


def test_nothing_refers_to_what_is_being_removed(host: Host) -> None:
    host.ensure("flavor", "tiny", {"vcpus": 1, "ram": 64})
    document = host.agent.documents.find("flavor", "tiny")
    assert document
    document.deleting = True
    host.agent.documents.write(document)
    with pytest.raises(InvalidField, match="flavor"):
        host.ensure("server", "web1", {"flavor": "tiny"})


def test_an_image_that_goes_while_a_server_is_made_from_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a blank disk in place of the image's."""
    source = host.root / "image.raw"
    source.write_bytes(b"x" * 4096)
    host.ensure("image", "tiny", {"source": {"path": str(source)}, "disk_format": "raw"})
    disks = host.agent.driver(Server).verbs["disks"]

    def late(task: Any) -> None:
        host.ensure("image", "tiny", None)
        disks(task)

    monkeypatch.setitem(host.agent.driver(Server).verbs, "disks", late)  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="image was removed"):
        host.server(image="tiny")
    assert host.agent.documents.list("server") == []
    assert list((host.root / "state/servers").iterdir()) == []
