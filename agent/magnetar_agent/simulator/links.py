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
    """The links of the host *name*. *find* returns the links of a reachable host by its name, ``None`` for others."""

    def __init__(self, settings: AgentSettings, name: str, loop: asyncio.AbstractEventLoop,
                 find: Callable[[str], SimulatedLinks | None]) -> None:
        super().__init__(settings)
        self.host_name, self._loop, self._find = name, loop, find

    def name(self) -> str | None:
        """Return the name of the host, in place of the common name of its certificate."""
        return self.host_name

    def close(self) -> None:
        """Cut all links; the event loop, which all hosts share, goes on."""
        for id in [*self._forwards, *self._pipes]:
            self.cut(id)

    async def _dial(self, remote: LinkAddress, door: str, end: LocalEnd) -> None:
        other = self._find(remote.peer)
        if other is None:
            raise Unreachable(f"The agent {remote.peer} at {remote.host}:{remote.port} cannot be reached: there is no "
                              "such simulated host, or it is down.", lasting=False)
        end.join(await other._admit(self.host_name, remote.id, door))  # noqa: SLF001 - of the same class
