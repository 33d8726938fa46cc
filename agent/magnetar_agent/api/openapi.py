# SPDX-License-Identifier: GPL-3.0-or-later
"""Additions to FastAPI's OpenAPI document: the bodies of requests and responses. They are declared by the kinds of
resources, not by types of the route functions, so FastAPI cannot generate them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.host.hypervisor import DISK_COUNTERS, NIC_COUNTERS
from magnetar_core.ensure import ON_IMMUTABLE
from magnetar_core.events import EventRequest
from magnetar_core.fields import CREATE, LIST, SHOW, Kind
from magnetar_core.http.guest_commands import GuestCommandRequest
from magnetar_core.kinds import KINDS, Host, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fastapi import FastAPI

Extra = dict[str, Any]
TEXT, INTEGER, BOOLEAN, NUMBER = ({"type": type_name} for type_name in ("string", "integer", "boolean", "number"))


def _object(**properties: Any) -> Extra:
    return {"type": "object", "properties": properties}


def _array(items: Any) -> Extra:
    return {"type": "array", "items": items}


def _ref(name: str) -> Extra:
    return {"$ref": f"#/components/schemas/{name}"}


DIFF = _array(_object(path=TEXT, old={}, new={}))
STEP = _object(verb=TEXT, text=TEXT)
ERROR = _object(code=TEXT, message=TEXT, details={"type": "object"}, request_id=TEXT)
OPERATION = _object(
    id=TEXT, name=TEXT, kind=TEXT, key=TEXT, subject=TEXT, request_id=TEXT, caller=TEXT,
    status={"enum": ["running", "succeeded", "failed", "cancelled"]}, cancelling=BOOLEAN,
    progress=_object(done=INTEGER, total=INTEGER, unit=TEXT, phase=TEXT), started_at=TEXT, ended_at=TEXT, error=ERROR,
    result={"description": "What the request would have answered; null when it did answer that."})

#: Parameters of query strings by name: schema and meaning.
PARAMETERS: dict[str, tuple[Extra, str]] = {
    "dry_run": (BOOLEAN, "Change nothing; answer what would be done."),
    "wait": (NUMBER, "Seconds to wait before the answer is 202 with an operation. Default: the agent's setting wait."),
    "on_immutable": ({"enum": list(ON_IMMUTABLE)}, (
        "What to do when a field that is fixed differs: fail, ignore it with a warning, recreate the resource, "
        "which loses its disks, or (servers) rebuild: only the root disk is recreated.")),
    "allow_reboot": (BOOLEAN, "Whether a running server may be shut down and started again where a change needs it."),
    "preserve_ephemeral": (BOOLEAN, "Whether a rebuild keeps the ephemeral disk."),
    "revision": (TEXT, "The revision that a dry run answered: a change is refused if the resource has changed since."),
    "merge": (TEXT, "Some of metadata, tags, networks, with commas: add to what is there, rather than replace it."),
    "fields": (TEXT, "Show these fields only, separated by commas."),
    "limit": (INTEGER, "At most so many."),
    "marker": (TEXT, "Begin after the resource with this id."),
    "sort": (TEXT, "Fields to sort by, separated by commas; -name sorts downwards."),
    "format": ({"enum": ["text", "json"]}, "text, or json for an object with the text as output."),
    "bytes": (INTEGER, "At most so many bytes from the end."),
    "interval": (NUMBER, "Seconds between two heartbeats, 0.5 to 60. Default: the agent's setting heartbeat."),
    "events": (TEXT, "Which of server, domain and operation are told, separated by commas. Default: all."),
    "pool": (TEXT, "Name of the pool. Default: default."),
    "lines": (INTEGER, "At most so many lines from the end."),
}


def _parameters(*names: str, key: bool = False, filters: Iterable[str] = ()) -> list[Extra]:
    parameters: list[Extra] = []
    if key:
        parameters.append({"name": "key", "in": "path", "required": True, "schema": TEXT,
                           "description": "Uuid or name; a slash in a name is %2F."})
    parameters += [{"name": name, "in": "query", "schema": PARAMETERS[name][0], "description": PARAMETERS[name][1]}
                   for name in names]
    return parameters + [{"name": name, "in": "query", "schema": TEXT, "description": f"Only those with this {name}."}
                         for name in filters]


def _route(answer: Extra, description: str, parameters: Sequence[Extra] = (), body: Extra | None = None,
           media: str = "application/json", later: bool = False) -> Extra:
    def content(schema: Extra, kind: str = "application/json") -> Extra:
        return {"content": {kind: {"schema": schema}}}

    responses: dict[str, Extra] = {"200": {"description": description, **content(answer, media)},
                                   "default": {"description": "Failure", **content(_object(error=_ref("Error")))}}
    if later:
        responses["202"] = {"description": "Not done within wait; Location is the operation",
                            **content(_object(operation=_ref("Operation"), request_id=TEXT))}
    more: Extra = {"responses": responses}
    if parameters:
        more["parameters"] = list(parameters)
    if body is not None:
        more["requestBody"] = {"required": True, **content(*body["content"])}
    return {"openapi_extra": more}


def _json(schema: Extra) -> Extra:
    return {"content": (schema, "application/json")}


def _result(kind: type[Kind]) -> Extra:
    return _object(changed=BOOLEAN, steps=_array(STEP), diff=DIFF, resource=_ref(kind.__name__),
                   warnings=_array(TEXT), request_id=TEXT,
                   revision={**TEXT, "description": "In a dry run: the revision of the resource before the steps."})


def describe_list_route(kind: type[Kind], filters: Iterable[str]) -> Extra:
    """Return the OpenAPI description of ``GET`` for all resources of *kind*. *filters*: names of the fields to filter
    by."""
    return {"tags": [kind.noun], "summary": f"List {kind.plural}",
            **_route(_object(**{kind.plural: _array(_ref(kind.__name__))}), "The list",
                     _parameters("fields", "limit", "marker", "sort", filters=filters))}


def describe_show_route(kind: type[Kind]) -> Extra:
    """Return the OpenAPI description of ``GET`` for one resource of *kind*."""
    single = kind.fields and not kind.settable()
    return {"tags": [kind.noun], "summary": f"Show a {kind.noun}",
            **_route(_ref(kind.__name__), "The resource", _parameters(key=not single))}


def describe_ensure_route(kind: type[Kind]) -> Extra:
    """Return the OpenAPI description of ``PUT``, which creates or updates one resource of *kind*."""
    return {"tags": [kind.noun], "summary": f"Ensure a {kind.noun}",
            **_route(_result(kind), "How it is now, and what was done for it",
                     _parameters("dry_run", "wait", "on_immutable", "merge", "allow_reboot", "preserve_ephemeral",
                                 "revision", key=True),
                     _json(_ref(f"{kind.__name__}Wanted")), later=True)}


def describe_batch_route(kind: type[Kind]) -> Extra:
    """Return the OpenAPI description of ``PUT`` with a list of resources of *kind*."""
    item = _object(key=TEXT, want={"anyOf": [_ref(f"{kind.__name__}Wanted"), {"type": "null"}]},
                   on_immutable=PARAMETERS["on_immutable"][0], merge=_array({"enum": ["metadata", "tags", "networks"]}),
                   allow_reboot=BOOLEAN, preserve_ephemeral=BOOLEAN, revision=TEXT)
    done = _result(kind)
    done["properties"].update(key=TEXT, error=_ref("Error"))
    return {"tags": [kind.noun], "summary": f"Ensure many {kind.plural}",
            **_route(_object(results=_array(done), request_id=TEXT), "One result or error for each, in order",
                     _parameters("dry_run", "wait"), _json(_array({**item, "required": ["key", "want"]})), later=True)}


def describe_remove_route(kind: type[Kind]) -> Extra:
    """Return the OpenAPI description of ``DELETE`` for one resource of *kind*."""
    return {"tags": [kind.noun], "summary": f"Remove a {kind.noun}",
            **_route(_result(kind), "What was done", _parameters("dry_run", "wait", key=True), later=True)}


def describe_event_route(kind: type[Kind]) -> Extra:
    """Return the OpenAPI description of ``POST`` for a one-time event, such as a reboot; only servers have events."""
    return {"tags": [kind.noun], "summary": f"Do something once with a {kind.noun}",
            "include_in_schema": kind is Server,
            **_route({"type": "object"}, "What was done", _parameters("wait", key=True), _json(_ref("Event")),
                     later=True)}


def describe_upload_route(kind: type[Kind]) -> Extra:
    """Return the OpenAPI description of ``PUT`` for the content of an image."""
    body = {"content": ({"type": "string", "format": "binary"}, "application/octet-stream")}
    return {"tags": [kind.noun], "summary": "Send the content of an image",
            **_route(_result(kind), "How it is now", _parameters("wait", key=True), body, later=True)}


def describe_download_route(kind: type[Kind]) -> Extra:
    """Return the OpenAPI description of ``GET`` for the content of an image."""
    return {"tags": [kind.noun], "summary": "Get the content of an image; needs the scope operate",
            **_route({"type": "string", "format": "binary"}, "The content", _parameters(key=True),
                     media="application/octet-stream")}


def describe_console_route() -> Extra:
    """Return the OpenAPI description of ``GET`` for a server's console log."""
    return {"tags": [Server.noun], "summary": "Show the end of the console log",
            **_route(TEXT, "The text", _parameters("bytes", "lines", "format", key=True), media="text/plain")}


