# SPDX-License-Identifier: GPL-3.0-or-later
"""Making servers: POST /servers. Everything that can be refused is refused here; the rest is the conductor's."""

from __future__ import annotations

import random
import re
import secrets
import string
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
from sqlalchemy import bindparam, select

from magnetar_control.api.nova.blocks import BLOCK_DEVICES, OLD_BLOCK_DEVICES, checked_blocks
from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.values import (
    CERTIFICATES,
    DESCRIPTION,
    FQDN,
    HOSTNAME,
    METADATA,
    PASSWORD,
    PERSONALITY,
    TAGS,
    TRUTH,
    USER_DATA,
    device_tag,
)
from magnetar_control.api.values import Address, Anything, ByVersion, Id, Number, Wrapped, record, since
from magnetar_control.compute import quotas as quota
from magnetar_control.store import servers
from magnetar_control.store.database import now
from magnetar_control.store.tables import flavor_projects, flavors, keypairs, server_groups
from magnetar_control.web import Answer
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.fields import Field
from magnetar_core.kinds.common import NAME
from magnetar_core.values import Choices, Const, Integer, ListOf, Nullable, OneOf, Text, Value

CREATE = "os_compute_api:servers:create"
#: Gates.
ANY_NETWORKS_WORD = 37
DESCRIBED_BY_NAME_UNTIL = 18
#: Statements that each new server needs, made once.
FLAVOR = select(flavors).where(flavors.c.id == bindparam("id"))
KEYPAIR = select(keypairs.c.public_key, keypairs.c.type).where(
    keypairs.c.user_id == bindparam("user"), keypairs.c.name == bindparam("name"))


def _network(uuid_value: Value) -> Value:
    return record({"fixed_ip": Address(), "port": Nullable(Id()), "uuid": uuid_value,
                   "tag": device_tag("2.36")})


NETWORKS = ByVersion(
    ("2.1", "2.36", ListOf(_network(Id()), 64)),
    ("2.37", None, OneOf(Choices("auto", "none"), ListOf(_network(Id()), 64))))


class Hints(Value):
    """Scheduler hints; unknown ones pass, as in Nova."""

    KNOWN: Mapping[str, Value] = {"group": Id(), "different_host": OneOf(Id(), ListOf(Id(), 1000)),
                                  "same_host": OneOf(Id(), ListOf(Id(), 1000)), "query": Anything(),
                                  "target_cell": Text(1, 255), "different_cell": Anything(),
                                  "build_near_host_ip": Address(4), "cidr": Text(1, 64)}

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """The object."""
        if not isinstance(value, dict):
            raise InvalidField(path, "must be an object", value)
        return {name: self.KNOWN[name].check(item, f"{path}.{name}", version) if name in self.KNOWN else item
                for name, item in value.items()}


COUNT = Number(1)
BODY = Wrapped("server", record({
    "name": NAME, "imageRef": OneOf(Const(""), Id()), "flavorRef": OneOf(Text(1, 255), Integer()),
    "adminPass": PASSWORD, "metadata": METADATA,
    "networks": Field(NETWORKS, "", on="create"), "OS-DCF:diskConfig": Choices("AUTO", "MANUAL"),
    "accessIPv4": Address(4, empty=True), "accessIPv6": Address(6, empty=True),
    "personality": since("2.1", PERSONALITY, until="2.56"),
    "availability_zone": Nullable(Text(1, 255)), "block_device_mapping": OLD_BLOCK_DEVICES,
    "block_device_mapping_v2": BLOCK_DEVICES, "config_drive": Nullable(TRUTH), "key_name": Text(1, 255),
    "min_count": COUNT, "max_count": COUNT, "return_reservation_id": TRUTH,
    "security_groups": ListOf(record({"name": Text(1, 255)}), 255), "user_data": Nullable(USER_DATA),
    "description": since("2.19", DESCRIPTION), "tags": since("2.52", TAGS),
    "trusted_image_certificates": since("2.63", CERTIFICATES), "host": since("2.74", Text(1, 255)),
    "hypervisor_hostname": since("2.74", Text(1, 255)),
    "hostname": since("2.90", ByVersion(("2.90", "2.93", HOSTNAME), ("2.94", None, FQDN))),
}, "name", "flavorRef"), {"os:scheduler_hints": Hints(), "OS-SCH-HNT:scheduler_hints": Hints()})


