# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands for guest agents through a cloud: who may, and what is answered when a host or an agent cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.control.cloud import Cloud
from tests.support.control.servers import WEB, ensure
from tests.support.modules.playbook import run_playbook

from .play import prepared

RUN = {"command": "run", "args": {"path": "/bin/true", "run_id": "r1", "wait": 20}}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1) as made:
        made.admin.image()
        ensure(made.admin, "server/web1", WEB)
        yield made


def test_administrators_reach_guests(cloud: Cloud) -> None:
    done = cloud.admin.post("/v1/server/web1/guest", RUN)
    assert done.status == 200 and (done.json["exited"], done.json["exit_code"]) == (True, 0), done
    assert done.json["request_id"].startswith("req-")
    assert cloud.admin.post("/v1/server/web1/guest", {"command": "info"}).json["version"] == "fake"
    refused = cloud.admin.post("/v1/server/web1/guest", {"command": "read_file", "args": {"path": "/etc/hostname"}})
    assert (refused.status, refused.json["error"]["code"]) == (409, "no-guest-agent")


def test_others_do_not(cloud: Cloud) -> None:
    ensure(cloud.admin, "flavor/disk", {"vcpus": 1, "ram": 64, "disk": 1})
    for user in ("ann", "mia"):
        caller = cloud.caller(user, "red", "member" if user == "ann" else "manager")
        caller.image(f"image-of-{user}")
        assert ensure(caller, f"server/{user}", {**WEB, "flavor": "disk", "image": f"image-of-{user}"}).status == 200
        refused = caller.post(f"/v1/server/{user}/guest", RUN)
        assert refused.status == 403 and "magnetar:servers:guest" in refused.json["error"]["message"]
        assert caller.post("/v1/server/web1/guest", RUN).status == 404


@pytest.mark.parametrize(("body", "field"), [
    ({"command": "reboot"}, "command"), ({"command": "run", "args": {"path": "true", "run_id": "r"}}, "path"),
    ({"command": "run"}, "path"), ({"command": "info", "args": {"x": 1}}, "x"), ([], "document")])
def test_wrong_input(cloud: Cloud, body: Any, field: str) -> None:
    refused = cloud.admin.post("/v1/server/web1/guest", body)
    assert refused.status == 400 and field in str(refused.json["error"]["details"])


@pytest.mark.slow
def test_tasks_in_a_server_of_a_cloud(cloud: Cloud, tmp_path: Path) -> None:
    """The imagined guest does nothing, so only what needs no output works."""
    prepared(tmp_path, cloud)
    variables = {"ansible_connection": "magnetar.compute.guest", "magnetar_cloud": "magnetar"}
    done = run_playbook(tmp_path, "web1", variables, {"ansible.builtin.raw": "true"},
                        OS_CLIENT_CONFIG_FILE=str(tmp_path / "clouds.yaml"))
    assert done.returncode == 0 and "ok=1 " in done.stdout, done.stdout + done.stderr


def test_servers_and_hosts_that_are_off(cloud: Cloud) -> None:
    ensure(cloud.admin, "server/web1", {"power": "off"})
    off = cloud.admin.post("/v1/server/web1/guest", RUN)
    assert off.status == 409 and "Start the server" in off.json["error"]["message"]
    cloud.kill_agent("kvm1")
    silent = cloud.admin.post("/v1/server/web1/guest", RUN)
    assert silent.status == 503, silent
