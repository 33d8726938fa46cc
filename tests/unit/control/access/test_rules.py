# SPDX-License-Identifier: GPL-3.0-or-later
"""Each rule has a default and is asked: that of an operation before it, the others (``FURTHER``) where they matter, as
tests/cases/access/rules.yml says."""

import orjson
import pytest
import yaml

from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.compute.access.policies import BASE, CHECKS, FORMER, FURTHER, OF_V1, POLICIES
from magnetar_control.compute.access.policy import ADMIN, Policy
from magnetar_control.compute.servers import server_topology
from magnetar_control.store.engine import tables as store
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.hosts import hosts
from magnetar_control.store.store import CELL0

from . import matrix
from .world import World

API = "os_compute_api:"
CASES = {name if name in POLICIES else API + name: told
         for name, told in yaml.safe_load((matrix.FOLDER / "rules.yml").read_text()).items()}
OF_OPERATIONS = {one.policy for one in OPERATIONS} - {None}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.close()


def test_what_is_asked_has_a_default():
    assert not OF_OPERATIONS - POLICIES.keys()
    assert not FURTHER.keys() - POLICIES.keys()
    assert {*POLICIES.values()} <= CHECKS.keys()


def test_what_has_a_default_is_asked():
    assert not POLICIES.keys() - OF_OPERATIONS - FURTHER.keys() - OF_V1.keys()
    assert CASES.keys() == FURTHER.keys()


def test_tables_name_what_there_is():
    names = {one.name for one in OPERATIONS}
    assert not {name for one in FURTHER.values() for name in one.of.split()} - names
    assert not FORMER.keys() - POLICIES.keys()
    assert not BASE.keys() & POLICIES.keys()


def test_a_rule_without_a_default_is_a_fault(world):
    with pytest.raises(LookupError, match="os_compute_api:servers:shwo"):
        Policy().allows("os_compute_api:servers:shwo", world.parts.identity.validate(
            world.personas["member"].token))


@pytest.mark.parametrize("rule", FURTHER)
def test_who_does_not_pass_it_is_refused_or_shown_less(world, rule, monkeypatch):
    case = CASES[rule]
    route = next(one for one in matrix.every(world, "compute") if one.key == case["route"])
    told = {**route.told, **{name: case[name] for name in ("body", "query") if name in case}}
    headers = {"openstack-api-version": f"compute {case['version']}"} if "version" in case else route.headers
    given(world, dict(case.get("row", {})), case.get("flavor", {}), case.get("abroad"))
    asked, without = set(), {*case.get("also", ())}

    def allows(_self, name, _context, _project_id=None, _user_id=None):
        asked.add(name)
        return (name != ADMIN or case.get("admin", False)) and name not in without

    monkeypatch.setattr(Policy, "allows", allows)
    monkeypatch.setattr(server_topology, "_host_placement", lambda _caller, _target: case["placed"])
    ask = lambda: matrix.ask(  # noqa: E731
        world, route._replace(told=told, headers=headers), world.personas["member"], "red")[0]
    try:
        passes = ask() if route.method == "GET" else None
        assert passes is None or passes.status == 200
        asked.clear()
        without.add(rule)
        refused = ask()
        assert rule in asked
        if passes is None or refused.status == 403:
            assert refused.status == case.get("status", 403)
            assert f"Policy doesn't allow {rule} to be performed" in refused.told
        else:
            assert refused.status == 200 and content(refused) != content(passes)
    finally:
        world.restore()


def content(reply):
    """What an answer shows."""
    return reply.told[reply.told.index(" {"):] if " {" in reply.told else reply.told


def given(world, row, flavor, abroad=None):
    """Set columns of the project's server and flavor; its host has not been heard of. *abroad*: the name of a host in
    another cell."""
    mine = world.things["red"]
    if row.pop("boots_from_volume", False):
        row["volumes"] = orjson.dumps([{
            "volume_id": mine["used_volume"], "attachment_id": "a", "bdm_uuid": "b", "tag": None, "boot_index": 0,
            "device": "/dev/vda", "delete_on_termination": False}]).decode()
    with world.cell.write() as connection:
        connection.execute(store.host_states.delete())
        number = connection.execute(store.actions.select().filter_by(request_id=mine["request"])).one().id
        connection.execute(store.action_events.insert().values(
            action_id=number, event="compute_stop_instance", start_time=utc_now(), details="why"))
        connection.execute(store.servers.update().where(store.servers.c.id == mine["server"]).values(
            **row, host="kvm1"))
    with world.api.write() as connection:
        connection.execute(store.flavors.update().where(store.flavors.c.id == mine["flavor"]).values(
            **flavor, extra_specs='{"hw:cpu_policy": "shared"}'))
        if abroad:
            hosts.upsert_host_row(connection, abroad, CELL0, "unix:/nowhere")
    world.parts.hosts.all(fresh=True)
