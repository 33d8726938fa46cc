# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of the embedded image service, in the API database. The content is in files; see ``content``."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, Text

from magnetar_control.store.engine.json_column import JsonColumn
from magnetar_control.store.engine.tables import API, NAME, TIME, UUID, timestamp_columns

images = Table(
    "images", API,
    Column("id", UUID, primary_key=True), Column("name", NAME), Column("status", String(16), nullable=False),
    Column("visibility", String(16), nullable=False), Column("owner", NAME), Column("size", BigInteger),
    Column("virtual_size", BigInteger), Column("disk_format", String(16)), Column("container_format", String(16)),
    Column("min_disk", Integer, nullable=False, default=0), Column("min_ram", Integer, nullable=False, default=0),
    Column("checksum", String(32)), Column("os_hash_value", String(128)),
    Column("protected", Boolean, nullable=False, default=False),
    Column("os_hidden", Boolean, nullable=False, default=False),
    Column("properties", JsonColumn, nullable=False, default=dict), Column("why", Text),  # why the status is killed
    *timestamp_columns(), Index("images_owner", "owner", "created_at"), Index("images_created", "created_at", "id"))

#: The projects that a shared image is shared with; ``status``: pending, accepted, rejected.
members = Table(
    "image_members", API, Column("image_id", UUID, ForeignKey("images.id", ondelete="CASCADE"), primary_key=True),
    Column("member", NAME, primary_key=True), Column("status", String(8), nullable=False), *timestamp_columns(),
    Index("image_members_member", "member", "status"))

tags = Table(
    "image_tags", API, Column("image_id", UUID, ForeignKey("images.id", ondelete="CASCADE"), primary_key=True),
    Column("tag", NAME, primary_key=True))

#: Bytes of a project's quota that a running upload claims, before its image has a size. The image may have been removed
#: meanwhile.
uploads = Table("image_uploads", API, Column("image_id", UUID, primary_key=True),
                Column("size", BigInteger, nullable=False))

#: Ids of deleted images. No id is used again: hosts may still have the content, and scripts the id.
deleted = Table("deleted_images", API, Column("id", UUID, primary_key=True), Column("deleted_at", TIME, nullable=False))
