# SPDX-License-Identifier: GPL-3.0-or-later
"""The file of the control plane's settings: YAML, checked against ``Settings``."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from pathlib import Path
from typing import Any

import yaml

from magnetar_core.errors import InvalidSettings

from .settings import Settings

FILE = Path("/etc/magnetar/control.yml")


def load_settings(path: Path | None = None) -> Settings:
    """Return the settings of the file *path*, by default of ``FILE``, which may be missing. Raises ``InvalidSettings``.
    """
    source = path or FILE
    values: dict[str, Any] = {}
    if path or source.exists():
        try:
            values = yaml.safe_load(source.read_text(encoding="utf-8")) or {}
        except (OSError, yaml.YAMLError) as error:
            raise InvalidSettings(f"{source} cannot be read: {error}") from None
        if not isinstance(values, dict):
            raise InvalidSettings(f"{source} must hold names and values.")
    return make_settings(values, str(source))


def make_settings(values: dict[str, Any], source: str = "the settings") -> Settings:
    """Return validated settings from *values*, by name. Raises ``InvalidSettings`` that names the setting and *source*,
    such as a file."""
    hints = typing.get_type_hints(Settings)
    checked, fields = {}, {setting.name: setting for setting in dataclasses.fields(Settings)}
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            advice = f"; did you mean {near[0]}?" if near else "."
            raise InvalidSettings(f"{source}: {name} is not a setting{advice}")
        checked[name] = _checked(name, value, hints[name], source)
        _check_range(checked[name], source, fields[name])
    return Settings(**checked)


def replace_settings(settings: Settings, **values: Any) -> Settings:
    """Return *settings* with *values* of options of the command line. Raises ``InvalidSettings``."""
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
    """Return one row for each setting, for the reference page: name, type, default, doc."""
    rows, hints = [], typing.get_type_hints(Settings)
    for setting in dataclasses.fields(Settings):
        default = setting.default if setting.default_factory is dataclasses.MISSING else setting.default_factory()
        choices = typing.get_args(hints[setting.name]) if typing.get_origin(
            hints[setting.name]) is typing.Literal else ()
        rows.append({"name": setting.name, "type": " or ".join(choices) or str(setting.type),
                     "default": "" if default is None else str(default), "doc": setting.metadata["doc"]})
    return rows
