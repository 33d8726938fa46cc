# SPDX-License-Identifier: GPL-3.0-or-later
"""What OVN's southbound database knows of chassis, for ports whose chassis is none of the cloud's hosts: that of a
SmartNIC, whose ovn-controller says which card it is on (``ovn-cms-options``, Neutron's *Off-path SmartNIC DPUs*).
"""

from __future__ import annotations

import threading
from typing import Any

from ovsdbapp.backend.ovs_idl import connection

from magnetar_core.errors import Unavailable

from . import ovn_servers

CHASSIS = "Chassis"
#: The key of a chassis's options for the cloud, and the word there that names a card.
OPTIONS, CARD = "ovn-cms-options", "card-serial-number"


class Southbound:
    """The database at *url*; *patience*: seconds for one answer. It is connected to when somebody first asks. What it
    told last is known also while it is away."""

    def __init__(self, url: str, patience: float) -> None:
        self.url, self.patience = url, patience
        self._opening = threading.Lock()
        self._open: connection.Connection | None = None

    def chassis_of(self, serial: str) -> str | None:
        """Name of the chassis on the card of a *serial* number; of several the first by name. ``None`` where no
        ovn-controller says that it is there. Raises ``Unavailable`` where the database never answered."""
        wanted = f"{CARD}={serial}"
        open_ = self._connected()
        with open_.lock:
            rows = list(open_.idl.tables[CHASSIS].rows.values())
            return min((row.name for row in rows if wanted in _options(row)), default=None)

    def close(self) -> None:
        """End the connection."""
        with self._opening:
            if self._open is not None:
                self._open.stop(timeout=self.patience)
                self._open = None

    def _connected(self) -> connection.Connection:
        with self._opening:
            if self._open is None:
                try:
                    self._open = ovn_servers.opened(self.url, ovn_servers.SOUTHBOUND, (CHASSIS,), self.patience)
                except Exception as error:
                    raise Unavailable(f"The southbound database of OVN at {self.url}, which knows the chassis of "
                                      f"SmartNICs, does not answer: {error}. See to ovsdb-server there, and to the "
                                      "settings ovn_southbound, ovn_key, ovn_cert and ovn_ca_cert.") from error
            return self._open


def _options(row: Any) -> list[str]:
    """Those of a chassis: ovn-controller of today has them in ``other_config``, that of before in ``external_ids``."""
    return [one.strip() for column in ("other_config", "external_ids") if hasattr(row, column)
            for one in getattr(row, column).get(OPTIONS, "").split(",")]
