# SPDX-License-Identifier: GPL-3.0-or-later
"""Fresh Debian hosts become hosts of Magnetar over SSH, are upgraded under running guests, and become bare again.

The tests of this file are one story and run in its order.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from magnetar_core.errors import MagnetarError
from magnetar_core.http.client import Client
from tests.support.lab.bare import USER, BareHost, LabError, Site, documented
from tests.support.lab.fleet import HTTPS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.lab,
    pytest.mark.deep(shard="roles of the agent"),  # test_site.py installs agents and guests by the same roles
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

PORT = 6553
OURS = ("/opt/magnetar", "/etc/magnetar", "/run/magnetar", "/var/lib/magnetar", "/usr/local/bin/magnetar",
        "/etc/systemd/system/magnetar-agent.service", "/etc/systemd/system/magnetar-firewall.service",
        "/etc/systemd/system/magnetar-metadata.service", "/etc/systemd/system/magnetar-metadata.socket")  # fmt: skip

COUNT = """#!/bin/sh
( n=0; while :; do n=$((n + 1)); echo "GUEST count $n" >/dev/console; sleep 1; done ) &
"""

OVER_SSH = """
- hosts: bare1
  become: true
  gather_facts: false
  tasks:
    - ansible.builtin.copy: {src: "{{ disk }}", dest: /var/lib/magnetar/import/, mode: "0644"}
    - magnetar.compute.image: {name: tiny, filename: /var/lib/magnetar/import/disk.qcow2}
    - magnetar.compute.flavor: {name: tiny, vcpus: 1, ram: 128, disk: 1}
    - magnetar.compute.server: {name: counter, image: tiny, flavor: tiny, userdata: "{{ count }}"}
"""

OVER_HTTPS = HTTPS.replace("hosts: bare1", "hosts: bare2") + """
    - magnetar.compute.image: {name: tiny, filename: "{{ disk }}"}
    - magnetar.compute.flavor: {name: tiny, vcpus: 1, ram: 128, disk: 1}
    - magnetar.compute.server: {name: counter, image: tiny, flavor: tiny, userdata: "{{ count }}"}
    - magnetar.compute.network: {name: lan, cidr: 10.99.7.0/24}
    - magnetar.compute.volume: {name: kept, size: 1}
"""

OVER_THE_SOCKET = """
- hosts: magnetar
  gather_facts: false
  module_defaults:
    group/magnetar.compute.all:
      endpoint: ssh://{{ ansible_user }}@{{ ansible_host }}
      ssh_private_key: "{{ ansible_ssh_private_key_file }}"
      ssh_known_hosts: "{{ inventory_dir }}/known"
      direct: always
  tasks:
    - magnetar.compute.server: {name: counter, metadata: {role: counter}}
    - magnetar.compute.server: {name: counter, metadata: {role: counter}}
      register: again
      failed_when: again is changed
"""

#: Two servers of one name, each on its host.
INVENTORY = """
plugin: magnetar.compute.servers
endpoints: [ssh://{user}@{first}, ssh://{user}@{second}]
ssh_private_key: key
ssh_known_hosts: known
group_by: [metadata.role]
"""

OF_GUESTS = """
- hosts: metadata_role_counter
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.debug: {msg: "{{ inventory_hostname }} on {{ magnetar.host }} is {{ magnetar.status }}"}
"""

FOREIGN = """
- hosts: localhost
  gather_facts: false
  tasks:
    - magnetar.compute.certificate: {path: other/ca.pem, key_path: other/ca.key, common_name: Magnetar CA}
    - magnetar.compute.certificate:
        {path: other/admin.pem, key_path: other/admin.key, common_name: admin, ca_path: other/ca.pem,
         ca_key_path: other/ca.key}
"""

CONFIGURE = """
- hosts: magnetar
  become: true
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: magnetar.compute.agent, tasks_from: configure}
"""

REMOVE = """
- hosts: magnetar
  become: true
  gather_facts: false
  tasks:
    - magnetar.compute.server: {name: counter, state: absent}
    - magnetar.compute.network: {name: lan, state: absent}
    - magnetar.compute.volume: {name: kept, state: absent}
