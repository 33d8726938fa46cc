# SPDX-License-Identifier: GPL-3.0-or-later
"""Check mode of a server that exists: the agent of its host plans, and what it would refuse is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.control.cloud import Cloud
from tests.support.control.servers import WEB, ensure, verbs


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1) as made:
        made.admin.image()
        made.admin.image("other")
        ensure(made.admin, "flavor/larger", {"vcpus": 2, "ram": 128, "disk": 3, "ephemeral": 1, "swap": 64})
        ensure(made.admin, "flavor/thin", {"vcpus": 1, "ram": 64, "disk": 3})
        yield made


@pytest.fixture
def folder(cloud: Cloud) -> Iterator[Path]:
    """Where the host has the server ``planned``."""
    server = ensure(cloud.admin, "server/planned", WEB).json["resource"]
    yield cloud.folder / server["host"] / "state" / "servers" / server["id"]
    cloud.admin.delete("/v1/server/planned?wait=20")


@pytest.mark.parametrize(("want", "more", "steps"), [
    ({"power": "off"}, {}, ["stop"]), ({"power": "paused"}, {}, ["pause"]),
    ({"flavor": "larger"}, {"allow_reboot": True}, ["stop", "disks", "grow", "define", "drive", "start"]),
    ({"flavor": "thin"}, {"allow_reboot": True}, ["stop", "grow", "drive", "start"]),
    ({"flavor": "thin", "power": "suspended"}, {"allow_reboot": True}, ["stop", "grow", "drive", "start", "save"]),
    ({"flavor": "larger", "power": "off"}, {}, ["stop", "disks", "grow", "define", "drive"]),
    ({"flavor": "larger", "power": "paused"}, {"allow_reboot": True},
     ["stop", "disks", "grow", "define", "drive", "start", "pause"]),
    ({"rescue": {}}, {}, ["stop", "rescue", "define", "start"]),
    ({"image": "other", "power": "off"}, {"on_immutable": "rebuild"},
     ["stop", "wipe", "disks", "define", "drive", "rebuilt", "start", "stop"]),
    ({"flavor": "made by an earlier task", "power": "off"}, {}, ["stop", "define", "drive"]),
])
def test_the_prediction_is_what_is_done(cloud: Cloud, folder: Path, want: dict[str, Any], more: dict[str, Any],
                                        steps: list[str]) -> None:
    planned = ensure(cloud.admin, "server/planned", want, dry_run=True, **more)
    assert verbs(planned) == ["record", *steps], planned
    if want.get("flavor") == "made by an earlier task":
        assert "assumes" in planned.json["warnings"][0]
        return
    assert planned.json["warnings"] == []
    assert verbs(ensure(cloud.admin, "server/planned", want, **more)) == ["record", *steps]


def test_the_host_says_what_it_would_do(cloud: Cloud, folder: Path) -> None:
    (folder / "config.iso").unlink()
    planned = ensure(cloud.admin, "server/planned", {"power": "off"}, dry_run=True)
    assert verbs(planned) == ["record", "drive", "stop"], planned


def test_what_the_host_would_refuse_is_refused(cloud: Cloud, folder: Path) -> None:
    (folder / "disk").rename(folder / "away")
    refused = ensure(cloud.admin, "server/planned", {"power": "off"}, dry_run=True)
    assert refused.status == 409 and "gone from the host" in refused.json["error"]["message"], refused
    (folder / "away").rename(folder / "disk")


def test_no_disk_shrinks(cloud: Cloud, folder: Path) -> None:
    ensure(cloud.admin, "server/planned", {"flavor": "larger"}, allow_reboot=True)
    for dry in (True, False):
        refused = ensure(cloud.admin, "server/planned", {"flavor": "thin", "power": "off"}, dry_run=dry)
        assert refused.status == 409 and "ephemeral disk" in refused.json["error"]["message"], refused
    assert cloud.admin.get("/v1/server/planned").json["power"] == "running"


def test_a_host_that_does_not_answer_is_told(cloud: Cloud, folder: Path) -> None:
    name = folder.parts[-4]
    cloud.kill_agent(name)
    try:
        planned = ensure(cloud.admin, "server/planned", {"power": "off"}, dry_run=True)
        assert verbs(planned) == ["record", "stop"], planned
        assert "does not answer" in planned.json["warnings"][0] and name not in planned.json["warnings"][0]
    finally:
        cloud.start_agent(name)
        cloud.wait_agent(name)
