# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the reference page of what servers can have besides sizes:
`python -m tools.hardware >docs/reference/hardware.md`."""

from __future__ import annotations

import re
import sys

from magnetar_core.hardware import Spec
from magnetar_core.hardware.cpus import CpuSet, PageSize
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES
from magnetar_core.hardware.rows import BOOLEAN, FIELDS, ROWS, RULES, Row
from magnetar_core.values import Boolean, Choices, Integer, ListOf

HEAD = """# Hardware of servers

Written by `python -m tools.hardware` from `plugins/module_utils/core/hardware`; a test compares them.

What a server has besides its sizes is its field `hardware`. The extra specs of its flavor and the properties of its
image ask for it; on a host without a cloud the server itself may say more, which is over both. A server keeps what it
was made with until it is resized (the flavor's) or rebuilt (the image's). What does not go together is refused before
anything is made.

```yaml
- magnetar.compute.flavor:
    name: database
    vcpus: 4
    ram: 8192
    extra_specs:
      hw:cpu_sockets: "1"
      hw:cpu_threads: "2"
      hw:watchdog_action: reset
      quota:disk_write_iops_sec: "500"
- magnetar.compute.server: {name: db1, flavor: database, image: debian, networks: [lan]}

- magnetar.compute.server:   # on a host without a cloud, without a flavor
    name: web1
    vcpus: 2
    ram: 2048
    image: debian
    hardware: {cpu_sockets: 1, cpu_cores: 2, watchdog: reset}
```

## What acts

"Both" says what counts where flavor and image say it. Left out is as the value in bold.

| Field | Values | Meaning | Extra spec | Image property | Both | Needs | Since |
|---|---|---|---|---|---|---|---|
"""
LIMITS = """
A limit of topology or of video memory is no field: it bounds what may be asked for. Of a topology that is left open the
one with the fewest threads and then the most sockets is taken.

## Machine types