def create(call: Call) -> Answer:
    """POST /servers: 202 with a stub; the servers come into being afterwards."""
    want, wanted, among = call.body["server"], checked(call), quota.bounds(call)
    with call.cloud.store.cell0.write() as connection:
        rows = wanted.rows(quota.check_servers(call, wanted.flavor, wanted.least, wanted.most, among, connection))
        servers.make(connection, rows, call.request.id)
        call.cloud.store.cell0.ring(connection, servers.ACTIONS_BELL)
    return _answer(call, want, rows, wanted.groups, want.get("adminPass") or new_password())


def prepared(call: Call) -> list[dict[str, Any]]:
    """The rows of the servers that are asked for. Changes nothing; raises what can be refused beforehand."""
    wanted = checked(call)
    return wanted.rows(quota.check_servers(call, wanted.flavor, wanted.least, wanted.most))


class Wanted(NamedTuple):
    """How many servers are asked for, from *least* to *most*, their flavor, the names of their security groups, and
    what makes as many rows as the quota lets be."""

    least: int
    most: int
    flavor: dict[str, Any]
    groups: list[str]
    rows: Callable[[int], list[dict[str, Any]]]


def checked(call: Call) -> Wanted:
    """What is asked for. Raises what can be refused beforehand, but for the quota of servers."""
    want = call.body["server"]
    if call.version >= ANY_NETWORKS_WORD and "networks" not in want:
        raise InvalidField("server.networks", "is required: a list, auto or none")
    hints = call.body.get("os:scheduler_hints") or call.body.get("OS-SCH-HNT:scheduler_hints") or {}
    least, most = _count(want)
    flavor = find_flavor(call, str(want["flavorRef"]))
    image = find_image(call, want.get("imageRef"), flavor)
    _placed(call, want, hints)
    key = _keypair(call, want.get("key_name"))
    blocks = checked_blocks(call, want, image, flavor)
    networks = call.cloud.services.network.check(call.context, want.get("networks", []))
    if most > 1:
        _for_many(networks)
    groups = call.cloud.services.network.groups(
        call.context, [one["name"] for one in want.get("security_groups") or () if "name" in one] or ["default"])
    files = want.get("personality")
    if files or want.get("metadata"):
        limits = quota.limits(call)
        quota.check_metadata(limits["metadata_items"], want.get("metadata"))
        quota.check_files(limits, files or ())
    request = {"networks": networks, "blocks": blocks, "public_key": key, "host": want.get("host"),
               "hypervisor_hostname": want.get("hypervisor_hostname"), "image": image and image["id"],
               **({"personality": files} if files else {})}
    return Wanted(least, most, flavor, groups, partial(_rows, call, want, flavor, image, hints, groups, request))


def _answer(call: Call, want: Mapping[str, Any], rows: list[dict[str, Any]], groups: list[str],
            password: str) -> Answer:
    if want.get("return_reservation_id"):
        return Answer({"reservation_id": rows[0]["reservation_id"]}, 202)
    id = rows[0]["id"]
    url = f"{call.base}/servers/{id}"
    project = "/" + call.request.extra["project"] if "project" in call.request.extra else ""
    stub = {"id": id, "links": [{"rel": "self", "href": url},
                                {"rel": "bookmark", "href": f"{call.request.root}{project}/servers/{id}"}],
            "OS-DCF:diskConfig": rows[0]["disk_config"], "security_groups": [{"name": name} for name in groups]}
    if call.settings.enable_instance_password:
        stub["adminPass"] = password
    return Answer({"server": stub}, 202, {"Location": url})


def _disk_config(image: Mapping[str, Any] | None) -> str:
    """What is meant when nothing is said: the image says whether its root partition grows."""
    said = ((image or {}).get("properties") or {}).get("auto_disk_config")
    return "AUTO" if str(said).lower() in ("true", "1", "yes") else "MANUAL"


