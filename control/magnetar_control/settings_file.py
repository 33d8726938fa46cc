# SPDX-License-Identifier: GPL-3.0-or-later
"""The file of the control plane's settings: YAML, checked against ``Settings``; and the settings as texts for people,
without secrets."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import math
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from magnetar_core.errors import InvalidSettings

from .settings import Settings

log = logging.getLogger(__name__)
FILE = Path("/etc/magnetar/control.yml")
#: Words in the names of a database URL's parameters whose values are not printed, such as ``password``.
SECRETS = ("pass", "secret", "token", "key")
#: Former names of settings, and their names now. A former name works for one release, with a warning.
RENAMED: Mapping[str, str] = types.MappingProxyType({})
#: Settings that need a restart, because parts read them when they are made. A test compares this list with the code.
RESTARTED = frozenset((
    "state_dir", "image_dir", "image_reserve_mb", "database_url", "cell0_database_url", "cell", "cell_database_url",
    "schedules", "conductor_name", "listen", "tls_cert", "tls_key", "public_url", "health_listen", "image_url",
    "image_ca_cert", "verify_image_signatures", "enable_certificate_validation", "default_trusted_certificate_ids",
    "keys_dir", "volume_pools", "certificates_dir", "barbican_url", "barbican_ca_cert", "console_url",
    "console_allowed_origins", "trust_proxy", "connections_per_address", "threads", "api_workers", "agent_ca_cert",
    "agent_client_cert", "agent_client_key", "project_share", "image_uploads", "image_downloads", "image_min_rate",
    "image_rate_window", "operations", "heartbeat", "workers", "host_share", "action_timeout",
    "default_availability_zone", "cell_timeout", "statement_timeout", "instance_usage_audit_period", "policy_file",
    "policy_dirs", "dhcp_domain", "notification_urls", "notification_token_files", "notification_ca_cert",
    "notification_allow_http", "notification_timeout", "notification_log", "bdms_in_notifications", "event_stream",
    "event_streams", "network_cidr", "network_pools", "ovn_northbound", "ovn_southbound", "ovn_key", "ovn_cert",
    "ovn_ca_cert", "ovn_wait", "ovn_hosts_wait", "physical_mtu", "ovn_gateway_hosts", "token_hours", "keystone_url",
    "keystone_username", "keystone_password_file", "keystone_project", "keystone_ca_cert"))
#: All others take effect when a service gets SIGHUP: code reads them when it needs them, or ``reloading`` computes
#: again what follows from them.
RELOADED = frozenset(setting.name for setting in dataclasses.fields(Settings)) - RESTARTED


def load_settings(path: Path | None = None) -> Settings:
    """Read the settings from the file *path*; ``None``: from ``FILE``, if this file exists. Raises ``InvalidSettings``.
    """
    source = path or FILE
    return make_settings(_read_values(source) if path or source.exists() else {}, str(source))


def _read_values(source: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(source.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise InvalidSettings(f"{source} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise InvalidSettings(f"{source} must hold names and values.")
    return values


def find_former_names(path: Path | None = None) -> list[str]:
    """Return a warning for each setting in the file that has a deprecated name. *path*: the file; ``None``: ``FILE``.
    Raises ``InvalidSettings`` for a file that cannot be read."""
    source = path or FILE
    values = _read_values(source) if path or source.exists() else {}
    return [_describe_former_name(name, str(source)) for name in values if name in RENAMED]


def _describe_former_name(name: str, source: str) -> str:
    return f"{source}: {name} is deprecated: the setting is now {RENAMED[name]}, and the next release refuses {name}"


def make_settings(values: dict[str, Any], source: str = "the settings") -> Settings:
    """Validate *values*, by name of the setting, and return the settings. *source*: where they come from, such as a
    file, for errors. Raises ``InvalidSettings``."""
    hints = typing.get_type_hints(Settings)
    checked, fields = {}, {setting.name: setting for setting in dataclasses.fields(Settings)}
    for name, value in _with_current_names(values, source).items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            advice = f"; did you mean {near[0]}?" if near else "."
            raise InvalidSettings(f"{source}: {name} is not a setting{advice}")
        checked[name] = _checked(name, value, hints[name], source)
        _check_range(checked[name], source, fields[name])
    return Settings(**checked)


def _with_current_names(values: dict[str, Any], source: str) -> dict[str, Any]:
    """Replace deprecated names of settings in *values* by the current names. Log a warning for each one. *source*: the
    file, for the warning."""
    current = {}
    for name, value in values.items():
        if name in RENAMED:
            if RENAMED[name] in values:
                raise InvalidSettings(f"{source}: {name} is the former name of {RENAMED[name]}, which is set too. "
                                      f"Remove {name}.")
            log.warning("%s", _describe_former_name(name, source))
        current[RENAMED.get(name, name)] = value
    return current


def replace_settings(settings: Settings, **values: Any) -> Settings:
    """Return a copy of *settings* with *values* from the command line, by name of the setting. Raises
    ``InvalidSettings``."""
    fields = {setting.name: setting for setting in dataclasses.fields(Settings)}
    for name, value in values.items():
        if isinstance(value, int):
            _check_range(value, "the command line", fields[name])
    return dataclasses.replace(settings, **values)


def _check_range(value: Any, source: str, setting: dataclasses.Field[Any]) -> None:
    least, most = setting.metadata["least"], setting.metadata["most"]
    if least is not None and not least <= value <= most:  # NaN is out of range too
        words = f"{least} or more" if most == math.inf else f"from {least} to {most}"
        raise InvalidSettings(f"{source}: {setting.name} must be {words}, and is {value}.")


def _checked(name: str, value: Any, hint: Any, source: str) -> Any:
    if typing.get_origin(hint) is typing.Literal:
        if value not in typing.get_args(hint):
            words = ", ".join(typing.get_args(hint))
            raise InvalidSettings(f"{source}: {name} must be one of {words}, and is {value!r}.")
        return value
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = tuple(typing.get_origin(kind) or kind for kind in kinds)
    if value is None and type(None) in kinds:
        return None
    if Path in kinds and isinstance(value, str | Path):
        return Path(value)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wrong = isinstance(value, bool) and bool not in kinds
    if wrong or not isinstance(value, kinds):
        words = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
        raise InvalidSettings(f"{source}: {name} must be of type {words}, and is {value!r}.")
    return value


def describe_settings() -> list[dict[str, str]]:
    """Return a row for each setting, for the reference page of the documentation: {name, type, default, doc, reload}.
    ``reload``: whether SIGHUP is enough to apply a change ("reload") or a restart is necessary ("restart")."""
    rows, hints = [], typing.get_type_hints(Settings)
    for setting in dataclasses.fields(Settings):
        default = setting.default if setting.default_factory is dataclasses.MISSING else setting.default_factory()
        choices = typing.get_args(hints[setting.name]) if typing.get_origin(
            hints[setting.name]) is typing.Literal else ()
        rows.append({"name": setting.name, "type": " or ".join(choices) or str(setting.type),
                     "default": "" if default is None else str(default), "doc": setting.metadata["doc"],
                     "reload": "reload" if setting.name in RELOADED else "restart"})
    return rows


def printable_settings(settings: Settings) -> Iterator[str]:
    """Yield a line for each setting, with its value in *settings*, without secrets."""
    for row in describe_settings():
        yield f"{row['name']}: {_printable_value(row['name'], getattr(settings, row['name']))}"


def _printable_value(name: str, value: Any) -> Any:
    """Return *value* of the setting *name* without secrets, for printing. Of URLs of webhooks, only the scheme and the
    host are printed."""
    if name == "notification_urls":
        return {receiver: _address(str(url)) for receiver, url in value.items()}
    if name == "vendordata_dynamic_targets":
        return ["@".join((target, _address(url))) for target, _at, url in (str(text).partition("@") for text in value)]
    return url_without_secrets(str(value)) if name.endswith("url") and value else value


def _address(url: str) -> str:
    """Return scheme, host and port of *url*, followed by "/..." if the URL has a longer path or a query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{'/...' if parts.path.strip('/') or parts.query or parts.fragment else parts.path}"


def url_without_secrets(url: str) -> str:
    """Return *url* without its password and without secret query parameters, for printing. If *url* cannot be parsed,
    return only the part after the last @."""
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed: URL | None = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    if parsed is None or "@" in (parsed.host or ""):
        return f"...@{url.rpartition('@')[2]}" if "@" in url else url
    secret = {name: "..." for name in parsed.query if any(part in name.lower() for part in SECRETS)}
    return parsed.update_query_dict(secret).render_as_string(hide_password=True)
