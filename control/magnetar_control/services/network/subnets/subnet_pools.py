# SPDX-License-Identifier: GPL-3.0-or-later
"""Subnet pools: prefixes from which subnets are allocated. No two subnets of a pool overlap, and no project gets more
than its quota. A cloud has at most one default pool of each IP version (Neutron's extension default-subnetpools)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, select, true

from magnetar_control.services import Context
from magnetar_control.services.network import sharing
from magnetar_control.services.network.ports.requested_networks import networks_visible_to
from magnetar_control.services.network.resources import (
    NetworkResource,
    find_resource_row,
    insert_resource_row,
    ip_version_filter,
)
from magnetar_control.services.network.routers.router_ports import GATEWAY, INTERFACE
from magnetar_control.services.network.tables import addresses, beginnings, networks, ports, subnet_pools, subnets
from magnetar_control.store.engine.database import advisory_lock, insert_if_absent, utc_now
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest

from . import address_scopes

NAMESPACE = uuid.UUID("0c1f9d5a-7a56-5c4f-8f0b-5d2f6a3e1c09")
#: Prefix length of a project's first network, unless an administrator chooses another.
FIRST = 24
#: Number of first networks (``FIRST``) that a project's quota in the default pool allows.
EACH = 4
#: Type of the error when subnets of a network would be in several address scopes.
AFFINITY = "NetworkAddressScopeAffinityError"
#: The lock of pools' address scopes, taken while a network has or gets subnets of several pools.
SCOPES = ("address scopes of subnet pools",)
AnyNetwork = IPv4Network | IPv6Network
#: By IP version: the shortest prefix of subnets, the bits of an address, and the prefix length of the unit of a
#: project's ``default_quota``: addresses, and networks of 64 bits.
SHORTEST, BITS, COUNTED = {4: 8, 6: 64}, {4: 32, 6: 128}, {4: 32, 6: 64}


def subnet_pool_documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """Convert subnet pool *rows* to documents for callers, with ``shared`` and ``shared_with`` (ids of projects)."""
    shared = sharing.sharing_of_rows(connection, rows)
    return [{**row, "shared_with": shared[row["id"]]["shared_with"]} for row in rows]


def create_subnet_pool_row(connection: Connection, context: Context, values: Document) -> None:
    """Check *values* and insert a subnet pool."""
    nets = join_prefixes(values["prefixes"])
    version = nets[0].version
    least = values.get("min_prefixlen")
    values["min_prefixlen"] = SHORTEST[version] if least is None else least
    for name, usual in (("default_prefixlen", values["min_prefixlen"]), ("max_prefixlen", BITS[version])):
        if values.get(name) is None:
            values[name] = usual
    values.update(ip_version=version, prefixes=[str(net) for net in nets])
    _check_bounds(version, values)
    _check_default(connection, version, values)
    if values["address_scope_id"] is not None:
        address_scopes.check_pool(connection, context, values)
    insert_resource_row(connection, subnet_pools, values)
    sharing.share_new_row(connection, "subnetpool", values)


def bootstrap_default_pool(connection: Connection, net: IPv4Network) -> None:
    """Create the default IPv4 subnet pool of a new cloud with the addresses *net*, for the auto-allocated first
    networks of projects. The pool is created only once, so it stays deleted if administrators delete it. The pool
    limits how many addresses one project gets."""
    length = max(FIRST, net.prefixlen)
    if default_subnet_pool(connection, 4, true()) is None and insert_if_absent(
        connection, beginnings, name="subnet_pool", created_at=utc_now()):
        create_subnet_pool_row(connection, Context("", None), {
            **SUBNET_POOL.defaults, "id": str(uuid.uuid5(NAMESPACE, "default")), "project_id": "", "name": "default",
            "description": "First networks of projects", "prefixes": [str(net)], "shared": True, "is_default": True,
            "default_prefixlen": length, "default_quota": EACH * 2 ** (BITS[4] - length)})


def prepare_subnet_pool_update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Check the new *values* of the subnet pool *row*, and merge adjacent prefixes in them. Prefixes can only be added,
    not removed, because subnets may be allocated from the present ones. If the pool gets another address scope, or new
    prefixes, check that the pool may be in its scope."""
    row = find_resource_row(connection, context, SUBNET_POOL, row["id"], lock=True)  # as it is now
    for name in ("min_prefixlen", "default_prefixlen", "max_prefixlen"):
        if name in values and values[name] is None:
            del values[name]
    _check_bounds(row["ip_version"], {**row, **values})
    if values.get("is_default") and not row["is_default"]:
        _check_default(connection, row["ip_version"], values)
    if "prefixes" in values:
        values["prefixes"] = _with_more(row, values)
    final = {**row, **values}
    if final["address_scope_id"] != row["address_scope_id"]:
        _check_scope(connection, context, row)
    if final["address_scope_id"] is not None and values.keys() & {"prefixes", "address_scope_id"}:
        address_scopes.check_pool(connection, context, final)


