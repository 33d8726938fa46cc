# SPDX-License-Identifier: GPL-3.0-or-later
"""Subnet pools: prefixes of which subnets are cut, so that no two of a pool overlap, and no project gets more than it
may. A cloud has one default pool of each IP version at most (Neutron's extension default-subnetpools)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, RowMapping, select, true

from magnetar_control.services import Context, Document
from magnetar_control.services.network import sharing
from magnetar_control.services.network.ports.requested_networks import seen
from magnetar_control.services.network.resources import NetworkResource, add, find, of_version
from magnetar_control.services.network.routers.router_ports import GATEWAY, INTERFACE
from magnetar_control.services.network.tables import addresses, beginnings, networks, ports, subnet_pools, subnets
from magnetar_control.store.engine.database import added, advisory_lock, now
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest

from . import address_scopes

NAMESPACE = uuid.UUID("0c1f9d5a-7a56-5c4f-8f0b-5d2f6a3e1c09")
#: Bits of the prefix of a project's first network, unless an administrator says otherwise.
FIRST = 24
#: How many such a project may have of the first pool.
EACH = 4
#: Type of the error where subnets of a network would be of several address scopes.
AFFINITY = "NetworkAddressScopeAffinityError"
#: Words of the lock of pools' address scopes, while a network has subnets of several pools, or gets them.
SCOPES = ("address scopes of subnet pools",)
AnyNetwork = IPv4Network | IPv6Network
#: By IP version: the shortest prefix that subnets have, the most bits of a prefix, and the bits of what a project's
#: ``default_quota`` counts: addresses, and networks of 64 bits.
SHORTEST, BITS, COUNTED = {4: 8, 6: 64}, {4: 32, 6: 128}, {4: 32, 6: 64}


def documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows, with their prefixes as a list, and their IP version."""
    shared = sharing.told(connection, rows)
    return [{**row, "prefixes": orjson.loads(row["prefixes"]), "shared_with": shared[row["id"]]["shared_with"]}
            for row in rows]


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it."""
    nets = joined(values["prefixes"])
    version = nets[0].version
    least = values.get("min_prefixlen")
    values["min_prefixlen"] = SHORTEST[version] if least is None else least
    for name, usual in (("default_prefixlen", values["min_prefixlen"]), ("max_prefixlen", BITS[version])):
        if values.get(name) is None:
            values[name] = usual
    values.update(ip_version=version, prefixes=[str(one) for one in nets])
    _check_bounds(version, values)
    _check_default(connection, version, values)
    if values["address_scope_id"] is not None:
        address_scopes.check_pool(connection, context, values)
    add(connection, subnet_pools, values)
    sharing.begin(connection, "subnetpool", values)


def begin(connection: Connection, net: IPv4Network) -> None:
    """The default pool of a new cloud, ``default``, of which all projects' first networks are; once, so that it stays
    away when administrators remove it. No project takes so much of it that others get none."""
    length = max(FIRST, net.prefixlen)
    if default(connection, 4, true()) is None and added(connection, beginnings, name="subnet_pool", created_at=now()):
        create(connection, Context("", None), {
            **SUBNET_POOL.defaults, "id": str(uuid.uuid5(NAMESPACE, "default")), "project_id": "", "name": "default",
            "description": "First networks of projects", "prefixes": [str(net)], "shared": True, "is_default": True,
            "default_prefixlen": length, "default_quota": EACH * 2 ** (BITS[4] - length)})


def change(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Prefixes are added alone: subnets may be cut of those that are there. Whoever joins an address scope is checked
    with what it has then."""
    row = find(connection, context, SUBNET_POOL, row["id"], lock=True)  # as it is now
    for name in ("min_prefixlen", "default_prefixlen", "max_prefixlen"):
        if name in values and values[name] is None:
            del values[name]
    _check_bounds(row["ip_version"], {**row, **values})
    if values.get("is_default") and not row["is_default"]:
        _check_default(connection, row["ip_version"], values)
    if "prefixes" in values:
        values["prefixes"] = _with_more(row, values)
    final = {**row, "prefixes": orjson.loads(row["prefixes"]), **values}
    if final["address_scope_id"] != row["address_scope_id"]:
        _check_scope(connection, context, row)
    if final["address_scope_id"] is not None and values.keys() & {"prefixes", "address_scope_id"}:
        address_scopes.check_pool(connection, context, final)