def describe_diagnostics_route() -> Extra:
    """Return the OpenAPI description of ``GET`` for a server's resource usage."""
    def counted(words: Sequence[str], **more: Any) -> Extra:
        return _array(_object(device=TEXT, **more, **dict.fromkeys(words, INTEGER)))

    return {"tags": [Server.noun], "summary": "Show what a server has used since it was started",
            **_route(_object(id=TEXT, power_state=TEXT, config_drive=BOOLEAN, virt_type=TEXT, uptime=INTEGER,
                             cpus=_array(_object(id=INTEGER, time=INTEGER)),
                             memory={"type": "object", "additionalProperties": INTEGER},
                             disks=counted(DISK_COUNTERS), nics=counted(NIC_COUNTERS, mac=TEXT)),
                     "Seconds, nanoseconds of CPUs, KiB of memory; null where nobody counts", _parameters(key=True))}


def describe_guest_route() -> Extra:
    """Return the OpenAPI description of ``POST`` for a command to a guest agent."""
    return {"tags": [Server.noun], "summary": "Have the guest agent of a running server do a command",
            **_route(_object(command=TEXT, server=TEXT, request_id=TEXT, version=TEXT, missing=_array(TEXT),
                             pid=INTEGER, exited=BOOLEAN, exit_code=INTEGER, signal=INTEGER, stdout=TEXT, stderr=TEXT,
                             truncated=BOOLEAN, content=TEXT, eof=BOOLEAN, written=INTEGER),
                     "The outcome; stdout, stderr and content are base64", _parameters(key=True),
                     _json(_ref("GuestCommand")))}