def _with_more(row: RowMapping, values: Document) -> list[str]:
    """Return the prefixes in *values*, the new prefixes of the pool *row*; adjacent ones are merged into one. Raises
    ``InvalidRequest`` if the new prefixes do not contain all present prefixes of the pool."""
    nets = join_prefixes(values["prefixes"])
    removed_nets = [net for net in map(ip_network, row["prefixes"]) if not _inside(net, nets)]
    if removed_nets:
        raise InvalidRequest("Illegal update to prefixes: Existing prefixes must be a subset of the new prefixes, and "
                             f"{', '.join(map(str, removed_nets))} would go.", type="IllegalSubnetPoolPrefixUpdate")
    return [str(net) for net in nets]


def join_prefixes(prefixes: Sequence[str]) -> list[AnyNetwork]:
    """Return the *prefixes* as IP networks; adjacent ones are merged into one. Raises ``InvalidRequest`` if there are
    none, or if they mix IPv4 and IPv6."""
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
    existing_id = default_subnet_pool(connection, version, true())
    if existing_id is not None:
        raise InvalidRequest(f"A default subnetpool for IPv{version} exists: {existing_id}. Make it no default first.",
                             type="InvalidInput")


def default_subnet_pool(connection: Connection, version: int, visible: ColumnElement[bool]) -> str | None:
    """Return the id of the default subnet pool for an IP *version*; ``None`` if there is none, or the SQL condition
    *visible* is false for the pool. The pool is not locked: callers that allocate a subnet from it have locked the
    project's quota."""
    return connection.execute(select(subnet_pools.c.id).where(
        subnet_pools.c.ip_version == version, subnet_pools.c.is_default, visible)).scalar()


