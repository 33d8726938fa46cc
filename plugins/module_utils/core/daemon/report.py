# SPDX-License-Identifier: GPL-3.0-or-later
"""The report that a process writes about itself when it gets SIGUSR2: its version, the stacks of its threads and
asynchronous tasks, and the sections that its parts add.

A separate thread waits for the signal, so a report is written even if the main thread, an event loop or another thread
hangs. Only code that keeps Python's interpreter lock can prevent it. Against that, SIGABRT ends the process and makes
``faulthandler`` write the stacks of all threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import os
import queue
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional
from weakref import WeakSet

from ..version import installed_version

#: The signal that asks for a report, as in Nova.
REPORT_SIGNAL = signal.SIGUSR2
#: Seconds that a section of a part may take: the part may hang.
PATIENCE = 2.0
#: Most frames of a stack, and most names of threads or tasks with the same stack.
FRAMES, NAMES = 100, 20
#: Bytes of one write: a pipe does not mix lines of the log into writes of this size.
ATOMIC = 4096
STDERR = 2
Section = Callable[[], Iterable[str]]


def start_process_report(process: str) -> ProcessReport:
    """Start the thread that writes a report each time this process gets SIGUSR2. Return the report; parts of the
    process add their sections to it.

    Call this function before any other thread starts. SIGUSR2 is then blocked in all other threads, so only the
    report's thread receives the signal. Child processes inherit the blocked signal too, so a SIGUSR2 to all processes
    of a unit does not end them.

    *process*: the kind of the process, such as ``conductor``.
    """
    REPORT.process, REPORT.version = process, installed_version()
    signal.pthread_sigmask(signal.SIG_BLOCK, {REPORT_SIGNAL})
    if not faulthandler.is_enabled():
        faulthandler.enable(file=STDERR)
    REPORT.start()
    return REPORT


class ProcessReport:
    """The writer of this process's reports. Parts of the process add sections; the lines of a section are computed anew
    for each report. *process*: the kind of the process, such as ``conductor``. *version*: the version of the program.
    """

    def __init__(self) -> None:
        self.process, self.version, self._started_at = "process", "", time.time()
        #: Returns the folder for report files; ``None``: write reports to stderr.
        self.folder: Callable[[], Optional[Path]] = lambda: None
        self._sections: dict[str, Section] = {}
        #: Event loops whose tasks are in the report.
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._thread = threading.Thread(target=self.run, name="report", daemon=True)

    def start(self) -> None:
        """Start the thread that waits for signals. Does nothing if it runs already."""
        if not self._thread.is_alive():
            self._thread.start()

    def add_section(self, title: str, section: Section) -> None:
        """Add the section *title*, or replace the existing section with this title. *section*: a function that returns
        the lines of the section, without secrets. The function is called in a separate thread, and must not change
        anything."""
        self._sections[title] = section

    def remove_section(self, title: str) -> None:
        """Remove the section *title*, because the part of the process that added the section ends. Do nothing if there
        is no such section."""
        self._sections.pop(title, None)

    def add_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Include the tasks of the event loop *loop*. May be called from any thread."""
        self._loops.add(loop)

    def run(self) -> None:
        """Wait for signals and write a report for each, for as long as the process runs."""
        while True:
            signal.sigwait({REPORT_SIGNAL})
            try:
                self.write_report()
            except Exception as error:  # noqa: BLE001 - the next report may work
                _write_lines(STDERR, ["The report failed: %s: %s" % (type(error).__name__, error)])

    def write_report(self) -> None:
        """Write a report to a new file in the directory that ``self.folder`` returns, or to stderr if there is no
        directory or the file cannot be created. Each section is written before the next section is computed. If the
        disk of the directory hangs, the rest of the report goes to stderr."""
        folder = self.folder()
        output = _ReportOutput(None if folder is None else self._open_file(folder))
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        output.write(["==== Report of magnetar %s, %s ====" % (self.process, moment)])
        for title, section in {"Process": self._describe_process, "Threads": _describe_threads,
                               "Tasks": self._describe_tasks, **self._sections}.items():
            output.write(["", "== %s ==" % title, *_lines_in_time(section)])
        output.write(["", "==== End of the report of magnetar %s ====" % self.process])
        output.close()

    @contextlib.contextmanager
    def _open_file(self, folder: Path) -> Iterator[int]:
        """Yield the file descriptor for a report: that of a new file in *folder* which only its owner can read, or of
        stderr if no file can be created in it."""
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + ".%06dZ" % (time.time_ns() // 1000 % 1000000)
        path = folder / ("magnetar-%s_%s_%d.txt" % (re.sub(r"[^a-z0-9]+", "-", self.process), moment, os.getpid()))
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            _write_log_line("error", "the report follows, because %s cannot be created: %s" % (path, error.strerror))
            yield STDERR
            return
        try:
            yield output
        finally:
            os.close(output)
        _write_log_line("info", "the report of this process is in %s" % path)

    def _describe_process(self) -> Iterator[str]:
        """Yield the version, ids, age and resources of the process."""
        now, used = time.time(), os.times()
        yield "package: magnetar %s, Python %s" % (self.version, sys.version.split()[0])
        yield "process: %s, id %d, parent %d, user %d" % (self.process, os.getpid(), os.getppid(), os.geteuid())
        yield "host: %s" % os.uname().nodename
        with contextlib.suppress(OSError):
            words = Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")
            yield "command: %s" % " ".join(words).strip()
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started_at))
        yield "started: %s, %d s ago; %.1f s of CPU time" % (started, now - self._started_at, used.user + used.system)
        with contextlib.suppress(OSError):
            pages = int(Path("/proc/self/statm").read_bytes().split()[1])
            files = len(os.listdir("/proc/self/fd"))
            yield "memory: %d MiB; open files: %d" % (pages * os.sysconf("SC_PAGE_SIZE") >> 20, files)

    def _describe_tasks(self) -> Iterator[str]:
        """Yield the unfinished tasks of the event loops with what they wait for. Tasks with the same stack are listed
        together."""
        stacks: dict[tuple[str, ...], list[str]] = {}
        for loop in list(self._loops):
            for task in asyncio.all_tasks(loop):
                stacks.setdefault(tuple(_await_lines(task.get_coro())), []).append(task.get_name())
        yield from _group_lines(stacks, "task")


