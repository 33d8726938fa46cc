# SPDX-License-Identifier: GPL-3.0-or-later
"""Extra specs of flavors. Source: Nova's extra spec reference (2026)."""

from __future__ import annotations

from . import SCHEDULER, Spec, Table

FALSE, TRUE = r"(?i:0|f|false|off|n|no)", r"(?i:1|t|true|on|y|yes)"
BOOLEAN = "%s|%s" % (TRUE, FALSE)
NUMBER, POSITIVE, ANY = r"[0-9]+", r"[1-9][0-9]*", r"(?s:.*)"
CPUS = r"\^?[0-9]+((-[0-9]+)?(,\^?[0-9]+(-[0-9]+)?)*)?"
_UNITS = ("bytes_sec", "iops_sec", "bytes_sec_max", "iops_sec_max")
_QUOTA = (
    "cpu_limit", "cpu_period", "cpu_quota", "cpu_reservation", "cpu_shares", "cpu_shares_share",
    *("disk_%s_%s" % (what, unit) for what in ("read", "write", "total") for unit in _UNITS),
    "disk_io_limit", "disk_io_reservation", "disk_io_shares_share", "memory_limit", "memory_reservation",
    "memory_shares_share", "vif_limit", "vif_reservation", "vif_shares_share",
    *("vif_%s_%s" % (way, what) for way in ("inbound", "outbound") for what in ("average", "burst", "peak")))
_CLASSES = (r"CUSTOM_[A-Z0-9_]+|VCPU|PCPU|MEMORY_MB|DISK_GB|PCI_DEVICE|SRIOV_NET_VF|NUMA_\w+|IPV4_ADDRESS|VGPU|"
            r"VGPU_DISPLAY_HEAD|NET_BW_[EI]GR_KILOBIT_PER_SEC|NET_PACKET_RATE_\w+|FPGA|PGPU|MEM_ENCRYPTION_CONTEXT")
_SCHEDULED = frozenset((SCHEDULER,))

