# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar host fence``, ``unfence`` and ``fence-status``: what they do to the host's row, and say."""

import pytest
from sqlalchemy import insert, update

from magnetar_agent.cli import build_command_line
from magnetar_control import cli
from magnetar_control.fencing import host_fencing
from magnetar_control.fencing.host_fencing import HostFencing
from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.hosts import fencings
from magnetar_control.store.servers.migrations import EVACUATION
from magnetar_core.errors import Conflict, InvalidRequest

ID = "00000000-0000-4000-8000-000000000001"


def test_fence_and_unfence(site):
    assert site.run("fence", "kvm1").startswith("kvm1\tfenced\tFenced at ")
    disabled, reason, forced_down = site.host("kvm1")
    assert (disabled, forced_down) == (True, True)
    assert reason.startswith("Fenced at ") and reason.endswith("Use it again with: magnetar host unfence kvm1")
    assert site.agent.power("kvm1") == "off" and site.host("kvm2") == (False, None, False)
    shown = site.status()
    assert {name: (one["state"], one["power"]) for name, one in shown.items()} == {
        "kvm1": ("fenced", "off"), "kvm2": (None, "on")}
    assert "@" in shown["kvm1"]["requested_by"] and shown["kvm1"]["agent"] == "fence_fake"
    assert "kvm2\tnever fenced\tpower on" in site.run("fence-status")
    assert site.run("unfence", "kvm1").startswith("kvm1\tunfenced\tUnfenced at ")
    assert site.host("kvm1") == (False, None, False) and site.agent.power("kvm1") == "on"
    assert "is not fenced" in site.run("unfence", "kvm1", status=1)


def test_the_host_gets_back_what_operators_had_set(site):
    site.set_host("kvm1", disabled=True, disabled_reason="Rack 3 moves", forced_down=True)
    for _twice in range(2):
        site.run("fence", "kvm1")
    site.run("unfence", "kvm1")
    assert site.host("kvm1") == (True, "Rack 3 moves", True)


def test_a_fencing_that_fails_changes_no_host(site):
    site.agent.behave("on for ever")
    assert "Host kvm1 is still on" in site.run("fence", "kvm1", status=1)
    assert site.host("kvm1") == (False, None, False)
    assert (site.row("kvm1").state, site.row("kvm1").busy) == ("failed", False)
    assert "failed" in site.run("fence-status", "kvm1")
    site.agent.behave("ok")
    site.run("fence", "kvm1")
    assert site.row("kvm1").state == "fenced"


def test_a_power_on_that_fails_leaves_the_host_fenced(site):
    site.run("fence", "kvm1")
    site.agent.behave("refuses")
    assert "fence_fake failed" in site.run("unfence", "kvm1", status=1)
    assert site.host("kvm1")[::2] == (True, True)
    assert (site.row("kvm1").state, site.row("kvm1").confirmed_at) == ("fenced", None)
    assert site.status("kvm1", status=1)["kvm1"]["problem"].startswith("fence_fake failed")


def test_a_fenced_host_whose_power_is_on_is_told(site):
    site.run("fence", "kvm1")
    site.agent.set_power("kvm1", "on")
    assert "kvm1 is fenced, and its power is on" in site.run("fence-status", status=1)


def test_a_host_that_was_switched_off_by_hand(site):
    assert "no power device in the setting fencing" in site.run("fence", "kvm3", status=1)
    assert site.row("kvm3") is None
    site.run("fence", "kvm3", "--confirmed")
    assert site.row("kvm3").agent == "by hand" and site.host("kvm3")[::2] == (True, True)
    assert "kvm3\tfenced\tpower unknown" in site.run("fence-status")
    site.run("unfence", "kvm3")
    assert site.host("kvm3") == (False, None, False) and not site.agent.actions("kvm3")
    site.agent.behave("refuses")  # without power the management board does not answer either
    site.run("fence", "kvm1", "--confirmed")
    assert site.row("kvm1").state == "fenced"


def test_unknown_hosts(site):
    for action in ("fence", "unfence", "fence-status"):
        assert "There is no host kvm9 in the cloud" in site.run(action, "kvm9", status=1)


def test_the_row_is_there_before_the_agent_runs_and_a_crash_is_repeatable(site, monkeypatch):
    """A process that dies leaves the row requested; another one may repeat it when its time is over."""
    class Died(BaseException):
        """The process ends here."""

    states = []

    def dies(*_args):
        states.append(site.row("kvm1").state)
        raise Died

    fencing = HostFencing(site.parts.store, site.settings)
    with monkeypatch.context() as patch:
        patch.setattr(host_fencing, "switch_host", dies)
        patch.setattr(fencings, "end_fencing", lambda *_args, **_more: True)  # nor does it write its end
        with pytest.raises(Died):
            fencing.fence_host("kvm1", "test")
    assert states == ["requested"] and site.row("kvm1").busy
    assert site.status("kvm1")["kvm1"]["state"] == "requested"
    with pytest.raises(Conflict, match="is being switched by another process until 20"):
        fencing.fence_host("kvm1", "test")
    assert fencing.confirm_fenced("kvm1", "test", utc_now(), answers=False) is False
    monkeypatch.setattr(fencings, "utc_now", lambda plus=0.0: utc_now(plus + 3600))
    assert fencing.fence_host("kvm1", "test").state == "fenced"


