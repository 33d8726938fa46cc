# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts whose agents' reports are refused: with another host's name, or malformed. Other hosts go on."""

from __future__ import annotations

import gc
import json
import logging
from types import SimpleNamespace

import pytest

from magnetar_control.conductor.hosts import host_reports, host_watch, watch_loop
from magnetar_control.conductor.hosts.host_reports import HostRefused, check_host_report, check_scheduler_reads
from magnetar_control.scheduler.host_state import Block, HostState
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.store.hosts import cell_look, services
from magnetar_control.store.hosts.host_leases import REFUSED, renew_host_leases, take_host_leases
from tests.support.control.watching import FollowedHost, watched_agent
from tests.support.waiting import eventually
from tests.unit.control.scheduler.fleet import row


def beat(host):
    return f"event: heartbeat\ndata: {json.dumps({'host': host})}\n\n".encode()


@pytest.mark.parametrize(("report", "reason"), [
    ({"name": "kvm2"}, "says that it is host 'kvm2'; correct"), ({"name": 7}, "name must be a string"),
    ([], "must be an object"),
    ({"vcpus": "8"}, "vcpus must be an integer"), ({"vcpus": True}, "vcpus must be an integer"),
    ({"traits": ["A", 5]}, "traits must have items of a string"), ({"traits": "A"}, "traits must be a list"),
    ({"images": {"id": 1}}, "images must be a list"), ({"metrics": {"cpu.percent": "hot"}}, "metrics.cpu.percent"),
    ({"resources": []}, "resources must be an object")])
def test_a_report_of_another_form_or_host_is_refused(report, reason):
    with pytest.raises(HostRefused, match=reason.replace(".", r"\.")):
        check_host_report("kvm1", report, hosts={"kvm1", "kvm2"})


@pytest.mark.parametrize(("agent", "conductor", "reason"), [
    ("0.1.0", "0.3.0", r"its agent \(0.1.0\) does not work with this conductor \(0.3.0\): .* Upgrade the agent to"),
    ("0.4.1", "0.2.0", r"its agent \(0.4.1\) does not work with this conductor \(0.2.0\): .* Upgrade the conductor")])
def test_an_agent_of_a_distant_release_is_refused(monkeypatch, agent, conductor, reason):
    monkeypatch.setattr(host_reports, "installed_version", lambda: conductor)
    with pytest.raises(HostRefused, match=reason):
        check_host_report("kvm1", {"agent_version": agent})


@pytest.mark.parametrize(("agent", "conductor"), [
    ("0.1.0", "0.2.0"), ("0.2.0", "0.1.7"), ("0.2.1", "0.2.0"), ("0+checkout", "0.9.0"), (None, "0.9.0"),
    ("0.9.0", "0+checkout")])
def test_an_agent_of_the_release_before_or_after_is_not(monkeypatch, agent, conductor):
    monkeypatch.setattr(host_reports, "installed_version", lambda: conductor)
    check_host_report("kvm1", {"agent_version": agent})


def test_the_name_of_the_machine_is_its_own_and_stays():
    """Ansible's inventory may know a machine by a name of the site's."""
    check_host_report("kvm1", {"name": "rack7-3"}, None, {"kvm1", "kvm2"})
    check_host_report("kvm1", {"name": "rack7-3"}, "rack7-3", {"kvm1", "kvm2"})
    check_host_report("kvm1", {"name": "kvm1"}, "rack7-3", {"kvm1", "kvm2"})
    with pytest.raises(HostRefused, match="says that it is host 'rack7-4', and was 'rack7-3' before; correct"):
        check_host_report("kvm1", {"name": "rack7-4"}, "rack7-3", {"kvm1", "kvm2"})


def test_a_report_may_lack_what_libvirt_knows():
    check_host_report("kvm1", {"name": "kvm1", "connected": False, "traits": None, "vcpus": None, "link_name": None,
                               "new": object()})


@pytest.mark.parametrize("info", [{"numa_cells": 5}, {"numa_cells": [{"id": "x"}]}, {"pci_devices": {"gpu": 1}},
                                  {"ovn": "no"}])
