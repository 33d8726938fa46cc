# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules adopt and adopt_info, which make servers of libvirt domains that other programs have defined."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.kinds import Adoption
from .info import InfoModule
from .module import key_from_params
from .resource import ResourceModule

RELEASED = "released"


class AdoptModule(ResourceModule):
    """The module adopt. It makes an existing libvirt domain a server of the agent or of a cloud ("adopts" it), or ends
    the adoption."""

    kind = Adoption
    removed = RELEASED
    state_doc = ("V(present) adopts the domain. V(released) ends that: the domain and its disks stay as they are, and "
                 "the agent or the cloud forgets the server.")
    on_immutable = ("fail", "ignore")
    on_immutable_doc = "which is the O(server_name) of a domain that is adopted already."

    def __init__(self):
        super().__init__()
        self.name = "adopt"

    def key(self, params):
        """Return the key of the libvirt domain: its name or uuid, or ``HOST:DOMAIN`` if the option ``host`` is set,
        which is for clouds only."""
        key = key_from_params(params)
        return "%s:%s" % (params["host"], key) if params.get("host") else key

    def want(self, params):
        """Return the desired fields of the resource, without ``host``, which is a part of the key."""
        want = super().want(params)
        want.pop("host", None)
        if params.get("host"):
            want.pop("name", None)
        return want

    def execute(self, params, check_mode, diff_mode, client):
        if params.get("host") and not client.of_cloud:
            raise InvalidField("host", "is for a cloud, and %s is the agent of one host. Leave it out"
                               % client.endpoint)
        return super().execute(params, check_mode, diff_mode, client)


class AdoptInfoModule(InfoModule):
    """The module adopt_info, which reports libvirt domains: those that can be adopted, those that cannot, and those
    that are adopted already.
    """

    kind = Adoption

    def __init__(self):
        super().__init__()
        self.name = "adopt_info"
