# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules of what only a cloud has: compute_service, cell, and reports of these and of hypervisors, limits, zones,
instance actions."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.kinds import AvailabilityZone, Cell, ComputeService, Hypervisor, InstanceAction, Limits
from ..core.options import Option, collect, given
from ..core.values import Integer, Text
from . import results
from .resource import InfoFace, ResourceFace


def only_of_clouds(client, name):
    """Raise ``InvalidField`` where an agent is asked."""
    if client.host is None:
        raise InvalidField("cloud", "is required: %s is about a cloud, and %s is an agent. Name a cloud of "
                           "clouds.yaml, or give the API of one as endpoint" % (name, client.endpoint))


class ServiceFace(ResourceFace):
    """There is one for each host: it is never made, and only changed."""

    kind = ComputeService
    rules = {}
    replaced = ("name",)
    own = collect(name=Option(Text(1, 255), "The host's name.", required=True, aliases=("host",)))

    def common(self):
        return ()

    def want(self, params):
        return given(self.taken, params)

    def execute(self, params, check_mode, diff_mode, client):
        only_of_clouds(client, self.name)
        answer = client.ensure(self.kind.noun, params["name"], self.want(params), dry_run=check_mode,
                               wait=params["wait"], timeout=params["timeout"])
        return results.changed(self.kind.noun, params["name"], answer, diff_mode)


class CellFace(ResourceFace):
    kind = Cell
    rules = {}
    replaced = ("name",)
    own = collect(name=Option(Text(1, 255), "The name.", required=True))
    on_immutable = ("fail", "ignore")
    on_immutable_doc = "and nothing of a cell is."

    def execute(self, params, check_mode, diff_mode, client):
        only_of_clouds(client, self.name)
        return super().execute(dict(params, id=None), check_mode, diff_mode, client)


class CloudInfoFace(InfoFace):
    """Reports what a cloud has of *kind*. *named*: whether there are many, each with a name."""

    def __init__(self, kind, named=True):
        self.named = named
        super().__init__(kind)

    def _selecting(self):
        if self.named:
            return super()._selecting()
        return ()

    def execute(self, params, check_mode, diff_mode, client):
        only_of_clouds(client, self.name)
        if self.named:
            return super().execute(params, check_mode, diff_mode, client)
        return {"changed": False, self.kind.plural: client.list(self.kind.noun)}


class ActionInfoFace(CloudInfoFace):
    """Of one server."""

    def _selecting(self):
        return collect(
            server=Option(Text(1, 255), "The server, by name or uuid; one that was deleted by uuid.", required=True,
                          aliases=("name",)),
            id=Option(Text(), "Only the request of this id, with its events.", aliases=("request_id",)),
            limit=Option(Integer(1), "Report this many at most, the latest."),
        )

    def execute(self, params, check_mode, diff_mode, client):
        only_of_clouds(client, self.name)
        query = {name: params[name] for name in ("server", "id", "limit")}
        return {"changed": False, self.kind.plural: client.list(self.kind.noun, **query)}


MODULES = {
    "compute_service": ServiceFace(), "compute_service_info": CloudInfoFace(ComputeService),
    "cell": CellFace(), "cell_info": CloudInfoFace(Cell), "hypervisor_info": CloudInfoFace(Hypervisor),
    "instance_action_info": ActionInfoFace(InstanceAction), "limits_info": CloudInfoFace(Limits, named=False),
    "availability_zone_info": CloudInfoFace(AvailabilityZone, named=False),
}