def test_a_report_that_the_scheduler_cannot_read_is_refused_and_once_saved_counts_as_none(info, caplog):
    states, good, bad = HostStates(), row("kvm2"), row("kvm1")
    with pytest.raises(HostRefused, match="malformed"):
        check_scheduler_reads(states, bad, info)
    states.refresh([bad.changed_columns(info=json.dumps(info)), good])
    assert set(states.hosts) == {"kvm1", "kvm2"} and states.hosts["kvm2"].block is not None
    assert "host kvm1: its saved report is malformed" in caplog.text and "kvm2" not in caplog.text
    states.refresh([bad, good])
    assert states.hosts["kvm1"].profile.capabilities == states.hosts["kvm2"].profile.capabilities


def test_a_check_leaves_nothing_to_the_garbage_collector():
    def parts():
        return sum(type(thing) in (HostStates, HostState, Block) for thing in gc.get_objects())

    states, host = HostStates(), row("kvm1")
    check_scheduler_reads(states, host, {"traits": ["A"]})
    gc.disable()
    try:
        before = parts()
        check_scheduler_reads(states, host, {"traits": ["B"]})
        assert parts() == before
    finally:
        gc.enable()


def refusals(caplog):
    return [record.getMessage() for record in caplog.records if "kvm1" in record.getMessage()]


@pytest.mark.parametrize("first", [{"name": "kvm2"}, {"vcpus": 8}])
def test_a_refused_host_is_told_once_and_is_back_with_a_right_report(tmp_path, monkeypatch, caplog, first):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(watch_loop, "PAUSE", 0.02)
    monkeypatch.setattr(watch_loop, "LONGEST", 0.05)
    path = str(tmp_path / "agent.sock")
    with watched_agent(path, frames=[beat({"traits": 7})], host=first):
        followed = FollowedHost(f"unix:{path}", monkeypatch)
        eventually(lambda: len(followed.problems) > 2)
    assert all(problem.startswith(REFUSED) for problem in followed.problems), followed.problems
    assert followed.refused == ["kvm1"] * len(followed.refused)
    assert len(refusals(caplog)) == 1 and "host kvm1 is refused: its agent" in refusals(caplog)[0]
    (tmp_path / "agent.sock").unlink()
    with watched_agent(path, frames=[beat({"traits": ["A"]})]):
        eventually(lambda: "answers again" in caplog.text)
    followed.loop.close()


def test_a_refused_host_is_down_for_scheduler_and_services(database):
    take_host_leases(database, "one", ["kvm1", "kvm2"])
    renew_host_leases(database, "one", {"kvm1": (), "kvm2": ()})
    renew_host_leases(database, "one", {}, problems={"kvm1": f"{REFUSED}its agent says that it is another host"})
    look = cell_look.read_cell_hosts(15.0, False, database)
    assert set(look.up) == {"kvm2"} and look.refused == {"kvm1"}
    assert cell_look.fetch_heard_hosts(15.0, database) == {"kvm2"}
    for last_seen in (services._last_seen(database, 15.0), services._hosts_last_seen(database, 15.0, ["kvm1", "kvm2"])):
        assert [last_seen.hosts[name][1] for name in ("kvm1", "kvm2")] == [False, True]
        assert last_seen.refused == {"kvm1": "AUTO: its agent says that it is another host"}
    renew_host_leases(database, "one", {"kvm1": ()})
    assert cell_look.read_cell_hosts(15.0, False, database).refused == frozenset()


def test_the_scheduler_forgets_a_refusal_with_the_next_heartbeat():
    states = HostStates()
    states.refresh([row("kvm1")])
    states.up("kvm1", up=True)
    states.set_refused("kvm1", refused=True)
    assert not states.hosts["kvm1"].profile.up and states.refused_hosts == {"kvm1"}
    states.up("kvm1", up=True)
    assert states.hosts["kvm1"].profile.up and not states.refused_hosts


def test_rounds_go_on_after_an_unexpected_error_that_is_told_once(monkeypatch, caplog):
    monkeypatch.setattr(host_watch, "POLL_INTERVAL", 0.0)
    rounds, over = [], SimpleNamespace(is_set=lambda: len(rounds) > 3, wait=lambda _seconds: None)
    watch = host_watch.HostWatch(SimpleNamespace(over=over, cell=SimpleNamespace(name="cell1"),
                                                 settings=SimpleNamespace(hosts={})))
    watch.__dict__["_loop"] = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(watch, "_register", lambda: None)

    def fail():
        rounds.append(1)
        raise KeyError("inventories")

    monkeypatch.setattr(watch, "_round", fail)
    watch.run()
    assert len(rounds) == 4 and caplog.text.count("the round failed") == 1
