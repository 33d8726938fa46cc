# SPDX-License-Identifier: GPL-3.0-or-later
"""The fields of a server in bodies, answers, filters and sort keys, at each version.

requests: create, update, rebuild. answers: list (GET /servers), detail, show, basic (update and rebuild before 2.75),
rebuild (further fields that rebuild shows).
"""

from __future__ import annotations

import re
from typing import Any

from orjson import Fragment

from magnetar_control.api.nova.fields import ApiField, Fields, ListFilter
from magnetar_control.api.nova.operation import NEVER
from magnetar_control.api.nova.values import METADATA, PASSWORD, TAGS, TRUTH, body_object, device_tag
from magnetar_control.api.nova.versions import FIRST
from magnetar_control.api.values import Address, Anything, ByVersion, Id, Number, Regex, Time
from magnetar_control.compute.servers.servers import EXTENDED
from magnetar_core.errors import InvalidField
from magnetar_core.kinds.common import NAME
from magnetar_core.power import status_word
from magnetar_core.values import Base64, Choices, Const, Integer, ListOf, Nullable, OneOf, Text, Value

from .block_devices import BLOCK_DEVICES, OLD_BLOCK_DEVICES
from .server_view import (
    FAULTY,
    PROGRESS,
    ServerView,
    boot_part,
    host_id,
    render_addresses,
    render_timestamp,
    security_groups,
)

HOST_STATUS = "os_compute_api:servers:show:host_status"
UNKNOWN_HOST_STATUS = f"{HOST_STATUS}:unknown-only"
ATTRIBUTE = "OS-EXT-SRV-ATTR:"
FULL, ALL = "detail show", "detail show basic"
EVERY_REQUEST = "create update rebuild"
ADDRESS_4, ADDRESS_6, COUNT, WORD = Address(4), Address(6), Number(1), Text(1, 255)


