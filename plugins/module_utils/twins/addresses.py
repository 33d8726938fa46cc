# SPDX-License-Identifier: GPL-3.0-or-later
"""The search for floating IPs, and for the external network of a server, which openstack.cloud leaves to the module."""

from __future__ import annotations

from ..core.errors import InvalidField, NotFound

NOUN = "floating_ip"


def known_resource(client, noun, key, option, assumed):
    """Return the resource *key* of the type *noun*. If it does not exist, return ``None`` if *assumed*, otherwise raise
    ``NotFound``. *assumed*: a missing resource is accepted, for example because an earlier task creates it (check
    mode). *option*: the module option that contains *key*, for the error message."""
    try:
        return client.get(noun, key)
    except NotFound as error:
        if assumed:
            return None
        raise NotFound("%s: there is no %s %s in this project." % (option, noun.replace("_", " "), key),
                       **error.details) from None


def list_server_ports(client, server):
    """Return the ports of *server*, a server of a cloud."""
    return client.list("port", device_id=server["id"])


def outside_network_of_server(client, server):
    """Return the uuid of the external network to which routers connect the subnets of *server*. Raises ``InvalidField``
    if there is no such network, or more than one."""
    subnets = {address["subnet"] for port in list_server_ports(client, server) for address in port["fixed_ips"]}
    networks = sorted({router["external_network"] for router in client.list("router")
                       if router["external_network"] and subnets & set(router["interfaces"])})
    if len(networks) != 1:
        reason = "routers lead from its subnets to %s" % ", ".join(networks) if networks else \
            "no router leads from one of its subnets to an external network"
        raise InvalidField("network", "is required for a floating IP of server %s: %s" % (server["name"], reason))
    return networks[0]


def free_name(floating_ips, wanted):
    """Return a name for a new floating IP: *wanted*, or *wanted* with a number appended if one of *floating_ips* has
    this name already."""
    taken = {floating_ip["name"] for floating_ip in floating_ips}
    names = [wanted] + ["%s-%d" % (wanted, number) for number in range(2, len(taken) + 3)]
    return next(name for name in names if name not in taken)


def free_floating_ip(floating_ips, network):
    """Return the first of *floating_ips* that has neither a port nor port forwardings; ``None`` if there is none.
    *network*: the uuid of the external network that the floating IP must be in; ``None``: any network."""
    return next((floating_ip for floating_ip in floating_ips if floating_ip["port"] is None
                 and not floating_ip.get("port_forwardings") and network in (None, floating_ip["network"])), None)
