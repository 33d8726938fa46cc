# SPDX-License-Identifier: GPL-3.0-or-later
"""A flow in the integration bridge that drops router advertisements that OVN has marked
(``core.router_advertisements``).

One flow serves all ports of a host: OVN decides which guests may advertise. A restarted ovn-controller removes all
flows that it does not know, and ovs-vswitchd starts with none. So a thread watches the bridge (``ovs-ofctl monitor``),
and adds the flow again some milliseconds after its removal.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import threading
from typing import TYPE_CHECKING

from magnetar_agent.virt.tools.process import bound_to_us, run_program
from magnetar_core.errors import HypervisorError
from magnetar_core.router_advertisements import DSCP, TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

#: The cookie that identifies the flow: ``ovs-ofctl dump-flows br-int cookie=0x6d61676e/-1``.
COOKIE = 0x6D61676E
#: The table of packets that leave the bridge (OFTABLE_LOG_TO_PHY of ovn-architecture(7)), and the mark. ovs-ofctl takes
#: the octet whose upper six bits are the DSCP.
MARKED = f"table=65,icmp6,icmp_type={TYPE},nw_tos={DSCP << 2}"
FLOW = f"cookie={COOKIE:#x},priority=65535,{MARKED},actions=drop"
#: The watched changes of flows, in the form of ovs-ofctl(8) under ``monitor``.
WATCH = f"watch:!initial,{MARKED}"
#: Seconds between two checks in case an event is missed (the first checks are sooner), and between two watches.
POLL_INTERVAL, FIRST, AGAIN = 30.0, 0.2, 1.0
#: Seconds that adding the flow may take; the most bytes of a stored line.
TIMEOUT, MOST = 10.0, 1000


class SwitchFilter:
    """A thread that keeps a flow in the Open vSwitch integration bridge: whenever the flow is missing, the thread adds
    it. The flow drops router advertisements that OVN has marked."""

    def __init__(self) -> None:
        self.bridge = ""
        #: Why marked packets are not dropped; "" if they are, or there is no bridge yet.
        self.reason = ""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def keep(self, bridge: str) -> None:
        """Start the thread for *bridge*, the name of an Open vSwitch bridge or ``unix:`` and its management socket.
        Returns immediately."""
        with self._lock:
            if self._thread is None and not self._ending.is_set():
                self.bridge = bridge
                self._thread = threading.Thread(target=self._run, name="switch-filter", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop the thread. The flow is not removed from the bridge."""
        with self._lock:
            self._ending.set()
            if self._process is not None:
                self._process.kill()
        if self._thread is not None:
            self._thread.join(20)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                problem = self._watch()
            except HypervisorError as error:
                problem = error.message
            except OSError as error:  # no room for another process, or no setpriv
                problem = f"Open vSwitch's bridge {self.bridge} cannot be watched ({error})."
            except Exception as error:  # the thread must live: guests are kept apart by its flow
                log.exception("switch filter")
                problem = str(error)
            if not self._ending.is_set():
                self._say(problem)
                self._ending.wait(AGAIN)

    def _say(self, reason: str) -> None:
        if reason and not self.reason:
            log.error("router advertisements of guests are not dropped: %s", reason)
        self.reason = reason

    def _watch(self) -> str:
        """Monitor the bridge and add the flow whenever it is missing, until ``ovs-ofctl monitor`` ends. Return an error
        text: why the bridge cannot be monitored; "" if the thread was stopped before the monitor started."""
        with self._lock:
            if self._ending.is_set():
                return ""
            self._process = subprocess.Popen(  # noqa: S603 (a list of ours; no shell)
                [*bound_to_us(None), "ovs-ofctl", "--unixctl=none", "monitor", self.bridge, WATCH],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"})
        last = ""
        with self._process as process:
            try:
                for line in self._lines(process):
                    last = line or last
                    # Another agent may add the flow too; that event is no reason to add it again.
                    if "event=ADDED" not in line and ("event=" in line or not line):
                        self._add()
            finally:
                process.kill()
        return (f"Open vSwitch's bridge {self.bridge} cannot be watched ({last or 'ovs-ofctl has ended'}). Look at the "
                "log of ovs-vswitchd.")

    def _lines(self, process: subprocess.Popen[bytes]) -> Iterator[str]:
        """Yield the output lines of ``ovs-ofctl monitor``, which runs as *process*. Also yield "" at the start and
        after some seconds without output, to check the bridge again."""
        assert process.stderr is not None
        pipe, partial, patience = process.stderr.fileno(), b"", FIRST
        ready = select.poll()  # select() takes no descriptor above 1,023
        ready.register(pipe, select.POLLIN)
        yield ""
        while True:
            if not ready.poll(patience * 1000):
                patience = min(2 * patience, POLL_INTERVAL)
                yield ""
                continue
            output = os.read(pipe, 65536)
            if not output:
                return
            *lines, partial = (partial + output).split(b"\n")
            partial = partial[-MOST:]
            for line in lines:
                if b"event=" in line:
                    patience = POLL_INTERVAL  # the watch works
                yield line.decode(errors="replace")[:MOST]

    def _add(self) -> None:
        run_program(["ovs-ofctl", "add-flow", self.bridge, FLOW],
                    f"have {self.bridge} drop router advertisements of guests", TIMEOUT)
        self._say("")
