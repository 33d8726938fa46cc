# SPDX-License-Identifier: GPL-3.0-or-later
"""Witnesses of a silent host: whether this conductor, or other hosts of the cell, still reach it over the network."""

from __future__ import annotations

import logging
import random
from typing import NamedTuple

from magnetar_control.agents import PATIENCE
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_core.errors import MagnetarError
from magnetar_core.http.endpoint import Endpoint, parse_endpoint
from magnetar_core.http.reach import is_host_reached

log = logging.getLogger(__name__)
#: The most hosts that are asked.
PEERS = 3
#: The usual port of endpoints over SSH, which name none.
SSH = 22


class WitnessReport(NamedTuple):
    """The result of ``ask_witnesses``. *seen_by*: the conductor or host that can reach the silent host over the
    network; ``None`` if none can. *peers*: the number of other hosts that have answered yes or no; 0 if no other host
    was asked."""

    seen_by: str | None
    peers: int


def ask_witnesses(conductor: Conductor, host: str) -> WitnessReport:
    """Check whether *host* can still be reached over the network: connect to its agent's port from this conductor, and
    then from some other hosts of the cell. A refused connection also counts as reached, because it shows that the host
    runs, even if its agent does not."""
    address = parse_endpoint(conductor.endpoint(host))
    address = address._replace(port=address.port or SSH)
    is_reached = not address.host or is_host_reached(address.host, address.port)  # a unix socket is of this machine
    if is_reached is not False:
        return WitnessReport(f"conductor {conductor.name}" if is_reached else None, 0)
    peers = [name for name, row in conductor.states.rows.items()
             if row.cell_id == conductor.cell.id and name != host and conductor.is_up(name)]
    answered = 0
    for peer in random.sample(peers, min(PEERS, len(peers))):
        is_reached = _ask_peer(conductor, peer, address)
        if is_reached:
            return WitnessReport(f"host {peer}", answered + 1)
        answered += is_reached is not None
    return WitnessReport(None, answered)


def _ask_peer(conductor: Conductor, peer: str, address: Endpoint) -> bool | None:
    """Ask the agent of the host *peer* whether it can connect to *address*. Return ``None`` if the agent of *peer* does
    not answer, or answers that it does not know."""
    try:
        with conductor.client(peer, PATIENCE) as client:
            return client.reaches(address.host, address.port)
    except MagnetarError as error:
        log.info("host %s was asked about %s: %s", peer, address.host, error.message)
        return None
