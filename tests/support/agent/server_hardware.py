# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of server hardware."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from magnetar_agent.servers import spec
from tests.unit.agent.conftest import Host


def domain(host: Host, name: str = "web1") -> ET.Element:
    """Return the XML of a server's libvirt domain."""
    document = host.agent.host.documents.find("server", name)
    assert document is not None
    return ET.fromstring(host.fake.render(spec.domain_spec(host.agent.host, document)))


def canonical(text: str) -> str:
    return ET.canonicalize(text, strip_text=True)
