# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables: ``API`` of the one API database, ``CELL`` of each cell's (cell0 too).

Times are text as ``database.now`` makes it, which sorts; documents are JSON text, so that an answer can hold them as
they are. Rows of embedded services are in ``services/<name>/tables.py``, in ``API`` too.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, MetaData, String, Table, Text
from sqlalchemy.schema import ForeignKey, Index, UniqueConstraint

API = MetaData()
CELL = MetaData()

UUID = String(36)
NAME = String(255)
TIME = String(26)
#: JSON text.
DOCUMENT = Text
#: A number that counts up; 64 bits on PostgreSQL, SQLite's rowid.
SERIAL = BigInteger().with_variant(Integer, "sqlite")


def stamped() -> tuple[Column[Any], ...]:
    """When a row was made and last changed."""
    return Column("created_at", TIME, nullable=False), Column("updated_at", TIME)


def outbox(metadata: MetaData, prefix: str = "") -> tuple[Table, Table]:
    """Tables of the notifications that wait for receivers: a row for each of these, in the order in which they are
    sent; and of the receivers, with the conductor that sends (by lease) and how often it has failed since it went well.
    """
    waiting = Table(
        f"{prefix}notifications", metadata,
        Column("id", SERIAL, primary_key=True, autoincrement=True), Column("receiver", NAME, nullable=False),
        Column("message_id", UUID, nullable=False), Column("event_type", NAME, nullable=False),
        Column("created_at", TIME, nullable=False), Column("message", DOCUMENT, nullable=False),
        UniqueConstraint("message_id", "receiver"), Index(f"{prefix}notifications_receiver", "receiver", "id"))
    receivers = Table(
        f"{prefix}notification_receivers", metadata,
        Column("name", NAME, primary_key=True), Column("holder", NAME), Column("lease_until", TIME),
        Column("failures", Integer, nullable=False, default=0), Column("not_before", TIME), Column("problem", Text))
    return waiting, receivers


# API database ---------------------------------------------------------------------------------------------------
cells = Table(
    "cells", API,
    Column("id", UUID, primary_key=True), Column("name", NAME, unique=True, nullable=False),
    Column("database_url", Text, nullable=False), Column("disabled", Boolean, nullable=False, default=False),
    *stamped())

#: A compute host: where its agent is, what it has, and what is claimed of it (the claims are in ``allocations``).
hosts = Table(
    "hosts", API,
    Column("id", UUID, primary_key=True), Column("name", NAME, unique=True, nullable=False),
    Column("number", Integer, unique=True, nullable=False),  # Nova's integer id before 2.53
    Column("cell_id", UUID, ForeignKey("cells.id"), nullable=False), Column("endpoint", Text, nullable=False),
    Column("disabled", Boolean, nullable=False, default=False), Column("disabled_reason", NAME),
    Column("forced_down", Boolean, nullable=False, default=False),
    # What there is, what is kept from servers, and what is claimed; what may be claimed, of these and the ratio: kept
    # beside them so that a claim is one comparison.
    *(Column(name + what, Integer, nullable=False, default=0)
      for what in ("", "_reserved", "_used", "_limit") for name in ("vcpus", "memory_mb", "disk_gb", "pcpus")),
    # What operators have set for this host; null where settings and aggregates say it.
    Column("vcpus_ratio", Float), Column("memory_mb_ratio", Float), Column("disk_gb_ratio", Float),
    *(Column(f"{name}_own_reserved", Integer) for name in ("vcpus", "memory_mb", "disk_gb", "pcpus")),
    Column("own_traits", DOCUMENT, nullable=False, default="[]"),  # beside those that the agent tells
    Column("servers", Integer, nullable=False, default=0),
    Column("info", DOCUMENT, nullable=False, default="{}"),  # the agent's host resource
    Column("pci_aliases", Text, nullable=False, default=""),  # names among it: between commas, and at both ends
    # Placement's: another one when inventories, traits or aggregates are.
    Column("generation", Integer, nullable=False, default=0),
    *stamped())

#: What a host has of a resource class that is no column of ``hosts``. ``told``: the inventory that its agent tells;
#: ``own``: what an operator has set (of one that is told: reserved, allocation_ratio). ``limit``: what may be claimed.
inventories = Table(
    "inventories", API,
    Column("host_id", UUID, ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True),
    Column("resource_class", NAME, primary_key=True), Column("told", DOCUMENT), Column("own", DOCUMENT),
    Column("limit", BigInteger, nullable=False, default=0), Column("used", BigInteger, nullable=False, default=0),
    Column("min_unit", Integer, nullable=False, default=1), Column("max_unit", Integer, nullable=False, default=1),
    Column("step_size", Integer, nullable=False, default=1), Index("inventories_class", "resource_class"))

