# SPDX-License-Identifier: GPL-3.0-or-later
"""What the Compute API takes for a new server, asked of the module server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_control.api.nova.servers.server_fields import FIELDS
from magnetar_core.options import CONNECTION, WAITING
from tests.modules.conftest import specification
from tests.support.control.cloud import Cloud

from .play import play, prepared

pytestmark = pytest.mark.slow

#: Create fields of the Compute API that no option is called by: the option that says it, or the reason for none.
OTHERWISE = {
    "imageRef": "image", "flavorRef": "flavor", "adminPass": "admin_password", "accessIPv4": "access_ip_v4",
    "accessIPv6": "access_ip_v6", "OS-DCF:diskConfig": "disk_config", "block_device_mapping_v2": "block_device_mapping",
    "user_data": "userdata", "os:scheduler_hints": "scheduler_hints",
    "personality": "gone since microversion 2.57; userdata has files",
    "min_count": "a list, servers, names each server", "max_count": "a list, servers, names each server",
    "return_reservation_id": "a list, servers, answers with each server"}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=3, links=True) as made:
        yield made


@pytest.fixture(scope="module")
def folder(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cloud.admin.image()
    return prepared(tmp_path_factory.mktemp("play"), cloud)


CLOUD = {"cloud": "magnetar"}
WEB = {"flavor": "tiny", "image": "cirros", "networks": ["default"]}


def test_each_field_of_create_is_an_option() -> None:
    spec = specification("server")["argument_spec"]
    options = {*spec, *(alias for one in spec.values() for alias in one.get("aliases", ()))}
    fields = {row.wire for row in FIELDS.rows if "create" in row.takes.split()} | {"os:scheduler_hints"}
    missing = {name for name in fields if name not in options and name not in OTHERWISE}
    assert not missing, missing
    said = {one for one in OTHERWISE.values() if " " not in one}
    assert said <= options and OTHERWISE.keys() <= fields, (said - options, OTHERWISE.keys() - fields)
    of_task = {option.option for option in (*CONNECTION, *WAITING)} | {"servers", "continue_on_error"}
    assert {*spec} - {*spec["servers"]["options"]} == of_task


def test_server_group_of_the_case(cloud: Cloud, folder: Path) -> None:
    """Three servers of a group are on three hosts, and a second play changes nothing."""
    servers = {"flavor": "tiny", "image": "cirros", "networks": ["default"], "security_groups": ["default"],
               "scheduler_hints": {"group": "apart"}, "servers": [{"name": "a1"}, {"name": "a2"}, {"name": "a3"}]}
    tasks = [{"server_group": {"name": "apart", "policy": "anti-affinity"}}, {"server": servers}]
    checked = play(folder, tasks, CLOUD, "--check")
    once, twice = play(folder, tasks, CLOUD), play(folder, tasks, CLOUD)
    assert checked[1]["changed"] and [one["changed"] for one in once + twice] == [True, True, False, False]
    assert len({one["server"]["host"] for one in once[1]["results"]}) == 3
    (group,) = cloud.admin.get("/v2.1/os-server-groups", "2.64").json["server_groups"]
    assert len(group["members"]) == 3
    near, refused = play(folder, [
        {"server": {**WEB, "name": "near", "scheduler_hints": {"same_host": "a1"}}},
        {"server": {"name": "near", "scheduler_hints": {"same_host": ["a2"]}}, "ignore_errors": True}], CLOUD)
    assert near["server"]["host"] == once[1]["results"][0]["server"]["host"]
    assert "scheduler_hints cannot change" in refused["msg"]


def test_fields_that_change_and_those_of_the_first_boot(cloud: Cloud, folder: Path) -> None:
    """Each option reaches the API's field, is compared with it, and changes it where Nova can."""
    for body in ({"name": "db"}, {"name": "web"}):
        assert cloud.admin.post("/network/v2.0/security-groups", {"security_group": body}).status == 201
    first = {**WEB, "name": "full", "access_ip_v4": "192.0.2.7", "access_ip_v6": "2001:db8:0::7", "hostname": "full-1",
             "disk_config": "MANUAL", "security_groups": ["default", "web"], "admin_password": "secret-word",
             "availability_zone": "nova:kvm2", "trusted_image_certificates": []}
    second = {"name": "full", "security_groups": ["db", "default"], "access_ip_v4": "none", "hostname": "full-2",
              "disk_config": "AUTO", "host": "kvm1"}
    made, again, checked, changed, unchanged = play(folder, [
        {"server": first}, {"server": first}, {"server": second, "check_mode": True}, {"server": second},
        {"server": second}], CLOUD, "--diff")
    assert [one["changed"] for one in (made, again, changed, unchanged)] == [True, False, True, False]
    assert made["server"]["host"] == "kvm2" and changed["server"]["host"] == "kvm1"
    assert checked["diff"] == changed["diff"] and checked["changes"] == changed["changes"]
    assert "secret-word" not in str(made)
    server = cloud.admin.server(made["server"]["id"])
    assert (server["accessIPv4"], server["accessIPv6"]) == ("", "2001:db8::7")
    assert (server["OS-EXT-SRV-ATTR:hostname"], server["OS-DCF:diskConfig"]) == ("full-2", "AUTO")
    assert {one["name"] for one in server["security_groups"]} == {"db", "default"}


def test_a_port_by_name(cloud: Cloud, folder: Path) -> None:
    (network,) = cloud.admin.get("/network/v2.0/networks?name=default").json["networks"]
    port = cloud.admin.post("/network/v2.0/ports", {"port": {"network_id": network["id"], "name": "door"}}).json["port"]
    with_port = {**WEB, "name": "ported", "networks": [{"port": "door"}, "default"]}
    refused = {**WEB, "name": "lost", "networks": [{"port": "nowhere"}]}
    checked, made, again, less, back, wrong = play(folder, [
        {"server": with_port, "check_mode": True}, {"server": with_port}, {"server": with_port},
        {"server": {"name": "ported", "networks": ["default"], "purge_networks": True}},
        {"server": {"name": "ported", "nics": ["port-name=door"]}},
        {"server": refused, "ignore_errors": True}], CLOUD)
    assert [one["changed"] for one in (checked, made, again, less, back)] == [True, True, False, True, True]
    assert port["mac_address"] in {nic["mac"] for nic in made["server"]["networks"]}
    assert port["mac_address"] not in {nic["mac"] for nic in less["server"]["networks"]}
    assert port["mac_address"] in {nic["mac"] for nic in back["server"]["networks"]}
    assert "networks[0]" in wrong["msg"] and "nowhere" in wrong["msg"]
