# SPDX-License-Identifier: GPL-3.0-or-later
"""The merge of the hardware requests of flavor, image and server into the server's ``hardware``. Pure.

Source: Nova's extra spec reference and its pages on CPU topologies and resource limits.
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
    parse_hardware_specs,
    requested_pcpus,
)

#: Disk bus to the prefix of its device names.
PREFIX: Mapping[str, str] = {"virtio": "vd", "scsi": "sd", "sata": "sd", "ide": "hd"}
TOPOLOGY = ("cpu_sockets", "cpu_cores", "cpu_threads")
#: Video models whose memory can be chosen.
WITH_RAM = ("vga", "vmvga", "qxl", "bochs")
#: Minimum of fields that are not 0: microseconds of the CPU quota, and the weight in cgroups.
LEAST: Mapping[str, int] = {"cpu_period": 1000, "cpu_quota": 1000, "cpu_shares": 2}
#: IOMMU model of guests to the machines that have it.
VIOMMUS: Mapping[str, tuple[str, ...]] = {
    "auto": ("q35", "virt"), "virtio": ("q35", "virt"), "intel": ("q35",), "smmuv3": ("virt",)}
#: The fields of encrypted memory.
MEMORY, MODEL = "mem_encryption", "mem_encryption_model"
#: The field that names the owner of a TPM's secret, and its values; in clouds ``user`` is the default of flavors.
SECURITY, USER, HOST, DEPLOYMENT = "tpm_secret_security", "user", "host", "deployment"
#: The resource class of encrypted memory; a server takes one unit.
MEMORY_KEY = "MEM_ENCRYPTION_CONTEXT"
_NAMED = tuple((row.name, row) for row in ROWS)
_DISK = tuple("disk_%%s_%s" % unit for unit in ("bytes_sec", "iops_sec"))


def hardware_of_specs(specs: Mapping[str, Any], properties: Mapping[str, Any], vcpus: int) -> dict[str, Any]:
    """Return the server field ``hardware`` that a flavor's extra *specs* and an image's *properties* request for a
    server with *vcpus* virtual CPUs. The result also has ``machine`` if the image names a machine type. Raises
    ``InvalidField`` for the field ``flavor`` or ``image``.
    """
    if not specs and not properties:
        return {}
    check_pcpus(specs, vcpus)
    return merge_server_hardware(merge_flavor_image(parse_hardware_specs(specs, BY_SPEC),
                                                    parse_hardware_specs(properties, BY_PROPERTY), vcpus), {}, vcpus)


def check_pcpus(specs: Mapping[str, Any], vcpus: int) -> None:
    """Raise ``InvalidField`` if a flavor with *vcpus* virtual CPUs has extra *specs* that request a different number of
    dedicated CPUs (``resources:PCPU``), or shared CPUs in addition.
    """
    if not (pcpu_count := requested_pcpus(specs)):
        return
    if apart := next((name for name in ("resources:VCPU", "hw:cpu_policy") if name in specs
                      and specs[name] not in ("0", "dedicated")), None):
        raise InvalidField("flavor", "must not have extra spec %s=%s together with %s=%s: all virtual CPUs are "
                           "dedicated then; for some of them say hw:cpu_policy=mixed" % (apart, specs[apart], PCPU,
                                                                                         pcpu_count))
    if pcpu_count != vcpus:
        raise InvalidField("flavor", "must have extra spec %s=%d, since it has so many virtual CPUs, or none; for some "
                           "of them say hw:cpu_policy=mixed" % (PCPU, vcpus), pcpu_count)


def encrypts_disks(flavor: Mapping[str, Any], image: Mapping[str, Any]) -> bool:
    """Return whether *flavor* or *image* requests encrypted local disks."""
    requested = {**parse_hardware_specs(flavor.get("extra_specs") or {}, BY_SPEC),
                 **parse_hardware_specs(image.get("properties") or {}, BY_PROPERTY)}
    return bool(requested.get("ephemeral_encryption"))


def requested_hardware(flavor: Mapping[str, Any], image: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server fields that *flavor* (``vcpus``, ``ram``, ``extra_specs``) and *image* (``properties``,
    ``machine``) request: ``hardware``, and ``machine`` if *image* has a machine type. The result lacks a field for
    which nothing is requested. Raises ``InvalidField``.
    """
    hardware = hardware_of_specs(flavor.get("extra_specs") or {}, image.get("properties") or {}, flavor["vcpus"])
    machine = machines.machine_of_image(image, hardware.pop("machine", ""))
    check_machine(hardware, machine or machines.default_machine(hardware))
    numa.check_numa(hardware, flavor["vcpus"], flavor.get("ram"))
    if "tpm_version" in hardware:
        hardware.setdefault(SECURITY, USER)
    return {**({"hardware": hardware} if hardware else {}), **({"machine": machine} if machine else {})}


