# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of volume types, their extra specs, and the access of projects (Block Storage API v3, "Volume types
(types)", "Volume type access (types, action)")."""

from __future__ import annotations

from magnetar_control.api.query import check_known
from magnetar_control.api.values import build_record
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.types import VolumeType
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.values import MapOf, Nullable, Text

from . import views
from .nouns import PAGING, page_of_documents, parse_pairs, sorted_by
from .values import TRUTH, Stripped, checked_body

IS_PUBLIC = "os-volume-type-access:is_public"
NAME, DESCRIPTION = Stripped(1, 255), Nullable(Text(0, 255))
SPECS = MapOf(Text(1, 255, r"[a-zA-Z0-9_\-:. ]+", "may have letters, digits, blanks and _ - : . only"), Text(0, 255))
CREATE = build_record({"name": NAME, "description": DESCRIPTION, IS_PUBLIC: TRUTH, "extra_specs": Nullable(SPECS)},
                      "name")
UPDATE = build_record({"name": NAME, "description": DESCRIPTION, "is_public": TRUTH})
ACCESS = build_record({"project": Text(1, 255)}, "project")
TYPE_FILTERS = ("is_public", "name", "extra_specs")


class TypeRoutes:
    def __init__(self, service: EmbeddedVolumes) -> None:
        self.service, self.store = service, service.types

    def routes(self) -> list[Guarded]:
        """Return the routes of volume types, their extra specs and their access, relative to ``/v3``."""
        type_path = "types/{id}"
        return [guarded_route("GET types", self.every), guarded_route("POST types", self.create, who="admin"),
                guarded_route(f"GET {type_path}", self.show), guarded_route(f"PUT {type_path}", self.update,
                                                                            who="admin"),
                guarded_route(f"DELETE {type_path}", self.delete, 202, who="admin"),
                guarded_route(f"GET {type_path}/extra_specs", self.specs),
                guarded_route(f"POST {type_path}/extra_specs", self.add_specs, who="admin"),
                guarded_route(f"GET {type_path}/extra_specs/{{key}}", self.spec),
                guarded_route(f"PUT {type_path}/extra_specs/{{key}}", self.put_spec, who="admin"),
                guarded_route(f"DELETE {type_path}/extra_specs/{{key}}", self.drop_spec, 202, who="admin"),
                guarded_route(f"GET {type_path}/os-volume-type-access", self.access, who="admin"),
                guarded_route(f"POST {type_path}/action", self.act, 202, who="admin")]

    def every(self, request: Request) -> Document:
        """Return the volume types that the caller may use. For administrators, the query parameter ``is_public``
        selects public types (true, the default), private types (false) or all types (``none``). For other callers, this
        parameter has no effect."""
        query = dict(request.query)
        check_known(request, (*TYPE_FILTERS, *PAGING))
        is_public = query.get("is_public", "true" if request.context.is_admin else "")
        public = None if is_public.lower() in ("", "none") else TRUTH.check(is_public, "is_public")
        volume_types = self.store.every(request.context, public)
        name, specs = query.get("name"), parse_pairs(query.get("extra_specs", "{}"), "extra_specs")
        shown = [volume_type for volume_type in (views.volume_type_view(request, volume_type)
                                                 for volume_type in volume_types) if name in (None, volume_type["name"])
                 and specs.items() <= volume_type["extra_specs"].items()]
        return page_of_documents(request, "volume_types", sorted_by(query, shown, ("id", "name")))

    def create(self, request: Request) -> Document:
        requested = checked_body(request, "volume_type", CREATE)
        made = self.store.create(request.context, requested["name"], requested.get("description"),
                                 requested.get(IS_PUBLIC, True), requested.get("extra_specs"))
        return {"volume_type": views.volume_type_view(request, made, "create")}

    def show(self, request: Request) -> Document:
        """Return a volume type, by id or name. If no type has the name ``default``, this name stands for the default
        type, which is the type of the first storage pool."""
        id = request.params["id"]
        try:
            volume_type = self.store.find(request.context, id)
        except NotFound:
            if id != "default":
                raise
            volume_type = self.store.find(request.context, None)
        return self._render_type(request, volume_type)

    def update(self, request: Request) -> Document:
        """Update name, description and is_public of the volume type, and return the type."""
        changes = checked_body(request, "volume_type", UPDATE)
        if not changes:
            raise InvalidField("volume_type", "must have name, description or is_public")
        changed = self.store.update(request.context, request.params["id"], changes)
        return {"volume_type": views.volume_type_view(request, changed, "update")}

    def delete(self, request: Request) -> None:
        self.store.delete(*request.service_arguments())

    def specs(self, request: Request) -> Document:
        volume_type = self.store.find(request.context, request.params["id"])
        return {"extra_specs": views.volume_type_view(request, volume_type)["extra_specs"]}

    def spec(self, request: Request) -> Document:
        key = request.params["key"]
        return {key: self._value(self.specs(request)["extra_specs"], key)}

    def add_specs(self, request: Request) -> Document:
        """Set the extra specs in the body, and return only these. Other extra specs of the volume type do not change.
        """
        specs = checked_body(request, "extra_specs", SPECS)
        if not specs:
            raise InvalidField("extra_specs", "must have one key at least")
        self.store.change_specs(request.context, request.params["id"], lambda old: {**old, **specs})
        return {"extra_specs": specs}

    def put_spec(self, request: Request) -> Document:
        """Set the one extra spec that the URL names, and return {name: value}."""
        key, document = request.params["key"], request.json()
        if not isinstance(document, dict) or list(document) != [key]:
            raise InvalidRequest(f"Request body must hold the key of the URL, {key[:80]!r}, and no other.")
        checked: Document = SPECS.check(document, "body")
        self.store.change_specs(request.context, request.params["id"], lambda old: {**old, **checked})
        return checked

    def drop_spec(self, request: Request) -> None:
        key = request.params["key"]

        def without(old: Document) -> Document:
            self._value(old, key)
            return {name: value for name, value in old.items() if name != key}

        self.store.change_specs(request.context, request.params["id"], without)

    def access(self, request: Request) -> Document:
        """Return the projects that have access to the private volume type."""
        volume_type = self.store.find(*request.service_arguments())
        return {"volume_type_access": [{"volume_type_id": volume_type.id, "project_id": project}
                                       for project in self.store.projects(*request.service_arguments())]}

    def act(self, request: Request) -> None:
        """Run the action in the body: give a project access to the private volume type, or withdraw its access."""
        document = request.json()
        actions = {"addProjectAccess": self.store.admit, "removeProjectAccess": self.store.expel}
        name = next(iter(document), "") if isinstance(document, dict) else ""
        if name not in actions or len(document) != 1:
            raise InvalidRequest(f"The body must hold one action: {' or '.join(actions)}.")
        actions[name](request.context, request.params["id"], ACCESS.check(document[name], name)["project"])

    def _render_type(self, request: Request, volume_type: VolumeType) -> Document:
        return {"volume_type": views.volume_type_view(request, volume_type)}

    @staticmethod
    def _value(have: Document, key: str) -> str:
        if key not in have:
            raise NotFound(f"Volume type has no extra spec {key[:80]}.")
        return str(have[key])
