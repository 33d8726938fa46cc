# SPDX-License-Identifier: GPL-3.0-or-later
"""Resources and traits that an operator adds to the host in files of Nova's form: ``provider.yaml``.

All ``*.yaml`` in the folder ``provider_config_location`` (a setting) are read when the agent starts. A file with an
error is ignored; the error is logged and reported in ``kinds.Host``. Source: Nova's *Managing Resource Providers Using
Config Files* (schema version 1).
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magnetar_core.hardware.traits import check_custom_traits

log = logging.getLogger(__name__)
#: A placeholder for the host on which the file is read.
THIS = "$COMPUTE_NODE"
#: Numbers of an inventory, with minimum and default; the total has no default.
NUMBERS = {"total": (1, None), "reserved": (0, 0), "min_unit": (1, 1), "max_unit": (1, 2**31 - 1), "step_size": (1, 1)}
MOST = 2**31 - 1


@dataclass(frozen=True)
class ProviderConfig:
    """The merged content of the provider configuration files (Nova's ``provider.yaml``) for this host. *resources*:
    inventories by resource class. *traits*: additional traits. *files*: the names of the files. *problems*: an error
    text for each ignored file."""

    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    traits: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def as_field(self) -> dict[str, list[str]]:
        """Return the host's field ``provider_config``: ``files``, the names of the files that were read, and
        ``problems``, an error text for each ignored file."""
        return {"files": [*self.files], "problems": [*self.problems]}


def make_inventory(total: int, max_unit: int) -> dict[str, Any]:
    """Return a Placement inventory of *total* units, in the form of the provider configuration files, for resources
    that the agent itself reports. *max_unit*: the maximum for one consumer."""
    return {"total": total, "reserved": 0, "min_unit": 1, "max_unit": max_unit, "step_size": 1,
            "allocation_ratio": 1.0}


class _Wrong(Exception):
    """An error in a provider configuration file. The file is ignored."""


@dataclass
class _Provider:
    """One provider in a provider configuration file. *explicit*: whether the file identifies the provider by the name
    of this host; otherwise as ``$COMPUTE_NODE`` (any host). Explicit providers take precedence."""

    path: Path
    explicit: bool
    resources: dict[str, dict[str, Any]]
    traits: tuple[str, ...]


def read_provider_config(folder: Path, name: str) -> ProviderConfig:
    """Return the merged content of all ``*.yaml`` files in *folder* for the host named *name*."""
    files: list[str] = []
    problems: list[str] = []
    providers: list[_Provider] = []
    for path in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
        try:
            of_file = _parsed(path, name)
            _check_alone([*providers, *of_file])
        except _Wrong as error:
            problems.append(f"{path}: {error}")
            log.warning("%s: %s. The file counts for nothing until the agent starts again.", path, error)
            continue
        files.append(path.name)
        providers += of_file
    mine = next((provider for provider in providers if provider.explicit), next(iter(providers), None))
    if mine is None:
        return ProviderConfig(files=tuple(files), problems=tuple(problems))
    return ProviderConfig(mine.resources, mine.traits, tuple(files), tuple(problems))


def _parsed(path: Path, name: str) -> list[_Provider]:
    """Return the providers in the file *path* that apply to the host named *name*. Raises ``_Wrong``."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise _Wrong(" ".join(str(error).split())) from None
    sections = _object(content, "the file", "meta", "providers", needed=("meta",))
    version = _object(sections["meta"], "meta", "schema_version", needed=("schema_version",))["schema_version"]
    if not re.fullmatch(r"1\.[0-9]{1,3}", str(version)):
        raise _Wrong(f"meta.schema_version: must be '1.0' (got {version!r})")
    descriptions = sections.get("providers") or []
    if not isinstance(descriptions, list):
        raise _Wrong("providers: must be a list")
    made = (_provider(description, f"providers[{at}]", path, name) for at, description in enumerate(descriptions))
    return [provider for provider in made if provider is not None]


def _provider(description: Any, where: str, path: Path, name: str) -> _Provider | None:
    fields = _object(description, where, "identification", "inventories", "traits", needed=("identification",))
    which = _object(fields["identification"], f"{where}.identification", "uuid", "name")
    if len(which) != 1:
        raise _Wrong(f"{where}.identification: must have either uuid or name")
    [(key, value)] = which.items()
    if not isinstance(value, str) or (key == "uuid" and value != THIS):
        raise _Wrong(f"{where}.identification.{key}: must be {THIS}, or a name: hosts do not know the uuid that they "
                     f"have in a cloud (got {value!r})")
    resources: dict[str, dict[str, Any]] = {}
    for at, item in enumerate(_additional(fields, "inventories", where)):
        location = f"{where}.inventories.additional[{at}]"
        for kind, inventory in _object(item, location).items():
            _custom(kind, location)
            if kind in resources:
                raise _Wrong(f"{location}: {kind} is there twice")
            resources[kind] = _inventory(inventory, f"{location}.{kind}")
    traits = _additional(fields, "traits", where)
    for trait in traits:
        _custom(trait, f"{where}.traits.additional")
    if value not in (THIS, name):
        return None
    if not resources and not traits:  # as in Nova: it does not hide the provider $COMPUTE_NODE
        log.warning("%s: %s gives %s neither resources nor traits, and is ignored.", path, where, value)
        return None
    return _Provider(path, value != THIS, resources, tuple(sorted({*traits})))


def _check_alone(providers: list[_Provider]) -> None:
    """Raise ``_Wrong`` if two of *providers* are for ``$COMPUTE_NODE``, or two name the host: they could contradict
    each other."""
    for explicit in (True, False):
        same = [provider.path.name for provider in providers if provider.explicit is explicit]
        if len(same) > 1:
            raise _Wrong(f"{'the host' if explicit else THIS} is described in {same[0]} already; one provider says all "
                         "of a host")


def _additional(fields: dict[str, Any], key: str, where: str) -> list[Any]:
    additions = _object(fields.get(key) or {}, f"{where}.{key}", "additional").get("additional") or []
    if not isinstance(additions, list):
        raise _Wrong(f"{where}.{key}.additional: must be a list")
    return additions


def _inventory(description: Any, where: str) -> dict[str, Any]:
    inventory = _object(description, where, *NUMBERS, "allocation_ratio", needed=("total",))
    for key, (least, usual) in NUMBERS.items():
        value = inventory.setdefault(key, usual)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise _Wrong(f"{where}.{key}: must be a whole number from {least} to {MOST} (got {value!r})")
    ratio = inventory.setdefault("allocation_ratio", 1.0)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not math.isfinite(ratio) or ratio <= 0 or (
            inventory["total"] * ratio > MOST):
        raise _Wrong(f"{where}.allocation_ratio: must be a number above 0, and the total times it at most {MOST} (got "
                     f"{ratio!r})")
    if inventory["reserved"] > inventory["total"]:
        raise _Wrong(f"{where}.reserved: must not be more than the total")
    return {**inventory, "allocation_ratio": float(ratio)}


def _custom(name: Any, where: str) -> None:
    if not isinstance(name, str) or check_custom_traits([name]):
        raise _Wrong(f"{where}: {name!r} must be CUSTOM_ and capital letters, digits and _; others the agent finds out "
                     "itself")


def _object(content: Any, where: str, *keys: str, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return *content*, a section of a provider configuration file, if it is a mapping. Raises ``_Wrong`` if it is not,
    lacks a key in *needed*, or has a key that is not in *keys* (if *keys* are given). *where*: the path of the section,
    for the error message."""
    if not isinstance(content, dict):
        raise _Wrong(f"{where}: must be a mapping")
    if keys and (odd := next((key for key in content if key not in keys), None)) is not None:
        raise _Wrong(f"{where}: has {odd!r}; there {'is' if len(keys) == 1 else 'are'} {', '.join(keys)}")
    if lost := next((key for key in needed if key not in content), None):
        raise _Wrong(f"{where}: needs {lost}")
    return dict(content)
