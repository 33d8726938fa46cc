# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's hardware: what its flavor, its image and itself ask for. What nothing on this host acts on is refused, or
warned of.

The document has in ``hardware`` what the server is to have, and under ``ASKED`` who asked for what: ``flavor`` and
``image`` as they were when the server got them, and its ``own`` words.
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
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES, unsuited
from magnetar_core.hardware.merge import both, check_machine, check_pcpus, whole
from magnetar_core.hardware.needs import lacking
from magnetar_core.hardware.rows import BY_PROPERTY, BY_SPEC, CPU_TRAITS, said
from magnetar_core.reconcile import warn

from . import cpu_modes, mdevs, memory, pci
from . import machines as own_machines

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields


#: Who asked for what of the document's ``hardware``.
ASKED = "hardware_asked"
#: libvirt's shares are a weight on hosts with cgroup v2 alone, which has another limit.
_CGROUP_V2, WEIGHT_MAX = Path("/sys/fs/cgroup/cgroup.controllers"), 10_000


def complete(host: LocalHost, found: Fields, old: Fields, image: Document | None, virt_type: str) -> None:
    """Set ``hardware`` of *found*, which has its flavor and its *image*, and the machine type that the image asks for.
    *old*: what was wanted before. *virt_type*: as it was given; guests of another architecture are emulated. Raises
    ``InvalidField``."""
    asked, given, had = {**old.get(ASKED, {})}, found.get("hardware") or {}, old.get("hardware") or {}
    if found["flavor"] != old.get("flavor"):
        asked["flavor"] = said(_specs(host, found["flavor"]), BY_SPEC)
    if found["image"] != old.get("image"):
        asked["image"] = said(image.want["properties"] if image else {}, BY_PROPERTY)
        if asked["image"].get("machine") and found["machine"] in (machines.AUTO, old.get("machine")):
            found["machine"] = asked["image"]["machine"]
    if not old or given != had:
        asked["own"] = given
    asked = {name: value for name, value in asked.items() if value}
    if not asked and not had:
        own_machines.complete(host, found, old)
        return
    vcpus = found["flavor"]["vcpus"]
    hardware = both(asked.get("flavor", {}), asked.get("image", {}), vcpus)
    hardware.pop("machine", None)
    found["hardware"] = whole(hardware, asked.get("own", {}), vcpus)
    found.pop(ASKED, None)
    found.update({ASKED: asked} if asked else {})
    if found["machine"] != machines.AUTO:
        check_machine(found["hardware"], found["machine"])
    own_machines.complete(host, found, old)
    check_machine(found["hardware"], found["machine"])
    _emulate(host, found, virt_type)
    numa.check(found["hardware"], vcpus, found["flavor"]["ram"])
    if (found["hardware"], found["virt_type"]) != (had, old.get("virt_type")):
        _check_host(host, found)


def _emulate(host: LocalHost, found: Fields, virt_type: str) -> None:
    """Have a guest of another architecture than the host's run under emulation."""
    architecture = architectures.FIELD in found["hardware"] and architectures.emulated(
        found["hardware"], host.hypervisor.host())
    if not architecture:
        return
    if virt_type == "kvm":
        raise InvalidField("virt_type", f"cannot be kvm for a guest of {architecture} (hw_emulation_architecture) on a "
                                        "host of another architecture; use qemu or auto", virt_type)
    found["virt_type"] = "qemu"


def _specs(host: LocalHost, flavor: Fields) -> Fields:
    document = host.documents.standing("flavor", flavor["name"]) if "name" in flavor else None
    return document.want["extra_specs"] if document else {}


def _check_host(host: LocalHost, found: Fields) -> None:
    """Raises ``InvalidField`` for what this host cannot give."""
    hardware, facts = found["hardware"], host.hypervisor.host()
    devices = {"pci_devices": pci.whole(host)} if pci.asked(found) else {}
    devices |= mdevs.whole(host) if mdevs.asked(found) else {}
    for name, what in lacking(hardware, {**facts, "virt_types": [found["virt_type"]], **devices}):
        raise InvalidField(f"hardware.{name}", f"cannot be had on host {host.name}, which lacks {what}. Install it and "
                           "restart libvirtd, or choose another host", hardware[name])
    pmem.check(host, found)
    check_cpu(host, hardware, found["virt_type"])
    if any(name.startswith("vif_") for name in hardware) and (lacks := host.hypervisor.lacks_traffic_control()):
        name = next(name for name in hardware if name.startswith("vif_"))
        raise InvalidField(f"hardware.{name}", f"cannot be had on this host, which lacks what limits NICs: {lacks}")
    if hardware.get("cpu_shares", 0) > WEIGHT_MAX and _CGROUP_V2.exists():
        raise InvalidField("hardware.cpu_shares", f"must be no more than {WEIGHT_MAX} on a host with cgroup v2",
                           hardware["cpu_shares"])