class _ReportOutput:
    """The output of a report. *file*: opens the file for it; ``None`` for stderr. The disk of the file may hang, so a
    separate thread opens it and writes to it. What it does not write within ``PATIENCE`` goes to stderr, and all that
    follows."""

    def __init__(self, file: Optional[contextlib.AbstractContextManager[int]]) -> None:
        self._to_stderr = file is None
        self._pieces: queue.SimpleQueue[Optional[list[str]]] = queue.SimpleQueue()
        self._done = threading.Semaphore(0)
        if file is not None:
            threading.Thread(target=self._write_file, args=(file,), name="report output", daemon=True).start()

    def _write_file(self, file: contextlib.AbstractContextManager[int]) -> None:
        with contextlib.suppress(TimeoutError), file as output:
            while (lines := self._pieces.get()) is not None:
                if self._to_stderr:
                    raise TimeoutError  # the file is not complete
                _write_lines(output, lines)
                self._done.release()
            if self._to_stderr:
                raise TimeoutError
        self._done.release()

    def write(self, lines: list[str]) -> None:
        """Write *lines*, to stderr if the file does not take them in time."""
        if not self._to_stderr:
            self._pieces.put(lines)
            self._wait("the report follows")
        if self._to_stderr:
            _write_lines(STDERR, lines)

    def close(self) -> None:
        """Close the file."""
        self._pieces.put(None)
        if not self._to_stderr:
            self._wait("the file of the report may be cut short")

    def _wait(self, result: str) -> None:
        if not self._done.acquire(timeout=PATIENCE):
            self._to_stderr = True
            _write_log_line("error", "%s, because its folder does not answer within %g s" % (result, PATIENCE))


