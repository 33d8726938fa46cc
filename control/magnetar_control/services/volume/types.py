# SPDX-License-Identifier: GPL-3.0-or-later
"""Volume types: one for each pool of the agents, which follow from the settings, and those that administrators make.

A volume notes its type by name, and the pool, ``multiattach`` and encryption that the type said when it was made; so a
type cannot be changed in these while volumes have it (Cinder: ``allow_inuse_volume_type_modification = False``).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import Connection, delete, select, update
from sqlalchemy.exc import IntegrityError

from magnetar_control.services import Context, Document
from magnetar_control.store.engine.database import Database, added, now
from magnetar_core.errors import Conflict, InvalidRequest, NotFound
from magnetar_core.matching import matches

from .rows import document
from .tables import snapshots, type_projects, types, volumes
from .type_specs import MULTIATTACH, POOL, TRUTH, check_volume

#: Of the uuids of the types of pools.
NAMESPACE = uuid.UUID("0d4f4a51-7b3f-5a55-8f0c-2f9f4d1d9c07")
#: Those that callers who are no administrators see, as in Cinder.
SHOWN_TO_ALL = (MULTIATTACH,)


@dataclass(frozen=True)
class VolumeType:
    """A type: the *pool* of its volumes, and whether it *is_fixed*, which that of a pool is."""

    id: str
    name: str
    pool: str
    description: str | None = None
    is_public: bool = True
    is_fixed: bool = True
    extra_specs: Mapping[str, str] = field(default_factory=dict)
    encryption: Mapping[str, Any] | None = None

    def check_volume(self, size: int, zone: str) -> None:
        """Raise ``InvalidRequest`` where a volume of *size* GiB would lack what the type's extra specs ask for."""
        check_volume(self.name, self.extra_specs, self.pool, size, zone)

    @property
    def multiattach(self) -> bool:
        """Whether several servers may have its volumes at once."""
        return TRUTH.get(self.extra_specs.get(MULTIATTACH, "").lower(), False)


