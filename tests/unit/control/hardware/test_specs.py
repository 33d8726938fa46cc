# SPDX-License-Identifier: GPL-3.0-or-later
"""Extra specs and image properties that nothing acts on: refused by name, or a warning in the server's actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magnetar_control.compute.servers import server_create
from tests.support.control.cloud import Caller, Cloud
from tests.support.control.specs import flavor, image

SPEC = "extra spec hw:sound_model=usb: guests have no sound"


@pytest.fixture(scope="module")
def strict() -> Iterator[Cloud]:
    with Cloud(hosts=1) as made:
        yield made


@pytest.fixture(scope="module")
def lenient() -> Iterator[Cloud]:
    with Cloud(hosts=1, specs_without_effect="warn") as made:
        yield made


def message(caller: Caller, server: str, action: str) -> Any:
    """What the server's last action of that name says."""
    found = caller.get(f"/v2.1/servers/{server}/os-instance-actions").json["instanceActions"]
    return next(one["message"] for one in found if one["action"] == action)


@pytest.mark.parametrize(("specs", "properties", "named"), [
    ({"hw:sound_model": "usb"}, {}, f"flavor odd, {SPEC}"),
    ({"hw:sound_model": "usb", "trait:HW_NOTHING": "required"}, {}, "trait:HW_NOTHING=required: there is no such"),
    ({"resources:NET_BW_EGR_KILOBIT_PER_SEC": "1"}, {}, "KILOBIT_PER_SEC=1: ports ask for bandwidth"),
    ({"resources1:MEM_ENCRYPTION_CONTEXT": "1"}, {}, "CONTEXT=1: the scheduler counts VCPU, PCPU, MEMORY_MB"),
    ({"capabilities:pci_stats:pools": "1"}, {}, "capabilities:pci_stats:pools=1: PCI devices are asked for by pci_pa"),
    ({"capabilities:numa_topology": "1"}, {}, "capabilities:numa_topology=1: NUMA cells are asked for by hw:"),
    ({"capabilities:disk_available_least": ">= 1"}, {}, "least=>= 1: hosts do not tell it with their heartbeats"),
    ({"capabilities:instances": "1"}, {}, "capabilities:instances=1: servers of a host are asked for by the hints"),
    ({"resources:VCPU": "many"}, {}, "extra spec resources:VCPU=many: it must match"),
    ({"trait:CUSTOM_A": "wanted"}, {}, "extra spec trait:CUSTOM_A=wanted: it must match"),
    ({}, {"trait:CUSTOM_A": "forbidden"}, "image property trait:CUSTOM_A=forbidden: it must match"),
    ({}, {"img_config_drive": "always"}, "image property img_config_drive=always: it must match"),
    ({}, {"hw_sound_model": "usb"}, "image property hw_sound_model=usb: guests have no sound")])
def test_a_server_of_a_spec_without_effect_is_refused(strict: Cloud, specs: dict[str, str],
                                                      properties: dict[str, str], named: str) -> None:
    caller = strict.admin
    caller.delete("/v2.1/flavors/odd")
    body = {"name": "odd", "flavorRef": flavor(caller, "odd", specs), "networks": "none",
            "imageRef": image(caller, name := "-".join(properties).replace(":", "") or "plain", **properties)}
    reply = caller.post("/v2.1/servers", {"server": body}, "2.60")
    assert reply.status == 400 and named in reply.json["badRequest"]["message"], reply
    told = reply.json["badRequest"]["message"]
    assert ("specs_without_effect: warn" in told) != ("it must match" in told)  # a wrong value is never let pass
    assert caller.get("/v2.1/servers?name=odd").json["servers"] == []
    want = {"flavor": "odd", "image": name}
    for dry_run in ("true", "false"):
        reply = caller.put(f"/v1/server/odd?dry_run={dry_run}", want)
        assert reply.status == 400 and named in reply.json["error"]["message"], reply


@pytest.mark.parametrize(("hints", "named"), [
    ({"query": '["=", "$host", "kvm1"]'}, "query is followed by the filter JsonFilter, which is off"),
    ({"build_near_host_ip": "192.0.2.1", "cidr": "/24"}, "build_near_host_ip is followed by the filter SimpleCIDR"),
    ({"target_cell": "cell1"}, "target_cell: cells are not chosen by servers")])
def test_a_hint_of_nova_that_nothing_follows_is_refused(strict: Cloud, lenient: Cloud, hints: dict[str, str],
                                               named: str) -> None:
    def asked(cloud: Cloud) -> Any:
        return cloud.admin.post("/v2.1/servers", {"os:scheduler_hints": hints, "server": {
            "name": "hinted", "flavorRef": "1", "networks": "none", "imageRef": cloud.admin.image()}}, "2.60")
    reply = asked(strict)
    assert reply.status == 400 and named in reply.json["badRequest"]["message"], reply
    reply = asked(lenient)
    assert reply.status == 202, reply
    assert named in message(lenient.admin, reply.json["server"]["id"], "create")


def test_a_hint_that_nova_does_not_know_passes_with_a_warning(strict: Cloud) -> None:
    caller = strict.admin
    hints = {"diferent_host": "kvm1", "rack": ["r1"], "nothing": None}
    reply = caller.post("/v2.1/servers", {"OS-SCH-HNT:scheduler_hints": hints, "server": {
        "name": "hinted", "flavorRef": "1", "networks": "none", "imageRef": caller.image()}}, "2.60")
    assert reply.status == 202, reply
    assert message(caller, reply.json["server"]["id"], "create") == (
        "No filter follows the scheduler hints diferent_host, rack; known hints are group, different_host, same_host, "
        "query, build_near_host_ip, cidr.")


