# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables: ``API`` for the API database, ``CELL`` for the database of each cell, including cell0.

Times are text in the form of ``database.utc_now``, which sorts by time. Documents are JSON text, so that a response can
contain them unchanged. The tables of embedded services are in ``services/<name>/tables.py``, and also belong to
``API``.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import ForeignKey, Index, UniqueConstraint

log = logging.getLogger(__name__)
#: Indexes that only some databases support, see ``create_trigrams``.
OPTIONAL_INDEXES = frozenset(("servers_name_trigrams", "server_addresses_trigrams"))
API = MetaData()
CELL = MetaData()

UUID = String(36)
NAME = String(255)
TIME = String(26)
#: JSON text.
DOCUMENT = Text
#: An increasing number: 64 bits on PostgreSQL, the rowid on SQLite.
SERIAL = BigInteger().with_variant(Integer, "sqlite")


def timestamp_columns() -> tuple[Column[Any], ...]:
    """Return two new columns for a table: the times of a row's creation and of its last change."""
    return Column("created_at", TIME, nullable=False), Column("updated_at", TIME)


def create_trigrams(ddl: Any, target: Any, bind: Any, tables: Any = None, state: Any = None, **_how: Any) -> bool:  # noqa: ARG001 - SQLAlchemy's names
    """Create PostgreSQL's extension pg_trgm if it is installed. Return whether the database has the extension, which
    trigram indexes need. Without these indexes, searches for a part of a name or address are slow. A callable for
    SQLAlchemy's ``ddl_if``."""
    if bind is None or bind.dialect.name != "postgresql":
        return False
    try:
        with bind.begin_nested():
            bind.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    except DBAPIError:
        log.warning("PostgreSQL has no extension pg_trgm: filters by name or IPv6 address will read all servers")
        return False
    return True


def creation_time(context: Any) -> Any:
    """Return ``created_at`` of the row that is being inserted. Used as the default of its ``updated_at``."""
    return context.get_current_parameters()["created_at"]


def define_partial_index(name: str, *columns: str, where: str, **options: Any) -> Index:
    """Return an index that contains only the rows that fulfil the SQL condition *where*. Databases use the index for
    queries with that condition."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where), **options)


def column_defaults(table: Table) -> dict[str, Any]:
    """Return the default value of each column of *table*, by name; ``None`` if a column has no default, or its default
    is a function."""
    return {column.name: None if callable(value := getattr(column.default, "arg", None)) else value
            for column in table.c}


def define_outbox_tables(metadata: MetaData, prefix: str = "") -> tuple[Table, Table]:
    """Define and return two tables for notifications that are sent to HTTP receivers. The first table has one row for
    each notification and receiver, to be sent in the order of the ids. The second table has the receivers, each with
    the lease of the conductor that sends to it, and the number of failures since the last success. *prefix*: the
    beginning of the tables' names."""
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
    *timestamp_columns())

#: A compute host: the endpoint of its agent, its resources, and the claimed amounts (the claims are in
#: ``allocations``).
hosts = Table(
    "hosts", API,
    Column("id", UUID, primary_key=True), Column("name", NAME, unique=True, nullable=False),
    Column("number", Integer, unique=True, nullable=False),  # Nova's integer id before 2.53
    Column("cell_id", UUID, ForeignKey("cells.id"), nullable=False), Column("endpoint", Text, nullable=False),
    Column("disabled", Boolean, nullable=False, default=False), Column("disabled_reason", NAME),
    Column("forced_down", Boolean, nullable=False, default=False),
    # Total, reserved, claimed, and claimable amounts. The claimable ones follow from total, reserved and ratio; they
    # are stored so that a claim is one comparison.
    *(Column(name + suffix, Integer, nullable=False, default=0)
      for suffix in ("", "_reserved", "_used", "_limit") for name in ("vcpus", "memory_mb", "disk_gb", "pcpus")),
    # Values that operators set for this host; null where settings and aggregates decide.
    Column("vcpus_ratio", Float), Column("memory_mb_ratio", Float), Column("disk_gb_ratio", Float),
    *(Column(f"{name}_own_reserved", Integer) for name in ("vcpus", "memory_mb", "disk_gb", "pcpus")),
    Column("own_traits", DOCUMENT, nullable=False, default="[]"),  # in addition to the agent's
    Column("servers", Integer, nullable=False, default=0),
    Column("disk_gb_free", Integer),  # as ``info`` has it, for sums over hosts
    Column("info", DOCUMENT, nullable=False, default="{}"),  # the agent's host resource
    Column("pci_aliases", Text, nullable=False, default=""),  # names in ``info``, a comma before and after each
    # Placement's generation: changes with inventories, traits and aggregates.
    Column("generation", Integer, nullable=False, default=0),
    *timestamp_columns())

