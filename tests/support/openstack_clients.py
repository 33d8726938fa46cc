# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenStack's Python clients, unmodified, logged in to a cloud on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cinderclient import client as cinder
from glanceclient import client as glance
from keystoneauth1 import adapter, session
from keystoneauth1.identity import v3
from keystoneclient.v3 import client as keystone
from neutronclient.v2_0 import client as neutron
from novaclient import client as nova
from openstack.connection import Connection
from osc_placement.http import SessionClient

#: The newest microversions that the clients know.
NOVA, CINDER, PLACEMENT = "2.96", "3.70", "1.39"


@contextmanager
def logged_in(port: int, user: str, password: str, project: str) -> Iterator[session.Session]:
    """Yield a session of *user* for *project*, with the cloud at *port*."""
    made = session.Session(auth=v3.Password(
        auth_url=f"http://127.0.0.1:{port}/identity/v3", username=user, password=password, project_name=project,
        user_domain_id="default", project_domain_id="default"))
    yield made
    made.session.close()


def all_clients(keystone_session: session.Session) -> dict[str, Any]:
    """Return the clients of all services by the names of their projects."""
    return {
        "keystoneclient": keystone.Client(session=keystone_session),
        "glanceclient": glance.Client("2", session=keystone_session),
        "neutronclient": neutron.Client(session=keystone_session),
        "cinderclient": cinder.Client(CINDER, session=keystone_session),
        "novaclient": nova.Client(NOVA, session=keystone_session),
        "osc-placement": SessionClient(keystone_session, {"service_type": "placement"}, PLACEMENT),
        "openstacksdk": Connection(session=keystone_session),
        "keystoneauth": adapter.Adapter(keystone_session),
    }