def _for_many(networks: Sequence[Mapping[str, Any]]) -> None:
    """Raises ``InvalidRequest`` for NICs that only one server can have."""
    if any(wish["port_id"] for wish in networks):
        raise InvalidRequest("Unable to launch multiple instances with a single configured port ID. Please launch your "
                             "instance one by one with different ports.")
    if any(wish["fixed_ip"] for wish in networks):
        raise InvalidRequest("max_count cannot be greater than 1 if an fixed_ip is specified.")


def _bound(want: Mapping[str, Any], count: int, most: int) -> None:
    """Raise ``InvalidField`` for more servers than one request may make. Nova bounds them by the quota only; but that
    may be unlimited, and all rows are made at once."""
    if count > most:
        name = "min_count" if want.get("min_count", 1) > most else "max_count"
        raise InvalidField(f"server.{name}", f"must be {most} or less, whatever the quota; ask for more servers with "
                                             "more requests", want[name])


def _count(want: Mapping[str, Any]) -> tuple[int, int]:
    least = want.get("min_count", 1)
    most = want.get("max_count", least)
    if least > most:
        raise InvalidRequest("min_count must be <= max_count")
    return least, most


def find_flavor(call: Call, id: str) -> dict[str, Any]:
    """The flavor as servers keep it; *id* may be a link to it. Raises ``InvalidRequest`` where the caller may not
    use it."""
    id = id.rstrip("/").rpartition("/")[2]
    with call.cloud.store.api.read() as connection:
        row = connection.execute(FLAVOR, {"id": id}).one_or_none()
        if row is not None and not row.is_public and not call.context.is_admin:
            mine = connection.execute(select(flavor_projects.c.project_id).where(
                flavor_projects.c.flavor_number == row.number, flavor_projects.c.project_id == call.project)).first()
            row = row if mine else None
    if row is None:
        raise InvalidRequest(f"Flavor {id[:255]} could not be found.")
    return {"id": row.id, "name": row.name, "vcpus": row.vcpus, "ram": row.ram, "disk": row.disk,
            "ephemeral": row.ephemeral, "swap": row.swap, "extra_specs": orjson.loads(row.extra_specs)}


def find_image(call: Call, id: str | None, flavor: Mapping[str, Any]) -> dict[str, Any] | None:
    """The image, usable and not too large for the flavor. Raises ``InvalidRequest``."""
    if not id:
        return None
    image = call.cloud.services.image.show(call.context, id)
    if image is None:
        raise InvalidRequest(f"Image {id} could not be found.")
    if image["status"] != "active":
        raise InvalidRequest(f"Image {id} is not active.")
    if int(image.get("min_ram") or 0) > flavor["ram"]:
        raise InvalidRequest("Flavor's memory is too small for requested image.")
    if flavor["disk"]:
        need = max(int(image.get("size") or 0), int(image.get("virtual_size") or 0))
        if need > flavor["disk"] << 30:
            raise InvalidRequest("Flavor's disk is too small for requested image. Flavor disk is "
                                 f"{flavor['disk'] << 30} bytes, image is {need} bytes.")
        if int(image.get("min_disk") or 0) > flavor["disk"]:
            raise InvalidRequest("Flavor's disk is smaller than the minimum size specified in image metadata. Flavor "
                                 f"disk is {flavor['disk'] << 30} bytes, minimum size is "
                                 f"{int(image['min_disk']) << 30} bytes.")
    return image


def _placed(call: Call, want: dict[str, Any], hints: dict[str, Any]) -> None:
    """Zone, host and group that are asked for exist and may be asked for."""
    hosts = call.cloud.hosts.all()
    zone = want.get("availability_zone")
    if zone and zone.count(":"):
        call.check(f"{CREATE}:forced_host")
        zone, _colon, host = zone.partition(":")
        host = host.partition(":")[2] or host.partition(":")[0]
        want["availability_zone"], want["host"] = zone or None, host or None
    elif want.get("host") or want.get("hypervisor_hostname"):
        call.check(f"{CREATE}:requested_destination")
    for name in ("host", "hypervisor_hostname"):
        if want.get(name) and want[name] not in hosts:
            raise InvalidRequest(f"Compute host {want[name]} could not be found.")
    if zone and zone not in {host.zone for host in hosts.values()} | {call.settings.default_availability_zone}:
        raise InvalidRequest("The requested availability zone is not available")
    if hints.get("group"):
        with call.cloud.store.api.read() as connection:
            group = connection.execute(select(server_groups).where(server_groups.c.id == hints["group"])).one_or_none()
        if group is None or (group.project_id != call.project and not call.context.is_admin):
            raise InvalidRequest(f"Instance group {hints['group']} could not be found.")
        quota.check_group(call, group.id)


