# SPDX-License-Identifier: GPL-3.0-or-later
"""The nouns besides servers, as openstacksdk asks for them, and that what is set reaches scheduler and hosts."""

import openstack
import pytest

from tests.support.control.cloud import Cloud

#: The SDK warns of its own parts.
pytestmark = pytest.mark.filterwarnings("ignore::Warning:openstack")


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=2) as made:
        yield made


@pytest.fixture(scope="module")
def compute(cloud):
    connection = openstack.connect(
        auth_url=f"http://127.0.0.1:{cloud.port}/identity/v3", username="admin", password=cloud.password,
        project_name="admin", user_domain_id="default", project_domain_id="default", region_name=None)
    yield connection.compute
    connection.close()


def test_flavors(compute):
    flavor = compute.create_flavor(name="sdk", ram=64, vcpus=1, disk=1, is_public=False, description="for a test")
    compute.create_flavor_extra_specs(flavor, {"hw:cpu_policy": "shared"})
    assert compute.find_flavor("sdk", get_extra_specs=True).extra_specs == {"hw:cpu_policy": "shared"}
    project = compute.get_project_id()
    compute.flavor_add_tenant_access(flavor, project)
    assert [one["tenant_id"] for one in compute.get_flavor_access(flavor)] == [project]
    compute.flavor_remove_tenant_access(flavor, project)
    assert compute.update_flavor(flavor.id, description="other").description == "other"
    compute.delete_flavor(flavor)
    assert compute.find_flavor("sdk") is None


def test_keypairs(compute):
    pair = compute.create_keypair(name="sdk")
    assert pair.private_key
    assert compute.find_keypair("sdk").fingerprint == pair.fingerprint
    assert [one.name for one in compute.keypairs()] == ["sdk"]
    compute.delete_keypair("sdk")


def test_groups_and_quotas(compute):
    group = compute.create_server_group(name="sdk", policy="anti-affinity")
    assert [one.id for one in compute.server_groups()] == [group.id]
    compute.delete_server_group(group)
    project = compute.get_project_id()
    assert compute.update_quota_set(project, cores=7).cores == 7
    assert compute.get_limits().absolute.total_cores == 7
    compute.revert_quota_set(project)
    assert compute.get_quota_set(project, usage=True).usage["cores"] == 0


def test_services_and_hypervisors(compute):
    services = {one.host: one for one in compute.services(binary="nova-compute")}
    assert {one.state for one in services.values()} == {"up"}
    conductor = next(compute.services(binary="nova-conductor"))
    assert (conductor.state, conductor.availability_zone) == ("up", "internal")
    service = compute.disable_service(services["kvm1"], disabled_reason="new fan")
    assert compute.find_hypervisor("kvm1", details=True).status == "disabled"
    compute.update_service(service, status="enabled")
    shown = list(compute.hypervisors(details=True))
    assert [one.name for one in shown] == ["kvm1", "kvm2"]
    assert {one.uptime for one in shown} == {
        " 08:32:11 up 93 days, 18:25, 12 users,  load average: 0.20, 0.12, 0.14"}


def test_a_zone_is_where_its_servers_go(cloud, compute):
    aggregate = compute.create_aggregate(name="sdk", availability_zone="north")
    compute.add_host_to_aggregate(aggregate, "kvm2")
    compute.set_aggregate_metadata(aggregate, ssd="true")
    assert {zone.name for zone in compute.availability_zones()} == {"north", "nova"}
    cloud.parts.working.read_hosts()  # which conductors do every 3 s
    server = cloud.admin.boot("zoned", availability_zone="north")
    assert (server["OS-EXT-SRV-ATTR:host"], server["OS-EXT-AZ:availability_zone"]) == ("kvm2", "north")
    found = compute.get_server(server["id"])
    compute.set_server_metadata(found, role="web")
    compute.add_tag_to_server(found, "shop")
    shown = compute.get_server(server["id"])
    assert (shown.metadata, shown.tags) == ({"role": "web"}, ["shop"])
    assert [one.action for one in compute.server_actions(found)] == ["create"]
    create = compute.get_server_action(next(compute.server_actions(found)), found)
    assert "Success" in {event.result for event in create.events}
    assert list(compute.server_ips(found))
    diagnostics = compute.get_server_diagnostics(found)
    assert (diagnostics.state, diagnostics.num_cpus, diagnostics.cpu_details[0]["time"]) == (
        "running", 1, 17300000000)
    assert compute.hypervisors(details=True, with_servers=True)
    assert cloud.admin.delete(f"/v2.1/servers/{found.id}").status == 204
    assert cloud.admin.settled(found.id) is None
    assert [one.action for one in compute.server_actions(found.id)] == ["delete", "create"]
    compute.remove_host_from_aggregate(aggregate, "kvm2")
    compute.delete_aggregate(aggregate)
