# SPDX-License-Identifier: GPL-3.0-or-later
"""Lab hosts: Debian systems with systemd and libvirt on one bridge of this machine, each created in seconds.

A host is a systemd-nspawn container over a throw-away overlay of one base image. The base (debootstrap plus the
packages of bindep.txt's profile `agent`) is built once into ``.cache/lab``. Root is needed. Hosts have no route to
other networks.

    with LabHost("lab1", binds={checkout: "/srv/magnetar"}) as host:
        host.run(["virsh", "-c", "qemu:///system", "list"])
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

CHECKOUT = Path(__file__).resolve().parents[3]
CACHE = CHECKOUT / ".cache" / "lab"
BINDEP = CHECKOUT / "bindep.txt"

#: Releases of Debian by number, and the one of hosts that ask for none, which is this machine's.
DEBIAN = {12: "bookworm", 13: "trixie"}
RELEASE = next((number for number in DEBIAN if platform.freedesktop_os_release().get("VERSION_ID") == str(number)), 12)
#: The version of Python in each.
PYTHON = {12: "3.11", 13: "3.13"}
# What makes a container a host; libvirt, QEMU and Python's venv come with the agent's packages.
SYSTEM = (
    "systemd", "systemd-sysv", "dbus", "udev", "openssh-server", "iproute2", "iputils-ping", "ca-certificates",
    "python3", "python3-venv", "sudo",
)  # fmt: skip

BRIDGE = "maglab0"
NETWORK = "10.77.0"
MACHINE_ADDRESS = f"{NETWORK}.1"
# Every host knows every other by name: with a name that nobody answers for, libvirt waits long for each lookup.
ADDRESSES = {f"lab{number}": f"{NETWORK}.{10 + number}" for number in range(1, 9)}

# A container has no security driver and no controllers to give away; QEMU's private /dev would lack /dev/net/tun.
QEMU_CONF = 'security_driver = "none"\nremember_owner = 0\nnamespaces = []\ncgroup_controllers = []\n'
BOOT_LIMIT = 240.0  # seconds
STOP_LIMIT = 60.0
PATH = "/opt/magnetar/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LabError(RuntimeError):
    """A lab host could not be created, or a command on it failed; the message has the output."""


def command(*words: str | Path, **options: object) -> str:
    """Run a command on the machine and return its output."""
    arguments = [str(word) for word in words]
    done = subprocess.run(  # type: ignore[call-overload]
        arguments, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    if done.returncode:
        raise LabError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return str(done.stdout)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock within the context, for changes of what all hosts share (the base image, the bridge)."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# The base image


def packages(profile: str) -> list[str]:
    """Return the OS packages of a profile in bindep.txt, which has lines `name [platform:dpkg PROFILE …]`."""
    if not BINDEP.exists():
        raise LabError(f"{BINDEP} is missing: it lists the packages of a lab host (profile {profile})")
    found = []
    for line in BINDEP.read_text().splitlines():
        entry = re.match(r"([^\s#\[]+)\s*(?:\[([^\]]*)\])?", line)
        words = (entry[2] or "").split() if entry else []
        if entry and profile in words and ("platform:dpkg" in words or not any(":" in word for word in words)):
            found.append(entry[1])
    return found


def base(name: str = "base", wanted: Sequence[str] = (), release: int = RELEASE) -> Path:
    """Return the folder of a base image. It is built when it does not exist or its list of packages has changed.
    Without *wanted* it has the packages of an agent and of an API's consoles. *release*: number of Debian's release.
    """
    wanted = sorted({*(wanted or (*SYSTEM, *packages("agent"), *packages("console")))})
    recipe = hashlib.sha256(f"{DEBIAN[release]} {wanted} {CONFIGURE}".encode()).hexdigest()
    name = name if release == RELEASE else f"{name}-{DEBIAN[release]}"
    folder, stamp = CACHE / name, CACHE / f"{name}.key"
    with locked(name):
        if not (stamp.exists() and stamp.read_text() == recipe):
            stamp.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            build_base(folder, wanted, release)
            stamp.write_text(recipe)
    return folder


def sources(release: int = RELEASE) -> list[tuple[str, str]]:
    """Return the package archives of a Debian release as (address, suite): those in this machine's configuration of
    apt, with the release's name in place of this machine's."""
    lines = command("apt-get", "indextargets", "--format", "$(ORIGIN)|$(REPO_URI)|$(RELEASE)", "Created-By: Packages")
    found = [line.split("|") for line in lines.splitlines() if line.startswith("Debian|")]
    own, name = DEBIAN[RELEASE], DEBIAN[release]
    unique = list(dict.fromkeys((address, suite) for _kind, address, suite in found if suite.startswith(own)))
    if not any(suite == own for _address, suite in unique):
        raise LabError(f"apt on this machine has no list of Debian {own}: run `apt-get update`")
    return [(address, suite.replace(own, name, 1)) for address, suite in unique]


# Runs inside the new base, in a mount namespace that ends with it.
CONFIGURE = """
set -e
mount -t proc proc "$1/proc"
# Devices of its own: a package that sets the owner of /dev/kvm would set it on this machine, to another group's number.
mount -t tmpfs tmpfs "$1/dev"
for node in null zero full random urandom tty; do touch "$1/dev/$node"; mount --bind "/dev/$node" "$1/dev/$node"; done
mkdir "$1/dev/pts" "$1/dev/shm"
mount -t devpts devpts "$1/dev/pts"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
exec chroot "$1" sh -ec '
    printf "#!/bin/sh\\nexit 101\\n" >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    apt-get -q update
    shift
    apt-get -q -y --no-install-recommends install "$@"
    apt-get clean
    rm -rf /var/lib/apt/lists/* /usr/sbin/policy-rc.d
    systemctl enable systemd-networkd
    systemctl disable ssh.service || true
    systemctl enable ssh.socket
    systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
        systemd-networkd-wait-online.service
' chroot "$@"
"""


def build_base(folder: Path, wanted: Sequence[str], release: int) -> None:
    """Build a base image: debootstrap, then the packages by apt in a chroot, without starting services."""
    name = DEBIAN[release]
    main = next(address for address, suite in sources(release) if suite == name)
    command("debootstrap", "--variant=minbase", name, folder, main)
    lines = "".join(f"deb {address} {suite} main\n" for address, suite in sources(release))
    (folder / "etc/apt/sources.list").write_text(lines)
    (folder / "etc/dpkg/dpkg.cfg.d/lab").write_text("force-unsafe-io\npath-exclude=/usr/share/man/*\n")
    for path in Path("/etc/apt/apt.conf.d").glob("*proxy*"):
        shutil.copy(path, folder / "etc/apt/apt.conf.d")
    command("unshare", "--mount", "sh", "-c", CONFIGURE, "sh", folder, *wanted)


def layered(name: str, profiles: Sequence[str], units: Sequence[str]) -> str:
    """Return the lower folders of hosts that have the packages of further *profiles* on top of `base()`; their *units*
    do not start by themselves. This takes a fraction of the time and space of a separate base image.
    """
    lower = base()
    wanted = sorted({name for profile in profiles for name in packages(profile)})
    recipe = hashlib.sha256(f"{(CACHE / 'base.key').read_text()} {wanted} {units} {CONFIGURE}".encode()).hexdigest()
    folder, stamp = CACHE / name, CACHE / f"{name}.key"
    with locked(name):
        if not (stamp.exists() and stamp.read_text() == recipe):
            stamp.unlink(missing_ok=True)
            for path in (folder, CACHE / f"{name}.work"):
                shutil.rmtree(path, ignore_errors=True)
                path.mkdir()
            with tempfile.TemporaryDirectory(dir=CACHE) as whole:
                command("mount", "-t", "overlay", f"lab-{name}", "-o",
                        f"lowerdir={lower},upperdir={folder},workdir={CACHE / f'{name}.work'}", whole)
                try:
                    command("unshare", "--mount", "sh", "-c", CONFIGURE, "sh", whole, *wanted)
                    command("chroot", whole, "systemctl", "disable", *units)
                finally:
                    command("umount", whole)
            stamp.write_text(recipe)
    return f"{folder}:{lower}"


# A host


class LabHost:
    """One running lab host; a context manager, which removes everything of the host at its end. *name* is one of
    `addresses`. *binds* maps folders of the machine to paths in the host, read-only.
    """

    bridge, machine_address, addresses = BRIDGE, MACHINE_ADDRESS, ADDRESSES

    def __init__(self, name: str, binds: Mapping[Path | str, str] | None = None, agent_of_machine: bool = False):
        if name not in self.addresses:
            raise ValueError(f"{name!r} is not a lab host; there are {', '.join(self.addresses)}")
        self.name = self.machine = name  # of the host, and of its container
        self.address = self.addresses[name]
        self.host_uuid = str(uuid.uuid4())
        self.binds = {str(source): target for source, target in (binds or {}).items()}
        if agent_of_machine:
            self.binds["/opt/magnetar"] = "/opt/magnetar"
        self.leader = 0  # process id of the host's systemd
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def run(
        self, words: Sequence[str | Path], check: bool = True, stdin: bytes = b"", timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root on the host; return its output, with standard error in it, as text."""
        if not self.leader:
            raise LabError(f"lab host {self.name} is not running")
        arguments = [str(word) for word in words]
        enter = ["nsenter", "-t", str(self.leader), "-m", "-p", "-u", "-i", "-n", "--"]
        clean = ["env", "-i", f"PATH={PATH}", "HOME=/root", "LC_ALL=C.UTF-8", *arguments]
        done = subprocess.run(
            [*enter, *clean], check=False, input=stdin, timeout=timeout,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        text = done.stdout.decode(errors="replace")
        if check and done.returncode:
            raise LabError(f"{self.name}: {' '.join(arguments)} ended with {done.returncode}:\n{text[-4000:]}")
        return subprocess.CompletedProcess(arguments, done.returncode, text)

    def put(self, source: Path | str, target: str) -> None:
        """Copy a file or a folder of the machine to the path *target* on the host."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(source, arcname=target.lstrip("/"))
        self.run(["tar", "-x", "-f", "-", "-C", "/", "--no-same-owner"], stdin=packed.getvalue())

    def _start(self) -> None:
        lower = self._base()
        folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=CACHE))
        self._undo.callback(shutil.rmtree, folder)
        root = folder / "root"
        for part in ("root", "upper", "work"):
            (folder / part).mkdir()
        layers = f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work"
        command("mount", "-t", "overlay", f"lab-{self.name}", "-o", layers, root)
        self._undo.callback(command, "umount", root)
        self._configure(root)
        self._undo.callback(release_bridge, self.bridge)
        claim_bridge(self.bridge, self.machine_address)
        groups = [hierarchy / f"maglab-{folder.name}" for hierarchy in hierarchies()]
        for group in groups:
            self._undo.callback(remove_group, group)
            group.mkdir()
        self._place = (root, folder / "console.log", groups)
        self._boot(*self._place)

    def reboot(self) -> None:
        """Shut the host down as `systemctl reboot` does, and start it again with the same disks."""
        assert self._nspawn is not None
        self.run(["systemctl", "reboot"], check=False)
        self._nspawn.wait(BOOT_LIMIT)  # with --keep-unit it ends, and leaves it to others to start it again
        self.leader = 0
        self._boot(*self._place)

    def cut_power(self) -> None:
        """End the host immediately, with all its processes."""
        assert self._nspawn is not None
        self._stop(self._nspawn)

    def power_on(self) -> None:
        """Boot the host again, with the same disks."""
        self._boot(*self._place)

    def _base(self) -> Path | str:
        return base()

    def _configure(self, root: Path) -> None:
        """Write the files that differ between hosts of one base image."""
        for name, text in self._files().items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_text(text)
        # Without it hosts of one machine have one DMI identity, and libvirt refuses to migrate "to itself".
        with (root / "etc/libvirt/libvirtd.conf").open("a") as file:
            file.write(f'\nhost_uuid = "{self.host_uuid}"\n')

    def _files(self) -> dict[str, str]:
        known = "".join(f"{address} {name}\n" for name, address in self.addresses.items())
        return {
            "etc/hostname": f"{self.name}\n",
            "etc/machine-id": f"{uuid.uuid4().hex}\n",
            "etc/hosts": f"127.0.0.1 localhost\n{self.machine_address} machine\n{known}",
            "etc/resolv.conf": "",
            "etc/systemd/network/10-host0.network": f"[Match]\nName=host0\n[Network]\nAddress={self.address}/24\n"
            "LinkLocalAddressing=no\nIPv6AcceptRA=no\n",
            "etc/libvirt/qemu.conf": QEMU_CONF,
        }

    def _boot(self, root: Path, log: Path, groups: Sequence[Path]) -> None:
        join = "".join(f"echo $$ >{shlex.quote(str(group))}/cgroup.procs && " for group in groups)
        words = [
            "sh", "-c", f'{join}exec "$@"', "sh",
            "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", f"--directory={root}", "--boot",
            f"--machine={self.machine}", "--console=passive", "--capability=all", f"--network-bridge={self.bridge}",
            "--bind=/dev/net/tun", "--kill-signal=SIGKILL", "--private-users=no", "--system-call-filter=@known",
            "--link-journal=no", "--resolv-conf=off", "--timezone=off",
            *(f"--bind-ro={source}:{target}" for source, target in self.binds.items()),
        ]  # fmt: skip
        deadline = time.monotonic() + STOP_LIMIT
        while Path(f"/sys/class/net/vb-{self.machine}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)  # the kernel removes the link of an ended host a little later
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._nspawn = process
        self._undo.callback(self._stop, process)
        deadline = time.monotonic() + BOOT_LIMIT
        state = "no systemd yet"
        while state not in ("running", "degraded"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise LabError(
                    f"lab host {self.name} did not start ({state}):\n{log.read_text(errors='replace')[-4000:]}"
                )
            time.sleep(0.1)
            self.leader = self.leader or child(process.pid)
            if self.leader:
                state = self.run(["systemctl", "is-system-running"], check=False).stdout.strip()
        if state == "degraded":
            failed = self.run(["systemctl", "--failed", "--no-legend"], check=False).stdout
            raise LabError(f"lab host {self.name} started with failed units:\n{failed}")

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """End the host immediately: the kernel ends all its processes with the first one."""
        leader, self.leader = self.leader, 0
        process.terminate()
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            if leader:
                os.kill(leader, signal.SIGKILL)
            process.kill()
            process.wait(STOP_LIMIT)


def child(pid: int) -> int:
    """Return the pid of a container's systemd; 0 while nspawn has not started it yet."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return next((int(one) for one in children if Path(f"/proc/{one}/comm").read_text() == "systemd\n"), 0)
    except OSError:
        return 0


def hierarchies() -> list[Path]:
    """Return the roots of systemd's control groups: cgroup2, and on older layouts version 1's tree named systemd."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(m[1]) for m in mounts if m[2] == "cgroup2" or (m[2] == "cgroup" and "name=systemd" in m[3].split(","))]


def remove_group(group: Path) -> None:
    """Remove a control group of ended processes, with all groups in it. Each host needs a group of its own: two
    systemds in one group would end each other's services.
    """
    deadline = time.monotonic() + STOP_LIMIT
    while group.exists():
        folders = [Path(path) for path, _folders, _files in os.walk(group, topdown=False)]
        try:
            for folder in folders:
                folder.rmdir()
        except OSError as error:  # its last processes are still on their way out
            if time.monotonic() > deadline:
                raise LabError(f"control group {group} is still in use: {error}") from error
            time.sleep(0.05)


def claim_bridge(bridge: str = BRIDGE, address: str = MACHINE_ADDRESS) -> None:
    """Create the bridge between the machine and its hosts, when it does not exist yet."""
    with locked(bridge):
        if not Path(f"/sys/class/net/{bridge}").exists():
            command("ip", "link", "add", bridge, "type", "bridge")
            command("ip", "address", "add", f"{address}/24", "dev", bridge)
            command("ip", "link", "set", bridge, "up")


def release_bridge(bridge: str = BRIDGE) -> None:
    """Delete the bridge when no host is connected to it."""
    with locked(bridge):
        ports = Path(f"/sys/class/net/{bridge}/brif")
        if ports.exists() and not any(ports.iterdir()):
            command("ip", "link", "delete", bridge)


def main() -> int:
    """Build the base image in advance for later tests."""
    start = time.monotonic()
    try:
        folder = base()
    except (OSError, LabError) as error:
        print(f"hosts: {error}", file=sys.stderr)
        return 1
    print(f"base\t{folder}\nready in {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
