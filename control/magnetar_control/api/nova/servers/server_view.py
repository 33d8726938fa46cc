# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of a server in answers: functions for the fields that are no columns (``server_fields``).

They read rows as stored, not ``ServerRow``: JSON text of the store goes into the answer unchanged, and a document that
many servers share is decoded once for all of them."""

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
from magnetar_control.store.servers.server_row import ServerRow

Row = Any
Fragment = orjson.Fragment
#: Status words under which progress and fault are shown.
PROGRESS = frozenset(("ACTIVE", "BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "MIGRATING"))
FAULTY = frozenset(("ERROR", "DELETED"))
SPECS = "os_compute_api:servers:show:flavor-extra-specs"


@lru_cache(maxsize=10000)
def host_id(project: str, host: str | None) -> str:
    """Return Nova's hostId: a hash of project and host, so that the hosts of one project can be told apart; "" without
    a host."""
    return hashlib.sha224((project + host).encode()).hexdigest() if host else ""


@lru_cache(maxsize=2000)
def _flavor(text: str, embedded: bool, specs: bool, root: str) -> Fragment:
    """Return the flavor with which the server was created, from the row's JSON *text*. *embedded* (since 2.47): its
    sizes, with *specs* also its extra specs; otherwise its id and a link below *root*."""
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
    """The documents of servers for one caller and version; built once for an answer."""

    def __init__(self, call: Call, fields: Fields, answer: str = "show") -> None:
        super().__init__(call, fields, answer)
        self._self, self._bookmark = (orjson.dumps(f"{base}/servers/")[1:-1].decode()
                                      for base in (call.base, self.root))
        self.hosts, self.embeds_flavor = call.cloud.hosts.all(), call.at(Gate.EMBEDDED_FLAVORS)
        self.specs = call.cloud.policy.allows(SPECS, call.context)
        self._images: dict[tuple[str, str], Fragment] = {}
        self._floating: Mapping[str, Mapping[tuple[str, str], str]] = {}

    def documents(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the documents of *rows*. If documents have addresses, fetch the floating IPs of all rows together."""
        stored_rows = [row.stored if isinstance(row, ServerRow) else row for row in rows]
        if "addresses" in self.empty:
            self._floating = servers.server_floating_ips(self.call.cloud, stored_rows)
        return super().documents(stored_rows)

    def addresses(self, row: Row) -> str:
        """Return the fixed addresses and floating IPs of the server as JSON text."""
        return servers.addresses_with_floating_ips(row.addresses, self._floating.get(row.id))

    def fault(self, row: Row) -> dict[str, Any]:
        """Return the server's last fault. Administrators see its details; users do unless it is an internal fault,
        whose details are tracebacks and names of hosts."""
        fault: Mapping[str, Any] = ServerRow(row).fault or {}
        shown = {"code": fault["code"], "created": fault["created"][:19] + "Z", "message": fault["message"]}
        if fault.get("details") and (self.call.is_admin or fault["code"] < 500):
            shown["details"] = fault["details"]
        return shown

    def self_links(self, row: Row) -> Fragment:
        """Return ``links`` of the server as JSON text. Making the text directly is faster, and ids need no quoting."""
        return Fragment(f'[{{"rel":"self","href":"{self._self}{row.id}"}},'
                        f'{{"rel":"bookmark","href":"{self._bookmark}{row.id}"}}]')

    def flavor(self, row: Row) -> Fragment:
        """Return the flavor of the server."""
        return _flavor(row.flavor, self.embeds_flavor, self.specs, self.root)

    def server_groups(self, row: Row) -> list[str]:
        """Return the uuids of the server's groups."""
        # a server without the hint is in no group
        return servers.server_group_ids(self.call, row.id) if '"group"' in row.hints else []

    def image(self, row: Row) -> Any:
        """Return the image of the server; empty text for a server that boots from a volume."""
        if not row.image_id:
            return ""
        key = row.image_id, row.image
        fragment = self._images.get(key)
        if fragment is None:
            shown: dict[str, Any] = {"id": row.image_id, "links": [
                {"rel": "bookmark", "href": f"{self.root}/images/{row.image_id}"}]}
            if self.call.at(Gate.IMAGE_PROPERTIES_SHOWN):
                shown["properties"] = ServerRow(row).image.get("properties", {})
            fragment = self._images[key] = Fragment(orjson.dumps(shown))
        return fragment

    def volumes(self, row: Row) -> Any:
        """Return the ids of the server's volumes, since 2.3 with delete_on_termination."""
        if row.volumes == "[]":
            return []
        return [{"id": attachment["volume_id"], "delete_on_termination": attachment["delete_on_termination"]}
                if self.call.at(Gate.DELETE_ON_TERMINATION) else {"id": attachment["volume_id"]}
                for attachment in ServerRow(row).volumes]

    def zone(self, row: Row) -> str:
        """Return the zone of the server's host; while there is no host, the requested zone."""
        host = self.hosts.get(row.host) if row.host else None
        return host.zone if host else row.availability_zone or ""

    def host_status(self, row: Row) -> str:
        """Return the status of the server's host."""
        host = self.hosts.get(row.host) if row.host else None
        return host.status if host else ""

    def unknown_host_status(self, row: Row) -> Any:
        """Return the status of the server's host if the status is UNKNOWN, otherwise ``ABSENT``."""
        status = self.host_status(row)
        return status if status == "UNKNOWN" else ABSENT


@lru_cache(maxsize=2000)
def security_groups(text: str) -> Fragment:
    """Return the security groups from a row's JSON text, without their ids; a project's servers share a few groups."""
    return Fragment(orjson.dumps([{"name": group["name"]} for group in orjson.loads(text)]))


def render_timestamp(text: str | None) -> str | None:
    """Return the time without fractions of a second."""
    return text[:19] + "Z" if text else None


def render_addresses(text: str) -> dict[str, Any]:
    """Return the addresses from a row's JSON text, without their MAC addresses."""
    return {name: [{"version": address["version"], "addr": address["addr"]} for address in addresses]
            for name, addresses in orjson.loads(text).items()}


def boot_part(row: Row, field: str) -> str:
    """Return the uuid of the ``kernel`` or ``ramdisk`` (*field*) of the server's image; empty text if the image has
    none."""
    return named_parts(ServerRow(row).image).get(field, "") if '"kernel_id"' in row.image else ""
