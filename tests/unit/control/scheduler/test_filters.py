# SPDX-License-Identifier: GPL-3.0-or-later
"""What each filter passes and refuses, by Nova's rules."""

import pytest

from magnetar_control.scheduler.choose import NoValidHost, choose_hosts, would_pass
from magnetar_control.scheduler.filters import FILTERS, OPTIONAL, USUAL, applied_filters
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.request_spec import claimed_amounts, hinted_host_fields
from magnetar_control.scheduler.rules import DEFAULT_RULES, scheduler_rules
from magnetar_control.settings_file import make_settings
from magnetar_control.store.claims.allocations import Amounts, Group
from magnetar_core.hardware.numa import numa_needs
from magnetar_core.matching import matches_extra_spec
from tests.support.control.filter_rows import REFUSING

from .fleet import aggregate, request, row, states, told_cell

TWO_CELLS = {"info": {"numa_cells": [told_cell(0, "4-7"), told_cell(1, "8-11")]}}
EMULATES = {"architecture": "x86_64", "emulated_architectures": ["aarch64"], "firmware": ["bios"],
            "machine_types": {"x86_64": ["pc-q35-7.2"], "aarch64": ["virt-7.2"]}}
FEW = Amounts(1, 1024, 10)
#: Columns of the host, the request, and the filter that refuses it (None: it passes).
CASES = {
    "a host like any": ({}, {}, None),
    "disabled": ({"disabled": True}, {}, "ComputeFilter"),
    "forced down": ({"forced_down": True}, {}, "ComputeFilter"),
    "in a disabled cell": ({"cell_disabled": True}, {}, "ComputeFilter"),
    "in the disabled cell of a server that moves": ({"cell_disabled": True}, {"cell_id": "cell"}, None),
    "of the cell": ({}, {"cell_id": "cell"}, None),
    "of another cell": ({}, {"cell_id": "other"}, "CellFilter"),
    "the last CPU": ({"vcpus_used": 255}, {}, None),
    "no CPU left": ({"vcpus_used": 256}, {}, "CoreFilter"),
    "more CPUs than the host has": ({}, {"amounts": Amounts(17, 1, 1)}, "CoreFilter"),
    "the last memory": ({"memory_mb_used": 98304 - 1024}, {}, None),
    "not enough memory": ({"memory_mb_used": 98304 - 1023}, {}, "RamFilter"),
    "reserved memory": ({"memory_mb_reserved": 65536}, {}, "RamFilter"),
    "not enough disk": ({"disk_gb_used": 991}, {}, "DiskFilter"),
    "no disk wanted where it is overfull": ({"disk_gb_used": 1001}, {"amounts": Amounts(1, 1024, 0)}, None),
    "a ratio of its own": ({"vcpus_ratio": 1.0, "vcpus_used": 16}, {}, "CoreFilter"),
    "dedicated CPUs": ({"pcpus": 8, "pcpus_used": 4}, {"amounts": Amounts(0, 1024, 10, 4)}, None),
    "not enough dedicated CPUs": ({"pcpus": 8, "pcpus_used": 5}, {"amounts": Amounts(0, 1024, 10, 4)}, "PcpuFilter"),
    "a host without dedicated CPUs": ({}, {"amounts": Amounts(0, 1024, 10, 1)}, "PcpuFilter"),
    "a NUMA cell that fits": (TWO_CELLS, {"numa": numa_needs({"cpu_policy": "dedicated"}, 4, 1024)}, None),
    "no NUMA cell that fits": (TWO_CELLS, {"numa": numa_needs({"cpu_policy": "dedicated"}, 5, 1024)},
                               "NUMATopologyFilter"),
    "pages that no host has": (TWO_CELLS, {"numa": numa_needs({"mem_page_size": "2048"}, 1, 1024)},
                               "NUMATopologyFilter"),
    "a host that tells no cells": ({}, {"numa": numa_needs({"numa_nodes": 1}, 1, 1024)}, "NUMATopologyFilter"),
    "the zone of hosts without one": ({}, {"availability_zone": "nova"}, None),
    "another zone": ({}, {"availability_zone": "one"}, "AvailabilityZoneFilter"),
    "one of several zones": ({}, {"availability_zone": "one, nova"}, None),
    "the requested host": ({}, {"host": "kvm1"}, None),
    "not the requested host": ({}, {"host": "kvm2"}, "RequestedDestinationFilter"),
    "tried before": ({}, {"ignored": frozenset(["kvm1"])}, "RetryFilter"),
    "where the volume is": ({}, {"volume_hosts": frozenset(["kvm1"])}, None),
    "where the volume is not": ({}, {"volume_hosts": frozenset(["kvm2"])}, "VolumeHostFilter"),
    "ports of OVN": ({"info": {"ovn": {"chassis": "kvm1", "reason": ""}}}, {"needs_ovn": True}, None),
    "no OVN": ({"info": {"ovn": {"chassis": "", "reason": "ovn-controller does not run"}}}, {"needs_ovn": True},
               "OvnFilter"),
    "OVN by another name": ({"info": {"ovn": {"chassis": "other", "reason": ""}}}, {"needs_ovn": True}, "OvnFilter"),
    "a host that says nothing of OVN": ({}, {"needs_ovn": True}, "OvnFilter"),
    "no ports of OVN": ({}, {"needs_ovn": False}, None),
    "different host": ({}, {"different_host": frozenset(["kvm1"])}, "DifferentHostFilter"),
    "same host": ({}, {"same_host": frozenset(["kvm1"])}, None),
    "not the same host": ({}, {"same_host": frozenset()}, "SameHostFilter"),
    "apart": ({}, {"group": Group("g", "anti-affinity", 1, {"kvm1": 1})}, "ServerGroupAntiAffinityFilter"),
    "apart, two allowed": ({}, {"group": Group("g", "anti-affinity", 2, {"kvm1": 1})}, None),
    "together": ({}, {"group": Group("g", "affinity", 1, {"kvm1": 1})}, None),
    "together, the first": ({}, {"group": Group("g", "affinity", 1, {})}, None),
    "together, elsewhere": ({}, {"group": Group("g", "affinity", 1, {"kvm2": 1})}, "ServerGroupAffinityFilter"),
    "softly apart": ({}, {"group": Group("g", "soft-anti-affinity", 1, {"kvm1": 1})}, None),
    "softly together": ({}, {"group": Group("g", "soft-affinity", 1, {"kvm2": 1})}, None),
    "a capability": ({}, {"extra_specs": {"capabilities:hypervisor_type": "s== QEMU"}}, None),
    "a nested capability": ({"info": {"cpu_info": {"features": ["aes", "avx"]}}},
                            {"extra_specs": {"capabilities:cpu_info:features": "<in> avx"}}, None),
    "a missing nested one": ({"info": {"cpu_info": {"features": ["aes"]}}},
                             {"extra_specs": {"capabilities:cpu_info:features": "<in> avx"}},
                             "ComputeCapabilitiesFilter"),
    "an unknown capability": ({}, {"extra_specs": {"capabilities:colour": "red"}}, "ComputeCapabilitiesFilter"),
    "a name without scope": ({}, {"extra_specs": {"colour": "red"}}, "AggregateInstanceExtraSpecsFilter"),
    "one that something else acts on": ({}, {"extra_specs": {"hide_hypervisor_id": "true", "group_policy": "none"}},
                                        None),
    "the version as a number": ({}, {"extra_specs": {"capabilities:hypervisor_version": ">= 7002022"}}, None),
    "too old a version": ({}, {"extra_specs": {"capabilities:hypervisor_version": ">= 10000000"}},
                          "ComputeCapabilitiesFilter"),
    "past the filters": ({"servers": 4, "info": {"architecture": "x86_64"}}, {
        "past_filters": True, "image": {"hw_architecture": "aarch64"}}, None),
    "past the filters, disabled": ({"disabled": True}, {"past_filters": True}, "ComputeFilter"),
    "past the filters, another zone": ({}, {"past_filters": True, "availability_zone": "one"},
                                       "AvailabilityZoneFilter"),
    "past the filters, without room": ({"vcpus_used": 256}, {"past_filters": True}, "CoreFilter"),
    "a known name without scope": ({}, {"extra_specs": {"cpu_model": "Skylake"}}, "ComputeCapabilitiesFilter"),
    "another scope": ({}, {"extra_specs": {"hw:cpu_policy": "dedicated"}}, None),
    "a number of the host": ({"servers": 3}, {"extra_specs": {"capabilities:num_instances": "<= 3"}}, None),
    "too many of it": ({"servers": 4}, {"extra_specs": {"capabilities:num_instances": "<= 3"}},
                       "ComputeCapabilitiesFilter"),
    "no aggregate has it": ({}, {"extra_specs": {"aggregate_instance_extra_specs:ssd": "true"}},
                            "AggregateInstanceExtraSpecsFilter"),
    "the architecture": ({"info": {"architecture": "x86_64"}}, {"image": {"hw_architecture": "x86_64"}}, None),
    "another architecture": ({"info": {"architecture": "x86_64"}}, {"image": {"hw_architecture": "aarch64"}},
                             "ImagePropertiesFilter"),
    "by Debian's name": ({"info": {"architecture": "ppc64le"}}, {"image": {"hw_architecture": "ppc64el"}}, None),
    "emulated by another name": ({"info": {"architecture": "x86_64", "firmware": ["bios"]}},
                                 {"image": {"hw_emulation_architecture": "x64"}}, None),
    "by its old name": ({"info": {"architecture": "x86_64"}}, {"image": {"architecture": "ppc64"}},
                        "ImagePropertiesFilter"),
    "a host that does not tell": ({}, {"image": {"hw_architecture": "aarch64"}}, None),
    "one that it emulates": ({"info": EMULATES}, {"image": {"hw_emulation_architecture": "aarch64"}}, None),
    "which the image is of": ({"info": EMULATES}, {"image": {"hw_architecture": "aarch64",
                                                             "hw_emulation_architecture": "arm64"}}, None),
    "which the image does not ask for": ({"info": EMULATES}, {"image": {"hw_architecture": "aarch64"}},
                                         "ImagePropertiesFilter"),
    "one that it does not emulate": ({"info": {"architecture": "x86_64", "emulated_architectures": []}},
                                     {"image": {"hw_emulation_architecture": "aarch64"}}, "HardwareFilter"),
    "its own": ({"info": {"architecture": "aarch64", "firmware": ["uefi"]}},
                {"image": {"hw_emulation_architecture": "aarch64"}}, None),
    "a machine type of one that it emulates": ({"info": EMULATES}, {
        "image": {"hw_emulation_architecture": "aarch64"}, "machine": "virt-7.2"}, None),
    "an older one": ({"info": EMULATES}, {"image": {"hw_emulation_architecture": "aarch64"}, "machine": "virt-9.0"},
                     "HardwareFilter"),
    "qemu means kvm too": ({"info": {"virt_types": ["kvm"], "hypervisor_type": "KVM"}},
                           {"image": {"img_hv_type": "qemu"}}, None),
    "another hypervisor": ({}, {"image": {"img_hv_type": "hyperv"}}, "ImagePropertiesFilter"),
    "kvm where there is none": ({"info": {"virt_types": ["qemu"]}}, {"image": {"img_hv_type": "kvm"}},
                                "ImagePropertiesFilter"),
    "another mode": ({}, {"image": {"hw_vm_mode": "xen"}}, "ImagePropertiesFilter"),
    "a firmware that it has": ({"info": {"firmware": ["bios", "uefi"]}}, {"image": {"hw_firmware_type": "uefi"}}, None),
    "a firmware that it lacks": ({"info": {"firmware": ["bios"]}}, {"image": {"hw_firmware_type": "uefi"}},
                                 "HardwareFilter"),
    "secure boot that it lacks": ({"info": {"firmware": ["bios", "uefi"]}},
                                  {"image": {"hw_firmware_type": "uefi"},
                                   "extra_specs": {"os:secure_boot": "required"}}, "HardwareFilter"),
    "a TPM that it lacks": ({"info": {"tpm_versions": ["2.0"]}}, {"extra_specs": {"hw:tpm_version": "1.2"}},
                            "HardwareFilter"),
    "disks that it can encrypt": ({"info": {"disk_encryption": ["luks"]}},
                                  {"extra_specs": {"hw:ephemeral_encryption": "true"}}, None),
    "disks that it cannot encrypt": ({"info": {}}, {"image": {"hw_ephemeral_encryption": "true"}}, "HardwareFilter"),
    "a PCI device that is free": ({"info": {"pci_devices": {"gpu": {"total": 2, "free": 1}}}},
                                  {"extra_specs": {"pci_passthrough:alias": "gpu:1"}, "devices": {"gpu": 1}}, None),
    "PCI devices that others have": ({"info": {"pci_devices": {"gpu": {"total": 2, "free": 1}}}},
                                     {"extra_specs": {"pci_passthrough:alias": "gpu:2"}, "devices": {"gpu": 2}},
                                     "PciPassthroughFilter"),
    "more PCI devices than it has": ({"info": {"pci_devices": {"gpu": {"total": 1, "free": 1}}}},
                                     {"extra_specs": {"pci_passthrough:alias": "gpu:2"}}, "HardwareFilter"),
    "a PCI alias that it does not know": ({"info": {"pci_devices": {"nic": {"total": 2, "free": 2}}}},
                                          {"extra_specs": {"pci_passthrough:alias": "gpu:1"}}, "HardwareFilter"),
    "a machine type that it has": ({"info": {"architecture": "x86_64", "machine_types": {"x86_64": ["pc-q35-7.2"]}}},
                                   {"machine": "pc-q35-7.2"}, None),
    "a machine type that it lacks": ({"info": {"architecture": "x86_64", "machine_types": {"x86_64": ["pc-q35-7.2"]}}},
                                     {"machine": "pc-q35-8.2"}, "HardwareFilter"),
    "of a service": ({"number": 3}, {"extra_specs": {"capabilities:service_id": "== 3"}}, None),
    "of another service": ({"number": 3}, {"extra_specs": {"capabilities:service_id": "4"}},
                           "ComputeCapabilitiesFilter"),
    "changed since": ({"updated_at": "2026-11-02T10:00:00Z"}, {"extra_specs": {"capabilities:updated": "s>= 2026-11"}},
                      None),
    "in a cell": ({}, {"extra_specs": {"capabilities:mapped": "1", "capabilities:nodename": "<or> kvm1 <or> kvm2"}},
                  None),
    "by what may be claimed": ({}, {"extra_specs": {"capabilities:limits:vcpu": "== 256"}}, None),
    "by less than that": ({}, {"extra_specs": {"capabilities:limits:memory_mb": "<= 65536"}},
                          "ComputeCapabilitiesFilter"),
    "a metric that nobody tells": ({}, {"extra_specs": {"capabilities:metrics:cpu.percent": "<= 50"}},
                                   "ComputeCapabilitiesFilter"),
    "of a cell": ({}, {"extra_specs": {"capabilities:cell_uuid": "cell"}}, None),
    "a ratio": ({"vcpus_ratio": 4.0}, {"extra_specs": {"capabilities:cpu_allocation_ratio": "== 4.0"}}, None),
    "the usual ratio": ({}, {"extra_specs": {"capabilities:ram_allocation_ratio": "== 1.5"}}, None),
    "too high a ratio": ({}, {"extra_specs": {"capabilities:disk_allocation_ratio": "<= 0.5"}},
                         "ComputeCapabilitiesFilter"),
    "few that are moved": ({}, {"extra_specs": {"capabilities:current_workload": "== 0"}}, None),
    "a figure of its stats": ({"servers": 3}, {"extra_specs": {"capabilities:stats:num_instances": "<= 3"}}, None),
    "too high a figure": ({"servers": 4}, {"extra_specs": {"capabilities:stats:num_instances": "<= 3"}},
                          "ComputeCapabilitiesFilter"),
    "no such figure, whatever is asked of it": (
        {}, {"extra_specs": {"capabilities:stats:num_cats": "s!= 3"}}, "ComputeCapabilitiesFilter"),
    "no such figure": ({}, {"extra_specs": {"capabilities:stats:num_cats": "<= 3"}}, "ComputeCapabilitiesFilter"),
    "a figure that is none of several": ({"servers": 3}, {"extra_specs": {"capabilities:num_instances:of": "3"}},
                                         "ComputeCapabilitiesFilter"),
}


