# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules adopt and adopt_info, which make servers of libvirt domains that other programs have defined."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.kinds import Adoption
from .info import InfoModule
from .resource import ResourceModule

RELEASED = "released"


class AdoptModule(ResourceModule):
    """The module adopt. It makes an existing libvirt domain a server of the agent ("adopts" it), or ends the adoption.
    """

    kind = Adoption
    removed = RELEASED
    state_doc = ("V(present) adopts the domain. V(released) ends that: the domain and its disks stay as they are, and "
                 "the agent forgets the server.")
    on_immutable = ("fail", "ignore")
    on_immutable_doc = "which is the O(server_name) of a domain that is adopted already."

    def __init__(self):
        super().__init__()
        self.name = "adopt"

    def execute(self, params, check_mode, diff_mode, client):
        check_of_host(client)
        return super().execute(params, check_mode, diff_mode, client)


class AdoptInfoModule(InfoModule):
    """The module adopt_info, which reports libvirt domains: those that can be adopted, those that cannot, and those
    that are adopted already.
    """

    kind = Adoption

    def __init__(self):
        super().__init__()
        self.name = "adopt_info"

    def execute(self, params, check_mode, diff_mode, client):
        check_of_host(client)
        return super().execute(params, check_mode, diff_mode, client)


def check_of_host(client):
    """Raise ``InvalidField`` if *client* uses a cloud, because only agents adopt domains."""
    if client.of_cloud:
        raise InvalidField("cloud", "is not for domains of other programs, which only the agent of their host adopts. "
                                    "Name the agent as endpoint")
