# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernels and ramdisks of images: a disk image that names them (``kernel_id``, ``ramdisk_id``) boots with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.hardware.merge import requested_hardware, root_device

#: The agent's field to the property that names the part, and the part's disk format.
PARTS: Mapping[str, tuple[str, str]] = {"kernel": ("kernel_id", "aki"), "ramdisk": ("ramdisk_id", "ari")}
#: The rest of the command line after the root device, for an image without ``os_command_line``, as in Nova.
CONSOLES = "console=tty0 console=ttyS0"


def named_parts(image: Mapping[str, Any]) -> dict[str, str]:
    """Return {"kernel": uuid, "ramdisk": uuid} for the kernel and ramdisk images that an image's properties name. As in
    Nova, a ramdisk without a kernel is ignored."""
    properties = image.get("properties") or {}
    named = {field: str(properties[name]) for field, (name, _format) in PARTS.items()
             if properties.get(name) not in (None, "", "None")}
    return named if "kernel" in named else {}


def check_parts(image: Mapping[str, Any], show: Callable[[str], Document | None]) -> dict[str, str]:
    """Check the kernel and ramdisk that an image names, and return the result of ``named_parts``. The kernel and the
    ramdisk must be active images of the right format. If one of them belongs to another project than *image*, it must
    be public, because the guest can read the content of kernel and ramdisk. *show*: returns any image by uuid. Raises
    ``InvalidRequest``."""
    named = named_parts(image)
    for field, id in named.items():
        name, disk_format = PARTS[field]
        part = show(id)
        if part is None or (part.get("owner") != image.get("owner") and part.get("visibility") != "public"):
            raise InvalidRequest(f"Image {id[:80]} could not be found. Image {image.get('name') or image.get('id')} "
                                 f"names it in its property {name}: name a public image, or one of the same project.")
        if part["status"] != "active" or part.get("disk_format") != disk_format:
            raise InvalidRequest(f"Image {id[:80]} must be active and of disk_format {disk_format}: image "
                                 f"{image.get('name') or image.get('id')} names it in its property {name}.")
    return named


def image_command_line(image: Mapping[str, Any]) -> str:
    """Return the kernel command line for an image: its property ``os_command_line``, or Nova's default."""
    properties = image.get("properties") or {}
    if own_command_line := str(properties.get("os_command_line") or ""):
        return own_command_line
    try:
        hardware = requested_hardware({"vcpus": 1}, image).get("hardware", {})
    except InvalidField:  # its servers will be refused
        hardware = {}
    return f"root=/dev/{root_device(hardware)} {CONSOLES}"
