# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud whose agents are in this process, so that tests can hold and break what they do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.agent.pair import Kvm
from tests.support.agent.pki import Pki
from tests.support.control.cloud import Cloud
from tests.support.ports import free_port

from .clouds import flavors


class Inside(Cloud):
    """``cloud.kvm["kvm1"]`` is an agent of ``tests.support.agent.pair``."""

    kvm: dict[str, Kvm]

    def __init__(self, hosts: int = 2, **settings: object) -> None:
        super().__init__(hosts, links=True, **settings)

    def _link(self) -> None:
        pki, self.kvm = Pki(self.folder / "pki"), {}
        certificate, key = pki.issue("admin")
        self.settings = {"agent_ca_cert": str(pki.ca), "agent_client_cert": str(certificate),
                         "agent_client_key": str(key), **self.settings}
        for name in self.hosts:
            port = free_port()
            self.hosts[name] = f"https://127.0.0.1:{port}"
            (self.folder / name).mkdir()
            self.kvm[name] = Kvm(self.folder, pki, name, port, **self.agent_of(name))

    def agent_of(self, name: str) -> dict[str, Any]:
        """Settings of the agent of a host beside those that all have."""
        return {}

    def start_agent(self, name: str) -> None:
        """They run already."""

    def wait_agent(self, name: str) -> None:
        """They run already."""

    def _end_agents(self) -> None:
        for kvm in self.kvm.values():
            kvm.stop()
            kvm.fake.close()


@pytest.fixture(scope="module", name="cloud")
def with_flavors() -> Iterator[Inside]:
    """Two hosts, and flavors of several sizes; shared by the tests of a module."""
    with Inside() as found:
        flavors(found)
        yield found