#: A host's inventory of a resource class that has no column in ``hosts``. ``told``: the inventory that the agent
#: reports. ``own``: fields set by an operator (for a reported inventory: reserved, allocation_ratio). ``limit``: the
#: claimable amount.
inventories = Table(
    "inventories", API,
    Column("host_id", UUID, ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True),
    Column("resource_class", NAME, primary_key=True), Column("told", DOCUMENT), Column("own", DOCUMENT),
    Column("limit", BigInteger, nullable=False, default=0), Column("used", BigInteger, nullable=False, default=0),
    Column("min_unit", Integer, nullable=False, default=1), Column("max_unit", Integer, nullable=False, default=1),
    Column("step_size", Integer, nullable=False, default=1), Index("inventories_class", "resource_class"))

#: Resource classes and traits in addition to the standard ones.
resource_classes = Table("resource_classes", API, Column("name", NAME, primary_key=True), *timestamp_columns())
traits = Table("traits", API, Column("name", NAME, primary_key=True), *timestamp_columns())

#: The cell of each server. A server without a row is in cell0: not scheduled yet, or without a valid host.
server_mappings = Table(
    "server_mappings", API,
    Column("server_id", UUID, primary_key=True), Column("cell_id", UUID, nullable=False),
    Column("project_id", NAME, nullable=False), Column("created_at", TIME),
    # Set when the server is deleted: its row in the cell stays, and so does this one.
    Column("deleted", Boolean, nullable=False, default=False),
    Index("server_mappings_project", "project_id"))

#: The condition of allocations with PCI devices. Queries contain the same text, so that engines use the partial index.
HAS_DEVICES = "devices <> '{}'"
#: The resources that a server (or, while it moves, its migration) holds on a host.
allocations = Table(
    "allocations", API,
    Column("consumer_id", UUID, primary_key=True), Column("host_id", UUID, primary_key=True),
    Column("server_id", UUID, nullable=False), Column("vcpus", Integer, nullable=False),
    Column("memory_mb", Integer, nullable=False), Column("disk_gb", Integer, nullable=False),
    Column("pcpus", Integer, nullable=False, default=0),
    Column("devices", Text, nullable=False, default="{}"),  # the number of PCI devices by alias
    Column("resources", DOCUMENT, nullable=False, default="{}"),  # amounts of the classes in ``inventories``
    Column("places", Text, nullable=False, default="{}"),  # port to the place of its bandwidth, see ``nic_bandwidth``
    Column("generation", Integer, nullable=False, default=1),  # Placement's generation of the consumer
    Column("owner", DOCUMENT),  # {type, project_id, user_id} of a consumer that is neither server nor migration
    *timestamp_columns(), Index("allocations_host", "host_id"), Index("allocations_server", "server_id"),
    define_partial_index("allocations_moves", "host_id", where="consumer_id <> server_id"),
    define_partial_index("allocations_devices", "consumer_id", where=HAS_DEVICES),
    define_partial_index("allocations_owned", "consumer_id", where="owner IS NOT NULL"))

#: The last fencing of each host, see ``fencings``. *attempt*: whoever works on it, until *busy_until*. *confirmed_at*:
#: when the fence agent last said that the host is off. The columns *was_*: the columns of the host's row before it was
#: fenced, null while the host's row is not changed.
fencings = Table(
    "fencings", API, Column("host", NAME, primary_key=True), Column("state", String(16), nullable=False),
    Column("agent", NAME, nullable=False), Column("requested_at", TIME, nullable=False),
    Column("requested_by", NAME, nullable=False), Column("attempt", UUID, nullable=False), Column("busy_until", TIME),
    Column("ended_at", TIME), Column("confirmed_at", TIME), Column("message", Text, nullable=False, default=""),
    Column("was_disabled", Boolean), Column("was_disabled_reason", NAME), Column("was_forced_down", Boolean))

#: The last request of an administrator to fence or unfence each host, see ``fencing_requests``. *ended_at*: null until
#: a conductor has served it. *error_code*, *error*: why it failed.
fencing_requests = Table(
    "fencing_requests", API, Column("host", NAME, primary_key=True), Column("id", UUID, nullable=False),
    Column("fence", Boolean, nullable=False), Column("confirmed", Boolean, nullable=False),
    Column("requested_by", NAME, nullable=False), Column("requested_at", TIME, nullable=False),
    Column("ended_at", TIME), Column("error_code", NAME), Column("error", Text))

