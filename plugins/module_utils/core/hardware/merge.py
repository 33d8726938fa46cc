# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's ``hardware``: what its flavor, its image and the server itself ask for, as one. Pure.

Source: Nova's extra spec reference and its pages on CPU topologies and resource limits (spec rows A4, A16, A18).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from ..errors import InvalidField
from . import architectures, machines, numa
from .rows import (
    ALIKE,
    ALONE,
    BY_PROPERTY,
    BY_SPEC,
    EITHER,
    FIELDS,
    IMAGE_WINS,
    LESS,
    OPEN,
    ORDER,
    PCPU,
    ROWS,
    UNION,
    Row,
    pcpus,
    said,
)

#: Disk bus to the beginning of the names of its disks.
PREFIX: Mapping[str, str] = {"virtio": "vd", "scsi": "sd", "sata": "sd", "ide": "hd"}
TOPOLOGY = ("cpu_sockets", "cpu_cores", "cpu_threads")
#: Cards whose memory can be chosen.
WITH_RAM = ("vga", "vmvga", "qxl", "bochs")
#: What these are at least where they are not 0: microseconds, and cgroups' least weight.
LEAST: Mapping[str, int] = {"cpu_period": 1000, "cpu_quota": 1000, "cpu_shares": 2}
#: IOMMU of guests to the machines that have it.
VIOMMUS: Mapping[str, tuple[str, ...]] = {
    "auto": ("q35", "virt"), "virtio": ("q35", "virt"), "intel": ("q35",), "smmuv3": ("virt",)}
#: The fields of memory that the CPU encrypts.
MEMORY, MODEL = "mem_encryption", "mem_encryption_model"
#: The field that says who has the secret of a TPM, and its words; that for clouds where flavors say nothing is user.
SECURITY, USER, HOST, DEPLOYMENT = "tpm_secret_security", "user", "host", "deployment"
#: The resource class of which a server with such memory has one.
MEMORY_KEY = "MEM_ENCRYPTION_CONTEXT"
_NAMED = tuple((row.name, row) for row in ROWS)
_DISK = tuple("disk_%%s_%s" % unit for unit in ("bytes_sec", "iops_sec"))


def hardware_of(specs: Mapping[str, Any], properties: Mapping[str, Any], vcpus: int) -> dict[str, Any]:
    """The ``hardware`` that the extra *specs* of a flavor and the *properties* of an image ask of a server with so many
    virtual CPUs, and its ``machine`` where the image says one. Raises ``InvalidField`` naming flavor or image."""
    if not specs and not properties:
        return {}
    check_pcpus(specs, vcpus)
    return whole(both(said(specs, BY_SPEC), said(properties, BY_PROPERTY), vcpus), {}, vcpus)


def check_pcpus(specs: Mapping[str, Any], vcpus: int) -> None:
    """Raise ``InvalidField`` where the extra *specs* of a flavor with so many virtual CPUs ask for dedicated CPUs
    (``resources:PCPU``) in another number, or for others besides (row A4.4)."""
    if not (asked := pcpus(specs)):
        return
    if apart := next((name for name in ("resources:VCPU", "hw:cpu_policy") if name in specs
                      and specs[name] not in ("0", "dedicated")), None):
        raise InvalidField("flavor", "must not have extra spec %s=%s together with %s=%s: all virtual CPUs are "
                           "dedicated then; for some of them say hw:cpu_policy=mixed" % (apart, specs[apart], PCPU,
                                                                                         asked))
    if asked != vcpus:
        raise InvalidField("flavor", "must have extra spec %s=%d, since it has so many virtual CPUs, or none; for some "
                           "of them say hw:cpu_policy=mixed" % (PCPU, vcpus), asked)


def encrypts(flavor: Mapping[str, Any], image: Mapping[str, Any]) -> bool:
    """Whether what a server of *flavor* and *image* writes to its own disks is encrypted."""
    asked = {**said(flavor.get("extra_specs") or {}, BY_SPEC), **said(image.get("properties") or {}, BY_PROPERTY)}
    return bool(asked.get("ephemeral_encryption"))


