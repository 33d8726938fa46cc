# SPDX-License-Identifier: GPL-3.0-or-later
"""What is run: every sample at the ends of its range and at one microversion between them, and its boundary twin."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .samples import CELL_DOWN, UNLIMITED, Evidence, Sample, keys

SEED = 20260821
#: Replay classes and samples, with the capability without which they say nothing.
NEEDS_BY_REPLAY = {"volume": "volume", "network": "network", "hosts": "hosts"}
NEEDS_BY_OPERATION = {
    "servers.action.evacuate": "failed_host",
    "servers.action.restore": "soft_delete",
    "servers.migrations.list": "running_migration",
    "servers.migrations.show": "running_migration",
    "servers.migrations.action.force_complete": "running_migration",
    "servers.action.addFloatingIp": "network_proxies",
    "servers.action.removeFloatingIp": "network_proxies",
}
NEEDS_BY_WORD = {"-serial-": "serial", "-spice-direct": "spice_direct", "-spice-": "spice", "-mks-": "mks",
                 "-rdp-": "rdp", "-vnc-": "vnc", CELL_DOWN: "down_cell", "connect-info": "vnc",
                 "hypervisors-without-servers": "empty_hosts"}
#: Why a case says nothing where the capability is missing.
WHY = {
    "hosts": "two hosts are needed", "volume": "no volume service", "network": "no network service",
    "failed_host": "no host that failed", "soft_delete": "no soft delete is configured",
    "running_migration": "no live migration stays under way here", "down_cell": "no cell is out of reach",
    "network_proxies": "the proxy of floating IPs needs a network service of that kind",
    "empty_hosts": "the hosts have servers",
    "serial": "no serial console", "spice": "no SPICE console", "spice_direct": "no direct SPICE console",
    "mks": "no MKS console", "rdp": "no RDP console", "vnc": "no VNC console",
}


@dataclass
class Case:
    """One thing to try. ``absent`` is why it says nothing here; empty when it is applicable."""

    id: str
    kind: str
    area: str
    operation: str
    version: int
    direction: str = ""
    group: str = ""
    sample: Sample | None = None
    reason: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cell(self) -> tuple[str, str, int]:
        """What the figure counts."""
        return self.operation, self.direction, self.version


def need(sample: Sample) -> str | None:
    """The capability that replaying *sample* needs."""
    if sample.note == "unreachable cell":
        return "down_cell"
    if sample.status >= 400:
        return None
    for word, capability in NEEDS_BY_WORD.items():
        if word in sample.file.rpartition("/")[2]:
            return capability
    return NEEDS_BY_OPERATION.get(sample.operation) or NEEDS_BY_REPLAY.get(sample.replay)


def reason(sample: Sample, capabilities: Mapping[str, Any]) -> str:
    """Why *sample* says nothing where only *capabilities* are; empty when it does."""
    if not sample.usable:
        return "the sample contradicts Nova's own schema"
    if sample.replay == "gone" and sample.direction == "response":
        return "the answer is gone from Nova (its request is a negative)"
    capability = need(sample)
    if capability == "hosts":
        return "" if int(capabilities.get("hosts", 1)) > 1 else WHY["hosts"]
    if capability and not capabilities.get(capability):
        return WHY[capability]
    return ""


def chosen(sample: Sample, maximum: int = UNLIMITED, every: bool = False, seed: int = SEED) -> list[int]:
    """The microversions to run: the ends of the range and one between, the same in every run of a seed."""
    versions = sorted(version for version in sample.versions if version <= maximum)
    if every or len(versions) <= 3:
        return versions
    drawn = random.Random(f"{seed} {sample.operation} {sample.min} {sample.max}").choice(versions[1:-1])
    return [versions[0], drawn, versions[-1]]


def _cases(evidence: Evidence, sample: Sample, capabilities: Mapping[str, Any], maximum: int,
           every: bool) -> Iterable[Case]:
    why = reason(sample, capabilities)
    versions = chosen(sample, maximum, every)
    if not versions:
        yield Case(id=f"{sample.file}@-", kind="sample", area=sample.area, operation=sample.operation,
                   version=sample.min, direction=sample.direction, group=sample.replay, sample=sample,
                   reason="newer than the claimed maximum" if sample.min > maximum else "valid at no microversion")
    for version in versions:
        lacks = sample.requests and not why and evidence.request_of(sample, version) is None
        yield Case(id=f"{sample.file}@2.{version}", kind="sample", area=sample.area, operation=sample.operation,
                   version=version, direction=sample.direction, group=sample.replay, sample=sample,
                   reason="no sample of a request that brings it is valid at this microversion" if lacks else why)


def _twin(evidence: Evidence, sample: Sample, capabilities: Mapping[str, Any], maximum: int) -> Case | None:
    """The same sample one microversion earlier, where it must not hold."""
    version = sample.min - 1
    operation = evidence.operations.get(sample.operation)
    if version < 1 or version > maximum or operation is None or not operation.min <= version <= operation.max:
        return None
    if version in sample.valid:
        return None
    earlier = [one for one in evidence.of(sample.operation, sample.direction)
               if one.stem == sample.stem and version in one.versions and one.note == sample.note]
    new: set[str] = set()
    if sample.direction == "response":
        if sample.method != "GET" or not earlier:
            return None
        new = keys(evidence.body(sample.file)) - keys(evidence.body(earlier[-1].file))
        if not new:
            return None
    return Case(id=f"{sample.file}@2.{version} twin", kind="twin", area=sample.area, operation=sample.operation,
                version=version, direction=sample.direction, group="twin", sample=sample,
                reason=reason(sample, capabilities), extra={"new": sorted(new)})


def plan(evidence: Evidence, capabilities: Mapping[str, Any], maximum: int = UNLIMITED,
         every: bool = False) -> list[Case]:
    """Every case of the samples, applicable or with the reason why not."""
    cases: list[Case] = []
    for sample in evidence.samples.values():
        cases.extend(_cases(evidence, sample, capabilities, maximum, every))
        twin = _twin(evidence, sample, capabilities, maximum)
        if twin:
            cases.append(twin)
    return cases


def only(cases: Iterable[Case], words: Iterable[str]) -> list[Case]:
    """The cases whose area, operation or id contains one of *words*."""
    words = list(words)
    return [case for case in cases
            if not words or any(word in (case.area, case.operation) or word in case.id for word in words)]


def part(cases: Iterable[Case], number: int, of: int) -> list[Case]:
    """One of *of* parts of the cases, by operation: they are run beside one another, or one each night."""
    return [case for case in cases if zlib.crc32(case.operation.encode()) % of == number]


def reasons(cases: Iterable[Case]) -> Counter[str]:
    """How many cases say nothing, by reason."""
    return Counter(case.reason for case in cases if case.reason)


def cells(evidence: Evidence, maximum: int = UNLIMITED) -> int:
    """The number of (operation, direction, microversion) that the evidence speaks about."""
    return len({(one.operation, one.direction, version) for one in evidence.samples.values()
                for version in one.versions if version <= maximum})