@pytest.mark.parametrize(("columns", "wish", "refused"), CASES.values(), ids=CASES)
def test_a_host_passes_or_is_refused_by_the_filter_that_says_so(columns, wish, refused):
    found = states(row("kvm1", **columns))
    if refused is None:
        assert [one.host for one in choose_hosts(found, request(**wish))] == ["kvm1"]
        return
    with pytest.raises(NoValidHost) as told:
        choose_hosts(found, request(**wish))
    assert told.value.refused == {refused: 1}


@pytest.mark.parametrize(("columns", "wish", "refused"), CASES.values(), ids=CASES)
def test_a_silent_host_is_waited_for_if_it_would_pass(columns, wish, refused):
    found = states(row("kvm1", **columns), down=["kvm1"])
    assert would_pass(found, request(**wish), ["kvm1"]) is (refused is None)


def test_every_filter_is_shown_refusing():
    tried = {refused for _columns, _wish, refused in CASES.values()} | REFUSING
    assert {one.name for one in FILTERS} - {"AllHostsFilter"} <= tried | {"AggregateMultiTenancyIsolation"}


def test_hints_that_answer_questions_about_hosts_are_not_heard_unless_an_operator_says_so():
    nosy = request(hints={"query": '["<", "$free_ram_mb", 1]', "build_near_host_ip": "192.0.3.1"})
    assert choose_hosts(states(row("kvm1")), nosy)
    assert [one.name for one in applied_filters(["JsonFilter"])][-1] == "JsonFilter"


