# SPDX-License-Identifier: GPL-3.0-or-later
"""The lookup of servers, the tests of their states, and the filters of sizes: in a playbook, and by themselves."""

from __future__ import annotations

import base64
import importlib
import json
import os
import subprocess

import pytest
import yaml
from ansible.errors import AnsibleError
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from magnetar_agent.host.networks import Lease
from magnetar_core.http.client import Client
from tests.support.modules.playbook import BIN, ROOT, ansible_environment, run_playbook

PLUGINS = "ansible_collections.magnetar.compute.plugins"
#: The plugins with pages of their own for ansible-doc.
DOCUMENTED = {"connection": ["guest"], "lookup": ["server"], "filter": ["gib", "mib", "smallest_flavor"],
              "test": ["crashed", "error", "paused", "running", "stopped", "suspended"]}


def plugin(name):
    return importlib.import_module(f"{PLUGINS}.{name}")


@pytest.fixture
def servers(agent):
    """Two servers: web1 runs, with an address; db1 is off."""
    with Client(agent.endpoint) as client:
        client.ensure("network", "lan", {"cidr": "192.168.98.0/24"})
        small = {"flavor": {"vcpus": 1, "ram": 64}, "image": None}
        web = client.ensure("server", "web1", {**small, "networks": [{"network": "lan"}],
                                               "metadata": {"role": "web", "a.b": "dotted"}})["resource"]
        client.ensure("server", "db1", {**small, "power": "off"})
        agent.hypervisor.lease("lan", Lease(web["networks"][0]["mac"], "192.168.98.7", 4))
    return agent


@pytest.mark.slow
def test_a_playbook(servers, tmp_path):
    look = "magnetar.compute.server"
    checks = [f"lookup('{look}', 'web1', field='address') == '192.168.98.7'",
              f"query('{look}', 'web1', 'db1', field='power_state') == ['running', 'off']",
              f"lookup('{look}', 'web1', field='metadata.role') == 'web'",
              f"lookup('{look}', 'web1', field='metadata.a.b') == 'dotted'",
              f"lookup('{look}', 'web1', field='networks.0.network') == 'lan'",
              f"lookup('{look}', 'web1').name == 'web1'",
              f"query('{look}', 'nope', errors='ignore') == []",
              f"lookup('{look}', 'web1') is magnetar.compute.running",
              f"lookup('{look}', 'db1') is magnetar.compute.stopped",
              "found is magnetar.compute.running", "found is not magnetar.compute.error",
              "'4 GiB' | magnetar.compute.mib == 4096", "'1500 MiB' | magnetar.compute.gib == 2",
              "([{'name': 'a', 'vcpus': 1, 'ram': 512, 'disk': 0}, {'name': 'b', 'vcpus': 2, 'ram': 4096, 'disk': 0}]"
              " | magnetar.compute.smallest_flavor(vcpus=2, ram='1 GiB')).name == 'b'"]
    done = run_playbook(tmp_path, "localhost", {"ansible_connection": "local", "magnetar_endpoint": servers.endpoint},
                        {"magnetar.compute.server_info": {"name": "web1", "endpoint": servers.endpoint},
                         "register": "found"},
                        {"ansible.builtin.assert": {"that": checks}})
    assert done.returncode == 0, done.stdout + done.stderr
    for words, reason in ((f"lookup('{look}', 'nope')", "nope"), (f"lookup('{look}', 'web1', field='x')", "no field x"),
                          (f"lookup('{look}', 'db1', field='address')", "has no address"),
                          (f"lookup('{look}', 'web1', field='console_url')", "is of clouds"),
                          (f"lookup('{look}', 'web1', field='password')", "has left no password"),
                          (f"lookup('{look}', '')", "needs the name or uuid"),
                          ("'many' | magnetar.compute.mib", "is no size")):
        done = run_playbook(tmp_path, "localhost", {"ansible_connection": "local",
                                                    "magnetar_endpoint": servers.endpoint},
                            {"ansible.builtin.debug": {"msg": "{{ " + words + " }}"}})
        assert done.returncode == 2 and reason in " ".join((done.stdout + done.stderr).split()), done.stdout


@pytest.mark.slow
def test_ansible_doc_shows_each_plugin(tmp_path):
    for type, names in DOCUMENTED.items():
        words = [BIN / "ansible-doc", "-t", type, "--json", *(f"magnetar.compute.{name}" for name in names)]
        done = subprocess.run(words, env=ansible_environment(tmp_path), capture_output=True, text=True, check=True)
        shown = json.loads(done.stdout)
        assert sorted(shown) == [f"magnetar.compute.{name}" for name in names] and "WARNING" not in done.stderr
        for name, page in shown.items():
            assert page["doc"]["short_description"] and page["examples"], name


