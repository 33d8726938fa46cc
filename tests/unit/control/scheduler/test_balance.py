# SPDX-License-Identifier: GPL-3.0-or-later
"""Which moves even out hosts, or free one: cases of ``tests/cases/scheduler/balance.yml``, and what holds for any."""

from pathlib import Path
from random import Random

import pytest
import yaml

from magnetar_control.scheduler.balance import BalanceRules, LoadedHost, LoadedServer, plan_balance, plan_freeing

CASES = yaml.safe_load((Path(__file__).parents[3] / "cases/scheduler/balance.yml").read_text(encoding="utf-8"))


def host_of(name, cpu, memory, word=""):
    return LoadedHost(name, 10, 10000, cpu / 10, memory * 100, gives=word != "stays",
                      takes=word not in ("stays", "full"))


def server_of(name, host, cpu, memory, stays=""):
    return LoadedServer(name, name, host, cpu / 10, memory * 100, stays)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case):
    hosts = [host_of(name, *words) for name, words in case["hosts"].items()]
    servers = [server_of(name, *words) for name, words in case["servers"].items()]
    refused = {tuple(pair) for pair in case.get("refused", ())}
    rules = BalanceRules(**case.get("rules", {}))

    def check(server, target):
        return "refused" if (server.name, target) in refused else ""

    plan = plan_freeing(hosts, servers, rules, check, case["free"]) if "free" in case else plan_balance(
        hosts, servers, rules, check)
    assert [[move.server.name, move.target] for move in plan.moves] == case["moves"]
    reasons = {stay.name: stay.reason for stay in plan.stays}
    assert reasons.keys() == case.get("stays", {}).keys(), reasons
    for name, words in case.get("stays", {}).items():
        assert words in reasons[name]
    for move in plan.moves:
        assert move.source in move.reason and move.target in move.reason and "%" in move.reason


@pytest.mark.parametrize("seed", range(20))
def test_plans_of_any_cloud(seed):
    """No plan raises the highest load or moves a server twice, and the next plan leaves moved servers where they are.
    """
    random = Random(seed)
    servers = [server_of(f"s{at}", f"kvm{min(random.randrange(12), random.randrange(12))}", random.uniform(0, 20),
                         random.uniform(1, 10)) for at in range(120)]
    hosts = [host_of(f"kvm{at}", sum(server.cpus_used for server in servers if server.host == f"kvm{at}") * 10,
                     sum(server.memory_mb_used for server in servers if server.host == f"kvm{at}") / 100)
             for at in range(12)]
    rules = BalanceRules(moves=None)
    plan = plan_balance(hosts, servers, rules, lambda _server, _target: "")
    assert len({move.server.id for move in plan.moves}) == len(plan.moves)
    assert not {move.source for move in plan.moves} & {move.target for move in plan.moves}
    assert max(host.load for host in plan.after.values()) <= max(host.load for host in hosts)
    places = {move.server.id: move.target for move in plan.moves}
    moved = [LoadedServer(server.id, server.name, places.get(server.id, server.host), server.cpus_used,
                          server.memory_mb_used) for server in servers]
    again = plan_balance(list(plan.after.values()), moved, rules, lambda _server, _target: "")
    assert {move.server.id for move in again.moves}.isdisjoint(places), "no server goes on in the next plan"