#: Objects that hosts must remove after their deletion, see ``host_removals``. *noun*, *key*: the agents' names for an
#: object.
host_removals = Table(
    "host_removals", API, Column("host", NAME, primary_key=True), Column("noun", String(32), primary_key=True),
    Column("key", NAME, primary_key=True), Column("due", Boolean, nullable=False, default=False),
    Index("host_removals_due", "due", "host"), Index("host_removals_thing", "noun", "key"))

#: Hosts that are being drained, or were drained and get no new servers. ``state``: draining, drained, or ending (the
#: drain was ended, and its last moves continue). ``round``: the number of requests for the drain.
drains = Table(
    "drains", API, Column("host", NAME, primary_key=True), Column("state", String(16), nullable=False),
    Column("round", Integer, nullable=False), Column("reason", NAME), Column("request_id", NAME, nullable=False),
    Column("user_id", NAME), Column("project_id", NAME), Column("message", Text),
    Column("started_at", TIME, nullable=False), Column("finished_at", TIME))

flavors = Table(
    "flavors", API,
    Column("number", SERIAL, primary_key=True, autoincrement=True),
    Column("id", NAME, unique=True, nullable=False), Column("name", NAME, unique=True, nullable=False),
    Column("vcpus", Integer, nullable=False), Column("ram", Integer, nullable=False),
    Column("disk", Integer, nullable=False, default=0), Column("ephemeral", Integer, nullable=False, default=0),
    Column("swap", Integer, nullable=False, default=0), Column("rxtx_factor", Float, nullable=False, default=1.0),
    Column("is_public", Boolean, nullable=False, default=True), Column("description", Text),
    Column("extra_specs", DOCUMENT, nullable=False, default="{}"), *timestamp_columns())

flavor_projects = Table(
    "flavor_projects", API,
    Column("flavor_number", SERIAL, ForeignKey("flavors.number", ondelete="CASCADE"), primary_key=True),
    Column("project_id", NAME, primary_key=True), Index("flavor_projects_project", "project_id"))

keypairs = Table(
    "keypairs", API,
    Column("number", SERIAL, primary_key=True, autoincrement=True), Column("user_id", NAME, nullable=False),
    Column("name", NAME, nullable=False), Column("type", String(16), nullable=False, default="ssh"),
    Column("fingerprint", NAME, nullable=False), Column("public_key", Text, nullable=False), *timestamp_columns(),
    UniqueConstraint("user_id", "name"))

aggregates = Table(
    "aggregates", API,
    Column("id", Integer, primary_key=True, autoincrement=True), Column("uuid", UUID, unique=True, nullable=False),
    Column("name", NAME, unique=True, nullable=False), Column("metadata", DOCUMENT, nullable=False, default="{}"),
    *timestamp_columns())

aggregate_hosts = Table(
    "aggregate_hosts", API,
    Column("aggregate_id", Integer, ForeignKey("aggregates.id", ondelete="CASCADE"), primary_key=True),
    Column("host", NAME, primary_key=True))

server_groups = Table(
    "server_groups", API,
    Column("id", UUID, primary_key=True), Column("name", NAME, nullable=False),
    Column("project_id", NAME, nullable=False), Column("user_id", NAME, nullable=False),
    Column("policy", String(32), nullable=False),
    Column("rules", DOCUMENT, nullable=False, default="{}"), *timestamp_columns(),
    Index("server_groups_project", "project_id", "created_at", "id"),
    Index("server_groups_created", "created_at", "id"))

server_group_members = Table(
    "server_group_members", API,
    Column("group_id", UUID, ForeignKey("server_groups.id", ondelete="CASCADE"), primary_key=True),
    Column("server_id", UUID, primary_key=True), Index("server_group_members_server", "server_id"))

#: A limit of a project; ``default`` is the project of the defaults.
quotas = Table(
    "quotas", API,
    Column("project_id", NAME, primary_key=True), Column("resource", NAME, primary_key=True),
    Column("limit", Integer, nullable=False))

api_notifications, api_notification_receivers = define_outbox_tables(API, "api_")

#: The API processes, with what each announces: its release, and the names of its capabilities.
api_processes = Table(
    "api_processes", API,
    Column("holder", NAME, primary_key=True), Column("name", NAME, nullable=False), Column("version", NAME),
    Column("capabilities", DOCUMENT), Column("started_at", TIME), Column("seen_at", TIME, nullable=False))

