# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps that prepare this machine (OS packages, environments, libvirt, the agent), and the removal of what they make.

Standard library only: it runs under a fresh Debian's ``/usr/bin/python3``. Each step may be repeated at no cost.
"""

from __future__ import annotations

import ast
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
#: Inventories of lab hosts: for `--hosts`, and for the cloud on OVN.
HOSTS, CLOUD = CACHE / "hosts/inventory.yml", CACHE / "cloud/inventory.yml"
LOG = Path("/var/log/magnetar-agent.log")
UNIT = Path("/etc/systemd/system/magnetar-agent.service")
METADATA_UNITS = [UNIT.with_name(f"magnetar-metadata.{kind}") for kind in ("socket", "service")]
COLLECTION = CACHE / "ansible_collections" / "magnetar" / "compute"
PYTHON = "/usr/bin/python3"
SYSTEMD = Path("/run/systemd/system").is_dir()
ROLE = ROOT / "roles" / "agent"
sys.path.insert(0, str(ROLE / "files"))
# These two files do the same work here as in the role on a host.
import pack  # noqa: E402
import release  # noqa: E402


class Failed(Exception):
    """A step failed; the text has the reason and a remedy."""


@contextmanager
def timed_step(name: str) -> Iterator[None]:
    """Within the context, print the step's name, then its duration in seconds."""
    started = time.monotonic()
    print(f"==> {name} …", flush=True)
    try:
        yield
    except BaseException:
        print(f"    failed: {name}", flush=True)
        raise
    print(f"    done: {name} ({time.monotonic() - started:.1f} s)", flush=True)


def run_concurrently(*steps: Callable[[], Any]) -> list[Any]:
    """Run *steps* in parallel; return their results in the same order. When steps fail, raises the exception of the
    first after all have ended.
    """
    with ThreadPoolExecutor(len(steps)) as threads:
        return [future.result() for future in [threads.submit(step) for step in steps]]


def run_checked(*words: object, **more: object) -> str:
    """Run the command *words* and return its output. *more*: arguments of ``subprocess.run``. Raises `Failed` with its
    last lines if it fails."""
    arguments = [str(part) for part in words]
    done = subprocess.run(arguments, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)  # type: ignore[call-overload]
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise Failed(f"`{' '.join(arguments)}` ended with status {done.returncode}:\n{tail}")
    return str(done.stdout)


def need_root() -> None:
    """Raise `Failed` unless the user is root."""
    if os.geteuid():
        raise Failed("This installs packages and starts services, so it needs root: run it with sudo.")


def os_packages(*profiles: str) -> list[str]:
    """Return the names of Debian's packages in bindep.txt that belong to one of *profiles*."""
    names = []
    for line in (ROOT / "bindep.txt").read_text(encoding="utf-8").splitlines():
        match = re.match(r"^(\S+) \[(.*)\]$", line)
        words = set(match[2].split()) if match else set()
        if match and "platform:dpkg" in words and words & set(profiles):
            names.append(match[1])
    return names


def install_packages(*profiles: str) -> None:
    """Install the OS packages of these profiles that are missing. apt's index is fetched only when some are missing."""
    with timed_step(f"OS packages ({', '.join(profiles)})"):
        names = os_packages(*profiles)
        shown = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *names],
            check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ).stdout  # fmt: skip
        missing = [name for name in names if f"{name} installed" not in shown.splitlines()]
        if missing:
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            run_checked("apt-get", "update", "-q", env=environment)
            run_checked("apt-get", "install", "-y", "-q", "--no-install-recommends", *missing, env=environment)


