# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar balance`` on the settings of a cloud."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from magnetar_control import cli
from magnetar_control.compute.balance import balance_moves
from magnetar_control.compute.caller import Caller
from magnetar_core.errors import HypervisorError
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import check, flavors, remove, row
from tests.unit.control.moves.inside import Inside

from .balancing import Balancing

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    with Inside(hosts=3, host_down_after=600.0) as made:
        flavors(made)
        yield made


@pytest.fixture
def admin(cloud: Inside) -> Iterator[Balancing]:
    """All hosts are enabled and without servers afterwards."""
    made = Balancing(cloud)
    yield made
    servers = cloud.admin.get("/v2.1/servers?all_tenants=1").json["servers"]
    for server in servers:
        cloud.admin.act(server["id"], "unlock")
    for host in cloud.hosts:
        made.enabled(host)
    remove(cloud, [server["id"] for server in servers])


@pytest.fixture
def run(cloud: Inside, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``magnetar balance`` on the cloud's settings; returns status, output and errors."""
    path = cloud.folder / "command.yml"
    path.write_text(json.dumps({**cloud.settings, "hosts": cloud.hosts, "state_dir": str(cloud.folder / "control")}))

    def command(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main(["balance", *words, "--config", str(path)])
        return status, *capsys.readouterr()
    return command


def test_hosts_are_evened_out(cloud: Inside, admin: Balancing, run: Command) -> None:
    ids = [admin.loaded("kvm1", 3.0, name=f"web{at}") for at in range(3)]
    status, output, errors = run("--dry-run")
    assert status == 0 and "kvm1  90%  3%" in output and "\ncell1: 2 moves" in output, (output, errors)
    assert "kvm1 90% -> 60%, kvm2 0% -> 30%" in output
    assert [row(cloud, id).host for id in ids] == ["kvm1"] * 3
    status, output, errors = run("--limit", "1")
    assert status == 0 and output.endswith("\tkvm1 to kvm2\tmoved\n"), (output, errors)
    assert sorted(row(cloud, id).host for id in ids) == ["kvm1", "kvm1", "kvm2"]
    assert run()[0] == 0
    assert sorted(row(cloud, id).host for id in ids) == ["kvm1", "kvm2", "kvm3"]
    for id in ids:
        assert check(cloud, id)["power_state"] == "running"
    assert "cell1: 0 moves" in run()[1]


def test_a_host_is_freed(cloud: Inside, admin: Balancing, run: Command) -> None:
    moves, locked, off = (admin.loaded("kvm2", 1.0, name=name) for name in ("moves", "locked", "off"))
    assert cloud.admin.act(locked, "lock").status == 202
    admin.act(off, "os-stop")
    status, _output, errors = run("--host", "kvm2")
    assert status == 0 and row(cloud, moves).host != "kvm2"
    assert "magnetar: locked: It is locked.\n" in errors and "magnetar: off: It is not running." in errors
    assert {row(cloud, locked).host, row(cloud, off).host} == {"kvm2"}
    service = cloud.admin.get("/v2.1/os-services?host=kvm2&binary=nova-compute").json["services"][0]
    assert service["status"] == "enabled"


def test_a_server_is_not_moved_twice_within_an_hour(cloud: Inside, admin: Balancing, run: Command) -> None:
    first, second = admin.loaded("kvm1", 5.0, name="first"), admin.loaded("kvm1", 4.0, name="second")
    assert "cell1: 1 moves" in run()[1]
    [moved] = [id for id in (first, second) if row(cloud, id).host != "kvm1"]
    new_host = row(cloud, moved).host
    admin.cpus[moved] = 9.0
    third = admin.loaded(new_host, 0.1, name="third")
    status, output, errors = run()
    assert (status, row(cloud, moved).host) == (0, new_host) and "cell1: 0 moves" in output
    assert "within the last hour" in errors
    admin.cpus[moved] = 5.0
    admin.cpus[third] = 4.0
    admin.rested()
    assert "cell1: 1 moves" in run("--dry-run")[1]


def test_hosts_that_take_no_part(cloud: Inside, admin: Balancing, run: Command) -> None:
    for at in range(3):
        admin.loaded("kvm1", 3.0, name=f"web{at}")
    assert cloud.admin.put("/v1/compute_service/kvm2?wait=20", {"status": "disabled"}).status == 200
    admin.loads["kvm3"].seconds = 10.0
    status, output, errors = run("--dry-run")
    assert status == 0 and "cell1: 0 moves" in output
    assert "magnetar: kvm3: Its agent has measured for less than a minute" in errors
    admin.loads["kvm3"].seconds = 600.0
    status, output, errors = run("--dry-run")
    assert "cell1: 1 moves" in output and "kvm3 0% -> 30%" in output, (output, errors)


def test_a_failed_move_ends_the_run(cloud: Inside, admin: Balancing, run: Command) -> None:
    ids = [admin.loaded("kvm1", 3.0, name=f"web{at}") for at in range(3)]
    cloud.kvm["kvm1"].fake.fail_next("migrate", HypervisorError("the line is cut"))
    status, output, errors = run()
    assert status == 1 and output.count("\tfailed: ") == 1 and "\tmoved" not in output, (output, errors)
    assert "1 of 1 moves failed, and 0 were done." in errors and "the line is cut" in errors
    assert [row(cloud, id).host for id in ids] == ["kvm1"] * 3
    admin.rested()
    cloud.kvm["kvm1"].fake.fail_next("migrate", HypervisorError("the line is cut"))
    status, output, errors = run("--keep-going")
    assert status == 1 and output.count("\tfailed: ") == 1 and output.count("\tmoved") == 1, (output, errors)
    admin.rested()
    assert run()[0] == 0
    assert sorted(row(cloud, id).host for id in ids) == ["kvm1", "kvm2", "kvm3"]


def test_an_interruption_leaves_one_migration_which_ends(cloud: Inside, admin: Balancing, run: Command,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [admin.loaded("kvm1", 3.0, name=f"web{at}") for at in range(3)]

    def interrupt(*_given: object) -> None:
        raise KeyboardInterrupt
    with monkeypatch.context() as patch:
        patch.setattr(balance_moves, "_wait_for_migration", interrupt)
        assert run()[0] == 130
    eventually(lambda: sorted(row(cloud, id).host for id in ids) == ["kvm1", "kvm1", "kvm2"])
    for id in ids:
        cloud.admin.settled(id)
    assert run()[0] == 0
    assert sorted(row(cloud, id).host for id in ids) == ["kvm1", "kvm2", "kvm3"]


def test_a_server_that_has_left_meanwhile_is_skipped(cloud: Inside, admin: Balancing, run: Command,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    gone, locked = admin.loaded("kvm1", 3.0, name="gone"), admin.loaded("kvm1", 3.0, name="stops")
    admin.loaded("kvm1", 3.0, name="third")
    find = balance_moves.find_server_target

    def late(caller: Caller, id: str) -> Any:
        if id == gone:
            remove(cloud, [gone])
        elif row(cloud, id).vm_state == "active":
            admin.act(id, "os-stop")
        return find(caller, id)
    monkeypatch.setattr(balance_moves, "find_server_target", late)
    status, output, errors = run()
    assert status == 0 and output.count("\tskipped: ") == 2, (output, errors)
    assert row(cloud, locked).host == "kvm1"


def test_words_that_are_refused(run: Command) -> None:
    for words, text in ((("--host", "kvm9"), "There is no host 'kvm9'"), (("--cell", "x"), "There is no cell 'x'"),
                        (("--limit", "0"), "limit: "), (("--limit", "5000"), "limit: ")):
        status, output, errors = run(*words)
        assert (status, output) == (1, "") and text in errors, words