def test_filters_that_are_named_are_applied_beside_those_that_always_are():
    names = {one.name for one in applied_filters(["ImagePropertiesFilter", "RamFilter"])}
    always = {one.name for one in FILTERS} - {*USUAL, *OPTIONAL, "TenantAggregatesFilter", "IsolatedAggregatesFilter"}
    assert names == always | {"ImagePropertiesFilter"} and {"ComputeFilter", "RamFilter"} <= always
    with pytest.raises(ValueError, match="there is no filter 'JasonFilter'; did you mean JsonFilter. There are Comp"):
        applied_filters(["JasonFilter"])


def test_the_settings_say_how_a_host_is_chosen():
    plain, other = make_settings({}), make_settings({"ram_weight_multiplier": -2, "cpu_weight_multiplier": 0,
                                                     "disk_weight_multiplier": 0.0,
                                                     "enabled_filters": [*USUAL, "JsonFilter"]})
    assert scheduler_rules(plain) == DEFAULT_RULES
    rows = [row("full", memory_mb_used=8192), row("empty")]
    for settings, best in ((plain, "empty"), (other, "full")):
        known = HostStates(rules=scheduler_rules(settings))
        known.refresh(rows)
        for name in ("full", "empty"):
            known.up(name, up=True)
        assert choose_hosts(known, request())[0].host == best
    nosy = request(hints={"query": '["=", "$host", "empty"]'})
    assert [one.host for one in choose_hosts(known, nosy, 2)] == ["empty"]


