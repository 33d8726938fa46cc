# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow by which the integration bridge drops router advertisements that OVN has marked
(``core.router_advertisements``).

One for all ports of a host: OVN says which guests may advertise. ovn-controller removes all flows that it does not
know when it has begun anew, and ovs-vswitchd begins with none. So the bridge is watched (``ovs-ofctl monitor``), and
the flow is there again some milliseconds after it went.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import threading
from typing import TYPE_CHECKING

from magnetar_agent.virt.tools.process import bound_to_us, run
from magnetar_core.errors import HypervisorError
from magnetar_core.router_advertisements import DSCP, TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

#: By which an operator finds the flow: ``ovs-ofctl dump-flows br-int cookie=0x6d61676e/-1``.
COOKIE = 0x6D61676E
#: Where packets leave the bridge (OFTABLE_LOG_TO_PHY of ovn-architecture(7)), and what is marked. ovs-ofctl takes the
#: octet, in which the DSCP are the upper six bits.
MARKED = f"table=65,icmp6,icmp_type={TYPE},nw_tos={DSCP << 2}"
FLOW = f"cookie={COOKIE:#x},priority=65535,{MARKED},actions=drop"
#: The changes of flows that are told of, as ovs-ofctl(8) says under ``monitor``.
WATCH = f"watch:!initial,{MARKED}"
#: Seconds between two looks should a word be missed (the first ones are sooner), and between two watches.
LOOK, FIRST, AGAIN = 30.0, 0.2, 1.0
#: Seconds that adding the flow may take; most bytes of a line that is kept.
TIMEOUT, MOST = 10.0, 1000


class SwitchFilter:
    """See the head of this file."""

    def __init__(self) -> None:
        self.bridge = ""
        #: Why marked packets are not dropped; "": they are, or there is no bridge yet.
        self.reason = ""
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def keep(self, bridge: str) -> None:
        """Have *bridge* (a name, or ``unix:`` and a socket) drop what is marked, from now on; returns at once."""
        with self._lock:
            if self._thread is None and not self._ending.is_set():
                self.bridge = bridge
                self._thread = threading.Thread(target=self._run, name="switch-filter", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End; the flow stays."""
        with self._lock:
            self._ending.set()
            if self._process is not None:
                self._process.kill()
        if self._thread is not None:
            self._thread.join(20)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                said = self._watch()
            except HypervisorError as error:
                said = error.message
            except OSError as error:  # no room for another process, or no setpriv
                said = f"Open vSwitch's bridge {self.bridge} cannot be watched ({error})."
            except Exception as error:  # the thread must live: guests are kept apart by it
                log.exception("switch filter")
                said = str(error)
            if not self._ending.is_set():
                self._say(said)
                self._ending.wait(AGAIN)

    def _say(self, reason: str) -> None:
        if reason and not self.reason:
            log.error("router advertisements of guests are not dropped: %s", reason)
        self.reason = reason

    def _watch(self) -> str:
        """Keep the flow there for as long as the bridge can be watched. Returns why it cannot."""
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
                    # Also somebody else's agent adds it; what it says of that is no reason to do it again.
                    if "event=ADDED" not in line and ("event=" in line or not line):
                        self._add()
            finally:
                process.kill()
        return (f"Open vSwitch's bridge {self.bridge} cannot be watched ({last or 'ovs-ofctl has ended'}). Look at the "
                "log of ovs-vswitchd.")

    def _lines(self, process: subprocess.Popen[bytes]) -> Iterator[str]:
        """What the watch says, line by line; "" at first, until it has said something, and each ``LOOK`` seconds."""
        assert process.stderr is not None
        pipe, rest, patience = process.stderr.fileno(), b"", FIRST
        ready = select.poll()  # select() takes no descriptor above 1,023
        ready.register(pipe, select.POLLIN)
        yield ""
        while True:
            if not ready.poll(patience * 1000):
                patience = min(2 * patience, LOOK)
                yield ""
                continue
            said = os.read(pipe, 65536)
            if not said:
                return
            *lines, rest = (rest + said).split(b"\n")
            rest = rest[-MOST:]
            for line in lines:
                if b"event=" in line:
                    patience = LOOK  # it watches
                yield line.decode(errors="replace")[:MOST]

    def _add(self) -> None:
        run(["ovs-ofctl", "add-flow", self.bridge, FLOW],
            f"have {self.bridge} drop router advertisements of guests", TIMEOUT)
        self._say("")
