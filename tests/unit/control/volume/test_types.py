# SPDX-License-Identifier: GPL-3.0-or-later
"""Volume types: made, changed, given to projects, and what their volumes get of them."""

from __future__ import annotations

import pytest

from magnetar_control.services.volume.types import TypeStore
from tests.support.control.serving import ADMIN

from .conftest import work

SHARED = {"multiattach": "<is> True", "pool_name": "fast"}


@pytest.fixture
def admin(ask):
    """Asks as an administrator."""
    return ask.as_(ADMIN)


def _type(admin, name="gold", **fields):
    return admin("POST", "/v3/types", {"volume_type": {"name": name, **fields}})["volume_type"]


def _volume(ask, **fields):
    return ask("POST", "/v3/volumes", {"volume": {"size": 1, **fields}}, status=202)["volume"]


def test_a_type_is_made_changed_and_removed(ask, admin):
    made = _type(admin, description="quick", extra_specs=SHARED)
    assert made["extra_specs"] == SHARED and made["is_public"] is made["os-volume-type-access:is_public"] is True
    assert ask("GET", f"/v3/types/{made['id']}")["volume_type"]["extra_specs"] == {"multiattach": "<is> True"}
    assert [one["name"] for one in ask("GET", "/v3/types")["volume_types"]] == ["default", "fast", "gold"]
    changed = admin("PUT", f"/v3/types/{made['id']}", {"volume_type": {"name": "silver"}})["volume_type"]
    assert (changed["name"], changed["description"], changed["id"]) == ("silver", "quick", made["id"])
    admin("DELETE", f"/v3/types/{made['id']}", status=202)
    admin("GET", f"/v3/types/{made['id']}", status=404)


def test_two_of_one_name_at_once(admin, service, monkeypatch):
    """Each has found the name free. The other one is told so, and not that the service has failed."""
    other = _type(admin, "silver", **{"os-volume-type-access:is_public": False})
    _type(admin)
    with monkeypatch.context() as patched:
        patched.setattr(TypeStore, "_check_free", lambda *_given: None)
        admin("POST", "/v3/types", {"volume_type": {"name": "gold"}}, status=409)
        admin("PUT", f"/v3/types/{other['id']}", {"volume_type": {"name": "gold"}}, status=409)
    for status in (202, 409):
        admin("POST", f"/v3/types/{other['id']}/action", {"addProjectAccess": {"project": "red"}}, status=status)


def test_extra_specs_are_set_one_by_one(ask, admin):
    at = f"/v3/types/{_type(admin)['id']}/extra_specs"
    assert admin("POST", at, {"extra_specs": SHARED}) == {"extra_specs": SHARED}
    assert admin("PUT", f"{at}/pool_name", {"pool_name": "default"}) == {"pool_name": "default"}
    assert admin("GET", f"{at}/pool_name") == {"pool_name": "default"}
    ask("GET", f"{at}/pool_name", status=404)
    admin("DELETE", f"{at}/multiattach", status=202)
    admin("DELETE", f"{at}/multiattach", status=404)
    assert admin("GET", at) == {"extra_specs": {"pool_name": "default"}}


@pytest.mark.parametrize(("specs", "says"), [
    ({"multiattach": "yes"}, "<is> True"), ({"pool_name": "slow"}, "there is no such pool"),
    ({"replication_enabled": "<is> True"}, "replication_enabled is <is> False"), ({"spec1": "val1"}, "no pool says"),
    ({"volume_backend_name": "lvm"}, "volume_backend_name is magnetar"),
    ({"capabilities:vendor_name": "Ceph"}, "vendor_name is Magnetar"),
    ({"provisioning:min_vol_size": "2"}, "to have 1 GiB"), ({"RESKEY:availability_zones": "b,c"}, "zone nova")])
def test_a_type_may_say_what_no_volume_can_have(ask, admin, specs, says):
    """Tempest, Terraform and operators make types first. A volume of such a type is refused, not made as another."""
    made = _type(admin, extra_specs=specs)
    assert admin("GET", f"/v3/types/{made['id']}")["volume_type"]["extra_specs"] == specs
    refused = ask("POST", "/v3/volumes", {"volume": {"size": 1, "volume_type": "gold"}}, status=400)
    assert says in refused["badRequest"]["message"]
    assert ask("GET", "/v3/volumes")["volumes"] == []


