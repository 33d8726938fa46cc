# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host tells for the choice of hosts beside its sizes: address, traits, images (metrics: ``cpu_meter``)."""

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

#: Addresses that are asked for a route; nothing is sent there (RFC 5737, RFC 3849).
_AWAY = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


def address(host: LocalHost) -> str:
    """The IP address by which others know the host: that of the settings, or the one from which it would speak to
    hosts elsewhere; empty where it has no route."""
    if host.settings.address_of_host:
        return host.settings.address_of_host
    for family, away in _AWAY:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as one:
                one.connect((away, 9))  # UDP: no packet is sent
                return str(one.getsockname()[0])
        except OSError:
            continue
    return ""


def images(host: LocalHost) -> list[str]:
    """Ids of the images whose content is here."""
    return sorted(one.id for one in host.documents.peek("image") if one.state.get("file"))


def injection(host: LocalHost) -> dict[str, Any] | None:
    """Where the settings have keys and files written into servers' root disks, and why that cannot be; ``None`` where
    they do not."""
    partition = host.settings.inject_partition
    if partition == NO_INJECTION:
        return None
    return {"partition": partition, "reason": host.hypervisor.lacks_injection()}


def image_cache_gb(host: LocalHost) -> int:
    """GiB of disk that the content of images takes, and that is to be reserved for it (spec row IMC-05)."""
    if not host.settings.reserve_disk_resource_for_image_cache or host.settings.root_format in root_pool.WHAT:
        return 0  # what is in a pool does not lie where images do
    return -(-sum(int(one.state.get("size") or 0) for one in host.documents.peek("image") if one.state.get("file"))
             // GIB)


def facts(host: LocalHost) -> dict[str, Any]:
    """As ``LocalHypervisor.host``, but for what the settings rule out: what is in a pool is not encrypted."""
    found = host.hypervisor.host()
    return found | {"disk_encryption": []} if host.settings.root_format in root_pool.WHAT else found


def traits_of(host: LocalHost, facts: Mapping[str, Any], kvm: bool) -> list[str]:
    """The host's traits. *facts*: ``LocalHypervisor.host``. *kvm*: whether guests run under it."""
    under = kvm and host.settings.virt_type != "qemu"
    return traits.of_host(facts, under, cpu_modes.features(host, facts, under), host.hypervisor.serves_shares(),
                          (*host.settings.traits, *host.provider_config.traits))
