# SPDX-License-Identifier: GPL-3.0-or-later
"""A dry run predicts the host that the conductor chooses, or the refusal, whatever a create asks for."""

import itertools
import uuid

import pytest
from sqlalchemy import insert

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.placement.scheduling import predicted_host
from magnetar_control.conductor.steps.schedule import run_scheduling
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.services import Context, Services
from magnetar_control.settings import USUAL_FILTERS
from magnetar_control.store.actions import actions
from magnetar_control.store.claims import allocations
from magnetar_control.store.claims.allocations import Amounts, Ratios
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.tables import server_group_members
from magnetar_control.store.hosts import aggregates, hosts
from magnetar_control.store.servers import server_groups, servers
from magnetar_core.errors import NoSpace, NotFound
from tests.unit.control.api.compute import CELL1, Compute, emptied
from tests.unit.control.conftest import tables

ADMIN = Context("boss", "red", frozenset(("admin",)))
FLAVOR = {"id": "1", "name": "tiny", "vcpus": 1, "ram": 512, "disk": 10, "ephemeral": 0, "swap": 0, "extra_specs": {}}
#: The roomiest host comes first; no two weigh the same.
MEMORY = {"kvm1": 65536, "kvm2": 32768, "kvm3": 16384, "kvm4": 8192}
TRAITS = {"kvm1": ["CUSTOM_SLOW"], "kvm3": ["CUSTOM_SSD"]}
#: Servers that are there already, and the groups that they are in.
THERE = {"on-kvm1": "kvm1", "on-kvm2": "kvm2", "on-kvm3": "kvm3"}
GROUPS = {"affinity": ["on-kvm3"], "anti-affinity": ["on-kvm1", "on-kvm2"], "soft-affinity": ["on-kvm3"],
          "soft-anti-affinity": ["on-kvm1"], "empty": []}


class Volumes:
    """Volumes and snapshots that are called by the host they lie on."""

    @property
    def homes(self):
        return self

    def hosts_for_build(self, attachments):
        hosts = [{self.where(one["volume_id"])} for one in attachments if one["boot_index"] == 0]
        return frozenset(hosts[0]) if hosts else None

    def where(self, id):
        if not id.startswith("on-"):
            raise NotFound("There is no such volume.")
        return id.removeprefix("on-")

    def snapshot(self, _context, id):
        return {"host": id.removeprefix("on-")} if id.startswith("on-") else None

    def detached(self, _attachment_id, _sure):
        """Of a server that no host is found for."""


def block(source_type, id, boot_index=0):
    return {"boot_index": boot_index, "source_type": source_type, "destination_type": "volume", "uuid": id}


def flavor(**more):
    return {"flavor": {**FLAVOR, **more}}


