# SPDX-License-Identifier: GPL-3.0-or-later
"""trusted_image_certificates: who may name them, for which servers, and what is kept."""

import dataclasses

import orjson
import pytest
from sqlalchemy import insert, select

from magnetar_control.compute.access import policy
from magnetar_control.compute.access.policy import Policy
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import flavors, servers

IMAGE, OTHER = "70a599e0-31e7-49b7-b260-868f441e862b", "0f2f9f7e-3d7e-4c1b-a0c6-5be1fd1d7fb5"
ON_VOLUME = {"block_device_mapping_v2": [{"boot_index": 0, "uuid": IMAGE, "source_type": "image", "volume_size": 1,
                                          "destination_type": "volume"}]}


class Images:
    """One image that everybody sees."""

    def show(self, _context, id):
        return {"id": id, "status": "active", "size": 1, "properties": {}}


@pytest.fixture
def cloud(small):
    small.host()
    with small.api.write() as connection:
        connection.execute(insert(flavors).values(id="1", name="tiny", vcpus=1, ram=64, disk=1, created_at=utc_now()))
    small.cloud.services = dataclasses.replace(small.cloud.services, image=Images())
    return small


def boot(cloud, **more):
    return cloud.alice.post("/servers", {"server": {
        "name": "web", "flavorRef": "1", "imageRef": IMAGE, "networks": "none", **more}}, "2.63")


def kept(database, id):
    with database.read() as connection:
        found = connection.execute(select(servers.c.trusted_certs).where(servers.c.id == id)).scalar_one()
    return found and orjson.loads(found)


def test_they_are_kept(cloud):
    reply = boot(cloud, trusted_image_certificates=["b", "a"])
    assert reply.status == 202, reply.message
    assert kept(cloud.databases["cell0"], reply.json["server"]["id"]) == ["b", "a"]
    reply = boot(cloud, trusted_image_certificates=None)
    assert kept(cloud.databases["cell0"], reply.json["server"]["id"]) is None


def test_a_server_on_a_volume_may_not_name_them(cloud):
    reply = boot(cloud, trusted_image_certificates=["a"], **ON_VOLUME)
    assert reply.status == 400
    assert "server.trusted_image_certificates: is not supported when booting from volume" in reply.message
    id = cloud.server(host="kvm1", image_id=IMAGE, volumes=orjson.dumps([{"boot_index": 0}]).decode())
    reply = cloud.alice.post(f"/servers/{id}/action", {"rebuild": {
        "imageRef": IMAGE, "trusted_image_certificates": ["a"]}}, "2.63")
    assert reply.status == 400 and "trusted_image_certificates" in reply.message


def test_default_ones(cloud):
    """Where both settings are true, and for servers that boot from images."""
    def default(**settings):
        cloud.cloud.settings = dataclasses.replace(cloud.cloud.settings, default_trusted_certificate_ids=["d"],
                                                   quota_instances=-1, quota_cores=-1,
                                                   **settings)
        return [kept(cloud.databases["cell0"], boot(cloud, **more).json["server"]["id"]) for more in (
            {}, ON_VOLUME, {"trusted_image_certificates": ["a"]})]

    assert default() == default(verify_image_signatures=True) == [None, None, ["a"]]
    assert default(enable_certificate_validation=True) == [["d"], None, ["a"]]
    assert default(verify_image_signatures=False) == [None, None, ["a"]]


def test_a_rebuild_keeps_changes_or_forgets_them(cloud):
    for given, expected in (({}, ["a"]), ({"trusted_image_certificates": ["b"]}, ["b"]),
                            ({"trusted_image_certificates": None}, None)):
        id = cloud.server(host="kvm1", image_id=IMAGE, trusted_certs='["a"]')
        reply = cloud.alice.post(f"/servers/{id}/action", {"rebuild": {"imageRef": IMAGE, **given}}, "2.63")
        assert (reply.status, reply.json["server"]["trusted_image_certificates"]) == (202, expected)
        assert kept(cloud.cell, id) == expected


def test_rules_are_asked(cloud, tmp_path, monkeypatch):
    monkeypatch.setattr(policy, "RECHECK_INTERVAL", 0.0)
    file = tmp_path / "policy.yaml"
    file.write_text('"os_compute_api:servers:create:trusted_certs": "!"\n'
                    '"os_compute_api:servers:rebuild:trusted_certs": "!"\n')
    monkeypatch.setattr(cloud.cloud, "policy", Policy(file))
    reply = boot(cloud, trusted_image_certificates=["a"])
    assert reply.status == 403 and "os_compute_api:servers:create:trusted_certs" in reply.message
    assert boot(cloud).status == 202
    id = cloud.server(host="kvm1", image_id=IMAGE, trusted_certs='["a"]')
    for ids in (["a"], None):
        reply = cloud.alice.post(f"/servers/{id}/action", {"rebuild": {
            "imageRef": IMAGE, "trusted_image_certificates": ids}}, "2.63")
        assert reply.status == 403 and "os_compute_api:servers:rebuild:trusted_certs" in reply.message
    assert kept(cloud.cell, id) == ["a"]
