# SPDX-License-Identifier: GPL-3.0-or-later
"""The addresses of a server, which follow from its NICs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def addresses_of_nics(nics: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the addresses in Nova's form, by network name: those of the network service, else those that the host
    knows."""
    heard = {one["mac"]: one for found in known.values() for one in found}
    shown: dict[str, list[dict[str, Any]]] = {}
    for nic in nics:
        given = [ip["ip_address"] for ip in nic.get("fixed_ips") or ()]
        if not given and nic["mac"] in heard:
            given = [heard[nic["mac"]]["addr"]]
        shown.setdefault(nic["network"], []).extend(
            {"version": 6 if ":" in address else 4, "addr": address, "OS-EXT-IPS:type": "fixed",
             "OS-EXT-IPS-MAC:mac_addr": nic["mac"]} for address in given)
    return shown
