# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of all applications from their own tables, each with the bodies and query parameters that it declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar_agent.api.openapi import PARAMETERS
from magnetar_control.api.image.images import PATCHES
from magnetar_control.api.image.members import MEMBER, STATUS
from magnetar_control.api.image.query import CONTROLS as IMAGE_CONTROLS
from magnetar_control.api.image.query import NUMBERS, TEXTS
from magnetar_control.api.network import attributes, quotas
from magnetar_control.api.network.resources import CONTROLS, FORMS, OF_ENGINE
from magnetar_control.api.nova import removed
from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.api.nova.versions import VERSIONS
from magnetar_control.api.placement import allocations, writing
from magnetar_control.api.v1.app import DRIVERS
from magnetar_control.api.v1.driver import CloudDriver
from magnetar_control.api.v1.servers.consoles import OpenConsoleRequest
from magnetar_control.api.v1.servers.events import EVENTS
from magnetar_control.api.volume import (
    attachments,
    backups,
    encryption,
    limits,
    managing,
    nouns,
    snapshots,
    transfers,
    types,
    volumes,
)
from magnetar_control.api.volume.values import METADATA
from magnetar_control.services.identity.application_credentials import FIELDS as CREDENTIAL
from magnetar_control.services.identity.resources import RESOURCES
from magnetar_control.services.identity.trusts import FIELDS as TRUST
from magnetar_control.services.identity.trusts import REQUIRED
from magnetar_control.services.image.fields import FIELDS, READ_ONLY
from magnetar_core.fields import CREATE
from magnetar_core.http.guest_commands import GuestCommandRequest
from magnetar_core.query import PAGE

Schema = Mapping[str, Any]
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer", "minimum": 0}
#: Bodies of further paths below a server.
BODIES = {"consoles": OpenConsoleRequest, "guest": GuestCommandRequest}


def wrapped(name: str, schema: Schema) -> Schema:
    """An object with one key."""
    return {"type": "object", "properties": {name: schema}, "required": [name]}


