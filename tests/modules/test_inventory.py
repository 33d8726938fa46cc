# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory plugin: ansible-inventory for real, against agents with fake hypervisors."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ansible_collections.magnetar.compute.plugins.module_utils.core.http.client import Client
from ansible_collections.magnetar.compute.plugins.plugin_utils import inventory_hosts
from magnetar_agent.api import serve
from magnetar_agent.api.access import BearerTokens
from magnetar_agent.api.app import AgentApplication
from magnetar_agent.host.networks import Lease
from tests.support.http_server import started

from .conftest import ROOT, Running
from .sshd import Sshd

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent


@pytest.fixture
def place(tmp_path):
    """``place(config, *words, name=…)``: what ansible-inventory says, as JSON for --list."""
    (tmp_path / "home").mkdir()
    (tmp_path / "inventories").mkdir()
    environment = {name: text for name, text in os.environ.items()
                   if not name.startswith(("ANSIBLE_", "MAGNETAR_", "OS_"))}
    environment.update(ANSIBLE_COLLECTIONS_PATH=str(ROOT / ".cache"), HOME=str(tmp_path / "home"), LC_ALL="C.UTF-8",
                       ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED="true", ANSIBLE_DEPRECATION_WARNINGS="false")

    def ask(config, *words, name="shop.magnetar.yml", code=0, **more):
        path = tmp_path / "inventories" / name
        path.write_text(yaml.safe_dump({"plugin": "magnetar.compute.servers", **config}))
        done = subprocess.run([BIN / "ansible-inventory", "-i", path, *(words or ["--list"])], check=False, text=True,
                              capture_output=True, env={**environment, **more}, cwd=tmp_path)
        assert done.returncode == code, done.stdout + done.stderr
        ask.said = " ".join(done.stderr.split())
        return json.loads(done.stdout) if not words and not code else done.stdout

    ask.said = ""
    return ask


@pytest.fixture
def hosts(tmp_path):
    """Two agents; each has a flavor, an image and a network."""
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        running = Running(tmp_path / name)
        made.append(running)
        running.start()
        with (tmp_path / name / "disk.raw").open("wb") as stream:
            stream.truncate(1 << 20)
        with Client(running.endpoint) as client:
            client.ensure("flavor", "m1.small", {"vcpus": 1, "ram": 128})
            client.ensure("image", "debian", {"source": {"path": str(tmp_path / name / "disk.raw")}})
            for network, cidr in (("lan", "192.168.98.0/24"), ("mgmt", "192.168.99.0/24")):
                client.ensure("network", network, {"cidr": cidr})
    yield made
    for running in made:
        running.stop()


def server(running, name, **want):
    want = {"flavor": "m1.small", "image": "debian", "networks": [{"network": "lan"}], **want}
    with Client(running.endpoint) as client:
        return client.ensure("server", name, want)["resource"]


def lease(running, network, one, *addresses):
    """Leases of the server's NIC in *network*."""
    mac = next(nic["mac"] for nic in one["networks"] if nic["network"] == network)
    for address in addresses:
        running.hypervisor.lease(network, Lease(mac, address, 6 if ":" in address else 4))


def members(answer, group):
    return answer.get(group, {}).get("hosts", [])


def test_one_agent(hosts, place):
    one = server(hosts[0], "web1", metadata={"role": "web"})
    lease(hosts[0], "lan", one, "192.168.98.7")
    answer = place({"endpoint": hosts[0].endpoint}, name="magnetar.yml")
    variables = answer["_meta"]["hostvars"]["web1"]
    assert variables["ansible_host"] == "192.168.98.7" and variables["magnetar_endpoint"] == hosts[0].endpoint
    assert variables["magnetar"]["id"] == one["id"] and variables["magnetar"]["metadata"] == {"role": "web"}
    assert "endpoint" not in variables["magnetar"] and members(answer, "ungrouped") == ["web1"]
    assert "web1" in place({"endpoint": hosts[0].endpoint}, "--graph", name="magnetar_servers.yaml")


def test_no_servers(hosts, place):
    assert place({"endpoint": hosts[0].endpoint})["_meta"]["hostvars"] == {}


