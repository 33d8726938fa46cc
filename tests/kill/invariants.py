# SPDX-License-Identifier: GPL-3.0-or-later
"""What is true of every cloud in which nothing is under way, whatever happened to it before."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import orjson
from sqlalchemy import select

from magnetar_control.conductor.periodic import audit
from magnetar_control.conductor.periodic.audit_reader import OPEN
from magnetar_control.services.image.tables import images
from magnetar_control.services.network.tables import ports
from magnetar_control.services.volume.tables import attachments, snapshots, volumes
from magnetar_control.store.engine import tables
from magnetar_control.store.servers.migrations import ENDED

from .world import World

STATES = {"active", "stopped", "paused", "suspended", "resized", "rescued", "shelved", "shelved_offloaded", "error"}
#: Statuses of volumes that nothing is done to.
AT_REST = {"available", "in-use", "reserved", "error", "error_deleting", "error_extending"}


class Rows:
    """All rows of a cloud: of its cells together, and of the API database."""

    def __init__(self, world: World) -> None:
        of_cells: dict[str, list[Any]] = defaultdict(list)
        for _cell, database in world.parts.store.databases():
            with database.read() as connection:
                for table in (tables.servers, tables.actions, tables.action_events, tables.migrations):
                    of_cells[table.name] += connection.execute(select(table)).all()
        with world.parts.api_database.read() as connection:
            self.claims, self.ports, self.volumes, self.snapshots, self.attachments, hosts, kept = (
                connection.execute(select(table)).all()
                for table in (tables.allocations, ports, volumes, snapshots, attachments, tables.hosts, images))
        self.actions, self.events = of_cells["actions"], of_cells["action_events"]
        self.moves = [row for row in of_cells["migrations"] if row.status not in ENDED]
        self.servers = {row.id: row for row in of_cells["servers"] if row.deleted_at is None}
        self.hosts = {row.id: row.name for row in hosts}
        self.images = {row.id: row.status for row in kept}
        self.shelved_images = {row.id for row in kept if row.name.endswith("-shelved")}


def servers_rest(rows: Rows) -> Iterator[str]:
    """No server is between two states."""
    for row in rows.servers.values():
        if row.task_state is not None or row.vm_state not in STATES:
            yield f"server {row.id} is {row.vm_state}, {row.task_state}"


def actions_ended(rows: Rows) -> Iterator[str]:
    """All that was asked for has ended, and each event of it has its end and a result. What went with a crash between
    two transactions is an event without an end, of an action that was done again."""
    for row in rows.actions:
        if row.state not in {"done", "failed"}:
            yield f"{row.action} of server {row.server_id} is {row.state}"
    known = {row.id: row for row in rows.actions}
    for row in rows.events:
        if row.action_id not in known:
            yield f"event {row.event} is of no action"
        elif (row.finish_time is None) != (row.result is None):
            yield f"event {row.event} of action {row.action_id} ended at {row.finish_time} with {row.result}"
    last = {row.action_id: row for row in rows.events}
    for id, row in last.items():
        if row.finish_time is None:
            yield f"the last event of action {id}, {row.event} of server {known[id].server_id}, has no end"


def claims_have_servers(rows: Rows) -> Iterator[str]:
    """A claim is of a server that is there, at its host, or of a move that goes on."""
    moving = {row.uuid for row in rows.moves}
    for row in rows.claims:
        server = rows.servers.get(row.server_id)
        if server is None:
            yield f"the claim {row.consumer_id} on {rows.hosts[row.host_id]} is of no server"
        elif row.consumer_id not in moving and server.vm_state != "error" and rows.hosts[row.host_id] != server.host:
            yield f"server {server.id} has a claim on {rows.hosts[row.host_id]}, and is on {server.host}"


def moves_wait(rows: Rows) -> Iterator[str]:
    """A migration that has not ended is of a server that waits for a word."""
    for row in rows.moves:
        server = rows.servers.get(row.server_id)
        if server is None or server.vm_state != "resized":
            yield f"migration {row.uuid} is {row.status}, and server {row.server_id} {server and server.vm_state}"


def nics_are_kept(rows: Rows) -> Iterator[str]:
    """Ports of servers are those that their rows have."""
    have = {one["port_id"]: row.id for row in rows.servers.values() for one in orjson.loads(row.interfaces)}
    kept = {row.id: row.device_id for row in rows.ports if row.device_id}
    for id in have.keys() | kept.keys():
        if have.get(id) != kept.get(id):
            yield f"port {id} is of server {kept.get(id)}, and the row that has it is {have.get(id)}"


def volumes_are_kept(rows: Rows) -> Iterator[str]:
    """Nothing is done to a volume; one is in use by just those servers whose rows have it, on their hosts."""
    have = {(row.id, one["volume_id"], one["attachment_id"]) for row in rows.servers.values()
            for one in orjson.loads(row.volumes)}
    kept = {(row.server_id, row.volume_id, row.id) for row in rows.attachments}
    for server, volume, id in have ^ kept:
        yield f"attachment {id} of volume {volume} and server {server} is " + (
            "known to its server only" if (server, volume, id) in have else "known to no server")
    used = Counter(row.volume_id for row in rows.attachments)
    for row in rows.volumes:
        held = row.status in {"in-use", "reserved"}
        if row.task is not None or row.status not in AT_REST or held != bool(used[row.id]):
            yield f"volume {row.id} is {row.status}, task {row.task}, with {used[row.id]} attachments"
    for row in rows.snapshots:
        if row.task is not None:
            yield f"snapshot {row.id} is {row.status}, task {row.task}"
    for row in rows.attachments:
        server = rows.servers.get(row.server_id)
        if server and server.vm_state == "shelved_offloaded":  # one attached since it left its host is shown in use
            good = row.host is None and row.status in {"reserved", "attached"}
        else:
            good = row.host is not None and row.status == "attached"
        if not good:
            yield f"attachment {row.id} is {row.status} on {row.host}, and its server {server and server.vm_state}"


def shelved_are_kept(rows: Rows) -> Iterator[str]:
    """A shelved server has an image with its root disk, no other has one, and an offloaded one has no host. One in
    error, which could not be deleted, may be anything."""
    for row in (one for one in rows.servers.values() if one.vm_state != "error"):
        away, shelved = row.vm_state == "shelved_offloaded", row.vm_state in {"shelved", "shelved_offloaded"}
        if (away and row.host) or (shelved != bool(row.shelved_at)) or (shelved != bool(row.shelved_image_id)):
            yield (f"server {row.id} is {row.vm_state} on {row.host}, shelved at {row.shelved_at}, with image "
                   f"{row.shelved_image_id}")
        elif shelved and rows.images.get(row.shelved_image_id) != "active":
            yield f"the image of the shelved server {row.id} is {rows.images.get(row.shelved_image_id)}"
        for one in rows.ports:
            if away and one.device_id == row.id and one.host:
                yield f"port {one.id} is bound to {one.host}, and its server is {row.vm_state}"
    kept = {row.shelved_image_id for row in rows.servers.values()}
    for id in rows.shelved_images - kept:
        yield f"the image {id} is of no shelved server"


ABOUT_ROWS = (servers_rest, actions_ended, claims_have_servers, moves_wait, nics_are_kept, volumes_are_kept,
              shelved_are_kept)


def hosts_have(world: World, rows: Rows) -> Iterator[str]:
    """Hosts have the servers that their rows say (one that waits for a word on both), with a domain each, and no volume
    that nobody knows. A server in error may be anywhere or nowhere."""
    unsure = {row.id for row in rows.servers.values() if row.vm_state == "error"}
    waits = {row.server_id for row in rows.moves}
    for host, endpoint in world.hosts.items():
        with world.parts.agents.client(endpoint) as client:
            there = {one["id"] for one in client.list("server")}
            disks = {one["id"] for one in client.list("volume")}
        wanted = {row.id for row in rows.servers.values() if row.host == host}
        for id in (there ^ wanted) - unsure:
            if not (id in waits and id in there):
                yield f"server {id}: on {host} {id in there}, by its row {id in wanted}"
        for id in disks - {row.id for row in (*rows.volumes, *rows.snapshots)}:
            yield f"host {host} has the volume {id}, which nobody knows"
        domains = world.domains(host)
        for id in (domains ^ there) - unsure - waits if domains is not None else ():
            yield f"domain {id} on {host}: {id in domains}, the server {id in there}"


def moves_end(world: World, rows: Rows) -> Iterator[str]:
    """Hosts have no half of a migration that has not ended, but of servers in error."""
    unsure = {row.id for row in rows.servers.values() if row.vm_state == "error"}
    for host, endpoint in world.hosts.items():
        with world.parts.agents.client(endpoint) as client:
            for one in client.list("migration", status=OPEN):
                if one["server"] not in unsure:
                    yield f"server {one['server']}: the {one['side']}'s half on {host} is {one['status']}"


def limits_count(world: World, rows: Rows) -> Iterator[str]:
    """What the API counts as used are the rows."""
    project = world.admin.project_id
    told = world.admin.get("/v2.1/limits").json["limits"]["absolute"]
    flavors = [orjson.loads(row.flavor) for row in rows.servers.values() if row.project_id == project]
    counted = {"totalInstancesUsed": len(flavors), "totalCoresUsed": sum(one["vcpus"] for one in flavors),
               "totalRAMUsed": sum(one["ram"] for one in flavors)}
    for name, number in counted.items():
        if told[name] != number:
            yield f"{name} is {told[name]}, and rows say {number}"
    told = world.admin.get(f"/volume/v3/{project}/limits").json["limits"]["absolute"]
    if told["totalVolumesUsed"] != len(rows.volumes):
        yield f"totalVolumesUsed is {told['totalVolumesUsed']}, and there are {len(rows.volumes)} volumes"


def past(world: World, texts: list[str]) -> list[str]:
    """What was asked of the servers that *texts* name, and how it ended."""
    lines = []
    for _cell, database in world.parts.store.databases():
        with database.read() as connection:
            for row in connection.execute(select(tables.actions).order_by(tables.actions.c.id)):
                if any(row.server_id in text for text in texts):
                    events = connection.execute(select(tables.action_events).where(
                        tables.action_events.c.action_id == row.id).order_by(tables.action_events.c.id)).all()
                    lines.append(f"{row.server_id} {row.start_time[14:]} {row.action} {row.state} {row.attempts} "
                                 f"{row.message} " + "; ".join(f"{one.event} {one.host} {one.result} "
                                                               f"{(one.details or '')[-90:]!r}" for one in events))
    return sorted(lines)


def broken(world: World) -> list[str]:
    """What is not as it must be."""
    rows = Rows(world)
    found = [text for check in ABOUT_ROWS for text in check(rows)]
    found += [*hosts_have(world, rows), *moves_end(world, rows), *limits_count(world, rows)]
    told, _state = audit.run_with_state(world.parts.store, world.parts.agents, world.services)
    # Of a move that failed both hosts may have the server: that somebody looks is what the error asks for.
    unsure = {row.id for row in rows.servers.values() if row.vm_state == "error"}
    return found + [one.text for one in told if not (one.kind == "double" and one.id in unsure)]
