# SPDX-License-Identifier: GPL-3.0-or-later
"""Bare lab hosts: Debian with systemd, sshd and Python, and nothing of Magnetar, on which roles install.

They are on a bridge of their own without a route to other networks. This module has what a site provides to them: a
package proxy for apt, a folder of wheels for pip, and a user with an SSH key who may use sudo.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import http.client
import http.server
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

import ansible_runner
import yaml

from tests.support.lab.hosts import (
    CACHE,
    CHECKOUT,
    PYTHON,
    RELEASE,
    SYSTEM,
    LabError,
    LabHost,
    base,
    claim_bridge,
    command,
    layered,
    locked,
    release_bridge,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

BARE = tuple(name for name in SYSTEM if name != "python3-venv")
# Every site has a bridge and a network of its own, so that several are there at once: magbare1 has 10.78.1.0/24.
BRIDGE, NETWORK, SITES = "magbare", "10.78", range(1, 100)
WHEELS = "/srv/wheels"
#: Units that the packages of the profiles ovn and network would start.
UNITS = ("openvswitch-switch", "ovs-vswitchd", "ovsdb-server", "ovs-record-hostname", "ovn-host", "ovn-controller",
         "ovn-central", "ovn-northd", "ovn-ovsdb-server-nb", "ovn-ovsdb-server-sb")
#: Units that the packages of the profiles rbd and ceph would start.
CEPH_UNITS = ("ceph.target", "ceph-crash", "ceph-mgr.target", "ceph-mon.target", "ceph-osd.target", "rbdmap",
              "smartmontools", "nvmf-autoconnect", "lvm2-monitor", "blk-availability", "dm-event.socket",
              "lvm2-lvmpolld.socket")
USER = "deploy"
TOOLS = Path(sys.executable).parent
# As hosts.QEMU_CONF: a container has no security driver and no controllers to give away.
QEMU_SETTINGS = {"security_driver": "none", "remember_owner": False, "namespaces": [], "cgroup_controllers": []}
TEMPLATES = {one["name"]: one for one in yaml.safe_load(
    (CHECKOUT / "docs/howto/awx/job_templates.yml").read_text())["job_templates"]}  # fmt: skip


class BareHost(LabHost):
    """A lab host without libvirt and QEMU, on the bridge of the site *number*, whose hosts have these *names*. *key*:
    the public key of `USER`; *proxy*: the port of the package proxy. *packed*: the agent's OS packages are installed
    already, as in a prepared machine image; their installation takes two cores half a minute. *ovn*: the packages of
    Open vSwitch and OVN are installed too; *ceph*: those of a Ceph cluster and its clients. *release*: number of
    Debian's release.
    """

    #: The locks whose wheels the host has.
    locks: tuple[str, ...] = ("agent", "control")

    def __init__(self, name: str, names: Sequence[str], number: int, key: str, proxy: int, packed: bool = False,
                 ovn: bool = False, ceph: bool = False, release: int = RELEASE) -> None:
        self.bridge, self.machine_address = f"{BRIDGE}{number}", f"{NETWORK}.{number}.1"
        self.addresses = {one: f"{NETWORK}.{number}.{at}" for at, one in enumerate(names, 11)}
        super().__init__(name, {wheels(PYTHON[release], self.locks): WHEELS})
        self.machine = f"{name}-{number}"
        self.key, self.proxy, self.packed, self.ovn, self.ceph = key, proxy, packed, ovn, ceph
        self.release = release

    def _base(self) -> Path | str:
        if self.ovn:
            return layered("ovn", ("ovn", "network"), UNITS)
        if self.ceph:
            return layered("ceph", ("rbd", "ceph"), CEPH_UNITS)
        return base(release=self.release) if self.packed else base("bare", BARE, self.release)

    def _configure(self, root: Path) -> None:
        for name, text in self._files().items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_text(text)
        command("chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", USER)
        folder = root / "home" / USER / ".ssh"
        folder.mkdir(mode=0o700)
        (folder / "authorized_keys").write_text(f"{self.key}\n")
        command("chroot", root, "chown", "-R", f"{USER}:{USER}", f"/home/{USER}/.ssh")

    def _files(self) -> dict[str, str]:
        found = super()._files()
        del found["etc/libvirt/qemu.conf"]
        proxy = f"http://{self.machine_address}:{self.proxy}"
        return {
            **found,
            "etc/apt/apt.conf.d/90lab": f'Acquire::http::Proxy "{proxy}";\n',
            "etc/pip.conf": f"[global]\nno-index = true\nfind-links = {WHEELS}\n",
            f"etc/sudoers.d/{USER}": f"{USER} ALL=(ALL) NOPASSWD: ALL\n",
        }

    def link(self, name: str, inner: str) -> str:
        """Add another link between the host, where it is named *inner*, and the bridge. Return its name on the machine.
        It vanishes with the host, but a little later than the bridge must be removed, so callers remove it.
        """
        link = f"{name}-{self.machine}"
        command("ip", "link", "add", link, "master", self.bridge, "type", "veth", "peer", "name", inner,
                "netns", str(self.leader))  # fmt: skip
        command("ip", "link", "set", link, "up")
        return link

    def known(self) -> str:
        """The host's line in a known_hosts file."""
        key = self.run(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout.split()
        return f"{self.address} {key[0]} {key[1]}\n"


def checksums(device: str) -> None:
    """Make this machine compute the checksums of packets sent by *device* in software (ETHTOOL_STXCSUM,
    linux/ethtool.h): an Open vSwitch that forwards in user space drops packets whose checksums are left to hardware,
    which a bridge does not have.
    """
    value = ctypes.create_string_buffer(struct.pack("=II", 0x17, 0))
    request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
    with socket.socket() as line:
        fcntl.ioctl(line, 0x8946, request)  # SIOCETHTOOL


def wheels(python: str = PYTHON[RELEASE], locks: Sequence[str] = BareHost.locks) -> Path:
    """Return a folder with the wheels of *locks* for hosts with a version of Python. It is filled anew when the locks
    change.
    """
    content = b"".join((CHECKOUT / "requirements" / f"{name}.txt").read_bytes() for name in locks)
    name = "wheels" if python == PYTHON[RELEASE] else f"wheels-{python}"
    name = "-".join((name, *(locks if locks != BareHost.locks else ())))
    folder, mark = CACHE / name, hashlib.sha256(content).hexdigest()
    with locked(name):
        if not (folder / mark).exists():
            shutil.rmtree(folder, ignore_errors=True)
            command(sys.executable, CHECKOUT / "tools/wheelhouse.py", "--python", python,
                    *(word for lock in locks for word in ("--lock", lock)), folder)
            (folder / mark).touch()
    return folder


def documented(page: str, words: str) -> str:
    """Return the YAML example in a page of docs that contains these *words*."""
    text = (CHECKOUT / "docs" / f"{page}.md").read_text()
    return next(found for found in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if words in found)


class PackageProxy:
    """An HTTP proxy that fetches files for hosts without a route out, and caches packages. A context manager; `port` is
    its port.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def __enter__(self) -> Self:
        (CACHE / "debs").mkdir(parents=True, exist_ok=True)
        self._server = http.server.ThreadingHTTPServer((self.address, 0), _Proxy)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if not self.path.startswith("http://"):
            self.send_error(400, "only http is fetched")
            return
        try:
            content = self._content()
        except urllib.error.HTTPError as error:
            self.send_error(error.code)
            return
        except (OSError, http.client.HTTPException) as error:
            self.send_error(502, str(error))
            return
        with content:
            self.send_response(200)
            self.send_header("Content-Length", str(os.fstat(content.fileno()).st_size))
            self.end_headers()
            with suppress(ConnectionError):
                shutil.copyfileobj(content, self.wfile)

    def _content(self) -> IO[bytes]:
        """Return the requested file. Only packages, which never change, are cached."""
        kept = CACHE / "debs" / hashlib.sha256(self.path.encode()).hexdigest()
        with suppress(FileNotFoundError):
            return kept.open("rb")
        file = tempfile.NamedTemporaryFile(dir=kept.parent)  # noqa: SIM115 (whoever gets it closes it)
        with urllib.request.urlopen(self.path, timeout=60) as answer:
            shutil.copyfileobj(answer, file)
        file.seek(0)
        if self.path.endswith(".deb"):
            file.flush()
            with suppress(FileExistsError):
                os.link(file.name, kept)
        return file

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: apt reports what it downloads."""


def free() -> int:
    """Reserve the number of a new site by creating its bridge, and return the number."""
    with locked("sites"):
        number = next(one for one in SITES if not Path(f"/sys/class/net/{BRIDGE}{one}").exists())
        claim_bridge(f"{BRIDGE}{number}", f"{NETWORK}.{number}.1")
    return number


class Site:
    """Bare hosts, and a controller that has only the collection, built and installed as for a release.

    `folder` has all files of the controller, `machine_address` is this machine's address for the hosts. `play` runs a
    playbook on the hosts. All hosts are in the group ``magnetar``, unless *groups* has other groups: the children of
    ``all`` in an inventory. *packed*: names of hosts that have the agent's OS packages already, with *ovn* also those
    of Open vSwitch and OVN, with *ceph* those of Ceph. *releases*: numbers of Debian's releases by host.
    """

    def __init__(self, folder: Path, names: Sequence[str], groups: dict[str, object] | None = None,
                 packed: Sequence[str] = (), ovn: bool = False, ceph: bool = False,
                 releases: Mapping[str, int] | None = None, **variables: object) -> None:
        self.folder, self.names, self.variables, self.groups = folder, names, variables, groups
        self.packed, self.ovn, self.ceph, self.releases = packed, ovn, ceph, dict(releases or {})
        self.hosts: dict[str, BareHost] = {}
        self.collections = folder / "collections"
        self.collection = self.collections / "ansible_collections/magnetar/compute"
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        with self._undo:
            self._controller()
            number = free()
            self._undo.callback(release_bridge, f"{BRIDGE}{number}")
            self.machine_address = f"{NETWORK}.{number}.1"
            proxy = self._undo.enter_context(PackageProxy(self.machine_address))
            key = (self.folder / "key.pub").read_text().strip()
            with ThreadPoolExecutor() as threads:
                made = [BareHost(name, self.names, number, key, proxy.port, name in self.packed, self.ovn, self.ceph,
                                 self.releases.get(name, RELEASE)) for name in self.names]
                starts = [(host, threads.submit(host.__enter__)) for host in made]
                for host, started in starts:
                    if started.exception() is None:
                        self.hosts[host.name] = host
                        self._undo.push(host.__exit__)
                for _host, started in starts:
                    started.result()  # raises the error of a host; the others end
            (self.folder / "known").write_text("".join(host.known() for host in self.hosts.values()))
            (self.folder / "inventory.yml").write_text(yaml.safe_dump(self._inventory()))
            self._undo = self._undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def _controller(self) -> None:
        (self.folder / "ansible.cfg").write_text("[defaults]\nlocalhost_warning = false\n")
        command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "key")
        self._collection()

    def raise_version(self, version: str) -> str:
        """Give the controller's collection another *version*, as a new release has, and return the version before."""
        project = self.collection / "pyproject.toml"
        before = re.search(r'^version = "(.*)"$', text := project.read_text(), re.MULTILINE)
        assert before
        project.write_text(text.replace(before[0], f'version = "{version}"', 1))
        return before[1]

    def _collection(self) -> None:
        galaxy, given = (TOOLS / "ansible-galaxy", "collection"), {"env": self._environment()}
        command(*galaxy, "build", "--output-path", self.folder, CHECKOUT, **given)
        archive = next(self.folder.glob("magnetar-compute-*.tar.gz"))
        command(*galaxy, "install", "--offline", "-p", self.collections, archive, **given)

    def _environment(self) -> dict[str, str]:
        """Return the environment of the controller's processes, without this machine's settings of Ansible."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
            "ANSIBLE_COLLECTIONS_PATH": str(self.collections), "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"),
            "ANSIBLE_HOME": str(self.folder / "ansible"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_PIPELINING": "1",
            "LC_ALL": "C.UTF-8", "PATH": f"{TOOLS}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(self.folder / "cache"),
        }  # fmt: skip

    def _inventory(self) -> dict[str, object]:
        variables = {
            "ansible_user": USER, "ansible_ssh_private_key_file": str(self.folder / "key"),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.folder}/known -o StrictHostKeyChecking=yes",
            "ansible_python_interpreter": "/usr/bin/python3", "agent_qemu_settings": QEMU_SETTINGS,
            "agent_settings": {"virt_type": "qemu"}, **self.variables,
        }  # fmt: skip
        hosts = {host.name: {"ansible_host": host.address} for host in self.hosts.values()}
        if self.groups is not None:
            return {"all": {"hosts": hosts, "vars": variables, "children": self.groups}}
        return {"magnetar": {"hosts": hosts, "vars": variables}}

    def play(self, playbook: str | Path, *options: str, good: bool | None = True) -> str:
        """Run a playbook, and return the output of ansible-playbook. Raises `LabError` when its success differs from
        *good*; ``None`` accepts both.
        """
        words = [TOOLS / "ansible-playbook", "-i", self.folder / "inventory.yml", playbook, *options]
        done = subprocess.run(
            words, check=False, env=self._environment(), cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if good is not None and (done.returncode == 0) is not good:
            raise LabError(f"{playbook} ended with {done.returncode}:\n{done.stdout[-6000:]}")
        return done.stdout

    def job(self, template: str, *options: str, **answers: object) -> str:
        """Run the job of an AWX template (docs/howto/awx) with ansible-runner, as AWX does. *answers* replace defaults
        of the template. Return its output; raises `LabError` when it fails.
        """
        asked = TEMPLATES[template].get("survey_spec", {"spec": ()})["spec"]
        given = {one["variable"]: one["default"] for one in asked if "default" in one}
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            done = ansible_runner.run(
                private_data_dir=folder, playbook=f"magnetar.compute.{Path(TEMPLATES[template]['playbook']).stem}",
                inventory=str(self.folder / "inventory.yml"), cmdline=shlex.join(options), quiet=True,
                extravars={**given, **answers}, envvars=self._environment(),
            )  # fmt: skip
            said = str(done.stdout.read())
        if done.status != "successful":
            raise LabError(f"the job {template} {done.status}:\n{said[-6000:]}")
        return said
