# SPDX-License-Identifier: GPL-3.0-or-later
"""RETURN of each module is what it really returns: keys, types, and in the samples the verbs that drivers have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from magnetar_core.http.client import Client
from tests.support.agent import foreign
from tests.support.agent.ova import archive, vmware_description
from tests.support.control.cloud import Cloud
from tests.support.modules.attachments import CASES as ATTACHMENTS
from tests.support.modules.migration import endpoint, go, pair  # noqa: F401
from tests.support.modules.states import CASES as STATES
from tests.support.modules.states import UPDATES as STATE_UPDATES
from tests.support.northbound import LabCentral, external, missing
from tests.unit.core.images import sparse_vmdk
from tools import returns

from . import returned
from .conftest import ROOT
from .returned import check, check_actions

SHARE = "e8debdc0-447a-4376-a10a-4cd9122d7986"
CASES = {**STATES, **ATTACHMENTS}
#: More changes, so that what samples show is among them.
UPDATES = {**STATE_UPDATES, "flavor": dict(ram=512, on_immutable="recreate"),
           "volume_snapshot": dict(description="x"), "volume_attachment": dict(delete_on_termination=True),
           "interface_attachment": dict(address="192.168.99.77")}
ACTIONS = [
    {"action": "reboot"}, {"action": "create_image", "image_name": "copy"}, {"action": "stop"}, {"action": "start"},
    {"action": "console_output"}, {"action": "rescue"}, {"action": "unrescue"}, {"action": "rebuild"}]


@pytest.mark.parametrize("noun", CASES)
def test_of_resources(noun, world, disk):
    options = dict(CASES[noun])
    if "filename" in options:
        options["filename"] = str(disk)
    if noun in ATTACHMENTS:
        world("server", name="s", flavor="small", image="img")
    key = {name: options[name] for name in ("name", "server", "volume", "network", "mac") if name in options}
    made = world(noun, diff=False, **options)
    assert made.get("changed"), made
    (listed,) = world(f"{noun}_info", id=made[noun]["id"])[f"{noun}s"]
    results = [made, world(noun, **key, **UPDATES[noun]), world(noun, **key, state="absent")]
    for result in results:
        assert result.get("changed"), result
        check(noun, result)
    check_actions(noun, results)
    check(f"{noun}_info", {f"{noun}s": [listed]})
    check(noun, world(noun, **dict(options, timeout=0)))


def test_of_batches(world):
    world("server", name="a", flavor="small", image="none", state="stopped")
    done = world("server", flavor="small", servers=[{"name": "a", "state": "running"}, {"name": "b", "image": "nope"}])
    assert done["changed"] and done["failed"]
    check("server", done)
    check_actions("server", done["results"][:1], batch=True)


def test_of_the_host(world):
    check("host_info", world("host_info"))


def test_of_actions(world):
    world("server", **STATES["server"])
    world("server_action", name="s", action="console_output")
    results = [world("server_action", name="s", **options) for options in ACTIONS]
    for result in results:
        assert not result.get("failed"), result
        check("server_action", result)
    check_actions("server_action", results)


def test_of_migrations(pair, go):
    done = go("migration", server="web1", destination=endpoint(pair.two))
    assert done["changed"], done
    check("migration", done)
    check_actions("migration", [done])
    check("migration_info", go("migration_info"))


def test_of_estates(world, tmp_path):
    world("server", name="web1", flavor="small", image="none")
    server = {"name": "web1", "vcpus": 1, "ram": 256, "allow_reboot": True}
    options = {"declarations": [{"server": [server]}], "unmanaged": "report", "unmanaged_nouns": ["volume"]}
    check("estate_info", world("estate_info", **options))
    plan = {"plan": str(tmp_path / "plan.json")}
    planned, applied = world("estate", **plan, **options), world("estate", **plan, state="applied")
    for result in (planned, applied):
        assert result["changed"], result
        check("estate", result)
    (item,) = applied["estate"]["items"]
    contents = returned.documented_returns("estate")["estate"]["contains"]
    assert item["actions"] == contents["items"]["sample"][0]["actions"]
    server["image"] = "nothing"
    failed = world("estate", **plan, **options)
    assert failed["failed"] and failed["estate"]["errors"]
    check("estate", failed)


@pytest.fixture
def cloud(module, tmp_path, monkeypatch):
    """``cloud(name, ...)``: a module that asks a cloud with a server web1."""
    (tmp_path / "vnc.html").touch()
    with Cloud(hosts=1, novnc_dir=str(tmp_path), folders={"files": str(tmp_path)}, shares={SHARE: "files"},
               agent={"backup_directory": str(tmp_path / "backups")}) as made:
        made.admin.boot("web1")
        text = (Path(made.parts.settings.state_dir) / "clouds.yaml").read_text()
        (tmp_path / "clouds.yaml").write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{made.port}"))
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))

        def call(name, /, **options):
            return module(name, endpoint=None, cloud="magnetar", **options)

        call.folder = made.folder
        yield call


def test_of_clouds(cloud):
    made = {"name": "cell9", "database_url": f"sqlite:///{cloud.folder}/cell9.db"}
    kvm1, fast = {"name": "kvm1"}, {"name": "fast"}
    assert cloud("volume", name="data", size=1)["changed"]
    assert cloud("flavor", name="large", vcpus=1, ram=64, is_public=False)["changed"]
    (cloud.folder / "tool").write_bytes(bytes(512))
    assert cloud("image", name="tool", filename=str(cloud.folder / "tool"), disk_format="raw")["changed"]
    for module, changes in (
            ("cell", [made, {"name": "cell9", "disabled": True}, {"name": "cell9", "state": "absent"}]),
            ("compute_service", [{**kvm1, "disabled_reason": "x", "status": "disabled"},
                                 {**kvm1, "status": "enabled"}]),
            ("host_maintenance", [{**kvm1, "state": "maintenance", "reason": "x"}, {**kvm1, "state": "enabled"}]),
            ("host_fence", [{**kvm1, "state": "fenced", "confirmed": True}, {**kvm1, "state": "unfenced"}]),
            ("resource_provider", [{**kvm1, "own_inventories": {"VCPU": {"reserved": 1}, "CUSTOM_A": {"total": 2}}},
                                   {**kvm1, "own_traits": ["CUSTOM_B"]}]),
            ("aggregate", [{**fast, "hosts": ["kvm1"]}, {**fast, "metadata": {"ssd": "true"}}]),
            ("server_group", [{"name": "apart", "policy": "anti-affinity"}]),
            ("volume_type", [{"name": "fast", "extra_specs": {"multiattach": "<is> True"}},
                             {"name": "fast", "description": "x"}, {"name": "fast", "state": "absent"}]),
            ("volume_transfer", [{"name": "handover", "volume": "data"}, {"name": "handover", "state": "absent"}]),
            ("volume_backup", [{"name": "monday", "volume": "data"}, {"name": "monday", "description": "x"},
                               {"name": "monday", "state": "restored", "restore_to": "copy"},
                               {"name": "monday", "state": "absent"}]),
            ("flavor_access", [{"flavor": "large", "project": "admin"}]),
            ("image_member", [{"image": "tool", "project": "0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a"}]),
            ("domain", [{"name": "hall"}, {"name": "hall", "description": "x"}]),
            ("project", [{"name": "shop", "properties": {"colour": "red"}, "tags": ["retail"]},
                         {"name": "shop", "description": "x"}]),
            ("user", [{"name": "ann", "default_project": "shop", "password": "x"}, {"name": "ann", "email": "a@b"}]),
            ("group", [{"name": "operators"}, {"name": "operators", "users": ["ann"]}]),
            ("role", [{"name": "auditor"}, {"name": "auditor", "description": "x"}]),
            ("role_assignment", [{"role": "member", "user": "ann", "project": "shop"},
                                 {"role": "member", "group": "operators", "system": "all"}]),
            ("application_credential", [{"name": "backup", "roles": ["member"]}]),
            ("quota", [{"name": "admin", "instances": 20}, {"name": "admin", "state": "absent"}])):
        results = [cloud(module, **options) for options in changes]
        for result in results:
            assert result["changed"], result
            check(module, result)
        check_actions(module, results)
    backup = {"server": "web1", "name": "monday"}
    results = [cloud("server_backup", **backup, backup_type="daily", rotation=2, metadata={"a": 1}),
               cloud("server_backup", **backup, state="absent")]
    for result in results:
        assert result["changed"], result
        check("server_backup", result)
    check_actions("server_backup", results)
    cloud("server", name="web1", state="stopped")
    shared = {"server": "web1", "share": "files"}
    results = [cloud("share_attachment", **shared, tag="files"), cloud("share_attachment", **shared, state="absent")]
    for result in results:
        assert result["changed"], result
        check("share_attachment", result)
    check_actions("share_attachment", results)
    cloud("share_attachment", **shared)
    check("share_attachment_info", cloud("share_attachment_info", share="files"))
    cloud("share_attachment", **shared, state="absent")
    cloud("server", name="web1", state="running")
    for module in ("aggregate", "application_credential", "availability_zone", "balance", "capacity", "cell",
                   "compute_service", "domain", "flavor_access", "group", "host_fence", "host_maintenance",
                   "hypervisor", "image_member", "incident", "limits", "migration", "project", "quota",
                   "resource_provider", "role", "role_assignment", "server_group", "storage_pool", "trait", "usage",
                   "user", "volume_backup", "volume_transfer", "volume_type"):
        found = cloud(f"{module}_info")
        assert not found.get("failed"), found
        check(f"{module}_info", found)
    check("balance", cloud("balance", name="cell1"))
    for type in ("novnc", "serial"):
        check("console_info", cloud("console_info", server="web1", type=type))
    check("server_topology_info", cloud("server_topology_info", server="web1"))
    (action,) = [one for one in cloud("instance_action_info", server="web1")["instance_actions"]
                 if one["action"] == "create"]
    check("instance_action_info", cloud("instance_action_info", server="web1", id=action["id"]))


@pytest.fixture
def overlay(module, tmp_path, monkeypatch):
    """As ``cloud``, over OVN, with an external network ``ext``."""
    if missing():
        pytest.skip(missing())
    central = LabCentral(tmp_path / "ovn").start()
    try:
        with Cloud(hosts=1, ovn_northbound=central.url, ovn_hosts_wait=0.0) as made:
            external(made.admin)
            text = (Path(made.parts.settings.state_dir) / "clouds.yaml").read_text()
            (tmp_path / "clouds.yaml").write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{made.port}"))
            monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))
            yield lambda name, /, **options: module(name, endpoint=None, cloud="magnetar", **options)
    finally:
        central.stop()


def test_of_networks_of_clouds(overlay):
    assert overlay("network", name="lan", mode="ovn")["changed"]
    made = {
        "subnet": {"name": "lan4", "network": "lan", "cidr": "10.5.0.0/24"},
        "security_group": {"name": "web", "rules": [{"protocol": "tcp", "port_range_min": 80}]},
        "port": {"name": "p1", "network": "lan", "security_groups": ["web"]},
        "router": {"name": "edge", "external_network": "ext", "interfaces": ["lan4"]},
        "floating_ip": {"name": "web", "network": "ext", "port": "p1"}}
    results = {noun: [overlay(noun, **options)] for noun, options in made.items()}
    results["floating_ip"].append(overlay("floating_ip", name="web", port="none", port_forwardings=[
        {"external_port": 2222, "internal_port": 22, "port": "p1"}]))
    for module, options in (("network", {"name": "side", "mode": "ovn"}), ("port", {"name": "p2", "network": "side"}),
                            ("port", {"name": "p3", "network": "side"})):
        assert overlay(module, **options)["changed"]
    limit = {"type": "bandwidth_limit", "max_kbps": 1000}
    for noun, options, change in (
            ("address_scope", {}, {"description": "x"}),
            ("subnet_pool", {"prefixes": ["10.20.0.0/16"]}, {"prefixes": ["10.20.0.0/15"]}),
            ("address_group", {"addresses": ["192.0.2.0/24"]}, {"addresses": ["198.51.100.7"]}),
            ("trunk", {"port": "p2", "subports": [{"port": "p3", "segmentation_id": 5}]}, {"admin_state_up": True,
                                                                                          "subports": []}),
            ("qos_policy", {"rules": [limit, {"type": "dscp_marking", "dscp_mark": 26}]}, {"shared": True})):
        made[noun] = {"name": "one", **options}
        results[noun] = [overlay(noun, **made[noun]), overlay(noun, name="one", **change)]
    policy = {"object_type": "network", "object": "lan", "target_project": "0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a"}
    shared = [overlay("rbac_policy", **policy)]
    check("rbac_policy_info", overlay("rbac_policy_info"))
    shared.append(overlay("rbac_policy", **policy, state="absent"))
    begun = {"protocol": "tcp", "port_range_min": 22, "remote_ip_prefix": "192.0.2.0/24", "description": "SSH"}
    begins = [overlay("default_security_group_rule", **begun)]
    check("default_security_group_rule_info", overlay("default_security_group_rule_info"))
    begins.append(overlay("default_security_group_rule", **begun, state="absent"))
    for noun, found in (("rbac_policy", shared), ("default_security_group_rule", begins)):
        for result in found:
            assert result["changed"], result
            check(noun, result)
        check_actions(noun, found)
    for noun, options in made.items():
        check(f"{noun}_info", overlay(f"{noun}_info", name=options["name"]))
    for noun in reversed(made):
        results[noun].append(overlay(noun, name=made[noun]["name"], state="absent"))
        for result in results[noun]:
            assert result["changed"], result
            check(noun, result)
        check_actions(noun, results[noun])


def test_of_parts_of_resources(overlay):
    """Modules named as in openstack.cloud, for one rule, one member or some metadata of a resource."""
    assert overlay("security_group", name="web")["changed"]
    assert overlay("group", name="operators")["changed"] and overlay("user", name="ann", password="secret")["changed"]
    rule = {"security_group": "web", "protocol": "tcp", "port_range_min": 22, "remote_ip_prefix": "192.0.2.0/24"}
    for noun, options in (("security_group_rule", rule), ("group_assignment", {"group": "operators", "user": "ann"})):
        results = [overlay(noun, **options), overlay(noun, **options, state="absent")]
        for result in results:
            check_names(noun, result)
    overlay("security_group_rule", **rule)
    check("security_group_rule_info", overlay("security_group_rule_info"))


def test_of_metadata(cloud):
    results = [cloud("server_metadata", server="web1", metadata={"role": "web"}, **more)
               for more in ({}, {"state": "absent"})]
    for result in results:
        check_names("server_metadata", result)


def check_names(module, result):
    """Check that a module documents each value of its result. The resource is that of another module, which documents
    its fields."""
    named = {"changed", "diff", "invocation", "warnings"} | returned.documented_returns(module).keys()
    assert result["changed"] and result.keys() <= named, result


def test_of_adoptions(module, agent):
    disk = foreign.file_disk(foreign.overlay(agent.folder))
    agent.hypervisor.defined_outside(foreign.foreign_xml("old1", disk + foreign.network_nic()), "running")
    check("adopt_info", module("adopt_info"))
    results = [module("adopt", name="old1"), module("adopt", name="old1", state="released")]
    for result in results:
        check("adopt", result)
    check_actions("adopt", results)


def test_of_server_exports(module, agent):
    with Client(agent.endpoint) as client:
        client.ensure("server", "web1", {"flavor": {"vcpus": 1, "ram": 64, "disk": 1}, "image": None, "power": "off"})
    results = [module("server_export", name="gone", server="web1")]
    check("server_export_info", module("server_export_info"))
    results.append(module("server_export", name="gone", state="absent"))
    for result in results:
        assert result["changed"], result
        check("server_export", result)
    check_actions("server_export", results)


def test_of_server_imports(module, agent):
    ovf, disk = vmware_description({"root.vmdk": 1 << 30}, controller=(1, "")), sparse_vmdk(capacity=1 << 21)
    (agent.folder / "shop.ova").write_bytes(archive(("shop.ovf", ovf), ("root.vmdk", disk)))
    for changed in (True, False):
        done = module("server_import", name="shop", host_path=str(agent.folder / "shop.ova"),
                      properties={"hw_watchdog_action": "reset"})
        assert done["changed"] is changed, done
        check("server_import", done)


def test_every_module_is_checked():
    """A new module gets a test here."""
    text = Path(__file__).read_text()
    known = {name for noun in CASES for name in (noun, f"{noun}_info")} | {
        "aggregate_info", "availability_zone_info", "balance_info", "capacity_info", "cell_info",
        "compute_service_info", "host_fence_info", "host_maintenance_info", "hypervisor_info", "incident_info",
        "limits_info", "quota_info", "resource_provider_info", "server_group_info", "storage_pool_info", "trait_info",
        "usage_info",
        "floating_ip_info", "port_info", "router_info", "security_group_info", "subnet_info", "address_group_info",
        "qos_policy_info", "trunk_info", "address_scope_info", "subnet_pool_info", "volume_transfer_info",
        "volume_type_info", "volume_backup_info", "flavor_access_info", "image_member_info", "domain_info",
        "project_info", "user_info", "group_info", "role_info", "role_assignment_info", "application_credential_info"}
    names = {path.stem for path in (ROOT / "plugins/modules").glob("[a-z]*.py")} - {"certificate"}  # has no agent
    assert not [name for name in names if name not in known and f'"{name}"' not in text]


def test_the_files_have_what_the_declarations_give():
    """When this fails: python -m tools.returns"""
    paths = sorted((ROOT / "plugins/modules").glob("[a-z]*.py"))
    assert [path.stem for path in paths if returns.updated_module(path) != path.read_text()] == []


def test_an_entry_fits_the_lines_of_a_file():
    entry = {"description": "Words, " * 40, "type": "dict", "sample": {"name": "x" * 90, "list": ["y" * 40, "z" * 40]}}
    for content in (entry, {**entry, "contains": {"a": entry}}):
        text = returns.entry_text("volume", content)
        assert max(map(len, text.splitlines())) <= returns.WIDTH
    assert yaml.safe_load(returns.entry_text("volume", entry)) == {"volume": entry}
    long = {"type": "str", "sample": "https://" + "x" * 130}
    assert yaml.safe_load(returns.entry_text("url", long)) == {"url": long}


def test_nothing_is_newer_than_the_collection():
    """``version_added`` names a version that there is."""
    newest = version(re.search(r"(?m)^version: (.+)$", (ROOT / "galaxy.yml").read_text())[1])
    files = [path for folder in ("plugins", "roles") for path in (ROOT / folder).rglob("*")
             if path.suffix in (".py", ".yml")]
    found = {(path.name, word) for path in files
             for word in re.findall(r"version_added:\s*[\"']?([\d.]+)", path.read_text(encoding="utf-8"))}
    assert found and not {one for one in found if version(one[1]) > newest}


def version(text):
    return tuple(int(part) for part in text.split("."))
