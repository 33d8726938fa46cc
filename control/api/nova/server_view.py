# SPDX-License-Identifier: GPL-3.0-or-later
"""A server as answers show it at each microversion: one table of keys. JSON text of the store goes into the answer as
it is."""

from __future__ import annotations

import hashlib
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import orjson

from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import Call
from magnetar_control.api.nova.versions import NEWEST
from magnetar_core.power import status

Row = Any
Fragment = orjson.Fragment
#: Status words under which progress and fault are shown.
PROGRESS = frozenset(("ACTIVE", "BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "MIGRATING"))
FAULTY = frozenset(("ERROR", "DELETED"))
EXTENDED = "os_compute_api:os-extended-server-attributes"
HOST_STATUS = "os_compute_api:servers:show:host_status"
SPECS = "os_compute_api:servers:show:flavor-extra-specs"
_ATTRIBUTE = "OS-EXT-SRV-ATTR:"


@lru_cache(maxsize=10000)
def host_id(project: str, host: str | None) -> str:
    """Nova's hostId: tells the hosts of a project apart, and nothing else."""
    return hashlib.sha224((project + host).encode()).hexdigest() if host else ""


@lru_cache(maxsize=2000)
def _flavor(text: str, embedded: bool, specs: bool, root: str) -> Fragment:
    """The flavor a server was made with: a link before 2.47, its sizes since."""
    flavor = orjson.loads(text)
    if not embedded:
        return Fragment(orjson.dumps({"id": flavor["id"], "links": [
            {"rel": "bookmark", "href": f"{root}/flavors/{flavor['id']}"}]}))
    shown = {"vcpus": flavor["vcpus"], "ram": flavor["ram"], "disk": flavor["disk"],
             "ephemeral": flavor["ephemeral"], "swap": flavor["swap"], "original_name": flavor["name"]}
    if specs:
        shown["extra_specs"] = flavor.get("extra_specs") or {}
    return Fragment(orjson.dumps(shown))


@lru_cache(maxsize=200)
def shape(fields: tuple[str, ...]) -> Any:
    """A named tuple of these columns."""
    return namedtuple("shape", fields)  # noqa: PYI024 - its fields are not known before


class View:
    """How one caller sees servers at one version; made once for an answer."""

    def __init__(self, call: Call, groups: bool = False) -> None:
        self.call, self.version = call, call.version
        self.root = call.request.root + ("/" + call.request.extra["project"] if "project" in call.request.extra else "")
        self._self, self._bookmark = (orjson.dumps(f"{base}/servers/")[1:-1].decode()
                                      for base in (call.base, self.root))
        self.hosts, self.embeds_flavor = call.cloud.hosts.all(), call.at(Gate.EMBEDDED_FLAVORS)
        rules = {rule: call.cloud.policy.allows(rule, call.context) for rule in (EXTENDED, HOST_STATUS, SPECS)}
        self.specs = rules[SPECS]
        self.groups: dict[str, list[str]] | None = {} if groups else None
        self.names, self.plain, self.made = _keys(call.version, tuple(rules.items()))
        self._make: Callable[[Row], Row] | None = None
        self._images: dict[tuple[str, str], Fragment] = {}

    def full(self, given: Row) -> dict[str, Any]:
        """All keys."""
        # A field of a named tuple is read in a fifth of the time that a field of SQLAlchemy's row takes.
        if self._make is None:
            self._make = shape(tuple(given._fields))._make
        row = self._make(given)
        shown: dict[str, Any] = dict(zip(self.names, self.plain(row), strict=True))
        for name, show in self.made:
            shown[name] = show(self, row)
        word = shown["status"]
        if word in PROGRESS:
            shown["progress"] = row.progress
        if word in FAULTY and row.fault:
            shown["fault"] = self.fault(row)
        if row.security_groups != "[]":
            shown["security_groups"] = Fragment(row.security_groups)
        if self.groups is not None and self.call.at(Gate.SERVER_GROUPS_SHOWN):
            shown["server_groups"] = self.groups.get(row.id, [])
        return shown

    def fault(self, row: Row) -> dict[str, Any]:
        """The last failure; its details for admins, and for users when it is not a failure of the machinery, whose
        details are tracebacks and names of hosts."""
        fault = orjson.loads(row.fault)
        shown = {"code": fault["code"], "created": fault["created"][:19] + "Z", "message": fault["message"]}
        if fault.get("details") and (self.call.context.is_admin or fault["code"] < 500):
            shown["details"] = fault["details"]
        return shown

    def brief(self, row: Row) -> dict[str, Any]:
        """The keys of a list."""
        return {"id": row.id, "name": row.name, "links": self.links(row.id)}

    def linked(self, id: str) -> Fragment:
        """The same as JSON text, which is quicker; an id needs no quoting."""
        return Fragment(f'[{{"rel":"self","href":"{self._self}{id}"}},'
                        f'{{"rel":"bookmark","href":"{self._bookmark}{id}"}}]')

    def links(self, id: str) -> list[dict[str, str]]:
        """Self and bookmark."""
        return [{"rel": "self", "href": f"{self.call.base}/servers/{id}"},
                {"rel": "bookmark", "href": f"{self.root}/servers/{id}"}]

    def image(self, row: Row) -> Any:
        """The image; empty text for a server that boots from a volume."""
        if not row.image_id:
            return ""
        key = row.image_id, row.image
        found = self._images.get(key)
        if found is None:
            shown: dict[str, Any] = {"id": row.image_id, "links": [
                {"rel": "bookmark", "href": f"{self.root}/images/{row.image_id}"}]}
            if self.call.at(Gate.IMAGE_PROPERTIES_SHOWN):
                shown["properties"] = orjson.loads(row.image).get("properties", {})
            found = self._images[key] = Fragment(orjson.dumps(shown))
        return found

    def volumes(self, row: Row) -> Any:
        """The volumes that it has."""
        if row.volumes == "[]":
            return []
        return [{"id": one["volume_id"], "delete_on_termination": one["delete_on_termination"]}
                if self.call.at(Gate.DELETE_ON_TERMINATION) else {"id": one["volume_id"]}
                for one in orjson.loads(row.volumes)]

    def zone(self, row: Row) -> str:
        """That of its host; while it has none, the one it asked for."""
        host = self.hosts.get(row.host) if row.host else None
        return host.zone if host else row.availability_zone or ""

    def host_status(self, row: Row) -> str:
        """Of its host."""
        host = self.hosts.get(row.host) if row.host else None
        return host.status if host else ""


def _stamp(text: str | None) -> str | None:
    return text[:19] + "Z" if text else None


def _attribute(name: str, since: int, show: str | Callable[[View, Row], Any]) -> tuple[Any, ...]:
    return _ATTRIBUTE + name, since, NEWEST, EXTENDED, show


#: key, first version, last version, rule, how: the column that is shown as it is, or what makes it.
KEYS: Sequence[tuple[str, int, int, str | None, str | Callable[[View, Row], Any]]] = (
    ("id", 1, NEWEST, None, "id"),
    ("name", 1, NEWEST, None, "name"),
    ("status", 1, NEWEST, None, lambda _v, r: status(r.vm_state, r.task_state)),
    ("tenant_id", 1, NEWEST, None, "project_id"),
    ("user_id", 1, NEWEST, None, "user_id"),
    ("metadata", 1, NEWEST, None, lambda _v, r: Fragment(r.metadata)),
    ("hostId", 1, NEWEST, None, lambda _v, r: host_id(r.project_id, r.host)),
    ("image", 1, NEWEST, None, lambda v, r: v.image(r)),
    ("flavor", 1, NEWEST, None, lambda v, r: _flavor(r.flavor, v.embeds_flavor, v.specs, v.root)),
    ("created", 1, NEWEST, None, lambda _v, r: _stamp(r.created_at)),
    ("updated", 1, NEWEST, None, lambda _v, r: _stamp(r.updated_at or r.created_at)),
    ("addresses", 1, NEWEST, None, lambda _v, r: Fragment(r.addresses)),
    ("accessIPv4", 1, NEWEST, None, lambda _v, r: r.access_ip_v4 or ""),
    ("accessIPv6", 1, NEWEST, None, lambda _v, r: r.access_ip_v6 or ""),
    ("links", 1, NEWEST, None, lambda v, r: v.linked(r.id)),
    ("OS-DCF:diskConfig", 1, NEWEST, None, "disk_config"),
    ("OS-EXT-AZ:availability_zone", 1, NEWEST, None, lambda v, r: v.zone(r)),
    ("config_drive", 1, NEWEST, None, lambda _v, r: "True" if r.config_drive else ""),
    ("key_name", 1, NEWEST, None, "key_name"),
    ("OS-SRV-USG:launched_at", 1, NEWEST, None, "launched_at"),
    ("OS-SRV-USG:terminated_at", 1, NEWEST, None, "terminated_at"),
    ("os-extended-volumes:volumes_attached", 1, NEWEST, None, lambda v, r: v.volumes(r)),
    ("OS-EXT-STS:task_state", 1, NEWEST, None, "task_state"),
    ("OS-EXT-STS:vm_state", 1, NEWEST, None, "vm_state"),
    ("OS-EXT-STS:power_state", 1, NEWEST, None, "power_state"),
    _attribute("host", 1, "host"),
    _attribute("hypervisor_hostname", 1, "host"),
    _attribute("instance_name", 1, lambda _v, r: r.instance_name or f"magnetar-{r.id[:8]}"),
    _attribute("reservation_id", 3, "reservation_id"),
    _attribute("launch_index", 3, "launch_index"),
    (_ATTRIBUTE + "hostname", 3, 89, EXTENDED, "hostname"),
    (_ATTRIBUTE + "hostname", 90, NEWEST, None, "hostname"),
    _attribute("kernel_id", 3, lambda _v, _r: ""),
    _attribute("ramdisk_id", 3, lambda _v, _r: ""),
    _attribute("root_device_name", 3, "root_device_name"),
    _attribute("user_data", 3, "user_data"),
    ("locked", 9, NEWEST, None, lambda _v, r: r.locked_by is not None),
    ("locked_reason", 73, NEWEST, None, "locked_reason"),
    ("host_status", 16, NEWEST, HOST_STATUS, lambda v, r: v.host_status(r)),
    ("description", 19, NEWEST, None, "description"),
    ("tags", 26, NEWEST, None, lambda _v, r: Fragment(r.tags)),
    ("trusted_image_certificates", 63, NEWEST, None,
     lambda _v, r: Fragment(r.trusted_certs) if r.trusted_certs else None),
    ("pinned_availability_zone", 96, NEWEST, None, "pinned_availability_zone"),
    ("scheduler_hints", 100, NEWEST, None, lambda _v, r: Fragment(r.hints)),
)


@lru_cache(maxsize=1000)
def _keys(version: int, rules: tuple[tuple[str, bool], ...]) -> tuple[Any, Any, Any]:
    """The keys that are shown: names and columns of the plain ones, and the others with how they are made."""
    allowed = dict(rules)
    here = [(name, show) for name, since, until, rule, show in KEYS
            if since <= version <= until and (rule is None or allowed[rule])]
    plain = [(name, show) for name, show in here if isinstance(show, str)]
    made = [(name, show) for name, show in here if not isinstance(show, str)]
    return [name for name, _show in plain], attrgetter(*(column for _name, column in plain)), made


#: What PUT and rebuild showed before 2.75: no extended attributes.
BASIC = frozenset((
    "accessIPv4", "accessIPv6", "addresses", "created", "description", "fault", "flavor", "hostId", "id", "image",
    "links", "locked", "locked_reason", "metadata", "name", "OS-DCF:diskConfig", "progress", "server_groups", "status",
    "tags", "tenant_id", "trusted_image_certificates", "updated", "user_id"))