A server is made with what its image says (`hw_machine_type`), else the agent's setting `hw_machine_type` for the
guest's architecture, else `q35` (`virt` of aarch64, `pseries` of ppc64le, `s390-ccw-virtio` of s390x); hardware that
only that has gets that, and IDE gets `pc`. These names are the newest version that the host's QEMU has.
The server keeps that version: over stops, rebuilds, resizes, moves, shelving, and an upgrade of QEMU. A move goes to a
host whose QEMU has it
(`HardwareFilter`, and the target's agent). A rebuild from an image that says another machine type, not just `q35` of a
`pc-q35-7.2`, gives the server that. An image that is made of the server says it, as in Nova; to have one that any host
takes, give that image `hw_machine_type: q35` of its own.

```yaml
# /etc/magnetar/agent.yml: while hosts of a cloud have different versions of QEMU, the oldest that all have
hw_machine_type: [x86_64=pc-q35-7.2]
```

`host_info` tells the machine types of a host. To have a server on a later version, while it is off:

```yaml
- magnetar.compute.server: {name: web1, machine: pc-q35-8.2, state: stopped}   # a host without a cloud
```

```sh
# a cloud; with the settings and certificates of a conductor
magnetar machine-type show 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
magnetar machine-type update 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d pc-q35-8.2
magnetar machine-type list-unset                  # servers that no host has made yet
magnetar image-property show 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d hw_disk_bus
magnetar image-property set 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d --property hw_disk_bus=virtio
```

An update goes to a later version of the same machine; `--force` has any other made, also `pc` of `q35`, with which its
system may not start. `image-property set` changes what a server keeps of its image, without a rebuild: buses and
models, say, that another machine type has not. Both need a server that is stopped, shelved or shelved_offloaded, and
have its host change it; repeat what was cut short.

## Architectures

A guest has its host's architecture, unless its image has the property `hw_emulation_architecture`: `aarch64`,
`ppc64le`, `s390x` or `x86_64`. On a host of another architecture QEMU emulates it then, without KVM, many times slower.

```sh
openstack image create --file debian-12-generic-arm64.qcow2 --disk-format qcow2 \\
  --property hw_emulation_architecture=aarch64 debian-arm
```

```yaml
- magnetar.compute.server:   # on a host without a cloud
    {name: arm1, vcpus: 2, ram: 1024, image: debian-arm, hardware: {architecture: aarch64}}
```

A host needs the emulator and its firmware (Debian: `qemu-system-arm` and `qemu-efi-aarch64`, `qemu-system-ppc`,
`qemu-system-misc` of s390x; of the role the variable `agent_emulated_architectures: [aarch64, ppc64le, s390x]`); an
agent looks when it connects to libvirt. `host_info` tells `emulated_architectures`, and the traits
`COMPUTE_ARCH_AARCH64`, `COMPUTE_ARCH_PPC64LE` and `COMPUTE_ARCH_S390X` beside `HW_ARCH_X86_64`, its own. Other hosts
are not chosen (`HardwareFilter`). `hw_architecture` of an image is the host's, or the same as
`hw_emulation_architecture`; both take the other names above, and `hw_architecture` also `i386`, `i486` and `i586`.

An aarch64 guest is of machine `virt` (a version of it, as of other [machine types](#machine-types)), with the CPU
`cortex-a57`, whatever `cpu_mode` says, the interrupt controller GICv3, and UEFI. The console and its log are those of
the serial port `ttyAMA0` (PL011); VNC and SPICE show a virtio card. CDs are on SCSI, other devices on virtio. It has
no other firmware, so also no secure boot; one serial port; no SATA and IDE, for volumes neither; no floppies and PS/2;
no `vga`, `cirrus`, `vmvga` and `qxl`; no TPM 1.2 and tpm-crb; no hpet, hide_hypervisor_id, maxphysaddr, encrypted
memory, persistent memory, PCI devices and virtual GPUs of the host; each is refused by name. A crash of its system is
not seen, as the device that tells it (pvpanic) is x86's. UEFI keeps its variables in a file of 64 MiB for each server.
`viommu: smmuv3` is the IOMMU of ARM machines, `virtio` (`auto`) has it as well.

A ppc64le guest is of machine `pseries`, with QEMU's usual CPU of it (POWER9), and boots by its firmware SLOF, which
`bios` stands for. The console is `hvc0`; a USB tablet and keyboard, and a VGA or virtio card. Its memory is a multiple
of 256 MiB: QEMU gives it the rest of one that is not. An s390x guest is of machine `s390-ccw-virtio`, with QEMU's usual
CPU, and boots by the firmware that finds zipl's records; the console is that of SCLP (`ttysclp0`), the watchdog
`diag288`, and devices are on channels (CCW): a virtio card and NICs of virtio only, and no USB. Both tell a crash of
their system. Neither has what an aarch64 guest has not; nor UEFI, TPMs, an IOMMU, `pmu`, NUMA cells, dedicated CPUs and
page sizes, nor the name that SMBIOS gives (cloud-init finds its config drive). Tests boot their firmware, and no
system.

Refused: `mipsel`, which Nova lets images say: its machine `malta` boots a kernel that the host hands it, and no disk.
A host of one of the others runs such images under KVM, as the architecture is its own; Magnetar's tests have no such
host. A rebuild keeps the architecture.

## CPUs, NUMA cells and pages of the host

A host gives CPUs away that its agent's setting `cpu_dedicated_set` names, each to one server; all other servers are on
those of `cpu_shared_set` (without it none, where there is a `cpu_dedicated_set`; without both on all). Memory of large
pages is what the host has set aside (`hugepages=` of its kernel, `vm.nr_hugepages`), but for `reserved_huge_pages`.

```yaml
# /etc/magnetar/agent.yml of a host with 16 CPUs
cpu_dedicated_set: 4-15
cpu_shared_set: 0-3
reserved_huge_pages: {0: {2048: 64}}   # NUMA cell 0 keeps 64 pages of 2 MiB for other programs
```

```yaml
- magnetar.compute.flavor:
    name: pinned
    vcpus: 4
    ram: 8192
    extra_specs: {hw:cpu_policy: dedicated, hw:numa_nodes: "2", hw:mem_page_size: large}

- magnetar.compute.server:   # the same on a host without a cloud
    name: db1
    vcpus: 4
    ram: 8192
    image: debian
    hardware: {cpu_policy: dedicated, numa_nodes: 2, mem_page_size: large}
```

In Placement's words: `resources:PCPU: "4"` of a flavor with 4 virtual CPUs is `hw:cpu_policy: dedicated`, and
`trait:HW_CPU_HYPERTHREADING: required` or `forbidden` asks for hosts whose cores have threads, or have none.

Dedicated CPUs and a page size imply a NUMA cell. Each cell of a guest is on another cell of the host, of which it has
its CPUs and all its memory; cells' memory is not promised twice to servers of NUMA cells. The agent chooses, the
fullest cells first, and threads of the same cores where there are some. What a server has stays its own while it is
off, and until it is deleted, resized or moved; a move chooses anew at the target, of a running guest too, whose pages
keep their size. Where a host was booted with fewer CPUs or pages, or its agent has other settings, a server gets others
at its next start, or that start is refused with what is missing.

In a cloud dedicated CPUs are a resource of their own beside the shared ones (`pcpus` of `hypervisor_info`), never
promised twice, at both hosts while a server moves. Of hosts with enough of them those are chosen whose cells suit
(`NUMATopologyFilter`), as their agents have told it; an agent that finds otherwise refuses, and another host is tried.

## The CPU of guests

The agent's setting `cpu_mode` says what CPU the guests of a host see. Without it they have, under KVM, the nearest
model that libvirt knows with the features of the host's CPU (`host-model`), and under emulation QEMU's usual one.

```yaml
# /etc/magnetar/agent.yml of hosts of several generations between which guests migrate live
cpu_mode: custom
cpu_models: [Nehalem, Haswell-noTSX-IBRS]   # the least first
cpu_model_extra_flags: [+pcid, -vmx]        # of libvirt's names
```

A guest has the first model of the list that its host can give and that has the features which flavor and image require
(`trait:HW_CPU_X86_AVX2=required`). Models that a host cannot give are passed over. The traits `HW_CPU_X86_*` of a host
are those of its guests' CPU, of a list those of all its models. For guests that are hosts themselves: `cpu_mode:
host-passthrough`, or `host-model` with `cpu_model_extra_flags: [+vmx]` (`+svm` on AMD), and nesting on in the host's
KVM (`modprobe kvm_intel nested=1`).

An agent does not start with a mode, model or feature that its host cannot give; it says which there are. What changes
holds from a guest's next start on: while it runs, and where it migrates to, it keeps the CPU that it sees. Guests that
see the host's CPU as it is (`host-passthrough`, `maximum`) should migrate live only between hosts with the same CPU,
kernel and QEMU: a target that lacks a feature which libvirt knows of the source is refused, and there is more than
features.

## Real time

```yaml
- magnetar.compute.flavor:
    name: fast
    vcpus: 4
    ram: 8192
    extra_specs: {hw:cpu_realtime: "yes", hw:cpu_realtime_mask: "2-3", hw:mem_page_size: large}
```

The virtual CPUs of the mask run by the scheduler `fifo` with the agent's `realtime_scheduler_priority`; the others,
which have dedicated CPUs too unless `hw:cpu_policy` is `mixed`, and QEMU's own threads do not. The host needs a
real-time kernel, dedicated CPUs that its kernel keeps free of all else (`isolcpus`), no SMT and no sleep states of its
CPUs (`hwlatdetect` and `rteval` tell whether it will do). Magnetar's own tests look at the domain; none has run such a
guest, for which a kernel must let QEMU lock its memory and raise its priority.

## Memory in files

With `file_backed_memory` the memory of a host's guests is in files, of which the host keeps what is used in its RAM: a
host with quick storage has room for more guests. So many MiB are what the host tells and gives, in place of its RAM.

```yaml
# /etc/magnetar/agent.yml: 1 TiB on a file system for it alone
file_backed_memory: 1048576
ram_allocation_ratio: 1
```

The role sets the folder up: `agent_qemu_settings: {memory_backing_dir: /srv/guest-memory}` (libvirt's own is
`/var/lib/libvirt/qemu/ram`). A server gets its file whole when it starts (`<allocation mode="immediate"/>`), and its
content is not written back when it stops (`<discard/>`). An agent gives no server memory that others have, also
such as are off, whatever ratio a cloud's scheduler counts with; give the host there a ratio of 1 and nothing reserved,
so that no server is sent in vain:

```yaml
- magnetar.compute.resource_provider:
    cloud: mycloud
    name: kvm1
    own_inventories: {MEMORY_MB: {allocation_ratio: 1.0, reserved: 0}}
```

Large pages (`hw:mem_page_size`) cannot be had there; NUMA cells of guests are no larger than the RAM of the host's. A
guest that migrates has its memory as the target has it: live migration to and from other hosts works.

## Persistent memory

A server can have persistent memory (NVDIMMs) of its host for itself: namespaces in mode `devdax`, which the operator
makes and gives labels. It needs QEMU with libpmem and `daxio` on the host (Debian: `pmdk-tools`, `ndctl`),
which the role `agent` installs where its `agent_settings` name namespaces.

```sh
ndctl create-namespace --mode devdax --size 6G --name ns0
```

```yaml
# /etc/magnetar/agent.yml
pmem_namespaces: {6GB: [ns0, ns1, ns2], LARGE: [ns3]}
```

```yaml
- magnetar.compute.flavor:
    name: cache
    vcpus: 4
    ram: 8192
    extra_specs: {hw:pmem: "6GB,6GB,LARGE"}
- magnetar.compute.server:   # on a host without a cloud, without a flavor
    name: cache1
    vcpus: 4
    ram: 8192
    image: debian
    hardware: {pmem: "6GB"}
```

The agent chooses namespaces of these labels; the guest has them in that order, at its first NUMA cell (a guest without
cells gets one, which is bound to none of the host), each with 2 MiB of its own labels at the end. A guest needs the
drivers `nd_pmem` and `dax_pmem`, and makes namespaces of them with `ndctl`.

* A namespace is emptied with zeros before its server first starts, and when the server gives it up or goes. That takes
  as long as the host takes to write all of it. One that cannot be emptied is not given.
* Its content stays through stop, reboot, rebuild and rescue, and through a resize on the same host for labels that
  both flavors name. It does not go along to another host: there the server gets empty ones (also evacuated and
  unshelved), and the old ones are emptied with the move; so **a resize or migration that is taken back does not bring
  it back**, unlike in Nova. Images and backups are without it.
* Such a server is not suspended, and moves cold only; a cloud answers 409 to either.
* In a cloud they are counted as `CUSTOM_PMEM_NAMESPACE_<LABEL>` (capitals, `_` for other characters) of the host, and
  claimed with CPUs and memory. While a resize on one host is not confirmed, it needs those of both flavors.
* A server whose namespace is gone (from the host, or from the setting) does not start until it is there again, or until
  the server has moved cold, or has had other hardware in between: then it has another one, which is empty.
* A path in place of a name (`small: [/srv/pmem/one]`) is a file that stands for a namespace: for trials, since what the
  guest has written to it is safe only when the host's kernel has written it to the disk.

`host_info` shows `pmem`, how many there are of each label, how many are free, and their sizes; `magnetar agent
--check-config` warns of names that the host does not have. Magnetar's own tests start a guest with a file; no NVDIMM
was at hand, and what is read of sysfs is proved with a made-up one.

## Encrypted memory

On a host with a CPU of AMD that can (SEV, switched on in the firmware, and for the kernel by `mem_encrypt=on
kvm_amd.sev=1`) the memory of a guest can be encrypted with a key of its own, which the host does not see.

```yaml
- magnetar.compute.flavor:
    name: hidden
    vcpus: 4
    ram: 8192
    extra_specs: {hw:mem_encryption: "true"}
- magnetar.compute.image: {name: debian-uefi, filename: /srv/images/debian.qcow2, properties: {hw_firmware_type: uefi}}
- magnetar.compute.server: {name: vault1, flavor: hidden, image: debian-uefi, networks: [lan]}
```

* It needs KVM, UEFI and machine q35, and a guest that knows it; disks on virtio or sata, or scsi with virtio-scsi; and
  no devices of the host: no PCI devices, virtual GPUs, virtual functions or persistent memory. All virtio devices go by
  what the guest shares with them (`iommu="on"`).
* All memory of such a guest stays in the host's RAM: have the host's `ram_allocation_ratio` be 1, or give the flavor
  `hw:mem_page_size: small`, and leave the host enough for itself.
* It is not suspended, and moves cold only; a cloud answers 409 to either. Snapshots, shelving, evacuation and volumes
  are as with any server. It cannot become so, be so no more, or be so with another model, in a rebuild.
* A CPU has keys for so many guests. The host tells how many (`memory_encryption` of `host_info`); a cloud counts them
  as `MEM_ENCRYPTION_CONTEXT`, those of both models together, and the agent knows each and refuses. Its setting
  `num_memory_encrypted_guests` lowers their number.
* `hw:mem_encryption_model: amd-sev-es` is SEV-ES (`kvm_amd.sev_es=1`). Hosts have the traits `HW_CPU_X86_AMD_SEV` and
  `HW_CPU_X86_AMD_SEV_ES`.

No such CPU was at hand: Magnetar's own tests look at the domain, which libvirt's schema accepts, and at hosts whose
CPU is made up. None has run such a guest, and the guest's owner is given no measurement of its start (attestation).

## What is refused

A server of such a flavor or image is refused (400) with these words, as long as the setting `specs_without_effect` is
`refuse`. Values in the second column ask for what every server has anyway, and pass. Other extra specs that begin with
`hw:` are refused. Other properties that begin with `hw_` or `img_` are ignored, as in Nova, with a warning in the
server's action. Names of your own pass.

| Extra spec or property | Passes | What is missing |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    refused = [row for table in (FLAVOR_SPECS, IMAGE_PROPERTIES) for row in table.rows
               if row.row is None and not row.acts and row.lacks]
    return HEAD + "".join(map(_acts, ROWS)) + LIMITS + "".join(map(_refused, refused))


def _acts(row: Row) -> str:
    field = f"`{row.field}`" if row.field in FIELDS else "field `machine`" if row.field else f"limit of `{row.bounds}`"
    both = RULES[row.rule] if row.spec and row.image else ""
    specs = ", ".join(f"`{one}`" for one in (row.spec, *row.aliases) if one)
    return _line(field, _values(row), re.sub(r"[VC]\(([^)]*)\)", r"`\1`", row.doc), specs,
                 f"`{row.image}`" if row.image else "", both, row.needs, row.since)


def _values(row: Row) -> str:
    """What the field may be, with other words for it."""
    usual = str(row.usual).lower() if isinstance(row.usual, bool) else str(row.usual)
    found = []
    if isinstance(row.value, Boolean):
        found = ["true", "false"]
    elif isinstance(row.value, Choices):
        found = row.value.words()
    elif isinstance(row.value, ListOf):
        return "a list of traits" if isinstance(row.value.item, Choices) else \
            "a list of CPUs" if isinstance(row.value.item, CpuSet) else "a list of numbers"
    elif isinstance(row.value, CpuSet):
        return "CPUs such as `0-3,^2`"
    elif isinstance(row.value, PageSize):
        return "small, large, any, or a size such as `2048` (KiB) or `1GB`"
    elif isinstance(row.value, Integer):
        return f"{row.value.min} to {row.value.max}" + (f" (**{usual}**)" if row.usual is not None else "")
    named = {one: ", ".join(word for word, here in row.words.items() if here == one) for one in found}
    return ", ".join((f"**{one}**" if one == usual else one) + (f" ({named[one]})" if named[one] else "")
                     for one in found)


def _refused(row: Spec) -> str:
    usual = "true, false" if row.usual == BOOLEAN else row.usual
    usual = {r"(?i:0|f|false|off|n|no)": "false", r"(?i:1|t|true|on|y|yes)": "true"}.get(usual, usual)
    return _line(f"`{row.name}`", f"`{usual}`" if usual else "", row.lacks)


def _line(*cells: str) -> str:
    return f"| {' | '.join(one.replace('|', chr(92) + '|') for one in cells)} |\n".replace("|  |", "| |").replace(
        "|  |", "| |")


if __name__ == "__main__":
    sys.stdout.write(page())
