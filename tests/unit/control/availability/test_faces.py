# SPDX-License-Identifier: GPL-3.0-or-later
"""Incidents as administrators see them: ``magnetar incidents``, ``GET /v1/incident``, the metric; and what the API
refuses. Slow."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from magnetar_control import cli
from tests.unit.control.moves.inside import Inside

from .dying_hosts import DyingHosts

pytestmark = pytest.mark.slow
Command = Callable[..., tuple[int, str, str]]
UNKNOWN = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"


@pytest.fixture
def run(cloud: Inside, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``magnetar incidents`` on the cloud's settings; returns status, output and errors."""
    path = cloud.folder / "command.yml"
    path.write_text(json.dumps({**cloud.settings, "hosts": cloud.hosts, "state_dir": str(cloud.folder / "control")}))

    def command(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main(["incidents", *words, "--config", str(path)])
        return status, *capsys.readouterr()
    return command


def test_commands(admin: DyingHosts, run: Command) -> None:
    assert run("list")[:2] == (0, "")
    web, paused = admin.boot("kvm1", "web1"), admin.boot("kvm1", "paused", metadata={"ha_priority": "0"})
    assert admin.call.act(paused, "pause").status == 202
    assert admin.call.settled(paused)["status"] == "PAUSED"
    admin.dies("kvm1")
    found = admin.until("done", "kvm1")
    status, said, _errors = run("list")
    assert (status, said) == (0, f"{found['id']}\t{found['noticed_at']}\tkvm1\tdone\t{found['message']}\n")
    assert run("list", "--open")[:2] == (0, "")
    status, said, _errors = run("show", found["id"])
    lines = said.splitlines()
    assert status == 1 and len(lines) == 3
    assert lines[1].startswith(f"  web1\t{web}\tbest-effort\t5\tmoved\tto kvm")
    assert lines[2].startswith(f"  paused\t{paused}\tbest-effort\t0\tfailed\tIt is in vm_state paused")
    assert json.loads(run("show", found["id"], "--json")[1]) == found
    assert json.loads(run("list", "--json")[1]) == [found]
    status, said, errors = run("close", found["id"])
    assert (status, said) == (1, "") and "is not open: it is done" in errors
    for words in (("show", UNKNOWN), ("close", UNKNOWN), ("show", "kvm1")):
        status, said, errors = run(*words)
        assert (status, said) == (1, "") and f"There is no incident {words[1]!r}" in errors


def test_an_open_incident_is_closed(admin: DyingHosts, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar_control.conductor.availability.witnesses.is_host_reached", lambda *_address: True)
    admin.dies("kvm1")
    found = admin.until("noticed", "kvm1")
    assert found["id"] in run("list", "--open")[1]
    status, said, _errors = run("close", found["id"])
    assert status == 0 and "\tclosed\tClosed by an operator while it was noticed." in said
    assert admin.opened() == []


def test_the_api(admin: DyingHosts, cloud: Inside) -> None:
    admin.dies("kvm1")
    found = admin.until("done", "kvm1")
    for key in (found["id"], found["id"].upper(), "kvm1"):
        assert admin.call.get(f"/v1/incident/{key}").json == found
    assert admin.call.get("/v1/incident?state=done&host=kvm1").json["incidents"] == [found]
    assert admin.call.get("/v1/incident?state=failed").json["incidents"] == []
    for key in (UNKNOWN, "kvm9"):
        assert admin.call.get(f"/v1/incident/{key}").status == 404
    member = cloud.caller("ann", "blue", "member")
    assert member.get("/v1/incident").status == member.get(f"/v1/incident/{found['id']}").status == 403


def test_the_metric(admin: DyingHosts, cloud: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar_control.health.FRESH", 0.0)
    monkeypatch.setattr("magnetar_control.conductor.availability.witnesses.is_host_reached", lambda *_address: True)
    admin.dies("kvm1")
    admin.until("noticed", "kvm1")
    text = admin.call.get("/metrics").content.decode()
    assert 'magnetar_incidents{cell="cell1",state="noticed"} 1.0' in text
    assert 'magnetar_incidents{cell="cell1",state="failed"} 0.0' in text


def test_a_typo_is_refused_and_changes_nothing(admin: DyingHosts) -> None:
    id = admin.boot("kvm1", "web1", metadata={"ha": "never"})
    image, typo = admin.call.get(f"/v2.1/servers/{id}").json["server"]["image"]["id"], {"metadata": {"ha": "allways"}}
    server = {"name": "x", "flavorRef": "small", "imageRef": image, "networks": "none", **typo}
    for method, path, body in (
            ("POST", f"/servers/{id}/metadata", typo), ("PUT", f"/servers/{id}/metadata", typo),
            ("PUT", f"/servers/{id}/metadata/ha", {"meta": {"ha": "allways"}}),
            ("POST", f"/servers/{id}/action", {"rebuild": {"imageRef": image, **typo}}),
            ("POST", "/servers", {"server": server})):
        reply = admin.call.call(method, f"/v2.1{path}", body, "2.94")
        assert reply.status == 400, (path, reply)
        assert "metadata.ha: must be one of always, best-effort, never (got 'allways')" in reply.json["badRequest"][
            "message"], (path, reply)
    reply = admin.call.post("/v2.1/flavors/small/os-extra_specs", {"extra_specs": {"magnetar:ha": "allways"}}, "2.86")
    assert reply.status == 400 and "magnetar:ha" in reply.json["badRequest"]["message"], reply
    assert admin.call.get(f"/v2.1/servers/{id}").json["server"]["metadata"] == {"ha": "never"}