def _with_more(row: RowMapping, values: Document) -> list[str]:
    """The prefixes that the pool will have. Raises ``InvalidRequest`` where one would go."""
    nets = joined(values["prefixes"])
    gone = [one for one in map(ip_network, orjson.loads(row["prefixes"])) if not _inside(one, nets)]
    if gone:
        raise InvalidRequest("Illegal update to prefixes: Existing prefixes must be a subset of the new prefixes, and "
                             f"{', '.join(map(str, gone))} would go.", type="IllegalSubnetPoolPrefixUpdate")
    return [str(one) for one in nets]


def joined(prefixes: Sequence[str]) -> list[AnyNetwork]:
    """The prefixes, those that lie side by side as one. Raises ``InvalidRequest`` for none, or two IP versions."""
    nets: list[Any] = list(map(ip_network, prefixes))
    if not nets:
        raise InvalidRequest("prefixes: must have one prefix at least.", type="EmptySubnetPoolPrefixList")
    if len({net.version for net in nets}) > 1:
        raise InvalidRequest("Cannot mix IPv4 and IPv6 prefixes in a subnet pool.", type="PrefixVersionMismatch")
    return list(collapse_addresses(nets))


def _check_bounds(version: int, values: Document) -> None:
    bounds = [(name, values[name]) for name in ("min_prefixlen", "default_prefixlen", "max_prefixlen")]
    for (low, least), (high, most) in ((bounds[0], bounds[1]), (bounds[1], bounds[2]),
                                       (bounds[2], ("the bits of an address", BITS[version]))):
        if least > most:
            raise InvalidRequest(f"Illegal prefix bounds: {low}={least} must not be more than {high}={most}.",
                                 type="IllegalSubnetPoolPrefixBounds")


def _check_default(connection: Connection, version: int, values: Document) -> None:
    if not values.get("is_default"):
        return
    advisory_lock(connection, "default subnet pool", str(version))
    there = default(connection, version, true())
    if there is not None:
        raise InvalidRequest(f"A default subnetpool for IPv{version} exists: {there}. Make it no default first.",
                             type="InvalidInput")


def default(connection: Connection, version: int, visible: ColumnElement[bool]) -> str | None:
    """The pool of which subnets are cut that name none and ask for one, where it is *visible*. It is not locked: who
    cuts a subnet has the project's turn first."""
    return connection.execute(select(subnet_pools.c.id).where(
        subnet_pools.c.ip_version == version, subnet_pools.c.is_default, visible)).scalar()


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """It goes when no subnet is cut of it."""
    find(connection, context, SUBNET_POOL, row["id"], lock=True)
    held = connection.execute(select(subnets.c.id).where(subnets.c.subnetpool_id == row["id"]).limit(1)).scalar()
    if held is not None:
        raise InvalidRequest(f"Unable to delete subnet pool: Subnet pool has existing allocations, such as {held}.",
                             type="SubnetPoolDeleteError")
    sharing.forget(connection, row["id"])


def units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """Where it gets another address scope: the routers of its subnets, which translate others' addresses then."""
    if not changed or changed.get("address_scope_id", row["address_scope_id"]) == row["address_scope_id"]:
        return []
    return [f"router/{id}" for id in connection.execute(select(ports.c.device_id).distinct().join(
        addresses, addresses.c.port_id == ports.c.id).join(subnets, subnets.c.id == addresses.c.subnet_id).where(
        subnets.c.subnetpool_id == row["id"], ports.c.device_owner.in_((INTERFACE, GATEWAY)))).scalars()]


