# SPDX-License-Identifier: GPL-3.0-or-later
"""The evidence of the conformance folder, read in place: samples with their index, and the table of operations.

Microversions are the number behind "2." here: 2.37 is 37.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml

#: Beside the checkout, unless the environment says another place.
FOLDER = Path(os.environ.get("MAGNETAR_CONFORMANCE") or Path(__file__).resolve().parents[3] / "shared/conformance")
#: Above every microversion: no limit.
UNLIMITED = sys.maxsize
#: Samples whose class in the index is not what replaying them needs.
CELL_DOWN = "down-cell"


def minor(version: str | None, default: int) -> int:
    """The number behind "2."; *default* where the table has none."""
    return int(str(version).partition(".")[2]) if version else default


def span(text: str) -> range:
    """The microversions of a range such as "2.1-2.47", or of one version."""
    low, separator, high = text.partition("-")
    return range(minor(low, 1), minor(high if separator else low, 1) + 1)


@dataclass(frozen=True)
class Sample:
    """One file: what was sent or answered, at which microversions, and what varies in it."""

    file: str
    area: str
    direction: str
    method: str
    path: str
    operation: str
    action: str | None
    min: int
    max: int
    #: Where this is the current sample and valid; and where it is valid at all.
    versions: frozenset[int]
    valid: frozenset[int]
    status: int
    other_statuses: tuple[int, ...]
    queries: tuple[str, ...]
    location: bool
    requests: tuple[str, ...]
    response: str | None
    replay: str
    usable: bool
    note: str
    dynamic: dict[str, str] = field(hash=False)

    @property
    def stem(self) -> str:
        """The file's name without its version's folder: the same for the samples that follow one another."""
        folder, _slash, name = self.file.rpartition("/")
        return folder.partition("/")[0] + "/" + name


@dataclass(frozen=True)
class Operation:
    """One row of compute-api.yaml."""

    id: str
    area: str
    kind: str
    method: str
    path: str
    action: str | None
    min: int
    max: int
    role: str | None
    states: str
    blocked_by_lock: bool
    row: dict[str, Any] = field(hash=False, repr=False)

    @property
    def removed(self) -> bool:
        """Whether Nova answers it with 410 or 400 at every microversion."""
        return self.kind.startswith("removed")

    @property
    def like(self) -> str:
        """The operation that it is another name of; its own id where it is none."""
        return self.id.replace("os-volumes_boot", "servers", 1)

    @property
    def of_server(self) -> bool:
        """Whether its path names a server."""
        return self.path.startswith(("/servers/{", "/os-volumes_boot/{"))

    @property
    def strict_query(self) -> int | None:
        """The microversion since which an unknown query parameter is a 400."""
        for change in self.row.get("changes") or []:
            what = str(change["what"]).lower()
            if ("unknown query" in what and "reject" in what) or ("unknown parameter" in what and "400" in what):
                return minor(change["v"], 1)
        return None


def _many(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def _sample(entry: dict[str, Any], newest: int) -> Sample:
    low, high = minor(entry["min"], 1), minor(entry["max"], newest)
    valid = {version for text in entry.get("schema_valid", [f"2.1-2.{newest}"]) for version in span(text)}
    return Sample(
        file=entry["file"], area=entry["area"], direction=entry["direction"], method=entry["method"],
        path=entry["path"], operation=entry["operation"], action=entry.get("action"), min=low, max=high,
        versions=frozenset(valid & set(range(low, high + 1))), valid=frozenset(valid),
        status=entry["status"], other_statuses=_many(entry.get("other_statuses")),
        queries=_many(entry.get("query")), location=bool(entry.get("location_header")),
        requests=_many(entry.get("request_samples")), response=entry.get("response_sample"), replay=entry["replay"],
        usable=entry.get("usable", True), note=entry.get("note", ""), dynamic=entry.get("dynamic") or {})


def _operation(row: dict[str, Any], newest: int) -> Operation:
    return Operation(
        id=row["id"], area=row["area"], kind=row["class"], method=row["method"], path=row["path"],
        action=row["action"], min=minor(row["min"], 1), max=minor(row["max"], newest), role=row["role"],
        states=str(row.get("vm_states") or ""), blocked_by_lock=bool(row.get("blocked_by_lock")), row=row)


class Evidence:
    """Samples and operations of one folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder

    @cached_property
    def newest(self) -> int:
        """The newest microversion that the evidence describes."""
        with (self.folder / "compute-api.yaml").open(encoding="utf-8") as lines:
            line = next(line for line in lines if line.startswith("  max_microversion:"))
        return int(line.strip(" '\n").rpartition(".")[2])

    @cached_property
    def index(self) -> dict[str, Any]:
        """The index as it is."""
        index: dict[str, Any] = json.loads((self.folder / "samples/index.json").read_bytes())
        return index

    @cached_property
    def samples(self) -> dict[str, Sample]:
        """Every sample by its file."""
        return {entry["file"]: _sample(entry, self.newest) for entry in self.index["samples"]}

    @cached_property
    def operations(self) -> dict[str, Operation]:
        """Every operation by its id."""
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        table = yaml.load((self.folder / "compute-api.yaml").read_bytes(), loader)
        return {row["id"]: _operation(row, self.newest) for row in table["operations"]}

    @lru_cache(maxsize=4096)  # noqa: B019 - as long as the evidence
    def text(self, file: str) -> bytes:
        """The sample's bytes."""
        return (self.folder / "samples" / file).read_bytes()

    def body(self, file: str) -> Any:
        """The sample's document, a new one each time."""
        return json.loads(self.text(file))

    def of(self, operation: str, direction: str) -> list[Sample]:
        """The samples of an operation in one direction, oldest first."""
        found = [one for one in self.samples.values() if one.operation == operation and one.direction == direction]
        return sorted(found, key=lambda one: (one.min, one.file))

    def request_for(self, operation: str, version: int) -> Sample | None:
        """A request that the operation takes at *version*."""
        fitting = [one for one in self.of(operation, "request") if one.usable and version in one.valid]
        plain = [one for one in fitting if one.status < 400]
        return max(plain, key=lambda one: (version in one.versions, one.min), default=None)

    def request_of(self, sample: Sample, version: int) -> Sample | None:
        """The request that brings the answer of *sample* at *version*: one of its own; else another of the operation
        whose answer has the same keys at its top."""
        own = [self.samples[file] for file in sample.requests]
        for fitting in ([one for one in own if version in one.versions], [one for one in own if version in one.valid]):
            if fitting:
                return fitting[-1]
        if sample.method == "GET":
            return None
        if not own:
            return self.request_for(sample.operation, version)
        top = self.body(sample.file).keys()
        others = [one for one in self.of(sample.operation, "request")
                  if version in one.valid and one.usable and one.status == sample.status
                  and one.response and self.body(one.response).keys() == top]
        return others[-1] if others else None

    def nulls(self, operation: str) -> frozenset[str]:
        """Pointers, with * for every element of a list, at which some answer of the operation has null."""
        return self._nulls(operation)

    @lru_cache(maxsize=4096)  # noqa: B019 - as long as the evidence
    def _nulls(self, operation: str) -> frozenset[str]:
        found: set[str] = set()
        for sample in self.of(operation, "response"):
            found.update(pointer for pointer, value in leaves(self.body(sample.file)) if value is None)
        return frozenset(found)


def leaves(document: Any, pointer: str = "") -> list[tuple[str, Any]]:
    """Every value that holds no other, with its pointer; * stands for every element of a list."""
    if isinstance(document, dict) and document:
        return [pair for key, value in document.items() for pair in leaves(value, f"{pointer}/{escape(key)}")]
    if isinstance(document, list) and document:
        return [pair for value in document for pair in leaves(value, f"{pointer}/*")]
    return [(pointer, document)]


def keys(document: Any, pointer: str = "") -> set[str]:
    """The pointers of every key, with * for every element of a list."""
    found: set[str] = set()
    if isinstance(document, dict):
        for key, value in document.items():
            inner = f"{pointer}/{escape(key)}"
            found |= {inner} | keys(value, inner)
    if isinstance(document, list):
        for value in document:
            found |= keys(value, f"{pointer}/*")
    return found


def escape(key: str) -> str:
    """A key as a part of a JSON pointer."""
    return str(key).replace("~", "~0").replace("/", "~1")