# Values that only servers have ----------------------------------------------------------------------------------
DESCRIPTION = Nullable(Text(0, 255, r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*", "must be printable text"))
HOSTNAME = Text(2, 63, r"[a-zA-Z0-9]+[a-zA-Z0-9-]*[a-zA-Z0-9]+", "must be a host name of 2 to 63 letters, digits and -")
FQDN = Text(1, 255, r"[a-zA-Z0-9._-]*", "must be a host name of letters, digits and . _ -")
USER_DATA = Base64(65535)
#: Injected files (until 2.56). A host accepts as much of each as of user data; quotas are far below.
PERSONALITY = ListOf(body_object({"path": Text(1, 4095, r"[^\x00]+", "must not contain a NUL"), "contents": USER_DATA},
                                 "path", "contents"), 255)


class _Certificates(ListOf):
    """A validator of trusted image certificates: a list of at least one id, without duplicates."""

    def __init__(self) -> None:
        super().__init__(Text(1, 255), 50)

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """Return *value*, the list of certificate ids, unchanged. Raises ``InvalidField``."""
        certificates = super().check(value, path, version)
        if not certificates or len(set(certificates)) < len(certificates):
            raise InvalidField(path, "must name one certificate at least, and none twice; null names none", value)
        return certificates

    def schema(self, version: Any = None) -> dict[str, Any]:
        return {**super().schema(version), "minItems": 1, "uniqueItems": True}


CERTIFICATES = Nullable(_Certificates())


def _network(uuid_value: Value) -> Value:
    return body_object({"fixed_ip": Address(), "port": Nullable(Id()), "uuid": uuid_value, "tag": device_tag("2.36")})


NETWORKS = ByVersion(
    ("2.1", "2.36", ListOf(_network(Id()), 64)),
    ("2.37", None, OneOf(Choices("auto", "none"), ListOf(_network(Id()), 64))))


class _OrNull(Value):
    """A validator of a query parameter: it accepts a value that the wrapped validator *value* accepts, or the word None
    or null, which selects servers whose column is empty."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """Return the checked *value*; ``None`` for the words None and null. Raises ``InvalidField``."""
        return None if value in ("None", "null") else self.value.check(value, path, version)


class _Tags(Value):
    """A validator of a query parameter with tags, separated by commas. The number of tags is limited, because each
    becomes a condition of the database query."""

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """Return the tags in *value* as a list without duplicates. Raises ``InvalidField`` for too many tags."""
        tags = [*dict.fromkeys(str(value).split(","))]
        if len(tags) > TAGS.max:
            raise InvalidField(path, f"must name {TAGS.max} tags at most, as a server may have, and names {len(tags)}")
        return tags


# Kinds of filters -----------------------------------------------------------------------------------------------
def _equal(names: str, everyone: int = NEVER, value: Value = _OrNull(Anything())) -> ListFilter:  # noqa: B008
    return ListFilter(names, lambda query, column, filter_value: query.equal.update({column: filter_value}), value,
                      everyone)


def _of_image(name: str) -> ListFilter:
    """Return a list filter for the query parameter *name*, such as ``kernel_id``. The filter selects servers by the
    image: the image's property *name* must equal the value of the parameter, a uuid. An empty value does not filter."""
    return ListFilter(name, lambda query, _column, filter_value: query.matching.append(
        ("image", f'"{name}":"{re.escape(filter_value)}"')) if filter_value else None,
                      Text(0, 36, "[A-Za-z0-9-]*", "must be a uuid"))


def _regex(names: str, everyone: int = NEVER) -> ListFilter:
    return ListFilter(names, lambda query, column, filter_value: query.matching.append((column, filter_value)), Regex(),
                      everyone)


def _address(name: str, family: int, everyone: int) -> ListFilter:
    return ListFilter(name, lambda query, _column, filter_value: query.addresses.update({family: filter_value}),
                      Regex(), everyone)


def _tags(name: str, every: bool, negated: bool) -> ListFilter:
    return ListFilter(name, lambda query, _column, filter_value: query.tags.append((filter_value, every, negated)),
                      _Tags(), FIRST)


def _of_list(name: str, attribute: str, value: Value, everyone: int = NEVER) -> ListFilter:
    """Return a list filter for the query parameter *name*: it sets the attribute *attribute* of the
    ``ServerListRequest`` to the parameter's value. *value*: the validator. *everyone*: see ``ListFilter``."""
    return ListFilter(name, lambda query, _column, filter_value: setattr(query, attribute, filter_value), value,
                      everyone)


INTEGER = _OrNull(Number(-2**31))
FIELDS = Fields(
    ApiField("id", shows="list " + ALL, filters=(_equal("uuid"),), sorts="uuid"),
    ApiField("name", NAME, takes=EVERY_REQUEST, required="create", shows="list " + ALL,
             filters=(_regex("name", FIRST), _regex("display_name")), sorts="display_name"),
    ApiField("status", shows=ALL, reads="vm_state task_state",
             show=lambda _view, row: status_word(row.vm_state, row.task_state)),
    ApiField("tenant_id", name="project_id", shows=ALL, sorts="project_id"),
    ApiField("user_id", shows=ALL, filters=(_equal("user_id", 83),), sorts="user_id"),
    ApiField("metadata", METADATA, takes="create rebuild", shows=ALL, show=lambda _view, row: Fragment(row.metadata)),
    ApiField("hostId", shows=ALL, reads="project_id host", show=lambda _view, row: host_id(row.project_id, row.host)),
    ApiField("imageRef", OneOf(Const(""), Id()), name="image_id", takes="create",
             filters=(_equal("image", FIRST), _equal("image_ref")), sorts="image_ref"),
    ApiField("imageRef", Id(), name="image_id", takes="rebuild", required="rebuild"),
    ApiField("image", shows=ALL, reads="image_id image", show=ServerView.image),
    ApiField("flavorRef", OneOf(Text(1, 255), Integer()), name="flavor_id", takes="create", required="create",
             filters=(_equal("flavor", FIRST),), sorts="instance_type_id"),
    ApiField("flavor", shows=ALL, show=ServerView.flavor),
    ApiField("adminPass", PASSWORD, name=None, takes="create rebuild"),
    ApiField("preserve_ephemeral", TRUTH, takes="rebuild"),
    ApiField("networks", NETWORKS, takes="create"),
    ApiField("created", shows=ALL, reads="created_at", show=lambda _view, row: render_timestamp(row.created_at)),
    ApiField("created_at", filters=(_equal("created_at", 83),), sorts="created_at"),
    ApiField("updated", shows=ALL, reads="updated_at created_at",
             show=lambda _view, row: render_timestamp(row.updated_at or row.created_at)),
    ApiField("updated_at", filters=(_of_list("changes-since", "since", Time(), FIRST),), sorts="updated_at"),
    ApiField("updated_at", since=66, filters=(_of_list("changes-before", "before", Time(), FIRST),)),
    ApiField("addresses", shows=FULL, reads="addresses id", show=lambda view, row: Fragment(view.addresses(row)),
             filters=(_address("ip", 4, FIRST), _address("ip6", 6, 5))),
    ApiField("addresses", shows="basic", reads="addresses id",
             show=lambda view, row: render_addresses(view.addresses(row))),
    ApiField("accessIPv4", ADDRESS_4, name="access_ip_v4", takes=EVERY_REQUEST, shows=ALL,
             show=lambda _view, row: row.access_ip_v4 or "", filters=(_equal("access_ip_v4"),), sorts="access_ip_v4"),
    ApiField("accessIPv6", ADDRESS_6, name="access_ip_v6", takes=EVERY_REQUEST, shows=ALL,
             show=lambda _view, row: row.access_ip_v6 or "", filters=(_equal("access_ip_v6"),), sorts="access_ip_v6"),
    ApiField("links", shows="list " + ALL, reads="id", show=ServerView.self_links),
    ApiField("OS-DCF:diskConfig", Choices("AUTO", "MANUAL"), name="disk_config", takes=EVERY_REQUEST, shows=ALL,
             filters=(_equal("auto_disk_config"),), sorts="auto_disk_config"),
    ApiField("personality", PERSONALITY, name="files", takes="create rebuild", until=56),
    ApiField("availability_zone", Nullable(WORD), takes="create",
             filters=(_of_list("availability_zone", "zone", Anything(), 83),), sorts="availability_zone"),
    ApiField("OS-EXT-AZ:availability_zone", shows=FULL, reads="host availability_zone", show=ServerView.zone),
    ApiField("block_device_mapping", OLD_BLOCK_DEVICES, name=None, takes="create"),
    ApiField("block_device_mapping_v2", BLOCK_DEVICES, name=None, takes="create"),
    ApiField("config_drive", Nullable(TRUTH), takes="create", shows=FULL,
             show=lambda _view, row: "True" if row.config_drive else "",
             filters=(_equal("config_drive", 83, TRUTH),), sorts="config_drive"),
    ApiField("key_name", WORD, takes="create", shows=FULL, filters=(_equal("key_name", 83),), sorts="key_name"),
    ApiField("key_name", Nullable(WORD), takes="rebuild", shows="rebuild", since=54),
    ApiField("min_count", COUNT, name="count", takes="create"),
    ApiField("max_count", COUNT, name="most", takes="create"),
    ApiField("return_reservation_id", TRUTH, name=None, takes="create"),
    ApiField("OS-SRV-USG:launched_at", name="launched_at", shows=FULL, filters=(_equal("launched_at", 83),),
             sorts="launched_at"),
    ApiField("OS-SRV-USG:terminated_at", name="terminated_at", shows=FULL, filters=(_equal("terminated_at", 83),),
             sorts="terminated_at"),
    ApiField("os-extended-volumes:volumes_attached", shows=FULL, reads="volumes", show=ServerView.volumes),
    ApiField("OS-EXT-STS:task_state", name="task_state", shows=FULL, filters=(_equal("task_state", 83),),
             sorts="task_state"),
    ApiField("OS-EXT-STS:vm_state", name="vm_state", shows=FULL, filters=(_equal("vm_state", 83),), sorts="vm_state"),
    ApiField("OS-EXT-STS:power_state", name="power_state", shows=FULL, filters=(_equal("power_state", 83, INTEGER),),
             sorts="power_state"),
    ApiField("host", WORD, takes="create", since=74),
    ApiField(ATTRIBUTE + "host", name="host", shows=FULL, rule=EXTENDED, filters=(_equal("host node"),),
             sorts="host node"),
    ApiField("hypervisor_hostname", WORD, takes="create", since=74),
    ApiField(ATTRIBUTE + "hypervisor_hostname", name="host", shows=FULL, rule=EXTENDED),
    ApiField(ATTRIBUTE + "instance_name", shows=FULL, reads="instance_name id", rule=EXTENDED,
             show=lambda _view, row: row.instance_name or f"magnetar-{row.id[:8]}"),
    ApiField("reservation_id", filters=(_equal("reservation_id", FIRST),)),
    ApiField(ATTRIBUTE + "reservation_id", name="reservation_id", shows=FULL, since=3, rule=EXTENDED),
    ApiField("launch_index", filters=(_equal("launch_index", value=INTEGER),), sorts="launch_index"),
    ApiField(ATTRIBUTE + "launch_index", name="launch_index", shows=FULL, since=3, rule=EXTENDED),
    ApiField("hostname", filters=(_regex("hostname", 90),), sorts="hostname"),
    ApiField("hostname", HOSTNAME, takes=EVERY_REQUEST, since=90, until=93),
    ApiField("hostname", FQDN, takes=EVERY_REQUEST, since=94),
    ApiField(ATTRIBUTE + "hostname", name="hostname", shows=FULL, since=3, until=89, rule=EXTENDED),
    ApiField(ATTRIBUTE + "hostname", name="hostname", shows=FULL, since=90),
    ApiField(ATTRIBUTE + "kernel_id", shows=FULL, since=3, reads="image", rule=EXTENDED,
             show=lambda _view, row: boot_part(row, "kernel")),
    ApiField(ATTRIBUTE + "ramdisk_id", shows=FULL, since=3, reads="image", rule=EXTENDED,
             show=lambda _view, row: boot_part(row, "ramdisk")),
    ApiField("kernel_id", filters=(_of_image("kernel_id"), _of_image("ramdisk_id"))),
    ApiField("root_device_name", filters=(_equal("root_device_name"),), sorts="root_device_name"),
    ApiField(ATTRIBUTE + "root_device_name", name="root_device_name", shows=FULL, since=3, rule=EXTENDED),
    ApiField("user_data", Nullable(USER_DATA), takes="create"),
    ApiField("user_data", Nullable(USER_DATA), takes="rebuild", shows="rebuild", since=57),
    ApiField(ATTRIBUTE + "user_data", name="user_data", shows=FULL, since=3, rule=EXTENDED),
    ApiField("locked", shows=ALL, since=9, reads="locked_by", show=lambda _view, row: row.locked_by is not None),
    ApiField("locked", name="locked_by", since=73, filters=(_of_list("locked", "locked", TRUTH, FIRST),),
             sorts="locked"),
    ApiField("locked_by", filters=(_equal("locked_by"),), sorts="locked_by"),
    ApiField("locked_reason", shows=ALL, since=73),
    ApiField("host_status", shows=FULL, since=16, reads="host", rule=HOST_STATUS, show=ServerView.host_status),
    ApiField("host_status", shows=FULL, since=16, reads="host", rule=UNKNOWN_HOST_STATUS,
             show=ServerView.unknown_host_status, when=lambda shown, _row: "host_status" not in shown),
    ApiField("description", filters=(_regex("description display_description"),), sorts="display_description"),
    ApiField("description", DESCRIPTION, takes=EVERY_REQUEST, shows=ALL, since=19),
    ApiField("tags", TAGS, takes="create", since=52),
    ApiField("tags", shows=ALL, since=26, show=lambda _view, row: Fragment(row.tags), filters=(
        _tags("tags", every=True, negated=False), _tags("tags-any", every=False, negated=False),
        _tags("not-tags", every=True, negated=True), _tags("not-tags-any", every=False, negated=True))),
    ApiField("trusted_image_certificates", CERTIFICATES, name="trusted_certs", takes="create", shows=ALL, since=63,
             show=lambda _view, row: Fragment(row.trusted_certs) if row.trusted_certs else None),
    ApiField("trusted_image_certificates", CERTIFICATES, name="trusted_certs", takes="rebuild", since=63),
    ApiField("pinned_availability_zone", shows=FULL, since=96),
    ApiField("pinned_availability_zone", Nullable(WORD), takes="update", since=104),
    ApiField("scheduler_hints", shows=FULL, since=100, reads="hints", show=lambda _view, row: Fragment(row.hints)),
    ApiField("progress", shows=ALL, when=lambda shown, _row: shown["status"] in PROGRESS,
             filters=(_equal("progress", 83, INTEGER),), sorts="progress"),
    ApiField("fault", shows=ALL, when=lambda shown, row: shown["status"] in FAULTY and row.fault,
             show=ServerView.fault),
    ApiField("security_groups", ListOf(body_object({"name": WORD}), 255), takes="create"),
    # The groups come from the ports: a server that is built and has no ports shows none, as in Nova.
    ApiField("security_groups", shows=FULL, reads="security_groups addresses vm_state",
             when=lambda _shown, row: row.security_groups != "[]" and (
                 row.addresses != "{}" or row.vm_state == "building"),
             show=lambda _view, row: security_groups(row.security_groups)),
    ApiField("server_groups", shows="show basic", since=71, reads="id hints", show=ServerView.server_groups))