SUBNET_POOL = NetworkResource(
    name="subnetpool", table=subnet_pools, visible=sharing.own_or_shared(subnet_pools), documents=documents,
    create=create, update=change, delete=delete, units=units, admin=frozenset({"shared", "is_default"}),
    defaults={"name": "", "description": "", "shared": False, "is_default": False, "default_quota": None,
              "address_scope_id": None},
    filters={"ip_version": of_version(subnet_pools.c.ip_version == 6)})


# Subnets ---------------------------------------------------------------------------------------------------------
def cut(connection: Connection, context: Context, values: Document) -> None:
    """Give the *values* of a new subnet its ``cidr`` and ``subnetpool_id``: of the pool that they name, or
    of the default one, with the ``cidr`` or ``prefixlen`` that they ask for."""
    usual, length = values.pop("use_default_subnetpool", False), values.pop("prefixlen", None)
    cidr, id = values.get("cidr"), values.get("subnetpool_id")
    version = values.get("ip_version") or (ip_network(cidr).version if cidr else 4)
    if usual and id is None:
        id = default(connection, version, SUBNET_POOL.visible(context))
        if id is None:
            raise InvalidRequest(f"No default subnetpool found for IPv{version}. Name a subnetpool_id or a cidr; an "
                                 "admin can make a default pool, and share it.", type="BadRequest")
    if id is None and not cidr:
        raise InvalidField("cidr", "is required, or subnetpool_id, or use_default_subnetpool")
    if length is not None and (id is None or cidr):
        raise InvalidField("prefixlen", "is for subnets of a pool without a cidr", length)
    values["subnetpool_id"] = id
    if id is not None:
        pool = find(connection, context, SUBNET_POOL, id, lock=True)
        if pool["ip_version"] != version:
            raise InvalidField("ip_version", f"must be {pool['ip_version']}, as the subnet pool is", version)
        values["cidr"] = str(_of(connection, pool, values["project_id"], cidr, length))


def check_others(connection: Connection, network: RowMapping, values: Document) -> None:
    """Raises ``InvalidRequest`` where the subnets of *network*, which is locked, that have one IP version are not of
    one pool, of pools of one address scope, or all of none."""
    six, id = ":" in values["cidr"], values["subnetpool_id"]
    query = select(*subnets.c["cidr", "subnetpool_id"], subnet_pools.c.address_scope_id).outerjoin(
        subnet_pools, subnet_pools.c.id == subnets.c.subnetpool_id).where(subnets.c.network_id == network["id"])

    def others() -> list[Any]:
        return [row for row in connection.execute(query) if (":" in row.cidr) == six and row.subnetpool_id != id]

    if not others():
        return
    advisory_lock(connection, *SCOPES)
    for row in others():  # with the scopes that they keep
        scope = row.address_scope_id
        if scope is None:
            raise InvalidRequest("Subnets hosted on the same network must be allocated from the same subnet pool. "
                                 f"{row.cidr} is of {row.subnetpool_id or 'none'}.",
                                 type="NetworkSubnetPoolAffinityError")
        if id is None or scope != connection.execute(select(subnet_pools.c.address_scope_id).where(
                subnet_pools.c.id == id)).scalar():
            raise InvalidRequest("Subnets hosted on the same network must be allocated from subnet pools of the same "
                                 f"address scope. {row.cidr} is of {scope}.", type=AFFINITY)


