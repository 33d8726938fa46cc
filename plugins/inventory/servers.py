# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory plugin: servers as hosts of the inventory."""

from __future__ import annotations

DOCUMENTATION = r"""
name: servers
version_added: "0.1.0"
short_description: Servers of one or many hosts as an inventory
description:
  - Asks the agents of one or many hosts for their servers, or clouds for the servers of a project, all in parallel,
    and adds each server as a host of the inventory.
  - The name of the configuration file must be C(magnetar.yml) or C(magnetar_servers.yml), or end in C(.magnetar.yml);
    with C(.yaml) as well.
  - Each host has the variable C(magnetar), which is the server as M(magnetar.compute.server_info) reports it, and
    C(magnetar_endpoint), the endpoint of the agent (or the API of the cloud) that has it; C(magnetar_cloud) is the name
    of the cloud. C(ansible_host) is set when the address is known.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - constructed
  - inventory_cache
  - magnetar.compute.connection.inventory
options:
  plugin:
    description: Says that the file is for this plugin.
    type: str
    required: true
    choices: [magnetar.compute.servers]
  endpoints:
    description:
      - The agents and clouds to ask. Each item is an endpoint, or a mapping with O(endpoint) or O(cloud) and other
        options of the connection (such as O(token), O(ca_cert), O(ssh_private_key)); the options next to the list are
        the defaults of the items.
      - Without it, O(endpoint) is the only one, or else O(cloud).
    type: list
    elements: raw
  strict_endpoints:
    description:
      - Whether an unreachable agent is an error. If not, there is a warning, and its servers are missing.
    type: bool
    default: true
  filters:
    description:
      - Only servers that match all of these. A key is one of O(group_by), C(name) or C(id); its value is a text, a
        pattern such as V(web*), or a list of alternatives.
      - C(metadata) may be a mapping as well.
    type: dict
    default: {}
  hostnames:
    description:
      - 'Sources of the host''s name in order of preference: keys of O(group_by), or V(name), or V(id). The first key
        that the server has is used.'
      - Servers that would have the same name get the beginning of their uuid appended, with a warning.
    type: list
    elements: str
    default: [name]
  address_networks:
    description:
      - Networks for C(ansible_host), in order of preference. Without it, the first network with an address.
      - Another choice is an expression for C(ansible_host) in O(compose).
    type: list
    elements: str
    default: []
  address_versions:
    description: IP versions of C(ansible_host), in order of preference.
    type: list
    elements: int
    choices: [4, 6]
    default: [4, 6]
  group_by:
    description:
      - Groups for values of these keys, named C(KEY_VALUE), such as C(status_ACTIVE). Characters that group names
        cannot have become C(_).
      - Keys are V(availability_zone), V(flavor), V(host), V(image), V(key_name), V(network), V(power_state),
        V(status), V(tags), and V(metadata.KEY) for each key of the metadata.
      - An item may be a mapping with C(key) and C(prefix), which stands in place of the key.
      - This takes a small part of the time that O(keyed_groups) takes.
    type: list
    elements: raw
    default: []
  group_prefix:
    description: Prefix of the names of all groups of O(group_by).
    type: str
    default: ""
notes:
  - Options of the connection may be templates, such as lookups of secrets. Paths of files are relative to the
    configuration file.
requirements:
  - paramiko 2.12 or newer, for C(ssh) endpoints
seealso:
  - module: magnetar.compute.server_info
"""

EXAMPLES = r"""
# magnetar.yml: the servers of this host
plugin: magnetar.compute.servers

---
# shop.magnetar.yml: running servers of three hosts, by role
plugin: magnetar.compute.servers
endpoints:
  - ssh://deploy@kvm1.example.org
  - ssh://deploy@kvm2.example.org
  - endpoint: https://kvm3.example.org:6553
    token: "{{ lookup('ansible.builtin.env', 'KVM3_TOKEN') }}"
filters:
  status: ACTIVE
  metadata:
    project: shop
group_by:
  - status
  - flavor
  - key: metadata.role
    prefix: role
compose:
  ansible_user: magnetar.metadata.login | default('debian')

---
# cloud.magnetar.yml: the servers of a project, with the login that clouds.yaml has
plugin: magnetar.compute.servers
cloud: shop
group_by: [status, availability_zone]

---
# magnetar_servers.yml: named by a metadata key, reached in the network mgmt, by IPv6 if possible
plugin: magnetar.compute.servers
endpoint: ssh://kvm1.example.org
ssh_private_key: ~/.ssh/id_inventory
hostnames: [metadata.fqdn, name]
address_networks: [mgmt, lan]
address_versions: [6, 4]
keyed_groups:
  - key: magnetar.networks | map(attribute='network')
    prefix: net
groups:
  big: magnetar.flavor.ram > 8192
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: ~/.cache/magnetar
"""

