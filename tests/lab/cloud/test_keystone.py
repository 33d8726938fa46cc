# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud whose users are those of a real Keystone, Debian's own: all of its services believe its tokens, and no
others."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.lab.agent import eventually
from tests.support.lab.keystone import PASSWORD, LabKeystone, asked
from tests.support.lab.plane import LabControl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab
#: What the catalogue must have, as docs/howto/use-your-own-keystone.md says.
CATALOGUE = {"compute": "/v2.1", "image": "/image", "network": "/network", "block-storage": "/volume/v3/%(project_id)s"}
#: Seconds after which a token that was taken back is good nowhere: Keystone's answer is believed for five. The rest is
#: for a machine that is busy with other things.
TAKEN_BACK = 60.0


@pytest.fixture(scope="module")
def keystone() -> Iterator[LabKeystone]:
    with LabKeystone() as made:
        made.member("magnetar", "service", "admin")
        made.member("ann", "red")
        made.member("bob", "blue")
        yield made


@pytest.fixture(scope="module")
def control(keystone: LabKeystone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabControl]:
    folder: Path = tmp_path_factory.mktemp("keystone")
    secret = folder / "password"
    secret.write_text(PASSWORD)
    place: Any = SimpleNamespace(folder=folder, endpoint="", cidr="10.99.0.0/24")
    with LabControl(place, hosts={}, keystone_url=keystone.url, keystone_password_file=str(secret)) as made:
        for kind, path in CATALOGUE.items():
            keystone.offer(kind, of(made, path))
        yield made


def of(control: LabControl, path: str) -> str:
    """The URL of a path."""
    return f"http://127.0.0.1:{control.port}{path}"


def test_the_embedded_service_is_not_there(control: LabControl, keystone: LabKeystone) -> None:
    status, _headers, body = asked("POST", of(control, "/identity/v3/auth/tokens"), body={"auth": {}})
    assert status == 404
    assert keystone.url in json.loads(body)["error"]["message"]
    assert not (control.folder / "clouds.yaml").exists()


@pytest.mark.parametrize("path", ["/v2.1/flavors", "/image/v2/images", "/network/v2.0/networks", "/volume/v3/volumes",
                                  "/metrics"])
def test_all_services_believe_keystone(control: LabControl, keystone: LabKeystone, path: str) -> None:
    for token in ("", "invented"):
        status, headers, _body = asked("GET", of(control, path), token)
        assert status == 401
        assert headers["WWW-Authenticate"] == f'Keystone uri="{keystone.url}"'
    status, _headers, body = asked("GET", of(control, path), keystone.admin) if path != "/metrics" else (200, None, "")
    assert status == 200, body


def test_roles_are_those_of_keystone(control: LabControl, keystone: LabKeystone) -> None:
    flavor = {"flavor": {"name": "small", "vcpus": 1, "ram": 64, "disk": 1}}
    ann = keystone.login("ann", PASSWORD, "red")
    assert asked("POST", of(control, "/v2.1/flavors"), ann, flavor)[0] == 403
    assert asked("POST", of(control, "/v2.1/flavors"), keystone.admin, flavor)[0] == 200
    for project, wanted in (("nobody", 400), (keystone.make("project", name="green"), 200)):
        assert asked("PUT", of(control, f"/v2.1/os-quota-sets/{project}"), keystone.admin,
                     {"quota_set": {"cores": 7}})[0] == wanted


def test_a_project_sees_only_its_own(control: LabControl, keystone: LabKeystone) -> None:
    ann, bob = keystone.login("ann", PASSWORD, "red"), keystone.login("bob", PASSWORD, "blue")
    image = asked("POST", of(control, "/image/v2/images"), ann, {
        "name": "tiny", "disk_format": "raw", "container_format": "bare", "visibility": "private"})[2]["id"]
    assert asked("PUT", of(control, f"/image/v2/images/{image}/file"), ann, bytes(65536))[0] == 204
    flavors = asked("GET", of(control, "/v2.1/flavors"), ann)[2]["flavors"]
    status, _headers, body = asked("POST", of(control, "/v2.1/servers"), ann, {"server": {
        "name": "web1", "imageRef": image, "flavorRef": flavors[0]["id"]}})
    assert status == 202, body
    id = body["server"]["id"]

    def servers(token: str) -> list[str]:
        return [one["id"] for one in asked("GET", of(control, "/v2.1/servers"), token)[2]["servers"]]

    assert (servers(ann), servers(bob)) == ([id], [])
    for path in (f"/v2.1/servers/{id}", f"/image/v2/images/{image}"):
        assert [asked("GET", of(control, path), token)[0] for token in (ann, bob, keystone.admin)] == [200, 404, 200]
    (control.folder / "clouds.yaml").write_text(yaml.safe_dump({"clouds": {"magnetar": {
        "region_name": "RegionOne", "auth": {"auth_url": keystone.url, "username": "ann", "password": PASSWORD,
                                             "project_name": "red", "user_domain_id": "default",
                                             "project_domain_id": "default"}}}}))
    done = control.openstack("server list -f value -c Name")
    assert (done.returncode, done.stdout.split()) == (0, ["web1"]), done.stdout
    assert asked("DELETE", of(control, f"/v2.1/servers/{id}"), ann)[0] == 204


def test_what_keystone_takes_back_is_taken_back(control: LabControl, keystone: LabKeystone) -> None:
    ann, bob = keystone.login("ann", PASSWORD, "red"), keystone.login("bob", PASSWORD, "blue")
    url = of(control, "/v2.1/flavors")
    assert [asked("GET", url, token)[0] for token in (ann, bob)] == [200, 200]
    assert asked("DELETE", f"{keystone.url}/auth/tokens", keystone.admin, X_Subject_Token=bob)[0] == 204
    disabled = {"user": {"enabled": False}}
    assert asked("PATCH", f"{keystone.url}/users/{keystone.users['ann']}", keystone.admin, disabled)[0] == 200
    eventually(lambda: [asked("GET", url, token)[0] for token in (ann, bob)] == [401, 401], "they are refused",
               TAKEN_BACK)
    assert asked("GET", url, keystone.login("bob", PASSWORD, "blue"))[0] == 200
