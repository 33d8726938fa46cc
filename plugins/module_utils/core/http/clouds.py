# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of a task's cloud: an entry of clouds.yaml, or the OS_* variables. The caller provides the YAML reader."""

from __future__ import annotations

import os
from typing import IO, Any, Callable, Mapping, Optional

from ..errors import InvalidField
from .login import cloud_from_environment

#: Folders to search for clouds.yaml, after OS_CLIENT_CONFIG_FILE.
FOLDERS = (".", "~/.config/openstack", "/etc/openstack")
#: The variable that names clouds.yaml. AWX's credential OpenStack sets only this one.
CONFIG_FILE = "OS_CLIENT_CONFIG_FILE"
#: Placeholder for the name of the only cloud in the file that ``CONFIG_FILE`` names.
ONLY = ""
#: An entry of clouds.yaml, or a mapping in its form.
Entry = dict[str, Any]
#: A YAML reader. Raises ``ValueError`` for text that is not YAML, without quoting it.
Load = Callable[[IO[str]], Any]


def chosen_cloud(params: Mapping[str, Any]) -> Optional[tuple[Optional[str], Optional[Entry]]]:
    """Return the cloud that the module parameters *params* and the environment select; ``None`` if they select an
    agent. The result is ``(name, None)`` for an entry of clouds.yaml, or ``(None, entry)`` for the OS_* variables. The
    name ``ONLY`` stands for the only entry of clouds.yaml.

    The parameter ``endpoint`` takes precedence over a cloud. An endpoint from the environment takes no precedence over
    a cloud that is named explicitly.
    """
    endpoint, cloud = params.get("endpoint"), params.get("cloud")
    named = cloud and cloud != os.environ.get("OS_CLOUD")
    if endpoint and not (named and endpoint == os.environ.get("MAGNETAR_ENDPOINT")):
        return None
    if cloud:
        return cloud, None
    if os.environ.get("OS_AUTH_URL"):
        return None, cloud_from_environment()
    return (ONLY, None) if os.environ.get(CONFIG_FILE) else None


def deciding_variable(options: Mapping[str, Any]) -> Optional[str]:
    """Return the name of the environment variable that makes a task with these *options* use a cloud; ``None`` if the
    options themselves decide, or no variable is set.
    """
    if options.get("endpoint") or options.get("cloud") or os.environ.get("MAGNETAR_ENDPOINT"):
        return None
    return next((name for name in ("OS_CLOUD", "OS_AUTH_URL", CONFIG_FILE) if os.environ.get(name)), None)


def find_only_cloud(load: Load) -> str:
    """Return the name of the cloud in clouds.yaml. *load*: a function that parses the open file. Raises
    ``InvalidField`` unless the file has exactly one cloud.
    """
    path = _file()
    names = sorted(_read(path, load))
    if len(names) != 1:
        raise InvalidField("cloud", "is required: %s has %s. Name one as cloud, or in OS_CLOUD" % (
            path, "%d clouds, %s" % (len(names), ", ".join(names)) if names else "no cloud"))
    return names[0]


def cloud_entry(params: Mapping[str, Any], load: Load) -> Optional[Entry]:
    """Return the cloud that the module parameters *params* select, as an entry of clouds.yaml; ``None`` if they select
    an agent. *load*: a function that parses the open file. The parameters ``ca_cert`` and ``validate_certs`` override
    the entry. Raises ``InvalidField``.
    """
    choice = chosen_cloud(params)
    if choice is None:
        return None
    name, variables = choice
    entry = dict(variables or {}) if name is None else _entry(name, load)
    if params.get("ca_cert"):
        entry = dict(entry, cacert=params["ca_cert"])
    if params.get("validate_certs") is False:
        entry = dict(entry, verify=False)
    return entry


def _entry(name: str, load: Load) -> Entry:
    name = name if name != ONLY else find_only_cloud(load)
    path = _file()
    clouds = _read(path, load)
    entry = clouds.get(name)
    if entry is None:
        raise InvalidField("cloud", "is not in %s, which has: %s" % (path, ", ".join(sorted(clouds)) or "none"), name)
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
            document = load(stream) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidField("cloud", "%s cannot be read: %s" % (path, getattr(error, "strerror", "no text"))) from None
    except ValueError:
        document = None  # its text may hold passwords, so it is not repeated
    clouds = document.get("clouds") if isinstance(document, dict) else None
    if not isinstance(clouds, dict):
        raise InvalidField("cloud", "%s is no clouds.yaml: it must be a mapping with the key clouds" % path)
    return {str(name): entry for name, entry in clouds.items() if isinstance(entry, dict)}


def _merged(base: Entry, other: Entry) -> Entry:
    merged = dict(base)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
