# SPDX-License-Identifier: GPL-3.0-or-later
"""What servers can have besides sizes: a row for each field of a server's ``hardware``, with the extra spec of a flavor
and the property of an image that ask for it. ``flavor_specs``, ``image_properties``, the field of the kind ``server``
and ``docs/reference/hardware.md`` have these rows from here.
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
from .groups import vgpus
from .pci import ALIASES, POLICIES, PciAliases
from .pmem import LABELS, PmemLabels
from .traits import SEV, X86, asked

FALSE, TRUE = r"(?i:0|f|false|off|n|no)", r"(?i:1|t|true|on|y|yes)"
BOOLEAN = "%s|%s" % (TRUE, FALSE)
NUMBER, POSITIVE, ANY = r"[0-9]+", r"[1-9][0-9]*", r"(?s:.*)"
TRAIT = "[A-Z][A-Z0-9_]*"
#: What is missing for other formats of encrypted disks.
NO_FORMAT = "servers' own disks are encrypted with LUKS 1 (luks), or not at all"

#: What becomes of a row's two sides: the flavor's or the image's word counts where both say one; they must say the
#: same; the image may ask for less than the flavor lets it; or one of the two is enough.
FLAVOR_WINS, IMAGE_WINS, ALIKE, LESS, EITHER = "flavor", "image", "alike", "less", "either"
#: The image may ask for a word before the flavor's; it may say more of what the flavor leaves open; only one says it.
ORDER, OPEN, ALONE = "order", "open", "alone"
#: What both say counts.
UNION = "union"
RULES: Mapping[str, str] = {
    FLAVOR_WINS: "the flavor's word counts", IMAGE_WINS: "the image's word counts",
    ALIKE: "both must say the same", LESS: "the image may ask for less than the flavor, not for more",
    EITHER: "one of the two is enough",
    ORDER: "the flavor's word counts, and the image's must not come after it",
    OPEN: "the image's word counts, where the flavor says large or any; else the image must say nothing",
    ALONE: "one of the two may say it", UNION: "what both say counts"}
#: The field of the traits of the guest's CPU, which many names ask for: ``said`` finds them.
CPU_TRAITS = "cpu_traits"
#: Sources of what Nova does.
_SPECS, _GLANCE = "Nova's extra spec reference", "Glance's list of useful image properties"


class Row(NamedTuple):
    """*field* of ``hardware`` and its *value*; ``usual`` is what a server has of which nothing is said. *spec* (of a
    flavor) and *image* (a property) ask for it, and *rule* says what counts where both do. *words*: Nova's words for
    values that have another one here. *known*: a regular expression of what Nova lets a spec say; *lacks* is what is
    missing for those of its words that are no value here. *bounds*: it is no field, but the most that this field may
    be. *needs*: what guest or host must have for it. *aliases*: older names of the spec. *since*: the first release.
    A *spec* or *image* that ends with ``.N`` is as many as the list *value* has items, from 0 on."""

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
        """The value (of a list: the item) that *text* of a spec or property says. Raises ``InvalidField`` with what is
        missing."""
        said: Any = self.words.get(text, text)
        value = self.value.item if isinstance(self.value, ListOf) else self.value
        if isinstance(value, Boolean) and isinstance(said, str):
            if not re.fullmatch(BOOLEAN, said):
                raise InvalidField(self.name, "must be true or false", text)
            said = bool(re.fullmatch(TRUE, said))
        elif isinstance(value, Integer) and re.fullmatch(NUMBER, said):
            said = int(said)
        try:
            return value.check(said, self.name)
        except InvalidField as error:
            rule = str(error.details["rule"])
            raise InvalidField(self.name, "%s: %s" % (self.lacks, rule) if self.lacks else rule, text) from None

    @property
    def name(self) -> str:
        """What it is called: its field, or the bound of one."""
        return self.field or "the most of %s" % self.bounds

    def pattern(self) -> str:
        """A regular expression of what Nova lets the spec say."""
        if self.known:
            return self.known
        if isinstance(self.value, Boolean):
            return BOOLEAN
        if isinstance(self.value, Choices):
            return "|".join(map(re.escape, dict.fromkeys([*self.words, *self.value.words()])))
        return NUMBER


_COUNT = Integer(1, 4096)
#: A user of a guest. Names of Windows may have spaces within.
GUEST_USER = Text(1, 64, r"[^\s:\x00-\x1f\x7f]+( +[^\s:\x00-\x1f\x7f]+)*", "must be the name of a user")
#: The most NUMA cells of a guest.
_CELLS = 64
_PINNED = "a host with dedicated CPUs (the agent's setting cpu_dedicated_set)"
#: QEMU's most, and a terabyte a second in kilobytes.
_DISK_RATE, _NIC_RATE = Integer(0, 10**15), Integer(0, 10**9)
_PERIOD = Integer(0, 1_000_000)
_DISK_BUSES = ("virtio", "scsi", "sata", "ide")
_ON_PC = "ide needs machine pc, which the server gets unless another is named"


def _topology() -> list[Row]:
    rows = []
    for what in ("sockets", "cores", "threads"):
        rows.append(Row("cpu_%s" % what, _COUNT, "CPU %s that the guest sees; what is left out follows from the number "
                        "of virtual CPUs." % what, None, "hw:cpu_%s" % what, "hw_cpu_%s" % what, IMAGE_WINS,
                        known=POSITIVE,
                        needs="their product is the number of virtual CPUs; an image that says one says all"))
        rows.append(Row("", _COUNT, "The most CPU %s that the guest may see." % what, None, "hw:cpu_max_%s" % what,
                        "hw_cpu_max_%s" % what, LESS, known=POSITIVE, bounds="cpu_%s" % what))
    return rows


def _disk_limits() -> list[Row]:
    words = {"bytes_sec": "bytes a second", "iops_sec": "requests a second"}
    rows = []
    for what, meaning in (("read", "read from"), ("write", "write to"), ("total", "read from and write to")):
        for unit, word in words.items():
            name = "disk_%s_%s" % (what, unit)
            apart = "not together with %s" % ("those of read and write" if what == "total" else "that of total")
            doc = "How much the guest may %s each of its own disks, in %s." % (meaning, word)
            rows.append(Row(name, _DISK_RATE, doc, 0, "quota:" + name, needs=apart))
            rows.append(Row(name + "_max", _DISK_RATE, "The same in a burst, in %s." % word, 0, "quota:%s_max" % name,
                            needs="%s, as the bound outside of bursts" % name))
    return rows


def _nic_limits() -> list[Row]:
    rows = []
    for way, meaning in (("inbound", "to the guest"), ("outbound", "from the guest")):
        average = "vif_%s_average" % way
        rows.append(Row(average, _NIC_RATE, "What passes each NIC %s, in kilobytes a second." % meaning, 0,
                        "quota:" + average))
        rows.append(Row("vif_%s_peak" % way, _NIC_RATE, "The same at most, while there is a burst.", 0,
                        "quota:vif_%s_peak" % way, needs=average))
        rows.append(Row("vif_%s_burst" % way, _NIC_RATE, "Kilobytes that may pass at the speed of the peak.", 0,
                        "quota:vif_%s_burst" % way, needs=average))
    return rows


def _placed() -> list[Row]:
    return [
        Row("cpu_policy", Choices("shared", "mixed", "dedicated"), "Whether virtual CPUs have a CPU of the host for "
            "themselves: none, those of cpu_dedicated_mask, or all.", "shared", "hw:cpu_policy", "hw_cpu_policy", ORDER,
            needs=_PINNED),
        Row("cpu_dedicated_mask", CpuSet(), "The virtual CPUs that have one for themselves, such as V(0-1).", None,
            "hw:cpu_dedicated_mask", known=CPUS, needs="cpu_policy mixed, and no cpu_realtime_mask"),
        Row("cpu_realtime", Boolean(), "Whether virtual CPUs run ahead of all else on their CPU of the host (scheduler "
            "V(fifo)). The memory stays in the host's RAM, and there are no performance counters unless pmu says so.",
            False, "hw:cpu_realtime", needs="cpu_policy mixed or dedicated (which it is when left out); "
            "cpu_realtime_mask or emulator_threads"),
        Row("cpu_realtime_mask", CpuMask(), "The virtual CPUs that do, such as V(2-7), or V(^0-1) for all but these; "
            "all when left out. With cpu_policy mixed they are those that have a CPU for themselves. Without "
            "emulator_threads, QEMU's own threads are on the others' CPUs.", None, "hw:cpu_realtime_mask",
            "hw_cpu_realtime_mask", known=CPUS, needs="cpu_realtime of the flavor; an image's is passed over without"),
        Row("cpu_thread_policy", Choices("prefer", "isolate", "require"), "Whether dedicated CPUs are threads of the "
            "same cores: as far as there are, on hosts without threads, or all.", "prefer", "hw:cpu_thread_policy",
            "hw_cpu_thread_policy", ALIKE, needs="cpu_policy dedicated or mixed"),
        Row("emulator_threads", Choices("share", "isolate"), "Where QEMU's own threads run: on the host's shared CPUs, "
            "if it has some, or on a dedicated one of their own; when left out, on the CPUs of the server.", None,
            "hw:emulator_threads_policy", "hw_emulator_threads_policy", ALIKE,
            needs="isolate: cpu_policy dedicated or mixed"),
        Row("numa_nodes", Integer(1, _CELLS), "NUMA cells that the guest has, each on another one of the host.", None,
            "hw:numa_nodes", "hw_numa_nodes", ALONE, known=POSITIVE,
            needs="a host with as many; what divides virtual CPUs and memory evenly, or the two below"),
        Row("numa_cpus", ListOf(CpuSet(), max=_CELLS), "The virtual CPUs of each cell, such as V(0-1).", None,
            "hw:numa_cpus.N", "hw_numa_cpus.N", ALONE, known=CPUS, needs="numa_nodes, and numa_mem"),
        Row("numa_mem", ListOf(Integer(1), max=_CELLS), "MiB of each cell, which add up to the memory of the server.",
            None, "hw:numa_mem.N", "hw_numa_mem.N", ALONE, known=POSITIVE, needs="numa_nodes, and numa_cpus"),
        Row("mem_page_size", PageSize(), "Pages that the memory is made of: V(small), V(large) (the largest that "
            "suit), V(any) (large ones if there are), or a size (KiB, or with a unit).", None, "hw:mem_page_size",
            "hw_mem_page_size", OPEN, known="large|small|any|[0-9]+([kKMGT]i?)?(b|bit|B)?",
            needs="a host with free pages of that size"),
        Row("locked_memory", Boolean(), "Whether the memory stays in the host's RAM.", False, "hw:locked_memory",
            "hw_locked_memory", ALIKE, needs="mem_page_size"),
    ]


def name_pattern(name: str) -> str:
    """A regular expression of the names of a spec or property, of which ``N`` at the end is a number."""
    return re.escape(name[:-1]) + "[0-9]{1,2}" if name.endswith(".N") else re.escape(name)


ROWS: tuple[Row, ...] = (
    *_topology(), *_placed(),
    Row(CPU_TRAITS, ListOf(Choices(*sorted(X86.values())), unique=True), "Features that the guest's CPU has: those of "
        "C(trait:HW_CPU_X86_…=required) of flavor and image. Of an agent's setting cpu_models the first model that has "
        "them is taken.", None, rule=UNION, needs="a host whose guests have them"),
    Row("pmu", Boolean(), "Whether the guest has performance counters; QEMU decides when left out.", None, "hw:pmu",
        "hw_pmu", ALIKE),
    Row("hide_hypervisor_id", Boolean(), "Hide from the guest that it is one: no hypervisor bit, no signature of KVM.",
        False, "hw:hide_hypervisor_id", "img_hide_hypervisor_id", EITHER, aliases=("hide_hypervisor_id",)),
    Row("hpet", Boolean(), "Whether the guest has a high precision event timer.", False, image="hw_time_hpet",
        source=_GLANCE),
    Row("cpu_shares", Integer(0, 262144), "Weight of the guest's CPU time against others'; 0 for the usual one.", 0,
        "quota:cpu_shares", needs="cgroups; from 2, and up to 10000 on hosts with cgroup v2 alone"),
    Row("cpu_period", _PERIOD, "Microseconds in which each virtual CPU may run for cpu_quota; 0 or from 1000.", 0,
        "quota:cpu_period", needs="cgroups"),
    Row("cpu_quota", Integer(0, 2**44 - 1), "Microseconds that each virtual CPU may run in a cpu_period; 0 (no "
        "limit) or from 1000.", 0, "quota:cpu_quota", needs="cgroups"),
    *_disk_limits(), *_nic_limits(),
    Row("boot_menu", Boolean(), "Whether the firmware offers a menu of what to boot from.", False, "hw:boot_menu",
        "hw_boot_menu", IMAGE_WINS),
    Row("architecture", Choices(*MACHINES), "The guest's architecture. One that is not its host's is emulated; see "
        "below.", None, image="hw_emulation_architecture",
        words={word: name for word, name in ARCHITECTURE_ALIASES.items() if name in MACHINES},
        lacks="guests of other architectures have machines that are not made here",
        needs="a host with an emulator of it and its firmware", source=_GLANCE),
    Row("machine", Text(1, 64, machines.NAME, machines.RULE), "The machine type: V(q35), V(pc), of aarch64 V(virt), "
        "of ppc64le V(pseries), of s390x V(s390-ccw-virtio), or a version of these such as V(pc-q35-7.2). The "
        "server keeps the version that it is made with.", None,
        image="hw_machine_type", lacks="it is q35, pc, virt, pseries or s390-ccw-virtio",
        needs="a version: a host whose QEMU has it", source=_GLANCE),
    Row("firmware", Choices("bios", "uefi"), "What the guest boots by. UEFI's variables stay with the server until it "
        "is removed or shelved.", "bios", image="hw_firmware_type", lacks="guests boot by BIOS or UEFI",
        needs="for uefi, OVMF on the host", source=_GLANCE),
    Row("secure_boot", Choices("disabled", "optional", "required"), "Whether UEFI starts only what is signed with a "
        "key that it knows (Microsoft's); V(optional) for where the host can.", "disabled", "os:secure_boot",
        "os_secure_boot", ALIKE, needs="firmware uefi and machine q35, and OVMF with such keys on the host"),
    Row("watchdog", Choices("none", "pause", "poweroff", "reset", "disabled"), "What becomes of a guest whose watchdog "
        "(i6300esb) is not fed; V(disabled) for no watchdog.", "disabled", "hw:watchdog_action", "hw_watchdog_action",
        IMAGE_WINS, needs="a driver in the guest (i6300esb)"),
    Row("tpm_version", Choices("1.2", "2.0"), "The version of the guest's TPM; none when left out. It is swtpm's, "
        "and what is in it stays with the server until it is removed.", None, "hw:tpm_version", "hw_tpm_version", ALIKE,
        needs="swtpm on the host"),
    Row("tpm_model", Choices("tpm-tis", "tpm-crb"), "How the guest speaks to its TPM; V(tpm-tis) when left out.", None,
        "hw:tpm_model", "hw_tpm_model", ALIKE, needs="tpm_version, and for tpm-crb version 2.0"),
    Row("tpm_secret_security", Choices("host", "user", "deployment"), "Who has the secret that encrypts what is in the "
        "TPM. V(user): the key manager gives it for starts that the server's user asks for. V(deployment): it gives it "
        "for every start. V(host): the host keeps it. When left out, V(user) in a cloud and V(host) without one.", None,
        "hw:tpm_secret_security", needs="tpm_version; a cloud for user and deployment"),
    Row("ephemeral_encryption", Boolean(), "Whether what the guest writes to its own disks (root, ephemeral, swap, and "
        "that of a rescue) is encrypted, by QEMU's LUKS (AES-256 in XTS mode), with a key of the server's own.", False,
        "hw:ephemeral_encryption", "hw_ephemeral_encryption", ALIKE,
        needs="said when the server is made; root_format qcow2; LUKS in the host's QEMU"),
    Row("viommu", Choices("auto", "intel", "smmuv3", "virtio"), "The guest's own IOMMU; V(auto) is virtio.", None,
        "hw:viommu_model", "hw_viommu_model", ALIKE,
        needs="machine q35, or virt for smmuv3; virtio has both; and a driver in the guest"),
    Row("maxphysaddr_mode", Choices("emulate", "passthrough"), "Whether the CPU has so many bits of physical addresses "
        "as maxphysaddr_bits says, or as the host's CPU; QEMU decides when left out.", None, "hw:maxphysaddr_mode",
        "hw_maxphysaddr_mode", ALIKE, needs="maxphysaddr_bits with emulate; KVM for passthrough"),
    Row("maxphysaddr_bits", Integer(32, 52), "Bits of physical addresses.", None, "hw:maxphysaddr_bits",
        "hw_maxphysaddr_bits", ALIKE, lacks="x86 has 32 to 52", needs="maxphysaddr_mode emulate"),
    Row("rng", Boolean(), "Whether the guest has a random number generator.", True, "hw_rng:allowed"),
    Row("rng_bytes", Integer(0, 2**31 - 1), "Bytes of the random number generator in each rng_period; 0 for no limit.",
        0, "hw_rng:rate_bytes"),
    Row("rng_period", Integer(0, 2**31 - 1), "Milliseconds; 1000 when left out.", 0, "hw_rng:rate_period",
        needs="rng_bytes"),
    Row("video_model", Choices("vga", "cirrus", "vmvga", "qxl", "virtio", "bochs", "none"), "The graphics card.", "vga",
        image="hw_video_model", lacks="QEMU has no such card here", source=_GLANCE),
    Row("video_ram", Integer(1, 512), "Memory of the graphics card in MiB.", None, image="hw_video_ram",
        needs="a flavor that lets it (hw_video:ram_max_mb), a power of two, and video_model vga, vmvga, qxl or bochs",
        source=_GLANCE),
    Row("", Integer(0, 1024), "The most memory of the graphics card in MiB that an image may ask for.", None,
        "hw_video:ram_max_mb", rule=LESS, bounds="video_ram"),
    Row("serial_ports", Integer(1, 4), "How many serial ports the guest has; console and log are the first's.", 1,
        "hw:serial_port_count", "hw_serial_port_count", LESS, lacks="the console log is that of a serial port"),
    Row("multiqueue", Boolean(), "Whether virtio NICs have a queue for each virtual CPU (256 at most).", False,
        "hw:vif_multiqueue_enabled", "hw_vif_multiqueue_enabled", ALIKE, needs="NICs of the model virtio"),
    Row("packed_ring", Boolean(), "Whether virtio disks and NICs have packed rings.", False, "hw:virtio_packed_ring",
        "hw_virtio_packed_ring", ALIKE, needs="a driver in the guest that knows them, else it uses split ones"),
    Row("disk_bus", Choices(*_DISK_BUSES), "Behind what the guest sees its own disks.", "virtio",
        image="hw_disk_bus", lacks="guests have no such controller", needs=_ON_PC, source=_GLANCE),
    Row("cdrom_bus", Choices("sata", "scsi", "ide"), "Behind what the guest sees the CD that it was made from.", "sata",
        image="hw_cdrom_bus", lacks="CDs are behind no such controller", needs=_ON_PC, source=_GLANCE),
    Row("scsi_model", Choices("virtio-scsi", "lsilogic", "lsisas1068", "lsisas1078", "vmpvscsi"),
        "The SCSI controller.", "virtio-scsi", image="hw_scsi_model",
        lacks="QEMU has no such controller here", source=_GLANCE),
    Row("nic_model", Choices("virtio", "e1000", "e1000e", "rtl8139"), "The model of NICs of which none is said.",
        "virtio", image="hw_vif_model", lacks="QEMU has no such card here", source=_GLANCE),
    Row("pointer", Choices("virtio", "usb", "ps2"), "The pointer: a tablet on virtio or USB, or a PS/2 mouse alone.",
        "virtio", image="hw_pointer_model", words={"usbtablet": "usb", "ps2mouse": "ps2"}, source=_GLANCE),
    Row("pointer", Choices("virtio", "usb"), "The bus of the tablet.", "virtio", image="hw_input_bus",
        source=_GLANCE),
    Row("pci_alias", PciAliases(), "PCI devices of the host that the guest gets, by aliases with counts, such as "
        "V(gpu:1,nic:2). It cannot be suspended, and moves while it runs only where all are live_migratable.", None,
        "pci_passthrough:alias", known=ALIASES, lacks="an alias has letters, digits, and . - _ only",
        needs="such devices free on a host (its agent's settings pci_device_spec and pci_alias), and an IOMMU that "
        "is on"),
    Row("vgpus", Integer(0, 1), "Virtual GPUs: a part of a device of the host that can be divided. The guest cannot be "
        "suspended, or moved while it runs.", 0, "resources:VGPU", known=NUMBER, lacks="a server has one virtual GPU",
        needs="one free on a host (its agent's setting enabled_mdev_types)"),
    Row("vgpu_trait", Text(1, 255, TRAIT, "must be the name of a trait"), "A trait that the device must have of which "
        "the virtual GPU is a part, such as V(CUSTOM_NVIDIA_11); any device when left out. A flavor says it in a "
        "group: C(resources1:VGPU=1) and C(trait1:CUSTOM_NVIDIA_11=required).", None, needs="vgpus, and a device with "
        "that trait (traits in its agent's setting enabled_mdev_types)"),
    Row("pci_numa_affinity", Choices(*POLICIES), "Where the PCI devices of a guest with NUMA cells are: at cells of "
        "the guest (V(required)); there, or where the host does not tell (V(legacy)); at the same sockets (V(socket)); "
        "or anywhere, there first (V(preferred)). When left out, as the alias says, else V(legacy).", None,
        "hw:pci_numa_affinity_policy", "hw_pci_numa_affinity_policy", ALIKE,
        needs="`pci_alias`, or NICs that are virtual functions"),
    Row("pmem", PmemLabels(), "Persistent memory (NVDIMMs): namespaces of the host by the labels that its agent gives "
        "them, such as V(6GB,LARGE). New ones are empty. Their content stays with the server on its host, and does not "
        "go along to another. The guest cannot be suspended, or moved while it runs.", None, "hw:pmem", known=LABELS,
        lacks="a label has letters, digits, _ and -", needs="such namespaces free on a host (its agent's setting "
        "pmem_namespaces), and a driver in the guest"),
    Row("mem_encryption", Boolean(), "Whether the CPU encrypts the guest's memory with a key of the guest's own, which "
        "the host does not see (AMD SEV). All of the memory stays in the host's RAM. The guest cannot be suspended, or "
        "moved while it runs.", False, "hw:mem_encryption", "hw_mem_encryption", ALIKE, needs="a host with such a CPU, "
        "and a slot left on it; KVM; machine q35, firmware uefi; disks on virtio, sata or virtio-scsi, and no devices "
        "of the host; a system that knows it in the guest"),
    Row("mem_encryption_model", Choices(*sorted(SEV)), "With what: V(amd-sev-es) encrypts the CPU's registers, too.",
        "amd-sev", "hw:mem_encryption_model", "hw_mem_encryption_model", ALIKE, needs="mem_encryption"),
    Row("guest_agent", Boolean(), "Whether the guest has the channel of QEMU's guest agent, which it has when this is "
        "left out. V(true) says that the agent runs in it, which then sets the password of a create, a rebuild and a "
        "rescue, as soon as it is there.", None, image="hw_qemu_guest_agent", source=_GLANCE),
    Row("admin_user", GUEST_USER, "The user whose password the guest agent sets where nobody says. When left out, "
        "V(root), of an image with C(os_type=windows) V(Administrator).", None, image="os_admin_user",
        needs="`guest_agent`", source=_GLANCE),
    Row("require_quiesce", Boolean(), "Whether an image of the running server, or a snapshot or copy of its volumes, "
        "is refused where its guest agent does not freeze the file systems for it; else they are frozen where it can.",
        False, image="os_require_quiesce", needs="guest_agent, and qemu-guest-agent in the guest", source=_GLANCE),
)
#: Fields of ``hardware``; the first row of each says what it is.
FIELDS: Mapping[str, Row] = {row.field: row for row in reversed(ROWS) if row.field and row.field != "machine"}
HARDWARE = Record(**{name: Field(row.value, row.doc) for name, row in sorted(FIELDS.items())})
BY_SPEC: Mapping[str, Row] = {name: row for row in ROWS for name in (row.spec, *row.aliases) if name}
BY_PROPERTY: Mapping[str, Row] = {row.image: row for row in ROWS if row.image}


#: The extra spec by which a flavor asks for dedicated CPUs in Placement's words (row A4.4).
PCPU = "resources:PCPU"


def pcpus(specs: Mapping[str, Any]) -> int:
    """How many dedicated CPUs extra *specs* ask for so; what is no number is refused elsewhere."""
    text = str(specs.get(PCPU, ""))
    return int(text) if re.fullmatch(NUMBER, text) else 0


def said(given: Mapping[str, Any], rows: Mapping[str, Row]) -> dict[str, Any]:
    """What *given* (texts by name) says, by the row's name. Values that there are not here are left out:
    ``Table.without_effect`` names them. Of two names of one row the first one counts."""
    found: dict[str, Any] = {}
    wanted = asked(given, {}).required.intersection(X86.values()) if given else ()
    if wanted:
        found[CPU_TRAITS] = sorted(wanted)
    if rows is BY_SPEC and pcpus(given):
        found["cpu_policy"] = "dedicated"
    for name, row in rows.items() if given else ():
        if name.endswith(".N"):
            found.update(_listed(given, name[:-1], row))
            continue
        if name not in given or (name in row.aliases and row.name in found):
            continue
        try:
            value = row.parse(str(given[name]))
        except InvalidField:
            continue
        if found.get(row.name) != "ps2":  # without a tablet its bus does not matter
            found[row.name] = value
    if rows is BY_PROPERTY and given.get("os_type") == "windows":
        found.setdefault("admin_user", "Administrator")
    if rows is BY_SPEC and (vgpu := vgpus(given)).groups:  # with what is asked for without a group
        found.update({"vgpus": vgpu.total, **({"vgpu_trait": vgpu.trait} if vgpu.trait else {})})
    return found


def _listed(given: Mapping[str, Any], start: str, row: Row) -> dict[str, list[Any]]:
    """The list of a *row* whose names begin with *start*; ``None`` stands for items that nothing is said of."""
    items: dict[int, Any] = {}
    for name, text in given.items():
        number = name[len(start):]
        if name.startswith(start) and re.fullmatch("[0-9]{1,2}", number):
            try:
                items[int(number)] = row.parse(str(text))
            except InvalidField:
                continue
    return {row.name: [items.get(at) for at in range(max(items) + 1)]} if items else {}


def asks(name: str, rows: Mapping[str, Row]) -> bool:
    """Whether *rows* have the spec or property *name*."""
    return name in rows or re.sub(r"\.[0-9]{1,2}$", ".N", name) in rows
