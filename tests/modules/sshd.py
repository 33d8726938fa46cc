# SPDX-License-Identifier: GPL-3.0-or-later
"""A real sshd of the test's own user, with its own host key and settings, and a home folder of who logs in."""

from __future__ import annotations

import fcntl
import getpass
import os
import socket
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.support.ports import free_port

#: Root's sshd needs it for each connection. One of this mode was made by a test; whoever uses it has a lock on it, and
#: the last one removes it: tests run beside each other.
PRIVSEP, MADE_HERE = Path("/run/sshd"), 0o711


def keygen(path, *words):
    """A key pair; returns the path of the private half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path, *words], check=True)
    return path


def children_of(parent):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def held():
    """Number of the privilege separation folder, open and locked, which nobody removes before it is closed."""
    while True:
        with suppress(FileExistsError):
            PRIVSEP.mkdir()
            PRIVSEP.chmod(MADE_HERE)
        with suppress(FileNotFoundError):
            number = os.open(PRIVSEP, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(number, fcntl.LOCK_SH)
            if PRIVSEP.exists() and os.path.samestat(os.fstat(number), PRIVSEP.stat()):
                return number
            os.close(number)


def let_go(number):
    """The folder is not needed any more."""
    with suppress(BlockingIOError):
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_IMODE(os.fstat(number).st_mode) == MADE_HERE:
            PRIVSEP.rmdir()
    os.close(number)


class Sshd:
    """``port``, ``home`` (with ``.ssh``), ``key`` (which is let in), ``trust()``, ``start()``, ``stop()``."""

    def __init__(self, folder, **options):
        self.folder, self.port, self.user = folder, free_port(), getpass.getuser()
        self.home = folder / "home"
        self.host_key = keygen(folder / "host_key")
        self.key = keygen(self.home / ".ssh/id_ed25519")
        self.config, self.log = folder / "sshd_config", folder / "sshd.log"
        self.process, self._privsep = None, None
        (folder / "authorized_keys").write_text((self.key.parent / "id_ed25519.pub").read_text())
        self.configure(**options)

    def configure(self, **options):
        """Write the settings; they count from the next start."""
        settings = {
            "ListenAddress": f"127.0.0.1:{self.port}", "HostKey": self.host_key, "StrictModes": "no",
            "AuthorizedKeysFile": self.folder / "authorized_keys", "PidFile": "none", "UseDNS": "no",
            "PasswordAuthentication": "no", "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "yes", "UsePAM": "yes" if os.geteuid() == 0 else "no", "LogLevel": "DEBUG1", **options,
        }
        self.config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))

    @property
    def line(self):
        """The line of a file of known hosts about it."""
        return f"[127.0.0.1]:{self.port} {(self.folder / 'host_key.pub').read_text()}"

    def trust(self):
        with (self.home / ".ssh/known_hosts").open("a") as stream:
            stream.write(self.line)

    def endpoint(self, path):
        return f"ssh://{self.user}@127.0.0.1:{self.port}{path}"

    def start(self):
        if os.geteuid() == 0:
            self._privsep = held()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", self.config], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + 120
        while time.monotonic() < until:
            assert self.process.poll() is None, self.log.read_text()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())

    def children(self):
        """The processes of its connections, which outlive it."""
        found, ask = [], [self.process.pid]
        while ask:
            born = children_of(ask.pop())
            found += born
            ask += born
        return found

    def stop(self, hard=False):
        """End it; *hard*: with its connections, as when the host goes down."""
        if self.process is None:
            return
        children = self.children() if hard else []
        self.process.terminate()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.process.wait(120)
        self.process = None
        if self._privsep is not None:
            let_go(self._privsep)
            self._privsep = None
