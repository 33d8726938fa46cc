# SPDX-License-Identifier: GPL-3.0-or-later
"""What OVN's southbound database knows of chassis, for ports whose chassis is none of the cloud's hosts: that of a
SmartNIC, whose ovn-controller says which card it is on (``ovn-cms-options``, Neutron's *Off-path SmartNIC DPUs*).
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from ovsdbapp.backend.ovs_idl import connection

from magnetar_core.errors import Unavailable

from . import ovn_servers

log = logging.getLogger(__name__)
CHASSIS = "Chassis"
#: The key of a chassis's options for the cloud, and the word there that names a card.
OPTIONS, CARD = "ovn-cms-options", "card-serial-number"
#: Seconds between two attempts to connect for those who do not wait.
AGAIN = 2.0


class Southbound:
    """The database at *url*; *patience*: seconds for one answer. It is connected to when somebody first asks. What it
    told last is known also while it is away."""

    def __init__(self, url: str, patience: float) -> None:
        self.url, self.patience = url, patience
        self._opening, self._beginning = threading.Lock(), threading.Lock()
        self._open: connection.Connection | None = None
        self._attempt: threading.Thread | None = None
        self._over = threading.Event()
        self._tried, self._said = -AGAIN, False

    def is_known(self) -> bool:
        """Whether it has told anything, so that ``chassis`` waits for nobody; else it is connected to meanwhile."""
        if self._open is not None:
            return True
        with self._beginning:
            begun = self._attempt is not None and self._attempt.is_alive()
            if not (begun or self._over.is_set()) and time.monotonic() - self._tried > AGAIN:
                self._attempt = threading.Thread(target=self._try, name="southbound", daemon=True)
                self._attempt.start()
        return False

    def _try(self) -> None:
        try:
            self._connected()
        except Unavailable as error:
            if not self._said:
                log.warning("ports of SmartNICs wait: %s", error.message)
            self._said = True
        self._tried = time.monotonic()

    def chassis_of(self, serial: str) -> str | None:
        """Name of the chassis on the card of a *serial* number, ``None`` where no ovn-controller says that it is there.
        Raises ``Unavailable`` where the database never answered."""
        return self.chassis().get(serial)

    def chassis(self) -> dict[str, str]:
        """Serial number of each card to the name of the chassis on it, of several the first by name. Raises
        ``Unavailable`` as ``chassis_of`` does."""
        open_ = self._connected()
        with open_.lock:
            rows = sorted(open_.idl.tables[CHASSIS].rows.values(), key=lambda row: row.name, reverse=True)
            return {one.removeprefix(f"{CARD}="): row.name for row in rows for one in _options(row)
                    if one.startswith(f"{CARD}=")}

    def close(self) -> None:
        """End the connection, for good; one that is being made ends by itself."""
        self._over.set()
        if not self._opening.acquire(timeout=1.0):
            return
        try:
            if self._open is not None:
                self._open.stop(timeout=self.patience)
                self._open = None
        finally:
            self._opening.release()

    def _connected(self) -> connection.Connection:
        with self._opening:
            if self._open is None:
                try:
                    made = ovn_servers.opened(self.url, ovn_servers.SOUTHBOUND, (CHASSIS,), self.patience, leader=False)
                except Exception as error:
                    raise Unavailable(f"The southbound database of OVN at {self.url}, which knows the chassis of "
                                      f"SmartNICs, does not answer: {error}. See to ovsdb-server there, and to the "
                                      "settings ovn_southbound, ovn_key, ovn_cert and ovn_ca_cert.",
                                      everywhere=True) from error
                if self._over.is_set():
                    made.stop(timeout=self.patience)
                    raise Unavailable("The network service ends.")
                self._open = made
            return self._open


def _options(row: Any) -> list[str]:
    """Those of a chassis: ovn-controller of today has them in ``other_config``, that of before in ``external_ids``."""
    return [one.strip() for column in ("other_config", "external_ids") if hasattr(row, column)
            for one in getattr(row, column).get(OPTIONS, "").split(",")]