def check_cpu(host: LocalHost, hardware: Fields, virt_type: str) -> None:
    """Raises ``InvalidField`` where the CPU of guests of this type has not the features that *hardware* asks for, and
    ``Conflict`` where none of the agent's CPU models has all of them."""
    wanted = hardware.get(CPU_TRAITS)
    if wanted and (lost := traits.Asked(frozenset(wanted)).lacking(
            traits_of(host, host.hypervisor.host(), virt_type == "kvm"))):
        raise InvalidField(f"hardware.{CPU_TRAITS}", f"cannot be had on host {host.name}, whose guests' CPU "
                                                     f"{' and '.join(lost)}", wanted)
    cpu_modes.of(host, hardware, virt_type)


def choose_nic_models(found: Fields, old: Fields) -> None:
    """Give the NICs of which no model was said that of the server's hardware."""
    model, before = ((one.get("hardware") or {}).get("nic_model", "virtio") for one in (found, old))
    if (model, before) == ("virtio", "virtio"):
        return
    for nic in found["networks"]:
        if nic["model"] in ("virtio", before):
            nic["model"] = model


def check_flavor(host: LocalHost, flavor: Fields) -> None:
    """Raises ``InvalidField`` for extra specs of the named *flavor* that would do nothing. Sizes have none, and so has
    what conductors send: they have looked."""
    document = host.documents.standing("flavor", flavor["name"]) if "name" in flavor else None
    if document:
        specs = document.want["extra_specs"]
        if odd := next(FLAVOR_SPECS.malformed(specs), None):
            raise InvalidField("flavor", f"must have extra specs with values that they can have: of {document.name!r}, "
                                         f"{odd}")
        check_pcpus(specs, flavor["vcpus"])
        if odd := groups.problem(specs):
            raise InvalidField("flavor", f"must not ask for what no host gives: of {document.name!r}, {odd}")
        _without_effect(host, "flavor", document, FLAVOR_SPECS.without_effect(specs, (AGENT,)))
        _check_traits(host, "flavor", document, traits.asked(specs, {}))


def check_sizes(host: LocalHost, flavor: Fields, backed: bool, root_format: str) -> None:
    """Raises ``InvalidField`` for a server that alone asks for more than the host has, times the settings' ratios. What
    servers have together is not looked at: that is for those who choose the host. *backed*: its root disk is a volume.
    *root_format* says where its own disks lie."""
    facts, settings = host.hypervisor.host(), host.settings
    disk = 0 if backed else flavor["disk"]
    for what, wanted, unit, there, ratio in (
            ("vcpus", flavor["vcpus"], "", facts["vcpus"], "cpu_allocation_ratio"),
            ("ram", flavor["ram"], " MiB", memory.total(host), "ram_allocation_ratio"),
            ("disks", disk + flavor["ephemeral"] + -(-flavor["swap"] // 1024), " GiB",
             own_disks.total(host, root_format) // GIB, "disk_allocation_ratio")):
        if wanted > (most := int(there * getattr(settings, ratio))):
            raise InvalidField("flavor", f"must ask for no more than {most}{unit} of {what}: the host has {there}"
                                         f"{unit}, and its agent's {ratio} is {getattr(settings, ratio):g}", wanted)


def check_image(host: LocalHost, image: Document) -> None:
    """Raises ``InvalidField`` for an *image* of another machine than this, and for properties that would do nothing."""
    properties: dict[str, Any] = image.want["properties"]
    if not properties:
        return
    if wrong := next(unsuited(properties, host.hypervisor.host()), None):
        raise InvalidField("image", f"must be one for this host: of {image.name!r}, {wrong}")
    if odd := next(IMAGE_PROPERTIES.malformed(properties), None):
        raise InvalidField("image", f"must have properties with values that they can have: of {image.name!r}, {odd}")
    for text in IMAGE_PROPERTIES.ignored(properties):
        warn(f"Image {image.name!r}: {text}.")
    _without_effect(host, "image", image, IMAGE_PROPERTIES.without_effect(properties, (AGENT,)))
    _check_traits(host, "image", image, traits.asked({}, properties))


def _check_traits(host: LocalHost, field: str, document: Document, wanted: traits.Asked) -> None:
    """Raises ``InvalidField`` where the host lacks a trait that is required, or has one that is forbidden."""
    if not any(wanted):
        return
    facts = host.hypervisor.host()
    if lacking := wanted.lacking(traits_of(host, facts, facts["kvm"]["usable"])):
        raise InvalidField(field, f"must not ask for traits against this host's: {document.name!r} does, and the host "
                                  f"{' and '.join(lacking)}. Choose another, or add CUSTOM_ ones to traits in the "
                                  "agent's settings")


def _without_effect(host: LocalHost, field: str, document: Document, found: Iterable[str]) -> None:
    texts = "; ".join(found)
    if not texts:
        return
    told = f"{field} {document.name!r}, {texts}"
    if host.settings.specs_without_effect == "warn":
        warn(f"What would do nothing here: {told}.")
        return
    raise InvalidField(field, f"must not ask for what would do nothing here ({told}). Remove it, or choose another; "
                              "specs_without_effect: warn in the agent's settings lets it pass")