def test_groups(hosts, place):
    first, second = hosts
    server(first, "web1", metadata={"role": "web/front"}, tags=["shop", "eu"])
    server(second, "db1", networks=[{"network": "mgmt"}, {"network": "lan"}], power="off")
    config = {
        "endpoints": [first.endpoint, {"endpoint": second.endpoint, "timeout": 20}],
        "group_by": ["status", "host", "flavor", "image", "availability_zone", "metadata.role", "tags", "network",
                     {"key": "power_state", "prefix": "power"}],
        "keyed_groups": [{"key": "magnetar.status", "prefix": "status"},
                         {"key": "kind", "separator": "", "prefix": "x"}],
        "compose": {"kind": "magnetar.name[:2]", "ansible_host": "magnetar.name ~ '.example.org'"},
        "groups": {"off": "magnetar.power_state == 'off'"},
    }
    answer = place(config)
    assert members(answer, "status_ACTIVE") == ["web1"] and members(answer, "status_SHUTOFF") == ["db1"]
    assert sorted(members(answer, "flavor_m1_small")) == sorted(members(answer, "image_debian")) == ["db1", "web1"]
    assert members(answer, "metadata_role_web_front") == members(answer, "tags_shop") == ["web1"]
    assert members(answer, "network_mgmt") == members(answer, "off") == members(answer, "power_off") == ["db1"]
    assert members(answer, "xwe") == ["web1"] and members(answer, "xdb") == ["db1"]
    assert any(group.startswith("host_") for group in answer) and not any("zone" in group for group in answer)
    assert answer["_meta"]["hostvars"]["web1"]["ansible_host"] == "web1.example.org"
    config = {"endpoint": first.endpoint, "group_by": ["tags"], "group_prefix": "mag_"}
    assert members(place(config), "mag_tags_eu") == ["web1"]


def test_address(hosts, place):
    one = server(hosts[0], "web1", networks=[{"network": "lan"}, {"network": "mgmt"}])
    lease(hosts[0], "mgmt", one, "192.168.99.7", "2001:db8::7")

    def address(**config):
        return place({"endpoint": hosts[0].endpoint, **config})["_meta"]["hostvars"]["web1"].get("ansible_host")

    assert address() == "192.168.99.7", "the first network with one"
    lease(hosts[0], "lan", one, "192.168.98.7")
    assert address() == "192.168.98.7"
    assert address(address_networks=["none", "mgmt", "lan"]) == "192.168.99.7"
    assert address(address_networks=["mgmt"], address_versions=[6, 4]) == "2001:db8::7"
    assert address(address_networks=["none"]) is None
    assert address(compose={"ansible_host": "magnetar.addresses.lan[0].addr"}) == "192.168.98.7"


def test_hostnames(hosts, place):
    server(hosts[0], "web1", metadata={"fqdn": "web1.example.org"})
    two = server(hosts[0], "web2")
    config = {"endpoint": hosts[0].endpoint, "hostnames": ["metadata.fqdn", "id"]}
    assert set(place(config)["_meta"]["hostvars"]) == {"web1.example.org", two["id"]}


def test_one_name_twice(hosts, place):
    first, second = (server(running, "web1") for running in hosts)
    answer = place({"endpoints": [running.endpoint for running in hosts]})
    assert set(answer["_meta"]["hostvars"]) == {f"web1_{one['id'][:8]}" for one in (first, second)}
    assert "Several servers are called web1" in place.said


def test_one_agent_twice(hosts, place):
    server(hosts[0], "web1")
    assert set(place({"endpoints": [hosts[0].endpoint] * 2})["_meta"]["hostvars"]) == {"web1"}


@pytest.mark.parametrize(("filters", "found"), [
    ({"status": "ACTIVE"}, {"web1", "web2"}), ({"status": ["ACTIVE", "SHUTOFF"]}, {"web1", "web2", "db1"}),
    ({"metadata": {"role": "web"}}, {"web1", "web2"}), ({"metadata.role": "w*", "tags": "eu"}, {"web2"}),
    ({"flavor": "m1.*"}, {"web1", "web2", "db1"}), ({"flavor": "large"}, set()), ({"name": "db?"}, {"db1"}),
    ({"metadata.number": 3}, {"db1"})])
def test_filters(hosts, place, filters, found):
    server(hosts[0], "web1", metadata={"role": "web"})
    server(hosts[0], "web2", metadata={"role": "web"}, tags=["eu"])
    server(hosts[0], "db1", metadata={"number": "3"}, power="off")
    answer = place({"endpoint": hosts[0].endpoint, "filters": filters})
    assert set(answer["_meta"]["hostvars"]) == found


def test_an_agent_that_is_gone(hosts, place):
    server(hosts[0], "web1")
    gone = {"endpoint": "unix:///does/not/exist.sock"}
    config = {"endpoints": [gone, hosts[0].endpoint]}
    place(config, code=1)
    assert "no such socket" in place.said and "strict_endpoints: false" in place.said
    answer = place({**config, "strict_endpoints": False})
    assert set(answer["_meta"]["hostvars"]) == {"web1"}
    assert "[WARNING]: Cannot reach the agent at unix:///does/not/exist.sock" in place.said
    assert "Its servers are missing" in place.said


