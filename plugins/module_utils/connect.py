# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection of a task to the agent or cloud that its parameters name."""

from __future__ import annotations

from . import clouds
from .core.http.client import Client
from .core.http.login import Login
from .core.options import CONNECTION, check_options, client_arguments


def connect_client(params):
    """Return a client for the endpoint or cloud in the module parameters *params*. Raises ``InvalidField``."""
    check_options(CONNECTION, params)
    arguments = client_arguments(params)
    described = clouds.read_cloud_entry(params)
    if described is not None:
        return Client(**dict(arguments, login=Login(described, arguments["connect_timeout"])))
    if str(arguments["endpoint"]).startswith("ssh:"):
        from .ssh.dial import SshDial

        arguments["dial"] = SshDial(arguments["endpoint"], params.get("ssh_private_key"), params.get("ssh_known_hosts"))
    return Client(**arguments)