"""

UNINSTALL = documented("howto/remove-a-host", "tasks_from: uninstall").replace("kvm2", "magnetar")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, guest_image: dict[str, Path]) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    given = {"agent_users": [USER], "disk": str(guest_image["disk"]), "count": COUNT, "pki": f"{folder}/magnetar-pki"}
    with Site(folder, ["bare1", "bare2"], **given) as made:
        yield made


def book(site: Site, text: str) -> Path:
    path = site.folder / "book.yml"
    path.write_text(text)
    return path


def changes(said: str) -> dict[str, int]:
    """Changed tasks by host, out of the recap."""
    return {name: int(count) for name, count in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", said, re.MULTILINE)}


def counted(host: BareHost) -> int:
    """How far the guest has counted on its console; it must have started just once."""
    said = host.run(["sh", "-c", "cat /var/lib/magnetar/servers/*/console.log"]).stdout
    numbers = [int(number) for number in re.findall(r"GUEST count (\d+)\s", said)]
    assert numbers == sorted(set(numbers))
    return numbers[-1] if numbers else 0


def goes_on(host: BareHost, limit: float = 240.0) -> int:
    """Waits until the guest counts further."""
    start, end = counted(host), time.monotonic() + limit
    while counted(host) <= start:
        assert time.monotonic() < end, f"the guest of {host.name} stands at {start}"
        time.sleep(0.2)
    return counted(host)


def qemu(host: BareHost) -> str:
    return host.run(["pgrep", "-f", "guest=magnetar-"]).stdout


def served(site: Site, host: BareHost, pki: Path | None = None) -> bytes:
    """The certificate of the agent, as a client with *pki*'s certificate sees it; it answers a request too."""
    context = ssl.create_default_context(cafile=str(site.folder / "magnetar-pki/ca.pem"))
    if pki:
        context.load_cert_chain(pki / "admin.pem", pki / "admin.key")
    with socket.create_connection((host.address, PORT), timeout=10) as plain, \
            context.wrap_socket(plain, server_hostname=host.address) as secure:  # fmt: skip
        secure.sendall(b"GET /v1 HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")
        answer = secure.recv(12)
        if not answer:
            raise ConnectionError("the agent closed the connection")
        assert answer == b"HTTP/1.1 200"
        return secure.getpeercert(binary_form=True) or b""


def reaches(source: BareHost, target: BareHost) -> bool:
    """Whether the agent's port of *target* is open to *source*."""
    text = f"import socket; socket.create_connection(({target.address!r}, {PORT}), timeout=2)"
    return not source.run(["python3", "-c", text], check=False).returncode


def client(site: Site, host: BareHost, certificates: Path | None = None) -> Client:
    """A client of the agent of *host*, by default as an administrator has it."""
    folder = certificates or clients(site)
    return Client(f"https://{host.address}", ca_cert=str(site.folder / "magnetar-pki/ca.pem"),
                  client_cert=str(folder / "admin.pem"), client_key=str(folder / "admin.key"))


class Asking(threading.Thread):
    """Asks an agent all the time; `errors` are what went wrong, `answers` how often it answered."""

    def __init__(self, site: Site, host: BareHost) -> None:
        super().__init__(daemon=True)
        self.client = client(site, host)
        self.answers, self.errors, self.over = 0, [], threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.1):
            try:
                self.client.list("server")
                self.answers += 1
            except MagnetarError as error:
                self.errors.append(error)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.over.set()
        self.join()
        self.client.close()


def configured(site: Site, hosts: str, **given: object) -> dict[str, int]:
    """Changes of the entry point `configure`, with these variables."""
    return changes(site.play(book(site, CONFIGURE), "--limit", hosts, "-e", json.dumps(given)))


def expire(path: Path, pki: Path) -> None:
    """Write a certificate anew, as one that ended yesterday."""
    old = x509.load_pem_x509_certificate(path.read_bytes())
    key = serialization.load_pem_private_key((pki / "ca.key").read_bytes(), None)
    end, day = datetime.now(UTC) - timedelta(1), timedelta(1)
    made = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), old.serial_number, end - day, end)
    for extension in old.extensions:
        made = made.add_extension(extension.value, extension.critical)
    path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def clients(site: Site) -> Path:
    return site.folder / "magnetar-pki/clients"


