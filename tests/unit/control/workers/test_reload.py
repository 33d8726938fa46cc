# SPDX-License-Identifier: GPL-3.0-or-later
"""SIGHUP makes a service of one process read its settings again, and does not end it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar_control import cli
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts import processes
from magnetar_control.store.store import Store
from tests.support.ports import free_port
from tests.support.waiting import eventually

RUN = "import sys; from magnetar_core.commands import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("command", ["serve", "api", "conductor"])
def test_a_service_reads_its_settings_again(tmp_path: Path, command: str) -> None:
    path, log = tmp_path / "control.yml", tmp_path / "log"
    settings = {"state_dir": str(tmp_path), "listen": f"127.0.0.1:{free_port()}",
                "health_listen": f"127.0.0.1:{free_port()}"}

    def write(**more: object) -> None:
        path.write_text(json.dumps({**settings, **more}))

    def logged(*words: str) -> bool:
        assert process.poll() is None, log.read_text()
        return all(word in log.read_text() for word in words)

    write(hosts={"kvm1": "unix:///nowhere/1.sock"})
    assert cli.main(["db", "upgrade", "--config", str(path)]) == 0
    with log.open("ab") as stream:
        process = subprocess.Popen([sys.executable, "-c", RUN, command, "--config", str(path)], stdout=stream,
                                   stderr=stream)
    try:
        eventually(lambda: names(tmp_path, "api", "conductor"))
        write(max_limit="many")
        process.send_signal(signal.SIGHUP)
        eventually(lambda: logged("the settings are not read again", "max_limit must be of type int"))
        write(max_limit=7, workers=3, hosts={"kvm1": "unix:///nowhere/1.sock", "kvm2": "unix:///nowhere/2.sock"})
        process.send_signal(signal.SIGHUP)
        eventually(lambda: logged("the settings are read again: hosts, max_limit", "started again: workers"))
        if command != "api":
            eventually(lambda: "kvm2" in names(tmp_path, "agent"))
    finally:
        process.terminate()
        assert process.wait(120) == 0
    assert names(tmp_path, "api", "conductor") == []


def names(folder: Path, *kinds: str) -> list[str]:
    """The names of the processes of these kinds that are up, and of hosts."""
    store = Store(Database(f"sqlite:///{folder}/api.db"))
    try:
        found = processes.fetch_processes(store, 60.0).processes
    finally:
        store.close()
    return [one.name for one in found if one.kind in kinds and (one.up or one.kind == "agent")]