def test_a_host_whose_agent_is_silent_is_refused():
    with pytest.raises(NoValidHost) as told:
        choose_hosts(states(row("kvm1"), down=["kvm1"]), request())
    assert told.value.refused == {"ComputeFilter": 1}


def test_an_aggregate_gives_a_zone_extra_specs_and_projects():
    found = states(row("kvm1"), row("kvm2"), aggregates=[
        aggregate("kvm1", availability_zone="one", ssd="true, yes", filter_tenant_id="p,q", filter_tenant_id2="r")])
    assert [one.host for one in choose_hosts(found, request(availability_zone="one"), 9)] == ["kvm1"]
    ssd = request(extra_specs={"aggregate_instance_extra_specs:ssd": "yes"})
    assert [one.host for one in choose_hosts(found, ssd, 9)] == ["kvm1"]
    assert [one.host for one in choose_hosts(found, request(extra_specs={"ssd": "yes"}), 9)] == ["kvm1"]
    assert {one.host for one in choose_hosts(found, request(project_id="r"), 9)} == {"kvm1", "kvm2"}
    assert [one.host for one in choose_hosts(found, request(project_id="z"), 9)] == ["kvm2"]


def test_a_flavor_that_no_aggregate_has_metadata_for_says_so():
    with pytest.raises(NoValidHost) as refusal:
        choose_hosts(states(row("kvm1")), request(extra_specs={"ssd": "yes"}))
    assert "kvm1, is in no aggregate with the metadata ssd=yes." in refusal.value.explanation


