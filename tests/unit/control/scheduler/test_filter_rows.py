# SPDX-License-Identifier: GPL-3.0-or-later
"""What each filter passes and refuses: cases of ``tests/cases/scheduler/filters.yml``. Custom filters and weighers.
Names of filters that are refused.
"""

from importlib.metadata import EntryPoint

import pytest

from magnetar_control.scheduler import own
from magnetar_control.scheduler.choose import NoValidHost, choose_hosts, would_pass
from magnetar_control.scheduler.filters import FILTERS, OPTIONAL, REFUSED, USUAL, applied_filters
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.rules import scheduler_rules
from magnetar_control.settings_file import make_settings
from magnetar_control.store.hosts.cell_look import CellSnapshot
from magnetar_core.errors import InvalidSettings
from tests.support.control.filter_rows import CASES, REFUSING

from .fleet import aggregate, request, row, states


def fleet_of(case):
    """The host of a case, in the memory of a conductor with its settings. The filter of the case is enabled alone, so
    that no other optional filter decides.
    """
    settings = {"enabled_filters": [case["filter"]], **case.get("settings", {})}
    found = HostStates(rules=scheduler_rules(make_settings(settings)))
    made = [aggregate("kvm1", id=at, **data) for at, data in enumerate(case.get("aggregates", ()))]
    made += [aggregate("kvm8", id=at, **data) for at, data in enumerate(case.get("elsewhere", ()), 50)]
    found.refresh([row("kvm1", info=case.get("info"), **case.get("host", {}))], made)
    told = {"metrics": case.get("metrics"), "images": case.get("images")}
    flavors = {"kvm1": set(case.get("flavors", ()))}
    found.seen("kvm1", CellSnapshot({"kvm1": told}, {"kvm1": case.get("io_ops", 0)}, flavors))
    return found


def each_case(test):
    return pytest.mark.parametrize("case", CASES, ids=[f"{case['filter']}: {case['name']}" for case in CASES])(test)


@each_case
def test_a_host_passes_or_is_refused_by_the_filter_alone(case):
    found, wish = fleet_of(case), request(**case.get("request", {}))
    if not case.get("refused"):
        assert [one.host for one in choose_hosts(found, wish)] == ["kvm1"]
        return
    with pytest.raises(NoValidHost) as told:
        choose_hosts(found, wish)
    assert told.value.refused == {case["filter"]: 1}
    assert case.get("says", "") in told.value.explanation


@each_case
def test_a_silent_host_is_waited_for_if_the_filter_passes_it(case):
    found = fleet_of(case)
    found.up("kvm1", False)
    assert would_pass(found, request(**case.get("request", {})), ["kvm1"]) is not case.get("refused", False)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_filter_that_would_do_nothing_is_refused_by_name(name):
    with pytest.raises(InvalidSettings, match=f"enabled_filters: {name} would do nothing here: .+"):
        scheduler_rules(make_settings({"enabled_filters": [name]}))


def test_settings_of_a_filter_that_is_not_applied_are_refused():
    with pytest.raises(InvalidSettings, match="do nothing unless enabled_filters names IsolatedHostsFilter"):
        scheduler_rules(make_settings({"isolated_hosts": ["kvm1"]}))


def test_every_optional_filter_refuses_a_host():
    assert {*OPTIONAL} - {"AllHostsFilter"} <= REFUSING
    assert {one.name for one in FILTERS if one.optioned} <= REFUSING


@pytest.fixture
def package(monkeypatch):
    """A package with filters and weighers of its own."""
    names = {own.GROUP_FILTERS: {"EvenHosts": "even", "Broken": "gone", "NoFunction": "NUMBER"},
             own.GROUP_WEIGHERS: {"by_number": "number", "failing": "fails"}}

    def entry_points(group, name):
        where = names[group].get(name)
        return [EntryPoint(name, f"{__name__}:{where}", group)] if where else []

    monkeypatch.setattr(own, "entry_points", entry_points)


NUMBER = 7


def even(host, spec):
    """Hosts with an even number, for all but one project."""
    return spec.project_id == "odd" or int(host.name.removeprefix("kvm")) % 2 == 0


