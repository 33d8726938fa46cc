# SPDX-License-Identifier: GPL-3.0-or-later
"""Volume types: one for each pool that the agents have (their setting ``pools``). Its uuid follows from the name."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar_core.errors import NotFound

NAMESPACE = uuid.UUID("0d4f4a51-7b3f-5a55-8f0c-2f9f4d1d9c07")


@dataclass(frozen=True)
class Types:
    """Those of the *pools*, of which the first is the default."""

    pools: Sequence[str]

    def id(self, name: str) -> str:
        """Uuid of the type of this name."""
        return str(uuid.uuid5(NAMESPACE, name))

    def named(self, given: str | None) -> str:
        """Name of the type that *given* (a name, a uuid, or nothing) is; raises ``NotFound``."""
        if not given:
            return self.pools[0]
        for name in self.pools:
            if given in (name, self.id(name)):
                return name
        raise NotFound(f"Volume type {given} could not be found. There are: {', '.join(self.pools)}.")
