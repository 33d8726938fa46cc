# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps that prepare this machine: OS packages, environments, libvirt, the agent; and the way back.

Standard library only: it runs under a fresh Debian's ``/usr/bin/python3``. Each step may be repeated at no cost.
"""

from __future__ import annotations

import grp
import hashlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CACHE, VENV, AGENT_VENV = ROOT / ".cache", ROOT / ".venv", Path("/opt/magnetar")
RUN, SOCKET = Path("/run/magnetar"), Path("/run/magnetar/agent.sock")
STATE = Path("/var/lib/magnetar")
COMMAND = Path("/usr/local/bin/magnetar")
EXTRAS = "agent,control"
#: Inventories of lab hosts: those of `--hosts`, and that of the cloud on OVN.
HOSTS, CLOUD = CACHE / "hosts/inventory.yml", CACHE / "cloud/inventory.yml"
LOG = Path("/var/log/magnetar-agent.log")
UNIT = Path("/etc/systemd/system/magnetar-agent.service")
METADATA_UNITS = [UNIT.with_name(f"magnetar-metadata.{kind}") for kind in ("socket", "service")]
COLLECTION = CACHE / "ansible_collections" / "magnetar" / "compute"
PYTHON = "/usr/bin/python3"
SYSTEMD = Path("/run/systemd/system").is_dir()
ROLE = ROOT / "roles" / "agent"
sys.path.insert(0, str(ROLE / "files"))
# What the role does on a host is done here by the same two files.
import pack  # noqa: E402
import release  # noqa: E402


class Failed(Exception):
    """A step failed; the text says why and what to do."""


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print the step's name, then how long it took (seconds)."""
    started = time.monotonic()
    print(f"==> {name} …", flush=True)
    try:
        yield
    except BaseException:
        print(f"    failed: {name}", flush=True)
        raise
    print(f"    done: {name} ({time.monotonic() - started:.1f} s)", flush=True)


def at_once(*steps: Callable[[], Any]) -> list[Any]:
    """Run *steps* beside one another; return their results, in this order. Raises what the first of them raised, when
    all have ended."""
    with ThreadPoolExecutor(len(steps)) as threads:
        return [future.result() for future in [threads.submit(one) for one in steps]]


def run(*words: object, **more: object) -> str:
    """Output of the command; raises `Failed` with its last lines."""
    arguments = [str(word) for word in words]
    done = subprocess.run(arguments, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)  # type: ignore[call-overload]
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise Failed(f"`{' '.join(arguments)}` ended with status {done.returncode}:\n{tail}")
    return str(done.stdout)


def need_root() -> None:
    """Refuse to go on as another user."""
    if os.geteuid():
        raise Failed("This installs packages and starts services, so it needs root: run it with sudo.")


def os_packages(*profiles: str) -> list[str]:
    """Names in bindep.txt which belong to one of *profiles*."""
    found = []
    for line in (ROOT / "bindep.txt").read_text(encoding="utf-8").splitlines():
        match = re.match(r"^(\S+) \[(.*)\]$", line)
        if match and set(match[2].split()) & set(profiles):
            found.append(match[1])
    return found


def install_packages(*profiles: str) -> None:
    """Install what is missing; apt's list is fetched only then."""
    with step(f"OS packages ({', '.join(profiles)})"):
        wanted = os_packages(*profiles)
        shown = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *wanted],
            check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ).stdout  # fmt: skip
        missing = [name for name in wanted if f"{name} installed" not in shown.splitlines()]
        if missing:
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            run("apt-get", "update", "-q", env=environment)
            run("apt-get", "install", "-y", "-q", "--no-install-recommends", *missing, env=environment)