def test_a_host_asked_for_by_zone_and_host_is_past_the_filters():
    specs = {"ssd": "yes", "capabilities:cpu_model": "other", "aggregate_instance_extra_specs:gpu": "yes",
             "trait:CUSTOM_GOLD": "required"}
    spec = request(host="kvm1", extra_specs=specs, hints={"query": '["=", "$host", "x"]'},
                   same_host=frozenset(), different_host=frozenset(["kvm1"])).past_all_filters()
    found = states(row("kvm1", own_traits='["CUSTOM_GOLD"]'), row("kvm2"), aggregates=[
        aggregate("kvm1", filter_tenant_id="other")])
    assert [one.host for one in choose_hosts(found, spec, 9)] == ["kvm1"]
    with pytest.raises(NoValidHost):  # traits are Placement's, which asks forced hosts, too
        choose_hosts(states(row("kvm1")), spec)


@pytest.mark.parametrize(("value", "text", "held"), [
    (5, ">= 5", True), (4, ">= 5", False), (5, "= 5", True), (6, "= 5", True), (6, "== 5", False), (5.0, "== 5", True),
    (6, "!= 5", True), (5, "<= 5", True), ("much", ">= 5", False), (5, ">= much", False),
    ("2.1.0", "s== 2.1.0", True), ("2.1.0", "s!= 2.1.0", False), ("b", "s> a", True), ("b", "s>= b", True),
    ("a", "s< b", True), ("a", "s<= a", True), ("a gcc here", "<in> gcc", True), (["aes", "mmx"], "<in> aes", True),
    (["aes"], "<in> ae", False), (["aes", "mmx"], "<all-in> aes mmx", True), (["aes"], "<all-in> aes mmx", False),
    ("fpu", "<or> fpu <or> gpu", True), ("gpu", "<or> fpu <or> gpu", True), ("cpu", "<or> fpu <or> gpu", False),
    ("x86 64", "x86 64", True), (5, "5", True), (True, "True", True), ("a", "b", False), ("", "", True)])