def tpm_secret_owner(flavor: Mapping[str, Any], image: Mapping[str, Any]) -> str:
    """Return the owner of the TPM secret (``user``, ``host`` or ``deployment``) of a cloud's server with this *flavor*
    and *image*; "" for a server without a TPM.
    """
    specs, properties = flavor.get("extra_specs") or {}, image.get("properties") or {}
    if "hw:tpm_version" not in specs and "hw_tpm_version" not in properties:
        return ""
    return str(parse_hardware_specs(specs, BY_SPEC).get(SECURITY, USER))


def encrypts_memory(flavor: Mapping[str, Any], image: Mapping[str, Any]) -> str:
    """Return the memory encryption model, such as ``amd-sev``, of a server with this *flavor* and *image*; "" if its
    memory is not encrypted.
    """
    specs, properties = flavor.get("extra_specs") or {}, image.get("properties") or {}
    if "hw:%s" % MEMORY not in specs and "hw_%s" % MEMORY not in properties:
        return ""
    return memory_model({**parse_hardware_specs(specs, BY_SPEC), **parse_hardware_specs(properties, BY_PROPERTY)})


def memory_model(hardware: Mapping[str, Any]) -> str:
    """Return the memory encryption model, such as ``amd-sev``, in *hardware*, a field of a server; "" if its memory is
    not encrypted.
    """
    return str(hardware.get(MODEL, FIELDS[MODEL].usual)) if hardware.get(MEMORY) else ""


def root_device(hardware: Mapping[str, Any]) -> str:
    """Return the device name (such as vda) of the local root disk of a server with this *hardware*."""
    return PREFIX[hardware.get("disk_bus", "virtio")] + "a"


def merge_flavor_image(flavor: Mapping[str, Any], image: Mapping[str, Any], vcpus: int) -> dict[str, Any]:
    """Merge the hardware that *flavor* and *image* request for a server with *vcpus* virtual CPUs, and return the
    values by field of ``hardware``. *flavor*, *image*: results of ``rows.parse_hardware_specs``. If flavor and image
    set the same field, the rule of the field's ``Row`` decides. Raises ``InvalidField``.
    """
    merged: dict[str, Any] = {}
    if "numa_nodes" in flavor and (more := sorted({"numa_cpus", "numa_mem"}.intersection(image))):
        raise InvalidField("image", "property hw_%s must not be set together with the flavor's hw:numa_nodes" % more[0])
    for name, row in _NAMED:
        if name in flavor or name in image:
            value = _merge_row(row, flavor.get(name), image.get(name))
            merged[row.field or "max %s" % row.bounds] = value
    if any(name in image for name in TOPOLOGY):  # an image that names one replaces all of them
        merged.update({name: image.get(name) for name in TOPOLOGY})
    if "cpu_realtime_mask" not in flavor and not merged.get("cpu_realtime"):
        merged.pop("cpu_realtime_mask", None)  # the image's, as in Nova
    limits = {name: merged.pop("max %s" % name, None) for name in (*TOPOLOGY, "video_ram")}
    merged = {name: value for name, value in merged.items() if value is not None}
    if "video_ram" in merged and merged["video_ram"] > (limits["video_ram"] or 0):
        raise InvalidField("image", "property hw_video_ram must be no more than the flavor's hw_video:ram_max_mb, "
                           "which is %s" % (limits["video_ram"] or 0), merged["video_ram"])
    if any(limits[name] for name in TOPOLOGY) or any(name in merged for name in TOPOLOGY):
        merged.update(choose_cpu_topology(vcpus, merged, limits,
                                          "image" if any(n in image for n in TOPOLOGY) else "flavor"))
    return merged