#: The capabilities that the cloud uses: processes without them do not start. *kinds*: of these processes, separated by
#: commas. *used_since* is null until the process that wants to use it is sure that no process lacks it.
capability_marks = Table(
    "capability_marks", API,
    Column("name", NAME, primary_key=True), Column("kinds", NAME, nullable=False), Column("version", NAME),
    Column("marked_at", TIME, nullable=False), Column("used_since", TIME))

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
    # A list of objects: volume_id, attachment_id, bdm_uuid, device, tag, boot_index, delete_on_termination.
    Column("volumes", DOCUMENT, nullable=False, default="[]"),
    # A list of objects: uuid, share_id, share (its name on hosts), tag, status (attaching, inactive, detaching, error),
    # location.
    Column("shares", DOCUMENT, nullable=False, default="[]"),
    # The original request, for later steps: networks, block devices, hints, requested host, injected key.
    Column("request", DOCUMENT, nullable=False, default="{}"), Column("hints", DOCUMENT, nullable=False, default="{}"),
    # When the server was shelved, and the image of its root disk, set when the shelving is requested.
    Column("shelved_at", TIME), Column("shelved_image_id", UUID),
    Column("soft_deleted_at", TIME),
    # GiB of the disk of the last rescue; they count while the server is rescued.
    Column("rescue_gb", Integer),
    # The password that the guest left, encrypted for its user; the SHA-256 of a cleared one, until the host clears it,
    # too.
    Column("password", Text), Column("cleared_password", String(64)),
    # The number of changes to data that the guest can request; ``due``: the host must still be told about them.
    Column("guest_revision", Integer, nullable=False, default=0, server_default="0"),
    Column("guest_data_due", Boolean),
    Column("trusted_certs", DOCUMENT), Column("old_flavor", DOCUMENT), Column("fault", DOCUMENT),
    # The target cell of a server that leaves: nothing changes the row here any more (store.cell_moves). ``cell_moves``:
    # how often the server has moved.
    Column("leaving", UUID), Column("cell_moves", Integer, nullable=False, default=0, server_default="0"),
    Column("launched_at", TIME), Column("terminated_at", TIME), Column("deleted_at", TIME),
    Column("created_at", TIME, nullable=False), Column("updated_at", TIME, nullable=False, default=creation_time),
    define_partial_index("servers_guest_data_due", "host", where="guest_data_due IS NOT NULL"),
    define_partial_index("servers_task", "task_state", where="task_state IS NOT NULL"),
    define_partial_index("servers_leaving", "project_id", "leaving", where="leaving IS NOT NULL"),
    define_partial_index("servers_soft_deleted", "soft_deleted_at", where="soft_deleted_at IS NOT NULL"),
    # Pages of lists, see ``servers.server_list``. Deleted servers have indexes of their own: a list never reads past
    # them. With ``deleted_at``, and further columns of filters, SQLite tests servers without reading their rows.
    # ``servers_host`` also counts the servers that run on each host, see ``usage``.
    *(index for suffix, where in (("", "deleted_at IS NULL"), ("_gone", "deleted_at IS NOT NULL")) for index in (
        define_partial_index(f"servers_host{suffix}", "host", "launched_at", "terminated_at", "deleted_at",
                             where=where),
        define_partial_index(f"servers_project{suffix}", "project_id", "created_at", "id", "name", "vm_state",
                             "deleted_at", where=where),
        define_partial_index(f"servers_created{suffix}", "created_at", "id", where=where),
        define_partial_index(f"servers_changed{suffix}", "updated_at", "created_at", "id", "project_id",
                             "deleted_at", where=where))),
    define_partial_index("servers_state", "vm_state", "created_at", "id", where="deleted_at IS NULL"),
    define_partial_index("servers_name", "name", "created_at", "id", "deleted_at", where="deleted_at IS NULL",
                         postgresql_ops={"name": 'COLLATE "C"'}),  # the order of all engines and of Python
    define_partial_index("servers_name_trigrams", "name", where="deleted_at IS NULL", postgresql_using="gin",
                         postgresql_ops={"name": "gin_trgm_ops"}).ddl_if(callable_=create_trigrams),
    # Usage: the ended servers by their end, and the servers of a project by uuid.
    define_partial_index("servers_ended", "terminated_at", "launched_at", "host", where="terminated_at IS NOT NULL"),
    Index("servers_usage", "project_id", "id", postgresql_ops={"project_id": 'COLLATE "C"'}))