def test_check_mode_on_bare_hosts(site: Site) -> None:
    said = site.play("magnetar.compute.agents", "--check", "--diff")
    assert all(count > 10 for count in changes(said).values())
    assert "libvirt-daemon-system" in said
    assert "+ExecStart=/opt/magnetar/bin/magnetar agent" in said
    assert not (site.folder / "magnetar-pki").exists()
    for host in site.hosts.values():
        assert host.run(["ls", "-d", *OURS], check=False).stdout.count("No such file") == len(OURS)
        assert host.run(["getent", "group", "magnetar"], check=False).returncode
        assert host.run(["which", "virsh"], check=False).returncode


def test_install_twice(site: Site) -> None:
    began = time.monotonic()
    site.play("magnetar.compute.agents")
    print(f"\nroles: two bare hosts installed in {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    assert changes(site.job("Agents")) == {"bare1": 0, "bare2": 0}
    print(f"roles: second run {time.monotonic() - began:.1f} s")
    assert changes(site.play("magnetar.compute.agents", "--check", "--diff", "--limit", "bare1")) == {"bare1": 0}
    identities = set()
    for host in site.hosts.values():
        assert host.run(["systemctl", "is-system-running"]).stdout == "running\n"
        assert host.run(["stat", "-c", "%a %U:%G", "/run/magnetar/agent.sock"]).stdout == "660 root:magnetar\n"
        assert host.run(["stat", "-c", "%a", "/etc/magnetar/agent.yml", "/etc/magnetar/tls/agent.key"]).stdout == \
            "600\n600\n"
        assert "magnetar" in host.run(["id", "-nG", USER]).stdout.split()
        identities.add(re.search(r"<uuid>(.*)</uuid>", host.run(["virsh", "capabilities"]).stdout)[1])
    assert len(identities) == 2


def test_confined_guests_reach_the_agents_sockets(site: Site) -> None:
    """The machine's kernel has no AppArmor: its compiler says what the profiles of libvirt have come to."""
    host = site.hosts["bare1"]
    host.run(["apt-get", "-q", "update"])
    host.run(["apt-get", "-q", "-y", "--no-install-recommends", "install", "apparmor"])
    guest = "s/LIBVIRT_TEMPLATE/libvirt-guest/; s/flags=.* {/{/"
    host.run(["sh", "-c", f"sed '{guest}' /etc/apparmor.d/libvirt/TEMPLATE.qemu >/tmp/libvirt-guest"])
    for profile, rule in {"/tmp/libvirt-guest": "/run/magnetar/links/** rw,",
                          "/etc/apparmor.d/usr.lib.libvirt.virt-aa-helper": "/var/lib/magnetar/** r,"}.items():
        host.run(["apparmor_parser", "--skip-kernel-load", "--skip-cache", profile])
        assert f"\n{rule}\n" in host.run(["apparmor_parser", "--preprocess", profile]).stdout


def test_only_the_agents_port_is_open(site: Site) -> None:
    host = site.hosts["bare1"]
    host.run(["sh", "-c", "for port in 16509 49152 8080; do python3 -m http.server $port >/dev/null 2>&1 & done"])
    reached = []
    for port in (8080, PORT, 16509, 49152):
        end = time.monotonic() + 5
        while time.monotonic() < end:
            try:
                socket.create_connection((host.address, port), timeout=2).close()
                reached.append(port)
                break
            except ConnectionRefusedError:  # it has not started yet
                time.sleep(0.1)
            except TimeoutError:
                break
    host.run(["pkill", "-f", "http.server"])  # in the host's own processes
    assert reached == [8080, PORT]


def test_servers_over_ssh_and_https(site: Site) -> None:
    for text in (OVER_SSH, OVER_HTTPS):
        said = site.play(book(site, text))
        assert 0 not in changes(said).values()
        assert set(changes(site.play(book(site, text))).values()) == {0}
    for host in site.hosts.values():
        goes_on(host)


def test_the_socket_over_ssh(site: Site) -> None:
    site.play(book(site, OVER_THE_SOCKET))
    first, second = (host.address for host in site.hosts.values())
    fleet = site.folder / "fleet.magnetar.yml"
    fleet.write_text(INVENTORY.format(user=USER, first=first, second=second))
    said = site.play(book(site, OF_GUESTS), "-i", str(fleet))
    assert set(re.findall(r"counter_[0-9a-f]{8} on (bare\d) is ACTIVE", said)) == {"bare1", "bare2"}


def test_who_is_not_in_the_group(site: Site) -> None:
    host = site.hosts["bare1"]
    host.run(["gpasswd", "-d", USER, "magnetar"])
    said = site.play(book(site, OVER_THE_SOCKET), "--limit", "bare1", good=False)
    assert f"usermod -aG magnetar {USER}" in said
    host.run(["usermod", "-aG", "magnetar", USER])
    site.play(book(site, OVER_THE_SOCKET), "--limit", "bare1")


def test_examples_of_the_page(site: Site) -> None:
    tasks = "".join(f"    {line}\n" for line in documented("howto/renew-certificates", "common_name: awx").splitlines())
    awx = f"- hosts: localhost\n  gather_facts: false\n  tasks:\n{tasks}"
    for text in (documented("howto/add-a-host", "module_defaults"),
                 documented("howto/upgrade-agents", "tasks_from: verify"), awx):
        site.play(book(site, text))
    assert (clients(site) / "awx.pem").exists()
    hosts = yaml.safe_load(documented("howto/add-a-host", "kvm1"))["magnetar"]["hosts"]
    assert set(hosts) == {"kvm1", "kvm2"}


def test_foreign_certificates_are_refused(site: Site) -> None:
    site.play(book(site, FOREIGN))
    host = site.hosts["bare1"]
    assert served(site, host, clients(site))
    for pki in (None, site.folder / "other"):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            served(site, host, pki)


def test_expired_certificates(site: Site, tmp_path: Path) -> None:
    pki, host = site.folder / "magnetar-pki", site.hosts["bare1"]
    for name in ("admin.pem", "admin.key"):
        shutil.copy(clients(site) / name, tmp_path)
    expire(tmp_path / "admin.pem", pki)
    with client(site, host, tmp_path) as late, pytest.raises(MagnetarError, match="Has client_cert expired"):
        late.list("server")
    expire(pki / "hosts/bare1.pem", pki)
    host.put(pki / "hosts/bare1.pem", "/etc/magnetar/tls/agent.pem")
    host.run(["systemctl", "restart", "magnetar-agent"])
    with client(site, host) as admin, pytest.raises(MagnetarError, match="its certificate has expired"):
        admin.list("server")
    assert configured(site, "bare1")["bare1"] > 1
    assert served(site, host, clients(site))


def test_another_ca_while_clients_still_have_the_old(site: Site) -> None:
    pki, old = site.folder / "magnetar-pki", site.folder / "old"
    shutil.copytree(pki / "clients", old)
    for name in ("ca.pem", "ca.key"):
        (pki / name).rename(old / name)
    host = site.hosts["bare1"]
    process = qemu(host)
    configured(site, "bare1", agent_ca_others=[str(old / "ca.pem")])
    before = served(site, host, old)
    sources = [site.machine_address, "fd00::/8"]
    configured(site, "magnetar", agent_cert_renew_now=True, agent_firewall_sources=sources)
    assert served(site, host, clients(site)) != before
    with pytest.raises((ssl.SSLError, ConnectionError)):
        served(site, host, old)
    assert not reaches(site.hosts["bare2"], host)  # only the machine may
    assert qemu(host) == process


def test_without_tcp_and_without_rules(site: Site) -> None:
    host, given = site.hosts["bare2"], {"agent_tls": "none", "agent_firewall": False}
    assert configured(site, "bare2", **given)["bare2"] > 1
    assert not reaches(site.hosts["bare1"], host)
    tables = host.run(["nft", "list", "tables"]).stdout.splitlines()
    assert "table inet magnetar" not in tables


def test_a_run_that_broke_off_is_made_good(site: Site) -> None:
    host, other = site.hosts["bare1"], site.hosts["bare2"]
    process = qemu(host)
    host.run(["sh", "-c", "echo log_level: debug >>/etc/magnetar/agent.yml; touch /etc/magnetar/tls/agent.pem"])
    said = site.play(book(site, CONFIGURE))
    assert re.search(r"HANDLER .* : Restart the agent\] \*+\n(.*\n)?changed: \[bare1\]", said)
    assert host.run(["grep", "log_level", "/etc/magnetar/agent.yml"], check=False).stdout == ""
    assert qemu(host) == process
    assert reaches(host, other)
    assert reaches(other, host)


def test_upgrade_under_running_guests(site: Site) -> None:
    released = site.raise_version("0.99.0")
    before = {name: (qemu(host), goes_on(host)) for name, host in site.hosts.items()}
    assert changes(site.job("Upgrade agents", "--check", "--limit", "bare1"))["bare1"] > 0
    assert released in site.hosts["bare1"].run(["magnetar", "version"]).stdout
    began = time.monotonic()
    with Asking(site, site.hosts["bare1"]) as asking:
        site.play("magnetar.compute.upgrade")
    assert not asking.errors
    assert asking.answers > 20
    print(f"\nroles: two hosts upgraded in turn in {time.monotonic() - began:.1f} s")
    for name, host in site.hosts.items():
        assert host.run(["magnetar", "version"]).stdout == "0.99.0\n"
        assert qemu(host) == before[name][0]
        assert goes_on(host) > before[name][1]


def test_a_release_that_fails_is_taken_back(site: Site) -> None:
    source = site.collection / "agent/magnetar_agent/api/serve.py"
    good = source.read_text()
    source.write_text(good + "\nraise SystemExit('this release is broken')\n")
    host = site.hosts["bare1"]
    release, process = host.run(["readlink", "/opt/magnetar/bin"]).stdout, qemu(host)
    try:
        said = site.play("magnetar.compute.upgrade", good=False)
    finally:
        source.write_text(good)
    assert "The release before is back in use" in said.replace("\n", " ")
    assert "bare2" not in changes(said)  # the first failure ends it
    assert host.run(["readlink", "/opt/magnetar/bin"]).stdout == release
    assert host.run(["systemctl", "is-active", "magnetar-agent"]).stdout == "active\n"
    assert qemu(host) == process
    goes_on(host)


def test_a_reboot_with_guests(site: Site) -> None:
    host, boots = site.hosts["bare2"], "grep -c 'GUEST ready' /var/lib/magnetar/servers/*/console.log"
    booted = int(host.run(["sh", "-c", boots]).stdout)
    host.reboot()
    for unit in ("magnetar-agent", "magnetar-firewall", "libvirtd"):
        assert host.run(["systemctl", "is-active", unit]).stdout == "active\n"
    assert "49152-49215" in host.run(["nft", "list", "table", "inet", "magnetar"]).stdout
    assert served(site, host, clients(site))
    end = time.monotonic() + 240
    while int(host.run(["sh", "-c", boots]).stdout) == booted:
        assert time.monotonic() < end, "the guest does not start with the host"
        time.sleep(0.5)
    assert int(host.run(["sh", "-c", boots]).stdout) == booted + 1
    assert "lan" in host.run(["virsh", "net-list", "--name"]).stdout
    assert configured(site, "bare2") == {"bare2": 0}


def test_uninstall(site: Site) -> None:
    refused = site.play(book(site, UNINSTALL), "-e", "agent_purge=true", good=False)
    left = dict(re.findall(r"(bare\d) has servers, networks or volumes: (.*?)\. They", refused))
    assert set(left) == {"bare1", "bare2"}
    assert re.fullmatch(r"magnetar-\S+, lan, kept", left["bare2"])
    assert all(host.run(["systemctl", "is-active", "magnetar-agent"]).stdout for host in site.hosts.values())
    site.play(book(site, REMOVE))
    assert all(count for count in changes(site.play(book(site, UNINSTALL), "--check")).values())
    site.play(book(site, UNINSTALL), "-e", "agent_purge=true")
    assert changes(site.play(book(site, UNINSTALL), "-e", "agent_purge=true")) == {"bare1": 0, "bare2": 0}
    for host in site.hosts.values():
        assert host.run(["ls", "-d", *OURS], check=False).stdout.count("No such file") == len(OURS)
        assert host.run(["getent", "group", "magnetar"], check=False).returncode
        assert "magnetar" not in host.run(["nft", "list", "tables"]).stdout
        assert host.run(["grep", "-rl", "--exclude=*-", "magnetar", "/etc"], check=False).stdout == ""
        assert host.run(["pgrep", "-f", "magnetar"], check=False).stdout == ""
        assert host.run(["systemctl", "is-system-running"]).stdout == "running\n"


def test_a_platform_that_nobody_has_tried(site: Site) -> None:
    host = site.hosts["bare2"]
    host.run(["sh", "-c", "sed -i 's/12/11/; s/bookworm/bullseye/' /etc/os-release; echo 11.9 >/etc/debian_version"])
    with pytest.raises(LabError, match="know Debian 12 and newer"):
        site.play("magnetar.compute.agents", "--limit", "bare2")
