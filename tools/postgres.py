# SPDX-License-Identifier: GPL-3.0-or-later
"""A PostgreSQL server for a while, for tests and measurements: a cluster in a temporary folder, on a unix socket."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: What makes it quick and small; none of it changes what a transaction means while the server lives.
QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
SMALL = ("listen_addresses=", "max_connections=80", "shared_buffers=64MB", "logging_collector=off")
USER = "postgres"


def programs() -> Path | None:
    """The folder of the server's programs, of the newest version; ``None`` without (Debian's package postgresql)."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return found[-1].parent if found else None


def url(folder: Path, database: str) -> str:
    """What ``Database`` takes for a database of the cluster in *folder*."""
    return f"postgresql+psycopg://{USER}@/{database}?host={folder}"


@contextlib.contextmanager
def cluster(settings: tuple[str, ...] = QUICK) -> Iterator[Path]:
    """Start a server; yields its folder, where the socket is; ends it and removes everything."""
    programs_folder = programs()
    if programs_folder is None:
        raise FileNotFoundError("PostgreSQL's server is not installed (Debian's package postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    server = None
    try:
        if not os.getuid():
            shutil.chown(folder, USER, USER)
        made = subprocess.run(_as_user(programs_folder / "initdb", "-D", folder / "d", "-A", "trust", "-U", USER, "-N",
                                       "-E", "UTF8", "--locale=C.UTF-8"), check=False, cwd=folder,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if made.returncode:
            raise RuntimeError(f"initdb made no cluster (exit {made.returncode}): {made.stdout}")
        words = [word for one in (*SMALL, *settings, f"unix_socket_directories={folder}") for word in ("-c", one)]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(_as_user(programs_folder / "postgres", "-D", folder / "d", *words), cwd=folder,
                                      stdout=log, stderr=log, start_new_session=True)
        _await(server, programs_folder / "pg_isready", folder)
        yield folder
    finally:
        if server:
            server.send_signal(signal.SIGINT)  # fast: clients are cut off
            server.wait(30)
        shutil.rmtree(folder)


def _as_user(*command: object) -> list[str]:
    """The command, as a user who may run a server: it refuses to be root's."""
    given = [] if os.getuid() else ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    return [*given, *map(str, command)]


def _await(server: subprocess.Popen[bytes], ready: Path, folder: Path) -> None:
    deadline = time.monotonic() + 30
    while subprocess.run([ready, "-q", "-h", folder, "-U", USER], check=False).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL did not start: {(folder / 'log').read_text()}")
        time.sleep(0.05)
