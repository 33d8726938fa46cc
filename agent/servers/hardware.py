# SPDX-License-Identifier: GPL-3.0-or-later
"""What flavor and image ask of a server's hardware: what nothing on this host acts on is refused, or warned of."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from magnetar_agent.servers import GIB
from magnetar_core.errors import InvalidField
from magnetar_core.hardware import AGENT
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES, unsuited
from magnetar_core.reconcile import warn
from magnetar_core.server_plan import root_volume

if TYPE_CHECKING:
    from magnetar_agent.documents import Document, Fields
    from magnetar_agent.host import LocalHost


def check_flavor(host: LocalHost, flavor: Fields) -> None:
    """Raises ``InvalidField`` for extra specs of the named *flavor* that would do nothing. Sizes have none, and so has
    what conductors send: they have looked."""
    document = host.documents.standing("flavor", flavor["name"]) if "name" in flavor else None
    if document:
        _without_effect(host, "flavor", document, FLAVOR_SPECS.without_effect(document.want["extra_specs"], (AGENT,)))


def check_sizes(host: LocalHost, want: Fields) -> None:
    """Raises ``InvalidField`` for a server that alone asks for more than the host has, times the settings' ratios. What
    servers have together is not looked at: that is for those who choose the host."""
    facts, flavor, settings = host.hypervisor.host(), want["flavor"], host.settings
    disk = 0 if root_volume(want) else flavor["disk"]
    for what, asked, unit, there, ratio in (
            ("vcpus", flavor["vcpus"], "", facts["vcpus"], "cpu_allocation_ratio"),
            ("ram", flavor["ram"], " MiB", facts["memory_mb"], "ram_allocation_ratio"),
            ("disks", disk + flavor["ephemeral"] + -(-flavor["swap"] // 1024), " GiB",
             shutil.disk_usage(host.settings.state_dir).total // GIB, "disk_allocation_ratio")):
        if asked > (most := int(there * getattr(settings, ratio))):
            raise InvalidField("flavor", f"must ask for no more than {most}{unit} of {what}: the host has {there}"
                                         f"{unit}, and its agent's {ratio} is {getattr(settings, ratio):g}", asked)


def check_image(host: LocalHost, image: Document) -> None:
    """Raises ``InvalidField`` for an *image* of another machine than this, and for properties that would do nothing."""
    properties: dict[str, Any] = image.want["properties"]
    wrong = next(unsuited(properties, host.hypervisor.host()), None) if properties else None
    if wrong:
        raise InvalidField("image", f"must be one for this host: of {image.name!r}, {wrong}")
    if odd := next(IMAGE_PROPERTIES.malformed(properties), None):
        raise InvalidField("image", f"must have properties with values that they can have: of {image.name!r}, {odd}")
    _without_effect(host, "image", image, IMAGE_PROPERTIES.without_effect(properties, (AGENT,)))


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