#: The tags of servers, as rows for filters. The column ``servers.tags`` has the same tags in their order.
server_tags = Table(
    "server_tags", CELL,
    Column("tag", String(60), primary_key=True),
    Column("server_id", UUID, ForeignKey("servers.id", ondelete="CASCADE"), primary_key=True),
    Index("server_tags_server", "server_id"), sqlite_with_rowid=False)

#: The addresses of servers, as rows for filters. There may be rows of addresses that a server no longer has.
server_addresses = Table(
    "server_addresses", CELL,
    Column("version", Integer, primary_key=True, autoincrement=False),  # 4 or 6
    # By code points, so that an index finds the addresses with the same beginning.
    Column("address", String(45).with_variant(String(45, collation="C"), "postgresql"), primary_key=True),
    Column("server_id", UUID, ForeignKey("servers.id", ondelete="CASCADE"), primary_key=True),
    Index("server_addresses_server", "server_id"),
    define_partial_index("server_addresses_trigrams", "address", where="version = 6", postgresql_using="gin",
                         postgresql_ops={"address": "gin_trgm_ops"}).ddl_if(callable_=create_trigrams),
    sqlite_with_rowid=False)  # the primary key has the rows: a write changes two trees instead of three

#: The quota usage of each user in a project, except servers that move to another cell. Triggers update the rows (see
#: ``quota_triggers``); the usage is the sum over the slots.
quota_usage = Table(
    "quota_usage", CELL,
    Column("project_id", NAME, primary_key=True), Column("user_id", NAME, primary_key=True),
    Column("slot", BigInteger, primary_key=True, autoincrement=False),
    Column("instances", BigInteger, nullable=False), Column("cores", BigInteger, nullable=False),
    Column("ram", BigInteger, nullable=False))
servers.add_is_dependent_on(quota_usage)  # its triggers write there

#: The condition of actions in the queue. Queries contain the same text, so that engines use the partial index.
OPEN_ACTION = "state IN ('queued', 'running')"
#: Actions on servers: the durable queue, and the source of os-instance-actions.
actions = Table(
    "actions", CELL,
    Column("id", SERIAL, primary_key=True, autoincrement=True), Column("request_id", NAME, nullable=False),
    Column("server_id", UUID, nullable=False), Column("action", String(64), nullable=False),
    Column("project_id", NAME, nullable=False), Column("user_id", NAME, nullable=False),
    Column("start_time", TIME, nullable=False), Column("updated_at", TIME), Column("message", Text),
    # The queue. state: queued, running, done, failed. Rows of synchronous changes are done from the start: they are
    # only shown.
    Column("state", String(8), nullable=False), Column("args", DOCUMENT, nullable=False, default="{}"),
    Column("host", NAME),  # the host whose limits count
    Column("waits_for", NAME),  # another host that the action waited for when it was requeued: its share counts, too
    Column("kind", String(8), nullable=False, default="act"),  # the limit that counts: build, live, act
    Column("holder", NAME), Column("lease_until", TIME), Column("not_before", TIME),
    Column("attempts", Integer, nullable=False, default=0), Column("cancel", Boolean, nullable=False, default=False),
    UniqueConstraint("server_id", "request_id", "action"),
    # The queue: without the ended actions, which are nearly all. A statement finds it by ``is_open_action``.
    define_partial_index("actions_open", "id", where=OPEN_ACTION),
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
    Column("old_flavor", DOCUMENT), Column("new_flavor", DOCUMENT), Column("progress", DOCUMENT), *timestamp_columns(),
    Column("old_vm_state", String(32)),  # restored after a move that waits for confirm or revert
    Column("asked", String(16)),  # a request to a running live migration: abort, force_complete
    Index("migrations_server", "server_id", "id"), Index("migrations_created", "created_at", "id", "uuid"),
    Index("migrations_status", "status", "created_at", "id", "uuid"), Index("migrations_source", "source"),
    Index("migrations_target", "target"))

#: What a drain has done with the servers of its host. ``state``: moving, moved, stays. ``action``, ``request_id``: the
#: last action of the drain on the server. ``round``: the round of the drain that wrote the row.
drained_servers = Table(
    "drained_servers", CELL, Column("host", NAME, primary_key=True), Column("server_id", UUID, primary_key=True),
    Column("name", NAME, nullable=False), Column("state", String(8), nullable=False), Column("action", String(64)),
    Column("request_id", NAME), Column("target", NAME), Column("message", Text),
    Column("round", Integer, nullable=False), Column("updated_at", TIME, nullable=False))