import difflib
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from ansible.errors import AnsibleParserError
from ansible.inventory.group import to_safe_group_name
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.errors import UnsupportedError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible.template import trust_as_template

from ansible_collections.magnetar.compute.plugins.module_utils import clouds, run
from ansible_collections.magnetar.compute.plugins.module_utils.core.errors import MagnetarError
from ansible_collections.magnetar.compute.plugins.module_utils.core.http.endpoint import ENDPOINT
from ansible_collections.magnetar.compute.plugins.module_utils.core.options import (
    CONNECTION,
    CONNECTION_FILES,
    options_spec,
)
from ansible_collections.magnetar.compute.plugins.plugin_utils import inventory_hosts

FILES = re.compile(r"(.*\.)?magnetar\.ya?ml|magnetar_servers\.ya?ml")
OPTIONS = tuple(option for option in CONNECTION if option.name != "direct")
#: Maximum number of endpoints that are queried at the same time.
CONCURRENT = 16
PAGE = 2000
#: Keys for the source of a server, stored with each server.
WHERE = ("endpoint", "cloud")
#: Texts that are neither a template nor an expression with a call.
HARMLESS = re.compile(r"[^()\[\]{}|]*")


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """The inventory plugin whose hosts are the servers of agents and clouds."""

    NAME = "magnetar.compute.servers"

    def verify_file(self, path):
        """Override ``BaseInventoryPlugin.verify_file``: return whether *path* has a file name that this plugin reads.
        """
        return super().verify_file(path) and FILES.fullmatch(os.path.basename(path)) is not None

    def parse(self, inventory, loader, path, cache=True):
        """Override ``BaseInventoryPlugin.parse``: read the inventory file *path*, and add the servers that it selects
        to *inventory*.
        """
        super().parse(inventory, loader, path, cache)
        self._check(self._read_config_data(path))
        filters = inventory_hosts.flat_filters(self.get_option("filters"))
        group_keys = [self._group(item) for item in self.get_option("group_by")]
        self._check_keys("filters", filters)
        self._check_keys("hostnames", self.get_option("hostnames"))
        self._check_keys("group_by", [key for key, _prefix in group_keys])
        servers = [server for server in self._servers(path, cache)
                   if inventory_hosts.matches_server_filters(server, filters)]
        self._add_hosts(inventory_hosts.deduplicate_servers(servers), group_keys)

    def _check(self, config):
        """Raise ``AnsibleParserError`` if *config*, the content of the inventory file, has unknown keys, ``cloud``
        together with ``endpoints``, or empty ``hostnames``.
        """
        option_names = [name for option, definition in self.option_definitions.items()
                        for name in (option, *(definition.get("aliases") or ()))]
        for key in config:
            if key not in option_names:
                near = difflib.get_close_matches(str(key), option_names, 1)
                raise AnsibleParserError("%s: is not an option of this inventory%s" % (
                    key, "; did you mean %s?" % near[0] if near else ". `ansible-doc -t inventory %s` shows them."
                    % self.NAME))
        if config.get("cloud") and config.get("endpoints") is not None:
            raise AnsibleParserError("cloud: is not asked beside endpoints; make it an item of them, {cloud: %s}."
                                     % config["cloud"])
        if not self.get_option("hostnames"):
            raise AnsibleParserError("hostnames: is empty. Say what hosts are called, or leave it out for their name.")

    def _group(self, item):
        """Return the key that groups servers, and the prefix of the group names, from *item*, an item of the option
        ``group_by``.
        """
        group = item if isinstance(item, Mapping) else {"key": item}
        if set(group) - {"key", "prefix"} or not isinstance(group.get("key"), str):
            raise AnsibleParserError("group_by: an item must be a key, or a mapping of key and prefix (got %s)." % item)
        return group["key"], self.get_option("group_prefix") + str(group.get("prefix", group["key"]))

    @staticmethod
    def _check_keys(option, keys):
        for key in keys:
            if not inventory_hosts.is_server_key(key):
                raise AnsibleParserError("%s: %s is nothing that servers have; known are %s and metadata.KEY."
                                         % (option, key, ", ".join(inventory_hosts.KEYS)))

    # Queries to the endpoints.

    def _servers(self, path, cache):
        """Return the servers of all endpoints, from the cache if it is enabled and was filled from the same endpoints.
        Each server has the additional keys ``endpoint`` and ``cloud``, which say where the server is. *path*: the
        inventory file.
        """
        key, caching = self.get_cache_key(path), self.get_option("cache")
        connections = self._connections(path)
        endpoints = [_label(connection) for connection in connections]
        if caching and cache:
            cached = self._cached(key)
            if cached.get("endpoints") == endpoints:
                return cached["servers"]
        servers, complete = self._fetch_all(connections)
        if caching and complete:
            self._cache[key] = {"endpoints": endpoints, "servers": servers}
        return servers

    def _cached(self, key):
        try:
            return self._cache[key]
        except KeyError:
            return {}

    def _connections(self, path):
        """Return the validated connection options for each item of ``endpoints``. If the inventory file *path* has no
        ``endpoints``, return a list with the options of the file itself.
        """
        items = self.get_option("endpoints")
        common = self._plain_options({option.name: self.get_option(option.name) for option in OPTIONS})
        if items is None:
            return [self._checked(common, path)]
        if not items:
            raise AnsibleParserError("endpoints: is empty. Name an endpoint, or leave it out for the local agent.")
        return [self._checked(self._item_options(at, item, common), path) for at, item in enumerate(items)]

    def _item_options(self, at, item, common):
        """Return the connection options of *item*, the item number *at* of ``endpoints``. Options that *item* does not
        set come from *common*, the options of the whole file, except endpoint and cloud.
        """
        item_options = self._plain_options(item if isinstance(item, Mapping) else {"endpoint": item})
        if not item_options.get("endpoint") and not item_options.get("cloud"):
            raise AnsibleParserError("endpoints[%d]: has no endpoint. Each item is an endpoint, or a mapping with "
                                     "endpoint or cloud." % at)
        defaults = {name: value for name, value in common.items() if name not in ("endpoint", "cloud")}
        return {**defaults, **item_options}

    def _plain_options(self, options):
        return {name: self._plain(value) for name, value in options.items() if value is not None}

    def _plain(self, value):
        """Return *value* with templates resolved and vault-encrypted texts decrypted."""
        value = self.templar.template(value)
        return str(value) if isinstance(value, str) else value

    @staticmethod
    def _checked(options, path):
        result = ArgumentSpecValidator(options_spec(OPTIONS)).validate(options)
        if result.error_messages:
            unknown = isinstance(result.errors[0], UnsupportedError)
            raise AnsibleParserError("endpoints: %s%s" % ("unknown option " if unknown else "", result.errors.msg))
        connection = result.validated_parameters
        chosen = clouds.chosen_cloud(connection)
        if chosen is None:
            connection["endpoint"] = connection.get("endpoint") or ENDPOINT
        elif chosen[0] == clouds.ONLY:
            connection["cloud"] = _only_cloud()
        for name in CONNECTION_FILES:
            if connection.get(name):
                connection[name] = os.path.join(os.path.dirname(os.path.abspath(path)),
                                                os.path.expanduser(connection[name]))
        return connection

    def _fetch_all(self, connections):
        """Return the servers of all endpoints and clouds in *connections*, and whether all of these have answered."""
        with ThreadPoolExecutor(min(CONCURRENT, len(connections))) as pool:
            answers = list(pool.map(_fetch, connections))
        failed = [answer for answer in answers if isinstance(answer, MagnetarError)]
        for error in failed:
            if self.get_option("strict_endpoints"):
                raise AnsibleParserError("%s (strict_endpoints: false goes on without it.)" % error.message)
            self.display.warning("%s Its servers are missing." % error.message)
        return [server for answer in answers if not isinstance(answer, MagnetarError) for server in answer], not failed

    # Filling of the inventory.

    def _add_hosts(self, servers, group_keys):
        called, shared = inventory_hosts.host_names(servers, self.get_option("hostnames"))
        if shared:
            self.display.warning("Several servers are called %s; each has got the beginning of its uuid appended."
                                 % ", ".join(shared))
        networks, versions = self.get_option("address_networks"), self.get_option("address_versions")
        safe = {}
        for server in servers:
            name = self.inventory.add_host(called[server["id"]])
            variables = {"magnetar": {key: value for key, value in server.items() if key not in WHERE},
                         **{"magnetar_%s" % key: server[key] for key in WHERE if server.get(key)}}
            address = inventory_hosts.reachable_address(server, networks, versions)
            if address:
                variables["ansible_host"] = address
            variables = _trusted(variables)
            for key, value in variables.items():
                self.inventory.set_variable(name, key, value)
            for group in inventory_hosts.group_names(server, group_keys):
                if group not in safe:
                    safe[group] = self.inventory.add_group(to_safe_group_name(group, force=True, silent=True))
                self.inventory.add_child(safe[group], name)
            self._construct(name, variables)

    def _compose(self, *args, **kwargs):
        return _trusted(super()._compose(*args, **kwargs))

    def _construct(self, name, variables):
        """Set variables and groups of the host *name* by ``compose``, ``groups`` and ``keyed_groups``."""
        strict, composed = self.get_option("strict"), self.get_option("compose")
        self._set_composite_vars(composed, variables, name, strict=strict)
        more = {"strict": strict, "fetch_hostvars": bool(composed)}  # only composed variables are missing here
        self._add_host_to_composed_groups(self.get_option("groups"), variables, name, **more)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, name, **more)


