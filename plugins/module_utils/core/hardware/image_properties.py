# SPDX-License-Identifier: GPL-3.0-or-later
"""Properties of images. Source: Glance's list of useful image properties, Nova's image metadata (2026)."""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping, Optional

from ..image_format import SECRET_UUID
from . import AGENT, API, SCHEDULER, Spec, Table
from .architectures import ARCHITECTURE_ALIASES, I686, X86_64
from .rows import ANY, BY_PROPERTY, FALSE, NO_FORMAT, NUMBER, name_pattern
from .traits import is_known_trait

_HOST, _SUITS, _HERE = frozenset((AGENT,)), frozenset((AGENT, SCHEDULER)), frozenset((API,))

#: Property for the seconds that a guest may take to shut down, and the pattern of its values: 0 to ``SHUTDOWN_MAX`` of
#: ``kinds.server``.
SHUTDOWN_TIMEOUT, SECONDS = "os_shutdown_timeout", r"0*([0-9]{1,3}|[12][0-9]{3}|3[0-5][0-9]{2}|3600)"

ROWS = (
    Spec(r"(hw_)?architecture|img_hv_type|hypervisor_type|(hw_)?vm_mode", ANY, _SUITS),
    Spec(r"img_config_drive", "mandatory|optional", _HOST),
    Spec(r"(hw_)?auto_disk_config|(img_)?(block_device_mapping|bdm_v2|root_device_name)", ANY, _HERE),
    Spec(r"(img_)?mappings", ANY, usual=r"|\[\]|None", lacks="ephemeral and swap disks are those of the flavor"),
    Spec(r"kernel_id|ramdisk_id|os_command_line", ANY, _HERE, usual="|None"),  # hosts have fields for these
    # Descriptions of an image, for people and for searches.
    Spec(r"os_(distro|version|type|hidden|hash_\w+)|(base_image_ref|image_type|image_location|image_state|"
         r"instance_uuid|instance_type_\w+|owner_id|owner_\w+|user_id|boot_roles|stores|locations|"
         r"description)", ANY, usual=ANY),
    Spec(r"hw_rescue_(device|bus)", ANY, _HOST | _HERE),  # checked at the rescue
    *(Spec(name_pattern(name), ANY, row=row) for name, row in BY_PROPERTY.items()),
    Spec(r"hw_rng_model", ANY, usual="virtio", lacks="the random number generator is virtio"),
    Spec(r"hw_tpm_secret_security", ANY, lacks="flavors say who has the secret of a TPM (hw:tpm_secret_security)"),
    Spec(r"hw_firmware_stateless", ANY, usual=FALSE, lacks="the variables of UEFI are kept"),
    Spec(r"hw_ephemeral_encryption_format", ANY, usual="luks", lacks=NO_FORMAT),
    Spec(SECRET_UUID, "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", _HOST),  # of shelved servers
    Spec(r"os_(en|de)crypt_\w+", ANY, lacks="images that are encrypted are not opened"),
    # Properties that Nova knows and its libvirt driver does not read. A floppy's bus requests no floppy.
    Spec(r"hw_(device_id|disk_type|floppy_bus|ipxe_boot)|os_skip_agent_inject_\w+|"
         r"img_(bittorrent|cache_in_nova|cache_raw|compression_level|linked_clone|mkfs_\w+|owner_id|use_agent|version)",
         ANY, usual=ANY),
    Spec(r"hw_redirected_usb_ports", NUMBER, usual="0", lacks="no USB devices are redirected"),
    Spec(r"hw_sound_model", ANY, lacks="guests have no sound"),
    Spec(r"hw_usb_model", ANY, lacks="the USB controller is qemu-xhci, where there is one (hw_pointer_model)"),
    Spec(r"hw_cpu_realtime", ANY, usual=FALSE, lacks="flavors say it (hw:cpu_realtime)"),
    Spec(r"hw_numa_(cpus|mem)", ANY, lacks="each NUMA cell has its own (hw_numa_cpus.0, hw_numa_mem.0)"),
    Spec(r"img_hv_requested_version", ANY, lacks="hosts are asked for by capabilities:hypervisor_version"),
    Spec(SHUTDOWN_TIMEOUT, SECONDS, _HOST),
    Spec(r"img_signature(_hash_method|_key_type|_certificate_uuid)?", ANY, _HERE),
    Spec(r"cinder_encryption_\w+", ANY, lacks="images that are encrypted are not opened"),
    Spec(r"trait:(?P<what>[A-Z0-9_]+)", "required", _SUITS, exists=is_known_trait),
    Spec(r"trait:[A-Z0-9_]+", "required", lacks="there is no such trait"),
    Spec(r"trait\w+:[A-Z0-9_]+", ANY, lacks="images have no groups of requests; use trait:"),
    Spec(r"(hw|img)_\w+", ANY, ignored=True),
    Spec(r"(hw|hw_rng|hw_video|os|quota|accel|pci_passthrough|aggregate_instance_extra_specs|capabilities):.+|"
         r"hide_hypervisor_id", ANY, lacks="it is an extra spec of flavors, and no property of images"),
)
#: No namespace is reserved: owners of images may set any property, also in Nova's namespaces.
IMAGE_PROPERTIES = Table("image property", ROWS, r"(?!)")

#: Architectures that a host of another architecture runs natively.
_RUN_BY = {X86_64: (I686,)}


def shutdown_timeout(properties: Mapping[str, Any]) -> Optional[int]:
    """Return the number of seconds that a guest gets to shut down, as the *properties* of its image request (property
    ``SHUTDOWN_TIMEOUT``); ``None`` if this property is missing or invalid."""
    text = str(properties.get(SHUTDOWN_TIMEOUT, ""))
    return int(text) if re.fullmatch(SECONDS, text) else None


def unsuited_properties(properties: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each of an image's *properties* (architecture, hypervisor type, VM mode) that the *host*
    (fields of ``kinds.Host``) does not support. An architecture is supported if the host has or emulates it; if the
    host does not report its own architecture, every architecture counts as supported.
    """
    kinds = {str(virt_type).lower() for virt_type in (host.get("hypervisor_type") or "qemu",
                                                      *(host.get("virt_types") or ()))}
    host_architecture, emulated = host.get("architecture"), str(properties.get("hw_emulation_architecture") or "")
    also = {ARCHITECTURE_ALIASES.get(emulated, emulated)}.intersection(host.get("emulated_architectures") or ())
    for names, accepted in ((("hw_architecture", "architecture"),
                             {host_architecture, *_RUN_BY.get(host_architecture or "", ()), *also} if host_architecture
                             else None),
                            (("img_hv_type", "hypervisor_type"), kinds | ({"qemu"} if "kvm" in kinds else set())),
                            (("hw_vm_mode", "vm_mode"), {"hvm"})):
        name = next((alias for alias in names if properties.get(alias)), None)
        if name is not None and accepted is not None:
            requested = str(properties[name]).lower()
            if ARCHITECTURE_ALIASES.get(requested, requested) not in accepted:
                yield "image property %s=%s: the host has %s" % (name, properties[name], ", ".join(sorted(accepted)))
