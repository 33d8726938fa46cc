# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded network service: the parts of Neutron's API v2.0 that servers need. Without an engine, each agent makes
the networks on its own host. An engine (``engine.py``) makes networks that connect hosts."""

from __future__ import annotations

from magnetar_control.services.network.engine.engine import NetworkEngine
from magnetar_control.services.network.engine.worker import Wait
from magnetar_control.settings import Settings
from magnetar_core.errors import InvalidSettings

from .embedded import EmbeddedNetworks

__all__ = ["EmbeddedNetworks", "Wait", "engine_of"]


def engine_of(settings: Settings) -> NetworkEngine | None:
    """Return the network engine (OVN) that *settings* configure; ``None`` if they configure none: then each host's
    agent makes the networks of its host. Raises ``InvalidSettings``."""
    url, south = settings.ovn_northbound, settings.ovn_southbound
    if url is None and south is not None:
        raise InvalidSettings("ovn_southbound needs ovn_northbound too.")
    if url is None:
        return None
    files = {name: getattr(settings, name) for name in ("ovn_key", "ovn_cert", "ovn_ca_cert")}
    for name, where in {"ovn_northbound": url, **({} if south is None else {"ovn_southbound": south})}.items():
        for address in where.split(","):
            if not address.strip().startswith(("ssl:", "tcp:", "unix:")):
                raise InvalidSettings(f"{name} must be ssl:ADDRESS:PORT, tcp:ADDRESS:PORT or unix:/path, several "
                                      f"joined by commas, and is {where!r}.")
        if "ssl:" in where and (lacks := [name for name, file in files.items() if file is None]):
            raise InvalidSettings(f"{name} is by ssl, which needs {', '.join(lacks)} too.")
    from magnetar_control.services.network.ovn.ovn import OvnEngine  # slow, and most clouds do not need it

    return OvnEngine(url, files["ovn_key"], files["ovn_cert"], files["ovn_ca_cert"], south=south)
