# SPDX-License-Identifier: GPL-3.0-or-later
"""How answers show a server: what is made of its row for fields that are no columns (``server_fields``). JSON text of
the store goes into the answer as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from magnetar_control.api.nova.fields import ABSENT, Fields, View
from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import Call
from magnetar_control.compute.servers import servers
from magnetar_control.services.image.boot_parts import named_parts

Row = Any
Fragment = orjson.Fragment
#: Status words under which progress and fault are shown.
PROGRESS = frozenset(("ACTIVE", "BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "MIGRATING"))
FAULTY = frozenset(("ERROR", "DELETED"))
SPECS = "os_compute_api:servers:show:flavor-extra-specs"


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


class ServerView(View):
    """How one caller sees servers at one version; made once for an answer."""

    def __init__(self, call: Call, fields: Fields, answer: str = "show") -> None:
        super().__init__(call, fields, answer)
        self._self, self._bookmark = (orjson.dumps(f"{base}/servers/")[1:-1].decode()
                                      for base in (call.base, self.root))
        self.hosts, self.embeds_flavor = call.cloud.hosts.all(), call.at(Gate.EMBEDDED_FLAVORS)
        self.specs = call.cloud.policy.allows(SPECS, call.context)
        self._images: dict[tuple[str, str], Fragment] = {}
        self._floating: Mapping[str, Mapping[tuple[str, str], str]] = {}

    def documents(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """As of any view; with addresses, the floating IPs of all are asked for at once."""
        if "addresses" in self.empty:
            self._floating = servers.floating(self.call.cloud, rows)
        return super().documents(rows)

    def addresses(self, row: Row) -> str:
        """JSON text: fixed addresses, and floating IPs."""
        return servers.reached(row.addresses, self._floating.get(row.id))

    def fault(self, row: Row) -> dict[str, Any]:
        """The last failure; its details for admins, and for users when it is not a failure of the machinery, whose
        details are tracebacks and names of hosts."""
        fault = orjson.loads(row.fault)
        shown = {"code": fault["code"], "created": fault["created"][:19] + "Z", "message": fault["message"]}
        if fault.get("details") and (self.call.is_admin or fault["code"] < 500):
            shown["details"] = fault["details"]
        return shown

    def self_links(self, row: Row) -> Fragment:
        """``links`` as JSON text, which is quicker; an id needs no quoting."""
        return Fragment(f'[{{"rel":"self","href":"{self._self}{row.id}"}},'
                        f'{{"rel":"bookmark","href":"{self._bookmark}{row.id}"}}]')

    def flavor(self, row: Row) -> Fragment:
        """The flavor it was made with."""
        return _flavor(row.flavor, self.embeds_flavor, self.specs, self.root)

    def server_groups(self, row: Row) -> list[str]:
        """The uuids of the groups that it is in."""
        return servers.groups_of(self.call, row.id) if '"group"' in row.hints else []  # no other server is in one

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

    def unknown_host_status(self, row: Row) -> Any:
        """Of its host, when that is unknown."""
        status = self.host_status(row)
        return status if status == "UNKNOWN" else ABSENT


@lru_cache(maxsize=2000)
def security_groups(text: str) -> Fragment:
    """The security groups that a row keeps as JSON text, without their ids; a project's servers have the same few."""
    return Fragment(orjson.dumps([{"name": one["name"]} for one in orjson.loads(text)]))


def moment(text: str | None) -> str | None:
    """A moment without fractions of a second."""
    return text[:19] + "Z" if text else None


def addresses(text: str) -> dict[str, Any]:
    """The addresses that a row keeps as JSON text, without their MAC addresses."""
    return {name: [{"version": one["version"], "addr": one["addr"]} for one in found]
            for name, found in orjson.loads(text).items()}


def boot_part(row: Row, field: str) -> str:
    """Return the uuid of the ``kernel`` or ``ramdisk`` with which the server's image boots; empty for none."""
    return named_parts(orjson.loads(row.image)).get(field, "") if '"kernel_id"' in row.image else ""
