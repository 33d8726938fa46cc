# SPDX-License-Identifier: GPL-3.0-or-later
"""What has the metadata service look at a guest's taps."""

from __future__ import annotations

from magnetar_agent.metadata.service import TAPS, MetadataService
from tests.support.agent.pair import Pair


def test_the_first_guest_of_a_host_comes_running(pair: Pair) -> None:
    """libvirt tells of it before the host has the server's document, and nothing after that."""
    host = pair.two.agent.host
    service = MetadataService(host)
    pair.two.fake.on_event(service._happened)
    host.documents.listen(service._written)
    id = pair.make()
    pair.migrate(type="live")
    assert (TAPS, id) in [service._todo.get_nowait() for _at in range(service._todo.qsize())]