#: What a create asks for, by columns of the server's row; and the host, ``None`` for no valid host.
CASES = {
    "nothing": ({}, "kvm1"),
    "a host": ({"request": {"host": "kvm4"}}, "kvm4"),
    "a hypervisor": ({"request": {"hypervisor_hostname": "kvm3"}}, "kvm3"),
    "a host that is down": ({"request": {"host": "kvm5"}}, None),
    "a host without room": ({"request": {"host": "kvm4"}, **flavor(ram=8000 * 2)}, None),
    "a zone": ({"pinned_availability_zone": "hall2"}, "kvm3"),
    "the zone of the settings": ({"availability_zone": "hall2"}, "kvm3"),
    "a zone without hosts": ({"pinned_availability_zone": "hall9"}, None),
    "a host in another zone": ({"request": {"host": "kvm1"}, "pinned_availability_zone": "hall2"}, None),
    "not with a server": ({"hints": {"different_host": ["on-kvm1"]}}, "kvm2"),
    "not with several": ({"hints": {"different_host": ["on-kvm1", "on-kvm2", "on-kvm3"]}}, "kvm4"),
    "not with a server without a host": ({"hints": {"different_host": "nowhere"}}, "kvm1"),
    "with a server": ({"hints": {"same_host": ["on-kvm3"]}}, "kvm3"),
    "with one of several": ({"hints": {"same_host": ["on-kvm2", "on-kvm3"]}}, "kvm2"),
    "with a server without a host": ({"hints": {"same_host": "nowhere"}}, None),
    "with and without": ({"hints": {"same_host": "on-kvm1", "different_host": "on-kvm1"}}, None),
    "a query": ({"hints": {"query": '["<", "$memory_mb", 10000]'}}, "kvm4"),
    "affinity": ({"hints": {"group": "affinity"}}, "kvm3"),
    "affinity in another zone": ({"hints": {"group": "affinity"}, "pinned_availability_zone": "nova"}, None),
    "anti-affinity": ({"hints": {"group": "anti-affinity"}}, "kvm3"),
    "soft affinity": ({"hints": {"group": "soft-affinity"}}, "kvm3"),
    "soft anti-affinity": ({"hints": {"group": "soft-anti-affinity"}}, "kvm2"),
    "a group without members": ({"hints": {"group": "empty"}}, "kvm1"),
    "a group that is gone": ({"hints": {"group": "gone"}}, "kvm1"),
    "a root volume": ({"request": {"blocks": [block("volume", "on-kvm2")]}}, "kvm2"),
    "a root volume of a snapshot": ({"request": {"blocks": [block("snapshot", "on-kvm3")]}}, "kvm3"),
    "a root volume that is gone": ({"request": {"blocks": [block("volume", "gone")]}}, "kvm1"),
    "a data volume": ({"request": {"blocks": [block("volume", "on-kvm4", 1)]}}, "kvm1"),
    "a root volume elsewhere": ({"request": {"host": "kvm1", "blocks": [block("volume", "on-kvm2")]}}, None),
    "a root volume and a large flavor": ({"request": {"blocks": [block("blank", None)]}, **flavor(disk=999)}, "kvm1"),
    "an image of another machine": ({"image": {"properties": {"hw_architecture": "aarch64"}}}, None),
    "extra specs": (flavor(extra_specs={"capabilities:cpu_model": "Xeon"}), "kvm2"),
    "a trait": (flavor(extra_specs={"trait:CUSTOM_SSD": "required"}), "kvm3"),
    "not a trait": (flavor(extra_specs={"trait:CUSTOM_SLOW": "forbidden"}), "kvm2"),
    "a trait of the image": ({"image": {"properties": {"trait:CUSTOM_SLOW": "required"}}}, "kvm1"),
    "a trait that no host has": (flavor(extra_specs={"trait:CUSTOM_GOLD": "required"}), None),
    "traits that exclude each other": (flavor(extra_specs={"trait:CUSTOM_SSD": "forbidden",
                                                           "trait:CUSTOM_SLOW": "forbidden"}), "kvm2"),
    "a part of the flavor's CPUs": (flavor(vcpus=99, extra_specs={"resources:VCPU": "1"}), "kvm1"),
    "no disk of the host": (flavor(disk=9999, extra_specs={"resources:DISK_GB": "0"}), "kvm1"),
    "more memory than the flavor's": (flavor(extra_specs={"resources:MEMORY_MB": "99999"}), None),
    "an aggregate for another flavor": (flavor(name="huge"), "kvm2"),
    "too much": (flavor(vcpus=64), None),
}
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def databases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prediction")
    found = {name: Database(f"sqlite:///{folder}/{name}.db", name) for name in ("api", "cell0", "cell1")}
    for database in found.values():
        tables(database)
    yield found
    for database in found.values():
        database.close()


@pytest.fixture
def cloud(databases, tmp_path):
    """Four hosts that are up, one that is down, servers on three of them, and groups."""
    made = Compute(databases, tmp_path, enabled_filters=[*USUAL_FILTERS, "JsonFilter", "AggregateTypeAffinityFilter"],
                   soft_affinity_weight_multiplier=10.0, soft_anti_affinity_weight_multiplier=10.0)
    made.cloud.services = Services(None, None, None, Volumes(), None)
    ids = {name: made.host(name, memory_mb=memory, disk_gb=memory // 256, architecture="x86_64",
                           cpu_model="Xeon" if name == "kvm2" else "EPYC",
                           traits=TRAITS.get(name, [])) for name, memory in MEMORY.items()}
    made.host("kvm5", seen=False, memory_mb=99999)
    with made.api.write() as connection:
        zone = aggregates.insert_aggregate_row(connection, "hall2", {"availability_zone": "hall2"})
        aggregates.insert_aggregate_host_row(connection, zone, "kvm3")
        tiny = aggregates.insert_aggregate_row(connection, "tiny", {"instance_type": "tiny"})
        aggregates.insert_aggregate_host_row(connection, tiny, "kvm1")
        for server, host in THERE.items():
            allocations.claim_host_resources(connection, server, server, ids[host], Amounts(0, 64, 1), cell_id=CELL1,
                             project_id="red")
        for name, members in GROUPS.items():
            server_groups.insert_server_group_row(connection, id=name, name=name, project_id="red", user_id="boss",
                                                  policy="affinity" if name == "empty" else name)
            for member in members:
                connection.execute(insert(server_group_members).values(group_id=name, server_id=member))
    yield made.cloud
    emptied(databases)