def _merge_row(row: Row, flavor: Any, image: Any) -> Any:
    """Return the value of the field of ``hardware`` that *row* declares. *flavor*, *image*: the values that flavor and
    image request (``None``: no value). If both flavor and image request a value, ``row.rule`` decides. Raises
    ``InvalidField``.
    """
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


def choose_cpu_topology(vcpus: int, requested: Mapping[str, Any], limits: Mapping[str, Optional[int]],
                        field: str = "hardware") -> dict[str, int]:
    """Return the numbers of sockets, cores and threads for *vcpus* virtual CPUs. *requested*: the numbers that are
    fixed. *limits*: maximum numbers. Among several possible topologies, choose the fewest threads, then the most
    sockets. Raises ``InvalidField`` for *field* if none is possible.
    """
    for name in TOPOLOGY:
        most, count = limits.get(name), requested.get(name)
        if most and count and count > most:
            raise InvalidField(field, "must ask for no more %s than %d" % (name, most), count)
    fits = [candidate for candidate in _products(vcpus)
            if all(requested.get(name) in (None, candidate[name]) and candidate[name] <= (limits.get(name) or vcpus)
                   for name in TOPOLOGY)]
    if not fits:
        summary = ", ".join("%s %s" % (name, requested[name]) for name in TOPOLOGY if requested.get(name))
        within = ", ".join("%s at most %s" % (name, limits[name]) for name in TOPOLOGY if limits.get(name))
        raise InvalidField(field, "must ask for a topology whose sockets, cores and threads multiply to the %d virtual "
                           "CPUs of the server; asked for: %s" % (vcpus, "; ".join(filter(None, (summary, within)))))
    return max(fits, key=lambda candidate: (-candidate["cpu_threads"], candidate["cpu_sockets"]))


