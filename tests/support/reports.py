# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes of Magnetar that get SIGUSR2, and their reports."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.waiting import eventually

RUN = "import sys; from magnetar_core.commands import main; sys.exit(main(sys.argv[1:]))"


@contextlib.contextmanager
def magnetar_process(log: Path, *words: str, program: Sequence[str] = ("-c", RUN)) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the command ``magnetar`` with the arguments *words*, whose stderr goes to *log*. It must end with
    status 0 at SIGTERM."""
    with log.open("ab") as stream:
        process = subprocess.Popen([sys.executable, *program, *words], stderr=stream)
    try:
        yield process
        process.terminate()
        assert process.wait(120) == 0
    except AssertionError:
        print(log.read_text()[-5000:])
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def ask_report(pid: int, name: str, log: Path) -> dict[str, str]:
    """The sections of the report, by title, that the process *pid* of the kind *name* writes to *log* now."""
    end = f"==== End of the report of magnetar {name} ====\n"
    count = log.read_text().count(end)
    os.kill(pid, signal.SIGUSR2)
    eventually(lambda: log.read_text().count(end) == count + 1)
    return sections_of(log.read_text().split(end)[count])


def ask_report_file(pid: int, name: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """The file that the process *pid* of the kind *name* writes into *folder* now, and the sections of the report."""
    def files() -> set[Path]:
        return {file for file in folder.glob(f"magnetar-{name}_*_{pid}.txt")
                if "==== End of the report" in file.read_text()}
    before = files()
    os.kill(pid, signal.SIGUSR2)
    (file,) = eventually(lambda: files() - before)
    return file, sections_of(file.read_text())


def sections_of(text: str) -> dict[str, str]:
    """The sections of the report in *text*, by title."""
    parts = re.split(r"^== (.+) ==\n", text[text.rindex("==== Report of magnetar "):], flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))
