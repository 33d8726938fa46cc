# SPDX-License-Identifier: GPL-3.0-or-later
"""The module server, with the options of openstack.cloud.server that other modules have here: floating IPs, and the
choice of a flavor by its memory.
"""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.options import Option, name_options
from ..core.values import Boolean, Integer, ListOf, Text
from ..modules.module import ABSENT, get_resource
from ..modules.server import ServerModule
from .addresses import NOUN, free_floating_ip, free_name, known_resource, outside_network_of_server

ADDRESSES = ("auto_ip", "floating_ips", "floating_ip_pools")
OWN = name_options(
    auto_ip=Option(Boolean(), "Whether the server gets a floating IP if it has none, in a cloud. Unlike in "
                   "C(openstack.cloud), only when V(true) is given. See M(magnetar.compute.floating_ip).",
                   default=False, aliases=("auto_floating_ip", "public_ip")),
    floating_ips=Option(ListOf(Text(1)), "Addresses of existing floating IPs that lead to the server."),
    floating_ip_pools=Option(ListOf(Text(1), 1), "The external network of a new floating IP, as a list of one. "
                             "Includes O(auto_ip)."),
    reuse_ips=Option(Boolean(), "Whether O(auto_ip) uses a floating IP of the project that no port has, before it "
                     "creates one.", default=True),
    delete_ips=Option(Boolean(), "With O(state=absent), whether the floating IPs of the server are removed too.",
                      default=False, aliases=("delete_fip",)),
    flavor_ram=Option(Integer(1), "In place of O(flavor): the smallest flavor with at least this memory in MiB."),
    flavor_include=Option(Text(1), "With O(flavor_ram), only flavors whose name contains this text."),
)


class CloudServerModule(ServerModule):
    """The module server, which also gives a server of a cloud its floating IPs."""

    def __init__(self):
        super().__init__()
        self.options = self.options + OWN

    @property
    def rules(self):
        rules = super().rules
        return dict(rules, mutually_exclusive=rules["mutually_exclusive"] + [["flavor", "flavor_ram"]])

    def execute(self, params, check_mode, diff_mode, client):
        self._check(params)
        _check_addresses(client, params, check_mode)
        if params["flavor_ram"] is not None and params["state"] != ABSENT:
            params = dict(params, flavor=_choose_flavor(client, params["flavor_ram"], params["flavor_include"]))
        removed = _addresses_of(client, self.key(params)) if params["delete_ips"] and params["state"] == ABSENT else []
        result = super().execute(params, check_mode, diff_mode, client)
        if params["state"] == ABSENT:
            for floating_ip in removed:
                result["changed"] |= client.delete(NOUN, floating_ip["id"], dry_run=check_mode)["changed"]
        elif any(params[option] for option in ADDRESSES):
            self._give_addresses(client, params, result, check_mode)
        return result

    def _check(self, params):
        """Raise ``InvalidField`` if an option for a single server is set together with ``servers``. Also raise it for
        an option for floating IPs without ``wait``, and for ``flavor_include`` without ``flavor_ram``."""
        for option in (*ADDRESSES, "delete_ips", "flavor_ram"):
            if params[option] and params["servers"] is not None:
                raise InvalidField(option, "is for a single server; with servers, use a task for each, or the module "
                                   "floating_ip")
            if params[option] and option in ADDRESSES and not params["wait"]:
                raise InvalidField(option, "needs wait, because the server must exist first")
        if params["flavor_include"] and params["flavor_ram"] is None:
            raise InvalidField("flavor_include", "goes with flavor_ram")

    def _give_addresses(self, client, params, result, check_mode):
        """Associate the floating IPs that *params* request with the server, and add the changes to *result*, the module
        result.
        """
        server = result["server"]
        new = check_mode and known_resource(client, "server", self.key(params), "name", True) is None
        floating_ips = [] if new else client.list(NOUN)
        changed = bool(new)
        for address in () if new else params["floating_ips"] or ():
            floating_ip = known_resource(client, NOUN, address, "floating_ips", check_mode)
            changed |= floating_ip is None or client.ensure(
                NOUN, floating_ip["id"], {"server": server["id"]}, dry_run=check_mode)["changed"]
        pools = params["floating_ip_pools"]
        has_one = any(floating_ip["server"] == server["id"] for floating_ip in floating_ips)
        if (params["auto_ip"] or pools) and not new and not has_one and not params["floating_ips"]:
            changed |= self._new_address(client, params, server, floating_ips, check_mode)
        if changed:
            result.update(changed=True, actions=result["actions"] + [NOUN])
            if not check_mode:
                result["server"] = get_resource(client, "server", server["id"])
        if not check_mode:
            result[NOUN + "s"] = [floating_ip["floating_ip_address"] for floating_ip in client.list(NOUN)
                                  if floating_ip["server"] == server["id"]]

    def _new_address(self, client, params, server, floating_ips, check_mode):
        """Associate a floating IP with *server*: with the option ``reuse_ips``, an existing floating IP that no port
        has; otherwise, or if there is none, a new one. Return whether anything changed."""
        pools = params["floating_ip_pools"]
        network = known_resource(client, "network", pools[0], "floating_ip_pools", False)["id"] if pools else \
            outside_network_of_server(client, server)
        free = free_floating_ip(floating_ips, network) if params["reuse_ips"] else None
        key = free["id"] if free else free_name(floating_ips, server["name"])
        want = {"server": server["id"]} if free else {"server": server["id"], "network": network}
        return client.ensure(NOUN, key, want, dry_run=check_mode)["changed"]


def _check_addresses(client, params, check_mode):
    """Check the options for floating IPs before the server is created. If one of them is set, raise an error if
    *client* is connected to a single host. Also raise an error if a floating IP in ``floating_ips`` does not exist,
    except in check mode."""
    option = next((option for option in (*ADDRESSES, "delete_ips") if params[option]), None)
    if option is None:
        return
    if not client.of_cloud and not client.info().get("cloud"):
        raise InvalidField(option, "is for a cloud; networks of one host have no floating IPs")
    for address in params["floating_ips"] or ():
        known_resource(client, NOUN, address, "floating_ips", check_mode)


def _addresses_of(client, key):
    """Return the floating IPs of the server with the name or uuid *key*; none if there is no such server."""
    server = known_resource(client, "server", key, "name", True)
    return [] if server is None else [floating_ip for floating_ip in client.list(NOUN)
                                      if floating_ip["server"] == server["id"]]


def _choose_flavor(client, ram, part):
    """Return the name of the flavor with the least memory of at least *ram* MiB, whose name contains *part* (``None``:
    any). Raises ``InvalidField``.
    """
    fitting = [flavor for flavor in client.list("flavor") if flavor["ram"] >= ram and (part or "") in flavor["name"]]
    if not fitting:
        raise InvalidField("flavor_ram", "no flavor%s has that much memory" % (
            " with %s in its name" % part if part else ""), ram)
    return min(fitting, key=lambda flavor: (flavor["ram"], flavor["vcpus"], flavor["disk"], flavor["name"]))["name"]
