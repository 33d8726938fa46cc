# SPDX-License-Identifier: GPL-3.0-or-later
"""The module floating_ip. Floating IPs of openstack.cloud have no name: their address or their server finds them."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.kinds.common import NONE, REFERENCE
from ..core.kinds.networking import FloatingIp
from ..core.options import Option, name_options
from ..core.values import Boolean
from ..modules import results
from ..modules.module import ABSENT
from ..modules.resource import ResourceModule
from .addresses import NOUN, free_floating_ip, free_name, known_resource, list_server_ports, outside_network_of_server

#: Options for floating IPs without a name.
NAMELESS = ("nat_destination", "purge", "reuse")


class FloatingIpModule(ResourceModule):
    """The module floating_ip. With O(name) or O(id) it manages that floating IP; otherwise it finds the floating IP by
    its address, server or network, as openstack.cloud.floating_ip does.
    """

    kind = FloatingIp
    rules = {"required_one_of": [["name", "id", "server", "floating_ip_address", "network"]]}
    state_doc = ("V(present) creates a missing floating IP, and updates given options that differ. V(absent) removes "
                 "it. Without O(name) and O(id), V(absent) only takes the floating IPs from their servers, unless "
                 "O(purge).")
    own = name_options(
        nat_destination=Option(REFERENCE, "Without O(name): the network of the server's port, by name or uuid, if the "
                               "server has several.", aliases=("fixed_network", "internal_network")),
        reuse=Option(Boolean(), "Without O(name): whether a floating IP that no port has is used before a new one is "
                     "created.", default=False),
        purge=Option(Boolean(), "Without O(name), with O(state=absent): whether the floating IPs are removed.",
                     default=False))

    def execute(self, params, check_mode, diff_mode, client):
        if params["name"] is not None or params["id"] is not None:
            for option in NAMELESS:
                if params[option]:
                    raise InvalidField(option, "is for a floating IP without name; leave name and id out")
            return super().execute(params, check_mode, diff_mode, client)
        search = _Search(client, params, check_mode)
        if params["state"] == ABSENT:
            return self._release(search, params, check_mode, diff_mode, client)
        if search.assumed:
            return {"changed": True, NOUN: None, "actions": ["make"], "changes": {}}
        return super().execute(dict(params, **search.target()), check_mode, diff_mode, client)

    def _release(self, search, params, check_mode, diff_mode, client):
        """Dissociate the floating IPs that *search* (a ``_Search``) finds from their ports, or remove them if the
        option ``purge`` is set. Return the module result. ``changed`` and ``actions`` cover all these floating IPs, the
        other keys only the last one."""
        result = {"changed": False, NOUN: None, "actions": [], "changes": {}}
        for floating_ip in search.matching():
            waiting = {"dry_run": check_mode, "wait": params["wait"], "timeout": params["timeout"]}
            if params["purge"]:
                answer = client.delete(NOUN, floating_ip["id"], **waiting)
            else:
                answer = client.ensure(NOUN, floating_ip["id"], {"port": NONE}, **waiting)
            released = results.module_result(NOUN, floating_ip["name"], answer, diff_mode)
            result = dict(released, changed=result["changed"] or released["changed"],
                          actions=result["actions"] + released.get("actions", []))
        return result


class _Search:
    """A search for the floating IPs that a task manages if the task sets neither name nor id. The module parameters
    *params* select them by address, server and network. *check_mode*: missing resources are no error."""

    def __init__(self, client, params, check_mode):
        self.client, self.params = client, params
        self.address = params["floating_ip_address"]
        self.server = self._resource("server", "server", check_mode)
        self.network = self._resource("network", "network", check_mode)
        self.inside = self._resource("network", "nat_destination", check_mode)
        #: Whether an earlier task will create what this one needs (check mode).
        self.assumed = any(params[option] is not None and resource is None for option, resource in (
            ("server", self.server), ("network", self.network), ("nat_destination", self.inside)))
        self.floating_ips = client.list(NOUN)
        self.port = None if self.assumed else self._port()

    def _resource(self, noun, option, assumed):
        key = self.params[option]
        return None if key is None else known_resource(
            self.client, noun, REFERENCE.check(key, option), option, assumed or self.params["state"] == ABSENT)

    def _port(self):
        """Return the port that the floating IP must lead to: a port in the network ``nat_destination``. If the options
        ``server`` and ``fixed_ip_address`` are set, the port must match them too. Return ``None`` if
        ``nat_destination`` is not set. Raises ``InvalidField`` if no port or several ports match, or if
        ``fixed_ip_address`` is set without ``server`` and ``nat_destination``. With state absent, return the first
        matching port, or ``None``."""
        address = self.params["fixed_ip_address"]
        if self.inside is None:
            if address and not self.server:
                raise InvalidField("fixed_ip_address", "needs server or nat_destination, to find its port")
            return None
        ports = list_server_ports(self.client, self.server) if self.server else self.client.list("port")
        ports = [port for port in ports if port["network"] == self.inside["id"]
                 and (not address or address in [fixed["ip_address"] for fixed in port["fixed_ips"]])]
        if len(ports) == 1 or self.params["state"] == ABSENT:
            return ports[0] if ports else None
        raise InvalidField("nat_destination", "must have one port of the server or address; it has %d" % len(ports),
                           self.params["nat_destination"])

    def matching(self):
        """Return the existing floating IPs that match the module parameters."""
        if self.assumed:
            return []
        address = self.params["fixed_ip_address"]
        if not (self.address or self.server or self.port or self.network):
            return []
        return [floating_ip for floating_ip in self.floating_ips
                if self.address in (None, floating_ip["floating_ip_address"])
                and (self.server is None or self._freely_named() or floating_ip["server"] == self.server["id"])
                and (self.port is None or self._freely_named() or floating_ip["port"] == self.port["id"])
                and (self.network is None or floating_ip["network"] == self.network["id"])
                and (not address or self._freely_named() or floating_ip["fixed_ip_address"] == address)]

    def _freely_named(self):
        """Return whether the option ``floating_ip_address`` alone identifies the floating IP. Its present server and
        port may then differ from those of the task, because the task will change them.
        """
        return self.address is not None and self.params["state"] != ABSENT

    def target(self):
        """Return the module parameters for the floating IP: its id, or the name and network for a new floating IP, and
        the server or port that it is to lead to.
        """
        leads_to = {"server": None if self.port or not self.server else self.server["id"],
                    "port": self.port["id"] if self.port else self.params["port"]}
        matching = self.matching()
        if len(matching) > 1 and not self.server and not self.port:
            raise InvalidField("network", "has %d floating IPs of the project; name one with floating_ip_address"
                               % len(matching))
        if matching:
            floating_ip = matching[0]
            self._refuse_theft(floating_ip)
            return dict(leads_to, id=floating_ip["id"], network=None, floating_ip_address=None)
        network = self.network["id"] if self.network else None
        free = free_floating_ip(self.floating_ips, network) if self.params["reuse"] and not self.address else None
        if free:
            return dict(leads_to, id=free["id"], network=None)
        if network is None and (self.address or not self.server):
            raise InvalidField("network", "is required for a new floating IP")
        label = self.address or (self.server or self.network)["name"]
        return dict(leads_to, name=self.address or free_name(self.floating_ips, label),
                    network=network or outside_network_of_server(self.client, self.server))

    def _refuse_theft(self, floating_ip):
        """Raise ``InvalidField`` if *floating_ip* is associated with a server other than the server of the task."""
        other = floating_ip["server"]
        if self.server and other not in (None, self.server["id"]):
            raise InvalidField("floating_ip_address", "leads to server %s; take it from there first, with state absent"
                               % other, self.address)
