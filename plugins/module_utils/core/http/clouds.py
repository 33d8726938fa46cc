# SPDX-License-Identifier: GPL-3.0-or-later
"""The cloud that somebody means: an entry of clouds.yaml, or the OS_* variables. Reading YAML is the caller's."""

from __future__ import annotations

import os
from typing import IO, Any, Callable, Mapping, Optional

from ..errors import InvalidField
from .login import from_environment

#: Where clouds.yaml is looked for, after OS_CLIENT_CONFIG_FILE.
FOLDERS = (".", "~/.config/openstack", "/etc/openstack")
#: The variable that names clouds.yaml. AWX's credential OpenStack sets it and no other.
CONFIG_FILE = "OS_CLIENT_CONFIG_FILE"
#: Stands for the name of the only cloud in the file that ``CONFIG_FILE`` names.
ONLY = ""
#: An entry of clouds.yaml, or its like.
Entry = dict[str, Any]
#: Reads YAML. Raises ``ValueError`` for what is none, without a word of its text.
Load = Callable[[IO[str]], Any]


def meant(params: Mapping[str, Any]) -> Optional[tuple[Optional[str], Optional[Entry]]]:
    """``(name, None)`` for an entry of clouds.yaml (or ``ONLY``), ``(None, entry)`` for the variables, ``None`` for an
    agent.

    An endpoint wins, but one of the environment does not win over a cloud that is named.
    """
    endpoint, cloud = params.get("endpoint"), params.get("cloud")
    named = cloud and cloud != os.environ.get("OS_CLOUD")
    if endpoint and not (named and endpoint == os.environ.get("MAGNETAR_ENDPOINT")):
        return None
    if cloud:
        return cloud, None
    if os.environ.get("OS_AUTH_URL"):
        return None, from_environment()
    return (ONLY, None) if os.environ.get(CONFIG_FILE) else None


def deciding_variable(options: Mapping[str, Any]) -> Optional[str]:
    """Return the variable of the environment that alone sends a task with these *options* to a cloud; ``None`` where
    the options decide, or no variable does."""
    if options.get("endpoint") or options.get("cloud") or os.environ.get("MAGNETAR_ENDPOINT"):
        return None
    return next((name for name in ("OS_CLOUD", "OS_AUTH_URL", CONFIG_FILE) if os.environ.get(name)), None)


def only_cloud(load: Load) -> str:
    """Return the name of the only cloud in clouds.yaml. Raises ``InvalidField`` where there are others, or none."""
    path = _file()
    names = sorted(_read(path, load))
    if len(names) != 1:
        raise InvalidField("cloud", "is required: %s has %s. Name one as cloud, or in OS_CLOUD" % (
            path, "%d clouds, %s" % (len(names), ", ".join(names)) if names else "no cloud"))
    return names[0]


def described(params: Mapping[str, Any], load: Load) -> Optional[Entry]:
    """The entry of clouds.yaml, or its like out of the variables; ``None`` for an agent. Raises ``InvalidField``."""
    found = meant(params)
    if found is None:
        return None
    name, variables = found
    entry = dict(variables or {}) if name is None else _entry(name, load)
    if params.get("ca_cert"):
        entry = dict(entry, cacert=params["ca_cert"])
    if params.get("validate_certs") is False:
        entry = dict(entry, verify=False)
    return entry


def _entry(name: str, load: Load) -> Entry:
    name = name if name != ONLY else only_cloud(load)
    path = _file()
    known = _read(path, load)
    entry = known.get(name)
    if entry is None:
        raise InvalidField("cloud", "is not in %s, which has: %s" % (path, ", ".join(sorted(known)) or "none"), name)
    secret = os.path.join(os.path.dirname(path), "secure.yaml")
    if os.path.exists(secret):
        entry = _merged(entry, _read(secret, load).get(name) or {})
    return entry


def _file() -> str:
    named = os.environ.get(CONFIG_FILE)
    tried = [named] if named else [os.path.join(os.path.expanduser(folder), file)
                                   for folder in FOLDERS for file in ("clouds.yaml", "clouds.yml")]
    for path in tried:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InvalidField("cloud", "%s cannot be read: %s" % (path, error.strerror)) from None
        return os.path.abspath(path)
    raise InvalidField("cloud", "needs a clouds.yaml, and there is none at %s on the machine where it is asked for"
                       % ", ".join(tried))


def _read(path: str, load: Load) -> dict[str, Entry]:
    try:
        with open(path, encoding="utf-8") as stream:
            found = load(stream) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidField("cloud", "%s cannot be read: %s" % (path, getattr(error, "strerror", "no text"))) from None
    except ValueError:
        found = None  # its text may hold passwords: it is not repeated
    clouds = found.get("clouds") if isinstance(found, dict) else None
    if not isinstance(clouds, dict):
        raise InvalidField("cloud", "%s is no clouds.yaml: it must be a mapping with the key clouds" % path)
    return {str(name): entry for name, entry in clouds.items() if isinstance(entry, dict)}


def _merged(one: Entry, other: Entry) -> Entry:
    found = dict(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found