def many(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def objects(required: str = "", **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required.split()}


@dataclass(frozen=True)
class Target:
    """A route. *path* has ``{parameters}``; *body*: schema, or ``None`` where none is looked at; *query*: parameters
    with the schemas of their values; *service*: by which headers are chosen."""

    service: str
    method: str
    path: str
    body: Schema | None = None
    query: Mapping[str, Schema] | None = None
    name: str = ""
    versions: tuple[int, ...] = ()
    media: tuple[str, ...] = ("application/json",)

    @property
    def id(self) -> str:
        return self.name or f"{self.method} {self.path}"


# Compute ------------------------------------------------------------------------------------------------------------
def compute() -> Iterator[Target]:
    for one in (*OPERATIONS, *removed.OPERATIONS):
        version = VERSIONS[one.until]
        yield Target(
            "compute",
            one.method,
            f"/v2.1{one.path}",
            None if one.body is None else one.body.schema(version),
            {name: {} if not (found := query.value.schema(version)) else found for name, query in one.query.items()},
            f"{one.name}-{one.since}",
            (one.since, one.until),
        )
    for path in ("/", "/v2", "/v2.1", "/v2.1/"):
        yield Target("compute", "GET", path)


# Identity -----------------------------------------------------------------------------------------------------------
NAMED = objects("name", name=TEXT, id=TEXT, domain=objects(id=TEXT, name=TEXT))
USER = objects("password", password=TEXT, id=TEXT, name=TEXT, domain=objects("id", id=TEXT, name=TEXT))
LOGIN = wrapped(
    "auth",
    objects(
        "identity",
        identity=objects(
            "methods",
            methods=many({"enum": ["password", "token", "application_credential"]}),
            token=wrapped("id", TEXT),
            password=wrapped("user", USER),
            application_credential=objects("secret", id=TEXT, name=TEXT, secret=TEXT, user=NAMED),
        ),
        scope=either(
            {"const": "unscoped"},
            objects(project=NAMED),
            objects(domain=NAMED),
            objects(system=objects(all={"type": "boolean"})),
            objects(**{"OS-TRUST:trust": wrapped("id", TEXT)}),
        ),
    ),
)
IDENTITY: dict[str, Schema] = {
    "/v3/auth/tokens": LOGIN,
    "/v3/users/{user}/password": wrapped(
        "user", objects("original_password password", original_password=TEXT, password=TEXT)
    ),
    "/v3/users/{user}/application_credentials": wrapped(
        "application_credential",
        objects(
            "name",
            **{name: value.schema() for name, value in CREDENTIAL.items()},
            expires_at=TEXT,
            access_rules=many({}),
        ),
    ),
}
IDENTITY["/v3/OS-TRUST/trusts"] = wrapped(
    "trust",
    objects(
        " ".join(REQUIRED),
        **{name: value.schema() for name, value in TRUST.items()},
        expires_at=TEXT,
    ),
)
for _resource in RESOURCES:
    _schema = wrapped(
        _resource.name,
        objects(
            " ".join(name for name, one in _resource.fields.items() if one.required),
            id=TEXT,
            password=TEXT,
            extra={},
            **{name: one.value.schema() for name, one in _resource.fields.items()},
        ),
    )
    IDENTITY |= {f"/v3/{_resource.plural}": _schema, f"/v3/{_resource.plural}/{{id}}": _schema}
IDENTITY_QUERY: dict[str, Schema] = dict.fromkeys(
    (
        "name",
        "enabled",
        "domain_id",
        "parent_id",
        "effective",
        "include_names",
        "user.id",
        "group.id",
        "role.id",
        "type",
        "scope.project.id",
        "scope.domain.id",
        "scope.system",
        "limit",
        "marker",
        "interface",
        "nocatalog",
        "name__contains",
        "parent_region_id",
        "service_id",
        "region_id",
    ),
    TEXT,
)


# Image --------------------------------------------------------------------------------------------------------------
IMAGE_FIELDS = {name: value.schema() for name, value in FIELDS.items()}
IMAGE: Schema = {**objects(id={**TEXT, "format": "uuid"}, **IMAGE_FIELDS), "additionalProperties": TEXT}
POINTERS: Schema = {
    "enum": [f"/{name}" for name in (*FIELDS, *sorted(READ_ONLY), "a", "b~1c", "~0", "~2", "hw_disk_bus", "id")]
}
PATCH = many(
    either(
        objects(
            "op path",
            op={"enum": ["add", "replace", "remove", "test"]},
            path=POINTERS,
            value=either(TEXT, *IMAGE_FIELDS.values()),
        ),
        objects("replace value", replace=POINTERS, value=either(TEXT, *IMAGE_FIELDS.values())),
        objects("remove", remove=POINTERS),
    )
)
IMAGES: dict[tuple[str, str], Schema] = {
    ("POST", "/v2/images"): IMAGE,
    ("PATCH", "/v2/images/{id}"): PATCH,
    ("POST", "/v2/images/{id}/import"): wrapped(
        "method", objects("name", name={"enum": ["glance-direct", "web-download"]})
    ),
    ("POST", "/v2/images/{id}/members"): MEMBER.schema(),
    ("PUT", "/v2/images/{id}/members/{member}"): STATUS.schema(),
}
IMAGE_QUERY: dict[str, Schema] = dict.fromkeys(
    (
        *sorted(IMAGE_CONTROLS),
        *sorted(TEXTS),
        *NUMBERS,
        "created_at",
        "updated_at",
        "protected",
        "os_hidden",
        "tag",
        "a",
    ),
    TEXT,
)
OCTETS = ("application/octet-stream",)


# Network ------------------------------------------------------------------------------------------------------------
NETWORK_QUOTAS = quotas.quota_body(("network", "subnet", "port", "security_group", "router", "floatingip",
                                    "address_group",
                               "trunk"))
#: Bodies that are no resources.
NETWORK: dict[str, Schema] = {
    **{f"routers/{{id}}/{verb}_router_interface": attributes.INTERFACE.schema() for verb in ("add", "remove")},
    **{f"routers/{{id}}/{verb}_extraroutes": attributes.EXTRA_ROUTES.schema() for verb in ("add", "remove")},
    **{f"address-groups/{{id}}/{verb}_addresses": attributes.ADDRESSES.schema() for verb in ("add", "remove")},
    **{f"trunks/{{id}}/{verb}_subports": body.schema() for verb, body in (
        ("add", attributes.SUB_PORTS), ("remove", attributes.GONE_PORTS))},
    **{f"{form.path}/{{id}}/tags": attributes.TAGS.schema() for form in (*FORMS, *OF_ENGINE)},
    "quotas/{id}": wrapped("quota", NETWORK_QUOTAS.schema()),
}


def network_body(path: str) -> Schema | None:
    below = path.removeprefix("/v2.0/")
    if below in NETWORK:
        return NETWORK[below]
    below = below.removesuffix("/{id}")
    form = next((one for one in (*FORMS, *OF_ENGINE) if one.path == below), None)
    if form is None:
        return None
    schema = form.body.schema()
    return either(wrapped(form.name, schema), wrapped(form.plural, many(schema)))


NETWORK_QUERY: dict[str, Schema] = dict.fromkeys(
    (
        *sorted(CONTROLS),
        "id",
        "name",
        "status",
        "tenant_id",
        "tags",
        "fixed_ips",
        "ip_address",
        "security_group_ids",
        *sorted({field.name for form in (*FORMS, *OF_ENGINE) for field in form.body.fields}),
    ),
    TEXT,
)


# Volumes ------------------------------------------------------------------------------------------------------------
def _action(name: str, schema: Schema) -> Schema:
    return wrapped(name, schema)


VOLUMES: dict[tuple[str, str], Schema] = {
    ("POST", "volumes"): objects("volume", volume=volumes.CREATE.schema(), scheduler_hints={"type": "object"}),
    ("PUT", "volumes/{id}"): wrapped("volume", nouns.UPDATE.schema()),
    ("POST", "volumes/{id}/action"): either(
        *(_action(name, one.body.schema()) for name, one in volumes.ACTIONS.items()),
        *(_action(name, body.schema()) for name, body in volumes.MOVE_BODIES.items()),
        *(_action(name, {}) for name in volumes.NO_ACTIONS),
    ),
    ("POST", "snapshots"): wrapped("snapshot", snapshots.CREATE.schema()),
    ("PUT", "snapshots/{id}"): wrapped("snapshot", nouns.UPDATE.schema()),
    ("POST", "snapshots/{id}/action"): either(
        wrapped("os-reset_status", snapshots.RESET.schema()), wrapped("os-force_delete", {"type": "null"})
    ),
    ("POST", "attachments"): wrapped("attachment", attachments.CREATE.schema()),
    ("PUT", "attachments/{id}"): wrapped("attachment", attachments.UPDATE.schema()),
    ("POST", "attachments/{id}/action"): wrapped("os-complete", {"type": "object"}),
    ("POST", "types"): wrapped("volume_type", types.CREATE.schema()),
    ("POST", "types/{id}/encryption"): wrapped("encryption", encryption.CREATE.schema()),
    ("PUT", "types/{id}/encryption/{encryption_id}"): wrapped("encryption", encryption.UPDATE.schema()),
    ("PUT", "types/{id}"): wrapped("volume_type", types.UPDATE.schema()),
    ("POST", "types/{id}/extra_specs"): wrapped("extra_specs", types.SPECS.schema()),
    ("PUT", "types/{id}/extra_specs/{key}"): types.SPECS.schema(),
    ("POST", "types/{id}/action"): either(
        *(_action(name, types.ACCESS.schema()) for name in ("addProjectAccess", "removeProjectAccess"))
    ),
    ("PUT", "os-quota-sets/{id}"): wrapped("quota_set", limits.QUOTA_SET.schema()),
}
VOLUMES |= {
    ("POST", "backups"): wrapped("backup", backups.CREATE_NEW.schema()),
    ("POST", "backups/import_record"): wrapped("backup-record", backups.RECORD.schema()),
    ("PUT", "backups/{id}"): wrapped("backup", nouns.UPDATE.schema()),
    ("POST", "backups/{id}/restore"): wrapped("restore", backups.RESTORE.schema()),
    ("POST", "backups/{id}/action"): wrapped("os-reset_status", backups.RESET.schema()),
}
for _path in transfers.PATHS:
    VOLUMES["POST", _path] = wrapped("transfer", transfers.CREATE_NEW.schema())
    VOLUMES["POST", f"{_path}/{{id}}/accept"] = wrapped("accept", transfers.ACCEPT.schema())
for _path in managing.PATHS:
    VOLUMES["POST", _path] = wrapped("volume", managing.MANAGE_BODY.schema())
for _noun in ("volumes", "snapshots"):
    for _method in ("POST", "PUT"):
        VOLUMES[_method, f"{_noun}/{{id}}/metadata"] = wrapped("metadata", METADATA.value.schema())
    VOLUMES["PUT", f"{_noun}/{{id}}/metadata/{{key}}"] = wrapped("meta", METADATA.value.schema())
PLACEMENT_QUERY: dict[str, Schema] = dict.fromkeys(
    ("name", "uuid", "in_tree", "member_of", "resources", "required", "associated", "project_id", "user_id",
     "consumer_type", "limit", "group_policy", "root_required", "same_subtree", "resources1", "required1",
     "member_of_A", "in_tree-b"),
    TEXT,
)
#: At the newest microversion; others get bodies that they refuse.
PLACEMENT: dict[tuple[str, str], Schema] = {
    **{where: body.schema() for where, body in writing.BODIES.items()},
    ("PUT", "/allocations/{uuid}"): allocations.allocation_body(39).schema(),
    ("POST", "/allocations"): {"type": "object", "additionalProperties": allocations.allocation_body(39).schema()},
}
VOLUME_QUERY: dict[str, Schema] = dict.fromkeys(
    (
        "limit",
        "offset",
        "marker",
        "sort",
        "sort_key",
        "sort_dir",
        "all_tenants",
        "with_count",
        "name~",
        "project_id",
        "cascade",
        "force",
        "usage",
        "instance_id",
        "metadata",
        *volumes.VolumeRoutes.filters,
        *snapshots.SnapshotRoutes.filters,
    ),
    TEXT,
)


# The agents' protocol -----------------------------------------------------------------------------------------------
def v1() -> Iterator[Target]:
    """Of the cloud; what an agent has is in its OpenAPI document."""
    ensure = {
        name: PARAMETERS[name][0] for name in ("dry_run", "on_immutable", "merge", "allow_reboot", "preserve_ephemeral")
    }
    yield Target("v1", "GET", "/v1")
    yield Target("v1", "GET", "/v1/operations", None, {"limit": NUMBER, "status": TEXT, "kind": TEXT, "key": TEXT})
    yield Target("v1", "GET", "/v1/events", None, {"limit": NUMBER, "cursor": TEXT, "kind": TEXT, "server": TEXT,
                                                   "interval": NUMBER, "all_projects": TEXT})
    for method in ("GET", "DELETE"):
        yield Target("v1", method, "/v1/operations/{key}")
    for noun, driver in DRIVERS.items():
        yield from _of_kind(noun, driver, ensure)


def _of_kind(noun: str, driver: CloudDriver, ensure: Mapping[str, Schema]) -> Iterator[Target]:
    schema, one = driver.kind.schema(CREATE), f"/v1/{noun}/{{key}}"
    filters = {field.name: TEXT for field in driver.kind.fields if "list" in field.on}
    yield Target("v1", "GET", f"/v1/{noun}", None, {**filters, **dict.fromkeys(PAGE, TEXT), "all_projects": TEXT})
    yield Target("v1", "GET", one)
    yield Target("v1", "PUT", one, schema, ensure)
    yield Target("v1", "DELETE", one, None, {"dry_run": ensure["dry_run"]})
    item = objects(
        "key want", key=TEXT, want=either({"type": "null"}, schema), merge=many(TEXT), allow_reboot={"type": "boolean"}
    )
    yield Target("v1", "PUT", f"/v1/{noun}", many(item), {"dry_run": ensure["dry_run"]})
    yield Target(
        "v1",
        "POST",
        f"{one}/events",
        objects(
            "event",
            event={"enum": list(EVENTS)},
            args=either(*(rule.schema() for rule, *_rest in EVENTS.values())),
            request_id=TEXT,
        ),
    )
    for path, methods in getattr(driver, "more", {}).items():
        for method in methods:
            if path in BODIES:
                yield Target("v1", method, f"{one}/{path}", BODIES[path].schema())
            else:
                yield Target("v1", method, f"{one}/{path}", media=OCTETS)


# All ----------------------------------------------------------------------------------------------------------------
def routed(mounts: Mapping[str, Any]) -> Iterator[Target]:
    """Those of the services."""
    for one in mounts["/identity"].router.routes:
        query = IDENTITY_QUERY if one.method in ("GET", "HEAD") else {"nocatalog": TEXT}
        yield Target(
            "identity",
            one.method,
            f"/identity{one.path}",
            IDENTITY.get(one.path) if one.method in ("POST", "PATCH") else None,
            query,
        )
    for one in mounts["/image"].router.routes:
        media = OCTETS if one.stream else tuple(PATCHES) if one.method == "PATCH" else ("application/json",)
        yield Target(
            "image", one.method, f"/image{one.path}", IMAGES.get((one.method, one.path)), IMAGE_QUERY, media=media
        )
    for one in mounts["/network"].router.routes:
        body = network_body(one.path) if one.method in ("POST", "PUT") else None
        yield Target("network", one.method, f"/network{one.path}", body, NETWORK_QUERY)
    for one in mounts["/volume"].router.routes:
        below = re.sub(r"^/v3/(\{project_id\}/)?", "", one.path)
        yield Target("volume", one.method, f"/volume{one.path}", VOLUMES.get((one.method, below)), VOLUME_QUERY)
    for one in mounts["/placement"].router.routes:
        body = PLACEMENT.get((one.method, one.path))
        yield Target("placement", one.method, f"/placement{one.path}", body, PLACEMENT_QUERY)
    for path in ("/healthz", "/metrics"):
        yield Target("health", "GET", path)
    for path in ("vnc.html", "serial.html", "spice.html", "spice-html5/{file}", "xterm.js", "app/{file}", "socket"):
        yield Target("console", "GET", f"/console/{path}")


def of_agent(document: Mapping[str, Any]) -> Iterator[Target]:
    """Those of an agent, from its OpenAPI document."""

    def whole(schema: Any) -> Any:
        if isinstance(schema, dict):
            found = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
            return {name: whole(one) for name, one in found.items()}
        return [whole(one) for one in schema] if isinstance(schema, list) else schema

    for path, methods in document["paths"].items():
        for method, one in methods.items():
            content = one.get("requestBody", {}).get("content", {})
            media, schema = next(
                ((name, found["schema"]) for name, found in content.items()), ("application/json", None)
            )
            query = {
                found["name"]: whole(found["schema"]) for found in one.get("parameters", ()) if found["in"] == "query"
            }
            body = None if schema is None or media in OCTETS else whole(schema)
            yield Target("agent", method.upper(), path, body, query, media=(media,))
