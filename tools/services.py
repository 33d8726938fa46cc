# SPDX-License-Identifier: GPL-3.0-or-later
"""libvirt and the agent as services: units of systemd where it runs, else supervised processes known by their ids."""

from __future__ import annotations

import contextlib
import grp
import http.client
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tools.machine import AGENT_VENV, agent_environment
from tools.progress import Failed, run, step

RUN = Path("/run/magnetar")
SOCKET = RUN / "agent.sock"
STATE = Path("/var/lib/magnetar")
SETTINGS = Path("/etc/magnetar")
UNIT = Path("/etc/systemd/system/magnetar-agent.service")
LIBVIRT_SOCKET = Path("/run/libvirt/libvirt-sock")
SYSTEMD = Path("/run/systemd/system")
#: The agent manages libvirt and the disks of guests; it needs no other device, home or kernel setting.
UNIT_TEXT = f"""[Unit]
Description=Magnetar host agent
Documentation=https://github.com/magnetar/compute/tree/main/docs
After=libvirtd.service network-online.target
Wants=libvirtd.service network-online.target

[Service]
ExecStart={AGENT_VENV}/bin/magnetar agent
Restart=always
RestartSec=1
RuntimeDirectory=magnetar
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
StateDirectory=magnetar
StateDirectoryMode=0711
UMask=0077
KillMode=process
TimeoutStopSec=60
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths=/var/lib/magnetar /run/magnetar -/etc/magnetar
ProtectHome=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectClock=yes
ProtectHostname=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=no
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
LockPersonality=yes

[Install]
WantedBy=multi-user.target
"""


def with_systemd() -> bool:
    """Whether systemd runs this machine."""
    return SYSTEMD.is_dir()


def libvirt() -> None:
    """libvirt answers, and starts guests quickly."""
    if with_systemd():
        if subprocess.run(["systemctl", "is-active", "-q", "libvirtd.socket"], check=False).returncode:
            with step("libvirt"):
                run(["systemctl", "enable", "-q", "--now", "virtlogd.socket", "libvirtd.socket"])
        return
    _kvm_device()
    if _answers(LIBVIRT_SOCKET):
        return
    with step("libvirt (there is no systemd here: virtlogd and libvirtd run as plain processes)"):
        if not _answers(Path("/run/libvirt/virtlogd-sock")):
            _begin("virtlogd", ["tini", "-s", "--", "virtlogd"])
        # Under a subreaper: libvirtd waits for the end of QEMU processes, which process 1 here reaps late.
        _begin("libvirtd", ["tini", "-s", "--", "libvirtd"])
        _wait(lambda: _answers(LIBVIRT_SOCKET), 60, "libvirtd does not answer; see /run/magnetar/libvirtd.log.")
        run(["virsh", "-q", "-c", "qemu:///system", "version"])


def _kvm_device() -> None:
    """What Debian's udev rule does: without it, libvirt asks QEMU anew about KVM at every call."""
    device = Path("/dev/kvm")
    with contextlib.suppress(KeyError, OSError):
        group = grp.getgrnam("kvm").gr_gid
        if device.exists() and (device.stat().st_gid != group or device.stat().st_mode & 0o777 != 0o660):
            os.chown(device, 0, group)
            device.chmod(0o660)


def agent() -> None:
    """The agent of this checkout runs and is ready."""
    changed = agent_environment()
    _group()
    STATE.mkdir(mode=0o711, parents=True, exist_ok=True)
    SETTINGS.mkdir(mode=0o755, parents=True, exist_ok=True)
    RUN.mkdir(mode=0o755, parents=True, exist_ok=True)
    command = Path("/usr/local/bin/magnetar")
    if not command.is_symlink():
        command.unlink(missing_ok=True)
        command.symlink_to(AGENT_VENV / "bin/magnetar")
    if with_systemd():
        changed |= _write_unit()
    if ready() and not changed:
        return
    with step("Agent"):
        if with_systemd():
            run(["systemctl", "enable", "-q", "magnetar-agent.service"])
            run(["systemctl", "restart", "magnetar-agent.service"])
        else:
            _end("agent")
            _begin("agent", [str(AGENT_VENV / "bin/magnetar"), "agent"])
        _wait(ready, 60, "The agent does not answer; see journalctl -u magnetar-agent, or /run/magnetar/agent.log.")


def _group() -> None:
    try:
        grp.getgrnam("magnetar")
    except KeyError:
        run(["groupadd", "--system", "magnetar"])


def _write_unit() -> bool:
    if UNIT.exists() and UNIT.read_text() == UNIT_TEXT:
        return False
    UNIT.write_text(UNIT_TEXT)
    run(["systemctl", "daemon-reload"])
    return True


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect(str(SOCKET))


def ready() -> bool:
    """Whether the agent answers and libvirt is there."""
    try:
        connection = _Connection("agent")
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


def down() -> None:
    """End what was begun here, and remove what was made; the agent's servers have to be gone already."""
    with step("Agent and libvirt"):
        if with_systemd():
            if UNIT.exists():
                run(["systemctl", "disable", "-q", "--now", "magnetar-agent.service"])
                UNIT.unlink()
                run(["systemctl", "daemon-reload"])
        else:
            for name in ("agent", "libvirtd", "virtlogd"):
                _end(name)
    with step("Files"):
        for path in (STATE, RUN, SETTINGS):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            Path("/usr/local/bin/magnetar").unlink()
        if subprocess.run(["getent", "group", "magnetar"], capture_output=True, check=False).returncode == 0:
            run(["groupdel", "magnetar"])


# Processes without systemd ------------------------------------------------------------------------------------------
def _begin(name: str, command: list[str]) -> None:
    """Start a process of its own session, and note its id and when it began."""
    RUN.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (RUN / f"{name}.log").open("ab") as log:
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    (RUN / f"{name}.pid").write_text(f"{started.pid} {_born(started.pid)}\n")


def _end(name: str) -> None:
    """End a process that ``_begin`` started, and no other: a process id that was given anew has another birth."""
    note = RUN / f"{name}.pid"
    if not note.exists():
        return
    pid, born = note.read_text().split()
    if _born(int(pid)) == born:
        os.kill(int(pid), signal.SIGTERM)
        _wait(lambda: _born(int(pid)) != born, 60, f"{name} (process {pid}) does not end.")
    note.unlink()


def _born(pid: int) -> str:
    """When a process began, in clock ticks since boot; empty when it is gone (or only waits to be reaped)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    except OSError:
        return False
    return True


def _wait(holds: object, seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise Failed(otherwise)
        time.sleep(0.05)
