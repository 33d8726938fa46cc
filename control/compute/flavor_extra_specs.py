# SPDX-License-Identifier: GPL-3.0-or-later
"""Extra specs of flavors: what they ask of hosts and give to guests besides sizes.

``KNOWN_SPECS`` says which there are in the namespaces that Nova knows, and what they may say. Specs of other namespaces
are free. Source: Nova's extra spec reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import orjson

from magnetar_control.compute import flavors
from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.store import flavors as store
from magnetar_control.store.servers import text
from magnetar_core.errors import InvalidField, NotFound
from magnetar_core.values import MapOf, Text

RULE = "os_compute_api:os-flavor-extra-specs:"
#: What a document of extra specs looks like.
SPECS = MapOf(Text(1, 255, r"[a-zA-Z0-9\-_:. ]{1,255}", "may have letters, digits, blanks and - _ : . only"),
              Text(0, 255), 10000)
_BOOL = r"(?i:1|t|true|on|y|yes|0|f|false|off|n|no)"
_NUMBER, _SOME, _ANY = r"[0-9]+", r"[1-9][0-9]*", r"(?s:.*)"
_UNITS = ("bytes_sec", "iops_sec", "bytes_sec_max", "iops_sec_max")
_QUOTA = (
    "cpu_limit", "cpu_period", "cpu_quota", "cpu_reservation", "cpu_shares_share",
    *(f"disk_{what}_{unit}" for what in ("read", "write", "total") for unit in _UNITS),
    "disk_io_limit", "disk_io_reservation", "disk_io_shares_share", "memory_limit", "memory_reservation",
    "memory_shares_share", "vif_limit", "vif_reservation", "vif_shares_share",
    *(f"vif_{way}_{what}" for way in ("inbound", "outbound") for what in ("average", "burst", "peak")))
_LEVEL = "custom|high|normal|low"
#: Name of the spec to what its value must be, both regular expressions of the whole text.
KNOWN_SPECS: tuple[tuple[str, str], ...] = (
    (r"accel:device_profile", _ANY), (r"aggregate_instance_extra_specs:.+", _ANY), (r"capabilities:.+", _ANY),
    (r"hw:(boot_menu|cpu_realtime|hide_hypervisor_id|locked_memory|mem_encryption|pmu|vif_multiqueue_enabled|"
     r"virtio_packed_ring|ephemeral_encryption)", _BOOL),
    (r"hw:(cpu_cores|cpu_threads|cpu_sockets|cpu_max_cores|cpu_max_threads|cpu_max_sockets|numa_nodes)", _SOME),
    (r"hw:numa_mem\.[0-9]+", _SOME), (r"hw:numa_cpus\.[0-9]+", r"\^?[0-9]+((-[0-9]+)?(,\^?[0-9]+(-[0-9]+)?)*)?"),
    (r"hw:(cpu_realtime_mask|cpu_dedicated_mask)", r"\^?\d+((-\d+)?(,\^?\d+(-\d+)?)?)*"),
    (r"hw:cpu_policy", "dedicated|shared|mixed"), (r"hw:cpu_thread_policy", "prefer|isolate|require"),
    (r"hw:emulator_threads_policy", "isolate|share"), (r"hw:maxphysaddr_mode", "passthrough|emulate"),
    (r"hw:mem_page_size", r"large|small|any|[0-9]+([kKMGT]i?)?(b|bit|B)?"),
    (r"hw:pmem", r"[a-zA-Z0-9_-]+(,[a-zA-Z0-9_-]+)*"),
    (r"hw:mem_encryption_model", "amd-sev|amd-sev-es"), (r"hw:ephemeral_encryption_format", "luks"),
    (r"hw:pci_numa_affinity_policy", "required|preferred|legacy|socket"),
    (r"hw:(serial_port_count|maxphysaddr_bits)", _NUMBER),
    (r"hw:tpm_version", r"1\.2|2\.0"), (r"hw:tpm_model", "tpm-tis|tpm-crb"),
    (r"hw:tpm_secret_security", "user|host|deployment"), (r"hw:viommu_model", "intel|smmuv3|virtio|auto"),
    (r"hw:watchdog_action", "none|pause|poweroff|reset|disabled"), (r"hw:usb_model", _ANY),
    (r"hw:sound_model", "sb16|es1370|pcspk|ac97|ich6|ich9|usb|virtio"), (r"hw:redirected_usb_ports", _NUMBER),
    (r"hw_rng:allowed", _BOOL), (r"hw_rng:rate_(bytes|period)", _NUMBER), (r"hw_video:ram_max_mb", _NUMBER),
    (r"os:secure_boot", "disabled|required|optional"), (r"os:monitors", "[1-8]"), (r"os:vram", "64|128|256|512|1024"),
    (r"os:resolution", "1024x768|1280x1024|1600x1200|1920x1200|2560x1600|3840x2160"),
    (r"pci_passthrough:alias", r"[^:]+:[0-9]+(,\s*[^:]+:[0-9]+)*"),
    (rf"quota:({'|'.join(_QUOTA)}|cpu_shares)", _NUMBER),
    (r"quota:(cpu|disk_io|memory|vif)_shares_level", _LEVEL),
    (r"resources\w*:(CUSTOM_[A-Z0-9_]+|VCPU|PCPU|MEMORY_MB|DISK_GB|PCI_DEVICE|SRIOV_NET_VF|NUMA_\w+|IPV4_ADDRESS|VGPU|"
     r"VGPU_DISPLAY_HEAD|NET_BW_[EI]GR_KILOBIT_PER_SEC|NET_PACKET_RATE_\w+|FPGA|PGPU|MEM_ENCRYPTION_CONTEXT)", _NUMBER),
    (r"trait\w*:[A-Z0-9_]+", "required|forbidden"), (r"group_policy", "none|isolate"),
)
#: Namespaces in which nothing else exists.
NAMESPACES = re.compile(r"(accel|aggregate_instance_extra_specs|capabilities|hw|hw_rng|hw_video|os|pci_passthrough|"
                        r"quota|resources\w*|trait\w*):|group_policy$")
_TABLE = [(re.compile(name), re.compile(value)) for name, value in KNOWN_SPECS]


def check(specs: Mapping[str, str]) -> None:
    """Raises ``InvalidField`` for a spec in a namespace that Nova knows, where it does not know spec or value."""
    for name, value in specs.items():
        _check(name, value)


def _check(name: str, value: str) -> None:
    if not NAMESPACES.match(name):
        return
    for known, rule in _TABLE:
        if known.fullmatch(name):
            if not rule.fullmatch(value):
                raise InvalidField(f"extra_specs.{name}", f"Validation failed; it must match {rule.pattern}", value)
            return
    raise InvalidField(f"extra_specs.{name}", f"Validation failed; extra spec '{name}' does not appear to be a valid "
                                              "extra spec. Another namespace is free to use")


@use_case(f"{RULE}index")
def show(caller: Caller, id: str) -> str:
    """All of the flavor *id*, as JSON text."""
    return str(flavors.show(caller, id).extra_specs)


@use_case(f"{RULE}show")
def show_one(caller: Caller, id: str, name: str) -> str:
    """The value of one. Raises ``NotFound``."""
    specs = orjson.loads(flavors.show(caller, id).extra_specs)
    if name not in specs:
        raise _missing(id, name)
    return str(specs[name])


def _missing(id: str, name: str) -> NotFound:
    return NotFound(f"Flavor {id} has no extra specs with key {name[:255]}.")


@use_case(f"{RULE}create")
def create(caller: Caller, id: str, specs: Mapping[str, str], *, checked: bool = True) -> None:
    """Add *specs* to those of the flavor. *checked*: by ``check``."""
    _merge(caller, id, specs, checked=checked)


@use_case(f"{RULE}update")
def update(caller: Caller, id: str, specs: Mapping[str, str], *, checked: bool = True) -> None:
    """Set *specs*; as ``create``, under a rule of its own."""
    _merge(caller, id, specs, checked=checked)


def _merge(caller: Caller, id: str, more: Mapping[str, str], *, checked: bool) -> None:
    if checked:
        check(more)
    _change(caller, id, lambda specs: {**specs, **more})


def _change(caller: Caller, id: str, changed: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """Set the specs to what *changed* makes of them, in one transaction."""
    row = flavors.show(caller, id)
    with caller.cloud.store.api.write() as connection:
        now = store.locked(connection, row.number)
        if now is None:
            raise flavors.not_found(row.id)
        store.change(connection, row.number, extra_specs=text(changed(orjson.loads(now["extra_specs"]))))


@use_case(f"{RULE}delete")
def delete(caller: Caller, id: str, name: str) -> None:
    """Remove one. Raises ``NotFound``."""

    def without(specs: dict[str, str]) -> dict[str, str]:
        if name not in specs:
            raise _missing(id, name)
        return {key: value for key, value in specs.items() if key != name}

    _change(caller, id, without)
