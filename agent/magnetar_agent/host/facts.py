# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts that a host reports for scheduling, in addition to its resources: address, traits, and images (metrics:
``cpu_meter``)."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from magnetar_agent.servers import GIB
from magnetar_agent.servers.disks import root_pool
from magnetar_agent.servers.hardware import cpu_modes
from magnetar_agent.settings import NO_INJECTION
from magnetar_core.hardware import traits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .host import LocalHost

#: Addresses whose route is looked up; no packet is sent to them (RFC 5737, RFC 3849).
_AWAY = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def advertised_host_address(host: LocalHost) -> str:
    """Return the IP address for connections to the host: from the settings, or the source address of the host's route
    to other networks; "" when the host has no route."""
    if host.settings.address_of_host:
        return host.settings.address_of_host
    for family, away in _AWAY:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((away, 9))  # UDP: no packet is sent
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return ""


def stored_image_ids(host: LocalHost) -> list[str]:
    """Return the ids of the images whose content is stored on this host."""
    return sorted(image.id for image in host.documents.peek("image") if image.state.get("file"))


def injection_status(host: LocalHost) -> dict[str, Any] | None:
    """Return ``{"partition", "reason"}``: the setting ``inject_partition``, and why this host cannot inject keys and
    files into disks ("" if it can). ``None`` if the settings disable injection."""
    partition = host.settings.inject_partition
    if partition == NO_INJECTION:
        return None
    return {"partition": partition, "reason": host.hypervisor.lacks_injection()}


def image_cache_gb(host: LocalHost) -> int:
    """Return the GiB of disk that stored images take, for the scheduler to reserve. 0 if the settings disable the
    reservation, or put root disks into a storage pool."""
    if not host.settings.reserve_disk_resource_for_image_cache or host.settings.root_format in root_pool.WHAT:
        return 0  # content in a pool is not on the disk of the images
    return -(-sum(int(image.state.get("size") or 0) for image in host.documents.peek("image")
                  if image.state.get("file"))
             // GIB)


def host_facts(host: LocalHost) -> dict[str, Any]:
    """Return the facts about the host from ``LocalHypervisor.host``. ``disk_encryption`` is empty if the settings put
    root disks into a storage pool, where encryption is not possible."""
    facts = host.hypervisor.host()
    return facts | {"disk_encryption": []} if host.settings.root_format in root_pool.WHAT else facts


def traits_of(host: LocalHost, facts: Mapping[str, Any], kvm: bool) -> list[str]:
    """Return the host's Placement traits. *facts*: the result of ``LocalHypervisor.host``. *kvm*: whether the host has
    usable KVM."""
    under = kvm and host.settings.virt_type != "qemu"
    return traits.host_traits(facts, under, cpu_modes.guest_cpu_features(host, facts, under),
                              host.hypervisor.serves_shares(), (*host.settings.traits, *host.provider_config.traits))