def _only_cloud():
    """Return the name of the only cloud in clouds.yaml. Raises ``AnsibleParserError`` unless the file has exactly one
    cloud.
    """
    try:
        return clouds.read_only_cloud()
    except MagnetarError as error:
        raise AnsibleParserError(error.message) from None


def _label(options):
    """Return a text that identifies the endpoint or cloud in *options*. It contains no secrets, because the cache
    stores it.
    """
    name, described = clouds.chosen_cloud(options) or (None, None)
    if described is None:
        return "cloud %s" % name if name else options["endpoint"]
    auth = described["auth"]
    return "cloud %s" % " ".join(auth[key] for key in ("auth_url", "project_id", "project_name",
                                                       "application_credential_id") if key in auth)


def _fetch(options):
    """Return the servers of the endpoint or cloud in *options*. If that fails, return the ``MagnetarError`` instead of
    raising it.
    """
    try:
        client = run.connect_client(options)
        try:
            where = {"endpoint": client.endpoint, "cloud": (clouds.chosen_cloud(options) or [None])[0]}
            return [dict(server, **where) for server in _pages(client)]
        finally:
            client.close()
    except MagnetarError as error:
        return error


def _trusted(value):
    """Mark the harmless texts in *value* (``HARMLESS``: without templates) as trusted for Ansible, and return the
    result. The other texts are not marked, so that Ansible does not evaluate them: users of servers may have written
    them.

    Without the mark ``ansible-inventory --list`` wraps each text in a mapping, which AWX does not understand.
    """
    if isinstance(value, str):
        return trust_as_template(value) if HARMLESS.fullmatch(value) else value
    if isinstance(value, dict):
        return {key: _trusted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_trusted(item) for item in value]
    return value


def _pages(client):
    """Yield all servers of the endpoint or cloud that *client* is connected to; fetch them page by page."""
    page = client.list("server", limit=PAGE)
    yield from page
    while len(page) == PAGE:
        page = client.list("server", limit=PAGE, marker=page[-1]["id"])
        yield from page
