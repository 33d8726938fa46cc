# SPDX-License-Identifier: GPL-3.0-or-later
"""Links between simulated hosts: they open connections as links of real hosts do, but without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.link import LinkAddress, Links
from magnetar_core.errors import Unreachable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from magnetar_agent.link.relay import LocalEnd
    from magnetar_agent.settings import AgentSettings


class SimulatedLinks(Links):
    """Connections from the simulated host *name* to other simulated hosts, for migrations and remote disks. *find*:
    returns the ``SimulatedLinks`` of the host with a given name; ``None`` if it is unknown or does not respond."""

    def __init__(self, settings: AgentSettings, name: str, loop: asyncio.AbstractEventLoop,
                 find: Callable[[str], SimulatedLinks | None]) -> None:
        super().__init__(settings)
        self.host_name, self._loop, self._find = name, loop, find

    def name(self) -> str | None:
        """Return the name of the simulated host. The base class returns the common name of the host's certificate."""
        return self.host_name

    def close(self) -> None:
        """Close all connections to other hosts. The event loop continues, because other hosts use it too."""
        for id in [*self._forwards, *self._pipes]:
            self.cut(id)

    async def _dial(self, remote: LinkAddress, endpoint: str, end: LocalEnd) -> None:
        other = self._find(remote.peer)
        if other is None:
            raise Unreachable(f"The agent {remote.peer} at {remote.host}:{remote.port} cannot be reached: there is no "
                              "such simulated host, or it is down.", lasting=False)
        end.join(await other._admit(self.host_name, remote.id, endpoint))  # noqa: SLF001 - of the same class
