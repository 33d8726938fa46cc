# SPDX-License-Identifier: GPL-3.0-or-later
"""Room to fail as operators ask for it: by the command and over /v1."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from magnetar_control import cli
from tests.support.control.cloud import Cloud

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=2) as made:
        yield made


@pytest.fixture
def run(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``magnetar host room`` on the cloud's settings; returns status, output and errors."""
    path = cloud.folder / "command.yml"
    path.write_text(json.dumps({**cloud.settings, "hosts": cloud.hosts, "state_dir": str(cloud.folder / "control")}))

    def command(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main(["host", "room", *words, "--config", str(path)])
        return status, *capsys.readouterr()
    return command


def test_the_command_says_whether_a_host_may_fail(cloud: Cloud, run: Command) -> None:
    server = cloud.admin.boot("web1")
    assert run() == (0, "".join(f"{scope}\tN+1 holds\tIf any one of 2 hosts fails, all of its servers have a place on "
                                "other hosts.\n" for scope in ("cloud", "zone nova")), "")
    other = "kvm2" if server["OS-EXT-SRV-ATTR:host"] == "kvm1" else "kvm1"
    service = f"/v1/compute_service/{other}?wait=20"
    assert cloud.admin.put(service, {"status": "disabled"}).status == 200
    try:
        status, output, errors = run("--zone", "nova")
        assert status == 1 and output.startswith("zone nova\tN+1 does not hold\t1 of 2 hosts may not fail.")
        assert "1 of 1 servers have no place on another host (web1). Of 2 hosts the filters refused: " in errors
        status, output, _errors = run("--json")
        assert status == 1 and json.loads(output) == cloud.admin.get("/v1/capacity").json["capacities"]
    finally:
        assert cloud.admin.put(service, {"status": "enabled"}).status == 200


def test_a_wrong_zone_is_named(run: Command) -> None:
    status, output, errors = run("--zone", "hall9")
    assert (status, output) == (1, "")
    assert errors.startswith("magnetar: zone: there is no availability zone of this name in the cloud; there are: nova")
    assert "hall9" in errors