def _keypair(call: Call, name: str | None) -> str | None:
    """The public key for the guest; none for a certificate (x509), which no guest here reads."""
    if not name:
        return None
    with call.cloud.store.api.read() as connection:
        found = connection.execute(KEYPAIR, {"user": call.context.user_id, "name": name}).one_or_none()
    if found is None:
        raise InvalidRequest(f"Invalid key_name provided. Keypair {name} not found for user {call.context.user_id}")
    return str(found.public_key) if found.type == "ssh" else None


def new_password() -> str:
    """Twelve characters that are not mistaken for others."""
    alphabet = "".join(c for c in string.ascii_letters + string.digits if c not in "0O1lI")
    return "".join(secrets.choice(alphabet) for _at in range(12))


def hostname(name: str, id: str) -> str:
    """A host name made of a server's name, as Nova makes it."""
    found = re.sub(r"[^\w.-]+", "", re.sub(r"[ _]", "-", name.encode("ascii", "ignore").decode())).lower().strip(".-")
    found = found.replace(".", "-")[:63].strip("-")
    return found or f"server-{id}"


def _rows(call: Call, want: Mapping[str, Any], flavor: Mapping[str, Any], image: Mapping[str, Any] | None,
          hints: Mapping[str, Any], groups: list[str], request: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    _bound(want, count, call.settings.max_servers_at_once)
    moment, certificates = now(), want.get("trusted_image_certificates")
    reservation = "r-" + "".join(random.choices(string.ascii_lowercase + string.digits, k=8))  # noqa: S311 - a name
    shared = {
        "project_id": call.project, "user_id": call.context.user_id, "vm_state": "building", "task_state": "scheduling",
        "power_state": 0, "progress": 0, "description": want.get("description"),
        "availability_zone": want.get("availability_zone") or call.settings.default_schedule_zone,
        "pinned_availability_zone": want.get("availability_zone"), "flavor_id": flavor["id"],
        "flavor": servers.text(flavor), "image_id": image["id"] if image and want.get("imageRef") else None,
        "image": servers.text({name: image.get(name) for name in ("properties", "min_disk", "min_ram", "disk_format",
                                                                  "container_format")} if image else {}),
        "key_name": want.get("key_name"), "metadata": servers.text(want.get("metadata") or {}),
        "tags": servers.text(want.get("tags") or []), "user_data": want.get("user_data"),
        "config_drive": bool(want.get("config_drive")), "access_ip_v4": want.get("accessIPv4"),
        "access_ip_v6": want.get("accessIPv6"), "disk_config": want.get("OS-DCF:diskConfig") or _disk_config(image),
        "root_device_name": "/dev/vda", "reservation_id": reservation,
        "security_groups": servers.text([{"name": name} for name in groups]),
        "request": servers.text(request), "hints": servers.text(hints),
        "trusted_certs": servers.text(certificates) if certificates else None,
        "created_at": moment, "updated_at": moment,
        "interfaces": "[]", "addresses": "{}", "volumes": "[]"}
    rows = []
    for at in range(count):
        id = str(uuid.uuid4())
        name = want["name"] if count == 1 else f"{want['name']}-{at + 1}"
        host = want.get("hostname")
        rows.append({**shared, "id": id, "name": name, "launch_index": at, "hostname": hostname(name, id) if not host
                     else host if count == 1 else f"{host}-{at + 1}"})
        if call.version <= DESCRIBED_BY_NAME_UNTIL:
            rows[-1]["description"] = name
    return rows


OPERATIONS = (
    Operation(method="POST", path="/servers", handler=create, name="servers.create", rule=CREATE, body=BODY,
              status=202),
)