#: Resource classes and traits beside the standard ones.
resource_classes = Table("resource_classes", API, Column("name", NAME, primary_key=True), *stamped())
traits = Table("traits", API, Column("name", NAME, primary_key=True), *stamped())

#: Which cell a server is in. A server that is in none is in cell0: it was not yet, or could not be, scheduled.
server_mappings = Table(
    "server_mappings", API,
    Column("server_id", UUID, primary_key=True), Column("cell_id", UUID, nullable=False),
    Column("project_id", NAME, nullable=False), Column("created_at", TIME),
    # Its row stays in the cell, and so does what is known of it here.
    Column("deleted", Boolean, nullable=False, default=False),
    Index("server_mappings_project", "project_id"))

#: What a server (or, while it moves, a migration) holds of a host.
allocations = Table(
    "allocations", API,
    Column("consumer_id", UUID, primary_key=True), Column("host_id", UUID, primary_key=True),
    Column("server_id", UUID, nullable=False), Column("vcpus", Integer, nullable=False),
    Column("memory_mb", Integer, nullable=False), Column("disk_gb", Integer, nullable=False),
    Column("pcpus", Integer, nullable=False, default=0),
    Column("devices", Text, nullable=False, default="{}"),  # PCI devices: how many by alias
    Column("resources", DOCUMENT, nullable=False, default="{}"),  # amounts of classes that are in ``inventories``
    Column("places", Text, nullable=False, default="{}"),  # port to where it has its bandwidth: ``nic_bandwidth``
    Column("generation", Integer, nullable=False, default=1),  # Placement's of the consumer
    Column("owner", DOCUMENT),  # {type, project_id, user_id} of a consumer that is no server and no migration
    *stamped(), Index("allocations_host", "host_id"), Index("allocations_server", "server_id"))

#: What hosts have of things of the cloud, see ``host_removals``. *noun*, *key*: as agents know it.
host_removals = Table(
    "host_removals", API, Column("host", NAME, primary_key=True), Column("noun", String(32), primary_key=True),
    Column("key", NAME, primary_key=True), Column("due", Boolean, nullable=False, default=False),
    Index("host_removals_due", "due", "host"), Index("host_removals_thing", "noun", "key"))

flavors = Table(
    "flavors", API,
    Column("number", SERIAL, primary_key=True, autoincrement=True),
    Column("id", NAME, unique=True, nullable=False), Column("name", NAME, unique=True, nullable=False),
    Column("vcpus", Integer, nullable=False), Column("ram", Integer, nullable=False),
    Column("disk", Integer, nullable=False, default=0), Column("ephemeral", Integer, nullable=False, default=0),
    Column("swap", Integer, nullable=False, default=0), Column("rxtx_factor", Float, nullable=False, default=1.0),
    Column("is_public", Boolean, nullable=False, default=True), Column("description", Text),
    Column("extra_specs", DOCUMENT, nullable=False, default="{}"), *stamped())

flavor_projects = Table(
    "flavor_projects", API,
    Column("flavor_number", SERIAL, ForeignKey("flavors.number", ondelete="CASCADE"), primary_key=True),
    Column("project_id", NAME, primary_key=True))

keypairs = Table(
    "keypairs", API,
    Column("number", SERIAL, primary_key=True, autoincrement=True), Column("user_id", NAME, nullable=False),
    Column("name", NAME, nullable=False), Column("type", String(16), nullable=False, default="ssh"),
    Column("fingerprint", NAME, nullable=False), Column("public_key", Text, nullable=False), *stamped(),
    UniqueConstraint("user_id", "name"))

aggregates = Table(
    "aggregates", API,
    Column("id", Integer, primary_key=True, autoincrement=True), Column("uuid", UUID, unique=True, nullable=False),
    Column("name", NAME, unique=True, nullable=False), Column("metadata", DOCUMENT, nullable=False, default="{}"),
    *stamped())

aggregate_hosts = Table(
    "aggregate_hosts", API,
    Column("aggregate_id", Integer, ForeignKey("aggregates.id", ondelete="CASCADE"), primary_key=True),
    Column("host", NAME, primary_key=True))

server_groups = Table(
    "server_groups", API,
    Column("id", UUID, primary_key=True), Column("name", NAME, nullable=False),
    Column("project_id", NAME, nullable=False), Column("user_id", NAME, nullable=False),
    Column("policy", String(32), nullable=False),
    Column("rules", DOCUMENT, nullable=False, default="{}"), *stamped(), Index("server_groups_project", "project_id"))

