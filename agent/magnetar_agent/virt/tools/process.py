# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of the host such as qemu-img: run with argument lists, without a shell, with English messages (locale C),
and ended with the agent."""

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
#: The most bytes of output of a program without progress, a hundred times the usual: some read guests' data.
SAID_MAX = 16 * 2**20
#: The most bytes of a piece of a program's output.
PIECE = 256 * 1024
#: The lowest number for descriptors of unnamed files: lower ones are used when programs are started.
FIRST = 10
_PERCENT = re.compile(rb"\(([0-9.]+)/100%\)")
_FULL = ("No space left on device", "Disk quota exceeded")


#: User and group of a program; ``None`` is the agent's own.
User = tuple[int, int] | None


def run_program(arguments: Sequence[str], purpose: str, timeout: float = TIMEOUT, user: User = None,
                files: Sequence[int] = (), groups: Sequence[int] = ()) -> str:
    """Run a program and return its standard output. Raises ``HypervisorError`` or ``NoSpace`` if it fails.

    - *arguments*: the program and its arguments.
    - *purpose*: verb phrase that completes error messages such as "qemu-img could not …".
    - *timeout*: seconds.
    - *user*: (uid, gid) to run with; ``None`` for the agent's user.
    - *files*: file descriptors that the program inherits.
    - *groups*: additional group ids for *user*."""
    return _finish(_start(arguments, purpose, user, files, groups), arguments[0], purpose, time.monotonic() + timeout,
                   None)


def follow_program(arguments: Sequence[str], purpose: str, progress: Callable[[float], None], user: User = None,
                   files: Sequence[int] = ()) -> None:
    """Run a program without a time limit, and report its progress. *progress*: called several times a second with the
    percentage that the program prints; an exception from it ends the program. Other parameters: see ``run_program``."""
    _finish(_start(arguments, purpose, user, files), arguments[0], purpose, None, progress)


@contextmanager
def pipe_program(arguments: Sequence[str], purpose: str, user: User, files: Sequence[int],
                 silence: float) -> Iterator[Iterator[bytes]]:
    """Run a program without a time limit, and yield an iterator over chunks of its standard output. The iterator raises
    ``HypervisorError`` if the program fails or prints nothing for *silence* seconds. Other parameters: see
    ``run_program``."""
    process = _start(arguments, purpose, user, files)
    try:
        yield _pieces(process, arguments[0], purpose, silence)
    finally:
        _end(process)


def _pieces(process: subprocess.Popen[bytes], program: str, purpose: str, silence: float) -> Iterator[bytes]:
    out, err = (pipe.fileno() for pipe in (process.stdout, process.stderr) if pipe)
    watch, open_pipes, complaints = select.poll(), 2, bytearray()
    for pipe in (out, err):
        watch.register(pipe, select.POLLIN)
    deadline = time.monotonic() + silence
    while open_pipes:
        ready = watch.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready or (time.monotonic() > deadline and out not in dict(ready)):
            raise HypervisorError(f"{program} could not {purpose}: nothing came for {silence:.0f} s, and it was ended.")
        for pipe, _event in ready:
            piece = os.read(pipe, PIECE)
            if not piece:
                watch.unregister(pipe)
                open_pipes -= 1
            elif pipe == out:
                yield piece
                deadline = time.monotonic() + silence  # the reader of the pieces has its time, too
            elif len(complaints) < SAID_MAX:
                complaints += piece
    if _code(process, program, purpose):
        raise _failed(program, purpose, process.returncode, complaints.decode(errors="replace"))


def _code(process: subprocess.Popen[bytes], program: str, purpose: str) -> int:
    """Return the exit status of *process*, which has closed its output. Raises ``HypervisorError`` if it does not end
    within a few seconds. *program*, *purpose*: for the error message."""
    try:
        return process.wait(5)
    except subprocess.TimeoutExpired:
        raise HypervisorError(f"{program} could not {purpose}: it said all, and did not end.") from None


def bound_to_us(user: User, groups: Sequence[int] = ()) -> list[str]:
    """Return a command prefix that makes the kernel kill the program when the thread that started the program ends, for
    example because the agent was killed. *user*: (uid, gid) that the program runs with, without capabilities; ``None``
    for the agent's user. *groups*: additional group ids for *user*."""
    besides = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    other = [f"--reuid={user[0]}", f"--regid={user[1]}", besides, "--no-new-privs", "--inh-caps=-all",
             "--bounding-set=-all"] if user else []
    return ["setpriv", "--pdeathsig", "KILL", *other, "--"]


