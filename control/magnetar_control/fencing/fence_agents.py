# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of fence agents, programs of Debian's package fence-agents: parameters as ``name=value`` lines on standard
input, exit status 0 for success (of ``status``: on), 2 for a host that is off, anything else for a failure."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from magnetar_core.errors import FencingFailed

from .fence_devices import SECRET, FenceDevice, read_device_secrets

log = logging.getLogger(__name__)
ON, OFF = "on", "off"
#: Exit statuses of ``status`` for a host that is on, and for one that is off.
POWER_BY_STATUS = {0: ON, 2: OFF}
#: What agents print for ``status``.
STATUS_LINE = re.compile(r"\bstatus:\s*(on|off)\b", re.IGNORECASE)
#: Bytes of the output that are kept, and characters of it in messages.
MOST_OUTPUT, SHOWN = 16 * 1024, 300
#: Values in files of secrets that are shorter, and no secrets by their names, may be in messages.
SHORT = 5
#: Seconds between a failed try and the next; seconds between two looks at a running agent.
PAUSE, POLL_INTERVAL = 2.0, 0.05
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


class FenceAnswer(NamedTuple):
    """The result of one run of a fence agent (such as fence_ipmilan). ``status``: the exit status. ``text``: the end of
    the agent's output in one line, without secrets."""

    status: int
    text: str


def longest_fencing(device: FenceDevice) -> float:
    """Return the largest number of seconds that ``switch_host`` can take for *device*."""
    return device.tries * (2 * device.timeout + PAUSE) + 10


def switch_host(device: FenceDevice, power: str) -> None:
    """Switch the power of a host, and wait until its fence agent reports the new power state. *power*: on or off. Make
    at most ``device.tries`` attempts. Raises ``FencingFailed``, ``InvalidSettings``."""
    secrets = read_device_secrets(device)
    failure = None
    for number in range(device.tries):
        if number:
            time.sleep(PAUSE)
        try:
            answer = _run_agent(device, power, secrets)
            if answer.status:
                failure = _failed(device, power, answer)
            if _power_of(device, secrets) == power:
                return
            failure = failure or FencingFailed(
                f"Host {device.host} is still {ON if power == OFF else OFF}: {device.agent} was asked to switch it "
                f"{power}, ended without an error, and then reports the opposite. Check that the parameters in the "
                f"setting fencing name the right outlet or machine, and switch the host {power} by hand.")
        except FencingFailed as error:
            if error.details.get("final"):
                raise
            failure = error
        log.warning("host %s: try %s of %s to switch it %s: %s", device.host, number + 1, device.tries, power, failure)
    assert failure is not None
    raise failure


def host_power(device: FenceDevice) -> str:
    """Return whether a host is ``on`` or ``off``, as its fence agent reports. Raises ``FencingFailed``,
    ``InvalidSettings``."""
    return _power_of(device, read_device_secrets(device))


def _power_of(device: FenceDevice, secrets: dict[str, str]) -> str:
    answer = _run_agent(device, "status", secrets)
    power = POWER_BY_STATUS.get(answer.status)
    if power is None:
        raise _failed(device, "status", answer)
    words = {word.lower() for word in STATUS_LINE.findall(answer.text)}
    if words and words != {power}:
        raise FencingFailed(f"{device.agent} contradicts itself about host {device.host}: its exit status says "
                            f"{power}, and it prints: {answer.text}. Run it by hand, or use another agent in the "
                            "setting fencing.")
    return power


def _failed(device: FenceDevice, action: str, answer: FenceAnswer) -> FencingFailed:
    reason = answer.text or "it prints no reason"
    return FencingFailed(f"{device.agent} failed for host {device.host} (action {action}, exit status "
                         f"{answer.status}): {reason}. Check address, plug and secrets in the setting fencing; "
                         f"`{device.program} -o metadata` lists the parameters.")


def _run_agent(device: FenceDevice, action: str, secrets: dict[str, str]) -> FenceAnswer:
    """Run the fence agent once. *action*: the action of the fence agent, such as off or status. *secrets*: further
    parameters by name, such as a password. Raises ``FencingFailed`` if the agent cannot be run, or does not end in
    time; then the agent is killed with all its child processes."""
    lines = {**device.parameters, **secrets, "action": action}
    request = "".join(f"{name}={value}\n" for name, value in lines.items()).encode()
    with _started(device) as process:
        deadline, output = time.monotonic() + device.timeout, b""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # an agent that reads nothing has its own reason
            process.stdin.write(request)
            process.stdin.close()
        while not _has_ended(process):
            if time.monotonic() > deadline:
                raise FencingFailed(
                    f"{device.agent} did not end within {device.timeout:g} seconds for host {device.host} (action "
                    f"{action}), and was killed. Check the address in the setting fencing, and that the device "
                    "answers; a slow one needs a larger fence_timeout.")
            output = _read_more(process, output, POLL_INTERVAL)
        output = _read_more(process, output, 0)
        return FenceAnswer(_end_group(process), _printable_output(output, secrets))


@contextlib.contextmanager
def _started(device: FenceDevice) -> Iterator[subprocess.Popen[bytes]]:
    """Start the fence agent in a new process group, and yield its process. At the end of the context, kill the whole
    group."""
    try:
        process = subprocess.Popen(  # noqa: S603 - a program that the operator's settings name
            [str(device.program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=ENVIRONMENT, cwd="/", start_new_session=True, bufsize=0)
    except FileNotFoundError:
        raise FencingFailed(f"The fence agent of host {device.host} is not installed on this machine: there is no "
                            f"{device.program}. Install the package fence-agents, or correct the setting fencing or "
                            "fence_agents_dir.", final=True) from None
    except OSError as error:
        raise FencingFailed(f"The fence agent of host {device.host}, {device.program}, cannot be run: "
                            f"{error.strerror}. Install the package fence-agents again, or correct the setting "
                            "fencing.", final=True) from None
    try:
        os.set_blocking(process.stdout.fileno(), False)  # type: ignore[union-attr]
        yield process
    finally:
        if process.returncode is None:
            _end_group(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the agent has ended, without reaping it, so that its process group can still be killed."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_group(process: subprocess.Popen[bytes]) -> int:
    """Kill the fence agent, if it still runs, and all processes that it has started. Return the exit status of the
    agent."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _read_more(process: subprocess.Popen[bytes], output: bytes, seconds: float) -> bytes:
    """Wait at most *seconds* for new output of the fence agent. Return *output* with the new output appended, shortened
    to the last bytes, because an agent may print endlessly."""
    assert process.stdout is not None
    poll = select.poll()  # also for descriptors above those of select.select
    poll.register(process.stdout, select.POLLIN)
    if poll.poll(seconds * 1000):
        with contextlib.suppress(BlockingIOError):
            part = os.read(process.stdout.fileno(), MOST_OUTPUT)
            if not part:  # the agent has closed its output
                time.sleep(seconds)
            output = (output + part)[-MOST_OUTPUT:]
    return output


def _printable_output(output: bytes, secrets: Mapping[str, str]) -> str:
    """Return the end of a fence agent's output as one line, without control characters and without the values of
    *secrets*. A short user name is not removed, because its letters may be part of other words."""
    text = output.decode("utf-8", "replace")
    hidden = {value for name, value in secrets.items()
              if value and (len(value) >= SHORT or SECRET.search(name.lower()))}
    for value in sorted(hidden, key=len, reverse=True):
        text = text.replace(value, "...")
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= SHOWN else f"...{line[-SHOWN:]}"
