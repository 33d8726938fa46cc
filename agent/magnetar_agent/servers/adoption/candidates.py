# SPDX-License-Identifier: GPL-3.0-or-later
"""Candidates: domains of other programs, with all that an adoption needs to know about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_core.errors import HypervisorError, MagnetarError

from .disk_chains import Chain, Layer
from .domain_parts import DomainParts, ForeignDisk, read_domain_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_agent.host.foreign_domains import DomainDefinition
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import Domain

    from .disk_chains import ChainReader


@dataclass
class DomainCandidate:
    """A domain of another program that may be adopted as a server. *parts*: its devices. *chains*: the files of each
    disk, including backing files, by device name."""

    domain: Domain
    definition: DomainDefinition
    parts: DomainParts
    chains: dict[str, Chain] = field(default_factory=dict)

    def paths(self) -> list[str]:
        """Return the paths of the disk files, without their backing files."""
        return [self.chains[disk.device].layers[0].path for disk in self.parts.disks if self.chains[disk.device].layers]

    def root_bytes(self) -> int:
        """Return the size of the first disk in bytes; 0 if there is none or its size is unknown."""
        sizes = [layers[0].size for disk in self.parts.disks if disk.kind in ("disk", "lun")
                 and (layers := self.chains[disk.device].layers)]
        return sizes[0] if sizes else 0


#: Disks of domains by path: the name and the uuid of each domain, and whether it shares the disk or only reads it.
Users = Mapping[str, list[tuple[str, str, bool]]]


def read_candidates(host: LocalHost, reader: ChainReader, domains: Iterable[Domain]) -> list[DomainCandidate]:
    """Return a candidate for each of *domains*, except domains that have disappeared. All disks are read concurrently,
    so that several hanging file systems cause only one delay. *reader*: reads the disks."""
    candidates = []
    for domain in domains:
        definition = host.hypervisor.definition(domain.uuid)
        if definition is not None:
            candidates.append(DomainCandidate(domain, definition, read_domain_parts(definition.xml)))
    locate = disk_locator(host)
    files: dict[tuple[str, str], tuple[str, str]] = {}
    for candidate in candidates:
        for disk in candidate.parts.disks:
            candidate.chains[disk.device] = chain = _located(disk, locate)
            if not chain.problem and chain.layers and disk.kind != "cdrom":
                files[candidate.domain.uuid, disk.device] = chain.layers[0].path, disk.format
    chains = reader.read([file for file in files.values() if file[0].startswith("/")])
    for candidate in candidates:
        for device in candidate.chains:
            file = files.get((candidate.domain.uuid, device))
            if file in chains:
                candidate.chains[device] = chains[file]
    return candidates


def _located(disk: ForeignDisk, locate: Callable[[str, str], str]) -> Chain:
    """Return a ``Chain`` with only the path of *disk* itself, without its backing files: no file is read. *locate*:
    finds the path of a volume (``disk_locator``). If the volume cannot be found, the chain's ``problem`` says so."""
    if disk.pool:
        try:
            return Chain([Layer(locate(disk.pool, disk.volume), disk.format)])
        except MagnetarError as error:
            return Chain([Layer(f"{disk.pool}/{disk.volume}", disk.format)], "missing-disk",
                         f"The volume {disk.volume} of the storage pool {disk.pool} cannot be found: {error.message} "
                         "Start the pool (virsh pool-start), or restore the volume.")
    path = disk.path or disk.remote
    return Chain([Layer(path, disk.format)] if path else [])


def disk_locator(host: LocalHost) -> Callable[[str, str], str]:
    """Return a function that returns the path of a volume, by the names of the storage pool and the volume. The
    returned function caches the paths, and raises ``MagnetarError`` if the volume cannot be found."""
    paths: dict[tuple[str, str], str] = {}

    def locate(pool: str, volume: str) -> str:
        if (pool, volume) not in paths:
            content = host.hypervisor.content(pool, volume)
            if content is None:
                raise HypervisorError("There is no such volume.")
            paths[pool, volume] = str(content.disk.path)
        return paths[pool, volume]

    return locate


def disk_users(host: LocalHost, domains: Mapping[str, Domain]) -> Users:
    """Return which of *domains* use each disk file: ``{path: [(domain name, uuid, whether that use is harmless), …]}``.
    Uses that are read-only or shareable, or of a CD, are harmless."""
    users: dict[str, list[tuple[str, str, bool]]] = defaultdict(list)
    locate = disk_locator(host)
    for domain in domains.values():
        for disk in domain.disks:
            if disk.remote is not None or disk.path == Path():
                continue
            path = str(disk.path)
            if not disk.path.is_absolute():
                pool, _slash, volume = path.partition("/")
                try:
                    path = locate(pool, volume)
                except MagnetarError:
                    continue
            harmless = disk.readonly or disk.shareable or disk.device == "cdrom"
            users[path].append((domain.name, domain.uuid, harmless))
    return users