def test_hints_that_are_followed_pass(strict: Cloud) -> None:
    caller = strict.admin
    other = caller.boot("other")["id"]
    group = caller.post("/v2.1/os-server-groups", {"server_group": {"name": "g", "policies": ["affinity"]}})
    for hints in ({"same_host": other}, {"group": group.json["server_group"]["id"]}, {"same_host": [other]}, {},
                  {"different_cell": [], "query": "", "heat_stack_name": "web", "same_host": []},
                  {"cidr": "/24"}):
        reply = caller.post("/v2.1/servers", {"os:scheduler_hints": hints, "server": {
            "name": "hinted", "flavorRef": "1", "networks": "none", "imageRef": caller.image()}}, "2.60")
        assert reply.status == 202, reply
        assert message(caller, reply.json["server"]["id"], "create") is None


def test_what_acts_or_asks_for_what_there_is_passes(strict: Cloud) -> None:
    caller = strict.admin
    specs = {"hw:cpu_policy": "shared", "hw:mem_page_size": "any", "ours:colour": "red"}
    made = caller.boot("usual", flavorRef=flavor(caller, "usual", specs),
                       imageRef=image(caller, "usual", os_distro="debian", hw_disk_bus="virtio",
                                      hw_architecture="x86_64", auto_disk_config="true"))
    assert made["status"] == "ACTIVE"
    assert message(caller, made["id"], "create") is None


@pytest.mark.parametrize(("specs", "properties"), [
    ({"resources:FPGA": "0", "resources1:NET_PACKET_RATE_KILOPACKET_PER_SEC": "0"}, {}),
    ({"trait:HW_CPU_X86_SGX": "forbidden"}, {}),
    ({"quota:memory_reservation": "0", "hw:redirected_usb_ports": "0"}, {}),
    ({"accel:device_profile": ""}, {}), ({}, {"hw_floppy_bus": "fdc", "img_use_agent": "yes", "hw_ipxe_boot": "true"}),
    ({}, {"os_skip_agent_inject_ssh": "false", "hw_disk_type": "preallocated"})])
def test_what_asks_for_nothing_passes(strict: Cloud, specs: dict[str, str], properties: dict[str, str]) -> None:
    caller = strict.admin
    caller.delete("/v2.1/flavors/none")
    made = caller.boot("nothing", networks="none", flavorRef=flavor(caller, "none", specs),
                       imageRef=image(caller, "+".join(properties) or "plain", **properties))
    assert made["status"] == "ACTIVE" and message(caller, made["id"], "create") is None


def test_a_property_that_nova_does_not_know_is_named(strict: Cloud) -> None:
    caller = strict.admin
    odd = {"hw_disk_buss": "scsi", "img_colour": "red", "ours": "x"}
    made = caller.boot("odd", imageRef=image(caller, "misspelt", **odd))
    assert message(caller, made["id"], "create") == (
        "image property hw_disk_buss=scsi is ignored: Nova knows no such image property. "
        "image property img_colour=red is ignored: Nova knows no such image property.")


def test_a_resize_and_a_rebuild_are_refused_alike(strict: Cloud) -> None:
    caller = strict.admin
    made = caller.boot("stays")
    reply = caller.act(made["id"], "resize", {"flavorRef": flavor(caller, "numa", {"hw:sound_model": "usb"})})
    assert reply.status == 400 and SPEC in reply.json["badRequest"]["message"], reply
    reply = caller.act(made["id"], "rebuild", {"imageRef": image(caller, "rng", hw_rng_model="egd")})
    assert reply.status == 400 and "hw_rng_model=egd" in reply.json["badRequest"]["message"], reply
    assert caller.server(made["id"])["status"] == "ACTIVE"


def test_a_server_that_stands_goes_on_with_its_image(strict: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made when these properties passed: it is built elsewhere, and rebuilt, as it is."""
    caller = strict.admin
    monkeypatch.setattr(server_create, "check_server_specs", lambda *_given: None)
    made = caller.boot("old", imageRef=(own := image(caller, "own", hw_sound_model="usb", img_config_drive="always")))
    assert made["status"] == "ACTIVE"
    reply = caller.act(made["id"], "rebuild", {"imageRef": own})
    assert reply.status == 202, reply
    assert caller.settled(made["id"])["status"] == "ACTIVE"  # type: ignore[index]
    reply = caller.act(made["id"], "rebuild", {"imageRef": image(caller, "another", hw_sound_model="usb")})
    assert reply.status == 400 and "hw_sound_model=usb" in reply.json["badRequest"]["message"], reply


def test_a_setting_lets_them_pass_with_a_warning(lenient: Cloud) -> None:
    caller = lenient.admin
    odd = flavor(caller, "odd", {"hw:sound_model": "usb"})
    made = caller.boot("odd", flavorRef=odd)
    assert made["status"] == "ACTIVE" and SPEC in message(caller, made["id"], "create")
    plain = caller.boot("plain")
    assert caller.act(plain["id"], "resize", {"flavorRef": odd}).status == 202
    assert caller.settled(plain["id"])["status"] == "VERIFY_RESIZE"  # type: ignore[index]
    assert SPEC in message(caller, plain["id"], "resize")
    reply = caller.put("/v1/server/native?wait=20", {"flavor": "odd", "image": "cirros"})
    assert reply.status == 200 and any(SPEC in text for text in reply.json["warnings"]), reply
    assert caller.put("/v1/server/native?wait=20", {"flavor": "odd", "image": "cirros"}).json["changed"] is False