def row_of(columns):
    """The row of a server that is to be created."""
    documents = {"flavor": FLAVOR, "request": {}, "hints": {}, "image": {}}
    documents |= {name: columns[name] for name in documents if name in columns}
    found = {"id": str(uuid.uuid4()), "project_id": "red", "user_id": "boss", "name": "web", "vm_state": "building",
             "task_state": "scheduling", "flavor_id": "1", "created_at": utc_now(), "availability_zone": None,
             "pinned_availability_zone": None}
    return {**found, **columns, **{name: servers.json_text(document) for name, document in documents.items()}}


def predicted(cloud, row):
    """The host that the dry run names, or why there is none."""
    try:
        return predicted_host(Caller(cloud, ADMIN, "req-dry"), row)
    except NoSpace as error:
        return error.message


def chosen(cloud, row):
    """The host that the flow of the conductor claims, or why there is none."""
    conductor = Conductor(cloud.settings, cloud.store, cloud.services, cloud.agents, "cell1", None)
    conductor.read_hosts()
    for name in ("kvm1", "kvm2", "kvm3", "kvm4", "kvm5"):
        conductor.states.up(name, up=name != "kvm5")
    conductor.settling = lambda: False  # it is not waited for hosts that come up
    cell0 = cloud.store.cell0
    with cell0.write() as connection:
        servers.insert_server_rows(connection, [row], f"req-{next(NUMBERS)}")
    (action,) = actions.lease_next_actions(cell0, conductor.holder, 1, {}).rows
    run_scheduling(RunningAction(conductor, cell0, action))
    with cloud.store.api.read() as connection:
        held = allocations.fetch_server_claims(connection, row["id"])
    if held:
        return held[0].host
    with cell0.read() as connection:
        return servers.fetch_server_row(connection, row["id"]).fault["details"]


@pytest.mark.parametrize("case", CASES)
def test_a_dry_run_predicts_what_the_conductor_does(cloud, monkeypatch, case):
    columns, host = CASES[case]
    monkeypatch.setattr("magnetar_control.conductor.steps.schedule.RANDOM", None)
    row = row_of(columns)
    found = predicted(cloud, row)
    assert found == chosen(cloud, row)
    if host is None:
        assert found.startswith("No valid host was found. There are not enough hosts available. Of 5 hosts")
    else:
        assert found == host


def test_users_are_not_told_which_filter_refused(cloud):
    user = Caller(cloud, Context("alice", "red", frozenset(("member",))), "req-dry")
    with pytest.raises(NoSpace) as refused:
        predicted_host(user, row_of(flavor(vcpus=64)))
    assert refused.value.message == "No valid host was found. There are not enough hosts available."


def test_a_server_that_is_replaced_leaves_its_room(cloud):
    caller, row = Caller(cloud, ADMIN, "req-dry"), row_of(flavor(vcpus=130))
    with pytest.raises(NoSpace):
        predicted_host(caller, row)
    assert predicted_host(caller, row, freed={**FLAVOR, "vcpus": 130, "disk": 0}) == "kvm1"


def test_a_server_that_is_replaced_leaves_its_devices(cloud):
    """The only GPU is that of the server."""
    info = {"vcpus": 16, "memory_mb": 8192, "disk_gb": 32, "pci_devices": {"gpu": {"total": 1, "free": 0}},
            "pci_pools": [{"aliases": ["gpu"], "numa_node": -1, "total": 1, "free": 0}]}
    with cloud.store.api.write() as connection:
        hosts.save_host_inventory(connection, "kvm4", info, Ratios())
    wants = flavor(extra_specs={"pci_passthrough:alias": "gpu:1"})
    caller, row = Caller(cloud, ADMIN, "req-dry"), row_of(wants)
    for freed in (None, FLAVOR):
        with pytest.raises(NoSpace):
            predicted_host(caller, row, freed=freed)
    freed = {**FLAVOR, **wants["flavor"]}
    assert predicted_host(caller, row, freed=freed) == "kvm4"
    with pytest.raises(NoSpace):
        predicted_host(caller, row_of(flavor(extra_specs={"pci_passthrough:alias": "gpu:2"})), freed=freed)