def test_each_test_and_filter_has_its_page():
    for type, names in DOCUMENTED.items():
        if type in ("filter", "test"):
            assert sorted(path.stem for path in (ROOT / "plugins" / type).glob("*.yml")) == names
    assert sorted(plugin("test.server_states").TestModule().tests()) == DOCUMENTED["test"]
    assert sorted(plugin("filter.sizes").FilterModule().filters()) == DOCUMENTED["filter"]


@pytest.mark.parametrize(("size", "mib", "gib"), [
    (0, 0, 0), (1, 1, 1), ("512 MiB", 512, 1), ("4G", 4096, 4), ("1.5 GiB", 1536, 2), ("1 GB", 954, 1),
    ("2TB", 1907349, 1863), (1073741824, 1024, 1), ("1 tib", 1048576, 1024)])
def test_sizes(size, mib, gib):
    filters = plugin("filter.sizes")
    assert (filters.mib(size), filters.gib(size)) == (mib, gib)


@pytest.mark.parametrize("size", ["", "many", "-1", "1 XB", "1 GiBB", True, None, [], "1e3", "9" * 40])
def test_what_is_no_size(size):
    with pytest.raises(AnsibleError, match="is no size"):
        plugin("filter.sizes").mib(size)


def test_the_smallest_flavor():
    smallest = plugin("filter.sizes").smallest_flavor
    flavors = [{"name": name, "vcpus": vcpus, "ram": ram, "disk": disk} for name, vcpus, ram, disk in (
        ("large", 8, 8192, 80), ("small", 1, 512, 1), ("wide", 4, 2048, 20), ("medium", 2, 2048, 20))]
    assert smallest(flavors)["name"] == "small" and smallest(flavors, vcpus=2)["name"] == "medium"
    assert smallest(flavors, vcpus=3, ram="2 GiB", disk="20 GB")["name"] == "wide"
    with pytest.raises(AnsibleError, match="No flavor has 1 CPUs, 9216 MiB"):
        smallest(flavors, ram="9 GiB")
    with pytest.raises(AnsibleError, match="needs the flavors"):
        smallest(["small"])


@pytest.mark.parametrize(("value", "running"), [
    ({"power_state": "running"}, True), ({"power_state": "off"}, False), ({"status": "ACTIVE"}, False),
    ({"changed": False, "server": {"power_state": "running"}}, True),
    ({"changed": False, "servers": [{"power_state": "running"}]}, True),
    ({"magnetar": {"power_state": "running"}}, True)])
def test_what_is_tested(value, running):
    assert plugin("test.server_states").TestModule().tests()["running"](value) is running


@pytest.mark.parametrize("value", ["web1", None, {}, {"servers": []}, {"servers": [{}, {}]}, {"changed": True}])
def test_what_is_no_server(value):
    with pytest.raises(AnsibleError, match="needs a server"):
        plugin("test.server_states").TestModule().tests()["error"](value)


@pytest.mark.parametrize(("format", "phrase"), [("TraditionalOpenSSL", None), ("OpenSSH", None), ("PKCS8", b"geheim")])
def test_passwords_are_decrypted(tmp_path, format, phrase):
    key = rsa.generate_private_key(65537, 2048)
    encryption = serialization.BestAvailableEncryption(phrase) if phrase else serialization.NoEncryption()
    path = tmp_path / "key"
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, getattr(serialization.PrivateFormat, format),
                                       encryption))
    encrypted = base64.b64encode(key.public_key().encrypt("Gehéim".encode(), padding.PKCS1v15())).decode()
    decrypt = plugin("lookup.server").decrypt_guest_password
    assert decrypt(encrypted, str(path), phrase) == "Gehéim"
    if phrase:
        with pytest.raises(AnsibleError, match="needs another passphrase"):
            decrypt(encrypted, str(path), None)


def test_keys_that_do_not_decrypt(tmp_path):
    decrypt = plugin("lookup.server").decrypt_guest_password
    path = tmp_path / "key"
    with pytest.raises(AnsibleError, match="cannot be read: No such file"):
        decrypt("eA==", str(path), None)
    path.write_text("no key")
    with pytest.raises(AnsibleError, match="no PEM or OpenSSH key"):
        decrypt("eA==", str(path), None)
    for key, words in ((ec.generate_private_key(ec.SECP256R1()), "is no RSA key"),
                       (rsa.generate_private_key(65537, 2048), "does not decrypt")):
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                           serialization.NoEncryption()))
        with pytest.raises(AnsibleError, match=words):
            decrypt(base64.b64encode(os.urandom(100)).decode(), str(path), None)


def test_the_examples_are_yaml():
    for path in (ROOT / "plugins" / "filter").glob("*.yml"):
        assert yaml.safe_load(yaml.safe_load(path.read_text().partition("---\n")[2])["EXAMPLES"])
