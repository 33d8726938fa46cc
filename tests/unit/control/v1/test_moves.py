# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of a cloud is wanted on another host: by the protocol, and by the module migration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control.cloud import Cloud
from tests.support.control.servers import WEB, ensure, verbs

from .play import play, prepared


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=2, links=True) as made:
        made.admin.image()
        yield made


def test_to_another_host_and_back(cloud: Cloud, tmp_path: Path) -> None:
    admin = cloud.admin
    server = ensure(admin, "server/moves", WEB).json["resource"]
    here = server["host"]
    there = next(name for name in cloud.hosts if name != here)
    planned = ensure(admin, "server/moves", {"host": there}, dry_run=True)
    assert verbs(planned) == ["record", "migrate"]
    found = ensure(admin, "server/moves", {"host": there})
    assert verbs(found) == ["record", "migrate"] and found.json["resource"]["host"] == there, found
    assert not ensure(admin, "server/moves", {"host": there}).json["changed"]
    assert ensure(admin, "server/moves", {"host": "none"}).status == 409
    ensure(admin, "server/moves", {"power": "off"})
    back = {"migration": {"server": "moves", "destination": here}}
    folder = prepared(tmp_path, cloud)
    moved, again = play(folder, [back, back], {"cloud": "magnetar"}, "--diff")
    assert moved["changed"] and moved["server"]["host"] == here and moved["server"]["status"] == "SHUTOFF"
    assert not again["changed"]
    member = cloud.caller("ann", "shop")
    member.image("mine")
    ensure(admin, "flavor/one", {"vcpus": 1, "ram": 64, "disk": 1})  # without a disk it is for administrators
    made = ensure(member, "server/own", WEB | {"networks": [], "image": "mine", "flavor": "one"})
    assert made.status == 200, made
    for name in cloud.hosts:
        refused = ensure(member, "server/own", {"host": name})
        assert refused.status == 403, refused