def _check_scope(connection: Connection, context: Context, pool: RowMapping) -> None:
    """Raises ``InvalidRequest`` where a *pool* would have another address scope than others of whose subnets it has
    some beside its own in a network, which is named to those who may see it."""
    advisory_lock(connection, *SCOPES)
    mine, other = subnets.alias(), subnets.alias()
    shared = select(mine.c.network_id).join(other, other.c.network_id == mine.c.network_id).join(
        subnet_pools, subnet_pools.c.id == other.c.subnetpool_id).where(
        mine.c.subnetpool_id == pool["id"], other.c.subnetpool_id != pool["id"],
        subnet_pools.c.ip_version == pool["ip_version"])
    if connection.execute(shared.limit(1)).first() is None:
        return
    named = connection.execute(select(networks.c.id).where(networks.c.id.in_(shared), seen(context)).limit(1)).scalar()
    raise InvalidRequest(f"{f'Network {named}' if named else 'A network of another project'} has subnets of this pool "
                         "and of others, which must be of one address scope. Those of one pool have to be deleted "
                         "first.", type=AFFINITY)


def _of(connection: Connection, pool: RowMapping, project: str, cidr: str | None, length: int | None) -> AnyNetwork:
    """The prefix of the *pool*, which is locked, that a new subnet gets."""
    bits = ip_network(cidr).prefixlen if cidr else pool["default_prefixlen"] if length is None else length
    for name, words, wrong in (("min_prefixlen", "minimum", bits < pool["min_prefixlen"]),
                               ("max_prefixlen", "maximum", bits > pool["max_prefixlen"])):
        if wrong:
            raise InvalidRequest(f"Unable to allocate subnet with prefix length {bits}, {words} allowed prefix is "
                                 f"{pool[name]}.", type=f"{words[:3].title()}PrefixSubnetAllocationError")
    rows = connection.execute(select(*subnets.c["cidr", "project_id"]).where(
        subnets.c.subnetpool_id == pool["id"])).all()
    _check_quota(pool, [ip_network(row.cidr) for row in rows if row.project_id == project], bits)
    nets: list[Any] = list(map(ip_network, orjson.loads(pool["prefixes"])))
    taken: list[Any] = [ip_network(row.cidr) for row in rows]
    if cidr:
        wanted: Any = ip_network(cidr)
        if not _inside(wanted, nets) or any(wanted.overlaps(one) for one in taken):
            raise Conflict(f"Failed to allocate subnet: Cannot allocate requested subnet {cidr} from the available set "
                           "of prefixes.", type="SubnetAllocationError")
        return wanted  # type: ignore[no-any-return]
    found = first_free(nets, taken, bits)
    if found is None:
        raise Conflict(f"Failed to allocate subnet: Insufficient prefix space to allocate subnet size /{bits}.",
                       type="SubnetAllocationError")
    return found


def _inside(net: Any, nets: Iterable[Any]) -> bool:
    return any(net.version == one.version and net.subnet_of(one) for one in nets)


def _check_quota(pool: RowMapping, have: Sequence[AnyNetwork], bits: int) -> None:
    """Raises ``Conflict`` where the project would have more of the pool than its ``default_quota``."""
    limit, counted = pool["default_quota"], COUNTED[pool["ip_version"]]
    if limit is None:
        return
    used = sum(2 ** max(counted - one.prefixlen, 0) for one in have)
    if used + 2 ** max(counted - bits, 0) > limit:
        raise Conflict(f"Per-tenant subnet pool prefix quota exceeded: {used} of {limit} are used, in units of "
                       f"/{counted}.", type="SubnetPoolQuotaExceeded")


def first_free(nets: Sequence[Any], taken: Sequence[Any], bits: int) -> AnyNetwork | None:
    """The first prefix of *bits* bits in *nets* that meets none of *taken*, in the smallest of *nets* that has one."""
    spans = sorted((int(one[0]), int(one[-1])) for one in taken)
    for net in sorted(nets, key=lambda one: (-one.prefixlen, int(one[0]))):
        if net.prefixlen > bits:
            continue
        size, at = 1 << (net.max_prefixlen - bits), int(net[0])
        for first, last in spans:
            if first > at + size - 1:
                break
            if last >= at:
                at = (last // size + 1) * size
        if at + size - 1 <= int(net[-1]):
            return type(net)((at, bits))  # type: ignore[no-any-return]
    return None
