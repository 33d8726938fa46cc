# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of the previous release is upgraded as ``playbooks/upgrade.yml`` does it, while clients use it: no request
fails, no guest notices, and nothing is stuck afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from magnetar_control.store.engine.schema import LOCK
from tests.support.control.balanced_cloud import APIS, CELLS, BalancedCloud
from tests.support.control.steady_load import SteadyLoad
from tests.support.waiting import eventually
from tools import postgres, releases

PREVIOUS = list(releases.released_commits())[-1]
#: The host that is down during the upgrade.
AWAY = "kvm5"


@pytest.fixture(scope="module")
def cloud(previous: Path) -> Iterator[BalancedCloud]:
    """A cloud of the previous release, whose PostgreSQL has connections enough for processes of both."""
    if postgres.postgres_programs() is None:
        pytest.skip("PostgreSQL's server is not installed (Debian's package postgresql)")
    with postgres.postgres_cluster((*postgres.QUICK, "max_connections=300")) as cluster, \
            BalancedCloud(cluster, previous) as made:
        yield made


@pytest.mark.deep(shard="upgrade under load")
def test_an_upgrade_under_load(cloud: BalancedCloud, previous: Path, current: Path) -> None:
    servers = [cloud.admin.boot(f"stays-{host}", availability_zone=f"nova:{host}")["id"] for host in cloud.hosts]
    events_before = cloud.domain_events(servers)
    assert [events["started"] for events in events_before.values()] == [1] * len(servers)
    cloud.use_host(AWAY, use=False)
    cloud.end_agent(AWAY)
    with SteadyLoad(cloud.admin, cloud.admin.image(), ("1", "2")) as load:
        eventually(lambda: load.lives or load.failures, "the first server of the load")
        _upgrade(cloud, current)
        for name in APIS:  # as the next upgrade does it: without a word to the balancer
            cloud.replace(name, current)
    print(f"{load.rate:.0f} requests/s, {load.lives} servers, {dict(load.requests)}, {cloud.balancer.refused} sent "
          f"again since they were refused, {cloud.balancer.repeated} repeated")
    assert load.failures == [] and cloud.balancer.lost == []
    _return_with_the_previous_release(cloud, previous, current)
    listed = cloud.admin.get("/v2.1/servers/detail").json["servers"]
    assert {server["id"]: server["status"] for server in listed} == dict.fromkeys(servers, "ACTIVE")
    assert cloud.domain_events(servers) == events_before
    assert cloud.open_actions() == []
    status, printed = cloud.run("audit", tree=current)
    assert status == 0 and "Nothing is amiss" in printed, printed


def _upgrade(cloud: BalancedCloud, tree: Path) -> None:
    """Upgrade all that runs, in the order of ``playbooks/upgrade.yml``."""
    for name in list(cloud.agents):
        cloud.replace_agent(name, tree)
    _upgrade_tables(cloud, tree)
    for name in APIS:
        cloud.replace(name, tree, drain=True)
    for name in CELLS:
        cloud.replace(name, tree)
    status, printed = cloud.run("db", "migrate-data", tree=tree)
    assert status == 0, printed


def _return_with_the_previous_release(cloud: BalancedCloud, previous: Path, current: Path) -> None:
    """The host that was down comes back with its old agent, which is named and useful, and is upgraded."""
    cloud.replace_agent(AWAY, previous)
    cloud.await_host(AWAY)
    cloud.use_host(AWAY, use=True)
    server = cloud.admin.boot("late", availability_zone=f"nova:{AWAY}")
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", AWAY), server
    assert cloud.admin.delete(f"/v2.1/servers/{server['id']}").status == 204
    assert cloud.admin.settled(server["id"]) is None
    status, printed = cloud.run("upgrade", "status", tree=current)
    assert status == 1 and f"announcement waits for: agent of host {AWAY} ({PREVIOUS})" in printed, printed
    cloud.replace_agent(AWAY, current)

    def complete() -> bool:
        status, printed = cloud.run("upgrade", "status", tree=current)
        return status == 0 and "Nothing waits" in printed

    eventually(complete, "the upgrade is complete", pause=1.0)


def _upgrade_tables(cloud: BalancedCloud, tree: Path) -> None:
    """Kill the upgrade of tables when the databases of the API have it and those of the cells do not, and do it
    again."""
    with psycopg.connect(host=str(cloud.cluster), user=postgres.USER, dbname="spread_cell1") as waits:
        waits.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        upgrade = cloud.command("db", "upgrade", tree=tree)
        eventually(lambda: waits.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
                                         "AND database = (SELECT oid FROM pg_database WHERE datname = "
                                         "current_database())").fetchone() == (1,))
        upgrade.kill()
        upgrade.wait()
    status, printed = cloud.run("db", "upgrade", tree=tree)
    assert status == 0, printed
    assert printed.splitlines() == ["api: as this version wants it", "cell0: as this version wants it",
                                    "cell1: upgraded", "cell2: upgraded"]
