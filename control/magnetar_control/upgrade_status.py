# SPDX-License-Identifier: GPL-3.0-or-later
"""How far an upgrade of the cloud is: each process with its release and the capabilities that it lacks, and what waits
for which processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar_control.store.hosts.capability_marks import (
    CapabilityMark,
    KnownCapabilities,
    fetch_capability_marks,
    processes_without,
)
from magnetar_control.store.hosts.processes import ProcessRow, fetch_processes
from magnetar_control.store.store import Store
from magnetar_core.capabilities import CAPABILITIES, PROCESS_KINDS, capabilities_of
from magnetar_core.version import installed_version, release_number

from .data_migrations import BatchResult, DataMigrator


@dataclass(frozen=True)
class ProcessStatus:
    """A process and its missing capabilities: features that other processes of the same kind have, or that this release
    has, but that the process lacks."""

    process: ProcessRow
    lacks: Sequence[str]

    def as_document(self) -> dict[str, Any]:
        """Return the process as a dict for JSON output."""
        process = self.process
        return {"kind": process.kind, "name": process.name, "cell": process.cell or None, "release": process.release,
                "announced": process.version is not None, "last_seen": process.seen_at,
                "up": process.up, "lacks": list(self.lacks), "refusal": process.refusal or None}


@dataclass(frozen=True)
class CapabilityStatus:
    """A capability (an ability that the cloud uses only when all processes have it). *used_since*: empty if it is not
    used yet. *waits_for*: the processes that lack it."""

    name: str
    meaning: str
    used_since: str
    waits_for: Sequence[ProcessRow]

    def as_document(self) -> dict[str, Any]:
        """Return the capability as a dict for JSON output."""
        return {"name": self.name, "meaning": self.meaning, "used_since": self.used_since or None,
                "waits_for": [{"kind": process.kind, "name": process.name} for process in self.waits_for]}


@dataclass(frozen=True)
class UpgradeStatus:
    """The progress of an upgrade of the cloud's processes and data. *newest*: the newest release among all processes
    and this command."""

    newest: str
    processes: Sequence[ProcessStatus]
    capabilities: Sequence[CapabilityStatus]
    data: Sequence[BatchResult]
    silent_cells: Sequence[str]

    @property
    def complete(self) -> bool:
        """Whether all processes have all capabilities (features that older releases lack), no host is refused, all data
        is migrated, and all cells answer."""
        return not (self.silent_cells or self.data or any(one.waits_for for one in self.capabilities)
                    or any(one.process.refusal for one in self.processes))

    def as_document(self) -> dict[str, Any]:
        """Return the status as a dict for JSON output."""
        return {"complete": self.complete, "newest": self.newest,
                "processes": [process.as_document() for process in self.processes],
                "capabilities": [capability.as_document() for capability in self.capabilities],
                "data_migrations": [{"name": one.migration.name, "database": one.database, "remaining": one.found,
                                     "problem": one.problem or None} for one in self.data],
                "silent_cells": list(self.silent_cells)}


def read_upgrade_status(store: Store, silence: float) -> UpgradeStatus:
    """Return the status of the cloud's upgrade. *silence*: seconds without a heartbeat after which a host is down."""
    all_processes = fetch_processes(store, silence)
    with store.api.read() as connection:
        marks = {mark.name: mark for mark in fetch_capability_marks(connection)}
    releases = [installed_version(), *(process.release for process in all_processes.processes)]
    return UpgradeStatus(
        max(releases, key=lambda release: release_number(release) or -1),
        _status_of_processes(all_processes.processes), _status_of_capabilities(all_processes.processes, marks),
        list(DataMigrator(store, KnownCapabilities(store, lambda: silence)).remaining()), all_processes.silent_cells)


def _status_of_processes(processes: Sequence[ProcessRow]) -> list[ProcessStatus]:
    newest = {kind: set(capabilities_of(kind)).union(*(
        process.capabilities for process in processes if process.kind == kind)) for kind in PROCESS_KINDS}
    return [ProcessStatus(process, sorted(newest[process.kind] - process.capabilities)) for process in processes]


def _status_of_capabilities(processes: Sequence[ProcessRow],
                            marks: Mapping[str, CapabilityMark]) -> list[CapabilityStatus]:
    used = {name: mark.used_since for name, mark in marks.items()}
    return [CapabilityStatus(capability.name, capability.meaning, used.get(capability.name, ""),
                             processes_without(capability, processes)) for capability in CAPABILITIES]
