# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares RETURN of a module, above all its samples, with what the module really returned."""

from __future__ import annotations

import importlib
from typing import Any

import yaml

from tools import returns

from .conftest import COLLECTION

#: Keys that every module may return, and that RETURN does not repeat.
COMMON = {"changed", "failed", "msg", "invocation", "warnings", "diff"}
TYPES = {"dict": dict, "list": list, "str": str, "bool": bool, "int": int}
#: Fields of which each answer may have other keys.
FREE = {"metadata", "properties", "extra_specs", "addresses", "changes", "details", "error", "metrics", "networks",
        "inventories", "own_inventories", "unmeasured", "usages"}


def documented_returns(name: str) -> dict[str, Any]:
    """Return RETURN of the module *name*: what its file says, and what its declarations give."""
    loaded = importlib.import_module(f"{COLLECTION}.plugins.modules.{name}")
    return {**(yaml.safe_load(loaded.RETURN) or {}), **returns.return_entries(loaded.MODULE)}


def check(name: str, result: dict[str, Any]) -> None:
    """Every key of *result* is in RETURN with its type, and like its sample."""
    entries = documented_returns(name)
    for item in result.get("results", ()):  # of a batch: like one result, beside what says whose it is
        own = {key: entry for key, entry in entries["results"]["contains"].items() if key not in entries}
        assert set(own) <= set(item) <= set(entries["results"]["contains"])
        check(name, {key: value for key, value in item.items() if key not in own})
    _entries(entries, {key: value for key, value in result.items() if key not in COMMON}, name)


def check_actions(name: str, results: list[dict[str, Any]], batch: bool = False) -> None:
    """The sample of ``actions`` is what one of *results* had, and so are the paths of the sample of ``changes``.

    *batch*: results are items of ``results``, which have samples of their own.
    """
    entries = documented_returns(name)["results"]["contains"] if batch else documented_returns(name)
    samples = {key: entry.get("sample") for key, entry in entries.items()}
    assert samples["actions"] in [result["actions"] for result in results], [one["actions"] for one in results]
    changes = {path: set(change) for result in results for path, change in result.get("changes", {}).items()}
    assert all(changes.get(path) == set(change) for path, change in samples.get("changes", {}).items()), changes


def _entries(entries: dict[str, Any], values: dict[str, Any], where: str) -> None:
    assert set(values) <= set(entries), f"{where}: RETURN lacks {set(values) - set(entries)}"
    for key, value in values.items():
        entry = entries[key]
        assert value is None or isinstance(value, TYPES[entry["type"]]), f"{where}.{key}: {value!r}"
        if key != "results":
            _alike(_sample(entry, f"{where}.{key}"), value, f"{where}.{key}", key)


def _sample(entry: dict[str, Any], where: str) -> Any:
    """The sample of an entry, or that of what it contains; what has none may be null."""
    if "contains" not in entry:
        assert "sample" in entry, f"{where}: has no sample"
        return entry["sample"]
    inside = {name: part.get("sample") for name, part in entry["contains"].items()}
    return [inside] if entry["type"] == "list" else inside


def _alike(sample: Any, value: Any, where: str, key: str) -> None:
    """The same types, and in mappings the same keys, as deep as both have something."""
    if sample is None or value is None:
        return
    assert type(sample) is type(value), f"{where}: the sample is {sample!r}, and real is {value!r}"
    if isinstance(value, dict) and key not in FREE:
        # What is left out in a record of options is left out in the answer: only on the first level are all there.
        same = set(value) == set(sample) if where.count(".") < 2 else set(value) <= set(sample)
        assert same, f"{where}: the sample has {sorted(set(sample) - set(value))} besides, and lacks " \
                     f"{sorted(set(value) - set(sample))}"
        for name, item in value.items():
            _alike(sample[name], item, f"{where}.{name}", name)
    elif isinstance(value, list) and sample and isinstance(sample[0], dict):
        for item in value:
            _alike(sample[0], item, f"{where}.0" if where.count(".") > 1 else where, key)
