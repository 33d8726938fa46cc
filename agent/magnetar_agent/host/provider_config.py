# SPDX-License-Identifier: GPL-3.0-or-later
"""Resources and traits that an operator gives the host in files of Nova's form: ``provider.yaml``.

All ``*.yaml`` of the setting ``provider_config_location`` are read when the agent starts. A file with an error counts
for nothing; what is wrong with it is logged and told in ``kinds.Host``, and the agent goes on. Source: Nova's
*Managing Resource Providers Using Config Files* (schema version 1).
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magnetar_core.hardware.traits import check_custom

log = logging.getLogger(__name__)
#: Stands for the host on which the file is read.
THIS = "$COMPUTE_NODE"
#: What an inventory has, least and default; the total has none.
NUMBERS = {"total": (1, None), "reserved": (0, 0), "min_unit": (1, 1), "max_unit": (1, 2**31 - 1), "step_size": (1, 1)}
MOST = 2**31 - 1


@dataclass(frozen=True)
class ProviderConfig:
    """What the files say of this host. ``resources``: inventories by resource class; ``problems``: what is wrong, a
    text for each file that counts for nothing."""

    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    traits: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def told(self) -> dict[str, list[str]]:
        """The field ``provider_config`` of ``kinds.Host``."""
        return {"files": [*self.files], "problems": [*self.problems]}


def inventory(total: int, max_unit: int) -> dict[str, Any]:
    """One of the agent's own, in the form of those that files say."""
    return {"total": total, "reserved": 0, "min_unit": 1, "max_unit": max_unit, "step_size": 1,
            "allocation_ratio": 1.0}


class _Wrong(Exception):
    """What is wrong with a file."""


@dataclass
class _Provider:
    """One provider of a file. *explicit*: it names the host, and comes before what is said of ``$COMPUTE_NODE``."""

    path: Path
    explicit: bool
    resources: dict[str, dict[str, Any]]
    traits: tuple[str, ...]


def read(folder: Path, name: str) -> ProviderConfig:
    """What the files of *folder* say of the host *name*."""
    files: list[str] = []
    problems: list[str] = []
    found: list[_Provider] = []
    for path in sorted(folder.glob("*.yaml")) if folder.is_dir() else ():
        try:
            of_file = _parsed(path, name)
            _check_alone([*found, *of_file])
        except _Wrong as error:
            problems.append(f"{path}: {error}")
            log.warning("%s: %s. The file counts for nothing until the agent starts again.", path, error)
            continue
        files.append(path.name)
        found += of_file
    mine = next((one for one in found if one.explicit), next(iter(found), None))
    if mine is None:
        return ProviderConfig(files=tuple(files), problems=tuple(problems))
    return ProviderConfig(mine.resources, mine.traits, tuple(files), tuple(problems))


def _parsed(path: Path, name: str) -> list[_Provider]:
    """The providers of a file that are this host."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise _Wrong(" ".join(str(error).split())) from None
    found = _object(content, "the file", "meta", "providers", needed=("meta",))
    version = _object(found["meta"], "meta", "schema_version", needed=("schema_version",))["schema_version"]
    if not re.fullmatch(r"1\.[0-9]{1,3}", str(version)):
        raise _Wrong(f"meta.schema_version: must be '1.0' (got {version!r})")
    given = found.get("providers") or []
    if not isinstance(given, list):
        raise _Wrong("providers: must be a list")
    made = (_provider(one, f"providers[{at}]", path, name) for at, one in enumerate(given))
    return [one for one in made if one is not None]


def _provider(given: Any, where: str, path: Path, name: str) -> _Provider | None:
    one = _object(given, where, "identification", "inventories", "traits", needed=("identification",))
    which = _object(one["identification"], f"{where}.identification", "uuid", "name")
    if len(which) != 1:
        raise _Wrong(f"{where}.identification: must have either uuid or name")
    [(key, value)] = which.items()
    if not isinstance(value, str) or (key == "uuid" and value != THIS):
        raise _Wrong(f"{where}.identification.{key}: must be {THIS}, or a name: hosts do not know the uuid that they "
                     f"have in a cloud (got {value!r})")
    resources: dict[str, dict[str, Any]] = {}
    for at, item in enumerate(_additional(one, "inventories", where)):
        here = f"{where}.inventories.additional[{at}]"
        for kind, inventory in _object(item, here).items():
            _custom(kind, here)
            if kind in resources:
                raise _Wrong(f"{here}: {kind} is there twice")
            resources[kind] = _inventory(inventory, f"{here}.{kind}")
    traits = _additional(one, "traits", where)
    for trait in traits:
        _custom(trait, f"{where}.traits.additional")
    if value not in (THIS, name):
        return None
    if not resources and not traits:  # as in Nova: it does not hide what is said of $COMPUTE_NODE
        log.warning("%s: %s gives %s neither resources nor traits, and is ignored.", path, where, value)
        return None
    return _Provider(path, value != THIS, resources, tuple(sorted({*traits})))


def _check_alone(found: list[_Provider]) -> None:
    """Two that say ``$COMPUTE_NODE``, or two that name the host, contradict each other."""
    for explicit in (True, False):
        same = [one.path.name for one in found if one.explicit is explicit]
        if len(same) > 1:
            raise _Wrong(f"{'the host' if explicit else THIS} is described in {same[0]} already; one provider says all "
                         "of a host")


def _additional(one: dict[str, Any], key: str, where: str) -> list[Any]:
    found = _object(one.get(key) or {}, f"{where}.{key}", "additional").get("additional") or []
    if not isinstance(found, list):
        raise _Wrong(f"{where}.{key}.additional: must be a list")
    return found


def _inventory(given: Any, where: str) -> dict[str, Any]:
    one = _object(given, where, *NUMBERS, "allocation_ratio", needed=("total",))
    for key, (least, usual) in NUMBERS.items():
        value = one.setdefault(key, usual)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise _Wrong(f"{where}.{key}: must be a whole number from {least} to {MOST} (got {value!r})")
    ratio = one.setdefault("allocation_ratio", 1.0)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not math.isfinite(ratio) or ratio <= 0 or (
            one["total"] * ratio > MOST):
        raise _Wrong(f"{where}.allocation_ratio: must be a number above 0, and the total times it at most {MOST} (got "
                     f"{ratio!r})")
    if one["reserved"] > one["total"]:
        raise _Wrong(f"{where}.reserved: must not be more than the total")
    return {**one, "allocation_ratio": float(ratio)}


def _custom(name: Any, where: str) -> None:
    if not isinstance(name, str) or check_custom([name]):
        raise _Wrong(f"{where}: {name!r} must be CUSTOM_ and capital letters, digits and _; others the agent finds out "
                     "itself")


def _object(given: Any, where: str, *keys: str, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """*given*, which must be a mapping with some of *keys* (any where none is said) and all *needed* ones."""
    if not isinstance(given, dict):
        raise _Wrong(f"{where}: must be a mapping")
    if keys and (odd := next((key for key in given if key not in keys), None)) is not None:
        raise _Wrong(f"{where}: has {odd!r}; there {'is' if len(keys) == 1 else 'are'} {', '.join(keys)}")
    if lost := next((key for key in needed if key not in given), None):
        raise _Wrong(f"{where}: needs {lost}")
    return dict(given)