def test_an_interruption_ends_the_attempt(site, monkeypatch):
    def interrupted(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(host_fencing, "switch_host", interrupted)
        site.run("fence", "kvm1", status=130)
    assert (site.row("kvm1").state, site.row("kvm1").busy) == ("requested", False)
    assert site.row("kvm1").message == "Interrupted (KeyboardInterrupt)."
    site.run("fence", "kvm1")
    assert site.row("kvm1").state == "fenced"


def test_an_attempt_that_lost_the_row_says_so(site, monkeypatch):
    """It was stopped for longer than its time, and another process has fenced the host."""
    fencing = HostFencing(site.parts.store, site.settings)

    def slow(*_args):
        with site.parts.api_database.write() as connection:
            connection.execute(update(tables.fencings).values(attempt="other", busy_until=None))

    monkeypatch.setattr(host_fencing, "switch_host", slow)
    with pytest.raises(Conflict, match="Another process has switched host kvm1 meanwhile"):
        fencing.fence_host("kvm1", "test")
    assert site.host("kvm1") == (False, None, False) and site.row("kvm1").state == "requested"


def test_a_host_with_an_open_evacuation_stays_off(site):
    site.run("fence", "kvm1")
    with site.parts.store.cell(site.cell).write() as connection:
        connection.execute(insert(tables.migrations).values(
            uuid=ID, server_id=ID, project_id="p", user_id="u", type=EVACUATION, status="accepted", source="kvm1",
            old_flavor="{}", new_flavor="{}", created_at=utc_now()))
    assert f"server {ID} is being evacuated from it" in site.run("unfence", "kvm1", status=1)
    assert site.agent.power("kvm1") == "off" and site.row("kvm1").state == "fenced"


def test_only_unfence_ends_it(site):
    site.run("fence", "kvm1")
    with site.parts.api_database.read() as connection:
        assert fencings.is_host_held(connection, "kvm1") and not fencings.is_host_held(connection, "kvm2")
    fencing = HostFencing(site.parts.store, site.settings)
    with pytest.raises(InvalidRequest, match="is not fenced"):
        fencing.unfence_host("kvm2", "test")


def test_both_command_lines_have_the_actions():
    parsed = build_command_line(cli.subcommands).parse_args(["host", "fence", "kvm1"])
    assert (parsed.host, parsed.confirmed) == ("kvm1", False)
    assert build_command_line(cli.subcommands).parse_args(["host", "check"]).command == "host"


def test_config_names_a_secret_that_others_can_read(site, tmp_path, capsys):
    secrets = tmp_path / "secrets"
    secrets.write_text("password=x\n")
    secrets.chmod(0o644)
    settings = site.agent.settings("kvm1")
    settings["fencing"]["kvm1"]["secrets_file"] = str(secrets)
    site.configure(**settings)
    assert cli.main(["config", "--config", str(tmp_path / "control.yml")]) == 1
    assert "has mode 0644, so others can read it" in capsys.readouterr().err


def test_a_host_is_known_to_be_off(site):
    """By a fencing that has succeeded, or an administrator's word; a power device alone is a promise of one."""
    fencing = HostFencing(site.parts.store, site.settings)
    volumes = ["volume-1", "volume-2"]
    for host in ("kvm1", "kvm3"):
        fencing.check_known_off(host, [])
        with pytest.raises(Conflict, match=f"Volume volume-1 of the server lies .* `magnetar host fence {host}`; "):
            fencing.check_known_off(host, volumes)
        with pytest.raises(Conflict, match=r"The disks of the server lie on storage .* write to them"):
            fencing.check_known_off(host, [], disks=True)
    fencing.check_known_off("kvm1", volumes, fences_itself=True)
    with pytest.raises(Conflict):
        fencing.check_known_off("kvm3", volumes, fences_itself=True)
    site.agent.behave("on for ever")
    site.run("fence", "kvm1", status=1)
    with pytest.raises(Conflict):
        fencing.check_known_off("kvm1", volumes)
    site.agent.behave("ok")
    site.run("fence", "kvm1")
    fencing.check_known_off("kvm1", volumes)
    site.run("unfence", "kvm1")
    with pytest.raises(Conflict):
        fencing.check_known_off("kvm1", volumes)
    site.run("fence", "kvm3", "--confirmed")
    fencing.check_known_off("kvm3", volumes)
    site.set_host("kvm2", forced_down=True)
    fencing.check_known_off("kvm2", volumes)
    fencing.check_known_off("gone", volumes)
