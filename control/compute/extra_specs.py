# SPDX-License-Identifier: GPL-3.0-or-later
"""Which extra specs there are in the namespaces that Nova knows, and what they may say: checked since 2.86.

Specs of other namespaces are free. Source: Nova's extra spec reference.
"""

from __future__ import annotations

import re

from magnetar_core.errors import InvalidField

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
SPECS: tuple[tuple[str, str], ...] = (
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
KNOWN = re.compile(r"(accel|aggregate_instance_extra_specs|capabilities|hw|hw_rng|hw_video|os|pci_passthrough|quota|"
                   r"resources\w*|trait\w*):|group_policy$")
_TABLE = [(re.compile(name), re.compile(value)) for name, value in SPECS]


def check(name: str, value: str) -> None:
    """Raises ``InvalidField`` when Nova knows the namespace, and not the spec, or not the value."""
    if not KNOWN.match(name):
        return
    for known, rule in _TABLE:
        if known.fullmatch(name):
            if not rule.fullmatch(value):
                raise InvalidField(f"extra_specs.{name}", f"Validation failed; it must match {rule.pattern}", value)
            return
    raise InvalidField(f"extra_specs.{name}", f"Validation failed; extra spec '{name}' does not appear to be a valid "
                                              "extra spec. Another namespace is free to use")
