# SPDX-License-Identifier: GPL-3.0-or-later
"""The chassis in OVN's southbound database, for ports whose chassis is not one of the cloud's hosts but a SmartNIC. The
ovn-controller of a SmartNIC reports its serial number (``ovn-cms-options``, Neutron's *Off-path SmartNIC DPUs*)."""

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
#: The key of a chassis's options for the cloud, and the option that names a card.
OPTIONS, CARD = "ovn-cms-options", "card-serial-number"
#: Seconds between two attempts to connect in the background.
AGAIN = 2.0


class Southbound:
    """A client of OVN's southbound database at *url*, which opens the connection when it is first used. *patience*:
    seconds to wait for an answer. While the database does not answer, the client returns the last known content."""

    def __init__(self, url: str, patience: float) -> None:
        self.url, self.patience = url, patience
        self._opening, self._beginning = threading.Lock(), threading.Lock()
        self._open: connection.Connection | None = None
        self._attempt: threading.Thread | None = None
        self._over = threading.Event()
        self._tried, self._said = -AGAIN, False

    def is_known(self) -> bool:
        """Return whether ``chassis`` can answer without waiting. If it cannot, start to connect in the background."""
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
        """Return the name of the chassis on the SmartNIC with the number *serial*; ``None`` when no ovn-controller
        reports this number. Raises ``Unavailable`` if the database has never answered."""
        return self.chassis().get(serial)

    def chassis(self) -> dict[str, str]:
        """Return {serial number of a SmartNIC: name of its chassis}. If several chassis report the same number, the
        alphabetically first one counts. Raises ``Unavailable`` if the database has never answered."""
        open_ = self._connected()
        with open_.lock:
            rows = sorted(open_.idl.tables[CHASSIS].rows.values(), key=lambda row: row.name, reverse=True)
            return {option.removeprefix(f"{CARD}="): row.name for row in rows for option in _options(row)
                    if option.startswith(f"{CARD}=")}

    def close(self) -> None:
        """Close the connection permanently. If a thread is just connecting in the background, it stops by itself."""
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
                    made = ovn_servers.open_connection(self.url, ovn_servers.SOUTHBOUND, (CHASSIS,), self.patience,
                                                       leader=False)
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
    """Return the options in ``ovn-cms-options`` of the chassis *row*. Current versions of ovn-controller store them in
    the column ``other_config``, older ones in ``external_ids``."""
    return [option.strip() for column in ("other_config", "external_ids") if hasattr(row, column)
            for option in getattr(row, column).get(OPTIONS, "").split(",")]
