# SPDX-License-Identifier: GPL-3.0-or-later
"""First: tables of the cell database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make it so."""
    op.create_table(
        "actions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("request_id", sa.String(length=255), nullable=False),
        sa.Column("server_id", sa.String(length=36), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("start_time", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("holder", sa.String(length=255), nullable=True),
        sa.Column("lease_until", sa.String(length=26), nullable=True),
        sa.Column("not_before", sa.String(length=26), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("cancel", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("server_id", "request_id", "action"),
    )
    op.create_index("actions_queue", "actions", ["state", "id"], unique=False)
    op.create_index("actions_server", "actions", ["server_id", "id"], unique=False)
    op.create_table(
        "conductors",
        sa.Column("holder", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("started_at", sa.String(length=26), nullable=True),
        sa.Column("seen_at", sa.String(length=26), nullable=False),
        sa.PrimaryKeyConstraint("holder"),
    )
    op.create_table(
        "host_states",
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("watcher", sa.String(length=255), nullable=True),
        sa.Column("lease_until", sa.String(length=26), nullable=True),
        sa.Column("seen_at", sa.String(length=26), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("host"),
    )
    op.create_table(
        "migrations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("server_id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("type", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("source", sa.String(length=255), nullable=False),
        sa.Column("target", sa.String(length=255), nullable=True),
        sa.Column("old_flavor", sa.Text(), nullable=True),
        sa.Column("new_flavor", sa.Text(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("old_vm_state", sa.String(length=32), nullable=True),
        sa.Column("asked", sa.String(length=16), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("uuid"),
    )
    op.create_index("migrations_server", "migrations", ["server_id", "id"], unique=False)
    op.create_index("migrations_status", "migrations", ["status"], unique=False)
    op.create_table(
        "servers",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.String(length=255), nullable=True),
        sa.Column("hostname", sa.String(length=255), nullable=True),
        sa.Column("vm_state", sa.String(length=32), nullable=False),
        sa.Column("task_state", sa.String(length=32), nullable=True),
        sa.Column("power_state", sa.Integer(), nullable=False),
        sa.Column("progress", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("instance_name", sa.String(length=255), nullable=True),
        sa.Column("availability_zone", sa.String(length=255), nullable=True),
        sa.Column("pinned_availability_zone", sa.String(length=255), nullable=True),
        sa.Column("flavor_id", sa.String(length=255), nullable=False),
        sa.Column("flavor", sa.Text(), nullable=False),
        sa.Column("image_id", sa.String(length=36), nullable=True),
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("key_name", sa.String(length=255), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("user_data", sa.Text(), nullable=True),
        sa.Column("config_drive", sa.Boolean(), nullable=False),
        sa.Column("locked_by", sa.String(length=8), nullable=True),
        sa.Column("locked_reason", sa.String(length=255), nullable=True),
        sa.Column("access_ip_v4", sa.String(length=45), nullable=True),
        sa.Column("access_ip_v6", sa.String(length=45), nullable=True),
        sa.Column("disk_config", sa.String(length=8), nullable=False),
        sa.Column("root_device_name", sa.String(length=255), nullable=True),
        sa.Column("reservation_id", sa.String(length=16), nullable=True),
        sa.Column("launch_index", sa.Integer(), nullable=False),
        sa.Column("security_groups", sa.Text(), nullable=False),
        sa.Column("interfaces", sa.Text(), nullable=False),
        sa.Column("addresses", sa.Text(), nullable=False),
        sa.Column("volumes", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("hints", sa.Text(), nullable=False),
        sa.Column("trusted_certs", sa.Text(), nullable=True),
        sa.Column("old_flavor", sa.Text(), nullable=True),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.Column("launched_at", sa.String(length=26), nullable=True),
        sa.Column("terminated_at", sa.String(length=26), nullable=True),
        sa.Column("deleted_at", sa.String(length=26), nullable=True),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("servers_created", "servers", ["created_at", "id"], unique=False)
    op.create_index("servers_host", "servers", ["host"], unique=False)
    op.create_index("servers_project", "servers", ["project_id", "created_at", "id"], unique=False)
    op.create_index("servers_task", "servers", ["task_state"], unique=False)
    op.create_table(
        "action_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("action_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("event", sa.String(length=255), nullable=False),
        sa.Column("start_time", sa.String(length=26), nullable=False),
        sa.Column("finish_time", sa.String(length=26), nullable=True),
        sa.Column("result", sa.String(length=16), nullable=True),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("traceback", sa.Text(), nullable=True),
        sa.Column("details", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["action_id"], ["actions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("action_events_action", "action_events", ["action_id", "id"], unique=False)