def test_cache(hosts, place, tmp_path):
    server(hosts[0], "web1", metadata={"role": "web"})
    config = {"endpoint": hosts[0].endpoint, "cache": True, "cache_plugin": "ansible.builtin.jsonfile",
              "cache_connection": str(tmp_path / "cache"), "group_by": ["status"]}
    first = place(config)
    hosts[0].stop()
    hosts[0].socket.unlink(missing_ok=True)
    assert place(config) == first, "the agent is not asked"
    assert place({**config, "filters": {"status": "SHUTOFF"}})["_meta"]["hostvars"] == {}, "filters count anew"
    place({**config, "endpoint": hosts[0].endpoint + "2"}, code=1)
    assert "no such socket" in place.said, "what another agent has said does not count"
    place(config, "--list", "--flush-cache", code=1)
    assert "no such socket" in place.said
    hosts[0] = Running(tmp_path / "a")
    hosts[0].start()
    server(hosts[0], "web2")
    assert set(place(config)["_meta"]["hostvars"]) == {"web1"}
    assert "web2" in place(config, "--list", "--flush-cache")


def test_what_is_missing_is_not_cached(hosts, place, tmp_path):
    server(hosts[0], "web1")
    config = {"endpoints": [hosts[0].endpoint, f"unix://{tmp_path}/late.sock"], "cache": True,
              "strict_endpoints": False, "cache_plugin": "ansible.builtin.jsonfile",
              "cache_connection": str(tmp_path / "cache")}
    assert set(place(config)["_meta"]["hostvars"]) == {"web1"}
    (tmp_path / "late.sock").symlink_to(hosts[1].socket)
    server(hosts[1], "web2")
    assert set(place(config)["_meta"]["hostvars"]) == {"web1", "web2"}


@pytest.mark.parametrize(("config", "said"), [
    ({"group_by": ["colour"]}, "group_by: colour is nothing that servers have"),
    ({"group_by": [{"prefix": "x"}]}, "group_by: an item must be"),
    ({"hostnames": ["colour"]}, "hostnames: colour"), ({"filters": {"colour": "red"}}, "filters: colour"),
    ({"endpoints": []}, "endpoints: is empty"), ({"endpoints": [{"token": "geheim"}]}, "endpoints[0]: has no"),
    ({"endpoints": [{"endpoint": "unix:///x", "tokn": "geheim"}]}, "endpoints: unknown option tokn"),
    ({"endpoints": [None]}, "endpoints[0]: has no"), ({"endpoints": ["unix:///x", ""]}, "endpoints[1]: has no"),
    ({"endpoints": ["{{ lookup('ansible.builtin.env', 'NOWHERE') }}"]}, "endpoints[0]: has no endpoint"),
    ({"hostnames": []}, "hostnames: is empty"), ({"timeout": 0}, "timeout: must be from 1"),
    ({"clouds": "a"}, "clouds: is not an option of this inventory; did you mean cloud?"),
    ({"zzz": "red"}, "zzz: is not an option of this inventory. `ansible-doc"),
    ({"endpoint": None, "cloud": "none"}, "cloud: needs a clouds.yaml"),
    ({"endpoints": [{"cloud": "none"}]}, "cloud: needs a clouds.yaml"),
    ({"endpoints": ["unix:///x"], "cloud": "a"}, "cloud: is not asked beside endpoints"),
    ({"endpoint": "http://kvm1"}, "must not be http"), ({"timeout": "long"}, "timeout"),
    ({"address_versions": [5]}, "address_versions"), ({"keyed_groups": [{"key": "nothing.at.all"}], "strict": True},
                                                      "Could not generate group")])
def test_wrong_configuration(hosts, place, config, said):
    server(hosts[0], "web1")
    place({"endpoint": hosts[0].endpoint, **config}, code=1)
    assert said in place.said and "geheim" not in place.said and "Traceback" not in place.said


def test_only_files_of_the_right_name(hosts, place):
    place({"endpoint": hosts[0].endpoint}, name="other.yml", code=1)
    assert "shop.magnetar.yml" not in place.said


def test_options_from_the_environment_and_from_templates(hosts, place):
    server(hosts[0], "web1")
    assert "web1" in place({}, "--list", MAGNETAR_ENDPOINT=hosts[0].endpoint)
    config = {"endpoints": [{"endpoint": "{{ lookup('ansible.builtin.env', 'WHERE') }}"}]}
    assert "web1" in place(config, "--list", WHERE=hosts[0].endpoint)