def describe_uptime_route() -> Extra:
    """Return the OpenAPI description of ``GET`` for the host's uptime."""
    return {"tags": [Host.noun], "summary": "Show for how long the host is up, and its load",
            **_route(_object(time=TEXT, uptime=INTEGER, users=INTEGER, load_average=_array(NUMBER)),
                     "Time of day, seconds, users that are logged in, load of 1, 5 and 15 minutes")}


def describe_load_route() -> Extra:
    """Return the OpenAPI description of ``GET`` for the host's load."""
    return {"tags": [Host.noun], "summary": "Show the CPUs and memory that the host and its guests really use",
            **_route(_object(seconds=NUMBER, cpus=INTEGER, cpus_used=NUMBER, memory_mb=INTEGER, memory_mb_used=INTEGER,
                             servers=_array(_object(id=TEXT, cpus_used=NUMBER, memory_mb_used=INTEGER))),
                     "Averages of up to ten minutes, and the seconds since the first measurement; null where not known "
                     "yet")}


def describe_content_route() -> Extra:
    """Return the OpenAPI description of ``GET`` for the content of a storage pool."""
    entry = _object(name=TEXT, size=INTEGER, format=TEXT, volume=TEXT, reason=TEXT)
    return {"tags": [Host.noun], "summary": "Show the content of a pool",
            **_route(_object(content=_array(entry)), "Name, size in GiB, format, the volume that has it, and why no "
                     "volume can take it over", _parameters("pool"))}