class TypeStore:
    """*pools* are the agents' (their setting ``pools``), of which the first is the default type."""

    def __init__(self, database: Database, pools: Sequence[str]) -> None:
        self.database, self.pools = database, pools

    def every(self, context: Context, is_public: bool | None = None) -> list[VolumeType]:
        """Those that *context* may use; for administrators all, or those that are public, or not."""
        with self.database.read() as connection:
            found = self._all(connection, context)
        return [one for one in found if is_public in (None, one.is_public) or not context.is_admin]

    def find(self, context: Context, given: str | None) -> VolumeType:
        """The type that *given* (a name, a uuid, or nothing: the default) is. Raises ``NotFound``."""
        with self.database.read() as connection:
            return self._seen(connection, context, given)

    def has(self, context: Context, given: str) -> bool:
        """Whether there is one that *context* may use."""
        try:
            return bool(self.find(context, given))
        except NotFound:
            return False

    def of(self, name: str) -> VolumeType:
        """The type of a volume, whoever may use it; that of a pool which may be no more, where none has the name."""
        with self.database.read() as connection:
            row = connection.execute(select(types).where(types.c.name == name)).mappings().first()
        return self._of(row) if row else self._of_pool(name)

    def admitted(self) -> dict[str, list[str]]:
        """The projects that may use types which are not public, by the types' uuids."""
        found: dict[str, list[str]] = {}
        with self.database.read() as connection:
            for row in connection.execute(select(type_projects).order_by(type_projects.c.project_id)):
                found.setdefault(row.type_id, []).append(row.project_id)
        return found

    def check(self, name: str) -> None:
        """Raises what ``create`` would of a *name* that is to be free."""
        with self.database.read() as connection:
            self._check_free(connection, name)

    def check_change(self, context: Context, given: str, *, anew: bool) -> None:
        """Raises what a change would; *anew*: of what its volumes were made with, or its removal."""
        with self.database.read() as connection:
            (self._unused if anew else self._made)(connection, context, given)

    def create(self, context: Context, name: str, description: str | None = None, is_public: bool = True,
               extra_specs: Mapping[str, str] | None = None) -> VolumeType:
        """Raises ``Conflict`` where the name is taken. Extra specs may say anything: see ``type_specs``."""
        specs = dict(extra_specs or {})
        with self.database.write() as connection:
            self._check_free(connection, name)
            id = str(uuid.uuid4())
            if not added(connection, types, id=id, name=name, description=description, is_public=is_public,
                         created_at=now(), extra_specs=orjson.dumps(specs).decode()):
                raise _exists(name)  # it was made meanwhile
            return self._seen(connection, context, id)

    def update(self, context: Context, given: str, values: Mapping[str, Any]) -> VolumeType:
        """Change name, description, is_public. Its volumes go by the new name at once."""
        try:
            with self.database.write() as connection:
                one = self._made(connection, context, given)
                name = values.get("name", one.name)
                if name != one.name:
                    self._check_free(connection, name)
                    for table in (volumes, snapshots):
                        connection.execute(update(table).where(table.c.volume_type == one.name).values(
                            volume_type=name))
                connection.execute(update(types).where(types.c.id == one.id).values(updated_at=now(), **values))
                return self._seen(connection, context, one.id)
        except IntegrityError:
            raise _exists(values["name"]) from None  # another one was given that name meanwhile

    def delete(self, context: Context, given: str) -> None:
        """Raises ``InvalidRequest`` while volumes or snapshots have it."""
        with self.database.write() as connection:
            one = self._unused(connection, context, given)
            connection.execute(delete(types).where(types.c.id == one.id))

    def change_specs(self, context: Context, given: str, change: Callable[[Document], Document]) -> Document:
        """Set its extra specs to what *change* makes of them; those that it has then."""
        with self.database.write() as connection:
            one = self._unused(connection, context, given)
            specs = change({**one.extra_specs})
            connection.execute(update(types).where(types.c.id == one.id).values(
                extra_specs=orjson.dumps(specs).decode(), updated_at=now()))
            return specs

    def encrypt(self, context: Context, given: str, values: Mapping[str, Any] | None) -> VolumeType:
        """Have new volumes of the type encrypted as *values* say, or no more. Raises ``NotFound`` where they are not to
        be any more, and are not, ``InvalidRequest`` while volumes have the type."""
        with self.database.write() as connection:
            one = self._unused(connection, context, given)
            if values is None and one.encryption is None:
                raise NotFound(f"Volume type {one.name} has no encryption.")
            told = None if values is None else {
                "encryption_id": (one.encryption or {}).get("encryption_id") or str(uuid.uuid4()), **values}
            connection.execute(update(types).where(types.c.id == one.id).values(
                encryption=told and orjson.dumps(told).decode(), updated_at=now()))
            return self._seen(connection, context, one.id)

    def projects(self, context: Context, given: str) -> list[str]:
        """The projects that may use a type that is not public. Raises ``NotFound`` for a public one, as Cinder does."""
        with self.database.read() as connection:
            one = self._private(connection, context, given)
            return sorted(connection.execute(select(type_projects.c.project_id).where(
                type_projects.c.type_id == one.id)).scalars())

    def admit(self, context: Context, given: str, project_id: str) -> None:
        """Let a project use a type that is not public. Raises ``Conflict`` where it may."""
        with self.database.write() as connection:
            one = self._private(connection, context, given)
            if not added(connection, type_projects, type_id=one.id, project_id=project_id):
                raise Conflict(f"Volume type access for {one.id} / {project_id} combination already exists.")

    def expel(self, context: Context, given: str, project_id: str) -> None:
        """Let it no more; volumes stay. Raises ``NotFound`` where it may not."""
        with self.database.write() as connection:
            one = self._private(connection, context, given)
            if not self._admits(connection, one.id, project_id):
                raise NotFound(f"Volume type access not found for {one.id} / {project_id} combination.")
            connection.execute(delete(type_projects).where(
                type_projects.c.type_id == one.id, type_projects.c.project_id == project_id))

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
        specs = document(row["extra_specs"])
        pool = next((pool for pool in self.pools if POOL not in specs or matches(pool, specs[POOL])), self.pools[0])
        return VolumeType(row["id"], row["name"], pool, row["description"], row["is_public"], False, specs,
                          document(row["encryption"]) or None)

    def _seen(self, connection: Connection, context: Context, given: str | None) -> VolumeType:
        found = self._all(connection, context)
        if not given:
            return found[0]
        one = next((one for one in found if given == one.id), None) or next(
            (one for one in found if given == one.name), None)
        if one is None:
            raise NotFound(f"Volume type {given[:80]} could not be found. There are: "
                           f"{', '.join(one.name for one in found[:20])}.")
        return one

    def _made(self, connection: Connection, context: Context, given: str) -> VolumeType:
        one = self._seen(connection, context, given)
        if one.is_fixed:
            raise InvalidRequest(f"Volume type {one.name} stands for the pool of that name in the agents' setting "
                                 f"pools, and follows from it. Make another one with the extra spec {POOL}={one.pool}.")
        return one

    def _private(self, connection: Connection, context: Context, given: str) -> VolumeType:
        one = self._seen(connection, context, given)
        if one.is_public:
            raise NotFound(f"Access list not available for public volume types; {one.name} is one.")
        return one

    def _unused(self, connection: Connection, context: Context, given: str) -> VolumeType:
        one = self._made(connection, context, given)
        for table in (volumes, snapshots):
            if connection.execute(select(table.c.id).where(table.c.volume_type == one.name).limit(1)).first():
                raise InvalidRequest(f"Target volume type is still in use: {table.name.replace('_', ' ')} have the "
                                     f"type {one.name}. Make another type for new volumes.")
        return one

    def _check_free(self, connection: Connection, name: str) -> None:
        if name in self.pools or connection.execute(select(types.c.id).where(types.c.name == name)).first():
            raise _exists(name)

    @staticmethod
    def _admits(connection: Connection, id: str, project_id: str) -> bool:
        return connection.execute(select(type_projects).where(
            type_projects.c.type_id == id, type_projects.c.project_id == project_id)).first() is not None


def _exists(name: str) -> Conflict:
    return Conflict(f"Volume Type {name} already exists.")


def ids(connection: Connection, names: Iterable[str]) -> dict[str, str]:
    """The uuids of the types of these names, also of pools that are no more."""
    wanted = set(names)
    made = {row.name: row.id for row in connection.execute(
        select(types.c.name, types.c.id).where(types.c.name.in_(wanted)))} if wanted else {}
    return {name: made.get(name) or _id(name) for name in wanted}


def _id(pool: str) -> str:
    return str(uuid.uuid5(NAMESPACE, pool))
