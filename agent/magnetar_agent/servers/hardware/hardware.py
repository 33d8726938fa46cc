# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's hardware, from its flavor, its image and its own fields. Requests that have no effect on this host are
refused, or warned about.

The document has the server's hardware in ``hardware``, and in ``REQUESTED_BY`` the source of each request: ``flavor``
and ``image`` as they were when the server got them, and the server's ``own`` fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.facts import traits_of
from magnetar_agent.servers import GIB
from magnetar_agent.servers.disks import own_disks, pmem
from magnetar_core.errors import InvalidField
from magnetar_core.hardware import AGENT, architectures, groups, machines, numa, traits
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES, unsuited_properties
from magnetar_core.hardware.merge import check_machine, check_pcpus, merge_flavor_image, merge_server_hardware
from magnetar_core.hardware.needs import missing_hardware
from magnetar_core.hardware.rows import BY_PROPERTY, BY_SPEC, CPU_TRAITS, parse_hardware_specs
from magnetar_core.reconcile import warn_caller

from . import cpu_modes, mdevs, memory, pci
from . import machines as own_machines

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields


#: The requests for the document's ``hardware``, by source.
REQUESTED_BY = "hardware_asked"
#: On hosts with cgroup v2, libvirt's shares are only a weight, with another maximum.
_CGROUP_V2, WEIGHT_MAX = Path("/sys/fs/cgroup/cgroup.controllers"), 10_000


def complete_hardware(host: LocalHost, desired: Fields, old: Fields, image: Document | None, virt_type: str) -> None:
    """Set ``hardware``, ``virt_type`` and ``machine`` in *desired*, the new desired fields of a server, from its
    flavor, its *image* and the request. *old*: the desired fields before the change; empty for a new server.
    *virt_type*: the requested virtualization type: kvm, qemu or auto. Raises ``InvalidField``, or ``Conflict`` as
    ``check_cpu`` does."""
    requested_by, requested, had = {**old.get(REQUESTED_BY,
                                              {})}, desired.get("hardware") or {}, old.get("hardware") or {}
    if desired["flavor"] != old.get("flavor"):
        requested_by["flavor"] = parse_hardware_specs(_specs(host, desired["flavor"]), BY_SPEC)
    if desired["image"] != old.get("image"):
        requested_by["image"] = parse_hardware_specs(image.want["properties"] if image else {}, BY_PROPERTY)
        if requested_by["image"].get("machine") and desired["machine"] in (machines.AUTO, old.get("machine")):
            desired["machine"] = requested_by["image"]["machine"]
    if not old or requested != had:
        requested_by["own"] = requested
    requested_by = {name: value for name, value in requested_by.items() if value}
    if not requested_by and not had:
        own_machines.complete_machine(host, desired, old)
        return
    vcpus = desired["flavor"]["vcpus"]
    hardware = merge_flavor_image(requested_by.get("flavor", {}), requested_by.get("image", {}), vcpus)
    hardware.pop("machine", None)
    desired["hardware"] = merge_server_hardware(hardware, requested_by.get("own", {}), vcpus)
    desired.pop(REQUESTED_BY, None)
    desired.update({REQUESTED_BY: requested_by} if requested_by else {})
    if desired["machine"] != machines.AUTO:
        check_machine(desired["hardware"], desired["machine"])
    own_machines.complete_machine(host, desired, old)
    check_machine(desired["hardware"], desired["machine"])
    _emulate(host, desired, virt_type)
    numa.check_numa(desired["hardware"], vcpus, desired["flavor"]["ram"])
    if (desired["hardware"], desired["virt_type"]) != (had, old.get("virt_type")):
        _check_host(host, desired)


def _emulate(host: LocalHost, desired: Fields, virt_type: str) -> None:
    """Set ``virt_type`` in *desired* to qemu if the guest has another CPU architecture than the host; otherwise do
    nothing. Raises ``InvalidField`` if the architecture is another one and the requested *virt_type* is kvm."""
    architecture = architectures.FIELD in desired["hardware"] and architectures.emulated_architecture(
        desired["hardware"], host.hypervisor.host())
    if not architecture:
        return
    if virt_type == "kvm":
        raise InvalidField("virt_type", f"cannot be kvm for a guest of {architecture} (hw_emulation_architecture) on a "
                                        "host of another architecture; use qemu or auto", virt_type)
    desired["virt_type"] = "qemu"


