# SPDX-License-Identifier: GPL-3.0-or-later
"""The fields of a server's ``hardware``, one row each, with the extra spec of a flavor and the property of an image
that request it. ``flavor_specs``, ``image_properties``, the field of the kind ``server`` and
``docs/reference/hardware.md`` derive from these rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import InvalidField
from ..fields import Field, Record
from ..values import Boolean, Choices, Integer, ListOf, Text, Value
from . import machines
from .architectures import ARCHITECTURE_ALIASES, MACHINES
from .cpus import CPUS, CpuMask, CpuSet, PageSize
from .groups import requested_vgpus
from .pci import ALIASES, POLICIES, PciAliases
from .pmem import LABELS, PmemLabels
from .traits import SEV, X86, requested_host_traits

FALSE, TRUE = r"(?i:0|f|false|off|n|no)", r"(?i:1|t|true|on|y|yes)"
BOOLEAN = "%s|%s" % (TRUE, FALSE)
NUMBER, POSITIVE, ANY = r"[0-9]+", r"[1-9][0-9]*", r"(?s:.*)"
TRAIT = "[A-Z][A-Z0-9_]*"
#: Reason why other formats of encrypted disks are refused.
NO_FORMAT = "servers' own disks are encrypted with LUKS 1 (luks), or not at all"

#: Rules for a row that flavor and image both request: the flavor wins; the image wins; both must be equal; the image
#: may request less than the flavor allows; one of the two suffices.
FLAVOR_WINS, IMAGE_WINS, ALIKE, LESS, EITHER = "flavor", "image", "alike", "less", "either"
#: More rules: the image's word must not come after the flavor's; the image may narrow an open choice of the flavor;
#: only one of the two may be set.
ORDER, OPEN, ALONE = "order", "open", "alone"
#: Another rule: the values of flavor and image are combined.
UNION = "union"
RULES: Mapping[str, str] = {
    FLAVOR_WINS: "the flavor wins", IMAGE_WINS: "the image wins",
    ALIKE: "both must be equal", LESS: "the image may request less than the flavor, not more",
    EITHER: "one of the two is enough",
    ORDER: "the flavor wins; the image's value must not come after it",
    OPEN: "the image wins if the flavor has large or any; otherwise only the flavor may set it",
    ALONE: "only one of the two may set it", UNION: "both count"}
#: The field of CPU traits of the guest, which many spec names request; ``parse_hardware_specs`` collects them.
CPU_TRAITS = "cpu_traits"
#: Sources of Nova's behaviour.
_SPECS, _GLANCE = "Nova's extra spec reference", "Glance's list of useful image properties"


class Row(NamedTuple):
    """A field of a server's ``hardware``, and how flavors and images request it.

    *field*, *value*, *usual*: its name, type and default. *spec*, *image*: the extra spec of a flavor and the property
    of an image that request it. *rule*: which of the two counts if both are set (see ``RULES``). A *spec* or *image*
    that ends with ``.N`` stands for numbered names, one for each item of a list. *aliases*: older names of the spec.
    *words*: Nova's values that have other names in Magnetar. *known*: a regular expression for the values that Nova
    accepts. *lacks*: the reason why Magnetar refuses some of these values. *bounds*: the name of another field, if the
    row only sets the maximum of that field. *needs*: requirements on guest or host. *since*: the first release that has
    the field.
    """

    field: str
    value: Value
    doc: str
    usual: Any
    spec: str = ""
    image: str = ""
    rule: str = FLAVOR_WINS
    words: Mapping[str, Any] = {}
    known: str = ""
    lacks: str = ""
    bounds: str = ""
    needs: str = ""
    aliases: tuple[str, ...] = ()
    source: str = _SPECS
    since: str = "0.2.0"

    def parse(self, text: str) -> Any:
        """Convert *text*, the value of an extra spec or image property (for a list: of one item), to the field's value,
        and return it. Raises ``InvalidField`` with the reason.
        """
        parsed: Any = self.words.get(text, text)
        value = self.value.item if isinstance(self.value, ListOf) else self.value
        if isinstance(value, Boolean) and isinstance(parsed, str):
            if not re.fullmatch(BOOLEAN, parsed):
                raise InvalidField(self.name, "must be true or false", text)
            parsed = bool(re.fullmatch(TRUE, parsed))
        elif isinstance(value, Integer) and re.fullmatch(NUMBER, parsed):
            parsed = int(parsed)
        try:
            return value.check(parsed, self.name)
        except InvalidField as error:
            rule = str(error.details["rule"])
            raise InvalidField(self.name, "%s: %s" % (self.lacks, rule) if self.lacks else rule, text) from None

    @property
    def name(self) -> str:
        """Return the name of the field; for a row that only limits another field, a description such as "the most of
        video_ram".
        """
        return self.field or "the most of %s" % self.bounds

    def pattern(self) -> str:
        """Return a regular expression for the values of the extra spec that Nova accepts."""
        if self.known:
            return self.known
        if isinstance(self.value, Boolean):
            return BOOLEAN
        if isinstance(self.value, Choices):
            return "|".join(map(re.escape, dict.fromkeys([*self.words, *self.value.words()])))
        return NUMBER


_COUNT = Integer(1, 4096)
#: Name of a user in a guest. Names on Windows may contain spaces.
GUEST_USER = Text(1, 64, r"[^\s:\x00-\x1f\x7f]+( +[^\s:\x00-\x1f\x7f]+)*", "must be the name of a user")
#: Maximum number of NUMA cells of a guest.
_CELLS = 64
_PINNED = "a host with dedicated CPUs (the agent's setting cpu_dedicated_set)"
#: Rates: QEMU's maximum for disks, and for NICs one terabyte per second in kilobytes.
_DISK_RATE, _NIC_RATE = Integer(0, 10**15), Integer(0, 10**9)
_PERIOD = Integer(0, 1_000_000)
_DISK_BUSES = ("virtio", "scsi", "sata", "ide")
_ON_PC = "ide needs machine pc, which the server gets unless another is named"


def _topology() -> list[Row]:
    rows = []
    for level in ("sockets", "cores", "threads"):
        rows.append(Row("cpu_%s" % level, _COUNT,
                        "Number of CPU %s of the guest. Missing numbers follow from the number of virtual "
                        "CPUs." % level, None, "hw:cpu_%s" % level, "hw_cpu_%s" % level, IMAGE_WINS,
                        known=POSITIVE,
                        needs="the product of all three is the number of virtual CPUs; an image sets all three or "
                              "none"))
        rows.append(Row("", _COUNT, "Maximum number of CPU %s of the guest." % level, None, "hw:cpu_max_%s" % level,
                        "hw_cpu_max_%s" % level, LESS, known=POSITIVE, bounds="cpu_%s" % level))
    return rows


def _disk_limits() -> list[Row]:
    words = {"bytes_sec": "bytes a second", "iops_sec": "requests a second"}
    rows = []
    for direction, meaning in (("read", "read from"), ("write", "write to"), ("total", "read from and write to")):
        for unit, unit_text in words.items():
            name = "disk_%s_%s" % (direction, unit)
            apart = "not together with %s" % ("the limits of read and write" if direction == "total"
                                              else "the limit of total")
            doc = "Maximum rate of the guest to %s each of its own disks, in %s." % (meaning, unit_text)
            rows.append(Row(name, _DISK_RATE, doc, 0, "quota:" + name, needs=apart))
            rows.append(Row(name + "_max", _DISK_RATE, "The maximum rate in a burst, in %s." % unit_text, 0,
                            "quota:%s_max" % name, needs="%s, the limit outside of bursts" % name))
    return rows


def _nic_limits() -> list[Row]:
    rows = []
    for way, meaning in (("inbound", "to the guest"), ("outbound", "from the guest")):
        average = "vif_%s_average" % way
        rows.append(Row(average, _NIC_RATE, "Average traffic of each NIC %s, in kilobytes a second." % meaning, 0,
                        "quota:" + average))
        rows.append(Row("vif_%s_peak" % way, _NIC_RATE, "Maximum traffic in a burst, in kilobytes a second.", 0,
                        "quota:vif_%s_peak" % way, needs=average))
        rows.append(Row("vif_%s_burst" % way, _NIC_RATE, "Kilobytes that may pass at peak speed.", 0,
                        "quota:vif_%s_burst" % way, needs=average))
    return rows


def _placed() -> list[Row]:
    return [
        Row("cpu_policy", Choices("shared", "mixed", "dedicated"), "Which virtual CPUs have a dedicated CPU of the "
            "host: none (V(shared)), the CPUs of cpu_dedicated_mask (V(mixed)), or all (V(dedicated)).",
            "shared", "hw:cpu_policy", "hw_cpu_policy", ORDER, needs=_PINNED),
        Row("cpu_dedicated_mask", CpuSet(), "The virtual CPUs with a dedicated CPU of the host, such as V(0-1).", None,
            "hw:cpu_dedicated_mask", known=CPUS, needs="cpu_policy mixed, and no cpu_realtime_mask"),
        Row("cpu_realtime", Boolean(), "Whether virtual CPUs have real-time priority on the host (scheduler "
            "V(fifo)). The memory stays in the host's RAM. There are no performance counters unless pmu is set.",
            False, "hw:cpu_realtime", needs="cpu_policy mixed or dedicated (the default here); cpu_realtime_mask or "
            "emulator_threads"),
        Row("cpu_realtime_mask", CpuMask(), "The real-time virtual CPUs, such as V(2-7) or V(^0-1). Default: all. "
            "With cpu_policy mixed, they are the dedicated ones. The others' CPUs run QEMU's own threads, unless "
            "emulator_threads is set.", None, "hw:cpu_realtime_mask",
            "hw_cpu_realtime_mask", known=CPUS, needs="cpu_realtime of the flavor; without it, the image's mask is "
            "ignored"),
        Row("cpu_thread_policy", Choices("prefer", "isolate", "require"),
            "Whether dedicated CPUs are threads of the same cores: if possible (V(prefer)), never, on hosts without "
            "threads (V(isolate)), or always (V(require)).", "prefer", "hw:cpu_thread_policy",
            "hw_cpu_thread_policy", ALIKE, needs="cpu_policy dedicated or mixed"),
        Row("emulator_threads", Choices("share", "isolate"), "Where QEMU's own threads run: on the host's shared "
            "CPUs, if there are any, or on one more dedicated CPU. Default: on the server's CPUs.", None,
            "hw:emulator_threads_policy", "hw_emulator_threads_policy", ALIKE,
            needs="isolate: cpu_policy dedicated or mixed"),
        Row("numa_nodes", Integer(1, _CELLS), "Number of NUMA cells of the guest, each on a separate cell of the "
            "host.", None, "hw:numa_nodes", "hw_numa_nodes", ALONE, known=POSITIVE,
            needs="a host with as many; a number that divides virtual CPUs and memory evenly, or numa_cpus and "
            "numa_mem"),
        Row("numa_cpus", ListOf(CpuSet(), max=_CELLS), "The virtual CPUs of each cell, such as V(0-1).", None,
            "hw:numa_cpus.N", "hw_numa_cpus.N", ALONE, known=CPUS, needs="numa_nodes, and numa_mem"),
        Row("numa_mem", ListOf(Integer(1), max=_CELLS), "MiB of each cell. The sum is the memory of the server.",
            None, "hw:numa_mem.N", "hw_numa_mem.N", ALONE, known=POSITIVE, needs="numa_nodes, and numa_cpus"),
        Row("mem_page_size", PageSize(), "Page size of the memory: V(small), V(large) (the largest suitable one), "
            "V(any) (large if available), or a size (KiB, or with a unit).", None, "hw:mem_page_size",
            "hw_mem_page_size", OPEN, known="large|small|any|[0-9]+([kKMGT]i?)?(b|bit|B)?",
            needs="a host with free pages of that size"),
        Row("locked_memory", Boolean(), "Whether the memory stays in the host's RAM.", False, "hw:locked_memory",
            "hw_locked_memory", ALIKE, needs="mem_page_size"),
    ]


def name_pattern(name: str) -> str:
    """Return a regular expression for *name*, an extra spec or image property. The ending ``.N`` stands for any number.
    """
    return re.escape(name[:-1]) + "[0-9]{1,2}" if name.endswith(".N") else re.escape(name)


ROWS: tuple[Row, ...] = (
    *_topology(), *_placed(),
    Row(CPU_TRAITS, ListOf(Choices(*sorted(X86.values())), unique=True),
        "Required features of the guest's CPU, from C(trait:HW_CPU_X86_…=required) of flavor and image. The guest "
        "gets the first model with these features in the agent's setting cpu_models.",
        None, rule=UNION, needs="a host whose guests have these features"),
    Row("pmu", Boolean(), "Whether the guest has performance counters. Default: QEMU decides.", None, "hw:pmu",
        "hw_pmu", ALIKE),
    Row("hide_hypervisor_id", Boolean(), "Whether the hypervisor is hidden from the guest: no hypervisor bit, no "
        "signature of KVM.",
        False, "hw:hide_hypervisor_id", "img_hide_hypervisor_id", EITHER, aliases=("hide_hypervisor_id",)),
    Row("hpet", Boolean(), "Whether the guest has a high precision event timer.", False, image="hw_time_hpet",
        source=_GLANCE),
    Row("cpu_shares", Integer(0, 262144), "Weight of the guest's CPU time relative to other guests; 0 for the "
        "default.", 0,
        "quota:cpu_shares", needs="cgroups; at least 2, and at most 10000 on hosts with cgroup v2 only"),
    Row("cpu_period", _PERIOD, "Period of cpu_quota in microseconds; 0 or at least 1000.", 0,
        "quota:cpu_period", needs="cgroups"),
    Row("cpu_quota", Integer(0, 2**44 - 1), "Microseconds that each virtual CPU may run in a cpu_period; 0 (no "
        "limit) or at least 1000.", 0, "quota:cpu_quota", needs="cgroups"),
    *_disk_limits(), *_nic_limits(),
    Row("boot_menu", Boolean(), "Whether the firmware offers a boot menu.", False, "hw:boot_menu",
        "hw_boot_menu", IMAGE_WINS),
    Row("architecture", Choices(*MACHINES), "The guest's architecture. An architecture other than the host's is "
        "emulated; see below.", None, image="hw_emulation_architecture",
        words={alias: name for alias, name in ARCHITECTURE_ALIASES.items() if name in MACHINES},
        lacks="guests of other architectures have machines that are not made here",
        needs="a host with its emulator and firmware", source=_GLANCE),
    Row("machine", Text(1, 64, machines.NAME, machines.RULE), "The machine type: V(q35), V(pc), V(virt) (aarch64), "
        "V(pseries) (ppc64le), V(s390-ccw-virtio) (s390x), or a version such as V(pc-q35-7.2). The server keeps the "
        "version that it was created with.", None,
        image="hw_machine_type", lacks="it is q35, pc, virt, pseries or s390-ccw-virtio",
        needs="for a version: a host whose QEMU has it", source=_GLANCE),
    Row("firmware", Choices("bios", "uefi"), "The firmware of the guest. UEFI's variables stay with the server until "
        "it is removed or shelved.", "bios", image="hw_firmware_type", lacks="guests boot by BIOS or UEFI",
        needs="for uefi, OVMF on the host", source=_GLANCE),
    Row("secure_boot", Choices("disabled", "optional", "required"), "Whether UEFI starts only software that is "
        "signed with a known key (Microsoft's). V(optional): where the host supports it.", "disabled", "os:secure_boot",
        "os_secure_boot", ALIKE, needs="firmware uefi and machine q35, and OVMF with such keys on the host"),
    Row("watchdog", Choices("none", "pause", "poweroff", "reset", "disabled"),
        "Action when the guest's watchdog (i6300esb) expires; V(disabled) for no watchdog.",
        "disabled", "hw:watchdog_action", "hw_watchdog_action",
        IMAGE_WINS, needs="a driver in the guest (i6300esb)"),
    Row("tpm_version", Choices("1.2", "2.0"), "The version of the guest's TPM (swtpm). Default: no TPM. Its content "
        "stays with the server until the server is removed.", None, "hw:tpm_version", "hw_tpm_version", ALIKE,
        needs="swtpm on the host"),
    Row("tpm_model", Choices("tpm-tis", "tpm-crb"), "The interface of the guest's TPM. Default: V(tpm-tis).", None,
        "hw:tpm_model", "hw_tpm_model", ALIKE, needs="tpm_version, and for tpm-crb version 2.0"),
    Row("tpm_secret_security", Choices("host", "user", "deployment"), "Holder of the TPM's secret: the key manager, "
        "for starts by the server's user (V(user)) or all starts (V(deployment)), or V(host). Default: V(user), "
        "without a cloud V(host).", None,
        "hw:tpm_secret_security", needs="tpm_version; a cloud for user and deployment"),
    Row("ephemeral_encryption", Boolean(), "Whether the server's own disks (root, ephemeral, swap, rescue) are "
        "encrypted by QEMU's LUKS (AES-256 in XTS mode), with one key for each server.", False,
        "hw:ephemeral_encryption", "hw_ephemeral_encryption", ALIKE,
        needs="set when the server is created; root_format qcow2; LUKS in the host's QEMU"),
    Row("viommu", Choices("auto", "intel", "smmuv3", "virtio"), "The virtual IOMMU of the guest; V(auto) is virtio.",
        None,
        "hw:viommu_model", "hw_viommu_model", ALIKE,
        needs="intel: machine q35; smmuv3: machine virt; virtio: either; a driver in the guest"),
    Row("maxphysaddr_mode", Choices("emulate", "passthrough"), "Whether the bits of physical addresses come from "
        "maxphysaddr_bits (V(emulate)) or the host's CPU (V(passthrough)). Default: QEMU decides.",
        None, "hw:maxphysaddr_mode",
        "hw_maxphysaddr_mode", ALIKE, needs="maxphysaddr_bits with emulate; KVM for passthrough"),
    Row("maxphysaddr_bits", Integer(32, 52), "Bits of physical addresses.", None, "hw:maxphysaddr_bits",
        "hw_maxphysaddr_bits", ALIKE, lacks="x86 has 32 to 52", needs="maxphysaddr_mode emulate"),
    Row("rng", Boolean(), "Whether the guest has a random number generator.", True, "hw_rng:allowed"),
    Row("rng_bytes", Integer(0, 2**31 - 1), "Bytes of the random number generator in each rng_period; 0 for no limit.",
        0, "hw_rng:rate_bytes"),
    Row("rng_period", Integer(0, 2**31 - 1), "Period of rng_bytes in milliseconds. Default: 1000.",
        0, "hw_rng:rate_period",
        needs="rng_bytes"),
    Row("video_model", Choices("vga", "cirrus", "vmvga", "qxl", "virtio", "bochs", "none"), "The graphics card.", "vga",
        image="hw_video_model", lacks="QEMU has no such card here", source=_GLANCE),
    Row("video_ram", Integer(1, 512), "Memory of the graphics card in MiB.", None, image="hw_video_ram",
        needs="a flavor that permits it (hw_video:ram_max_mb), a power of two, and video_model vga, vmvga, qxl or "
        "bochs",
        source=_GLANCE),
    Row("", Integer(0, 1024), "Maximum memory of the graphics card, in MiB, that an image may request.", None,
        "hw_video:ram_max_mb", rule=LESS, bounds="video_ram"),
    Row("serial_ports", Integer(1, 4), "Number of serial ports of the guest. Console and log use the first one.", 1,
        "hw:serial_port_count", "hw_serial_port_count", LESS, lacks="the console log is that of a serial port"),
    Row("multiqueue", Boolean(), "Whether virtio NICs have a queue for each virtual CPU (at most 256).", False,
        "hw:vif_multiqueue_enabled", "hw_vif_multiqueue_enabled", ALIKE, needs="NICs of the model virtio"),
    Row("packed_ring", Boolean(), "Whether virtio disks and NICs have packed rings.", False, "hw:virtio_packed_ring",
        "hw_virtio_packed_ring", ALIKE, needs="a driver in the guest with support for them; other drivers use split "
        "rings"),
    Row("disk_bus", Choices(*_DISK_BUSES), "The bus of the server's own disks.", "virtio",
        image="hw_disk_bus", lacks="guests have no such controller", needs=_ON_PC, source=_GLANCE),
    Row("cdrom_bus", Choices("sata", "scsi", "ide"), "The bus of the CD that the server was created from.", "sata",
        image="hw_cdrom_bus", lacks="CDs are behind no such controller", needs=_ON_PC, source=_GLANCE),
    Row("scsi_model", Choices("virtio-scsi", "lsilogic", "lsisas1068", "lsisas1078", "vmpvscsi"),
        "The SCSI controller.", "virtio-scsi", image="hw_scsi_model",
        lacks="QEMU has no such controller here", source=_GLANCE),
    Row("nic_model", Choices("virtio", "e1000", "e1000e", "rtl8139"), "The model of NICs whose request names none.",
        "virtio", image="hw_vif_model", lacks="QEMU has no such card here", source=_GLANCE),
    Row("pointer", Choices("virtio", "usb", "ps2"), "The pointer: a tablet on virtio or USB, or only a PS/2 mouse.",
        "virtio", image="hw_pointer_model", words={"usbtablet": "usb", "ps2mouse": "ps2"}, source=_GLANCE),
    Row("pointer", Choices("virtio", "usb"), "The bus of the tablet.", "virtio", image="hw_input_bus",
        source=_GLANCE),
    Row("pci_alias", PciAliases(), "PCI devices of the host for the guest, by aliases with counts, such as "
        "V(gpu:1,nic:2). Such a guest cannot be suspended. It migrates live only if all devices are live_migratable.",
        None,
        "pci_passthrough:alias", known=ALIASES, lacks="an alias has letters, digits, and . - _ only",
        needs="such free devices on a host (its agent's settings pci_device_spec and pci_alias), and an enabled IOMMU"),
    Row("vgpus", Integer(0, 1), "Virtual GPUs: a part of a device of the host. The guest cannot be suspended, and "
        "does not migrate live.", 0, "resources:VGPU", known=NUMBER, lacks="a server has one virtual GPU",
        needs="a free one on a host (its agent's setting enabled_mdev_types)"),
    Row("vgpu_trait", Text(1, 255, TRAIT, "must be the name of a trait"),
        "A required trait of the virtual GPU's device, such as V(CUSTOM_NVIDIA_11). Default: any device. A flavor "
        "requests it in a group: C(resources1:VGPU=1) and C(trait1:CUSTOM_NVIDIA_11=required).",
        None, needs="vgpus, and a device with "
        "that trait (traits in its agent's setting enabled_mdev_types)"),
    Row("pci_numa_affinity", Choices(*POLICIES), "Place of PCI devices: at the guest's NUMA cells (V(required)), "
        "there or unknown (V(legacy)), at the same sockets (V(socket)), or there if possible (V(preferred)). "
        "Default: the alias's, or V(legacy).", None,
        "hw:pci_numa_affinity_policy", "hw_pci_numa_affinity_policy", ALIKE,
        needs="`pci_alias`, or NICs that are virtual functions"),
    Row("pmem", PmemLabels(), "Persistent memory (NVDIMMs): namespaces of the host by label, as V(6GB,LARGE), "
        "empty at first. The content stays on its host. The guest cannot be suspended, and does not migrate live.",
        None, "hw:pmem", known=LABELS,
        lacks="a label has letters, digits, _ and -", needs="such free namespaces on a host (its agent's setting "
        "pmem_namespaces), and a driver in the guest"),
    Row("mem_encryption", Boolean(), "Whether the CPU encrypts the guest's memory with a key that the host cannot "
        "see (AMD SEV). The guest cannot be suspended, and does not migrate live.",
        False, "hw:mem_encryption", "hw_mem_encryption", ALIKE,
        needs="a host with such a CPU and a free key; KVM; machine q35, firmware uefi; disks on virtio, sata or "
        "virtio-scsi; no devices of the host; guest support"),
    Row("mem_encryption_model", Choices(*sorted(SEV)), "The kind of encryption. V(amd-sev-es) also encrypts the "
        "CPU's registers.",
        "amd-sev", "hw:mem_encryption_model", "hw_mem_encryption_model", ALIKE, needs="mem_encryption"),
    Row("guest_agent", Boolean(), "Whether the guest has the channel of QEMU's guest agent. Default: it has. "
        "V(true): the agent runs in the guest, and sets the password of a create, rebuild and rescue.",
        None, image="hw_qemu_guest_agent", source=_GLANCE),
    Row("admin_user", GUEST_USER, "The user whose password the guest agent sets if the request names none. Default: "
        "V(root); for images with C(os_type=windows) V(Administrator).", None, image="os_admin_user",
        needs="`guest_agent`", source=_GLANCE),
    Row("require_quiesce", Boolean(), "Whether an image of the running server, or a snapshot or copy of its volumes, "
        "needs frozen file systems. If false, the guest agent freezes them if it can.",
        False, image="os_require_quiesce", needs="guest_agent, and qemu-guest-agent in the guest", source=_GLANCE),
)
#: Fields of ``hardware``; the first row of each describes it.
FIELDS: Mapping[str, Row] = {row.field: row for row in reversed(ROWS) if row.field and row.field != "machine"}
HARDWARE = Record(**{name: Field(row.value, row.doc) for name, row in sorted(FIELDS.items())})
BY_SPEC: Mapping[str, Row] = {name: row for row in ROWS for name in (row.spec, *row.aliases) if name}
BY_PROPERTY: Mapping[str, Row] = {row.image: row for row in ROWS if row.image}


#: The extra spec of a flavor that requests dedicated CPUs in Placement's words.
PCPU = "resources:PCPU"


def requested_pcpus(specs: Mapping[str, Any]) -> int:
    """Return the number of dedicated CPUs that a flavor's extra *specs* request with ``resources:PCPU``; 0 if the
    number is malformed, which another check reports.
    """
    text = str(specs.get(PCPU, ""))
    return int(text) if re.fullmatch(NUMBER, text) else 0


def parse_hardware_specs(specs: Mapping[str, Any], rows: Mapping[str, Row]) -> dict[str, Any]:
    """Return the hardware that *specs* request, by names of fields. *specs*: the values of extra specs or image
    properties, by name. *rows*: the ``Row`` for each spec or property, by its name. Unsupported values are omitted;
    ``Table.without_effect`` reports them. If *specs* have a spec both by its name and by an alias, the alias is
    ignored.
    """
    hardware: dict[str, Any] = {}
    cpu_traits = requested_host_traits(specs, {}).required.intersection(X86.values()) if specs else ()
    if cpu_traits:
        hardware[CPU_TRAITS] = sorted(cpu_traits)
    if rows is BY_SPEC and requested_pcpus(specs):
        hardware["cpu_policy"] = "dedicated"
    for name, row in rows.items() if specs else ():
        if name.endswith(".N"):
            hardware.update(_parse_list(specs, name[:-1], row))
            continue
        if name not in specs or (name in row.aliases and row.name in hardware):
            continue
        try:
            value = row.parse(str(specs[name]))
        except InvalidField:
            continue
        if hardware.get(row.name) != "ps2":  # without a tablet its bus does not matter
            hardware[row.name] = value
    if rows is BY_PROPERTY and specs.get("os_type") == "windows":
        hardware.setdefault("admin_user", "Administrator")
    if rows is BY_SPEC and (vgpu := requested_vgpus(specs)).groups:  # includes requests without a group
        hardware.update({"vgpus": vgpu.total, **({"vgpu_trait": vgpu.trait} if vgpu.trait else {})})
    return hardware


def _parse_list(specs: Mapping[str, Any], start: str, row: Row) -> dict[str, list[Any]]:
    """Return ``{name of the field: list}`` for those *specs* that set single items of a list: their names are *start*
    followed by the index of the item. Items without a valid value are ``None``. Return an empty mapping if there are no
    such specs."""
    items: dict[int, Any] = {}
    for name, text in specs.items():
        number = name[len(start):]
        if name.startswith(start) and re.fullmatch("[0-9]{1,2}", number):
            try:
                items[int(number)] = row.parse(str(text))
            except InvalidField:
                continue
    return {row.name: [items.get(at) for at in range(max(items) + 1)]} if items else {}


def has_spec_row(name: str, rows: Mapping[str, Row]) -> bool:
    """Return whether *rows* contain the extra spec or image property *name*."""
    return name in rows or re.sub(r"\.[0-9]{1,2}$", ".N", name) in rows
