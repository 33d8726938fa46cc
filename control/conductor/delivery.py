# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host must have before a server can be there: networks, images, key pairs. Each is brought once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from magnetar_core.client import Client

from .work import Work


def networks(work: Work, client: Client, host: str, nics: Sequence[Mapping[str, Any]]) -> None:
    """Make the networks of the NICs on the host."""
    for nic in nics:
        key = ("network", host, nic["network_id"])
        if key in work.conductor.delivery.known:
            continue
        wish = work.conductor.services.network.on_host(nic["network_id"])
        if wish:
            client.ensure("network", wish["name"], wish)
        work.conductor.delivery.known.add(key)


def image(work: Work, client: Client, host: str, id: str) -> None:
    """Bring the image to the host."""
    work.conductor.delivery.image(client, host, id, work.context())


def keypair(work: Work, client: Client, host: str) -> str:
    """Make the key pair on the host. Its name there, which is returned, has a hash of the key: users may reuse
    names."""
    public = str(work.request["public_key"])
    name = f"{work.server.key_name}-{hashlib.sha256(public.encode()).hexdigest()[:12]}"
    key = ("keypair", host, name)
    if key not in work.conductor.delivery.known:
        client.ensure("keypair", name, {"public_key": public})
        work.conductor.delivery.known.add(key)
    return name