def test_over_ssh(hosts, place, tmp_path, monkeypatch):
    """Two agents behind one sshd, with a key and known hosts beside the configuration."""
    sshd = Sshd(tmp_path / "ssh")
    sshd.start()
    try:
        for number, running in enumerate(hosts):
            server(running, f"web{number}")
        sshd.key.rename(tmp_path / "inventories/key")
        (tmp_path / "inventories/known").write_text(sshd.line)
        config = {"endpoints": [sshd.endpoint(running.socket) for running in hosts], "ssh_private_key": "key",
                  "ssh_known_hosts": "known"}
        answer = place(config, SSH_AUTH_SOCK="")
        assert set(answer["_meta"]["hostvars"]) == {"web0", "web1"}
        assert answer["_meta"]["hostvars"]["web1"]["magnetar_endpoint"] == sshd.endpoint(hosts[1].socket)
        place({**config, "ssh_known_hosts": None}, code=1, SSH_AUTH_SOCK="")
        assert "is not known" in place.said
    finally:
        sshd.stop(hard=True)


@contextmanager
def over_tls(running, folder):
    """A port of the agent, and a token for it; ``folder/ca.pem`` is to be trusted."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-subj", "/CN=kvm1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem",
                    "-out", folder / "ca.pem"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    running.agent.host.settings = replace(running.settings, tokens_file=folder / "tokens.yml")
    token = BearerTokens(folder / "tokens.yml").create("inventory", "read")
    found = serve.make_http_server(AgentApplication(running.agent), running.agent.host.settings, context)
    with socket.create_server(("127.0.0.1", 0)) as listening, started(found, listening, cut=True):
        yield f"https://127.0.0.1:{listening.getsockname()[1]}", token


def test_each_endpoint_has_options_of_its_own(hosts, place, tmp_path):
    """One by its socket, one over TLS with a CA beside the configuration and a vaulted token."""
    server(hosts[0], "web1")
    server(hosts[1], "web2")
    (tmp_path / "pass").write_text("geheim\n")
    with over_tls(hosts[1], tmp_path / "inventories") as (endpoint, token):
        vaulted = subprocess.run([BIN / "ansible-vault", "encrypt_string", "--vault-password-file", tmp_path / "pass",
                                  token], check=True, capture_output=True, text=True).stdout
        secret = Vaulted("\n".join(line.strip() for line in vaulted.splitlines()[1:]))
        config = {"endpoints": [hosts[0].endpoint, {"endpoint": endpoint, "token": secret, "cacert": "ca.pem"}]}
        answer = json.loads(place(config, "--list", "--vault-password-file", str(tmp_path / "pass")))
        assert set(answer["_meta"]["hostvars"]) == {"web1", "web2"} and token not in str(answer)
        place({"endpoints": [endpoint], "ca_cert": "ca.pem", "token": "wrong"}, code=1)
        assert "token" in place.said and "wrong" not in place.said
        place({"endpoints": [endpoint], "token": token}, code=1)
        assert "Give the CA that signed it as ca_cert" in place.said


class Vaulted(str):
    """A text that YAML writes with the tag of the vault."""

    __slots__ = ()


yaml.SafeDumper.add_representer(Vaulted, lambda dumper, text: dumper.represent_scalar("!vault", str(text), style="|"))


def test_templates_of_guests_stay_text(hosts, place):
    """What users of servers write is never evaluated."""
    server(hosts[0], "web1", metadata={"evil": "{{ lookup('pipe', 'touch /nowhere') }}"})
    config = {"endpoint": hosts[0].endpoint, "compose": {"evil": "magnetar.metadata.evil"},
              "group_by": ["metadata.evil"]}
    variables = place(config)["_meta"]["hostvars"]["web1"]
    evil = {"__ansible_unsafe": "{{ lookup('pipe', 'touch /nowhere') }}"}
    assert variables["evil"] == variables["magnetar"]["metadata"]["evil"] == evil
    assert str(variables).count("__ansible_unsafe") == 2, "AWX does not know that sign"


def test_a_server_that_moves_is_listed_once():
    here, there = {"id": "1", "power_state": "off"}, {"id": "1", "power_state": "running"}
    assert inventory_hosts.deduplicate_servers([here, there]) == inventory_hosts.deduplicate_servers([there,
                                                                                                      here]) == [there]


def test_names_that_collide_with_made_ones():
    servers = [{"id": "aaaaaaaa-1", "name": "x"}, {"id": "aaaaaaaa-2", "name": "x"}, {"id": "b", "name": "x_aaaaaaaa"}]
    called, shared = inventory_hosts.host_names(servers, ["name"])
    assert called == {"aaaaaaaa-1": "x_aaaaaaaa-1", "aaaaaaaa-2": "x_aaaaaaaa-2", "b": "x_aaaaaaaa"} and shared == ["x"]