@pytest.mark.parametrize("specs", [
    {"volume_backend_name": "magnetar"}, {"capabilities:storage_protocol": "<or> nbd <or> iSCSI"},
    {"netapp:thick": "true"}, {"multiattach": "<is> False"}, {"thin_provisioning_support": "<is> True"},
    {"provisioning:max_vol_size": "1"}, {"RESKEY:availability_zones": "a, nova"}, {"pool_name": "<in> fas"}])
def test_a_volume_has_what_its_type_asks_for(ask, admin, specs):
    _type(admin, extra_specs=specs)
    assert _volume(ask, volume_type="gold")["volume_type"] == "gold"


def test_qos_specs_are_refused(admin):
    assert "QoS" in admin("POST", "/v3/qos-specs", {"qos_specs": {"name": "a"}}, status=400)["badRequest"]["message"]


def test_names_are_given_once_and_pools_keep_theirs(admin):
    made = _type(admin)
    for name in ("gold", "fast"):
        admin("POST", "/v3/types", {"volume_type": {"name": name}}, status=409)
        admin("PUT", f"/v3/types/{_type(admin, f'other {name}')['id']}", {"volume_type": {"name": name}}, status=409)
    admin("PUT", "/v3/types/fast", {"volume_type": {"name": "slow"}}, status=400)
    admin("DELETE", "/v3/types/default", status=400)
    admin("PUT", f"/v3/types/{made['id']}", {"volume_type": {}}, status=400)


def test_a_volume_has_the_pool_and_multiattach_of_its_type(ask, admin, service, cloud):
    made = _type(admin, extra_specs=SHARED)
    cloud.agent.host.settings.pools["fast"] = {"type": "dir", "path": str(cloud.root / "fast")}
    volume = _volume(ask, volume_type="gold")
    work(service)
    seen = ask("GET", f"/v3/volumes/{volume['id']}")["volume"]
    assert (seen["status"], seen["multiattach"], seen["volume_type"]) == ("available", True, "gold")
    assert seen["volume_type_id"] == made["id"]
    there = cloud.on_host()[volume["id"]]
    assert (there["pool"], there["multiattach"], there["format"]) == ("fast", True, "raw")
    assert admin("GET", f"/v3/volumes/{volume['id']}")["volume"]["os-vol-host-attr:host"] == "kvm1@magnetar#fast"


def test_a_copy_has_the_type_of_its_source(ask, admin, service, cloud):
    cloud.agent.host.settings.pools["fast"] = {"type": "dir", "path": str(cloud.root / "fast")}
    _type(admin, extra_specs={"pool_name": "fast"})
    volume = _volume(ask, volume_type="gold")
    work(service)
    copy = _volume(ask, source_volid=volume["id"])
    work(service)
    assert copy["volume_type"] == "gold" and cloud.on_host()[copy["id"]]["pool"] == "fast"


def test_a_type_in_use_keeps_what_it_means(ask, admin):
    made = _type(admin)
    volume = _volume(ask, volume_type=made["id"])
    admin("DELETE", f"/v3/types/{made['id']}", status=400)
    admin("POST", f"/v3/types/{made['id']}/extra_specs", {"extra_specs": SHARED}, status=400)
    admin("PUT", f"/v3/types/{made['id']}", {"volume_type": {"name": "silver"}})
    seen = ask("GET", f"/v3/volumes/{volume['id']}")["volume"]
    assert (seen["volume_type"], seen["volume_type_id"]) == ("silver", made["id"])