def describe_reach_route() -> Extra:
    """Return the OpenAPI description of ``GET`` for whether another host is alive."""
    return {"tags": [Host.noun], "summary": "Show whether another host answers at a TCP port",
            **_route(_object(reached={"type": ["boolean", "null"]}),
                     "True if the host accepts or refuses a connection, null if this one cannot tell",
                     [{"name": name, "in": "query", "required": True, "schema": schema, "description": description}
                      for name, schema, description in (
                          ("address", TEXT, "IP address or name of the host."),
                          ("port", INTEGER, "Port of its agent."))])}


def describe_text_route(description: str, media: str = "text/plain") -> Extra:
    """Return the OpenAPI description of a ``GET`` whose response is text. *media*: its media type."""
    return _route(TEXT, description, media=media)


def describe_watch_route() -> Extra:
    """Return the OpenAPI description of ``GET`` for the stream of events."""
    return {"summary": "Follow what happens", **_route(TEXT, "Server-sent events", _parameters("interval", "events"),
                                                       media="text/event-stream")}


def describe_operations_route() -> Extra:
    """Return the OpenAPI description of ``GET`` for all operations (tasks that the agent runs in the background)."""
    return {"tags": ["operation"],
            **_route(_object(operations=_array(_ref("Operation"))), "The list",
                     _parameters("limit", filters=("status", "kind", "key", "name")))}


def describe_operation_route(*parameters: str) -> Extra:
    """Return the OpenAPI description of ``GET`` or ``DELETE`` for one operation. *parameters*: the names of its query
    parameters."""
    return {"tags": ["operation"], **_route(_ref("Operation"), "The operation", _parameters(*parameters, key=True))}


def _schemas() -> Extra:
    schemas: Extra = {"Error": ERROR, "Operation": OPERATION, "Event": EventRequest.schema(CREATE),
                      "GuestCommand": GuestCommandRequest.schema(CREATE)}
    for kind in KINDS:
        schemas[kind.__name__] = {**kind.schema(SHOW if kind.settable() else LIST), "description": kind.__doc__}
        if kind.settable():
            # An ensure of an existing resource may leave out fields that are required to make it.
            schemas[f"{kind.__name__}Wanted"] = {**kind.schema(CREATE), "description": kind.__doc__}
    return schemas


def extend_openapi_document(api: FastAPI) -> None:
    """Add the schemas of all resource types to the OpenAPI document that *api* generates."""
    generate: Callable[[], Extra] = api.openapi

    def openapi() -> Extra:  # FastAPI's documented way to extend the document
        document = generate()
        document.setdefault("components", {})["schemas"] = _schemas()
        return document

    api.openapi = openapi  # type: ignore[method-assign]


def render_docs_page(document: Extra) -> str:
    """Return an OpenAPI *document* as an HTML page without scripts."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("magnetar_agent"), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("docs.html.j2").render(document=document)