def test_operators_of_extra_specs(value, text, held):
    assert matches_extra_spec(value, text) is held


def test_a_flavor_needs_its_disks_and_swap_in_whole_gib():
    flavor = {"vcpus": 2, "ram": 512, "disk": 10, "ephemeral": 5, "swap": 1025}
    assert claimed_amounts(flavor) == (2, 512, 17, 0)
    assert claimed_amounts(flavor, volume_backed=True) == (2, 512, 7, 0)
    assert claimed_amounts({"vcpus": 1, "ram": 64, "swap": ""}) == (1, 64, 0, 0)


def test_hints_name_servers_and_requests_hosts():
    where = {"s1": ["kvm1"], "s2": ["kvm2", "kvm3"]}
    assert hinted_host_fields({"different_host": "s1", "same_host": ["s2", "s9"]}, where) == {
        "different_host": {"kvm1"}, "same_host": {"kvm2", "kvm3"}}
    assert hinted_host_fields({}, where) == {"different_host": frozenset(), "same_host": None}


@pytest.mark.parametrize(("specs", "properties", "claims"), [
    ({"hw:cpu_policy": "dedicated"}, {}, (0, 4)),
    ({}, {"hw_cpu_policy": "dedicated"}, (0, 4)),
    ({"hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "2-3"}, {}, (0, 4)),
    ({"hw:cpu_realtime": "yes"}, {"hw_cpu_realtime_mask": "2-3"}, (0, 4)),
    ({"hw:cpu_realtime": "no"}, {"hw_cpu_realtime_mask": "2-3"}, (4, 0)),
    ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0"}, {}, (3, 1)),
    ({"hw:cpu_policy": "dedicated", "hw:emulator_threads_policy": "isolate"}, {}, (0, 5)),
    ({"hw:numa_nodes": "2"}, {}, (4, 0)),
    ({"hw:cpu_policy": "mixed"}, {}, (4, 0))], ids=str)  # no server can have that
def test_dedicated_cpus_are_claimed_beside_shared_ones(specs, properties, claims):
    found = claimed_amounts({"vcpus": 4, "ram": 64, "extra_specs": specs}, image={"properties": properties})
    assert (found.vcpus, found.pcpus) == claims