def test_a_type_of_few_projects(ask, admin):
    made = _type(admin, **{"os-volume-type-access:is_public": False})
    at, project = f"/v3/types/{made['id']}", ask.context.project_id
    admin("POST", f"{at}/action", {"removeProjectAccess": {"project": project}}, status=404)
    ask("GET", at, status=404)
    ask("POST", "/v3/volumes", {"volume": {"size": 1, "volume_type": "gold"}}, status=404)
    admin("POST", f"{at}/action", {"addProjectAccess": {"project": project}}, status=202)
    admin("POST", f"{at}/action", {"addProjectAccess": {"project": project}}, status=409)
    assert {"volume_type_id": made["id"], "project_id": project} in admin(
        "GET", f"{at}/os-volume-type-access")["volume_type_access"]
    _volume(ask, volume_type="gold")
    admin("GET", "/v3/types/default/os-volume-type-access", status=404)
    assert [one["name"] for one in admin("GET", "/v3/types?is_public=none")["volume_types"]] == [
        "default", "fast", "gold"]


LUKS = {"provider": "luks", "cipher": "aes-xts-plain64", "key_size": 256, "control_location": "front-end"}


def _encrypted(admin, **more):
    made = _type(admin, **more)
    return made, admin("POST", f"/v3/types/{made['id']}/encryption", {"encryption": LUKS})["encryption"]


def test_the_encryption_of_a_type(ask, admin):
    made, told = _encrypted(admin)
    at = f"/v3/types/{made['id']}/encryption"
    assert told == {"volume_type_id": made["id"], "encryption_id": told["encryption_id"], **LUKS} == admin("GET", at)
    assert admin("GET", f"{at}/cipher") == {"cipher": "aes-xts-plain64"}
    admin("POST", at, {"encryption": LUKS}, status=400)
    one = f"{at}/{told['encryption_id']}"
    assert admin("PUT", one, {"encryption": {"key_size": 512}})["encryption"]["key_size"] == 512
    admin("PUT", f"{at}/other", {"encryption": {"key_size": 512}}, status=404)
    admin("DELETE", one, status=202)
    assert admin("GET", at) == {}
    for wrong in ({"provider": "plain"}, {**LUKS, "control_location": "back-end"}, {**LUKS, "key_size": 300},
                  {**LUKS, "cipher": "aes-cbc-essiv"}):
        admin("POST", at, {"encryption": wrong}, status=400)
    admin("POST", "/v3/types/default/encryption", {"encryption": LUKS}, status=400)


def test_an_encrypted_volume_and_its_copies_have_a_key_that_goes_with_them(ask, admin, service, cloud):
    _encrypted(admin)
    volume = _volume(ask, volume_type="gold")
    work(service)
    seen = ask("GET", f"/v3/volumes/{volume['id']}")["volume"]
    assert (seen["status"], seen["encrypted"]) == ("available", True)
    key = seen["encryption_key_id"]
    assert ask("GET", f"/v3/volumes/{volume['id']}/encryption") == {"encryption_key_id": key, **LUKS}
    assert cloud.on_host()[volume["id"]]["format"] == "luks"
    secret = (cloud.root / "keys" / key).read_text()
    assert (cloud.root / "keys" / key).stat().st_mode & 0o777 == 0o600
    kept = b"".join(path.read_bytes() for path in (cloud.root / "state").rglob("*") if path.is_file())
    assert secret.encode() not in kept
    copy = _volume(ask, source_volid=volume["id"])
    work(service)
    other = ask("GET", f"/v3/volumes/{copy['id']}")["volume"]["encryption_key_id"]
    assert other != key and (cloud.root / "keys" / other).read_text() == secret
    ask("POST", "/v3/volumes", {"volume": {"size": 1, "source_volid": volume["id"], "volume_type": "default"}},
        status=400)
    ask("POST", f"/v3/volumes/{volume['id']}/action", {"os-volume_upload_image": {"image_name": "leak"}}, status=400)
    ask("DELETE", f"/v3/volumes/{volume['id']}", status=202)
    work(service)
    assert [path.name for path in (cloud.root / "keys").iterdir()] == [other]


def test_what_is_encrypted_is_for_one_server(ask, admin):
    _encrypted(admin, extra_specs={"multiattach": "<is> True"})
    refused = ask("POST", "/v3/volumes", {"volume": {"size": 1, "volume_type": "gold"}}, status=400)
    assert "Multiattach" in refused["badRequest"]["message"]
