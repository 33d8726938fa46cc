# SPDX-License-Identifier: GPL-3.0-or-later
"""The image store is swept when its service starts and once an hour: what crashes left is put right."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .embedded import Embedded

log = logging.getLogger(__name__)
#: Seconds between two sweeps.
EVERY = 3600.0


def sweeping(images: Embedded, every: float = EVERY) -> threading.Event:
    """Sweep now and from time to time, in a thread of its own, until the event is set."""
    over = threading.Event()

    def sweep() -> None:
        while not over.is_set():
            try:
                images.sweep()
            except Exception:
                log.exception("images are swept again in %g s", every)
            over.wait(every)

    threading.Thread(target=sweep, name="sweep images", daemon=True).start()
    return over
