# SPDX-License-Identifier: GPL-3.0-or-later
"""The unmodified openstacksdk over loopback: from the clouds.yaml of the beginning to an image of a new user."""

import hashlib
import os

import pytest
from keystoneauth1 import exceptions as auth_errors
from keystoneauth1.identity import v3
from keystoneauth1.session import Session
from openstack import exceptions
from openstack.config import OpenStackConfig
from openstack.connection import Connection

from magnetar_control.api.identity import app as identity
from magnetar_control.api.image.app import image_application
from magnetar_control.services import image
from magnetar_control.services.identity import clouds_yaml
from magnetar_control.services.image import quotas
from magnetar_control.web.application import by_token

from .cloud import Client, Cloud, served

MIB = 2**20


@pytest.fixture
def sdk(sqlite, tmp_path):
    """``connect(**auth)``: a connection as admin, or as somebody else."""
    cloud = Cloud(sqlite)
    images = image.EmbeddedImages(sqlite, tmp_path / "images", limit=20 * MIB)
    with served(identity=identity.identity_application(cloud.identity, {"image": images.quota}),
                image=image_application(images, by_token(cloud.identity.validate))) as url:
        clouds_yaml(tmp_path / "clouds.yaml", url, cloud.password)
        known = OpenStackConfig(config_files=[str(tmp_path / "clouds.yaml")], load_envvars=False)
        made = []

        def connect(plugin=v3.Password, **auth):
            chosen = {"session": Session(plugin(f"{url}/identity", **auth)), "region_name": "RegionOne"} if auth else {
                "config": known.get_one(cloud="magnetar")}
            made.append(Connection(**chosen))
            return made[-1]

        yield connect
        for connection in made:
            connection.close()


def test_a_project_a_user_and_an_image(sdk, tmp_path):
    admin = sdk()
    project = admin.identity.create_project(name="demo", description="x")
    user = admin.identity.create_user(name="ann", password="secret", default_project_id=project.id)
    admin.identity.assign_project_role_to_user(project, user, admin.identity.find_role("member"))
    assert {found.name for found in admin.identity.projects()} == {"admin", "service", "demo"}
    assert admin.identity.find_user("ann").id == user.id

    who = {"username": "ann", "project_name": "demo", "user_domain_id": "default", "project_domain_id": "default"}
    ann = sdk(password="secret", **who)
    assert ann.current_project_id == project.id
    assert [found.name for found in ann.identity.user_projects(user)] == ["demo"]
    with pytest.raises(exceptions.ForbiddenException):
        list(ann.identity.users())

    content = os.urandom(3 * MIB)
    (tmp_path / "disk.raw").write_bytes(content)
    made = ann.create_image("disk", filename=str(tmp_path / "disk.raw"), disk_format="raw", container_format="bare",
                            wait=True, tags=["t"], meta={"os_distro": "debian"})
    assert (made.status, made.size, made.checksum) == ("active", 3 * MIB, hashlib.md5(content).hexdigest())
    assert made.os_distro == "debian"
    got = b"".join(ann.image.download_image(made, stream=True).iter_content(65536))
    assert got == content
    changed = ann.image.update_image(made, name="new", hw_disk_bus="virtio")
    assert (changed.name, changed.hw_disk_bus) == ("new", "virtio")
    assert [found.id for found in ann.image.images(limit=1, tag="t")] == [made.id]
    with pytest.raises(exceptions.BadRequestException, match="qcow2"):
        ann.image.create_image("bad", data=content, disk_format="qcow2", container_format="bare",
                               validate_checksum=False)
    assert [found.name for found in ann.image.images()] == ["new"]
    ann.image.delete_image(made)
    assert list(ann.image.images()) == []


def test_refused_uploads_leave_a_connection_that_works(sdk):
    """Refused before, and in the midst of, the content."""
    images = sdk().image
    made = images.create_image("one", disk_format="raw", container_format="bare")
    for data, status in ((bytes(30 * MIB), 413), (b"x" * 700, 400), (bytes(MIB), 204), (bytes(8 * MIB), 409)):
        answer = images.put(f"/images/{made.id}/file", data=data, headers={"Content-Type": "application/octet-stream"})
        assert answer.status_code == status, answer.text
    assert images.get_image(made).size == MIB


def test_a_wrong_password_and_a_disabled_user(sdk):
    admin = sdk()
    who = {"username": "ann", "project_name": "admin", "user_domain_id": "default", "project_domain_id": "default"}
    user = admin.identity.create_user(name="ann", password="secret")
    admin.identity.assign_project_role_to_user(admin.current_project_id, user, admin.identity.find_role("reader"))
    with pytest.raises(exceptions.SDKException, match="requires authentication"):
        sdk(password="wrong", **who).authorize()
    ann = sdk(password="secret", **who)
    assert list(ann.image.images()) == []
    admin.identity.update_user(user, is_enabled=False)
    with pytest.raises(auth_errors.Unauthorized):  # keystoneauth tries to log in again
        ann.image.get("/images")


