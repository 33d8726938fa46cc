# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules network and router, with the forms that playbooks for openstack.cloud use."""

from __future__ import annotations

from ..core.errors import InvalidField, NotFound
from ..core.kinds.network import Network
from ..core.kinds.networking import NetworkRouter
from ..core.options import Option, name_options
from ..core.values import ListOf, Value
from ..modules.resource import ResourceModule
from .addresses import known_resource

#: Keys of an item of interfaces in openstack.cloud.
INTERFACE = ("net", "subnet", "portip")


class NetworkModule(ResourceModule):
    """The module network. If the task sets no mode, CIDR or bridge, a new network of a cloud gets the mode ovn; its
    subnets are separate resources.
    """

    kind = Network

    def ensure(self, client, key, params, waiting):
        if all(params.get(name) is None for name in ("mode", "cidr", "bridge")) and (
                client.of_cloud or client.info().get("cloud")):
            params = dict(params, mode=None if _exists(client, key) else "ovn")
        return super().ensure(client, key, params, waiting)


class RouterModule(ResourceModule):
    """The module router. Items of its option ``interfaces`` are subnets, or mappings as in openstack.cloud.router."""

    kind = NetworkRouter
    replaced = ("interfaces",)
    own = name_options(interfaces=Option(ListOf(Value()), (
        "The subnets that it is in, all of them, each by name or uuid. Or mappings as in C(openstack.cloud.router): "
        "V(subnet), and V(net) and V(portip), which must fit it: a router has the subnet's C(gateway_ip).")))

    def ensure(self, client, key, params, waiting):
        if params.get("interfaces") is not None:
            params = dict(params, interfaces=[
                _subnet(client, item, "interfaces[%d]" % at, waiting["dry_run"])
                for at, item in enumerate(params["interfaces"])])
        return super().ensure(client, key, params, waiting)

    def want(self, params):
        want = super().want(params)
        return want if params.get("interfaces") is None else dict(want, interfaces=params["interfaces"])


def _exists(client, key):
    try:
        client.get("network", key)
    except NotFound:
        return False
    return True


def _subnet(client, item, where, check_mode):
    """Return the name or uuid of the subnet in *item*, an item of the option ``interfaces``. *where*: the name of the
    item in errors, such as ``interfaces[0]``. Raises ``InvalidField``.
    """
    if not isinstance(item, dict):
        return item
    for name in item:
        if name not in INTERFACE:
            raise InvalidField("%s.%s" % (where, name), "is not known here; known are %s" % ", ".join(INTERFACE))
    if not item.get("subnet"):
        raise InvalidField(where + ".subnet", "is required; name the subnet")
    subnet = known_resource(client, "subnet", item["subnet"], where + ".subnet", check_mode)
    if subnet is None:
        return item["subnet"]
    if item.get("portip") not in (None, subnet["gateway_ip"]):
        raise InvalidField(where + ".portip", "must be the gateway_ip of the subnet, %s: routers have no other address "
                           "there" % subnet["gateway_ip"], item["portip"])
    if item.get("net"):
        network = known_resource(client, "network", item["net"], where + ".net", False)
        if network["id"] != subnet["network"]:
            raise InvalidField(where + ".net", "is not the network of subnet %s" % item["subnet"], item["net"])
    return subnet["id"]
