# SPDX-License-Identifier: GPL-3.0-or-later
"""Volume types, their extra specs, and which projects may use them (Block Storage API v3, "Volume types (types)",
"Volume type access (types, action)")."""

from __future__ import annotations

from magnetar_control.api.query import check_known
from magnetar_control.api.values import record
from magnetar_control.services import Document
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.types import VolumeType
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.values import MapOf, Nullable, Text

from . import views
from .nouns import PAGING, page, pairs, sorted_by
from .values import TRUTH, Stripped, body

IS_PUBLIC = "os-volume-type-access:is_public"
NAME, DESCRIPTION = Stripped(1, 255), Nullable(Text(0, 255))
SPECS = MapOf(Text(1, 255, r"[a-zA-Z0-9_\-:. ]+", "may have letters, digits, blanks and _ - : . only"), Text(0, 255))
CREATE = record({"name": NAME, "description": DESCRIPTION, IS_PUBLIC: TRUTH, "extra_specs": Nullable(SPECS)}, "name")
UPDATE = record({"name": NAME, "description": DESCRIPTION, "is_public": TRUTH})
ACCESS = record({"project": Text(1, 255)}, "project")
TYPE_FILTERS = ("is_public", "name", "extra_specs")


class TypeRoutes:
    def __init__(self, service: EmbeddedVolumes) -> None:
        self.service, self.store = service, service.types

    def routes(self) -> list[Guarded]:
        """Where they are, below ``/v3``."""
        one = "types/{id}"
        return [route("GET types", self.every), route("POST types", self.create, who="admin"),
                route(f"GET {one}", self.show), route(f"PUT {one}", self.update, who="admin"),
                route(f"DELETE {one}", self.delete, 202, who="admin"),
                route(f"GET {one}/extra_specs", self.specs),
                route(f"POST {one}/extra_specs", self.add_specs, who="admin"),
                route(f"GET {one}/extra_specs/{{key}}", self.spec),
                route(f"PUT {one}/extra_specs/{{key}}", self.put_spec, who="admin"),
                route(f"DELETE {one}/extra_specs/{{key}}", self.drop_spec, 202, who="admin"),
                route(f"GET {one}/os-volume-type-access", self.access, who="admin"),
                route(f"POST {one}/action", self.act, 202, who="admin")]

    def every(self, request: Request) -> Document:
        """Those that the caller may use. *is_public* of administrators: none is all."""
        query = dict(request.query)
        check_known(request, (*TYPE_FILTERS, *PAGING))
        given = query.get("is_public", "true" if request.context.is_admin else "")
        public = None if given.lower() in ("", "none") else TRUTH.check(given, "is_public")
        found = self.store.every(request.context, public)
        wanted, specs = query.get("name"), pairs(query.get("extra_specs", "{}"), "extra_specs")
        shown = [one for one in (views.type(request, one) for one in found) if wanted in (None, one["name"])
                 and specs.items() <= one["extra_specs"].items()]
        return page(request, "volume_types", sorted_by(query, shown, ("id", "name")))

    def create(self, request: Request) -> Document:
        given = body(request, "volume_type", CREATE)
        made = self.store.create(request.context, given["name"], given.get("description"), given.get(IS_PUBLIC, True),
                                 given.get("extra_specs"))
        return {"volume_type": views.type(request, made, "create")}

    def show(self, request: Request) -> Document:
        """One, also by its name; ``default`` is the first where none has that name."""
        id = request.params["id"]
        try:
            found = self.store.find(request.context, id)
        except NotFound:
            if id != "default":
                raise
            found = self.store.find(request.context, None)
        return self._shown(request, found)

    def update(self, request: Request) -> Document:
        """Name, description, whether all projects may use it."""
        given = body(request, "volume_type", UPDATE)
        if not given:
            raise InvalidField("volume_type", "must have name, description or is_public")
        changed = self.store.update(request.context, request.params["id"], given)
        return {"volume_type": views.type(request, changed, "update")}

    def delete(self, request: Request) -> None:
        self.store.delete(*request.named())

    def specs(self, request: Request) -> Document:
        found = self.store.find(request.context, request.params["id"])
        return {"extra_specs": views.type(request, found)["extra_specs"]}

    def spec(self, request: Request) -> Document:
        key = request.params["key"]
        return {key: self._value(self.specs(request)["extra_specs"], key)}

    def add_specs(self, request: Request) -> Document:
        """Set some; the others stay."""
        given = body(request, "extra_specs", SPECS)
        if not given:
            raise InvalidField("extra_specs", "must have one key at least")
        self.store.change_specs(request.context, request.params["id"], lambda old: {**old, **given})
        return {"extra_specs": given}

    def put_spec(self, request: Request) -> Document:
        """Set the one that the URL names."""
        key, given = request.params["key"], request.json()
        if not isinstance(given, dict) or list(given) != [key]:
            raise InvalidRequest(f"Request body must hold the key of the URL, {key[:80]!r}, and no other.")
        checked: Document = SPECS.check(given, "body")
        self.store.change_specs(request.context, request.params["id"], lambda old: {**old, **checked})
        return checked

    def drop_spec(self, request: Request) -> None:
        key = request.params["key"]

        def without(old: Document) -> Document:
            self._value(old, key)
            return {name: value for name, value in old.items() if name != key}

        self.store.change_specs(request.context, request.params["id"], without)

    def access(self, request: Request) -> Document:
        """The projects that may use a type that is not public."""
        one = self.store.find(*request.named())
        return {"volume_type_access": [{"volume_type_id": one.id, "project_id": project}
                                       for project in self.store.projects(*request.named())]}

    def act(self, request: Request) -> None:
        """Let a project use a type that is not public, or let it no more."""
        given = request.json()
        actions = {"addProjectAccess": self.store.admit, "removeProjectAccess": self.store.expel}
        name = next(iter(given), "") if isinstance(given, dict) else ""
        if name not in actions or len(given) != 1:
            raise InvalidRequest(f"The body must hold one action: {' or '.join(actions)}.")
        actions[name](request.context, request.params["id"], ACCESS.check(given[name], name)["project"])

    def _shown(self, request: Request, one: VolumeType) -> Document:
        return {"volume_type": views.type(request, one)}

    @staticmethod
    def _value(have: Document, key: str) -> str:
        if key not in have:
            raise NotFound(f"Volume type has no extra spec {key[:80]}.")
        return str(have[key])
