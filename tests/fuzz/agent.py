# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent with the fake hypervisor and something of everything, that is put back as it was after each change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from magnetar_agent.api import access
from magnetar_agent.api.app import AgentApplication
from magnetar_core.kinds import KINDS
from tests.unit.agent.conftest import SMALL, Host
from tests.unit.core.images import qcow2

from .sending import Got, Sent, Server

#: What there is, in the order in which it is made.
WANTED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("flavor", "tiny", SMALL),
    ("network", "net", {"mode": "isolated", "cidr": "192.168.100.0/24"}),
    ("volume", "disk", {"size": 1}),
    ("server", "web1", {"flavor": SMALL, "metadata": {"a": "b"}, "tags": ["a"]}),
    ("server", "web2", {"flavor": SMALL, "power": "off"}),
)

#: All kinds; those that use others come first.
NOUNS = sorted(
    (kind.noun for kind in KINDS),
    key=lambda noun: ("_" not in noun, noun not in ("migration", "server"), noun not in ("volume", "image")),
)


class FakeAgent:
    """``ask`` sends a request; ``known`` are ids and names of what is there, by the word before them in paths."""

    def __init__(self, folder: Path) -> None:
        self.host = Host(folder)
        self.host.start()
        self.application = AgentApplication(self.host.agent)
        self.server = Server(self.application, {"peer": access.Peer("root", access.OPERATE)})
        (folder / "image").write_bytes(qcow2())
        self.wanted = (("image", "cirros", {"source": {"path": str(folder / "image")}}), *WANTED)
        self.known: dict[str, list[str]] = {"operations": ["a"]}
        for noun, key, _want in self.wanted:
            self.known.setdefault(noun, []).append(key)
        self._changed = True
        self.put_back()

    def ask(self, sent: Sent) -> Got:
        """The answer, when all that it began has ended."""
        got = self.server.ask(sent)
        self._changed |= got.status == 202 or sent.method == "POST" or b'"changed":true' in got.content
        for operation in self.host.agent.host.operations.list():
            if operation.status == "running":
                operation.cancel()
            assert operation.wait(60), operation.as_dict()
        return got

    def written(self) -> list[str]:
        """What there is more or less than at the beginning."""
        have = {(one.kind, one.name) for one in self._documents()}
        return [f"{noun} {name}" for noun, name in have ^ {(noun, name) for noun, name, _want in self.wanted}]

    def put_back(self) -> None:
        """Have everything be as at the beginning."""
        if not self._changed:
            return
        self._changed = False
        for one in self._documents():
            self.host.ensure(one.kind, one.id, None)
        for noun, key, want in self.wanted:
            self.host.ensure(noun, key, want)

    def _documents(self) -> list[Any]:
        """All there are; those that use others come first."""
        return [one for noun in NOUNS for one in self.host.agent.host.documents.list(noun)]

    def close(self) -> None:
        self.application.feed.close()
        self.server.close()
        self.host.agent.close()