server_group_members = Table(
    "server_group_members", API,
    Column("group_id", UUID, ForeignKey("server_groups.id", ondelete="CASCADE"), primary_key=True),
    Column("server_id", UUID, primary_key=True), Index("server_group_members_server", "server_id"))

#: A limit of a project; ``default`` is the project of the defaults.
quotas = Table(
    "quotas", API,
    Column("project_id", NAME, primary_key=True), Column("resource", NAME, primary_key=True),
    Column("limit", Integer, nullable=False))

api_notifications, api_notification_receivers = outbox(API, "api_")

# Cell databases -------------------------------------------------------------------------------------------------
servers = Table(
    "servers", CELL,
    Column("id", UUID, primary_key=True), Column("project_id", NAME, nullable=False),
    Column("user_id", NAME, nullable=False), Column("name", NAME, nullable=False), Column("description", NAME),
    Column("hostname", NAME), Column("vm_state", String(32), nullable=False), Column("task_state", String(32)),
    Column("power_state", Integer, nullable=False, default=0), Column("progress", Integer, nullable=False, default=0),
    Column("host", NAME), Column("instance_name", NAME), Column("availability_zone", NAME),
    Column("pinned_availability_zone", NAME), Column("flavor_id", NAME, nullable=False),
    Column("flavor", DOCUMENT, nullable=False),
    Column("image_id", UUID), Column("image", DOCUMENT, nullable=False, default="{}"),  # properties, min_disk, …
    Column("key_name", NAME), Column("metadata", DOCUMENT, nullable=False, default="{}"),
    Column("tags", DOCUMENT, nullable=False, default="[]"), Column("user_data", Text),
    Column("config_drive", Boolean, nullable=False, default=False), Column("locked_by", String(8)),
    Column("locked_reason", NAME), Column("access_ip_v4", String(45)), Column("access_ip_v6", String(45)),
    Column("disk_config", String(8), nullable=False, default="MANUAL"), Column("root_device_name", NAME),
    Column("reservation_id", String(16)), Column("launch_index", Integer, nullable=False, default=0),
    Column("security_groups", DOCUMENT, nullable=False, default="[]"),
    # NICs: [{port_id, network_id, network, mac, fixed_ips: [{ip_address, subnet_id}], tag}]
    Column("interfaces", DOCUMENT, nullable=False, default="[]"),
    # As Nova shows them: {network: [{addr, version, OS-EXT-IPS:type, OS-EXT-IPS-MAC:mac_addr}]}
    Column("addresses", DOCUMENT, nullable=False, default="{}"),
    # Of volume_id, attachment_id, bdm_uuid, device, tag, boot_index, delete_on_termination.
    Column("volumes", DOCUMENT, nullable=False, default="[]"),
    # Of uuid, share_id, share (its name on hosts), tag, status (attaching, inactive, detaching, error), location.
    Column("shares", DOCUMENT, nullable=False, default="[]"),
    # The request as it came, for what is done later: networks, block devices, hints, requested host, injected key.
    Column("request", DOCUMENT, nullable=False, default="{}"), Column("hints", DOCUMENT, nullable=False, default="{}"),
    # Since when it is shelved, and the image that its root disk is in then, from the moment that this is asked for.
    Column("shelved_at", TIME), Column("shelved_image_id", UUID),
    Column("soft_deleted_at", TIME),
    # GiB of the disk that it was rescued with last, which counts while it is rescued.
    Column("rescue_gb", Integer),
    # What the guest has left, encrypted for its user; the SHA-256 of what was cleared, until the host has, too.
    Column("password", Text), Column("cleared_password", String(64)),
    # Counts changes of what the guest may ask for; due: its host is to be told of them.
    Column("guest_revision", Integer, nullable=False, default=0, server_default="0"),
    Column("guest_data_due", Boolean),
    Column("trusted_certs", DOCUMENT), Column("old_flavor", DOCUMENT), Column("fault", DOCUMENT),
    # The cell to which it goes: nothing changes the row here any more (store.cell_moves). How often it has gone.
    Column("leaving", UUID), Column("cell_moves", Integer, nullable=False, default=0, server_default="0"),
    Column("launched_at", TIME), Column("terminated_at", TIME), Column("deleted_at", TIME), *stamped(),
    Index("servers_project", "project_id", "created_at", "id"), Index("servers_host", "host"),
    Index("servers_created", "created_at", "id"), Index("servers_task", "task_state"),
    Index("servers_soft_deleted", "soft_deleted_at"), Index("servers_guest_data_due", "guest_data_due", "host"))

