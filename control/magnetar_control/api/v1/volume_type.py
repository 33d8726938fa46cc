# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type volume_type: volume types, which administrators create and all projects see."""

from __future__ import annotations

from magnetar_control.api.volume.encryption import DEFAULTS, check_key_size
from magnetar_control.compute.accounts.projects import resolve_project_id
from magnetar_control.compute.caller import Caller
from magnetar_control.services.volume.rows import check_admin
from magnetar_control.services.volume.types import SHOWN_TO_ALL, VolumeType
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import CloudVolumeType
from magnetar_core.kinds.volume_type import PROVIDERS
from magnetar_core.operations import Operation
from magnetar_core.plan import Result

from .driver import CloudDriver


class VolumeTypes(CloudDriver):
    """The driver of the v1 API for volume types. A change consists of several steps; if one fails, the client can
    repeat the request to complete the change."""

    kind = CloudVolumeType
    takes_id = False

    def every(self, caller: Caller) -> list[Document]:
        store, admin = caller.cloud.services.volume.types, caller.context.is_admin
        admitted = store.admitted() if admin else {}
        return [_volume_type_document(volume_type, admin, admitted.get(volume_type.id, []))
                for volume_type in store.every(caller.context)]

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with the uuids of projects in place of names. Raises ``InvalidField`` for an
        unknown project, and for fields that contradict each other."""
        check_admin(caller.context, f"{self.kind.noun}:{'update' if have else 'create'}")
        if want["is_public"] and want["projects"]:
            raise InvalidField("projects", "are for a type that is not public: set is_public to false",
                               want["projects"])
        encryption = {name: value for name, value in want["encryption"].items() if value is not None}
        if encryption and "provider" not in encryption:
            raise InvalidField("encryption.provider", "is required for volumes that are encrypted")
        check_key_size(encryption)
        current_projects = have["projects"] if have else ()
        projects = {resolve_project_id(caller, project, f"projects[{at}]", current_projects) for at,
                    project in enumerate(want["projects"])}
        return {**want, "projects": sorted(projects), "encryption": encryption}

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        caller.cloud.services.volume.types.check(want["name"])

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        store = caller.cloud.services.volume.types
        if want["name"] != have["name"]:
            store.check(want["name"])
        store.check_change(caller.context, have["id"],
                           must_be_unused=any(want[name] != have[name] for name in ("extra_specs", "encryption")))

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        store, context = caller.cloud.services.volume.types, caller.context
        made = store.create(context, want["name"], want["description"], want["is_public"], want["extra_specs"])
        if want["encryption"]:
            store.encrypt(context, made.id, _encryption(want))
        for project in want["projects"]:
            store.admit(context, made.id, project)
        return str(made.id)

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Update the volume type: first withdraw the access of projects, while the type is still private, then update
        fields, then give access to projects."""
        store, context, id = caller.cloud.services.volume.types, caller.context, have["id"]
        for project in sorted({*have["projects"]} - {*want["projects"]}):
            store.expel(context, id, project)
        named = {name: want[name] for name in names if name in ("name", "description", "is_public")}
        if named:
            store.update(context, id, named)
        for project in sorted({*want["projects"]} - {*have["projects"]}):
            store.admit(context, id, project)
        if "extra_specs" in names:
            store.change_specs(context, id, lambda _old: dict(want["extra_specs"]))
        if "encryption" in names:
            store.encrypt(context, id, _encryption(want) if want["encryption"] else None)

    def removal(self, caller: Caller, have: Document | None, dry_run: bool, operation: Operation) -> Result:
        """Remove the volume type, unless this is a dry run, and return the result. Raises ``InvalidRequest`` if volumes
        or snapshots have the type. Also raises ``InvalidRequest`` if the type stands for a storage pool of the agents.
        """
        check_admin(caller.context, f"{self.kind.noun}:delete")
        if have is not None:
            caller.cloud.services.volume.types.check_change(caller.context, have["id"], must_be_unused=True)
        return super().removal(caller, have, dry_run, operation)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        caller.cloud.services.volume.types.delete(caller.context, have["id"])


def _encryption(want: Document) -> Document:
    return {**DEFAULTS, **want["encryption"]}


def _volume_type_document(volume_type: VolumeType, admin: bool, projects: list[str]) -> Document:
    encryption = {"provider": PROVIDERS[0], **{name: volume_type.encryption[name] for name in ("cipher", "key_size")
                                               if volume_type.encryption.get(
                                                   name)}} if admin and volume_type.encryption else {}
    return {"id": volume_type.id, "name": volume_type.name, "description": volume_type.description or "",
            "is_public": volume_type.is_public,
            "projects": projects, "encryption": encryption, "pool": "" if volume_type.chooses else volume_type.pool,
            "multiattach": volume_type.multiattach,
            "extra_specs": {name: value for name, value in volume_type.extra_specs.items() if admin
                            or name in SHOWN_TO_ALL}}
