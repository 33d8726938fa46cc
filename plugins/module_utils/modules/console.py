# SPDX-License-Identifier: GPL-3.0-or-later
"""The module console_info, which requests the URLs of a console of a cloud's server."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.options import Option, name_options
from ..core.values import Choices, Text
from .module import Module, key_from_params


class ConsoleInfoModule(Module):
    """The module console_info, which requests the URLs of a server's console from a cloud."""

    name = "console_info"
    rules = {"required_one_of": [["name", "id"]]}
    options = name_options(
        name=Option(Text(1, 255), "Name or uuid of the server.", aliases=("server",)),
        id=Option(Text(1, 255), "Uuid of the server, in place of O(name)."),
        type=Option(Choices("novnc", "spice-html5", "serial"), "V(novnc) is the screen with keyboard and mouse, "
                    "V(spice-html5) the same over SPICE, where the server's host has it, V(serial) the serial line.",
                    default="novnc"),
    )

    def check_endpoint(self, client):
        if not client.of_cloud:
            raise InvalidField("cloud", "is required: URLs of consoles are those of a cloud, and %s is an agent. On "
                               "its host, `magnetar console NAME` shows the serial console" % client.endpoint)

    def execute(self, params, check_mode, diff_mode, client):
        return {"changed": False, "console": client.open_console(key_from_params(params), params["type"])}
