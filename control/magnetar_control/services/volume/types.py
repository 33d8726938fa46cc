# SPDX-License-Identifier: GPL-3.0-or-later
"""Volume types: one for each pool of the agents, derived from the settings, and types that administrators create.

A volume stores its type by name, and the type's pool, ``multiattach`` and encryption at the time of creation. So pool,
``multiattach`` and encryption cannot change while volumes have the type (Cinder: ``allow_inuse_volume_type_modification
= False``).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.exc import IntegrityError

from magnetar_control.services import Context
from magnetar_control.store.engine.database import Database, insert_if_absent, utc_now
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidRequest, NotFound
from magnetar_core.matching import matches_extra_spec

from .tables import snapshots, type_projects, types, volumes
from .type_specs import MULTIATTACH, POOL, TRUTH, check_bounds, check_volume, names_capability

#: Namespace of the uuids of the pools' types.
NAMESPACE = uuid.UUID("0d4f4a51-7b3f-5a55-8f0c-2f9f4d1d9c07")
#: Extra specs that callers without the role admin see, as in Cinder.
SHOWN_TO_ALL = (MULTIATTACH,)


@dataclass(frozen=True)
class VolumeType:
    """A volume type. *pool*: the name of the pool of its volumes, unless ``chooses`` is true: then one of *pools* is
    chosen for each volume. *is_fixed*: whether the type is derived from a pool in the settings, and is not in the
    database."""

    id: str
    name: str
    pool: str
    description: str | None = None
    is_public: bool = True
    is_fixed: bool = True
    extra_specs: Mapping[str, str] = field(default_factory=dict)
    encryption: Mapping[str, Any] | None = None
    pools: Sequence[str] = ()

    @property
    def chooses(self) -> bool:
        """Return whether a pool is chosen for each new volume: the type allows several pools, or its extra specs
        require capabilities."""
        return len(self.pools) > 1 or bool(self.pools and any(map(names_capability, self.extra_specs)))

    def check_volume(self, size: int, zone: str) -> None:
        """Raise ``InvalidRequest`` if a volume of *size* GiB in the availability zone *zone* cannot fulfil the type's
        extra specs. If the type chooses a pool for each volume, the required capabilities are checked then, and not
        here."""
        if self.chooses:
            check_bounds(self.name, self.extra_specs, size, zone)
        else:
            check_volume(self.name, self.extra_specs, self.pool, size, zone)

    @property
    def multiattach(self) -> bool:
        """Return whether several servers may have a volume of this type at the same time."""
        return TRUTH.get(self.extra_specs.get(MULTIATTACH, "").lower(), False)


class TypeStore:
    """The operations on volume types. *pools*: the names of the agents' storage pools (their setting ``pools``); each
    pool is also a volume type, and the first one is the default type."""

    def __init__(self, database: Database, pools: Sequence[str]) -> None:
        self.database, self.pools = database, pools

    def every(self, context: Context, is_public: bool | None = None) -> list[VolumeType]:
        """Return the volume types that *context* may use. *is_public*: for administrators, return only public (true) or
        private types (false); ``None``: all."""
        with self.database.read() as connection:
            volume_types = self._all(connection, context)
        return [volume_type for volume_type in volume_types if is_public in (None, volume_type.is_public)
                or not context.is_admin]

    def find(self, context: Context, name_or_id: str | None) -> VolumeType:
        """Return the volume type with the name or uuid *name_or_id*; ``None``: the default type. Raises ``NotFound`` if
        there is none that *context* may use."""
        with self.database.read() as connection:
            return self._seen(connection, context, name_or_id)

    def has(self, context: Context, name_or_id: str) -> bool:
        """Return whether a type with the name or uuid *name_or_id* exists that *context* may use."""
        try:
            return bool(self.find(context, name_or_id))
        except NotFound:
            return False

    def of(self, name: str) -> VolumeType:
        """Return the volume type called *name*, even if the caller may not use it. If there is no such type, return the
        type of a pool with this name, even if the pool no longer exists."""
        with self.database.read() as connection:
            row = connection.execute(select(types).where(types.c.name == name)).mappings().first()
        return self._of(row) if row else self._of_pool(name)

    def admitted(self) -> dict[str, list[str]]:
        """Return which projects may use private types: {uuid of the type: ids of projects}."""
        projects_by_type: dict[str, list[str]] = {}
        with self.database.read() as connection:
            for row in connection.execute(select(type_projects).order_by(type_projects.c.project_id)):
                projects_by_type.setdefault(row.type_id, []).append(row.project_id)
        return projects_by_type

    def check(self, name: str) -> None:
        """Raise the ``Conflict`` that ``create`` raises if another type has this *name*."""
        with self.database.read() as connection:
            self._check_free(connection, name)

    def check_change(self, context: Context, name_or_id: str, *, must_be_unused: bool) -> None:
        """Raise the error that a change or deletion of the type would raise, without changing anything.
        *must_be_unused*: also raise an error while volumes have the type, as for a deletion or a change of its
        encryption."""
        with self.database.read() as connection:
            (self._unused if must_be_unused else self._made)(connection, context, name_or_id)

    def create(self, context: Context, name: str, description: str | None = None, is_public: bool = True,
               extra_specs: Mapping[str, str] | None = None) -> VolumeType:
        """Create and return a type. Any extra specs are accepted (see ``type_specs`` for their effect). Raises
        ``Conflict`` when another type has the name."""
        specs = dict(extra_specs or {})
        with self.database.write() as connection:
            self._check_free(connection, name)
            id = str(uuid.uuid4())
            if not insert_if_absent(connection, types, id=id, name=name, description=description, is_public=is_public,
                                    created_at=utc_now(), extra_specs=specs):
                raise _exists(name)  # created meanwhile
            return self._seen(connection, context, id)

    def update(self, context: Context, name_or_id: str, values: Mapping[str, Any]) -> VolumeType:
        """Change name, description or is_public (in *values*) of a type, and return it. Existing volumes of the type
        show the new name too."""
        try:
            with self.database.write() as connection:
                volume_type = self._made(connection, context, name_or_id)
                name = values.get("name", volume_type.name)
                if name != volume_type.name:
                    self._check_free(connection, name)
                    for table in (volumes, snapshots):
                        connection.execute(update(table).where(table.c.volume_type == volume_type.name).values(
                            volume_type=name))
                connection.execute(update(types).where(types.c.id == volume_type.id).values(updated_at=utc_now(),
                                                                                            **values))
                return self._seen(connection, context, volume_type.id)
        except IntegrityError:
            raise _exists(values["name"]) from None  # another type got that name meanwhile

    def delete(self, context: Context, name_or_id: str) -> None:
        """Delete a volume type. Raises ``NotFound``, and ``InvalidRequest`` while volumes or snapshots have the type.
        """
        with self.database.write() as connection:
            volume_type = self._unused(connection, context, name_or_id)
            connection.execute(delete(types).where(types.c.id == volume_type.id))

    def change_specs(self, context: Context, name_or_id: str, change: Callable[[Document], Document]) -> Document:
        """Change the extra specs of a type, and return the new extra specs. *change*: a function from the present extra
        specs to the new ones."""
        with self.database.write() as connection:
            volume_type = self._unused(connection, context, name_or_id)
            specs = change({**volume_type.extra_specs})
            connection.execute(update(types).where(types.c.id == volume_type.id).values(
                extra_specs=specs, updated_at=utc_now()))
            return specs

    def encrypt(self, context: Context, name_or_id: str, values: Mapping[str, Any] | None) -> VolumeType:
        """Set the encryption of new volumes of a type to *values*, or remove it (``None``). Return the type. Raises
        ``NotFound`` when there is no encryption to remove, ``InvalidRequest`` while volumes have the type."""
        with self.database.write() as connection:
            volume_type = self._unused(connection, context, name_or_id)
            if values is None and volume_type.encryption is None:
                raise NotFound(f"Volume type {volume_type.name} has no encryption.")
            encryption = None if values is None else {
                "encryption_id": (volume_type.encryption or {}).get("encryption_id") or str(uuid.uuid4()), **values}
            connection.execute(update(types).where(types.c.id == volume_type.id).values(
                encryption=encryption, updated_at=utc_now()))
            return self._seen(connection, context, volume_type.id)

    def projects(self, context: Context, name_or_id: str) -> list[str]:
        """Return the ids of the projects that may use a private type. Raises ``NotFound`` for a public type, as Cinder
        does."""
        with self.database.read() as connection:
            volume_type = self._private(connection, context, name_or_id)
            return sorted(connection.execute(select(type_projects.c.project_id).where(
                type_projects.c.type_id == volume_type.id)).scalars())

    def admit(self, context: Context, name_or_id: str, project_id: str) -> None:
        """Give a project access to a private type. Raises ``Conflict`` if it has access already."""
        with self.database.write() as connection:
            volume_type = self._private(connection, context, name_or_id)
            if not insert_if_absent(connection, type_projects, type_id=volume_type.id, project_id=project_id):
                raise Conflict(f"Volume type access for {volume_type.id} / {project_id} combination already exists.")

    def expel(self, context: Context, name_or_id: str, project_id: str) -> None:
        """Remove a project's access to a private type. Existing volumes of the project do not change. Raises
        ``NotFound`` if the project has no access."""
        with self.database.write() as connection:
            volume_type = self._private(connection, context, name_or_id)
            if not self._admits(connection, volume_type.id, project_id):
                raise NotFound(f"Volume type access not found for {volume_type.id} / {project_id} combination.")
            connection.execute(delete(type_projects).where(
                type_projects.c.type_id == volume_type.id, type_projects.c.project_id == project_id))

    def _all(self, connection: Connection, context: Context) -> list[VolumeType]:
        query = select(types).order_by(types.c.created_at, types.c.id)
        if not context.is_admin:
            query = query.where(types.c.is_public | types.c.id.in_(
                select(type_projects.c.type_id).where(type_projects.c.project_id == (context.project_id or ""))))
        made = [self._of(row) for row in connection.execute(query).mappings()]
        return [*map(self._of_pool, self.pools), *made]

    def _of_pool(self, name: str) -> VolumeType:
        return VolumeType(_id(name), name, name, f"Volumes in the pool {name} of a compute host.")

    def _of(self, row: Mapping[Any, Any]) -> VolumeType:
        specs = row["extra_specs"]
        pools = [pool for pool in self.pools if POOL not in specs or matches_extra_spec(pool, specs[POOL])]
        if POOL not in specs and not any(map(names_capability, specs)):
            pools = pools[:1]  # nothing to choose by
        return VolumeType(row["id"], row["name"], pools[0] if pools else self.pools[0], row["description"],
                          row["is_public"], False, specs, row["encryption"], tuple(pools))

    def _seen(self, connection: Connection, context: Context, name_or_id: str | None) -> VolumeType:
        volume_types = self._all(connection, context)
        if not name_or_id:
            return volume_types[0]
        volume_type = next((volume_type for volume_type in volume_types if name_or_id == volume_type.id), None) or next(
            (volume_type for volume_type in volume_types if name_or_id == volume_type.name), None)
        if volume_type is None:
            raise NotFound(f"Volume type {name_or_id[:80]} could not be found. There are: "
                           f"{', '.join(volume_type.name for volume_type in volume_types[:20])}.")
        return volume_type

    def _made(self, connection: Connection, context: Context, name_or_id: str) -> VolumeType:
        volume_type = self._seen(connection, context, name_or_id)
        if volume_type.is_fixed:
            raise InvalidRequest(
                f"Volume type {volume_type.name} stands for the pool of that name in the agents' setting "
                                 "pools, and follows from it. Make another one with the extra spec "
                                 f"{POOL}={volume_type.pool}.")
        return volume_type

    def _private(self, connection: Connection, context: Context, name_or_id: str) -> VolumeType:
        volume_type = self._seen(connection, context, name_or_id)
        if volume_type.is_public:
            raise NotFound(f"Access list not available for public volume types; {volume_type.name} is one.")
        return volume_type

    def _unused(self, connection: Connection, context: Context, name_or_id: str) -> VolumeType:
        volume_type = self._made(connection, context, name_or_id)
        for table in (volumes, snapshots):
            if connection.execute(select(table.c.id).where(table.c.volume_type == volume_type.name).limit(1)).first():
                raise InvalidRequest(f"Target volume type is still in use: {table.name.replace('_', ' ')} have the "
                                     f"type {volume_type.name}. Make another type for new volumes.")
        return volume_type

    def _check_free(self, connection: Connection, name: str) -> None:
        if name in self.pools or connection.execute(select(types.c.id).where(types.c.name == name)).first():
            raise _exists(name)

    @staticmethod
    def _admits(connection: Connection, id: str, project_id: str) -> bool:
        return connection.execute(select(type_projects).where(
            type_projects.c.type_id == id, type_projects.c.project_id == project_id)).first() is not None


def _exists(name: str) -> Conflict:
    return Conflict(f"Volume Type {name} already exists.")


def type_ids_of_names(connection: Connection, names: Iterable[str]) -> dict[str, str]:
    """Return the uuids of the volume types with these *names*: {name: uuid}. A name that is not in the table is the
    name of a pool, whose type has a derived uuid."""
    distinct_names = set(names)
    made = {row.name: row.id for row in connection.execute(
        select(types.c.name, types.c.id).where(types.c.name.in_(distinct_names)))} if distinct_names else {}
    return {name: made.get(name) or _id(name) for name in distinct_names}


def _id(pool: str) -> str:
    return str(uuid.uuid5(NAMESPACE, pool))