#: The report of this process.
REPORT = ProcessReport()


def _lines_in_time(section: Section) -> list[str]:
    """Return the lines that the function *section* computes. If *section* raises an error, or takes longer than
    ``PATIENCE`` seconds, return a line that says so."""
    lines = ["did not answer within %g s" % PATIENCE]

    def compute() -> None:
        try:
            lines[:] = section()
        except Exception as error:  # noqa: BLE001 - a fault of one section leaves the others
            lines[:] = ["failed: %s" % type(error).__name__]

    thread = threading.Thread(target=compute, name="report section", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return list(lines) or ["none"]


def _describe_threads() -> Iterator[str]:
    """Yield the threads with their stacks. Threads with the same stack are listed together."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    stacks: dict[tuple[str, ...], list[str]] = {}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented
        thread = threads.get(ident)
        if thread is not None and thread.name in ("report", "report output", "report section"):
            continue
        name = "%s (%s)" % (thread.name, thread.native_id) if thread is not None else "not of Python (%d)" % ident
        stacks.setdefault(tuple(_stack_lines(frame)), []).append(name)
    yield from _group_lines(stacks, "thread")


def _group_lines(stacks: dict[tuple[str, ...], list[str]], noun: str) -> Iterator[str]:
    """Yield the lines of each stack in *stacks*. Before each stack, yield a line with the names of the threads or tasks
    that have this stack. *noun*: ``thread`` or ``task``."""
    for stack, names in stacks.items():
        more = "" if len(names) <= NAMES else " and %d more" % (len(names) - NAMES)
        title = noun if len(names) == 1 else noun + "s"
        yield "%d %s: %s%s" % (len(names), title, ", ".join(sorted(names)[:NAMES]), more)
        yield from stack


def _stack_lines(frame: Any) -> list[str]:
    """Return the lines of the stack that ends with *frame*, the most recent call last. The lines have no source text,
    because the disk with the source files may hang."""
    lines: list[str] = []
    while frame is not None and len(lines) < FRAMES:
        lines.insert(0, _frame_line(frame))
        frame = frame.f_back
    return lines


def _await_lines(awaited: Any) -> list[str]:
    """Return a line for each coroutine in a chain: first *awaited*, then the coroutine that *awaited* waits for, and so
    on. The last line has the type of the object that the innermost coroutine waits for."""
    lines: list[str] = []
    while awaited is not None and len(lines) < FRAMES:
        frame = next((frame for name in ("cr_frame", "gi_frame", "ag_frame")
                      if (frame := getattr(awaited, name, None)) is not None), None)
        if frame is None:
            lines.append("  waits for: %s" % type(awaited).__name__)  # its text may have secrets
            break
        lines.append(_frame_line(frame))
        awaited = next((inner for name in ("cr_await", "gi_yieldfrom", "ag_await")
                        if (inner := getattr(awaited, name, None)) is not None), None)
    return lines


def _frame_line(frame: Any) -> str:
    code = frame.f_code
    return "  %s:%d %s" % (code.co_filename, frame.f_lineno or 0, getattr(code, "co_qualname", code.co_name))


def _write_log_line(level: str, message: str) -> None:
    """Write a line to stderr in the format of the log. The logging module is not used, because another thread may hold
    its locks."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime())
    _write_lines(STDERR, [json.dumps({"time": moment, "level": level, "logger": __name__, "message": message})])


def _write_lines(output: int, lines: Iterable[str]) -> None:
    """Write *lines* to the file descriptor *output*, in pieces of whole lines."""
    piece = b""
    for line in lines:
        encoded = line.encode("utf-8", "replace") + b"\n"
        if piece and len(piece) + len(encoded) > ATOMIC:
            _write_all(output, piece)
            piece = b""
        piece += encoded
    _write_all(output, piece)


def _write_all(output: int, content: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads stderr any more, or the disk is full
        while content:
            content = content[os.write(output, content):]
