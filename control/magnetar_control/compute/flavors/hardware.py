# SPDX-License-Identifier: GPL-3.0-or-later
"""Hardware that flavors and images ask a server to have: refused when no server can have it, otherwise stored with the
server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from magnetar_control.compute.caller import Caller
from magnetar_control.documents import FlavorOfServer, ImageOfServer, PortRequest, ServerNic
from magnetar_control.scheduler.request_spec import PMEM, devices_of, placed_hardware, resources_of
from magnetar_control.store.claims import inventories
from magnetar_control.store.hosts import hosts
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.hardware import architectures, groups, machines, numa, numa_providers, pmem
from magnetar_core.hardware.flavor_specs import CLASS_HINTS, FLAVOR_SPECS
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES
from magnetar_core.hardware.merge import (
    DEPLOYMENT,
    MEMORY_KEY,
    encrypts_disks,
    encrypts_memory,
    requested_hardware,
    root_device,
    tpm_secret_owner,
)
from magnetar_core.hardware.pci import is_vgpu, network_of_devices, parse_alias_counts
from magnetar_core.hardware.rows import BY_PROPERTY, BY_SPEC, has_spec_row, parse_hardware_specs
from magnetar_core.image_format import SECRET_UUID, is_encrypted

#: The architecture of a server that asks for none, in messages.
OWN = "that of its host"
#: Fields of the image that a server's row stores.
STORED_IMAGE_FIELDS = ("properties", "min_disk", "min_ram", "disk_format", "container_format")


def root_name(flavor: FlavorOfServer, image: Mapping[str, Any]) -> str:
    """Return the device path of the root disk, such as ``/dev/vda``, in servers with this *flavor* and *image*."""
    return f"/dev/{root_device(requested_hardware(flavor, image).get('hardware', {}))}"


def check_server_specs(caller: Caller, flavor: FlavorOfServer | None, image: Mapping[str, Any] | None,
                       current: Mapping[str, Any] | None = None,
                       accepted_properties: Mapping[str, Any] | None = None) -> str | None:
    """Check the extra specs of *flavor* and the properties of *image*. Return a warning; ``None`` if there is none.
    Raise ``InvalidRequest`` for malformed or contradictory values. Raise it also for values without effect, or only
    warn if the setting ``specs_without_effect`` is ``warn``. For image properties that Nova does not know, only warn.

    *flavor*, *image*: results of ``find_flavor`` and ``find_image``; ``None`` for the one that the request does not
    change. *current*: the server's current image if only the flavor changes, or the server's current flavor if only the
    image changes. *accepted_properties*: properties of the server's current image, which are not checked again.
    """
    of_image = image or (current if flavor and current else None) or {}
    try:
        requested_hardware(flavor or current or {}, of_image)
    except InvalidField as error:
        raise InvalidRequest(f"Flavor and image ask for hardware that no server can have. {error.message}") from None
    ineffective, ignored = [], ""
    if flavor:
        specs = flavor.get("extra_specs") or {}
        if problem := next(FLAVOR_SPECS.malformed(specs), None):
            raise InvalidRequest(f"Flavor {flavor['name']}, {problem}.")
        if problem := groups.check_request_groups(specs):
            raise InvalidRequest(f"Flavor {flavor['name']}: {problem}.")
        ineffective += [f"flavor {flavor['name']}, {text}" for text in FLAVOR_SPECS.without_effect(specs)]
        _check_classes(caller, flavor, of_image)
        _check_aliases(caller, flavor, specs)
    if image:
        check_image_unencrypted(image)
        properties = {name: str(value) for name, value in (image.get("properties") or {}).items()
                      if (name, value) not in (accepted_properties or {}).items()}
        if problem := next(IMAGE_PROPERTIES.malformed(properties), None):
            raise InvalidRequest(f"Image {image.get('name') or image['id']}, {problem}.")
        ineffective += [f"image {image.get('name') or image['id']}, {text}"
                        for text in IMAGE_PROPERTIES.without_effect(properties)]
        ignored = "".join(f"{text}. " for text in IMAGE_PROPERTIES.ignored(properties)).strip()
    refused = refuse_without_effect(caller, "What", ineffective,
                                    "Remove it, or choose another flavor or image; an operator may let "
                                                    "it pass")
    return " ".join(filter(None, (refused, ignored))) or None


def refuse_without_effect(caller: Caller, subject: str, ineffective: Sequence[str], remedy: str) -> str | None:
    """Return ``None`` if *ineffective* (the extra specs or properties of *subject* that have no effect) is empty.
    Otherwise raise ``InvalidRequest``; but if the setting ``specs_without_effect`` is ``warn``, return a warning
    instead. *remedy*: advice for the error message."""
    if not ineffective:
        return None
    message = f"{subject} would do nothing here: {'; '.join(ineffective)}."
    if caller.settings.specs_without_effect == "warn":
        return message
    raise InvalidRequest(f"{message} {remedy} with the setting specs_without_effect: warn.")


def check_image_unencrypted(image: Mapping[str, Any]) -> None:
    """Raise ``InvalidRequest`` if the content of *image* is encrypted. Such an image is the disk of a shelved server,
    and no other server can use it."""
    if is_encrypted(image):
        raise InvalidRequest(f"The content of image {image.get('name') or image['id']} is encrypted ({SECRET_UUID}), "
                             "as it is the root disk of a shelved server. Unshelve that server, or use another image.")


def _check_classes(caller: Caller, flavor: FlavorOfServer, image: Mapping[str, Any]) -> None:
    """Raise ``InvalidRequest`` if *flavor* or *image* requests a resource class that no host provides, or requests
    persistent memory by its resource class instead of by ``hw:pmem``."""
    specs = flavor.get("extra_specs") or {}
    if problem := sorted(name for name in groups.custom_resources(specs) if name.startswith(pmem.CLASS)):
        raise InvalidRequest(f"Flavor {flavor['name']} asks for resources:{', resources:'.join(problem)}, which counts "
                             "namespaces of persistent memory: a server gets them by the extra spec hw:pmem, with "
                             "their labels. Choose another flavor.")
    resources = resources_of(flavor, image)
    if resources and (missing := sorted(resources.keys() - caller.fetch(inventories.fetch_provided_classes,
                                                                        resources))):
        if cells := [name for name in missing if numa_providers.is_cell_class(name)]:
            raise InvalidRequest(f"Flavor {flavor['name']} asks for resources:{', resources:'.join(cells)}, which "
                                 "counts what NUMA cells have: a server gets large pages by the extra spec "
                                 "hw:mem_page_size. Choose another flavor.")
        if devices := sorted(caller.fetch(hosts.fetch_child_classes).intersection(missing)):
            raise InvalidRequest(f"Flavor {flavor['name']} asks for resources:{', resources:'.join(devices)}, which "
                                 "counts PCI devices: a server gets them by the extra spec pci_passthrough:alias, with "
                                 "an alias of the agents' setting pci_alias that has that resource_class. Choose "
                                 "another flavor.")
        if MEMORY_KEY in missing:
            raise InvalidRequest(f"Flavor {flavor['name']} or the image asks for encrypted memory (hw:mem_encryption, "
                                 f"hw_mem_encryption, resources:{MEMORY_KEY}), and no host here has a CPU that "
                                 "encrypts it. Choose another flavor or image.")
        if unknown := [label for label in pmem.parse_pmem_labels(specs.get(PMEM, ""))
                       if pmem.pmem_resource_class(label) in missing]:
            raise InvalidRequest(f"Flavor {flavor['name']} asks for persistent memory (hw:pmem) with the label "
                                 f"{unknown[0]}, which no host has. Choose another flavor; the agents' setting "
                                 "pmem_namespaces gives namespaces a label.")
        hints = "".join(f" As a rule {hint}." for hint in dict.fromkeys(
            CLASS_HINTS[name] for name in missing if name in CLASS_HINTS))
        raise InvalidRequest(f"Flavor {flavor['name']} asks for resources:{', resources:'.join(missing)}, and no host "
                             "has an inventory of that. Choose another flavor; an operator gives hosts one with "
                             f"`openstack resource provider inventory set` or the agents' provider.yaml.{hints}")


def _check_aliases(caller: Caller, flavor: FlavorOfServer, specs: Mapping[str, Any]) -> None:
    """Raise ``InvalidRequest`` when the extra specs *specs* of *flavor* name an alias of PCI devices that no host has
    (Nova's PciRequestAliasNotDefined)."""
    requested_aliases = parse_hardware_specs(specs, BY_SPEC).get("pci_alias")
    if not requested_aliases:
        return
    known_aliases = caller.fetch(hosts.fetch_pci_aliases)
    if unknown := [alias for alias in parse_alias_counts(requested_aliases) if alias not in known_aliases]:
        raise InvalidRequest(
            f"PCI alias {unknown[0]} is not defined: flavor {flavor['name']} asks for it (pci_passthrough:alias), and "
            f"no host knows it; they know {', '.join(sorted(known_aliases)) or 'none'}. Name it in the agents' setting "
            "pci_alias, or choose another flavor.")


def check_nics(flavor: FlavorOfServer, image: Mapping[str, Any], nics: Iterable[ServerNic | PortRequest]) -> None:
    """Raise ``InvalidRequest`` when one of *nics* is a PCI device of the host (vnic_type direct and similar) that the
    server cannot use. There are two reasons. *flavor* or *image* encrypts the guest's memory, which the device cannot
    read. Or *flavor* limits the bandwidth of NICs, which the host cannot do for PCI devices."""
    if not any(nic.get("devices") for nic in nics):
        return
    if limit := next((name for name in flavor.get("extra_specs") or {} if name.startswith("quota:vif_")), None):
        raise InvalidRequest("Ports that are devices of a host (vnic_type direct and others) cannot be had by a server "
                             f"whose flavor limits NICs ({limit}), as the host cannot limit them. Use other ports, or "
                             "another flavor; QoS policies limit ports of type direct, macvtap and vdpa.")
    if encrypts_memory(flavor, image):
        raise InvalidRequest("Ports that are devices of a host (vnic_type direct and others) cannot be had by a server "
                             "whose memory is encrypted (hw:mem_encryption, hw_mem_encryption). Use other ports, or "
                             "another flavor or image.")


def check_placement_unchanged(flavor: FlavorOfServer, old: Mapping[str, Any] | None,
                              new: Mapping[str, Any] | None) -> None:
    """Raise ``InvalidRequest`` when a server of *flavor* would need other CPUs, NUMA cells, pages, architecture or
    memory encryption with the image *new* than with the image *old*. A rebuild cannot change these properties, because
    the rebuilt server keeps its host and its claims, as in Nova."""
    vcpus, ram = int(flavor["vcpus"]), int(flavor["ram"])
    had, required = (numa.numa_needs(placed_hardware(flavor, image), vcpus, ram) for image in (old, new))
    if had != required:
        raise InvalidRequest("An instance's NUMA topology cannot be changed as part of a rebuild. The image provided "
                             "is invalid for this instance: its properties ask for other CPUs, cells or pages of its "
                             "host (hw_cpu_*, hw_numa_*, hw_mem_page_size). Use another image, or resize the instance.")
    old_architecture, new_architecture = (parse_hardware_specs((image or {}).get("properties") or {},
                                                               BY_PROPERTY).get(architectures.FIELD)
                                          for image in (old, new))
    if old_architecture != new_architecture:
        raise InvalidRequest("The architecture of an instance cannot be changed as part of a rebuild: it is "
                             f"{old_architecture or OWN}, and would be {new_architecture or OWN} "
                             "(hw_emulation_architecture of the image). Use another image, or make another instance.")
    if encrypts_memory(flavor, old or {}) != encrypts_memory(flavor, new or {}):
        raise InvalidRequest("Whether an instance's memory is encrypted, and with what, cannot be changed as part of a "
                             "rebuild (hw_mem_encryption and hw_mem_encryption_model of the image). Use another image, "
                             "or resize the instance.")


def check_encryption_unchanged(server: ServerRow, desired: tuple[Mapping[str, Any], Mapping[str, Any]]) -> None:
    """Raise ``InvalidRequest`` when the *desired* pair (flavor, image) would change whether the local disks of *server*
    are encrypted, or would change the extra spec ``hw:tpm_secret_security`` from or to ``deployment``. If the current
    flavor has no TPM, the value that applied when the server's TPM secret was created (with an earlier flavor) counts
    as the current value."""
    had = server.flavor, server.image
    words = [tpm_secret_owner(*had) or servers.tpm_drawn(server), tpm_secret_owner(*desired)]
    if all(words) and words[0] != words[1] and DEPLOYMENT in words:
        raise InvalidRequest(f"The secret of the instance's TPM is the {words[0]}'s, and would be the {words[1]}'s "
                             "(hw:tpm_secret_security): that is decided when an instance is made. Only user and host "
                             "may follow one another. Choose another flavor.")
    encrypted_before, encrypted_after = encrypts_disks(*had), encrypts_disks(*desired)
    if encrypted_before != encrypted_after:
        raise InvalidRequest(
            f"The local disks of the instance are {'' if encrypted_before else 'not '}encrypted, and flavor and "
                             f"image would have them {'' if encrypted_after else 'not '}encrypted "
                             "(hw:ephemeral_encryption, "
                             "hw_ephemeral_encryption): that is decided when an instance is made. Choose another "
                             "flavor or image, or make another instance.")


def host_bound_hardware(server: ServerRow, live: bool) -> str:
    """Return a text, with advice for the user, about hardware of the server that makes the action impossible; "" if no
    hardware does. The action is a live migration if *live* is true, otherwise suspending the server.

    PCI devices make only suspending impossible; for a live migration, the target host decides whether it can provide
    the devices. NICs that are PCI devices do not matter, because they are detached from the guest during the action.
    """
    flavor = server.flavor
    devices = devices_of(flavor, server.nics)
    otherwise = "Migrate it cold (migrate)" if live else "Stop it, or pause it"
    if any(map(is_vgpu, devices)):
        return f"a virtual GPU (resources:VGPU), whose state cannot be saved. {otherwise}."
    if encrypts_memory(flavor, server.image):
        return f"encrypted memory (hw:mem_encryption), which its host cannot read. {otherwise}."
    if PMEM in (flavor.get("extra_specs") or {}):
        return ("persistent memory (hw:pmem), which stays on its host. "
                f"{otherwise}{'; what is in there does not go along' if live else ''}.")
    if not live and not all(map(network_of_devices, devices)):
        return f"PCI devices (pci_passthrough:alias), whose state cannot be saved. {otherwise}."
    return ""


def stored_volume_image(properties: Mapping[str, Any]) -> ImageOfServer:
    """Return the image fields to store in the row of a server that has a root volume. *properties*: the properties of
    the image from which the volume was made. Of these, the result contains only the properties about hardware."""
    hardware_properties = {name: value for name, value in properties.items()
                           if has_spec_row(name, BY_PROPERTY) or name == "os_type" or name.startswith("trait:")}
    return {"properties": hardware_properties} if hardware_properties else {}


def stored_rebuild_image(server: ServerRow, image: Mapping[str, Any] | None) -> ImageOfServer:
    """Return the image fields to store in the row of *server* after a rebuild from *image*. They preserve the server's
    machine type, unless the image requests another one."""
    stored_fields, machine = stored_image_fields(image), machines.machine_of_image(server.image)
    requested_machine = str(parse_hardware_specs(stored_fields.get("properties") or {}, BY_PROPERTY).get("machine",
                                                                                                         machines.AUTO))
    return {**stored_fields, "machine": machine} if machine and machines.is_same_machine(requested_machine,
                                                                                         machine) else stored_fields


def stored_image_fields(image: Mapping[str, Any] | None) -> ImageOfServer:
    """Return those fields of *image* that are stored in a server's row; {} for a server without an image."""
    return cast("ImageOfServer", {name: image.get(name) for name in STORED_IMAGE_FIELDS} if image else {})
