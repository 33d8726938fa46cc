# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports as NICs of servers: made, bound and let go."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, bindparam, delete, select, update

from magnetar_control.services import Context, Document
from magnetar_control.store.database import now
from magnetar_core.errors import InvalidRequest

from . import ipam
from .requested_networks import in_use, subnets_of
from .tables import addresses, networks, ports, subnets

#: Whose ports Nova's are, as Neutron shows it.
OWNER = "compute:nova"
#: Ports that servers took. Only taking one gives it a place: what users write into ports makes none a server's.
TAKEN = (ports.c.device_owner == OWNER) & ports.c.place.is_not(None)
TABLES = ("networks", "subnets", "ports", "port_addresses", "security_groups", "security_group_rules")
#: Statements that each new server needs, made once: to make one takes longer than to ask it.
_PLACES = select(ports.c.id, ports.c.place).where(ports.c.device_id == bindparam("server"), TAKEN)
_NICS = select(
    *ports.c["id", "network_id", "mac_address", "tag", "made_for_server", "status", "host"],
    networks.c.name.label("network"), networks.c.type, networks.c.bridge, addresses.c.subnet_id, addresses.c.ip_address)
_NICS = _NICS.join_from(ports, networks, networks.c.id == ports.c.network_id).outerjoin(
    addresses, addresses.c.port_id == ports.c.id).order_by(
    ports.c.place, ports.c.created_at, ports.c.id, addresses.c.number)
_BY_SERVER = _NICS.where(ports.c.device_id == bindparam("server"), TAKEN)


def host_name(network_id: str) -> str:
    """Name on the hosts of the network that the agents make for *network_id*."""
    return f"mag-{network_id[:8]}"


def made_id(server_id: str, wanted: Mapping[str, Any], place: int) -> str:
    """Uuid of the port that is made for a wanted of a server; the same however often it is asked for."""
    return str(uuid.uuid5(uuid.UUID(server_id), f"port {wanted.get('make') or place}"))


def allocated(connection: Connection, context: Context, server_id: str, requested: Sequence[Document],
              groups: Sequence[str]) -> list[Document]:
    """The NICs of *requested*; what is not there yet is made, or taken from the free ports."""
    rows = connection.execute(_PLACES, {"server": server_id}).all()
    have = {row.id for row in rows}
    place = max((row.place for row in rows), default=-1)
    ids = [wanted.get("port_id") or made_id(server_id, wanted, number) for number, wanted in enumerate(requested)]
    new = [wanted for id, wanted in zip(ids, requested, strict=True) if id not in have]
    choices = subnets_of(connection, {wanted["network_id"] for wanted in new})
    for id, wanted in zip(ids, requested, strict=True):
        if id in have:
            continue
        place += 1
        values = {"device_id": server_id, "device_owner": OWNER, "place": place, "tag": wanted.get("tag")}
        if wanted.get("port_id"):
            _take(connection, id, values)
        else:
            _make(connection, context, id, wanted, choices[wanted["network_id"]],
                  {**values, "security_groups": orjson.dumps(list(groups)).decode()})
    nics = _shown(connection, connection.execute(_BY_SERVER, {"server": server_id}).mappings())
    seen = {nic["port_id"]: nic for nic in nics}
    return [seen[id] for id in ids]


def _take(connection: Connection, id: str, values: Document) -> None:
    """A port that somebody made beforehand; free, or refused."""
    free = update(ports).where(ports.c.id == id, ports.c.device_id == "")
    if not connection.execute(free.values(**values, updated_at=now())).rowcount:
        raise in_use(id)


def _make(connection: Connection, context: Context, id: str, wanted: Document, choices: Sequence[RowMapping],
          values: Document) -> None:
    if not ipam.add_port(connection, id=id, project_id=context.project_id, name="", network_id=wanted["network_id"],
                         status="DOWN", made_for_server=True, created_at=now(), **values):
        return  # another conductor made it meanwhile
    if wanted.get("fixed_ip"):
        subnet = next((one for one in choices if ipam.usable(wanted["fixed_ip"], one)), None)
        if subnet is None:
            raise InvalidRequest(f"IP address {wanted['fixed_ip']} is not a valid IP for any of the subnets on network "
                        f"{wanted['network_id']}.", type="InvalidIpForNetwork")
        ipam.give(connection, id, subnet, wanted["fixed_ip"])
    else:
        ipam.give_any(connection, id, wanted["network_id"], choices)


def released(connection: Connection, server_id: str, port_id: str | None) -> None:
    """Delete what was made with the server, and free the rest."""
    which = (ports.c.device_id == server_id) & TAKEN
    if port_id is not None:
        which &= ports.c.id == port_id
    connection.execute(delete(ports).where(which, ports.c.made_for_server))
    connection.execute(update(ports).where(which).values(
        device_id="", device_owner="", host="", status="DOWN", place=None, tag=None, updated_at=now()))


def found(connection: Connection, server_id: str) -> list[Document]:
    """The NICs of a server, in its order, with ``port_state`` and ``host``."""
    return _shown(connection, connection.execute(_BY_SERVER, {"server": server_id}).mappings(), states=True)


def _shown(connection: Connection, rows: Iterable[RowMapping], states: bool = False) -> list[Document]:
    """NICs of rows of ports, one for each address; *states*: with ``port_state`` and ``host``."""
    first: dict[str, RowMapping] = {}
    given: dict[str, list[Document]] = {}
    for row in rows:
        first.setdefault(row["id"], row)
        if row["ip_address"] is not None:
            given.setdefault(row["id"], []).append({"subnet_id": row["subnet_id"], "ip_address": row["ip_address"]})
    itself = _static(connection, [id for id, row in first.items() if row["type"] == "flat"])
    return [_nic(row, given.get(id, []), itself.get(id), states) for id, row in first.items()]


def _static(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    """Address with prefix of each port whose guest sets it itself, for there is no DHCP on the bridge."""
    if not ids:
        return {}
    rows = connection.execute(select(addresses.c.port_id, addresses.c.ip_address, subnets.c.cidr)
                              .join(subnets, subnets.c.id == addresses.c.subnet_id)
                              .where(addresses.c.port_id.in_(ids), subnets.c.enable_dhcp.is_(False))
                              .order_by(addresses.c.number.desc()))
    return {row.port_id: f"{row.ip_address}/{row.cidr.partition('/')[2]}" for row in rows}


def addresses_of(connection: Connection, ids: Sequence[str]) -> dict[str, list[Document]]:
    """Port to its ``fixed_ips``."""
    given: dict[str, list[Document]] = {}
    for row in connection.execute(select(*addresses.c["port_id", "subnet_id", "ip_address"])
                                  .where(addresses.c.port_id.in_(ids)).order_by(addresses.c.number)):
        given.setdefault(row.port_id, []).append({"subnet_id": row.subnet_id, "ip_address": row.ip_address})
    return given


def _nic(row: RowMapping, fixed: list[Document], static: str | None, states: bool) -> Document:
    flat = row["type"] == "flat"
    on_host = {"bridge": row["bridge"]} if flat else {"network": host_name(row["network_id"])}
    on_host["mac"] = row["mac_address"]
    if fixed:
        on_host["address"] = static or fixed[0]["ip_address"]
    nic = {"port_id": row["id"], "network_id": row["network_id"], "network": row["network"], "mac": row["mac_address"],
           "fixed_ips": fixed, "tag": row["tag"], "created": row["made_for_server"], "on_host": on_host}
    return {**nic, "port_state": row["status"], "host": row["host"]} if states else nic
