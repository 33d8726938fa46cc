# SPDX-License-Identifier: GPL-3.0-or-later
"""What flavors and images ask of a server's hardware: refused where none can have it, else kept with the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from magnetar_control.compute.caller import Caller
from magnetar_control.scheduler.request_spec import PMEM, devices_of, placed_hardware, resources_of
from magnetar_control.store.claims import inventories
from magnetar_control.store.hosts import hosts
from magnetar_control.store.servers import server_hardware, servers
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.hardware import architectures, groups, machines, numa, numa_providers, pmem
from magnetar_core.hardware.flavor_specs import CLASS_HINTS, FLAVOR_SPECS
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES
from magnetar_core.hardware.merge import (
    DEPLOYMENT,
    MEMORY_KEY,
    asked_of,
    encrypts,
    encrypts_memory,
    root_device,
    tpm_security,
)
from magnetar_core.hardware.pci import counts, is_vgpu, network_of
from magnetar_core.hardware.rows import BY_PROPERTY, BY_SPEC, asks, said
from magnetar_core.image_format import SECRET_UUID, is_encrypted

#: The architecture of a server of which none is said.
OWN = "that of its host"
#: What a server's row keeps of its image.
KEPT_OF_IMAGE = ("properties", "min_disk", "min_ram", "disk_format", "container_format")


def root_name(flavor: Mapping[str, Any], image: Mapping[str, Any]) -> str:
    """The path of the device that is the root disk."""
    return f"/dev/{root_device(asked_of(flavor, image).get('hardware', {}))}"


def check_specs(caller: Caller, flavor: Mapping[str, Any] | None, image: Mapping[str, Any] | None,
                had: Mapping[str, Any] | None = None, stands: Mapping[str, Any] | None = None) -> str | None:
    """Raises ``InvalidRequest`` for extra specs of *flavor* and properties of *image* (as ``find_flavor`` and
    ``find_image`` return them) that would do nothing, or do not go together; one that is not given is what the server
    *had*. *stands*: properties of the image that the server has already, which are not refused now. Returns and
    raises as ``without_effect``."""
    of_image = image or (had if flavor and had else None) or {}
    try:
        asked_of(flavor or had or {}, of_image)
    except InvalidField as error:
        raise InvalidRequest(f"Flavor and image ask for hardware that no server can have. {error.message}") from None
    found, ignored = [], ""
    if flavor:
        specs = flavor.get("extra_specs") or {}
        if odd := next(FLAVOR_SPECS.malformed(specs), None):
            raise InvalidRequest(f"Flavor {flavor['name']}, {odd}.")
        if odd := groups.problem(specs):
            raise InvalidRequest(f"Flavor {flavor['name']}: {odd}.")
        found += [f"flavor {flavor['name']}, {text}" for text in FLAVOR_SPECS.without_effect(specs)]
        _check_classes(caller, flavor, of_image)
        _check_aliases(caller, flavor, specs)
    if image:
        check_clear(image)
        properties = {name: str(value) for name, value in (image.get("properties") or {}).items()
                      if (name, value) not in (stands or {}).items()}
        if odd := next(IMAGE_PROPERTIES.malformed(properties), None):
            raise InvalidRequest(f"Image {image.get('name') or image['id']}, {odd}.")
        found += [f"image {image.get('name') or image['id']}, {text}"
                  for text in IMAGE_PROPERTIES.without_effect(properties)]
        ignored = "".join(f"{text}. " for text in IMAGE_PROPERTIES.ignored(properties)).strip()
    refused = without_effect(caller, "What", found, "Remove it, or choose another flavor or image; an operator may let "
                                                    "it pass")
    return " ".join(filter(None, (refused, ignored))) or None


def without_effect(caller: Caller, what: str, found: Sequence[str], remedy: str) -> str | None:
    """Raises ``InvalidRequest`` for *found* among *what* a server asks for, with the *remedy* up to the setting
    ``specs_without_effect``. Where that is ``warn``, returns it as a warning, for the message of its action."""
    if not found:
        return None
    told = f"{what} would do nothing here: {'; '.join(found)}."
    if caller.settings.specs_without_effect == "warn":
        return told
    raise InvalidRequest(f"{told} {remedy} with the setting specs_without_effect: warn.")


def check_clear(image: Mapping[str, Any]) -> None:
    """Raises ``InvalidRequest`` for an *image* with encrypted content: that of a shelved server, of which nothing but
    the server is made."""
    if is_encrypted(image):
        raise InvalidRequest(f"The content of image {image.get('name') or image['id']} is encrypted ({SECRET_UUID}), "
                             "as it is the root disk of a shelved server. Unshelve that server, or use another image.")


def _check_classes(caller: Caller, flavor: Mapping[str, Any], image: Mapping[str, Any]) -> None:
    """Raises ``InvalidRequest`` for custom resource classes that no host has."""
    specs = flavor.get("extra_specs") or {}
    if odd := sorted(name for name in groups.custom_resources(specs) if name.startswith(pmem.CLASS)):
        raise InvalidRequest(f"Flavor {flavor['name']} asks for resources:{', resources:'.join(odd)}, which counts "
                             "namespaces of persistent memory: a server gets them by the extra spec hw:pmem, with "
                             "their labels. Choose another flavor.")
    wanted = resources_of(flavor, image)
    if wanted and (missing := sorted(wanted.keys() - caller.fetch(inventories.had, wanted))):
        if cells := [one for one in missing if numa_providers.is_of_cells(one)]:
            raise InvalidRequest(f"Flavor {flavor['name']} asks for resources:{', resources:'.join(cells)}, which "
                                 "counts what NUMA cells have: a server gets large pages by the extra spec "
                                 "hw:mem_page_size. Choose another flavor.")
        if devices := sorted(caller.fetch(hosts.classes_below).intersection(missing)):
            raise InvalidRequest(f"Flavor {flavor['name']} asks for resources:{', resources:'.join(devices)}, which "
                                 "counts PCI devices: a server gets them by the extra spec pci_passthrough:alias, with "
                                 "an alias of the agents' setting pci_alias that has that resource_class. Choose "
                                 "another flavor.")
        if MEMORY_KEY in missing:
            raise InvalidRequest(f"Flavor {flavor['name']} or the image asks for encrypted memory (hw:mem_encryption, "
                                 f"hw_mem_encryption, resources:{MEMORY_KEY}), and no host here has a CPU that "
                                 "encrypts it. Choose another flavor or image.")
        if unknown := [one for one in pmem.labels(specs.get(PMEM, "")) if pmem.class_of(one) in missing]:
            raise InvalidRequest(f"Flavor {flavor['name']} asks for persistent memory (hw:pmem) with the label "
                                 f"{unknown[0]}, which no host has. Choose another flavor; the agents' setting "
                                 "pmem_namespaces gives namespaces a label.")
        hints = "".join(f" As a rule {hint}." for hint in dict.fromkeys(
            CLASS_HINTS[name] for name in missing if name in CLASS_HINTS))
        raise InvalidRequest(f"Flavor {flavor['name']} asks for resources:{', resources:'.join(missing)}, and no host "
                             "has an inventory of that. Choose another flavor; an operator gives hosts one with "
                             f"`openstack resource provider inventory set` or the agents' provider.yaml.{hints}")


def _check_aliases(caller: Caller, flavor: Mapping[str, Any], specs: Mapping[str, Any]) -> None:
    """Raises ``InvalidRequest`` for aliases of PCI devices that no host knows (Nova's PciRequestAliasNotDefined)."""
    asked = said(specs, BY_SPEC).get("pci_alias")
    if not asked:
        return
    known = caller.fetch(hosts.pci_aliases)
    if unknown := [alias for alias in counts(asked) if alias not in known]:
        raise InvalidRequest(
            f"PCI alias {unknown[0]} is not defined: flavor {flavor['name']} asks for it (pci_passthrough:alias), and "
            f"no host knows it; they know {', '.join(sorted(known)) or 'none'}. Name it in the agents' setting "
            "pci_alias, or choose another flavor.")


def check_nics(flavor: Mapping[str, Any], image: Mapping[str, Any], nics: Iterable[Mapping[str, Any]]) -> None:
    """Raises ``InvalidRequest`` for *nics* that are devices of the host, of a server whose memory is encrypted: they
    cannot read it (row A14.7); or whose flavor limits NICs, as the host cannot limit them."""
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


def check_placed(flavor: Mapping[str, Any], old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
    """Raises ``InvalidRequest`` where a server of *flavor* would need other CPUs, NUMA cells or pages of its host with
    the image *new* than with the *old* one, or be of another architecture: a rebuild stays where it is, with what it
    has claimed, as in Nova."""
    vcpus, ram = int(flavor["vcpus"]), int(flavor["ram"])
    had, wanted = (numa.needs(placed_hardware(flavor, image), vcpus, ram) for image in (old, new))
    if had != wanted:
        raise InvalidRequest("An instance's NUMA topology cannot be changed as part of a rebuild. The image provided "
                             "is invalid for this instance: its properties ask for other CPUs, cells or pages of its "
                             "host (hw_cpu_*, hw_numa_*, hw_mem_page_size). Use another image, or resize the instance.")
    before, after = (said((image or {}).get("properties") or {}, BY_PROPERTY).get(architectures.FIELD)
                     for image in (old, new))
    if before != after:
        raise InvalidRequest("The architecture of an instance cannot be changed as part of a rebuild: it is "
                             f"{before or OWN}, and would be {after or OWN} "
                             "(hw_emulation_architecture of the image). Use another image, or make another instance.")
    if encrypts_memory(flavor, old or {}) != encrypts_memory(flavor, new or {}):
        raise InvalidRequest("Whether an instance's memory is encrypted, and with what, cannot be changed as part of a "
                             "rebuild (hw_mem_encryption and hw_mem_encryption_model of the image). Use another image, "
                             "or resize the instance.")


def check_keys(server: servers.Found, wanted: tuple[Mapping[str, Any], Mapping[str, Any]]) -> None:
    """Raises ``InvalidRequest`` where the disks of a *server* would become encrypted, or be so no more, by the flavor
    and image that are *wanted*, or the secret of its TPM would be another's: also of one that it had under an earlier
    flavor."""
    had = orjson.loads(server.flavor), orjson.loads(server.image)
    words = [tpm_security(*had) or server_hardware.tpm_drawn(server), tpm_security(*wanted)]
    if all(words) and words[0] != words[1] and DEPLOYMENT in words:
        raise InvalidRequest(f"The secret of the instance's TPM is the {words[0]}'s, and would be the {words[1]}'s "
                             "(hw:tpm_secret_security): that is decided when an instance is made. Only user and host "
                             "may follow one another. Choose another flavor.")
    before, after = encrypts(*had), encrypts(*wanted)
    if before != after:
        raise InvalidRequest(f"The local disks of the instance are {'' if before else 'not '}encrypted, and flavor and "
                             f"image would have them {'' if after else 'not '}encrypted (hw:ephemeral_encryption, "
                             "hw_ephemeral_encryption): that is decided when an instance is made. Choose another "
                             "flavor or image, or make another instance.")


def tied_by(server: servers.Found, live: bool) -> str:
    """Devices of its host, or its memory, that keep a server from being suspended, or with *live* from moving while its
    guest runs, and what to do; "" for a server without. PCI devices may move, which the host that it goes to says; of
    NICs that are devices the guest lets go meanwhile."""
    flavor = orjson.loads(server.flavor)
    devices = devices_of(flavor, orjson.loads(server.interfaces or "[]"))
    otherwise = "Migrate it cold (migrate)" if live else "Stop it, or pause it"
    if any(map(is_vgpu, devices)):
        return f"a virtual GPU (resources:VGPU), whose state cannot be saved. {otherwise}."
    if encrypts_memory(flavor, orjson.loads(server.image)):
        return f"encrypted memory (hw:mem_encryption), which its host cannot read. {otherwise}."
    if PMEM in (flavor.get("extra_specs") or {}):
        return ("persistent memory (hw:pmem), which stays on its host. "
                f"{otherwise}{'; what is in there does not go along' if live else ''}.")
    if not live and not all(map(network_of, devices)):
        return f"PCI devices (pci_passthrough:alias), whose state cannot be saved. {otherwise}."
    return ""


def kept_of_volume(properties: Mapping[str, Any]) -> dict[str, Any]:
    """What a server's row keeps of the image that its root volume was made from: what it asks of the hardware."""
    found = {name: value for name, value in properties.items()
             if asks(name, BY_PROPERTY) or name == "os_type" or name.startswith("trait:")}
    return {"properties": found} if found else {}


def kept_of_rebuilt(server: servers.Found, image: Mapping[str, Any] | None) -> dict[str, Any]:
    """The same of a *server* that is rebuilt from an *image*: its machine type stays, unless the image says another."""
    found, machine = kept_of_image(image), machines.machine_of(orjson.loads(server.image))
    wanted = str(said(found.get("properties") or {}, BY_PROPERTY).get("machine", machines.AUTO))
    return {**found, "machine": machine} if machine and machines.means(wanted, machine) else found


def kept_of_image(image: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a server's row keeps of its image; nothing for a server without one."""
    return {name: image.get(name) for name in KEPT_OF_IMAGE} if image else {}
