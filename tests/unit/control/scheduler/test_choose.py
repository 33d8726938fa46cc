# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice is the plain one: filter every host, weigh what is left; whatever is skipped on the way there."""

from collections import Counter
from random import Random

import pytest

from magnetar_control.scheduler import hosts as hosts_module
from magnetar_control.scheduler.choose import NoValidHost, choose_hosts, explain_refusals
from magnetar_control.scheduler.filters import OPTIONAL, USUAL, applied_filters
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.rules import Rules
from magnetar_control.scheduler.weighers import Multipliers
from magnetar_control.store.claims.allocations import Amounts, Group

from .fleet import aggregate, plainly, request, row, states

POLICIES = ("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity")


def a_fleet(chance, size):
    """Hosts of few kinds and many fillings, in zones and aggregates, some of them down."""
    names = [f"kvm{at}" for at in range(size)]
    rows = [row(name, vcpus=chance.choice((8, 16)), memory_mb=chance.choice((16384, 65536)),
                cell_id=chance.choice(("a", "b")), disabled=chance.random() < 0.1, servers=chance.randrange(5),
                vcpus_used=chance.randrange(0, 140, chance.choice((1, 20))),
                memory_mb_used=chance.randrange(0, 98304, 512), disk_gb_used=chance.randrange(1100),
                info={"cpu_model": chance.choice(("EPYC", "Skylake")), "traits": chance.choice(([], ["CUSTOM_A"]))})
            for name in names]
    found = states(*rows, down=[name for name in names if chance.random() < 0.1], aggregates=[
        aggregate(*chance.sample(names, size // 3), id=1, availability_zone="one", ram_weight_multiplier="-2.5"),
        aggregate(*chance.sample(names, size // 3), id=2, ssd="true", cpu_weight_multiplier="0.5",
                  max_instances_per_host="3")])
    for name in names:
        found.busy(name, chance.choice((0, 0, 0, 3)))
        if chance.random() < 0.05:
            found.count_build(name, well=False)
    return found


def a_wish(chance, names):
    """A request with a few of the things that can be asked for."""
    wishes = {
        "availability_zone": lambda: chance.choice(("one", "nova", "one,nova")),
        "cell_id": lambda: chance.choice("ab"),
        "near_cell": lambda: chance.choice("ab"),
        "host": lambda: chance.choice(names),
        "ignored": lambda: frozenset(chance.sample(names, len(names) // 4)),
        "volume_hosts": lambda: frozenset(chance.sample(names, len(names) // 2)),
        "different_host": lambda: frozenset(chance.sample(names, len(names) // 4)),
        "same_host": lambda: frozenset(chance.sample(names, len(names) // 2)),
        "hints": lambda: {"query": '["<", "$num_io_ops", 3]'},
        "extra_specs": lambda: chance.choice((
            {"capabilities:cpu_model": "EPYC"}, {"aggregate_instance_extra_specs:ssd": "true"},
            {"capabilities:free_disk_gb": ">= 300"}, {"trait:CUSTOM_A": "required"},
            {"trait:CUSTOM_A": "forbidden"}, {"hw:cpu_policy": "shared"})),
        "group": lambda: Group("g", chance.choice(POLICIES), chance.choice((1, 2)),
                               {name: chance.randrange(1, 3) for name in chance.sample(names, len(names) // 4)}),
    }
    asked = chance.sample(sorted(wishes), chance.choice((0, 0, 1, 2)))
    amounts = Amounts(chance.choice((1, 2, 12)), chance.choice((512, 4096, 32768)), chance.choice((0, 10, 200)))
    return request(amounts=amounts, **{name: wishes[name]() for name in asked})


@pytest.mark.parametrize("seed", range(40))
def test_what_is_chosen_is_what_looking_at_every_host_would_choose(seed, monkeypatch):
    monkeypatch.setattr(hosts_module, "BLOCK", 4)
    monkeypatch.setattr(hosts_module, "PARTS", 2)
    monkeypatch.setattr(hosts_module, "PATIENCE", 0)  # they are put in order in between
    chance = Random(seed)
    found = a_fleet(chance, 60)
    names = sorted(found.hosts)
    if seed % 2:
        found._arrange()
    for _round in range(20):
        wish, count = a_wish(chance, names), chance.choice((1, 3, 10, 100))
        rules = Rules(chance.choice((Multipliers(), Multipliers(ram=-1.0), Multipliers(cpu=0.3, disk=2.0, io_ops=0.0))),
                      applied_filters((*USUAL, *chance.sample(OPTIONAL, 3))))
        found.rules = rules
        plain = plainly(found, wish)
        if not plain:
            with pytest.raises(NoValidHost) as told:
                choose_hosts(found, wish, count)
            assert sum(told.value.refused.values()) == len(names)
            continue
        chosen = choose_hosts(found, wish, count, random=chance if seed % 3 else None)
        assert [one.weight for one in chosen] == [weight for weight, _name in plain[:count]]
        assert {(one.weight, one.host) for one in chosen} <= set(plain)
        assert len({one.host for one in chosen}) == len(chosen)
        assert sum(explain_refusals(found, wish).refused.values()) + len(plain) == len(names)
        found.used(chosen[0].host, wish.amounts)  # and the next choice sees it
        found.up(chance.choice(names), chance.random() < 0.8)
        for name in chance.sample(names, chance.choice((0, 0, 50))):  # so many that blocks are put in order
            found.busy(name, chance.randrange(3))


def test_an_emptier_host_is_better():
    found = states(row("kvm1", vcpus_used=4, memory_mb_used=2048), row("kvm2"), row("kvm3", memory_mb_used=1024))
    assert [one.host for one in choose_hosts(found, request(), 3)] == ["kvm2", "kvm3", "kvm1"]


def test_a_move_stays_in_its_cell_where_it_can():
    """Spec rows XCR-07, WEI-11; the metadata of an aggregate comes before the setting."""
    rows = [row("kvm1", cell_id="own", memory_mb_used=20480), row("kvm2", cell_id="other"),
            row("kvm3", cell_id="third")]
    move = request(near_cell="own")
    assert choose_hosts(states(*rows), request())[0].host != "kvm1"
    assert choose_hosts(states(*rows), move)[0].host == "kvm1"
    found = states(*rows)
    found.rules = Rules(Multipliers(cross_cell_move=-1.0))
    assert {one.host for one in choose_hosts(found, move, 2)} == {"kvm2", "kvm3"}
    near = states(*rows, aggregates=[aggregate("kvm3", cross_cell_move_weight_multiplier="0.5")])
    assert [one.host for one in choose_hosts(near, move, 3)] == ["kvm3", "kvm1", "kvm2"]


@pytest.mark.parametrize("said", ["nan", "inf", "-inf", "1e999", "much"])
def test_a_multiplier_that_is_no_finite_number_is_ignored(said, caplog):
    """That of another aggregate counts, or the setting."""
    rows = [row("kvm1", memory_mb_used=2048), row("kvm2"), row("kvm3", memory_mb_used=1024)]
    odd = aggregate("kvm1", "kvm2", "kvm3", ram_weight_multiplier=said)
    found = states(*rows, aggregates=[odd])
    assert [(one.host, one.weight) for one in choose_hosts(found, request(), 3)] == [
        (one.host, one.weight) for one in choose_hosts(states(*rows), request(), 3)]
    told = [one.getMessage() for one in caplog.records]
    assert len(told) == 1 and "ram_weight_multiplier is no finite number" in told[0]
    found.refresh(list(found.rows.values()), [odd])
    assert len(caplog.records) == 1
    found.refresh(list(found.rows.values()), [odd, aggregate("kvm1", "kvm2", "kvm3", ram_weight_multiplier="-1")])
    assert [one.host for one in choose_hosts(found, request(), 3)] == ["kvm1", "kvm3", "kvm2"]


def test_what_was_claimed_counts_at_once():
    found = states(row("kvm1"), row("kvm2", memory_mb_used=10))
    assert choose_hosts(found, request())[0].host == "kvm1"
    found.used("kvm1", Amounts(1, 1024, 10))
    assert choose_hosts(found, request())[0].host == "kvm2"


def test_a_host_whose_disks_are_busy_comes_later():
    """From the moment that a server is placed until its build has ended, and as long as a look finds it."""
    found = states(row("kvm1", memory_mb_used=10), row("kvm2", memory_mb_used=2048))
    found.used("kvm1", Amounts(0, 0, 0))
    assert found.hosts["kvm1"].numbers[6] == 1
    found.rules = Rules(Multipliers(io_ops=-2.0))
    assert choose_hosts(found, request())[0].host == "kvm2"
    found.count_build("kvm1", well=True)
    assert choose_hosts(found, request())[0].host == "kvm1"
    found.count_build("kvm1", well=True)  # that of another conductor, which was not counted yet
    assert found.hosts["kvm1"].io_ops == 0
    found.busy("kvm1", 3)
    assert choose_hosts(found, request())[0].host == "kvm2"
    found.busy("kvm1", 0)
    assert choose_hosts(found, request())[0].host == "kvm1"


def test_what_is_found_as_before_disturbs_nothing():
    found = states(row("kvm1"))
    found.blocks()
    found.busy("kvm1", 0)
    assert not found.hosts["kvm1"].block.stale


def test_equal_hosts_are_drawn_by_chance_that_can_be_repeated():
    found = states(*(row(f"kvm{at}") for at in range(300)))
    first, again = ([choose_hosts(found, request(), random=Random(seed))[0].host for seed in range(40)]
                    for _one in "12")
    assert first == again
    assert len(set(first)) > 20
    assert len({choose_hosts(found, request())[0].host for _one in range(5)}) == 1


def test_a_subset_is_drawn_of_the_best():
    found = states(*(row(f"kvm{at}", memory_mb_used=100 * at) for at in range(9)))
    found.rules = Rules(subset=3)
    drawn = [choose_hosts(found, request(), 3, random=Random(seed)) for seed in range(30)]
    assert {one[0].host for one in drawn} == {"kvm0", "kvm1", "kvm2"}
    assert all({one.host for one in three} == {"kvm0", "kvm1", "kvm2"} for three in drawn)


def test_a_host_where_builds_failed_comes_last_until_one_goes_well():
    found = states(row("kvm1"), row("kvm2", memory_mb_used=60000))
    found.count_build("kvm1", well=False)
    assert choose_hosts(found, request())[0].host == "kvm2"
    found.count_build("kvm1", well=True)
    assert choose_hosts(found, request())[0].host == "kvm1"


def test_admins_are_told_which_filter_refused_how_many_and_users_only_that_there_is_none():
    found = states(row("kvm1"), row("kvm2", disabled=True), row("kvm3", memory_mb_used=98000), row("kvm4", vcpus=1),
                   down=["kvm1"])
    with pytest.raises(NoValidHost, match=r"^No valid host was found. There are not enough hosts available.$") as told:
        choose_hosts(found, request(amounts=Amounts(2, 1024, 0)))
    assert told.value.explanation == (
        "Of 4 hosts the filters refused: ComputeFilter 2, CoreFilter 1, RamFilter 1. "
        "CoreFilter: the best of these, kvm4, has room for 1 of 2 CPUs. "
        "RamFilter: the best of these, kvm3, has room for 304 of 1024 MiB of memory.")


def test_without_any_host_admins_are_told_what_to_do():
    with pytest.raises(NoValidHost) as told:
        choose_hosts(states(), request())
    assert "No host is registered" in told.value.explanation


def test_hosts_come_go_and_change():
    found = states(row("kvm1"), row("kvm2"))
    found.refresh([row("kvm2"), row("kvm3")])
    assert [one.host for one in choose_hosts(found, request(), 9)] == ["kvm2"]  # nobody saw kvm3 up
    found.up("kvm3", True)
    assert {one.host for one in choose_hosts(found, request(), 9)} == {"kvm2", "kvm3"}
    found.changed(row("kvm2", forced_down=True))
    found.gone("kvm9")
    assert [one.host for one in choose_hosts(found, request(), 9)] == ["kvm3"]
    found.refresh([row("kvm3")], [aggregate("kvm3", availability_zone="one")])
    assert found.hosts[choose_hosts(found, request())[0].host].profile.zone == "one"


def test_hosts_without_a_zone_are_in_the_one_that_is_set():
    found = HostStates("home")
    found.refresh([row("kvm1")], [])
    found.up("kvm1", True)
    assert found.hosts[choose_hosts(found, request(availability_zone="home"))[0].host].profile.zone == "home"


@pytest.mark.parametrize("arranged", [True, False])
def test_chance_decides_between_equal_hosts_wherever_they_stand(arranged):
    """One that was away a moment ago stands in a block of its own: it is chosen no more often than others."""
    found, chance = states(*[row(f"kvm{at}") for at in range(300)]), Random(1)
    if arranged:
        found._arrange()
    found.up("kvm7", False)
    found.up("kvm7", True)
    chosen = Counter(choose_hosts(found, request(), random=chance)[0].host for _round in range(600))
    assert len(chosen) > 200 and max(chosen.values()) < 15


def test_chance_decides_between_the_few_best():
    found, chance = states(*[row(f"kvm{at}", memory_mb_used=1024 * (at > 2)) for at in range(16)]), Random(1)
    chosen = Counter(choose_hosts(found, request(), random=chance)[0].host for _round in range(300))
    assert sorted(chosen) == ["kvm0", "kvm1", "kvm2"] and min(chosen.values()) > 60