def _specs(host: LocalHost, flavor: Fields) -> Fields:
    document = host.documents.standing("flavor", flavor["name"]) if "name" in flavor else None
    return document.want["extra_specs"] if document else {}


def _check_host(host: LocalHost, desired: Fields) -> None:
    """Raise ``InvalidField`` if *desired* requests hardware that this host cannot provide, or ``Conflict`` as
    ``check_cpu`` does."""
    hardware, facts = desired["hardware"], host.hypervisor.host()
    devices = {"pci_devices": pci.pci_device_totals(host)} if pci.needed_pci_devices(desired) else {}
    devices |= mdevs.mdev_totals(host) if mdevs.requests_vgpu(desired) else {}
    for name, missing_part in missing_hardware(hardware, {**facts, "virt_types": [desired["virt_type"]], **devices}):
        raise InvalidField(f"hardware.{name}",
                           f"cannot be had on host {host.name}, which lacks {missing_part}. Install it and "
                           "restart libvirtd, or choose another host", hardware[name])
    pmem.check_pmem_labels(host, desired)
    check_cpu(host, hardware, desired["virt_type"])
    if any(name.startswith("vif_") for name in hardware) and (lacks := host.hypervisor.lacks_traffic_control()):
        name = next(name for name in hardware if name.startswith("vif_"))
        raise InvalidField(f"hardware.{name}", f"cannot be had on this host, which lacks what limits NICs: {lacks}")
    if hardware.get("cpu_shares", 0) > WEIGHT_MAX and _CGROUP_V2.exists():
        raise InvalidField("hardware.cpu_shares", f"must be no more than {WEIGHT_MAX} on a host with cgroup v2",
                           hardware["cpu_shares"])


def check_cpu(host: LocalHost, hardware: Fields, virt_type: str) -> None:
    """Raise ``InvalidField`` if *hardware* requires CPU traits that guests of this *virt_type* (kvm or qemu) cannot
    have. Raise ``Conflict`` if the agent's settings list CPU models, and none that this host supports has all required
    traits."""
    required_traits = hardware.get(CPU_TRAITS)
    if required_traits and (lost := traits.RequestedTraits(frozenset(required_traits)).lacking(
            traits_of(host, host.hypervisor.host(), virt_type == "kvm"))):
        raise InvalidField(f"hardware.{CPU_TRAITS}", f"cannot be had on host {host.name}, whose guests' CPU "
                                                     f"{' and '.join(lost)}", required_traits)
    cpu_modes.guest_cpu_mode(host, hardware, virt_type)


def choose_nic_models(desired: Fields, old: Fields) -> None:
    """Set the NIC model of the server's new hardware in the NICs in *desired*. Only NICs with the default model
    (virtio) or the model of the previous hardware are changed: the user has chosen any other model. *desired*, *old*:
    the server's fields after and before the change."""
    model, former_model = ((server_fields.get("hardware") or {}).get("nic_model", "virtio")
                           for server_fields in (desired, old))
    if (model, former_model) == ("virtio", "virtio"):
        return
    for nic in desired["networks"]:
        if nic["model"] in ("virtio", former_model):
            nic["model"] = model