def prepare_subnet_pool_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Delete the RBAC policies of the subnet pool *row*, which will be deleted. Raises ``InvalidRequest`` while a
    subnet is allocated from the pool."""
    find_resource_row(connection, context, SUBNET_POOL, row["id"], lock=True)
    subnet_id = connection.execute(select(subnets.c.id).where(subnets.c.subnetpool_id == row["id"]).limit(1)).scalar()
    if subnet_id is not None:
        raise InvalidRequest(
            f"Unable to delete subnet pool: Subnet pool has existing allocations, such as {subnet_id}.",
                             type="SubnetPoolDeleteError")
    sharing.delete_sharing_policies(connection, row["id"])


def changed_subnet_pool_units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """Return the keys of the objects in the network engine (OVN) that a change of the subnet pool *row* affects: if its
    address scope changes, ``router/ID`` of each router with an interface in one of its subnets, because these routers
    then translate other addresses (NAT); otherwise none. *changed*: the new values; ``None`` for a created or deleted
    pool."""
    if not changed or changed.get("address_scope_id", row["address_scope_id"]) == row["address_scope_id"]:
        return []
    return [f"router/{id}" for id in connection.execute(select(ports.c.device_id).distinct().join(
        addresses, addresses.c.port_id == ports.c.id).join(subnets, subnets.c.id == addresses.c.subnet_id).where(
        subnets.c.subnetpool_id == row["id"], ports.c.device_owner.in_((INTERFACE, GATEWAY)))).scalars()]


SUBNET_POOL = NetworkResource(
    name="subnetpool", table=subnet_pools, visible=sharing.own_or_shared(subnet_pools),
    listed=sharing.own_or_shared_list(subnet_pools), documents=subnet_pool_documents,
    create=create_subnet_pool_row, update=prepare_subnet_pool_update, delete=prepare_subnet_pool_delete,
    units=changed_subnet_pool_units, admin=frozenset({"shared", "is_default"}),
    defaults={"name": "", "description": "", "shared": False, "is_default": False, "default_quota": None,
              "address_scope_id": None},
    filters={"ip_version": ip_version_filter(subnet_pools.c.ip_version == 6)})


# Subnets ---------------------------------------------------------------------------------------------------------
def cut_subnet(connection: Connection, context: Context, values: Document) -> None:
    """Allocate the prefix of a new subnet from a subnet pool, and set ``cidr`` and ``subnetpool_id`` in its *values*.
    *values* may request a ``cidr`` or a ``prefixlen``, and a pool or the default pool. Without a pool, ``cidr`` does
    not change. Raises ``InvalidField``, ``InvalidRequest``, ``NotFound``, ``Conflict``."""
    usual, length = values.pop("use_default_subnetpool", False), values.pop("prefixlen", None)
    cidr, id = values.get("cidr"), values.get("subnetpool_id")
    version = values.get("ip_version") or (ip_network(cidr).version if cidr else 4)
    if usual and id is None:
        id = default_subnet_pool(connection, version, SUBNET_POOL.visible(context))
        if id is None:
            raise InvalidRequest(f"No default subnetpool found for IPv{version}. Name a subnetpool_id or a cidr; an "
                                 "admin can make a default pool, and share it.", type="BadRequest")
    if id is None and not cidr:
        raise InvalidField("cidr", "is required, or subnetpool_id, or use_default_subnetpool")
    if length is not None and (id is None or cidr):
        raise InvalidField("prefixlen", "is for subnets of a pool without a cidr", length)
    values["subnetpool_id"] = id
    if id is not None:
        pool = find_resource_row(connection, context, SUBNET_POOL, id, lock=True)
        if pool["ip_version"] != version:
            raise InvalidField("ip_version", f"must be {pool['ip_version']}, as the subnet pool is", version)
        values["cidr"] = str(_allocate_prefix(connection, pool, values["project_id"], cidr, length))


def check_others(connection: Connection, network: RowMapping, values: Document) -> None:
    """Raise ``InvalidRequest`` if a subnet with *values* cannot be added to *network*: its subnets with the same IP
    version must all be from one subnet pool, from pools in one address scope, or from no pool. The caller has locked
    the network."""
    six, id = ":" in values["cidr"], values["subnetpool_id"]
    query = select(*subnets.c["cidr", "subnetpool_id"], subnet_pools.c.address_scope_id).outerjoin(
        subnet_pools, subnet_pools.c.id == subnets.c.subnetpool_id).where(subnets.c.network_id == network["id"])

    def others() -> list[Any]:
        return [row for row in connection.execute(query) if (":" in row.cidr) == six and row.subnetpool_id != id]

    if not others():
        return
    advisory_lock(connection, *SCOPES)
    for row in others():  # now their scopes cannot change
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
    """Raise ``InvalidRequest`` if the address scope of *pool* cannot change, because a network has subnets from this
    pool and from other pools: all pools of a network must be in one scope. The error names the network if the caller
    may see it."""
    advisory_lock(connection, *SCOPES)
    mine, other = subnets.alias(), subnets.alias()
    shared = select(mine.c.network_id).join(other, other.c.network_id == mine.c.network_id).join(
        subnet_pools, subnet_pools.c.id == other.c.subnetpool_id).where(
        mine.c.subnetpool_id == pool["id"], other.c.subnetpool_id != pool["id"],
        subnet_pools.c.ip_version == pool["ip_version"])
    if connection.execute(shared.limit(1)).first() is None:
        return
    named = connection.execute(select(networks.c.id).where(networks.c.id.in_(shared),
                                                           networks_visible_to(context)).limit(1)).scalar()
    raise InvalidRequest(f"{f'Network {named}' if named else 'A network of another project'} has subnets of this pool "
                         "and of others, which must be of one address scope. Those of one pool have to be deleted "
                         "first.", type=AFFINITY)


def _allocate_prefix(connection: Connection, pool: RowMapping, project: str, cidr: str | None,
                     length: int | None) -> AnyNetwork:
    """Return the prefix for a new subnet of *project*: *cidr*, or a free one of *length* bits (``None``: the pool's
    default length). The caller has locked the *pool*. Raises ``InvalidRequest`` if the pool does not allow the length,
    and ``Conflict`` if the prefix is not free or exceeds the quota."""
    bits = ip_network(cidr).prefixlen if cidr else pool["default_prefixlen"] if length is None else length
    for name, words, wrong in (("min_prefixlen", "minimum", bits < pool["min_prefixlen"]),
                               ("max_prefixlen", "maximum", bits > pool["max_prefixlen"])):
        if wrong:
            raise InvalidRequest(f"Unable to allocate subnet with prefix length {bits}, {words} allowed prefix is "
                                 f"{pool[name]}.", type=f"{words[:3].title()}PrefixSubnetAllocationError")
    rows = connection.execute(select(*subnets.c["cidr", "project_id"]).where(
        subnets.c.subnetpool_id == pool["id"])).all()
    _check_quota(pool, [ip_network(row.cidr) for row in rows if row.project_id == project], bits)
    nets: list[Any] = list(map(ip_network, pool["prefixes"]))
    taken: list[Any] = [ip_network(row.cidr) for row in rows]
    if cidr:
        requested_net: Any = ip_network(cidr)
        if not _inside(requested_net, nets) or any(requested_net.overlaps(net) for net in taken):
            raise Conflict(f"Failed to allocate subnet: Cannot allocate requested subnet {cidr} from the available set "
                           "of prefixes.", type="SubnetAllocationError")
        return requested_net  # type: ignore[no-any-return]
    free_net = first_free(nets, taken, bits)
    if free_net is None:
        raise Conflict(f"Failed to allocate subnet: Insufficient prefix space to allocate subnet size /{bits}.",
                       type="SubnetAllocationError")
    return free_net


def _inside(net: Any, nets: Iterable[Any]) -> bool:
    return any(net.version == pool_net.version and net.subnet_of(pool_net) for pool_net in nets)


def _check_quota(pool: RowMapping, have: Sequence[AnyNetwork], bits: int) -> None:
    """Raise ``Conflict`` if one more subnet of prefix length *bits* exceeds the project's share of the pool
    (``default_quota``). *have*: the subnets that the project has in the pool."""
    limit, counted = pool["default_quota"], COUNTED[pool["ip_version"]]
    if limit is None:
        return
    used = sum(2 ** max(counted - net.prefixlen, 0) for net in have)
    if used + 2 ** max(counted - bits, 0) > limit:
        raise Conflict(f"Per-tenant subnet pool prefix quota exceeded: {used} of {limit} are used, in units of "
                       f"/{counted}.", type="SubnetPoolQuotaExceeded")


def first_free(nets: Sequence[Any], taken: Sequence[Any], bits: int) -> AnyNetwork | None:
    """Return a free prefix of length *bits*; ``None`` if there is none. *nets*: the prefixes of the pool, searched from
    the smallest to the largest. *taken*: the allocated subnets; the free prefix must not overlap with them."""
    spans = sorted((int(taken_net[0]), int(taken_net[-1])) for taken_net in taken)
    for net in sorted(nets, key=lambda pool_net: (-pool_net.prefixlen, int(pool_net[0]))):
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