def unnamed_file(stack: ExitStack, content: bytes) -> int:
    """Return a file descriptor of an anonymous memory file with *content*. With it, a program gets a secret that must
    not be in its arguments or in a file on disk. The descriptor is closed when *stack* closes."""
    made = os.memfd_create("content", os.MFD_CLOEXEC)
    file = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, FIRST)
    os.close(made)
    stack.callback(os.close, file)
    with os.fdopen(file, "wb", closefd=False) as whole:
        whole.write(content)
    return file


def _start(arguments: Sequence[str], purpose: str, user: User, files: Sequence[int],
           groups: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 (a list of ours; no shell)
            [*bound_to_us(user, groups), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True, env={**os.environ, "LC_ALL": "C"}, pass_fds=files,
            umask=UMASK)
    except OSError as error:
        raise HypervisorError(
            f"The agent could not {purpose}: {error.strerror}. Install setpriv (util-linux).") from None


def _finish(process: subprocess.Popen[bytes], program: str, purpose: str, deadline: float | None,
            progress: Callable[[float], None] | None) -> str:
    """Wait for the end of *process* and return its standard output. Raises ``HypervisorError`` if the process fails or
    is still running at *deadline* (``None``: no limit). After any exception, the process is killed. *program*,
    *purpose*: for error messages. *progress*: see ``follow_program``."""
    read: dict[int, bytearray] = {pipe.fileno(): bytearray() for pipe in (process.stdout, process.stderr) if pipe}
    out, err = list(read)
    watch, open_pipes, percent = select.poll(), 2, 0.0  # select() takes no descriptor above 1,023
    for pipe in read:
        watch.register(pipe, select.POLLIN)
    try:
        while open_pipes:
            for pipe, _event in watch.poll(200):
                piece = os.read(pipe, 65536)
                if not piece:
                    watch.unregister(pipe)
                    open_pipes -= 1
                read[pipe] += piece
            if progress:
                percents = _PERCENT.findall(bytes(read[out][-200:]))
                percent = max(percent, float(percents[-1])) if percents else percent
                del read[out][:-200]
                progress(percent)
            if len(read[out]) + len(read[err]) > SAID_MAX:
                raise HypervisorError(f"{program} could not {purpose}: it said too much and was ended.")
            if deadline and time.monotonic() > deadline:
                raise HypervisorError(f"{program} could not {purpose}: it took too long and was ended. "
                                      "See whether the storage of the host answers, then repeat the call.")
        _code(process, program, purpose)
    finally:
        _end(process)
    if process.returncode:
        raise _failed(program, purpose, process.returncode, read[err].decode(errors="replace"))
    return read[out].decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def _failed(program: str, purpose: str, code: int, words: str) -> HypervisorError | NoSpace:
    """Return the error for *program*, which ended with the exit status *code* and the error output *words*. *purpose*:
    verb phrase for the message."""
    detail = " ".join(words.replace(f"{program}: ", "").split())[:500].rstrip(".") or f"exit status {code}"
    if any(full in words for full in _FULL):
        return NoSpace(f"The host has no room left to {purpose}. Free some, then repeat the call.")
    if code == 127 and "setpriv" in words:
        return HypervisorError(f"The agent could not {purpose}: {program} is not installed.")
    return HypervisorError(f"{program} could not {purpose}: {detail}.")
