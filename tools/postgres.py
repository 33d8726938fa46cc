# SPDX-License-Identifier: GPL-3.0-or-later
"""A temporary PostgreSQL server for tests and measurements: a cluster in a temporary folder, on a unix socket."""

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

#: Settings for speed and small size; none changes the semantics of transactions while the server runs.
QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
SMALL = ("listen_addresses=", "max_connections=80", "shared_buffers=64MB", "logging_collector=off")
USER = "postgres"


def postgres_programs() -> Path | None:
    """Return the folder of the programs of the newest installed PostgreSQL server (Debian's package postgresql);
    ``None`` without one.
    """
    initdbs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return initdbs[-1].parent if initdbs else None


def postgres_url(folder: Path, database: str) -> str:
    """Return the URL for ``Database`` of a database of the cluster in *folder*."""
    return f"postgresql+psycopg://{USER}@/{database}?host={folder}"


@contextlib.contextmanager
def postgres_cluster(settings: tuple[str, ...] = QUICK) -> Iterator[Path]:
    """Start a server and yield its folder, which contains the socket; then stop the server and remove the folder."""
    programs_folder = postgres_programs()
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
        words = [argument for setting in (*SMALL, *settings, f"unix_socket_directories={folder}")
                 for argument in ("-c", setting)]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(_as_user(programs_folder / "postgres", "-D", folder / "d", *words), cwd=folder,
                                      stdout=log, stderr=log, start_new_session=True)
        _await(server, programs_folder / "pg_isready", folder)
        yield folder
    finally:
        if server:
            server.send_signal(signal.SIGINT)  # fast: cut off clients
            server.wait(30)
        shutil.rmtree(folder)


def _as_user(*command: object) -> list[str]:
    """Return the *command* with words before it that run it as another user, because PostgreSQL refuses to run as root.
    """
    prefix = [] if os.getuid() else ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    return [*prefix, *map(str, command)]


def _await(server: subprocess.Popen[bytes], ready: Path, folder: Path) -> None:
    deadline = time.monotonic() + 30
    while subprocess.run([ready, "-q", "-h", folder, "-U", USER], check=False).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL did not start: {(folder / 'log').read_text()}")
        time.sleep(0.05)