def test_an_application_credential(sdk):
    admin = sdk()
    made = admin.identity.create_application_credential(admin.current_user_id, "ci", roles=[{"name": "reader"}])
    reader = sdk(application_credential_id=made.id, application_credential_secret=made.secret,
                 plugin=v3.ApplicationCredential)
    assert list(reader.image.images()) == []


def test_limits_of_images_are_unified_limits(sdk):
    """As `openstack limit create --service glance --project demo --resource-limit 1 image_count_total`."""
    admin = sdk()
    service, project = admin.identity.find_service("glance"), admin.identity.create_project(name="demo")
    assert {one.resource_name: one.default_limit for one in admin.identity.registered_limits(service_id=service.id)} \
        == {"image_count_total": 100, "image_size_total": 1024_000}
    about = {"service_id": service.id, "project_id": project.id}
    limit = admin.identity.create_limit(resource_name="image_count_total", resource_limit=1, **about)
    assert admin.identity.get_limit(limit.id).resource_limit == 1
    assert [one.id for one in admin.identity.limits(project_id=project.id)] == [limit.id]
    admin.identity.create_user(name="ann", password="secret", default_project_id=project.id)
    admin.identity.assign_project_role_to_user(project, admin.identity.find_user("ann"),
                                               admin.identity.find_role("member"))
    ann = sdk(password="secret", username="ann", project_name="demo", user_domain_id="default",
              project_domain_id="default")
    ann.image.create_image("one", disk_format="raw", container_format="bare")
    with pytest.raises(exceptions.HttpException, match="over limit of 1 due to current usage 1"):
        ann.image.create_image("two", disk_format="raw", container_format="bare")
    assert [one.resource_limit for one in ann.identity.limits()] == [1]
    with pytest.raises(exceptions.ForbiddenException):
        ann.identity.update_limit(limit.id, resource_limit=9)
    assert admin.identity.update_limit(limit.id, resource_limit=2).resource_limit == 2
    ann.image.create_image("two", disk_format="raw", container_format="bare")
    admin.identity.delete_limit(limit.id)
    assert list(admin.identity.limits()) == []
    (count,) = admin.identity.registered_limits(resource_name="image_count_total")
    assert admin.identity.update_registered_limit(count.id, default_limit=2).default_limit == 2
    with pytest.raises(exceptions.HttpException, match="over limit of 2"):
        ann.image.create_image("three", disk_format="raw", container_format="bare")


def test_limits_that_cannot_be_are_refused(cloud):
    images = quotas.image_quotas({})
    admin = Client(identity.identity_application(cloud.identity, {"image": images}), token=cloud.admin.token)
    (service,) = admin("GET", "/v3/services?type=image", None, 200)["services"]
    (project,) = admin("GET", "/v3/projects?name=admin", None, 200)["projects"]
    good = {"service_id": service["id"], "project_id": project["id"], "resource_name": "image_size_total",
            "resource_limit": 5}
    for wrong, status in (
            ({"resource_name": "moons"}, 403), ({"service_id": "x"}, 403), ({"project_id": "x"}, 400),
            ({"resource_limit": -2}, 400), ({"resource_limit": "many"}, 400), ({"region_id": "west"}, 400),
            ({"domain_id": "default"}, 400), ({"description": "mine"}, 400), ({"colour": "red"}, 400)):
        assert admin("POST", "/v3/limits", {"limits": [{**good, **wrong}]}, status)["error"]["message"]
    for wrong in ({}, {"limits": []}, {"limits": "all"}, []):
        admin("POST", "/v3/limits", wrong, 400)
    (limit,) = admin("POST", "/v3/limits", {"limits": [good]}, 201)["limits"]
    admin("POST", "/v3/limits", {"limits": [good]}, 409)
    for path in ("limits", "registered_limits"):  # the only region, as clients of a cloud name it, is all of them
        assert admin("GET", f"/v3/{path}?region_id=RegionOne")[path] == admin("GET", f"/v3/{path}")[path] != []
        assert admin("GET", f"/v3/{path}?region_id=west")[path] == []
    body = {"limit": {"resource_limit": 6, "region_id": "RegionOne", "description": None, "domain_id": None}}
    assert admin("PATCH", f"/v3/limits/{limit['id']}", body, 200)["limit"]["resource_limit"] == 6
    admin("POST", "/v3/regions", {"region": {"id": "west"}}, 201)
    refused = admin("PATCH", f"/v3/limits/{limit['id']}", body, 400)["error"]["message"]
    assert "limit.region_id: must be null: limits of projects hold in all regions" in refused
    admin("DELETE", "/v3/regions/west", None, 204)
    admin("PATCH", f"/v3/limits/{limit['id']}", {"limit": {"resource_limit": -1}}, 200)
    for path in ("limits", "registered_limits"):
        admin("GET", f"/v3/{path}/none", None, 404)
    admin("POST", "/v3/registered_limits", {"registered_limits": []}, 403)
    assert admin("GET", "/v3/limits/model", None, 200)["model"]["name"] == "flat"