ROWS = (
    Spec(r"aggregate_instance_extra_specs:.+", ANY, _SCHEDULED),
    Spec(r"capabilities:.+", ANY, _SCHEDULED),
    Spec(r"accel:device_profile", ANY, lacks="there is no accelerator service (Cyborg)"),
    Spec(r"hw:boot_menu", BOOLEAN, usual=FALSE, lacks="guests have no boot menu"),
    Spec(r"hw:cpu_policy", "dedicated|shared|mixed", usual="shared", lacks="CPUs are not pinned"),
    Spec(r"hw:cpu_thread_policy", "prefer|isolate|require", lacks="CPUs are not pinned"),
    Spec(r"hw:cpu_dedicated_mask", CPUS, lacks="CPUs are not pinned"),
    Spec(r"hw:cpu_realtime", BOOLEAN, usual=FALSE, lacks="CPUs are not pinned"),
    Spec(r"hw:cpu_realtime_mask", CPUS, lacks="CPUs are not pinned"),
    Spec(r"hw:emulator_threads_policy", "isolate|share", usual="share", lacks="CPUs are not pinned"),
    Spec(r"hw:cpu_(max_)?(cores|threads|sockets)", POSITIVE, lacks="each virtual CPU is a socket of its own"),
    Spec(r"hw:ephemeral_encryption", BOOLEAN, usual=FALSE, lacks="disks are not encrypted"),
    Spec(r"hw:ephemeral_encryption_format", "luks", lacks="disks are not encrypted"),
    Spec(r"hw:hide_hypervisor_id", BOOLEAN, usual=FALSE, lacks="the hypervisor is not hidden from guests"),
    Spec(r"hw:locked_memory", BOOLEAN, usual=FALSE, lacks="memory is not locked"),
    Spec(r"hw:maxphysaddr_mode", "passthrough|emulate", lacks="the CPU's address width is the host's choice"),
    Spec(r"hw:maxphysaddr_bits", NUMBER, lacks="the CPU's address width is the host's choice"),
    Spec(r"hw:mem_encryption", BOOLEAN, usual=FALSE, lacks="memory is not encrypted"),
    Spec(r"hw:mem_encryption_model", "amd-sev|amd-sev-es", lacks="memory is not encrypted"),
    Spec(r"hw:mem_page_size", r"large|small|any|[0-9]+([kKMGT]i?)?(b|bit|B)?", usual="small|any",
         lacks="guests have small memory pages only"),
    Spec(r"hw:numa_nodes", POSITIVE, lacks="guests have no NUMA topology"),
    Spec(r"hw:numa_mem\.[0-9]+", POSITIVE, lacks="guests have no NUMA topology"),
    Spec(r"hw:numa_cpus\.[0-9]+", CPUS, lacks="guests have no NUMA topology"),
    Spec(r"hw:pci_numa_affinity_policy", "required|preferred|legacy|socket", usual="legacy",
         lacks="guests have no NUMA topology"),
    Spec(r"hw:pmem", r"[a-zA-Z0-9_-]+(,[a-zA-Z0-9_-]+)*", lacks="guests get no persistent memory"),
    Spec(r"hw:pmu", BOOLEAN, lacks="the performance counters are the host's choice"),
    Spec(r"hw:redirected_usb_ports", NUMBER, usual="0", lacks="guests have no USB"),
    Spec(r"hw:serial_port_count", NUMBER, usual="1", lacks="each guest has one serial port"),
    Spec(r"hw:sound_model", "sb16|es1370|pcspk|ac97|ich6|ich9|usb|virtio", lacks="guests have no sound"),
    Spec(r"hw:tpm_version", r"1\.2|2\.0", lacks="guests have no TPM"),
    Spec(r"hw:tpm_model", "tpm-tis|tpm-crb", lacks="guests have no TPM"),
    Spec(r"hw:tpm_secret_security", "user|host|deployment", lacks="guests have no TPM"),
    Spec(r"hw:usb_model", ANY, lacks="guests have no USB"),
    Spec(r"hw:vif_multiqueue_enabled", BOOLEAN, usual=FALSE, lacks="NICs have one queue"),
    Spec(r"hw:viommu_model", "intel|smmuv3|virtio|auto", lacks="guests have no IOMMU"),
    Spec(r"hw:virtio_packed_ring", BOOLEAN, usual=FALSE, lacks="virtio devices have split rings"),
    Spec(r"hw:watchdog_action", "none|pause|poweroff|reset|disabled", usual="disabled",
         lacks="guests have no watchdog"),
    Spec(r"hw_rng:allowed", BOOLEAN, usual=TRUE, lacks="every guest has a random number generator"),
    Spec(r"hw_rng:rate_(bytes|period)", NUMBER, lacks="the random number generator has no limit"),
    Spec(r"hw_video:ram_max_mb", NUMBER, lacks="the memory of the graphics card is fixed"),
    Spec(r"os:secure_boot", "disabled|required|optional", usual="disabled|optional", lacks="guests boot by BIOS"),
    Spec(r"os:monitors", "[1-8]", usual="1", lacks="each guest has one monitor"),
    Spec(r"os:vram", "64|128|256|512|1024", lacks="the memory of the graphics card is fixed"),
    Spec(r"os:resolution", "1024x768|1280x1024|1600x1200|1920x1200|2560x1600|3840x2160",
         lacks="the resolution is the guest's choice"),
    Spec(r"pci_passthrough:alias", r"[^:]+:[0-9]+(,\s*[^:]+:[0-9]+)*", lacks="PCI devices are not given to guests"),
    Spec(r"quota:(%s)" % "|".join(_QUOTA), NUMBER, lacks="CPU, disks and NICs of guests are not limited"),
    Spec(r"quota:(cpu|disk_io|memory|vif)_shares_level", "custom|high|normal|low", usual="normal",
         lacks="CPU, disks and NICs of guests are not limited"),
    Spec(r"resources\w*:(%s)" % _CLASSES, NUMBER,
         lacks="the scheduler counts CPUs, memory and disk of the flavor only"),
    Spec(r"trait\w*:[A-Z0-9_]+", "required|forbidden", lacks="hosts have no traits"),
    Spec(r"group_policy", "none|isolate", lacks="the scheduler counts CPUs, memory and disk of the flavor only"),
)
FLAVOR_SPECS = Table("extra spec", ROWS, r"(accel|aggregate_instance_extra_specs|capabilities|hw|hw_rng|hw_video|os|"
                                         r"pci_passthrough|quota|resources\w*|trait\w*):|group_policy$")
