# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the values of settings, and their conversion to the types of the settings' annotations."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magnetar_core.errors import InvalidField, InvalidSettings
from magnetar_core.hardware import machines, pci
from magnetar_core.hardware.cpus import CpuSet

SCOPES = ("read", "operate")
#: The key of a pool's location, by type of pool.
POOLS = {"dir": "path", "nfs": "path", "lvm": "libvirt_pool", "rbd": "libvirt_pool"}
_PORTS = re.compile(r"(?:tcp|udp)/(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?")
_MODEL, _FLAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"), re.compile(r"[+-]?[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_POOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
#: A namespace of persistent memory, or the path of a file.
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}|/[^\x00-\x1f]{1,4000}")


def check_cpu_models(names: Sequence[str]) -> str:
    """Return an error text if *names* is not a valid list of CPU model names; "" if it is valid."""
    wrong = next((name for name in names if not _MODEL.fullmatch(name)), None)
    return f"{wrong!r} is no name of a CPU model" if wrong is not None else _twice(names)


def check_flags(flags: Sequence[str]) -> str:
    """Return an error text if *flags* is not a valid list of CPU feature names, each optionally with a leading + or -;
    "" if it is valid."""
    wrong = next((flag for flag in flags if not _FLAG.fullmatch(flag)), None)
    return f"{wrong!r} must be the name of a feature, with + or - before it or neither" if wrong is not None else \
        _twice([flag.lstrip("+-").lower() for flag in flags])


def check_machine_types(choices: Sequence[str]) -> str:
    """Return an error text if *choices* is not a valid list of ARCHITECTURE=TYPE, such as x86_64=pc-q35-7.2; "" if it
    is valid."""
    for choice in choices:
        architecture, equals, machine = choice.partition("=")
        if not equals or not _MODEL.fullmatch(architecture) or not re.fullmatch(machines.NAME, machine):
            return f"{choice!r} must be ARCHITECTURE=TYPE such as x86_64=pc-q35-7.2; the type {machines.RULE}"
        if machines.machine_architecture(machine) != architecture:
            return (f"{choice!r} must name a machine of its architecture: {machine} is of "
                    f"{machines.machine_architecture(machine)}")
    return _twice([choice.partition("=")[0] for choice in choices])


def _twice(names: Sequence[str]) -> str:
    return next((f"{name!r} is named twice" for at, name in enumerate(names) if name in names[:at]), "")


def check_setting_value(key: dataclasses.Field[Any], value: Any) -> Any:
    """Convert *value*, parsed from YAML, to the annotated type of the setting *key*, a field of ``AgentSettings``.
    Return the converted value. Raises ``InvalidSettings`` if it is not valid."""
    kind = str(key.type)
    if value is None:
        if kind.endswith("| None"):
            return None
        raise InvalidSettings(f"{key.name}: needs a value; remove the line for the default.")
    return CHECKS[kind.removesuffix(" | None")](key, value)


def _path(key: dataclasses.Field[Any], value: Any) -> Path:
    if not isinstance(value, (str, Path)) or not Path(value).is_absolute():
        raise InvalidSettings(f"{key.name}: must be an absolute path (got {value!r}).")
    return Path(value)