def _products(vcpus: int) -> Iterator[dict[str, int]]:
    factors = [n for n in range(1, vcpus + 1) if vcpus % n == 0]
    for sockets in factors:
        for cores in factors:
            if vcpus % (sockets * cores) == 0:
                yield dict(zip(TOPOLOGY, (sockets, cores, vcpus // (sockets * cores))))


def merge_server_hardware(requested: Mapping[str, Any], overrides: Mapping[str, Any], vcpus: int) -> dict[str, Any]:
    """Return the field ``hardware`` of a server, without values that equal the defaults. *requested*: the result of
    ``merge_flavor_image``. *overrides*: the hardware that the server itself requests, which takes precedence. Raises
    ``InvalidField``.
    """
    hardware = dict(requested)
    if any(name in overrides for name in TOPOLOGY):
        hardware = {name: value for name, value in hardware.items() if name not in TOPOLOGY}
    hardware.update(overrides)
    hardware = architectures.complete_for_architecture(hardware)
    if any(name in hardware for name in TOPOLOGY):
        hardware.update(choose_cpu_topology(vcpus, hardware, {}))
    if hardware.get("cpu_realtime"):
        hardware.setdefault("cpu_policy", "dedicated")
    hardware = {name: value for name, value in hardware.items() if name == "machine" or value != FIELDS[name].usual}
    _check(hardware)
    numa.check_numa(hardware, vcpus)
    return hardware


def _check(hardware: Mapping[str, Any]) -> None:
    """Raise ``InvalidField`` for fields of *hardware* that contradict each other."""
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
    """Raise ``InvalidField`` if *hardware* has a field, such as ``tpm_model``, but lacks or turns off the field that it
    depends on, such as ``tpm_version``.
    """
    for name in hardware:
        if (base := _base(name)) and base not in hardware:
            raise InvalidField("hardware.%s" % name, "needs %s" % base)
    for name, base, words in (("rng_bytes", "rng", "a random number generator (rng, hw_rng:allowed)"),
                              ("require_quiesce", "guest_agent", "a guest agent (guest_agent, hw_qemu_guest_agent)")):
        if name in hardware and hardware.get(base) is False:
            raise InvalidField("hardware.%s" % name, "needs %s" % words)


def _check_trust(hardware: Mapping[str, Any]) -> None:
    """Raise ``InvalidField`` for firmware and TPM fields of *hardware* that contradict each other."""
    if hardware.get("secure_boot") == "required" and hardware.get("firmware") != "uefi":
        raise InvalidField("hardware.secure_boot", "needs firmware uefi (hw_firmware_type)", "required")
    if hardware.get("tpm_model") == "tpm-crb" and hardware["tpm_version"] != "2.0":
        raise InvalidField("hardware.tpm_model", "can be tpm-crb only for a TPM of version 2.0", "tpm-crb")


def _check_encrypted_memory(hardware: Mapping[str, Any]) -> None:
    """Raise ``InvalidField`` for fields of *hardware* that do not work with encrypted memory, because the host cannot
    read such memory.
    """
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
    """Return the field of ``hardware`` that the field *name* depends on, such as ``tpm_version`` for ``tpm_model``; ""
    if *name* depends on no field.
    """
    if name.startswith("disk_") and name.endswith("_max"):
        return name[:-len("_max")]
    if name.startswith("vif_") and not name.endswith("_average"):
        return name.rpartition("_")[0] + "_average"
    return {"rng_period": "rng_bytes", "tpm_model": "tpm_version", SECURITY: "tpm_version",
            "maxphysaddr_bits": "maxphysaddr_mode", "cpu_realtime_mask": "cpu_realtime", MODEL: MEMORY,
            "vgpu_trait": "vgpus"}.get(name, "")


def check_machine(hardware: Mapping[str, Any], machine: str) -> None:
    """Raise ``InvalidField`` for a field of *hardware* that is not possible with the machine type *machine*."""
    _check_architecture(hardware, machine)
    for name in ("disk_bus", "cdrom_bus"):
        if hardware.get(name) == "ide" and "q35" in machine:
            raise InvalidField("hardware.%s" % name, "cannot be ide on machine %s, which has no IDE; use sata, or "
                               "machine pc" % machine)
    if hardware.get(MEMORY) and "q35" not in machine:
        raise InvalidField("hardware.%s" % MEMORY, "cannot be had on machine %s; use machine q35" % machine, True)
    if "viommu" in hardware and machines.machine_family(machine) not in (supported := VIOMMUS[hardware["viommu"]]):
        raise InvalidField("hardware.viommu", "cannot be had on machine %s; use machine %s" % (
            machine, " or ".join(supported)), hardware["viommu"])
    if hardware.get("secure_boot") == "required" and "q35" not in machine:
        raise InvalidField("hardware.secure_boot", "cannot be required on machine %s, which has no place that only "
                           "the firmware writes to (SMM); use machine q35" % machine)


def _check_architecture(hardware: Mapping[str, Any], machine: str) -> None:
    requested, native = hardware.get(architectures.FIELD), machines.machine_architecture(machine)
    if native and native != (requested or architectures.X86_64):
        raise InvalidField("hardware.%s" % architectures.FIELD, "must be %s (hw_emulation_architecture) on machine %s, "
                           "whose guests it is of; use that, or machine %s" % (
                               native, machine, machines.default_machine(hardware)), requested)
