# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lookup plugin for servers: their fields, addresses, consoles and passwords."""

from __future__ import annotations

DOCUMENTATION = r"""
name: server
version_added: "0.2.0"
short_description: Fields, addresses, consoles and passwords of servers
description:
  - Returns an item for each server that is named, from an agent or a cloud.
  - The lookup runs on the controller.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.connection.variables
options:
  _terms:
    description: Names or uuids of servers.
    type: list
    elements: str
    required: true
  field:
    description:
      - A field of the server, as M(magnetar.compute.server_info) returns it; parts of it after a dot, as in
        V(flavor.ram), V(metadata.role) or V(networks.0.mac). Without it, the whole server is returned.
      - V(address) is the first address, by O(address_networks) and O(address_versions).
      - V(console_url) is the URL of a console of a server of a cloud, for a browser. It opens the console once.
      - V(password) is the password that the guest has left, decrypted with O(private_key).
    type: str
  address_networks:
    description: Networks of V(address), in order of preference. Without it, the first network with an address.
    type: list
    elements: str
    default: []
  address_versions:
    description: IP versions of V(address), in order of preference.
    type: list
    elements: int
    choices: [4, 6]
    default: [4, 6]
  console_type:
    description: Type of the console of V(console_url).
    type: str
    choices: [novnc, spice-html5, serial]
    default: novnc
  private_key:
    description: File with the private RSA key of the server's key pair, for V(password).
    type: str
    default: ~/.ssh/id_rsa
  passphrase:
    description: Passphrase of O(private_key).
    type: str
notes:
  - A server that does not exist, and a field that it does not have, are errors; C(errors='ignore') makes them empty.
seealso:
  - module: magnetar.compute.server_info
"""

EXAMPLES = r"""
- name: Show the address of a server
  ansible.builtin.debug:
    msg: "{{ lookup('magnetar.compute.server', 'web1', field='address', address_networks=['mgmt']) }}"

- name: Show the roles of two servers of a cloud
  ansible.builtin.debug:
    msg: "{{ query('magnetar.compute.server', 'web1', 'web2', field='metadata.role', cloud='shop') }}"

- name: Show the console of a server
  ansible.builtin.debug:
    msg: "{{ lookup('magnetar.compute.server', 'web1', field='console_url', cloud='shop') }}"

- name: Remember the password of a Windows server
  ansible.builtin.set_fact:
    ansible_password: "{{ lookup('magnetar.compute.server', 'win1', field='password', private_key='~/.ssh/shop') }}"
  no_log: true
"""

RETURN = r"""
_raw:
  description: The field of each server, or the server, in the order of the names.
  type: list
  elements: raw
"""

import base64
import os

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

from ansible_collections.magnetar.compute.plugins.module_utils import run
from ansible_collections.magnetar.compute.plugins.module_utils.core.errors import MagnetarError
from ansible_collections.magnetar.compute.plugins.module_utils.core.options import CONNECTION, CONNECTION_FILES
from ansible_collections.magnetar.compute.plugins.plugin_utils import inventory_hosts

#: Options of the client.
OPTIONS = tuple(option.name for option in CONNECTION if option.name not in ("direct", "timeout"))


class LookupModule(LookupBase):
    """The lookup plugin that returns servers, or one field of them."""

    def run(self, terms, variables=None, **kwargs):
        """Override ``LookupBase.run``: return a list with the selected field, or all fields, of each server in *terms*
        (names or uuids).
        """
        self.set_options(var_options=variables, direct=kwargs)
        names = [str(name) for name in self._flatten(terms)]
        if not names or not all(names):
            raise AnsibleError("The lookup magnetar.compute.server needs the name or uuid of a server.")
        options = {name: self.get_option(name) for name in OPTIONS}
        options.update({name: os.path.expanduser(options[name]) for name in CONNECTION_FILES if options[name]})
        try:
            client = run.connect_client(options)
            try:
                return [self._value(client, name) for name in names]
            finally:
                client.close()
        except MagnetarError as error:
            raise AnsibleError(error.message) from None

    def _value(self, client, name):
        field = self.get_option("field")
        server = client.get("server", name)
        if field == "console_url":
            if not client.of_cloud:
                raise AnsibleError("The field console_url is of clouds, and %s is an agent. On its host, `magnetar "
                                   "console %s` shows the serial console." % (client.endpoint, name))
            return client.open_console(name, self.get_option("console_type"))["page"]
        if field == "address":
            address = inventory_hosts.reachable_address(server, self.get_option("address_networks"),
                                                        self.get_option("address_versions"))
            if address is None:
                raise AnsibleError("Server %s has no address in these networks and of these versions. It has: %s." % (
                    name, ", ".join(sorted(server.get("addresses") or ())) or "none"))
            return address
        if field == "password":
            return self._password(server, name)
        return server if field is None else field_of_server(server, field, name)

    def _password(self, server, name):
        if not server.get("guest_password"):
            raise AnsibleError("The guest of server %s has left no password (yet)." % name)
        passphrase = self.get_option("passphrase")
        return decrypt_guest_password(server["guest_password"], os.path.expanduser(self.get_option("private_key")),
                                      None if passphrase is None else passphrase.encode())


def field_of_server(server, path, name):
    """Return the value at *path* in *server*. The path consists of keys and list indexes, separated by dots; its last
    key may itself contain dots, such as a key of metadata. *name*: the server's name, for messages. Raises
    ``AnsibleError`` if the path does not exist; the message lists the keys that do.
    """
    value, rest = server, path
    while rest:
        if isinstance(value, dict) and rest in value:
            return value[rest]
        word, _dot, rest = rest.partition(".")
        if isinstance(value, list) and word.isdigit() and int(word) < len(value):
            value = value[int(word)]
        elif isinstance(value, dict) and word in value:
            value = value[word]
        else:
            raise AnsibleError("Server %s has no field %s: there is no %s; there is %s." % (
                name, path, word, _parts_of(value) or "nothing"))
    return value


def _parts_of(value):
    """Return a text for error messages that lists the keys of the mapping *value*, or says how many items the list
    *value* has.
    """
    if isinstance(value, dict):
        return ", ".join(sorted(map(str, value)))
    return "%d items" % len(value) if isinstance(value, list) else "a value without parts"


def decrypt_guest_password(encrypted, path, passphrase):
    """Decrypt the password *encrypted* (base64) with the private RSA key in the file *path*, and return it.
    *passphrase*: of the key (bytes), or ``None``. Raises ``AnsibleError``.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key
    try:
        with open(path, "rb") as file:
            content = file.read()
        load = load_ssh_private_key if b"OPENSSH PRIVATE KEY" in content else load_pem_private_key
        key = load(content, passphrase)
    except OSError as error:
        raise AnsibleError("The private key %s cannot be read: %s." % (path, error.strerror)) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise AnsibleError("The private key %s cannot be used: it is no PEM or OpenSSH key, or needs another "
                           "passphrase." % path) from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise AnsibleError("The private key %s is no RSA key. Guests encrypt passwords with RSA keys only." % path)
    try:
        return key.decrypt(base64.b64decode(encrypted), padding.PKCS1v15()).decode()
    except ValueError:
        raise AnsibleError("The private key %s does not decrypt the password: it is not the key of the server's key "
                           "pair." % path) from None