def _paths(key: dataclasses.Field[Any], value: Any) -> tuple[Path, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidSettings(f"{key.name}: must be a list of folders (got {value!r}).")
    return tuple(_path(key, item) for item in value)


def _names(key: dataclasses.Field[Any], value: Any) -> tuple[str, ...]:
    if "check" not in key.metadata:
        return _ports(key, value)
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise InvalidSettings(f"{key.name}: must be a list of names (got {value!r}).")
    if wrong := key.metadata["check"](value):
        raise InvalidSettings(f"{key.name}: {wrong}.")
    return tuple(value)


def _ports(key: dataclasses.Field[Any], value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidSettings(f"{key.name}: must be a list of ports such as tcp/3142 (got {value!r}).")
    for item in value:
        match = _PORTS.fullmatch(item) if isinstance(item, str) else None
        if not match or not 1 <= int(match["first"]) <= int(match["last"] or match["first"]) <= 65535:
            raise InvalidSettings(f"{key.name}: must have ports such as tcp/3142 or udp/8000-8100 (got {item!r}).")
    return tuple(value)


def _number(key: dataclasses.Field[Any], value: Any) -> Any:
    whole = key.type == "int"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise InvalidSettings(f"{key.name}: must be a {'whole ' if whole else ''}number (got {value!r}).")
    low, high = key.metadata.get("min", 0), key.metadata.get("max")
    if value < low or (high is not None and value > high):
        rule = f"from {low} to {high}" if high is not None else f"at least {low}"
        raise InvalidSettings(f"{key.name}: must be {rule} (got {value!r}).")
    return value if whole else float(value)


def _boolean(key: dataclasses.Field[Any], value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidSettings(f"{key.name}: must be true or false (got {value!r}).")
    return value


def _text(key: dataclasses.Field[Any], value: Any) -> str:
    choices = key.metadata.get("choices")
    if key.metadata.get("cpus"):
        try:
            return str(CpuSet().check(value, key.name))
        except InvalidField as error:
            raise InvalidSettings(f"{key.name}: {error.details['rule']} (got {value!r}).") from None
    if not isinstance(value, str) or not value or (choices and value not in choices):
        rule = f"one of {', '.join(choices)}" if choices else "a text"
        raise InvalidSettings(f"{key.name}: must be {rule} (got {value!r}).")
    if wrong := key.metadata.get("check", lambda _value: "")(value):
        raise InvalidSettings(f"{key.name}: {wrong}.")
    if "pattern" in key.metadata and not key.metadata["pattern"].fullmatch(value):
        raise InvalidSettings(f"{key.name}: must be the name of a device, of 15 characters at most (got {value!r}).")
    return value


def _scopes(key: dataclasses.Field[Any], value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidSettings(f"{key.name}: must be a mapping of names to {' or '.join(SCOPES)} (got {value!r}).")
    for name, scope in value.items():
        if not isinstance(name, str) or scope not in SCOPES:
            raise InvalidSettings(f"{key.name}: {name}: must be {' or '.join(SCOPES)} (got {scope!r}).")
    return dict(value)


def _pools(key: dataclasses.Field[Any], value: Any) -> dict[str, dict[str, str]]:
    if not isinstance(value, dict):
        raise InvalidSettings(f"{key.name}: must be a mapping of names to {{type, …}} (got {value!r}).")
    pools = {}
    for name, pool in value.items():
        where = f"{key.name}: {name}"
        if not isinstance(name, str) or not _POOL.fullmatch(name):
            raise InvalidSettings(f"{where}: names have letters, digits, and . - _ only, 63 at most.")
        kind = pool.get("type") if isinstance(pool, dict) else None
        if kind not in POOLS:
            raise InvalidSettings(f"{where}: must have a type of {', '.join(POOLS)} (got {pool!r}).")
        place = POOLS[kind]
        for field in pool:
            if field not in ("type", place):
                raise InvalidSettings(f"{where}: {field} is not known for type {kind}; known are type, {place}.")
        location = pool.get(place) or (name if place == "libvirt_pool" else None)
        if not isinstance(location, str) or (place == "path" and not Path(location).is_absolute()):
            raise InvalidSettings(f"{where}: needs {place}{', an absolute path' if place == 'path' else ''}.")
        pools[name] = {"type": kind, place: location}
    return pools


def _devices(key: dataclasses.Field[Any], value: Any) -> tuple[dict[str, str], ...]:
    words, devices = key.metadata["words"], []
    if not isinstance(value, (list, tuple)):
        raise InvalidSettings(f"{key.name}: must be a list of {{{', '.join(words)}}} (got {value!r}).")
    for at, spec in enumerate(value):
        where = f"{key.name}[{at}]"
        if not isinstance(spec, dict) or not spec or not set(words).issuperset(spec):
            raise InvalidSettings(f"{where}: must have some of {', '.join(words)}, and nothing else (got {spec!r}).")
        if lost := [field for field in key.metadata["needed"] if field not in spec]:
            raise InvalidSettings(f"{where}: needs {', '.join(lost)}.")
        try:
            devices.append({field: pci.normalize_device_field(field, text) for field, text in spec.items()})
        except ValueError as error:
            raise InvalidSettings(f"{where}: {error}.") from None
    if wrong := key.metadata.get("check", lambda _found: "")(devices):
        raise InvalidSettings(f"{key.name}: {wrong}.")
    return tuple(devices)


def _pages(key: dataclasses.Field[Any], value: Any) -> dict[int, dict[int, int]]:
    whole = isinstance(value, dict) and all(
        isinstance(sizes, dict) and all(isinstance(number, int) and not isinstance(number, bool) and number >= 0
                                        for number in (cell, *sizes, *sizes.values()))
        for cell, sizes in value.items())
    if not whole:
        raise InvalidSettings(f"{key.name}: must be a mapping of NUMA cells to {{KiB of a page: how many}}, such as "
                              f"{{0: {{2048: 64}}}} (got {value!r}).")
    return {cell: dict(sizes) for cell, sizes in value.items()}


def _cells(key: dataclasses.Field[Any], value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not all(
            isinstance(cell, int) and not isinstance(cell, bool) and cell >= 0 for cell in value):
        raise InvalidSettings(f"{key.name}: must be a list of NUMA cells, such as [0, 1] (got {value!r}).")
    return tuple(value)


def _near(key: dataclasses.Field[Any], value: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(value, dict) or not all(isinstance(name, str) and _POOL.fullmatch(name) for name in value):
        raise InvalidSettings(f"{key.name}: must be a mapping of physical networks to lists of NUMA cells, such as "
                              f"{{physnet0: [0]}} (got {value!r}).")
    return {name: _cells(key, ids) for name, ids in value.items()}


def _labelled(key: dataclasses.Field[Any], value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not all(isinstance(names, (list, tuple)) and all(
            isinstance(name, str) and _NAMED.fullmatch(name) for name in names) for names in value.values()):
        raise InvalidSettings(f"{key.name}: must be a mapping of labels to lists of names or absolute paths, such as "
                              f"{{6GB: [ns0, ns1]}} (got {value!r}).")
    names_by_label = {str(label): tuple(names) for label, names in value.items()}
    if wrong := key.metadata["check"](names_by_label):
        raise InvalidSettings(f"{key.name}: {wrong}.")
    return names_by_label


def _folders(key: dataclasses.Field[Any], value: Any) -> dict[str, Path]:
    if not isinstance(value, dict):
        raise InvalidSettings(f"{key.name}: must be a mapping of names to folders (got {value!r}).")
    for name, path in value.items():
        if not isinstance(name, str) or not _POOL.fullmatch(name):
            raise InvalidSettings(f"{key.name}: {name}: names have letters, digits, and . - _ only, 63 at most.")
        if not isinstance(path, (str, Path)) or not Path(path).is_absolute() or Path(path) == Path("/"):
            raise InvalidSettings(f"{key.name}: {name}: must be an absolute path, and not / (got {path!r}).")
    return {name: Path(path) for name, path in value.items()}


#: The check of each type of setting, by its annotation.
CHECKS = {
    "Path": _path, "tuple[Path, ...]": _paths, "tuple[str, ...]": _names, "int": _number,
    "float": _number, "bool": _boolean, "str": _text,
    "dict[str, str]": _scopes, "dict[str, dict[str, str]]": _pools,
    "tuple[dict[str, str], ...]": _devices, "dict[str, Path]": _folders, "dict[int, dict[int, int]]": _pages,
    "tuple[int, ...]": _cells, "dict[str, tuple[int, ...]]": _near,
    "dict[str, tuple[str, ...]]": _labelled,
}
