# SPDX-License-Identifier: GPL-3.0-or-later
"""A test that KVM works on this host: it runs a real guest, because /dev/kvm alone proves nothing.

On some machines /dev/kvm opens and guests then hang. So QEMU is started directly (libvirt would wait until it ends)
with a small firmware, ``probe.s``: it switches to 64-bit mode with paging, waits in ``hlt`` for five timer interrupts,
and only then writes to QEMU's exit port.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.reconcile.documents import write_atomically
from magnetar_core.operations import utc_timestamp

log = logging.getLogger(__name__)

#: Seconds until the guest must have ended; with a working KVM it needs a tenth of one.
LIMIT = 5.0
#: QEMU's isa-debug-exit turns the byte 0x31 that the guest writes into this exit status.
PROVED = 0x31 << 1 | 1
#: Machine code of probe.s: ``as --64 -o probe.o probe.s && objcopy -O binary -j .text probe.o probe.bin``.
_CODE = base64.b64decode(
    "+jHAjtiO0I7AvABw/Ga/ABAAAGYxwGa5ABQAAGbzq2bHBgAQAyAAAGbHBgAgAzAAAGbHBhggA0AAAGbHBgAwgwAAAGbHBvhPgwDg"
    "/2bHBrhPkwDg/i5mDwEWaP9muAAQAAAPIthmuCAAAAAPIuBmuYAAAMAPMmYNAAEAAA8wDyDAZg0BAACADyLAZuqS/v//CABmuBAA"
    "jtiOwI7QvABwAAC4Q////2aJBCUAUgAAZscEJQJSAAAIAGbHBCUEUgAAAI7B6BBmiQQlBlIAAMcEJQhSAAAAAAAAZscEJQBgAAD/"
    "D0jHBCUCYAAAAFAAAA8BHCUAYAAAugAA4P7HgvAAAAD/AQAAx4JQAwAAAIcAALAR5iCwIOYhsATmIbAB5iGw/uYhsDTmQ7Cp5kCw"
    "BOZAMdv79IP7BXL6Zrr0ALAx7vr06/3/w7Ag5iBIzw8fRAAAAAAAAAAAAAD//wAAAJqvAP//AAAAks8AFwBQ////"
)
#: Offsets of the code and the reset vector in the firmware of 64 KiB, whose last byte is the last one below 4 GiB.
_AT, _RESET = 0xFE00, 0xFFF0


def probe_firmware() -> bytes:
    """Return the firmware image of the test guest that checks whether KVM works: a small program that ends QEMU."""
    image = bytearray(b"\xf4" * 0x10000)
    image[_AT:_AT + len(_CODE)] = _CODE
    image[_RESET:_RESET + 3] = b"\xe9" + (_AT - _RESET - 3).to_bytes(2, "little", signed=True)
    return bytes(image)


def qemu_program() -> str | None:
    """Return the path of QEMU's program for this machine's architecture; ``None`` if it is not installed."""
    return shutil.which(f"qemu-system-{platform.machine()}") or shutil.which("qemu-kvm", path="/usr/libexec:/usr/bin")


def probe_kvm(accel: str = "kvm", limit: float = LIMIT, stop: threading.Event | None = None) -> tuple[bool, str]:
    """Check whether guests run under QEMU's accelerator *accel*, by running a test guest for at most *limit* seconds.
    Return whether it ran, and the reason as text. *stop*: event that ends the test early."""
    program = qemu_program()
    if platform.machine() != "x86_64":
        return False, f"only x86_64 hosts are probed, and this is {platform.machine()}"
    if program is None:
        return False, "QEMU is not installed"
    if accel == "kvm" and not Path("/dev/kvm").exists():
        return False, "/dev/kvm does not exist: no hardware virtualisation, or the kvm module is not loaded"
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="magnetar-probe-") as folder:
        image = Path(folder, "firmware.bin")
        image.write_bytes(probe_firmware())
        with subprocess.Popen(  # noqa: S603 (a fixed list)
                [*_dying(), program, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-m", "16",
                 "-machine", f"q35,accel={accel}", "-cpu", "host" if accel == "kvm" else "max", "-bios", str(image),
                 "-device", "isa-debug-exit,iobase=0xf4,iosize=1"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}) as guest:
            try:
                while guest.poll() is None and time.monotonic() < started + limit and not (stop and stop.is_set()):
                    time.sleep(0.01)
                hung = guest.poll() is None
            finally:
                _end(guest)
            output_lines = guest.communicate()[1].decode(errors="replace").strip().splitlines()
    if hung:
        return False, f"a guest under {accel} started but hung for {limit:g} s"
    if guest.returncode == PROVED:
        return True, f"a guest ran under {accel} in {time.monotonic() - started:.1f} s"
    return False, (f"a guest under {accel} failed: "
                   f"{output_lines[-1][:200] if output_lines else f'exit status {guest.returncode}'}")


def _dying() -> list[str]:
    """Return a command prefix that makes the kernel kill the program when the thread that started the program ends, for
    example because the agent was killed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


class Kvm:
    """The result of ``probe_kvm``, which runs in a background thread. *folder*: where the result is stored. A stored
    result is used until the host reboots or QEMU is replaced."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "kvm.json"
        self._known = threading.Event()
        self._stop = threading.Event()
        self._answer: dict[str, Any] = {"usable": False, "reason": "being probed", "checked_at": None}
        self._thread = threading.Thread(target=self._find_out, name="kvm-probe", daemon=True)
        self._thread.start()

    def seen(self) -> dict[str, Any]:
        """Return the current result as ``{"usable", "reason", "checked_at"}``, without waiting for the probe."""
        return dict(self._answer)

    def wait(self) -> dict[str, Any]:
        """Wait for the end of the probe, at most 5 s longer than its time limit, and return its result as ``{"usable",
        "reason", "checked_at"}``."""
        self._known.wait(LIMIT + 5)
        return self.seen()

    def close(self) -> None:
        """Stop a running probe; its result is not stored."""
        self._stop.set()
        self._thread.join(LIMIT)

    def _find_out(self) -> None:
        try:
            circumstances = {"boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "qemu": _stamp(),
                             "kvm": Path("/dev/kvm").exists()}
            stored = self._kept()
            if stored.get("circumstances") == circumstances:
                self._answer = stored["answer"]
                return
            usable, reason = probe_kvm(stop=self._stop)
            if self._stop.is_set():
                return
            self._answer = {"usable": usable, "reason": reason, "checked_at": utc_timestamp()}
            log.info("kvm is %s: %s", "usable" if usable else "not usable", reason)
            make_state_folder(self._file.parent)
            write_atomically(self._file, json.dumps({"circumstances": circumstances, "answer": self._answer}).encode())
        except OSError as error:
            log.warning("the outcome of the KVM probe is not kept: %s", error)
        finally:
            self._known.set()

    def _kept(self) -> dict[str, Any]:
        try:
            stored = json.loads(self._file.read_text())
            return stored if isinstance(stored, dict) and set(stored.get("answer", ())) == set(self._answer) else {}
        except (OSError, ValueError):
            return {}


def _stamp() -> str:
    """Return a text that changes when the QEMU program is replaced (path, size, modification time)."""
    program = qemu_program()
    if program is None:
        return ""
    status = Path(program).stat()
    return f"{program} {status.st_size} {status.st_mtime_ns}"


def _end(guest: subprocess.Popen[bytes]) -> None:
    if guest.poll() is None:
        os.killpg(guest.pid, signal.SIGKILL)
        guest.wait()