def asked_of(flavor: Mapping[str, Any], image: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the server that *flavor* (``vcpus``, ``extra_specs``) and *image* (``properties``) ask for:
    ``hardware``, and ``machine`` where the image says one, or keeps the server's own; empty where they ask for
    nothing. Raises ``InvalidField``."""
    found = hardware_of(flavor.get("extra_specs") or {}, image.get("properties") or {}, flavor["vcpus"])
    machine = machines.machine_of(image, found.pop("machine", ""))
    check_machine(found, machine or machines.usual(found))
    numa.check(found, flavor["vcpus"], flavor.get("ram"))
    if "tpm_version" in found:
        found.setdefault(SECURITY, USER)
    return {**({"hardware": found} if found else {}), **({"machine": machine} if machine else {})}


def tpm_security(flavor: Mapping[str, Any], image: Mapping[str, Any]) -> str:
    """Who has the secret of the TPM of a cloud's server of *flavor* and *image*: ``user``, ``host`` or ``deployment``;
    "" where it has no TPM."""
    specs, properties = flavor.get("extra_specs") or {}, image.get("properties") or {}
    if "hw:tpm_version" not in specs and "hw_tpm_version" not in properties:
        return ""
    return str(said(specs, BY_SPEC).get(SECURITY, USER))


def encrypts_memory(flavor: Mapping[str, Any], image: Mapping[str, Any]) -> str:
    """With what the memory of a server of *flavor* and *image* is encrypted (``mem_encryption_model``); "" where it is
    not."""
    specs, properties = flavor.get("extra_specs") or {}, image.get("properties") or {}
    if "hw:%s" % MEMORY not in specs and "hw_%s" % MEMORY not in properties:
        return ""
    return memory_model({**said(specs, BY_SPEC), **said(properties, BY_PROPERTY)})


def memory_model(hardware: Mapping[str, Any]) -> str:
    """The same of a server's *hardware*."""
    return str(hardware.get(MODEL, FIELDS[MODEL].usual)) if hardware.get(MEMORY) else ""


def root_device(hardware: Mapping[str, Any]) -> str:
    """The device name of a server's own root disk."""
    return PREFIX[hardware.get("disk_bus", "virtio")] + "a"


def both(flavor: Mapping[str, Any], image: Mapping[str, Any], vcpus: int) -> dict[str, Any]:
    """What flavor and image say (``rows.said``) as one; each row's rule says how. Raises ``InvalidField``."""
    found: dict[str, Any] = {}
    if "numa_nodes" in flavor and (more := sorted({"numa_cpus", "numa_mem"}.intersection(image))):
        raise InvalidField("image", "property hw_%s must not be set together with the flavor's hw:numa_nodes" % more[0])
    for name, row in _NAMED:
        if name in flavor or name in image:
            value = _one(row, flavor.get(name), image.get(name))
            found[row.field or "max %s" % row.bounds] = value
    if any(name in image for name in TOPOLOGY):  # an image that says one says all
        found.update({name: image.get(name) for name in TOPOLOGY})
    if "cpu_realtime_mask" not in flavor and not found.get("cpu_realtime"):
        found.pop("cpu_realtime_mask", None)  # the image's, as in Nova
    limits = {name: found.pop("max %s" % name, None) for name in (*TOPOLOGY, "video_ram")}
    found = {name: value for name, value in found.items() if value is not None}
    if "video_ram" in found and found["video_ram"] > (limits["video_ram"] or 0):
        raise InvalidField("image", "property hw_video_ram must be no more than the flavor's hw_video:ram_max_mb, "
                           "which is %s" % (limits["video_ram"] or 0), found["video_ram"])
    if any(limits[name] for name in TOPOLOGY) or any(name in found for name in TOPOLOGY):
        found.update(topology(vcpus, found, limits, "image" if any(n in image for n in TOPOLOGY) else "flavor"))
    return found


def _one(row: Row, flavor: Any, image: Any) -> Any:
    """The value of a *row* of which flavor or image, or both, say one."""
    if row.rule == OPEN and image is not None and flavor not in (numa.LARGE, numa.ANY_SIZE):
        raise InvalidField("image", "property %s may be set only where the flavor's %s is large or any, and it is %s"
                           % (row.image, row.spec, flavor), image)
    if flavor is None or image is None:
        return image if flavor is None else flavor
    if row.rule == ALONE:
        raise InvalidField("image", "property %s must not be set together with the flavor's %s" % (row.image, row.spec))
    if row.rule == ORDER and (words := row.value.words()).index(image) > words.index(flavor):  # type: ignore[attr-defined]
        raise InvalidField("image", "property %s must not be %s where the flavor's %s is %s"
                           % (row.image, image, row.spec, flavor))
    if row.rule == EITHER:
        return flavor or image
    if row.rule == UNION:
        return sorted({*flavor, *image})
    if row.rule == ALIKE and flavor != image:
        raise InvalidField("image", "property %s is %s, and the flavor's %s is %s: both must say the same, or one "
                           "nothing" % (row.image, image, row.spec, flavor))
    if row.rule == LESS and image > flavor:
        raise InvalidField("image", "property %s must be no more than the flavor's %s, which is %s"
                           % (row.image, row.spec, flavor), image)
    return image if row.rule in (IMAGE_WINS, LESS, OPEN) else flavor


def topology(vcpus: int, wanted: Mapping[str, Any], limits: Mapping[str, Optional[int]],
             field: str = "hardware") -> dict[str, int]:
    """Sockets, cores and threads of *vcpus*: those that are *wanted*, and of what is left open the one with the fewest
    threads and then the most sockets, within the *limits*. Raises ``InvalidField`` naming *field*."""
    for name in TOPOLOGY:
        most, asked = limits.get(name), wanted.get(name)
        if most and asked and asked > most:
            raise InvalidField(field, "must ask for no more %s than %d" % (name, most), asked)
    fits = [one for one in _products(vcpus)
            if all(wanted.get(name) in (None, one[name]) and one[name] <= (limits.get(name) or vcpus)
                   for name in TOPOLOGY)]
    if not fits:
        asked = ", ".join("%s %s" % (name, wanted[name]) for name in TOPOLOGY if wanted.get(name))
        within = ", ".join("%s at most %s" % (name, limits[name]) for name in TOPOLOGY if limits.get(name))
        raise InvalidField(field, "must ask for a topology whose sockets, cores and threads multiply to the %d virtual "
                           "CPUs of the server; asked for: %s" % (vcpus, "; ".join(filter(None, (asked, within)))))
    return max(fits, key=lambda one: (-one["cpu_threads"], one["cpu_sockets"]))


def _products(vcpus: int) -> Iterator[dict[str, int]]:
    factors = [n for n in range(1, vcpus + 1) if vcpus % n == 0]
    for sockets in factors:
        for cores in factors:
            if vcpus % (sockets * cores) == 0:
                yield dict(zip(TOPOLOGY, (sockets, cores, vcpus // (sockets * cores))))


def whole(asked: Mapping[str, Any], own: Mapping[str, Any], vcpus: int) -> dict[str, Any]:
    """The ``hardware`` of a server for which flavor and image have *asked* (``both``), and which says its *own* over
    that: without what every server has. Raises ``InvalidField``."""
    found = dict(asked)
    if any(name in own for name in TOPOLOGY):
        found = {name: value for name, value in found.items() if name not in TOPOLOGY}
    found.update(own)
    found = architectures.completed(found)
    if any(name in found for name in TOPOLOGY):
        found.update(topology(vcpus, found, {}))
    if found.get("cpu_realtime"):
        found.setdefault("cpu_policy", "dedicated")
    found = {name: value for name, value in found.items() if name == "machine" or value != FIELDS[name].usual}
    _check(found)
    numa.check(found, vcpus)
    return found


def _check(hardware: Mapping[str, Any]) -> None:
    """Raise ``InvalidField`` for what does not go together."""
    for name in _DISK:
        total, apart = name % "total", [name % way for way in ("read", "write") if name % way in hardware]
        if total in hardware and apart:
            raise InvalidField("hardware.%s" % total, "must not be set together with %s" % " and ".join(apart))
    _check_bases(hardware)
    for name, least in LEAST.items():
        if 0 < hardware.get(name, 0) < least:
            raise InvalidField("hardware.%s" % name, "must be 0 or from %d" % least, hardware[name])
    ram = hardware.get("video_ram")
    if ram and (hardware.get("video_model", "vga") not in WITH_RAM or ram & (ram - 1)):
        raise InvalidField("hardware.video_ram", "must be a power of two, of a video_model of %s" % ", ".join(WITH_RAM),
                           ram)
    _check_trust(hardware)
    _check_encrypted_memory(hardware)
    if "maxphysaddr_mode" in hardware and (
            (hardware["maxphysaddr_mode"] == "emulate") is not ("maxphysaddr_bits" in hardware)):
        raise InvalidField("hardware.maxphysaddr_mode", "must be emulate with maxphysaddr_bits, and passthrough "
                           "without", hardware["maxphysaddr_mode"])


def _check_bases(hardware: Mapping[str, Any]) -> None:
    """The same for what means nothing without another field."""
    for name in hardware:
        if (base := _base(name)) and base not in hardware:
            raise InvalidField("hardware.%s" % name, "needs %s" % base)
    for name, base, words in (("rng_bytes", "rng", "a random number generator (rng, hw_rng:allowed)"),
                              ("require_quiesce", "guest_agent", "a guest agent (guest_agent, hw_qemu_guest_agent)")):
        if name in hardware and hardware.get(base) is False:
            raise InvalidField("hardware.%s" % name, "needs %s" % words)


def _check_trust(hardware: Mapping[str, Any]) -> None:
    """The same for firmware and TPM."""
    if hardware.get("secure_boot") == "required" and hardware.get("firmware") != "uefi":
        raise InvalidField("hardware.secure_boot", "needs firmware uefi (hw_firmware_type)", "required")
    if hardware.get("tpm_model") == "tpm-crb" and hardware["tpm_version"] != "2.0":
        raise InvalidField("hardware.tpm_model", "can be tpm-crb only for a TPM of version 2.0", "tpm-crb")


def _check_encrypted_memory(hardware: Mapping[str, Any]) -> None:
    """The same for memory that the CPU encrypts (rows A14.6, A14.7): nothing but the guest can read it."""
    if not hardware.get(MEMORY):
        return
    if hardware.get("firmware") != "uefi":
        raise InvalidField("hardware.%s" % MEMORY, "needs firmware uefi (hw_firmware_type)", True)
    if apart := [name for name in ("pci_alias", "vgpus", "pmem") if hardware.get(name)]:
        raise InvalidField("hardware.%s" % MEMORY, "must not be set together with %s: devices of the host cannot read "
                           "encrypted memory" % " and ".join(apart), True)
    bus, model = hardware.get("disk_bus", "virtio"), hardware.get("scsi_model", "virtio-scsi")
    if bus == "ide" or (bus == "scsi" and model != "virtio-scsi"):
        raise InvalidField("hardware.%s" % MEMORY, "needs disk_bus virtio or sata, or scsi with scsi_model virtio-scsi",
                           True)


def _base(name: str) -> str:
    """The field without which *name* means nothing."""
    if name.startswith("disk_") and name.endswith("_max"):
        return name[:-len("_max")]
    if name.startswith("vif_") and not name.endswith("_average"):
        return name.rpartition("_")[0] + "_average"
    return {"rng_period": "rng_bytes", "tpm_model": "tpm_version", SECURITY: "tpm_version",
            "maxphysaddr_bits": "maxphysaddr_mode", "cpu_realtime_mask": "cpu_realtime", MODEL: MEMORY,
            "vgpu_trait": "vgpus"}.get(name, "")


def check_machine(hardware: Mapping[str, Any], machine: str) -> None:
    """Raise ``InvalidField`` for *hardware* that a server of this *machine* type cannot have."""
    _check_architecture(hardware, machine)
    for name in ("disk_bus", "cdrom_bus"):
        if hardware.get(name) == "ide" and "q35" in machine:
            raise InvalidField("hardware.%s" % name, "cannot be ide on machine %s, which has no IDE; use sata, or "
                               "machine pc" % machine)
    if hardware.get(MEMORY) and "q35" not in machine:
        raise InvalidField("hardware.%s" % MEMORY, "cannot be had on machine %s; use machine q35" % machine, True)
    if "viommu" in hardware and machines.family(machine) not in (there := VIOMMUS[hardware["viommu"]]):
        raise InvalidField("hardware.viommu", "cannot be had on machine %s; use machine %s" % (
            machine, " or ".join(there)), hardware["viommu"])
    if hardware.get("secure_boot") == "required" and "q35" not in machine:
        raise InvalidField("hardware.secure_boot", "cannot be required on machine %s, which has no place that only "
                           "the firmware writes to (SMM); use machine q35" % machine)


def _check_architecture(hardware: Mapping[str, Any], machine: str) -> None:
    asked, there = hardware.get(architectures.FIELD), machines.architecture(machine)
    if there and there != (asked or architectures.X86_64):
        raise InvalidField("hardware.%s" % architectures.FIELD, "must be %s (hw_emulation_architecture) on machine %s, "
                           "whose guests it is of; use that, or machine %s" % (
                               there, machine, machines.usual(hardware)), asked)