def check_flavor_specs(host: LocalHost, flavor: Fields) -> None:
    """Raise ``InvalidField`` if the *flavor* has extra specs that are invalid or require traits that this host lacks.
    Extra specs without effect are an error too, or only a warning with the setting ``specs_without_effect: warn``. A
    flavor without a name has no extra specs to check: it is just sizes from the request or from a conductor."""
    document = host.documents.standing("flavor", flavor["name"]) if "name" in flavor else None
    if document:
        specs = document.want["extra_specs"]
        if odd := next(FLAVOR_SPECS.malformed(specs), None):
            raise InvalidField("flavor", f"must have extra specs with values that they can have: of {document.name!r}, "
                                         f"{odd}")
        check_pcpus(specs, flavor["vcpus"])
        if odd := groups.check_request_groups(specs):
            raise InvalidField("flavor", f"must not ask for what no host gives: of {document.name!r}, {odd}")
        _without_effect(host, "flavor", document, FLAVOR_SPECS.without_effect(specs, (AGENT,)))
        _check_traits(host, "flavor", document, traits.requested_host_traits(specs, {}))


def check_sizes(host: LocalHost, flavor: Fields, backed: bool, root_format: str) -> None:
    """Raise ``InvalidField`` if one server of this *flavor* needs more CPUs, memory or disk than the empty host has,
    multiplied by the allocation ratios of the settings. *backed*: whether the root disk is a volume, which needs no
    local disk. *root_format*: the format of local disks, such as qcow2 or lvm."""
    facts, settings = host.hypervisor.host(), host.settings
    disk = 0 if backed else flavor["disk"]
    for resource, requested, unit, capacity, ratio in (
            ("vcpus", flavor["vcpus"], "", facts["vcpus"], "cpu_allocation_ratio"),
            ("ram", flavor["ram"], " MiB", memory.guest_memory_total(host), "ram_allocation_ratio"),
            ("disks", disk + flavor["ephemeral"] + -(-flavor["swap"] // 1024), " GiB",
             own_disks.own_disk_capacity(host, root_format) // GIB, "disk_allocation_ratio")):
        if requested > (most := int(capacity * getattr(settings, ratio))):
            raise InvalidField("flavor",
                               f"must ask for no more than {most}{unit} of {resource}: the host has {capacity}"
                                         f"{unit}, and its agent's {ratio} is {getattr(settings, ratio):g}", requested)


def check_image(host: LocalHost, image: Document) -> None:
    """Raise ``InvalidField`` if the *image* is not suitable for this host or has invalid properties. Properties without
    effect are an error too, or only a warning with the setting ``specs_without_effect: warn``."""
    properties: dict[str, Any] = image.want["properties"]
    if not properties:
        return
    if wrong := next(unsuited_properties(properties, host.hypervisor.host()), None):
        raise InvalidField("image", f"must be one for this host: of {image.name!r}, {wrong}")
    if odd := next(IMAGE_PROPERTIES.malformed(properties), None):
        raise InvalidField("image", f"must have properties with values that they can have: of {image.name!r}, {odd}")
    for text in IMAGE_PROPERTIES.ignored(properties):
        warn_caller(f"Image {image.name!r}: {text}.")
    _without_effect(host, "image", image, IMAGE_PROPERTIES.without_effect(properties, (AGENT,)))
    _check_traits(host, "image", image, traits.requested_host_traits({}, properties))


def _check_traits(host: LocalHost, field: str, document: Document, requirements: traits.RequestedTraits) -> None:
    """Raise ``InvalidField`` naming *field* if the host does not satisfy *requirements*, the required and forbidden
    traits of *document* (a flavor or image)."""
    if not any(requirements):
        return
    facts = host.hypervisor.host()
    if lacking := requirements.lacking(traits_of(host, facts, facts["kvm"]["usable"])):
        raise InvalidField(field, f"must not ask for traits against this host's: {document.name!r} does, and the host "
                                  f"{' and '.join(lacking)}. Choose another, or add CUSTOM_ ones to traits in the "
                                  "agent's settings")


def _without_effect(host: LocalHost, field: str, document: Document, problems: Iterable[str]) -> None:
    texts = "; ".join(problems)
    if not texts:
        return
    summary = f"{field} {document.name!r}, {texts}"
    if host.settings.specs_without_effect == "warn":
        warn_caller(f"What would do nothing here: {summary}.")
        return
    raise InvalidField(field, f"must not ask for what would do nothing here ({summary}). Remove it, or choose another; "
                              "specs_without_effect: warn in the agent's settings lets it pass")
