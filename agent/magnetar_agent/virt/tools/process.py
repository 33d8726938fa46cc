# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of the host such as qemu-img: argument lists, no shell, plain C messages, never left behind."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from magnetar_agent.host.file_modes import UMASK
from magnetar_core.errors import HypervisorError, NoSpace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import ExitStack

#: Seconds that a program without progress may take.
TIMEOUT = 60.0
#: Bytes that one without progress may print, of which none needs a hundredth: some read what guests have written.
SAID_MAX = 16 * 2**20
#: Most bytes of a piece of what a program prints.
PIECE = 256 * 1024
#: Descriptors below are those that programs are started with.
FIRST = 10
_PERCENT = re.compile(rb"\(([0-9.]+)/100%\)")
_FULL = ("No space left on device", "Disk quota exceeded")


#: User and group that a program runs with; ``None`` is the agent's own.
User = tuple[int, int] | None


def run(arguments: Sequence[str], what: str, timeout: float = TIMEOUT, user: User = None,
        files: Sequence[int] = (), groups: Sequence[int] = ()) -> str:
    """What the program prints. *what* completes "could not …"; it inherits the descriptors *files*. *groups*: those
    that another *user* is in besides."""
    return _finish(_start(arguments, what, user, files, groups), arguments[0], what, time.monotonic() + timeout, None)


def follow(arguments: Sequence[str], what: str, progress: Callable[[float], None], user: User = None,
           files: Sequence[int] = ()) -> None:
    """Run for as long as it takes; *progress* gets percent, several times a second, and may raise to end it."""
    _finish(_start(arguments, what, user, files), arguments[0], what, None, progress)


@contextmanager
def piped(arguments: Sequence[str], what: str, user: User, files: Sequence[int],
          silence: float) -> Iterator[Iterator[bytes]]:
    """What the program prints, in pieces as they come, for as long as it takes; the last one has come when it has ended
    well. Raises ``HypervisorError``, also after so many seconds of *silence*, whatever it complains of meanwhile."""
    process = _start(arguments, what, user, files)
    try:
        yield _pieces(process, arguments[0], what, silence)
    finally:
        _end(process)


def _pieces(process: subprocess.Popen[bytes], program: str, what: str, silence: float) -> Iterator[bytes]:
    out, err = (pipe.fileno() for pipe in (process.stdout, process.stderr) if pipe)
    watch, left, said = select.poll(), 2, bytearray()
    for pipe in (out, err):
        watch.register(pipe, select.POLLIN)
    deadline = time.monotonic() + silence
    while left:
        ready = watch.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready or (time.monotonic() > deadline and out not in dict(ready)):
            raise HypervisorError(f"{program} could not {what}: nothing came for {silence:.0f} s, and it was ended.")
        for pipe, _event in ready:
            piece = os.read(pipe, PIECE)
            if not piece:
                watch.unregister(pipe)
                left -= 1
            elif pipe == out:
                yield piece
                deadline = time.monotonic() + silence  # who takes the pieces has his time, too
            elif len(said) < SAID_MAX:
                said += piece
    if _code(process, program, what):
        raise _failed(program, what, process.returncode, said.decode(errors="replace"))


def _code(process: subprocess.Popen[bytes], program: str, what: str) -> int:
    """The exit status of a program that has closed its outputs."""
    try:
        return process.wait(5)
    except subprocess.TimeoutExpired:
        raise HypervisorError(f"{program} could not {what}: it said all, and did not end.") from None


def bound_to_us(user: User, groups: Sequence[int] = ()) -> list[str]:
    """Words before a program's: it dies with the thread that waits for it, so a killed agent leaves nothing writing; as
    another *user* it has no capability."""
    besides = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    other = [f"--reuid={user[0]}", f"--regid={user[1]}", besides, "--no-new-privs", "--inh-caps=-all",
             "--bounding-set=-all"] if user else []
    return ["setpriv", "--pdeathsig", "KILL", *other, "--"]


def unnamed(held: ExitStack, content: bytes) -> int:
    """The descriptor of a file without a name, for a program to read: what is in it stands in no argument and on no
    disk, and nobody else can open it. It goes with *held*."""
    made = os.memfd_create("content", os.MFD_CLOEXEC)
    file = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, FIRST)
    os.close(made)
    held.callback(os.close, file)
    with os.fdopen(file, "wb", closefd=False) as whole:
        whole.write(content)
    return file


def _start(arguments: Sequence[str], what: str, user: User, files: Sequence[int],
           groups: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 (a list of ours; no shell)
            [*bound_to_us(user, groups), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True, env={**os.environ, "LC_ALL": "C"}, pass_fds=files,
            umask=UMASK)
    except OSError as error:
        raise HypervisorError(f"The agent could not {what}: {error.strerror}. Install setpriv (util-linux).") from None


def _finish(process: subprocess.Popen[bytes], program: str, what: str, deadline: float | None,
            progress: Callable[[float], None] | None) -> str:
    """Read both outputs to their end; whatever happens, the program is over afterwards."""
    read: dict[int, bytearray] = {pipe.fileno(): bytearray() for pipe in (process.stdout, process.stderr) if pipe}
    out, err = list(read)
    watch, left, percent = select.poll(), 2, 0.0  # select() takes no descriptor above 1,023
    for pipe in read:
        watch.register(pipe, select.POLLIN)
    try:
        while left:
            for pipe, _event in watch.poll(200):
                piece = os.read(pipe, 65536)
                if not piece:
                    watch.unregister(pipe)
                    left -= 1
                read[pipe] += piece
            if progress:
                found = _PERCENT.findall(bytes(read[out][-200:]))
                percent = max(percent, float(found[-1])) if found else percent
                del read[out][:-200]
                progress(percent)
            if len(read[out]) + len(read[err]) > SAID_MAX:
                raise HypervisorError(f"{program} could not {what}: it said too much and was ended.")
            if deadline and time.monotonic() > deadline:
                raise HypervisorError(f"{program} could not {what}: it took too long and was ended. "
                                      "See whether the storage of the host answers, then repeat the call.")
        _code(process, program, what)
    finally:
        _end(process)
    if process.returncode:
        raise _failed(program, what, process.returncode, read[err].decode(errors="replace"))
    return read[out].decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def _failed(program: str, what: str, code: int, words: str) -> HypervisorError | NoSpace:
    """An error with what the program said, on one line."""
    said = " ".join(words.replace(f"{program}: ", "").split())[:500].rstrip(".") or f"exit status {code}"
    if any(full in words for full in _FULL):
        return NoSpace(f"The host has no room left to {what}. Free some, then repeat the call.")
    if code == 127 and "setpriv" in words:
        return HypervisorError(f"The agent could not {what}: {program} is not installed.")
    return HypervisorError(f"{program} could not {what}: {said}.")
