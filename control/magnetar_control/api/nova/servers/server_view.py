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
from magnetar_control.api.nova.history import ApiChange
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
    """Return Nova's hostId: a hash of project id and host name. With this hash, users can distinguish hosts whose names
    they do not know. Return an empty string if *host* is ``None``."""
    return hashlib.sha224((project + host).encode()).hexdigest() if host else ""


@lru_cache(maxsize=2000)
def _flavor(text: str, embedded: bool, specs: bool, root: str) -> Fragment:
    """Return, as JSON text, the flavor that is stored in the server's row. *text*: the column ``flavor`` of this row.
    *embedded*: show the flavor's sizes (since 2.47); otherwise show only the flavor's id and a link that begins with
    *root*. *specs*: together with the sizes, also show the extra specs."""
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
    """A converter of rows of servers to JSON, for one caller and version. Each answer needs a new ``ServerView``."""

    def __init__(self, call: Call, fields: Fields, answer: str = "show") -> None:
        super().__init__(call, fields, answer)
        self._self, self._bookmark = (orjson.dumps(f"{base}/servers/")[1:-1].decode()
                                      for base in (call.base, self.root))
        self.hosts, self.embeds_flavor = call.cloud.hosts.all(), call.at(ApiChange.EMBEDDED_FLAVORS)
        self.specs = call.cloud.policy.allows(SPECS, call.context)
        self._images: dict[tuple[str, str], Fragment] = {}
        self._floating: Mapping[str, Mapping[tuple[str, str], str]] = {}

    def documents(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """Return *rows* of servers as dicts for the answer. If the answer contains ``addresses``, one query fetches the
        floating IPs of all servers."""
        stored_rows = [row.stored if isinstance(row, ServerRow) else row for row in rows]
        if "addresses" in self.empty:
            self._floating = servers.server_floating_ips(self.call.cloud, stored_rows)
        return super().documents(stored_rows)

    def addresses(self, row: Row) -> str:
        """Return the fixed addresses and floating IPs of the server as JSON text."""
        return servers.addresses_with_floating_ips(row.addresses, self._floating.get(row.id))

    def fault(self, row: Row) -> dict[str, Any]:
        """Return the server's last fault. Only administrators see the details of an internal error, because these
        contain tracebacks and host names; all users see the details of other faults."""
        fault: Mapping[str, Any] = ServerRow(row).fault or {}
        shown = {"code": fault["code"], "created": fault["created"][:19] + "Z", "message": fault["message"]}
        if fault.get("details") and (self.call.is_admin or fault["code"] < 500):
            shown["details"] = fault["details"]
        return shown

    def self_links(self, row: Row) -> Fragment:
        """Return the value of ``links`` of the server as JSON text. Formatting the text directly is faster than
        encoding a list."""
        return Fragment(f'[{{"rel":"self","href":"{self._self}{row.id}"}},'
                        f'{{"rel":"bookmark","href":"{self._bookmark}{row.id}"}}]')

    def flavor(self, row: Row) -> Fragment:
        """Return the value of ``flavor`` of the server as JSON text."""
        return _flavor(row.flavor, self.embeds_flavor, self.specs, self.root)

    def server_groups(self, row: Row) -> list[str]:
        """Return the value of ``server_groups`` of the server: a list with the uuids of its server groups."""
        # a server without the hint is in no group
        return servers.server_group_ids(self.call, row.id) if '"group"' in row.hints else []

    def image(self, row: Row) -> Any:
        """Return the value of ``image`` of the server; an empty string for a server that boots from a volume."""
        if not row.image_id:
            return ""
        key = row.image_id, row.image
        fragment = self._images.get(key)
        if fragment is None:
            shown: dict[str, Any] = {"id": row.image_id, "links": [
                {"rel": "bookmark", "href": f"{self.root}/images/{row.image_id}"}]}
            if self.call.at(ApiChange.IMAGE_PROPERTIES_SHOWN):
                shown["properties"] = ServerRow(row).image.get("properties", {})
            fragment = self._images[key] = Fragment(orjson.dumps(shown))
        return fragment

    def volumes(self, row: Row) -> Any:
        """Return the value of ``os-extended-volumes:volumes_attached``: the ids of the server's volumes, since 2.3 with
        delete_on_termination."""
        if row.volumes == "[]":
            return []
        return [{"id": attachment["volume_id"], "delete_on_termination": attachment["delete_on_termination"]}
                if self.call.at(ApiChange.DELETE_ON_TERMINATION) else {"id": attachment["volume_id"]}
                for attachment in ServerRow(row).volumes]

    def zone(self, row: Row) -> str:
        """Return the availability zone of the server's host; the requested zone if the server has no host."""
        host = self.hosts.get(row.host) if row.host else None
        return host.zone if host else row.availability_zone or ""

    def host_status(self, row: Row) -> str:
        """Return the status of the server's host, such as UP or MAINTENANCE."""
        host = self.hosts.get(row.host) if row.host else None
        return host.status if host else ""

    def unknown_host_status(self, row: Row) -> Any:
        """Return the status of the server's host if it is UNKNOWN, otherwise ``ABSENT``, so that the field is left out.
        """
        status = self.host_status(row)
        return status if status == "UNKNOWN" else ABSENT


@lru_cache(maxsize=2000)
def security_groups(text: str) -> Fragment:
    """Return the names of the server's security groups, without their ids, as JSON text for the answer. *text*: the
    column ``security_groups`` of the server's row. The result is cached, because the servers of a project have few
    different values."""
    return Fragment(orjson.dumps([{"name": group["name"]} for group in orjson.loads(text)]))


def render_timestamp(text: str | None) -> str | None:
    """Return the time *text* of a row in the format of Nova's answers, without fractions of a second; ``None`` for
    ``None``."""
    return text[:19] + "Z" if text else None


def render_addresses(text: str) -> dict[str, Any]:
    """Return the server's addresses by network, without their MAC addresses, for the answer of ``/servers/{id}/ips``.
    *text*: the server's fixed addresses and floating IPs as JSON text."""
    return {name: [{"version": address["version"], "addr": address["addr"]} for address in addresses]
            for name, addresses in orjson.loads(text).items()}


def boot_part(row: Row, field: str) -> str:
    """Return the uuid of the kernel image or ramdisk image (*field*: ``kernel`` or ``ramdisk``) of the server's image;
    an empty string if the server's image does not name one."""
    return named_parts(ServerRow(row).image).get(field, "") if '"kernel_id"' in row.image else ""
