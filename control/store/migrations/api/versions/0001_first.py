# SPDX-License-Identifier: GPL-3.0-or-later
"""First: tables of the api database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make it so."""
    op.create_table(
        "aggregates",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sa.UniqueConstraint("uuid"),
    )
    op.create_table(
        "allocations",
        sa.Column("consumer_id", sa.String(length=36), nullable=False),
        sa.Column("host_id", sa.String(length=36), nullable=False),
        sa.Column("server_id", sa.String(length=36), nullable=False),
        sa.Column("vcpus", sa.Integer(), nullable=False),
        sa.Column("memory_mb", sa.Integer(), nullable=False),
        sa.Column("disk_gb", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.PrimaryKeyConstraint("consumer_id", "host_id"),
    )
    op.create_index("allocations_host", "allocations", ["host_id"], unique=False)
    op.create_index("allocations_server", "allocations", ["server_id"], unique=False)
    op.create_table(
        "cells",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("database_url", sa.Text(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "flavors",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("vcpus", sa.Integer(), nullable=False),
        sa.Column("ram", sa.Integer(), nullable=False),
        sa.Column("disk", sa.Integer(), nullable=False),
        sa.Column("ephemeral", sa.Integer(), nullable=False),
        sa.Column("swap", sa.Integer(), nullable=False),
        sa.Column("rxtx_factor", sa.Float(), nullable=False),
        sa.Column("is_public", sa.Boolean(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("extra_specs", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "identity_domains",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "identity_keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "identity_regions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("parent_region_id", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "identity_revision",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "identity_revocations",
        sa.Column("token_id", sa.String(length=64), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("token_id"),
    )
    op.create_table(
        "identity_roles",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("domain_id", sa.String(length=64), nullable=True),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("options", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "identity_services",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("type", sa.String(length=255), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "images",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("visibility", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.String(length=255), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("virtual_size", sa.BigInteger(), nullable=True),
        sa.Column("disk_format", sa.String(length=16), nullable=True),
        sa.Column("container_format", sa.String(length=16), nullable=True),
        sa.Column("min_disk", sa.Integer(), nullable=False),
        sa.Column("min_ram", sa.Integer(), nullable=False),
        sa.Column("checksum", sa.String(length=32), nullable=True),
        sa.Column("os_hash_value", sa.String(length=128), nullable=True),
        sa.Column("protected", sa.Boolean(), nullable=False),
        sa.Column("os_hidden", sa.Boolean(), nullable=False),
        sa.Column("properties", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("images_created", "images", ["created_at", "id"], unique=False)
    op.create_index("images_owner", "images", ["owner", "created_at"], unique=False)
    op.create_table(
        "keypairs",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("type", sa.String(length=16), nullable=False),
        sa.Column("fingerprint", sa.String(length=255), nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("user_id", "name"),
    )
    op.create_table(
        "networks",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.String(length=255), nullable=False),
        sa.Column("admin_state_up", sa.Boolean(), nullable=False),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("type", sa.String(length=16), nullable=False),
        sa.Column("bridge", sa.String(length=255), nullable=True),
        sa.Column("mtu", sa.Integer(), nullable=False),
        sa.Column("port_security_enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("networks_project", "networks", ["project_id"], unique=False)
    op.create_table(
        "quotas",
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("resource", sa.String(length=255), nullable=False),
        sa.Column("limit", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "resource"),
    )
    op.create_table(
        "security_groups",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.String(length=255), nullable=False),
        sa.Column("stateful", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("security_groups_project", "security_groups", ["project_id"], unique=False)
    op.create_table(
        "server_groups",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("policy", sa.String(length=32), nullable=False),
        sa.Column("rules", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("server_groups_project", "server_groups", ["project_id"], unique=False)
    op.create_table(
        "server_mappings",
        sa.Column("server_id", sa.String(length=36), nullable=False),
        sa.Column("cell_id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=True),
        sa.Column("deleted", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("server_id"),
    )
    op.create_index("server_mappings_project", "server_mappings", ["project_id"], unique=False)
    op.create_table(
        "volume_snapshots",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("description", sa.String(length=255), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("task", sa.String(length=16), nullable=True),
        sa.Column("holder", sa.String(length=36), nullable=True),
        sa.Column("lease_until", sa.String(length=26), nullable=True),
        sa.Column("not_before", sa.String(length=26), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("volume_id", sa.String(length=36), nullable=False),
        sa.Column("bootable", sa.Boolean(), nullable=False),
        sa.Column("volume_type", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("volume_snapshots_project", "volume_snapshots", ["project_id", "created_at", "id"], unique=False)
    op.create_index("volume_snapshots_task", "volume_snapshots", ["task"], unique=False)
    op.create_index("volume_snapshots_volume", "volume_snapshots", ["volume_id"], unique=False)
    op.create_table(
        "volumes",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("description", sa.String(length=255), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("task", sa.String(length=16), nullable=True),
        sa.Column("holder", sa.String(length=36), nullable=True),
        sa.Column("lease_until", sa.String(length=26), nullable=True),
        sa.Column("not_before", sa.String(length=26), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("volume_type", sa.String(length=255), nullable=False),
        sa.Column("availability_zone", sa.String(length=255), nullable=False),
        sa.Column("bootable", sa.Boolean(), nullable=False),
        sa.Column("multiattach", sa.Boolean(), nullable=False),
        sa.Column("readonly", sa.Boolean(), nullable=False),
        sa.Column("image_metadata", sa.Text(), nullable=False),
        sa.Column("image_id", sa.String(length=36), nullable=True),
        sa.Column("snapshot_id", sa.String(length=36), nullable=True),
        sa.Column("source_volid", sa.String(length=36), nullable=True),
        sa.Column("new_size", sa.Integer(), nullable=True),
        sa.Column("previous_status", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("volumes_project", "volumes", ["project_id", "created_at", "id"], unique=False)
    op.create_index("volumes_task", "volumes", ["task"], unique=False)
    op.create_table(
        "aggregate_hosts",
        sa.Column("aggregate_id", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["aggregate_id"], ["aggregates.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("aggregate_id", "host"),
    )
    op.create_table(
        "flavor_projects",
        sa.Column("flavor_number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["flavor_number"], ["flavors.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("flavor_number", "project_id"),
    )
    op.create_table(
        "hosts",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("cell_id", sa.String(length=36), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_reason", sa.String(length=255), nullable=True),
        sa.Column("forced_down", sa.Boolean(), nullable=False),
        sa.Column("vcpus", sa.Integer(), nullable=False),
        sa.Column("memory_mb", sa.Integer(), nullable=False),
        sa.Column("disk_gb", sa.Integer(), nullable=False),
        sa.Column("vcpus_ratio", sa.Float(), nullable=True),
        sa.Column("memory_mb_ratio", sa.Float(), nullable=True),
        sa.Column("disk_gb_ratio", sa.Float(), nullable=True),
        sa.Column("vcpus_reserved", sa.Integer(), nullable=False),
        sa.Column("memory_mb_reserved", sa.Integer(), nullable=False),
        sa.Column("disk_gb_reserved", sa.Integer(), nullable=False),
        sa.Column("vcpus_limit", sa.Integer(), nullable=False),
        sa.Column("memory_mb_limit", sa.Integer(), nullable=False),
        sa.Column("disk_gb_limit", sa.Integer(), nullable=False),
        sa.Column("vcpus_used", sa.Integer(), nullable=False),
        sa.Column("memory_mb_used", sa.Integer(), nullable=False),
        sa.Column("disk_gb_used", sa.Integer(), nullable=False),
        sa.Column("servers", sa.Integer(), nullable=False),
        sa.Column("info", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.ForeignKeyConstraint(
            ["cell_id"],
            ["cells.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sa.UniqueConstraint("number"),
    )
    op.create_table(
        "identity_assignments",
        sa.Column("target", sa.String(length=8), nullable=False),
        sa.Column("target_id", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=8), nullable=False),
        sa.Column("actor_id", sa.String(length=64), nullable=False),
        sa.Column("role_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["role_id"], ["identity_roles.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("target", "target_id", "actor", "actor_id", "role_id"),
    )
    op.create_index("identity_assignments_actor", "identity_assignments", ["actor_id"], unique=False)
    op.create_table(
        "identity_endpoints",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("service_id", sa.String(length=64), nullable=False),
        sa.Column("interface", sa.String(length=8), nullable=False),
        sa.Column("region_id", sa.String(length=64), nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("follows", sa.Text(), nullable=True),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.ForeignKeyConstraint(["service_id"], ["identity_services.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "identity_groups",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("domain_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["domain_id"],
            ["identity_domains.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("domain_id", "name"),
    )
    op.create_table(
        "identity_implications",
        sa.Column("prior_id", sa.String(length=64), nullable=False),
        sa.Column("implied_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["implied_id"], ["identity_roles.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["prior_id"], ["identity_roles.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("prior_id", "implied_id"),
    )
    op.create_table(
        "identity_projects",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("domain_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("parent_id", sa.String(length=64), nullable=True),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["domain_id"],
            ["identity_domains.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("domain_id", "name"),
    )
    op.create_table(
        "identity_users",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("domain_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("password", sa.Text(), nullable=True),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("email", sa.Text(), nullable=True),
        sa.Column("default_project_id", sa.String(length=64), nullable=True),
        sa.Column("options", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["domain_id"],
            ["identity_domains.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("domain_id", "name"),
    )
    op.create_table(
        "image_members",
        sa.Column("image_id", sa.String(length=36), nullable=False),
        sa.Column("member", sa.String(length=255), nullable=False),
        sa.Column("status", sa.String(length=8), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.ForeignKeyConstraint(["image_id"], ["images.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("image_id", "member"),
    )
    op.create_index("image_members_member", "image_members", ["member", "status"], unique=False)
    op.create_table(
        "image_tags",
        sa.Column("image_id", sa.String(length=36), nullable=False),
        sa.Column("tag", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["image_id"], ["images.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("image_id", "tag"),
    )
    op.create_table(
        "ports",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.String(length=255), nullable=False),
        sa.Column("network_id", sa.String(length=36), nullable=False),
        sa.Column("mac_address", sa.String(length=17), nullable=False),
        sa.Column("admin_state_up", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("device_id", sa.String(length=255), nullable=False),
        sa.Column("device_owner", sa.String(length=255), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("vnic_type", sa.String(length=32), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("security_groups", sa.Text(), nullable=False),
        sa.Column("port_security_enabled", sa.Boolean(), nullable=False),
        sa.Column("made_for_server", sa.Boolean(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=True),
        sa.Column("tag", sa.String(length=60), nullable=True),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.ForeignKeyConstraint(
            ["network_id"],
            ["networks.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("mac_address"),
    )
    op.create_index("ports_device", "ports", ["device_id"], unique=False)
    op.create_index("ports_network", "ports", ["network_id"], unique=False)
    op.create_index("ports_project", "ports", ["project_id"], unique=False)
    op.create_table(
        "security_group_rules",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("security_group_id", sa.String(length=36), nullable=False),
        sa.Column("direction", sa.String(length=8), nullable=False),
        sa.Column("ethertype", sa.String(length=4), nullable=False),
        sa.Column("protocol", sa.String(length=40), nullable=True),
        sa.Column("port_range_min", sa.Integer(), nullable=True),
        sa.Column("port_range_max", sa.Integer(), nullable=True),
        sa.Column("remote_ip_prefix", sa.String(length=43), nullable=True),
        sa.Column("remote_group_id", sa.String(length=36), nullable=True),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.ForeignKeyConstraint(["security_group_id"], ["security_groups.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("security_group_rules_group", "security_group_rules", ["security_group_id"], unique=False)
    op.create_table(
        "server_group_members",
        sa.Column("group_id", sa.String(length=36), nullable=False),
        sa.Column("server_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["server_groups.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("group_id", "server_id"),
    )
    op.create_index("server_group_members_server", "server_group_members", ["server_id"], unique=False)
    op.create_table(
        "subnets",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.String(length=255), nullable=False),
        sa.Column("network_id", sa.String(length=36), nullable=False),
        sa.Column("cidr", sa.String(length=43), nullable=False),
        sa.Column("gateway_ip", sa.String(length=45), nullable=True),
        sa.Column("enable_dhcp", sa.Boolean(), nullable=False),
        sa.Column("allocation_pools", sa.Text(), nullable=False),
        sa.Column("dns_nameservers", sa.Text(), nullable=False),
        sa.Column("host_routes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.ForeignKeyConstraint(["network_id"], ["networks.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("subnets_network", "subnets", ["network_id"], unique=False)
    op.create_table(
        "volume_attachments",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("volume_id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=255), nullable=False),
        sa.Column("server_id", sa.String(length=36), nullable=True),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("device", sa.String(length=255), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("mode", sa.String(length=4), nullable=False),
        sa.Column("connector", sa.Text(), nullable=True),
        sa.Column("attached_at", sa.String(length=26), nullable=True),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.ForeignKeyConstraint(["volume_id"], ["volumes.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("volume_attachments_server", "volume_attachments", ["server_id"], unique=False)
    op.create_index("volume_attachments_volume", "volume_attachments", ["volume_id"], unique=False)
    op.create_table(
        "identity_application_credentials",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("extra", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=26), nullable=False),
        sa.Column("updated_at", sa.String(length=26), nullable=True),
        sa.Column("user_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("unrestricted", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.String(length=26), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["identity_projects.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["user_id"], ["identity_users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("user_id", "name"),
    )
    op.create_table(
        "identity_members",
        sa.Column("group_id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["identity_groups.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["user_id"], ["identity_users.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("group_id", "user_id"),
    )
    op.create_index("identity_members_user", "identity_members", ["user_id"], unique=False)
    op.create_table(
        "port_addresses",
        sa.Column("subnet_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("port_id", sa.String(length=36), nullable=False),
        sa.Column("ip_address", sa.String(length=45), nullable=False),
        sa.ForeignKeyConstraint(["port_id"], ["ports.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["subnet_id"],
            ["subnets.id"],
        ),
        sa.PrimaryKeyConstraint("subnet_id", "number"),
    )
    op.create_index("port_addresses_port", "port_addresses", ["port_id"], unique=False)