def number(host, _spec):
    return int(host.name.removeprefix("kvm"))


def fails(_host, _spec):
    raise RuntimeError("this weigher is broken")


@pytest.mark.usefixtures("package")
def test_filters_and_weighers_of_ones_own_act():
    found = states(*(row(f"kvm{at}") for at in range(7)))
    found.rules = scheduler_rules(make_settings({"enabled_filters": [*USUAL, "EvenHosts"],
                                                 "weighers": {"by_number": 2.0, "failing": 1}}))
    assert [one.host for one in choose_hosts(found, request(), 9)] == ["kvm6", "kvm4", "kvm2", "kvm0"]
    assert [one.host for one in choose_hosts(found, request(project_id="odd"), 2)] == ["kvm6", "kvm5"]
    assert choose_hosts(found, request(), 1)[0].weight == 2.0
    with pytest.raises(NoValidHost) as told:
        choose_hosts(found, request(host="kvm3"))
    assert told.value.refused == {"RequestedDestinationFilter": 6, "EvenHosts": 1}


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("settings", "words"), [
    ({"enabled_filters": ["Broken"]}, "enabled_filters: Broken of .* cannot be loaded"),
    ({"enabled_filters": ["NoFunction"]}, "NoFunction must be a function"),
    ({"enabled_filters": ["EvenHost"]}, "there is no filter 'EvenHost'"),
    ({"weighers": {"missing": 1}}, "weighers: no installed package has an entry point 'missing'"),
    ({"weighers": {"by_number": "much"}}, "weighers: by_number must be a number"),
    ({"metrics_weight_setting": {"cpu.percent": True}}, "metrics_weight_setting: cpu.percent must be a number")])
def test_what_cannot_act_does_not_start(settings, words):
    with pytest.raises(InvalidSettings, match=words):
        scheduler_rules(make_settings(settings))


def test_a_filter_that_fails_refuses_the_host_and_stops_nothing(monkeypatch, package):
    del package
    monkeypatch.setattr(own, "load_custom_function", lambda _group, _name: fails)
    found = states(row("kvm1"))
    found.rules = scheduler_rules(make_settings({"enabled_filters": ["Odd"]}))
    with pytest.raises(NoValidHost) as told:
        choose_hosts(found, request())
    assert told.value.refused == {"Odd": 1}


def test_metrics_and_images_weigh():
    """Rows WEI-05, WEI-12: the sum of ratios and metrics; a host without them weighs what the setting says."""
    names = ("kvm1", "kvm2", "kvm3")
    found = HostStates(rules=scheduler_rules(make_settings({"metrics_weight_setting": {"cpu.percent": -1.0,
                                                                                       "cpu.iowait.percent": -2.0},
                                                            "metrics_required": False})))
    found.refresh(row(name) for name in names)
    for name in names:
        found.up(name, True)
    for name, busy, waiting in (("kvm1", 50, 0), ("kvm2", 10, 25)):
        found.save_report(name, {"cpu.percent": busy, "cpu.iowait.percent": waiting}, ())
    assert [one.host for one in choose_hosts(found, request(), 3)] == ["kvm1", "kvm2", "kvm3"]
    found.save_report("kvm3", {}, ["i1"])
    assert [one.host for one in choose_hosts(found, request(), 3)] == ["kvm1", "kvm2", "kvm3"]
    found.refresh(list(found.rows.values()), [aggregate("kvm1", "kvm2", "kvm3", metrics_weight_multiplier="-1")])
    assert [one.host for one in choose_hosts(found, request(), 3)] == ["kvm3", "kvm2", "kvm1"]
    found.rules = scheduler_rules(make_settings({"image_locality_weight_multiplier": 1.0,
                                                 "metrics_weight_multiplier": 0.0}))
    assert choose_hosts(found, request(image_id="i1"))[0].host == "kvm3"


def test_filters_of_ones_own_come_last_in_their_order(monkeypatch):
    monkeypatch.setattr(own, "load_custom_function", lambda _group, _name: even)
    assert [one.name for one in applied_filters(["B", "RamFilter", "A"])][-2:] == ["B", "A"]