def _hash(files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def _venv(folder: Path, stamp: str, install: Callable[[Path], None]) -> None:
    """Create the virtual environment *folder* if it is missing, and call *install* with it. Do nothing if the
    environment exists and was made with the same *stamp*, a text about everything that is installed."""
    mark = folder / "magnetar.stamp"
    if mark.exists() and mark.read_text(encoding="utf-8") == stamp:
        return
    if not (folder / "bin" / "python").exists():
        run_checked(PYTHON, "-m", "venv", folder)
    release.link_libvirt(folder)
    install(folder)
    mark.write_text(stamp, encoding="utf-8")


def _install_words(*locks: Path) -> list[object]:
    """Return arguments with which pip, or uv's pip, installs exactly the packages of *locks*."""
    return ["install", "-q", "--require-hashes", "--only-binary", ":all:",
            *(word for lock in locks for word in ("-r", lock))]


def pip_configuration(environment: Path) -> dict[str, str]:
    """Return pip's configuration by name, as pip of the virtual *environment* reports it for an installation."""
    shown = subprocess.run([environment / "bin/pip", "config", "list"], check=False, text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL).stdout
    values = re.findall(r"^(\S+\.)(\S+)=('.*'|\".*\")$", shown, re.MULTILINE)
    return {name: ast.literal_eval(value) for section in ("global.", "install.", ":env:.")
            for place, name, value in values if place == section}


def _sources_for_uv(environment: Path) -> tuple[list[str], dict[str, str]]:
    """Return arguments and environment variables that give uv the package sources in pip's configuration, which it
    does not read.
    """
    given = pip_configuration(environment)
    index, folders = given.get("index-url", ""), ",".join(given.get("find-links", "").split())
    settings = {"UV_DEFAULT_INDEX": index, "UV_FIND_LINKS": folders}
    closed = given.get("no-index", "").lower() in ("1", "true", "yes", "on")
    return ["--no-index"] * closed, {name: value for name, value in settings.items() if value}


def install_locked(environment: Path, *locks: Path, compiled: bool = False) -> None:
    """Install the packages of *locks* in the virtual *environment*: with the development environment's uv, which takes
    a tenth of pip's time, or with pip when uv fails: pip knows package sources that uv may not reach. *compiled*: with
    bytecode, for an environment that its users may not write to.
    """
    words = _install_words(*locks)
    sources, settings = _sources_for_uv(environment)
    settings |= {"UV_NO_CONFIG": "1", "UV_SYSTEM_CERTS": "1", "VIRTUAL_ENV": str(environment)}
    try:
        run_checked(VENV / "bin/uv", "pip", *words, *sources, *["--compile-bytecode"] * compiled,
                    env={**os.environ, **settings})
    except (Failed, OSError):
        print("    (pip fetches the packages, since uv cannot: it takes some minutes)", flush=True)
        run_checked(environment / "bin/pip", *words, "--disable-pip-version-check")


def install_uv(environment: Path, lock: Path) -> None:
    """Install uv in the virtual *environment*, with the version and hash in *lock*."""
    entry = re.search(r"^uv==.*\n(?:[ #].*\n)*", lock.read_text(encoding="utf-8"), re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        only = Path(folder) / "uv.txt"
        only.write_text(entry[0] if entry else "", encoding="utf-8")
        run_checked(environment / "bin/pip", *_install_words(only), "--disable-pip-version-check")


def development_environment() -> None:
    """Create ``.venv``, the virtual environment of checks and playbooks. It links to the sources instead of copying
    them.
    """
    lock = ROOT / "requirements" / "dev.txt"

    def install(folder: Path) -> None:
        install_uv(folder, lock)
        install_locked(folder, lock)
        site = next((folder / "lib").glob("python3*/site-packages"))
        (site / "magnetar.pth").write_text(f"{CACHE / 'src'}\n", encoding="utf-8")

    with timed_step("Development environment (.venv)"):
        _venv(VENV, _hash([lock]), install)
        link_checkout()


def link_checkout() -> None:
    """Create links under which the checkout can be imported: two packages, the core, and the collection."""
    packages = {"magnetar_agent": ROOT / "agent/magnetar_agent", "magnetar_control": ROOT / "control/magnetar_control",
                "magnetar_core": ROOT / "plugins/module_utils/core"}
    for link, target in [*((CACHE / "src" / name, folder) for name, folder in packages.items()), (COLLECTION, ROOT)]:
        link.parent.mkdir(parents=True, exist_ok=True)
        relative = os.path.relpath(target, link.parent)
        if not link.is_symlink() or str(link.readlink()) != relative:
            link.unlink(missing_ok=True)
            link.symlink_to(relative)


def agent_environment() -> bool:
    """Install agent and control plane from this checkout's sources in ``/opt/magnetar``. Return whether the
    installation had to change.
    """
    digest = hashlib.sha256(f"{pack.digest()} {EXTRAS}".encode()).hexdigest()
    fresh = release.read(AGENT_VENV / release.STAMP) != digest
    with timed_step(f"Environment of agent and control plane ({AGENT_VENV})"):
        if fresh:
            archive = CACHE / "magnetar.tar.gz"
            pack.pack(archive)
            release.install(AGENT_VENV, str(archive), digest, EXTRAS, installer=partial(install_locked, compiled=True))
        if not os.path.lexists(COMMAND):
            COMMAND.symlink_to(AGENT_VENV / "bin" / "magnetar")
    return fresh


def make_environments() -> bool:
    """Create both virtual environments. Return whether agent and control plane were installed again."""
    development_environment()
    return agent_environment()


def unit_text(name: str = UNIT.name) -> str:
    """Return the text of the systemd unit *name*, the agent's by default, from the role's template."""
    text = (ROLE / "templates" / f"{name}.j2").read_text(encoding="utf-8")
    for placeholder, value in (("agent_venv", AGENT_VENV), ("agent_unit_write_paths", STATE),
                               ("agent_unit_hides_modules", "yes")):
        text = text.replace(f"{{{{ {placeholder} }}}}", str(value))
    return text


def make_group() -> None:
    """Create the group whose members may use the agent's socket."""
    with timed_step("Group magnetar"):
        try:
            grp.getgrnam("magnetar")
        except KeyError:
            run_checked("groupadd", "--system", "magnetar")


def start_process(name: str, *words: str, umask: int = -1) -> None:
    """Start a background process, and store its pid in /run/magnetar, so that `down` ends only this process.

    Its output goes to `LOG`; *umask* is octal, -1 for this process's.
    """
    RUN.mkdir(parents=True, exist_ok=True)
    with LOG.open("ab") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                   cwd="/", umask=umask)
    (RUN / f"{name}.pid").write_text(f"{process.pid} {_start_ticks(process.pid)}", encoding="utf-8")


def _start_ticks(pid: int) -> str:
    """Return the start time of the process in clock ticks. It distinguishes the process from a later one with the same
    pid.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def stop_process(name: str, limit: float = 60.0) -> None:
    """End the process that `start_process` started under this name, if it runs. *limit* is in seconds."""
    mark = RUN / f"{name}.pid"
    if not mark.exists():
        return
    pid, _space, born = mark.read_text(encoding="utf-8").partition(" ")
    if born and _start_ticks(int(pid)) == born:
        os.kill(int(pid), signal.SIGTERM)
        end = time.monotonic() + limit
        while _start_ticks(int(pid)) == born and time.monotonic() < end and not _ended(int(pid)):
            time.sleep(0.1)
    mark.unlink()


def _runs(name: str) -> bool:
    """Return whether the process that `start_process` started under this name runs."""
    mark = RUN / f"{name}.pid"
    pid, _space, born = mark.read_text(encoding="utf-8").partition(" ") if mark.exists() else ("0", "", "")
    return bool(born) and _start_ticks(int(pid)) == born and not _ended(int(pid))


def _ended(pid: int) -> bool:
    """Return whether the process *pid* is a zombie: it has ended, and its parent has not fetched its exit status yet.
    """
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
        return True


def wait_until_ready(ready: Callable[[], bool], subject: str, limit: float = 60.0) -> None:
    """Wait until *ready* is true, *limit* seconds at most. Raises `Failed` naming *subject*."""
    end = time.monotonic() + limit
    while not ready():
        if time.monotonic() > end:
            raise Failed(f"{subject} did not answer within {limit:.0f} s. See {LOG} or `journalctl -u magnetar-agent`.")
        time.sleep(0.1)


def start_libvirt() -> None:
    """Start libvirtd and virtlogd."""
    with timed_step("libvirt"):
        if SYSTEMD:
            run_checked("systemctl", "enable", "--now", "virtlogd.socket", "libvirtd.service")
        else:
            kvm = Path("/dev/kvm")
            if kvm.exists() and kvm.stat().st_gid == 0:  # Debian's udev sets it; without it libvirt probes every call
                shutil.chown(kvm, group="kvm")
                kvm.chmod(0o660)
            if not _answers("/run/libvirt/virtlogd-sock"):
                Path("/run/libvirt").mkdir(exist_ok=True)
                start_process("virtlogd", "tini", "-s", "--", "virtlogd")
            for path in Path("/var/lib/swtpm-localca").glob("*"):
                shutil.chown(path, "tss")  # a libvirtd that ran before swtpm was installed made it as root
            if not _answers("/run/libvirt/libvirt-sock"):
                # tini reaps ended children, which PID 1 may not do.
                start_process("libvirtd", "tini", "-s", "--", "libvirtd")
        wait_until_ready(lambda: _answers("/run/libvirt/libvirt-sock"), "libvirtd")


def agent_is_healthy() -> bool:
    """Return whether the agent reports that it is ready."""
    connection = http.client.HTTPConnection("localhost", timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(20)
    try:
        connection.sock.connect(str(SOCKET))
    except OSError:
        connection.close()
        return False
    return answers_healthz(connection)


def answers_healthz(connection: http.client.HTTPConnection) -> bool:
    """Return whether the service at the other end of *connection* reports at ``/healthz`` that it is ready."""
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def write_unit(path: Path, text: str) -> bool:
    """Write the unit file *path* with this *text*, and make systemd read it; return whether the text was new."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    run_checked("systemctl", "daemon-reload")
    return True


def run_service(path: Path, text: str, *, fresh: bool) -> None:
    """Start the unit *path* with this *text* in systemd. Restart it when the text is new or after a new installation
    (*fresh*).
    """
    fresh = write_unit(path, text) or fresh
    run_checked("systemctl", "enable", path.name)
    run_checked("systemctl", "restart" if fresh else "start", path.name)


def remove_service(path: Path) -> None:
    """Stop and remove the unit *path*."""
    if SYSTEMD and path.exists():
        run_checked("systemctl", "disable", "--now", path.name)
        path.unlink()
        run_checked("systemctl", "daemon-reload")


def start_agent(fresh: bool) -> None:
    """Start the agent and wait until it is ready; restart it after a new installation (*fresh*)."""
    with timed_step("Agent"):
        RUN.mkdir(parents=True, exist_ok=True)
        if SYSTEMD:
            new = [write_unit(path, unit_text(path.name)) for path in METADATA_UNITS]
            run_service(UNIT, unit_text(), fresh=fresh or any(new))
        elif fresh or not agent_is_healthy():
            stop_process("agent")
            start_process("agent", f"{AGENT_VENV}/bin/magnetar", "agent")
        wait_until_ready(agent_is_healthy, "The agent")


def lab_hosts(inventory: Path, names: list[str], *words: str) -> None:
    """Run bare Debian hosts with these *names* next to this machine, until `down`. *words*: arguments of labhosts.py.
    *inventory*: the inventory file, `HOSTS` or `CLOUD`.
    """
    folder = inventory.parent
    ready = folder / "ready"

    def answer() -> bool:
        if not _runs(folder.name):
            raise Failed(f"The lab hosts did not start: see the end of {LOG}.")
        return ready.exists()

    with timed_step(f"Lab hosts {', '.join(names)} (the first time some minutes: Debian is unpacked)"):
        if not (_runs(folder.name) and ready.exists() and ready.read_text(encoding="utf-8").split() == names):
            stop_process(folder.name)
            ready.unlink(missing_ok=True)
            start_process(folder.name, str(VENV / "bin/python"), str(ROOT / "tools/labhosts.py"), *words, str(folder),
                          *names)
        wait_until_ready(answer, "The process that keeps the lab hosts", 900)


def remove_installation() -> None:
    """End the processes that these steps started, and remove the files that they made. OS packages stay installed."""
    with timed_step("Agent, libvirt and environments: remove"):
        for path in (UNIT, *METADATA_UNITS):
            remove_service(path)
        for name in (HOSTS.parent.name, CLOUD.parent.name, "agent", "libvirtd", "virtlogd"):
            stop_process(name)
        for folder in (AGENT_VENV, STATE, RUN, VENV, CACHE):
            shutil.rmtree(folder, ignore_errors=True)
        LOG.unlink(missing_ok=True)
        if COMMAND.is_symlink():
            COMMAND.unlink()
        if subprocess.run(["getent", "group", "magnetar"], check=False, stdout=subprocess.DEVNULL).returncode == 0:
            run_checked("groupdel", "magnetar")


def main(work: Callable[[], int]) -> int:
    """Run *work*; print a failure without a traceback, and exit with status 1."""
    try:
        return work()
    except Failed as error:
        print(f"{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
