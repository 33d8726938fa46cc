# SPDX-License-Identifier: GPL-3.0-or-later
"""The power devices of hosts, from the setting ``fencing``: for each host a fence agent and its parameters."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from magnetar_control.settings import Settings
from magnetar_core.errors import InvalidSettings

#: Names of fence agents, and of their parameters.
AGENT_NAME, PARAMETER_NAME = re.compile(r"fence_[a-z0-9_]{1,60}"), re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
#: Parameters that Magnetar sets itself.
OWN = ("action", "option", "o")
#: Parameters with one of these words are secrets, unless they name a script or file that has the secret.
SECRET, NO_SECRET = re.compile(r"pass|secret|token|credential"), re.compile(r"(script|file|path)$")
#: The most bytes of a file of secrets. They are written to the agent's standard input in one piece.
MOST = 16 * 1024
KEYS = ("agent", "parameters", "secrets_file")


class FenceDevice(NamedTuple):
    """The settings for switching the power of one host. ``program``: the fence agent (such as fence_ipmilan).
    ``parameters``: the agent's parameters. ``secrets_file``: the file with its secret parameters. ``timeout``: seconds
    for one run of the agent. ``tries``: the greatest number of attempts to switch the host."""

    host: str
    program: Path
    parameters: Mapping[str, str]
    secrets_file: Path | None
    timeout: float
    tries: int

    @property
    def agent(self) -> str:
        """The name of the fence agent."""
        return self.program.name


def fence_devices(settings: Settings) -> dict[str, FenceDevice]:
    """Return the fence devices in the setting ``fencing``, by name of the host. Files with secrets are not read. Raises
    ``InvalidSettings``."""
    devices = {str(host): _device(str(host), entry, settings) for host, entry in settings.fencing.items()}
    hosts_by_device: dict[Any, str] = {}
    for host, device in devices.items():
        key = (device.agent, device.secrets_file, *sorted(device.parameters.items()))
        if (other := hosts_by_device.setdefault(key, host)) != host:
            raise InvalidSettings(f"fencing: {other} and {host} have the same device, so the wrong host would be "
                                  "switched off; give each its own parameters, such as ip or plug.")
    return devices


def _device(host: str, entry: Any, settings: Settings) -> FenceDevice:
    if not isinstance(entry, dict):
        raise InvalidSettings(f"fencing: {host} must have the keys {', '.join(KEYS)}, and is {entry!r}.")
    if wrong := [str(key) for key in entry if key not in KEYS]:
        raise InvalidSettings(f"fencing: {host} has the key {wrong[0]!r}; permitted are {', '.join(KEYS)}.")
    agent, parameters, secrets = entry.get("agent"), entry.get("parameters") or {}, entry.get("secrets_file")
    if not isinstance(agent, str) or not AGENT_NAME.fullmatch(agent):
        raise InvalidSettings(f"fencing: agent of {host} must be the name of a fence agent such as fence_ipmilan, and "
                              f"is {agent!r}.")
    if not isinstance(parameters, dict):
        raise InvalidSettings(f"fencing: parameters of {host} must be names and values, and are {parameters!r}.")
    if secrets is not None and not (isinstance(secrets, str) and Path(secrets).is_absolute()):
        raise InvalidSettings(f"fencing: secrets_file of {host} must be an absolute path, and is {secrets!r}.")
    return FenceDevice(host, settings.fence_agents_dir / agent,
                       {str(name): _parameter_text(host, str(name), value) for name, value in parameters.items()},
                       None if secrets is None else Path(secrets), settings.fence_timeout, settings.fence_tries)


def _parameter_text(host: str, name: str, value: Any) -> str:
    """Return *value*, the value of the parameter *name*, as text for the fence agent of *host*. Raises
    ``InvalidSettings`` for a secret, which must not be in the settings, and for an invalid value."""
    _check_parameter_name(f"fencing: parameter {name!r} of {host}", name)
    if SECRET.search(name.lower()) and not NO_SECRET.search(name.lower()):
        raise InvalidSettings(f"fencing: parameter {name} of {host} is a secret: write it as {name}=VALUE into a file "
                              "of mode 0600, and name that file as secrets_file.")
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, str | int | float) or not str(value).isprintable():
        raise InvalidSettings(f"fencing: parameter {name} of {host} must be one line of text or a number, and is "
                              f"{value!r}.")
    return str(value)


def _check_parameter_name(where: str, name: str) -> None:
    if not PARAMETER_NAME.fullmatch(name):
        raise InvalidSettings(f"{where} must have the name of a parameter of the agent, such as ip.")
    if name in OWN:
        raise InvalidSettings(f"{where} is set by Magnetar; remove it.")


def read_device_secrets(device: FenceDevice) -> dict[str, str]:
    """Return the secret parameters of a fence device, by name, from its file ``secrets_file``. Raises
    ``InvalidSettings`` with the name of the file, but without its content."""
    path = device.secrets_file
    if path is None:
        return {}
    place = f"fencing: secrets_file {path} of {device.host}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            user = os.geteuid()  # root reads the files of the service's user, too
            if not stat.S_ISREG(status.st_mode) or (user and status.st_uid not in (0, user)):
                raise InvalidSettings(f"{place} must be a file of root or of the service's user.")
            if status.st_mode & 0o077:
                raise InvalidSettings(f"{place} has mode {stat.S_IMODE(status.st_mode):04o}, so others can read it. "
                                      f"Give it mode 0600: chmod 600 {path}")
            text = file.read(MOST + 1).decode()
    except OSError as error:
        raise InvalidSettings(f"{place} cannot be read: {error.strerror}. Run this as root or as the service's "
                              "user.") from None
    except UnicodeDecodeError:
        raise InvalidSettings(f"{place} must be text in UTF-8.") from None
    if len(text) > MOST:
        raise InvalidSettings(f"{place} must have at most {MOST} bytes.")
    return _parse_secrets(text, place)


def _parse_secrets(text: str, file_name: str) -> dict[str, str]:
    """Return {NAME: VALUE} from the lines NAME=VALUE of *text*. Empty lines and lines that begin with # are ignored.
    *file_name*: the name of the file, for errors. Raises ``InvalidSettings``."""
    secrets = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not value.isprintable():
            raise InvalidSettings(f"{file_name}: line {number} must be NAME=VALUE.")
        _check_parameter_name(f"{file_name}: line {number}", name.strip())
        secrets[name.strip()] = value
    return secrets
