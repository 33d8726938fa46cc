# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource driver of flavor. Servers keep the sizes that they were made with, so a flavor may always be removed."""

from __future__ import annotations

from magnetar_core.kinds import Flavor

from .document import DocumentDriver


class FlavorDriver(DocumentDriver):
    """The resource driver of flavors, which are only stored and need nothing on the host."""

    def __init__(self) -> None:
        super().__init__(Flavor)