#: Incidents: hosts that have died, see ``incidents``. *host*: null for an incident of the whole cell. *open_key*: the
#: host, or "" for the cell, while the incident is open; so each has one open incident. *checked_at*: when peers were
#: last asked. *fencing_at*: when it was decided to fence the host; *fenced_at*: when the host was off for certain.
incidents = Table(
    "incidents", CELL, Column("id", UUID, primary_key=True), Column("host", NAME),
    Column("open_key", NAME, unique=True), Column("state", String(16), nullable=False),
    Column("message", Text, nullable=False, default=""), Column("noticed_at", TIME, nullable=False),
    Column("checked_at", TIME), Column("fencing_at", TIME), Column("fenced_at", TIME), Column("finished_at", TIME),
    Column("moved", Integer, nullable=False, default=0), Column("failed", Integer, nullable=False, default=0),
    Column("remaining", Integer, nullable=False, default=0),
    Index("incidents_noticed", "noticed_at", "id"), Index("incidents_fencing", "fencing_at"))
#: What an incident has done with the servers of its host. ``state``: waiting, moving, moved, failed, remains.
#: *request_id*: of the last evacuation. *not_before*: when the next attempt may begin.
incident_servers = Table(
    "incident_servers", CELL, Column("incident_id", UUID, primary_key=True),
    Column("server_id", UUID, primary_key=True), Column("name", NAME, nullable=False),
    Column("policy", String(16), nullable=False), Column("priority", Integer, nullable=False),
    Column("state", String(8), nullable=False), Column("attempts", Integer, nullable=False, default=0),
    Column("not_before", TIME), Column("request_id", NAME), Column("target", NAME), Column("message", Text),
    Column("updated_at", TIME, nullable=False))

#: Images to be cached on hosts before any server needs them. A row stays until its host has the image.
image_requests = Table(
    "image_requests", CELL,
    Column("host", NAME, primary_key=True), Column("image_id", UUID, primary_key=True),
    Column("attempts", Integer, nullable=False, default=0, server_default="0"), *timestamp_columns())
#: A permission to open a server's console once, on the host that the server was on when the token was issued. Only the
#: hash of the token is stored. *channels*: for a SPICE console with an open main channel, how many more channels its
#: client may open.
console_tokens = Table(
    "console_tokens", CELL,
    Column("number", SERIAL, primary_key=True, autoincrement=True),
    Column("hash", String(64), unique=True, nullable=False), Column("server_id", UUID, nullable=False),
    Column("type", String(16), nullable=False), Column("host", NAME, nullable=False),
    Column("project_id", NAME, nullable=False), Column("user_id", NAME, nullable=False),
    Column("channels", Integer), Column("expires_at", TIME, nullable=False),
    Index("console_tokens_server", "server_id", "number"),
    Index("console_tokens_expires", "expires_at"))

#: The last heartbeat of each host's agent, as its watcher heard it; one watcher at a time, by lease.
host_states = Table(
    "host_states", CELL,
    Column("host", NAME, primary_key=True), Column("watcher", NAME), Column("lease_until", TIME),
    Column("seen_at", TIME), Column("problem", Text),
    Column("told", DOCUMENT))  # metrics and images of the last heartbeat, where weighers or filters use them

#: The conductors of the cell. Two conductors of the same name are two holders, each with its own row. *version*,
#: *capabilities*: what the conductor announces; null for release 0.1.0, which announces nothing.
conductors = Table(
    "conductors", CELL,
    Column("holder", NAME, primary_key=True), Column("name", NAME, nullable=False), Column("started_at", TIME),
    Column("seen_at", TIME, nullable=False), Column("version", NAME), Column("capabilities", DOCUMENT))

notifications, notification_receivers = define_outbox_tables(CELL)

#: The progress of the notifications about the servers of the audit period that ended at *period_end*: up to the uuid
#: *after*, or complete. One row.
usage_audits = Table(
    "usage_audits", CELL,
    Column("name", NAME, primary_key=True), Column("period_end", TIME, nullable=False, default=""),
    Column("after", NAME, nullable=False, default=""), Column("done", Boolean, nullable=False, default=False))

#: The progress of the audit, in one row: the position in the slow pass over the cell, and the last action whose server
#: was read as changed.
audit_marks = Table(
    "audit_marks", CELL,
    Column("name", NAME, primary_key=True), Column("position", NAME, nullable=False, default=""),
    Column("action_id", BigInteger, nullable=False, default=0))
