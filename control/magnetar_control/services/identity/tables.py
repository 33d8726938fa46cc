# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of the embedded identity service, in the API database. Tokens have no rows; see ``tokens``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint

from magnetar_control.store.engine.json_column import JsonColumn
from magnetar_control.store.engine.tables import API, NAME, TIME, timestamp_columns

ID = String(64)


def resource_columns() -> tuple[Column[Any], ...]:
    """Return the columns that the tables of all resource types have: ``id``, ``extra`` (JSON of keys without a column),
    ``created_at`` and ``updated_at``."""
    return (Column("id", ID, primary_key=True), Column("extra", JsonColumn, nullable=False, default=dict),
            *timestamp_columns())


def enabled_columns() -> tuple[Column[Any], ...]:
    """Return the columns ``enabled`` and ``epoch``. ``epoch`` counts the events that invalidate tokens: a token that
    was issued with a lower epoch is invalid."""
    return Column("enabled", Boolean, nullable=False, default=True), Column("epoch", Integer, nullable=False, default=0)


domains = Table(
    "identity_domains", API, *resource_columns(), *enabled_columns(), Column("name", NAME, unique=True, nullable=False),
    Column("description", Text))

projects = Table(
    "identity_projects", API, *resource_columns(), *enabled_columns(),
    Column("domain_id", ID, ForeignKey("identity_domains.id"), nullable=False),
    Column("name", NAME, nullable=False), Column("description", Text), Column("parent_id", ID),
    Column("tags", JsonColumn, nullable=False, default=list),
    Column("options", JsonColumn, nullable=False, default=dict),
    UniqueConstraint("domain_id", "name"))

users = Table(
    "identity_users", API, *resource_columns(), *enabled_columns(),
    Column("domain_id", ID, ForeignKey("identity_domains.id"), nullable=False),
    Column("name", NAME, nullable=False), Column("password", Text), Column("description", Text), Column("email", Text),
    Column("default_project_id", ID), Column("options", JsonColumn, nullable=False, default=dict),
    UniqueConstraint("domain_id", "name"))

groups = Table(
    "identity_groups", API, *resource_columns(), Column("domain_id", ID, ForeignKey("identity_domains.id"),
                                                        nullable=False),
    Column("name", NAME, nullable=False), Column("description", Text), UniqueConstraint("domain_id", "name"))

members = Table(
    "identity_members", API,
    Column("group_id", ID, ForeignKey("identity_groups.id", ondelete="CASCADE"), primary_key=True),
    Column("user_id", ID, ForeignKey("identity_users.id", ondelete="CASCADE"), primary_key=True),
    Index("identity_members_user", "user_id"))

roles = Table(
    "identity_roles", API, *resource_columns(), Column("name", NAME, unique=True, nullable=False),
    Column("domain_id", ID),
    Column("description", Text), Column("options", JsonColumn, nullable=False, default=dict))

#: Implied roles: a user with the role ``prior_id`` also has ``implied_id``.
implications = Table(
    "identity_implications", API,
    Column("prior_id", ID, ForeignKey("identity_roles.id", ondelete="CASCADE"), primary_key=True),
    Column("implied_id", ID, ForeignKey("identity_roles.id", ondelete="CASCADE"), primary_key=True))

#: ``actor``: user or group; ``target``: project, domain or system (whose id is ``all``).
assignments = Table(
    "identity_assignments", API,
    Column("target", String(8), primary_key=True), Column("target_id", ID, primary_key=True),
    Column("actor", String(8), primary_key=True), Column("actor_id", ID, primary_key=True),
    Column("role_id", ID, ForeignKey("identity_roles.id", ondelete="CASCADE"), primary_key=True),
    Index("identity_assignments_actor", "actor_id"))

#: ``key``: of account and address (``login_failures.failure_keys``). ``last_at``: seconds since 1970.
login_failures = Table(
    "identity_login_failures", API, Column("key", ID, primary_key=True),
    Column("failures", Integer, nullable=False), Column("last_at", Float, nullable=False, index=True))

regions = Table("identity_regions", API, *resource_columns(), Column("description", Text),
                Column("parent_region_id", ID))

services = Table(
    "identity_services", API, *resource_columns(), Column("name", NAME), Column("type", NAME, nullable=False),
    Column("description", Text), Column("enabled", Boolean, nullable=False, default=True))

#: ``follows``: the prefix of the URL that is replaced by the host of the client's request; null for an administrator's
#: own URL.
endpoints = Table(
    "identity_endpoints", API, *resource_columns(),
    Column("service_id", ID, ForeignKey("identity_services.id", ondelete="CASCADE"), nullable=False),
    Column("interface", String(8), nullable=False), Column("region_id", ID), Column("url", Text, nullable=False),
    Column("enabled", Boolean, nullable=False, default=True), Column("follows", Text), Column("name", NAME))

credentials = Table(
    "identity_application_credentials", API, *resource_columns(),
    Column("user_id", ID, ForeignKey("identity_users.id", ondelete="CASCADE"), nullable=False),
    Column("project_id", ID, ForeignKey("identity_projects.id", ondelete="CASCADE"), nullable=False),
    Column("name", NAME, nullable=False), Column("secret", Text, nullable=False), Column("description", Text),
    Column("roles", JsonColumn, nullable=False), Column("unrestricted", Boolean, nullable=False, default=False),
    Column("expires_at", TIME), UniqueConstraint("user_id", "name"))

#: ``remaining_uses``: null without a limit. ``redelegation_count``: how often the trust can still be redelegated.
trusts = Table(
    "identity_trusts", API, *resource_columns(),
    Column("trustor_user_id", ID, ForeignKey("identity_users.id", ondelete="CASCADE"), nullable=False),
    Column("trustee_user_id", ID, ForeignKey("identity_users.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("project_id", ID, ForeignKey("identity_projects.id", ondelete="CASCADE"), index=True),
    Column("redelegated_trust_id", ID, ForeignKey("identity_trusts.id", ondelete="CASCADE"), index=True),
    Column("impersonation", Boolean, nullable=False), Column("roles", JsonColumn, nullable=False),
    Column("expires_at", TIME), Column("remaining_uses", Integer),
    Column("redelegation_count", Integer, nullable=False),
    UniqueConstraint("trustor_user_id", "trustee_user_id", "project_id", "impersonation", "expires_at"))

#: Tokens that were revoked before they expired; a row may be removed when ``expires`` has passed.
revocations = Table(
    "identity_revocations", API, Column("token_id", ID, primary_key=True), Column("expires", Float, nullable=False))

keys = Table(
    "identity_keys", API, Column("id", ID, primary_key=True), Column("secret", Text, nullable=False),
    Column("created_at", TIME, nullable=False))

#: One row with the number of all changes, so that other processes detect that their caches are outdated.
revision = Table(
    "identity_revision", API, Column("id", Integer, primary_key=True), Column("number", Integer, nullable=False))
