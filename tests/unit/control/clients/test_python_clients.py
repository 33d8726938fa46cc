# SPDX-License-Identifier: GPL-3.0-or-later
"""python-keystoneclient, -glanceclient, -neutronclient and -cinderclient, unmodified, with a cloud over OVN."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from cinderclient import exceptions as cinder_errors
from glanceclient import exc as glance_errors
from keystoneauth1.exceptions import http as keystone_errors
from keystoneauth1.identity import v3
from keystoneauth1.session import Session
from neutronclient.common import exceptions as neutron_errors

from tests.support.control.cloud import Cloud
from tests.support.openstack_clients import all_clients, logged_in
from tests.support.routed_cloud import add_outside_network, routed_cloud
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, *(pytest.mark.filterwarnings(f"ignore::Warning:{name}") for name in (
    "novaclient", "neutronclient", "glanceclient", "cinderclient", "keystoneclient", "openstack"))]
ABSENT = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with routed_cloud(tmp_path_factory.mktemp("ovn")) as made:
        yield made


@pytest.fixture(scope="module")
def clients(cloud: Cloud) -> Iterator[dict[str, Any]]:
    with logged_in(cloud.port, "admin", cloud.password, "admin") as session:
        yield all_clients(session)


def test_keystoneclient_has_projects_users_and_roles(cloud: Cloud, clients: dict[str, Any]) -> None:
    keystone = clients["keystoneclient"]
    project = keystone.projects.create("keystone1", "default", description="text", tags=["a"])
    assert keystone.projects.get(project.id).tags == ["a"] and keystone.projects.find(name="keystone1") == project
    assert keystone.projects.update(project, description="other").description == "other"
    user = keystone.users.create("ann", domain="default", password="secret-of-ann", default_project=project)
    member = keystone.roles.find(name="member")
    keystone.roles.grant(member, user=user, project=project)
    assert keystone.roles.check(member, user=user, project=project)
    assert [one.role["id"] for one in keystone.role_assignments.list(user=user)] == [member.id]
    group = keystone.groups.create("keystone1", domain="default")
    keystone.users.add_to_group(user, group)
    assert keystone.users.list(group=group) == [user] and keystone.groups.list(user=user) == [group]
    with logged_in(cloud.port, "ann", "secret-of-ann", "keystone1") as session:
        own = all_clients(session)["keystoneclient"]
        credential = own.application_credentials.create("keystone1", roles=[{"name": "member"}])
        assert [one.id for one in own.application_credentials.list()] == [credential.id]
        own.application_credentials.delete(credential)
        assert [one.id for one in own.auth.projects()] == [project.id]
        assert [one.id for one in own.projects.list(user=user)] == [project.id]
        with pytest.raises(keystone_errors.Forbidden):
            own.users.list()
    assert keystone.tokens.get_token_data(keystone.session.get_token())["token"]["project"]["name"] == "admin"
    assert {one.type for one in keystone.services.list()} >= {"compute", "identity"} and keystone.endpoints.list()
    assert keystone.regions.list() and keystone.domains.get("default").name == "Default"
    for made in (group, user, project):
        made.delete()
    with pytest.raises(keystone_errors.NotFound):
        keystone.projects.get(project.id)


def test_keystoneclient_has_trusts(cloud: Cloud, clients: dict[str, Any]) -> None:
    keystone = clients["keystoneclient"]
    ann = cloud.caller("trustor", "trusting", "member")
    keystone.users.update(ann.user_id, password="secret-of-ann")
    bob = keystone.users.create("trustee", domain="default", password="secret-of-bob")
    with logged_in(cloud.port, "trustor", "secret-of-ann", "trusting") as session:
        own = all_clients(session)["keystoneclient"]
        trust = own.trusts.create(bob, ann.user_id, role_names=["member"], project=ann.project_id, impersonation=True)
        assert [one.id for one in own.trusts.list(trustor_user=ann.user_id)] == [trust.id]
        assert [role["name"] for role in own.trusts.get(trust).roles] == ["member"]
        by_trust = Session(auth=v3.Password(
            auth_url=f"http://127.0.0.1:{cloud.port}/identity/v3", user_id=bob.id, password="secret-of-bob",
            trust_id=trust.id))
        assert (by_trust.get_user_id(), by_trust.get_project_id()) == (ann.user_id, ann.project_id)
        assert all_clients(by_trust)["novaclient"].servers.list() == []
        own.trusts.delete(trust)
        with pytest.raises(keystone_errors.NotFound):
            own.trusts.get(trust)
        by_trust.session.close()


def test_glanceclient_leads_an_image_through_its_life(clients: dict[str, Any]) -> None:
    glance = clients["glanceclient"]
    image = glance.images.create(name="glance1", disk_format="raw", container_format="bare", color="red")
    glance.images.upload(image.id, io.BytesIO(b"\0" * 65536))
    assert glance.images.get(image.id).status == "active" and b"".join(glance.images.data(image.id)) == b"\0" * 65536
    assert glance.images.update(image.id, remove_props=["color"], name="glance2", visibility="shared").name == "glance2"
    assert "color" not in glance.images.get(image.id)
    assert image.id in [one.id for one in glance.images.list(filters={"name": "glance2"}, page_size=1)]
    glance.image_tags.update(image.id, "blue")
    assert glance.images.get(image.id).tags == ["blue"]
    glance.image_tags.delete(image.id, "blue")
    glance.image_members.create(image.id, ABSENT)
    assert [one.member_id for one in glance.image_members.list(image.id)] == [ABSENT]
    glance.image_members.delete(image.id, ABSENT)
    glance.images.deactivate(image.id)
    glance.images.reactivate(image.id)
    glance.images.delete(image.id)
    with pytest.raises(glance_errors.HTTPNotFound, match=image.id):
        glance.images.get(image.id)


def test_neutronclient_has_networks_routers_and_floating_ips(cloud: Cloud, clients: dict[str, Any]) -> None:
    neutron = clients["neutronclient"]
    outside = add_outside_network(cloud)
    inside = neutron.create_network({"network": {"name": "inside"}})["network"]["id"]
    subnet = neutron.create_subnet({"subnet": {"network_id": inside, "cidr": "10.9.0.0/24", "ip_version": 4}})["subnet"]
    router = neutron.create_router({"router": {"name": "neutron1", "external_gateway_info": {
        "network_id": outside}}})["router"]["id"]
    neutron.add_interface_router(router, {"subnet_id": subnet["id"]})
    group = neutron.create_security_group({"security_group": {"name": "neutron1"}})["security_group"]["id"]
    neutron.create_security_group_rule({"security_group_rule": {
        "security_group_id": group, "direction": "ingress", "protocol": "tcp", "port_range_min": 22,
        "port_range_max": 22}})
    port = neutron.create_port({"port": {"network_id": inside, "security_groups": [group]}})["port"]
    address = neutron.create_floatingip({"floatingip": {"floating_network_id": outside, "port_id": port["id"]}})
    assert neutron.show_floatingip(address["floatingip"]["id"])["floatingip"]["fixed_ip_address"] == port["fixed_ips"][
        0]["ip_address"]
    assert neutron.update_port(port["id"], {"port": {"name": "neutron1"}})["port"]["name"] == "neutron1"
    assert port["id"] in [one["id"] for one in neutron.list_ports(network_id=inside)["ports"]]
    with pytest.raises(neutron_errors.Conflict):
        neutron.delete_network(inside)
    neutron.delete_floatingip(address["floatingip"]["id"])
    neutron.delete_port(port["id"])
    neutron.remove_interface_router(router, {"subnet_id": subnet["id"]})
    neutron.delete_router(router)
    neutron.delete_security_group(group)
    for network in (inside, outside):
        neutron.delete_network(network)
    with pytest.raises(neutron_errors.NotFound, match=inside):
        neutron.show_network(inside)


def test_cinderclient_leads_a_volume_through_its_life(clients: dict[str, Any]) -> None:
    cinder = clients["cinderclient"]
    volume = cinder.volumes.create(1, name="cinder1", metadata={"a": "b"})
    eventually(lambda: cinder.volumes.get(volume.id).status == "available")
    assert cinder.volumes.update(volume, name="cinder2")["volume"]["name"] == "cinder2"
    cinder.volumes.set_metadata(volume, {"c": "d"})
    assert cinder.volumes.get(volume.id).metadata == {"a": "b", "c": "d"}
    snapshot = cinder.volume_snapshots.create(volume.id, name="cinder1")
    eventually(lambda: cinder.volume_snapshots.get(snapshot.id).status == "available")
    cinder.volume_snapshots.delete(snapshot)
    eventually(lambda: not cinder.volume_snapshots.list())
    cinder.volumes.extend(volume, 2)
    eventually(lambda: cinder.volumes.get(volume.id).size == 2)
    kind = cinder.volume_types.create("cinder1")
    kind.set_keys({"multiattach": "<is> False"})
    assert kind.get_keys() == {"multiattach": "<is> False"}
    cinder.volume_types.delete(kind)
    assert cinder.limits.get().to_dict()["absolute"]["totalVolumesUsed"] >= 1
    assert cinder.quotas.get(cinder.client.session.get_project_id()).volumes
    assert cinder.availability_zones.list() and cinder.pools.list()
    cinder.volumes.delete(volume)
    eventually(lambda: volume.id not in [one.id for one in cinder.volumes.list()])
    with pytest.raises(cinder_errors.NotFound, match=volume.id):
        cinder.volumes.get(volume.id)


def test_cinderclient_transfers_a_volume_to_another_project(cloud: Cloud, clients: dict[str, Any]) -> None:
    cinder = clients["cinderclient"]
    volume = cinder.volumes.create(1, name="given")
    eventually(lambda: cinder.volumes.get(volume.id).status == "available")
    transfer = cinder.transfers.create(volume.id, name="gift", no_snapshots=True)
    assert cinder.volumes.get(volume.id).status == "awaiting-transfer"
    assert [one.id for one in cinder.transfers.list()] == [transfer.id]
    assert not hasattr(cinder.transfers.get(transfer.id), "auth_key")
    bob = cloud.caller("receiver", "receiving", "member")
    clients["keystoneclient"].users.update(bob.user_id, password="secret-of-bob")
    with logged_in(cloud.port, "receiver", "secret-of-bob", "receiving") as session:
        own = all_clients(session)["cinderclient"]
        with pytest.raises(cinder_errors.BadRequest, match="Invalid auth key"):
            own.transfers.accept(transfer.id, "0" * 32)
        assert own.transfers.accept(transfer.id, transfer.auth_key).volume_id == volume.id
        assert [one.id for one in own.volumes.list()] == [volume.id] and own.transfers.list() == []
        own.volumes.delete(volume.id)
    with pytest.raises(cinder_errors.NotFound, match=transfer.id):
        cinder.transfers.delete(transfer.id)