def _hash(files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def _venv(folder: Path, stamp: str, install: Callable[[Path], None]) -> None:
    """Make the environment *folder* unless its stamp says that it is as wanted."""
    mark = folder / "magnetar.stamp"
    if mark.exists() and mark.read_text(encoding="utf-8") == stamp:
        return
    if not (folder / "bin" / "python").exists():
        run(PYTHON, "-m", "venv", folder)
    release.link_libvirt(folder)
    install(folder)
    mark.write_text(stamp, encoding="utf-8")


def _install_words(*locks: Path) -> list[object]:
    """Return the arguments by which pip, or uv's pip, installs the packages of *locks* and nothing else."""
    return ["install", "-q", "--require-hashes", "--only-binary", ":all:",
            *(word for lock in locks for word in ("-r", lock))]


def install_locked(environment: Path, *locks: Path, compiled: bool = False) -> None:
    """Install the packages of *locks* in the virtual *environment*: by the development environment's uv, which takes a
    tenth of pip's time, else by pip. What uv reads is not what pip reads: it may not find the way to the packages.
    *compiled*: with bytecode, for an environment that its users may not write to."""
    words = _install_words(*locks)
    settings = {"UV_NO_CONFIG": "1", "UV_SYSTEM_CERTS": "1", "VIRTUAL_ENV": str(environment)}
    index = os.environ.get("PIP_INDEX_URL") or subprocess.run(
        [environment / "bin/pip", "config", "get", "global.index-url"], check=False, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL).stdout.strip()
    settings |= {"UV_DEFAULT_INDEX": index} if index else {}
    try:
        run(VENV / "bin/uv", "pip", *words, *["--compile-bytecode"] * compiled, env={**os.environ, **settings})
    except (Failed, OSError):
        print("    (pip fetches the packages, since uv cannot: it takes some minutes)", flush=True)
        run(environment / "bin/pip", *words, "--disable-pip-version-check")


def uv(environment: Path, lock: Path) -> None:
    """Install uv in the virtual *environment*, of the version and hash in *lock*."""
    entry = re.search(r"^uv==.*\n(?:[ #].*\n)*", lock.read_text(encoding="utf-8"), re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        only = Path(folder) / "uv.txt"
        only.write_text(entry[0] if entry else "", encoding="utf-8")
        run(environment / "bin/pip", *_install_words(only), "--disable-pip-version-check")


def development_environment() -> None:
    """``.venv``: what checks and playbooks run with; the sources are linked, not copied."""
    lock = ROOT / "requirements" / "dev.txt"

    def install(folder: Path) -> None:
        uv(folder, lock)
        install_locked(folder, lock)
        site = next((folder / "lib").glob("python3*/site-packages"))
        (site / "magnetar.pth").write_text(f"{CACHE / 'src'}\n", encoding="utf-8")

    with step("Development environment (.venv)"):
        _venv(VENV, _hash([lock]), install)
        links()


def links() -> None:
    """The checkout under the names by which it is imported: two packages, and the collection."""
    packages = {"magnetar_agent": ROOT / "agent/magnetar_agent", "magnetar_control": ROOT / "control/magnetar_control",
                "magnetar_core": ROOT / "plugins/module_utils/core"}
    for link, target in [*((CACHE / "src" / name, folder) for name, folder in packages.items()), (COLLECTION, ROOT)]:
        link.parent.mkdir(parents=True, exist_ok=True)
        relative = os.path.relpath(target, link.parent)
        if not link.is_symlink() or str(link.readlink()) != relative:
            link.unlink(missing_ok=True)
            link.symlink_to(relative)


def agent_environment() -> bool:
    """``/opt/magnetar``: agent and control plane from this checkout's sources. True when they were installed anew."""
    digest = hashlib.sha256(f"{pack.digest()} {EXTRAS}".encode()).hexdigest()
    fresh = release.read(AGENT_VENV / release.STAMP) != digest
    with step(f"Environment of agent and control plane ({AGENT_VENV})"):
        if fresh:
            archive = CACHE / "magnetar.tar.gz"
            pack.pack(archive)
            release.install(AGENT_VENV, str(archive), digest, EXTRAS, installer=partial(install_locked, compiled=True))
        if not os.path.lexists(COMMAND):
            COMMAND.symlink_to(AGENT_VENV / "bin" / "magnetar")
    return fresh


def environments() -> bool:
    """Make both environments. True when agent and control plane were installed anew."""
    development_environment()
    return agent_environment()


def unit(name: str = UNIT.name) -> str:
    """The unit of this *name*, the agent's by default, from the role's own template."""
    text = (ROLE / "templates" / f"{name}.j2").read_text(encoding="utf-8")
    for word, value in (("agent_venv", AGENT_VENV), ("agent_unit_write_paths", STATE),
                        ("agent_unit_hides_modules", "yes")):
        text = text.replace(f"{{{{ {word} }}}}", str(value))
    return text


def group() -> None:
    """The group whose members may use the agent's socket."""
    with step("Group magnetar"):
        try:
            grp.getgrnam("magnetar")
        except KeyError:
            run("groupadd", "--system", "magnetar")


def start(name: str, *words: str, umask: int = -1) -> None:
    """Start a background process, and keep its pid in /run/magnetar, so that `down` ends just this.

    What it says goes to `LOG`; *umask* is octal, -1 for this process's."""
    RUN.mkdir(parents=True, exist_ok=True)
    with LOG.open("ab") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                   cwd="/", umask=umask)
    (RUN / f"{name}.pid").write_text(f"{process.pid} {_born(process.pid)}", encoding="utf-8")


def _born(pid: int) -> str:
    """When the process started (clock ticks), which tells it from a later one of the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def stop(name: str, limit: float = 60.0) -> None:
    """End what `start` has started under this name; fine when it does not run. *limit* is seconds."""
    mark = RUN / f"{name}.pid"
    if not mark.exists():
        return
    pid, _space, born = mark.read_text(encoding="utf-8").partition(" ")
    if born and _born(int(pid)) == born:
        os.kill(int(pid), signal.SIGTERM)
        end = time.monotonic() + limit
        while _born(int(pid)) == born and time.monotonic() < end and not _ended(int(pid)):
            time.sleep(0.1)
    mark.unlink()


def _runs(name: str) -> bool:
    """True while the process that `start` has started under this name runs."""
    mark = RUN / f"{name}.pid"
    pid, _space, born = mark.read_text(encoding="utf-8").partition(" ") if mark.exists() else ("0", "", "")
    return bool(born) and _born(int(pid)) == born and not _ended(int(pid))


def _ended(pid: int) -> bool:
    """True for a process that only waits for its parent to take notice."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
        return True


def until(ready: Callable[[], bool], what: str, limit: float = 60.0) -> None:
    """Wait for *what*, *limit* seconds at most."""
    end = time.monotonic() + limit
    while not ready():
        if time.monotonic() > end:
            raise Failed(f"{what} did not answer within {limit:.0f} s. See {LOG} or `journalctl -u magnetar-agent`.")
        time.sleep(0.1)


def libvirt() -> None:
    """libvirtd and virtlogd run."""
    with step("libvirt"):
        if SYSTEMD:
            run("systemctl", "enable", "--now", "virtlogd.socket", "libvirtd.service")
        else:
            kvm = Path("/dev/kvm")
            if kvm.exists() and kvm.stat().st_gid == 0:  # as Debian's udev sets it; else libvirt probes at every call
                shutil.chown(kvm, group="kvm")
                kvm.chmod(0o660)
            if not _answers("/run/libvirt/virtlogd-sock"):
                Path("/run/libvirt").mkdir(exist_ok=True)
                start("virtlogd", "tini", "-s", "--", "virtlogd")
            for one in Path("/var/lib/swtpm-localca").glob("*"):
                shutil.chown(one, "tss")  # as root's it was made by a libvirtd that ran before swtpm was installed
            if not _answers("/run/libvirt/libvirt-sock"):
                # tini takes notice of ended children, which PID 1 may not.
                start("libvirtd", "tini", "-s", "--", "libvirtd")
        until(lambda: _answers("/run/libvirt/libvirt-sock"), "libvirtd")


def healthy() -> bool:
    """True when the agent says that it is ready."""
    connection = http.client.HTTPConnection("localhost", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(20)
    try:
        connection.sock.connect(str(SOCKET))
    except OSError:
        connection.close()
        return False
    return well(connection)


def well(connection: http.client.HTTPConnection) -> bool:
    """True when the other end says that it is ready."""
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def written(path: Path, text: str) -> bool:
    """systemd knows the unit *path* by this *text*; whether that is new."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    run("systemctl", "daemon-reload")
    return True


def service(path: Path, text: str, *, fresh: bool) -> None:
    """systemd runs the unit *path* of this *text*, started anew when that is new or when it was installed anew."""
    fresh = written(path, text) or fresh
    run("systemctl", "enable", path.name)
    run("systemctl", "restart" if fresh else "start", path.name)


def no_service(path: Path) -> None:
    """The unit *path* has ended and is gone."""
    if SYSTEMD and path.exists():
        run("systemctl", "disable", "--now", path.name)
        path.unlink()
        run("systemctl", "daemon-reload")


def agent(fresh: bool) -> None:
    """The agent runs and is ready; it is started anew when it was installed anew (*fresh*)."""
    with step("Agent"):
        RUN.mkdir(parents=True, exist_ok=True)
        if SYSTEMD:
            new = [written(path, unit(path.name)) for path in METADATA_UNITS]
            service(UNIT, unit(), fresh=fresh or any(new))
        elif fresh or not healthy():
            stop("agent")
            start("agent", f"{AGENT_VENV}/bin/magnetar", "agent")
        until(healthy, "The agent")


def lab_hosts(inventory: Path, names: list[str], *words: str) -> None:
    """Bare Debian hosts of these names run beside this machine, until `down`: labhosts.py is started with *words*.
    *inventory*: `HOSTS` or `CLOUD`."""
    folder = inventory.parent
    ready = folder / "ready"

    def answer() -> bool:
        if not _runs(folder.name):
            raise Failed(f"The lab hosts did not start: see the end of {LOG}.")
        return ready.exists()

    with step(f"Lab hosts {', '.join(names)} (the first time some minutes: Debian is unpacked)"):
        if not (_runs(folder.name) and ready.exists() and ready.read_text(encoding="utf-8").split() == names):
            stop(folder.name)
            ready.unlink(missing_ok=True)
            start(folder.name, str(VENV / "bin/python"), str(ROOT / "tools/labhosts.py"), *words, str(folder), *names)
        until(answer, "The process that keeps the lab hosts", 900)


def down() -> None:
    """End what was started here and remove what was made; OS packages stay."""
    with step("Agent, libvirt and environments: remove"):
        for path in (UNIT, *METADATA_UNITS):
            no_service(path)
        for name in (HOSTS.parent.name, CLOUD.parent.name, "agent", "libvirtd", "virtlogd"):
            stop(name)
        for folder in (AGENT_VENV, STATE, RUN, VENV, CACHE):
            shutil.rmtree(folder, ignore_errors=True)
        LOG.unlink(missing_ok=True)
        if COMMAND.is_symlink():
            COMMAND.unlink()
        if subprocess.run(["getent", "group", "magnetar"], check=False, stdout=subprocess.DEVNULL).returncode == 0:
            run("groupdel", "magnetar")


def main(work: Callable[[], int]) -> int:
    """Run *work*; a failure is said in plain words, with status 1."""
    try:
        return work()
    except Failed as error:
        print(f"{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