#: What was asked of servers: the durable queue, and what os-instance-actions shows.
actions = Table(
    "actions", CELL,
    Column("id", SERIAL, primary_key=True, autoincrement=True), Column("request_id", NAME, nullable=False),
    Column("server_id", UUID, nullable=False), Column("action", String(64), nullable=False),
    Column("project_id", NAME, nullable=False), Column("user_id", NAME, nullable=False),
    Column("start_time", TIME, nullable=False), Column("updated_at", TIME), Column("message", Text),
    # The queue. state: queued, running, done, failed. Shown only is what a synchronous change leaves (done at once).
    Column("state", String(8), nullable=False), Column("args", DOCUMENT, nullable=False, default="{}"),
    Column("host", NAME),  # whose limits it counts against
    Column("waits_for", NAME),  # another host, which it had to ask when it was put back: its share counts too
    Column("kind", String(8), nullable=False, default="act"),  # which limit: build, live, act
    Column("holder", NAME), Column("lease_until", TIME), Column("not_before", TIME),
    Column("attempts", Integer, nullable=False, default=0), Column("cancel", Boolean, nullable=False, default=False),
    UniqueConstraint("server_id", "request_id", "action"), Index("actions_queue", "state", "id"),
    Index("actions_server", "server_id", "id"))

action_events = Table(
    "action_events", CELL,
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("action_id", SERIAL, ForeignKey("actions.id", ondelete="CASCADE"), nullable=False),
    Column("event", NAME, nullable=False), Column("start_time", TIME, nullable=False), Column("finish_time", TIME),
    Column("result", String(16)), Column("host", NAME), Column("traceback", Text), Column("details", Text),
    Index("action_events_action", "action_id", "id"))

migrations = Table(
    "migrations", CELL,
    Column("id", SERIAL, primary_key=True, autoincrement=True), Column("uuid", UUID, unique=True, nullable=False),
    Column("server_id", UUID, nullable=False), Column("project_id", NAME, nullable=False),
    Column("user_id", NAME, nullable=False), Column("type", String(16), nullable=False),
    Column("status", String(32), nullable=False), Column("source", NAME, nullable=False), Column("target", NAME),
    Column("old_flavor", DOCUMENT), Column("new_flavor", DOCUMENT), Column("progress", DOCUMENT), *stamped(),
    Column("old_vm_state", String(32)),  # what the server is again after a move that keeps it waiting for a word
    Column("asked", String(16)),  # of a live migration under way: abort, force_complete
    Index("migrations_server", "server_id", "id"), Index("migrations_status", "status"))

#: Images that hosts are to have ahead of any server, until they have them.
image_requests = Table(
    "image_requests", CELL,
    Column("host", NAME, primary_key=True), Column("image_id", UUID, primary_key=True),
    Column("attempts", Integer, nullable=False, default=0, server_default="0"), *stamped())
#: Leave to open a console of a server, once, at the host where it was when it was given. The token is not kept.
#: *channels*: of a SPICE console whose main channel is open, how many further ones its client may open.
console_tokens = Table(
    "console_tokens", CELL,
    Column("number", SERIAL, primary_key=True, autoincrement=True),
    Column("hash", String(64), unique=True, nullable=False), Column("server_id", UUID, nullable=False),
    Column("type", String(16), nullable=False), Column("host", NAME, nullable=False),
    Column("project_id", NAME, nullable=False), Column("user_id", NAME, nullable=False),
    Column("channels", Integer), Column("expires_at", TIME, nullable=False),
    Index("console_tokens_server", "server_id", "number"),
    Index("console_tokens_expires", "expires_at"))

#: What the watcher of a host last heard from its agent; one watcher at a time, by lease.
host_states = Table(
    "host_states", CELL,
    Column("host", NAME, primary_key=True), Column("watcher", NAME), Column("lease_until", TIME),
    Column("seen_at", TIME), Column("problem", Text),
    Column("told", DOCUMENT))  # metrics and images of the last heartbeat, where weighers or filters look at them

#: The conductors of the cell. Two of one name are two holders, each with a row.
conductors = Table(
    "conductors", CELL,
    Column("holder", NAME, primary_key=True), Column("name", NAME, nullable=False), Column("started_at", TIME),
    Column("seen_at", TIME, nullable=False))

notifications, notification_receivers = outbox(CELL)

#: How far notifications have told which servers there were in the audit period that ended at *period_end*:
#: up to the uuid *after*, or to the last of them. One row.
usage_audits = Table(
    "usage_audits", CELL,
    Column("name", NAME, primary_key=True), Column("period_end", TIME, nullable=False, default=""),
    Column("after", NAME, nullable=False, default=""), Column("done", Boolean, nullable=False, default=False))
