# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks for servers, as the API and the conductors ask for them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import IPv4Network
from types import MappingProxyType
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Row,
    bindparam,
    case,
    exists,
    literal,
    select,
    update,
)

from magnetar_control.services import Context, Document, Documents
from magnetar_control.services.network.engine import changes
from magnetar_control.services.network.engine.changes import ChangeLog
from magnetar_control.services.network.engine.engine import EngineDifference, NetworkEngine
from magnetar_control.services.network.engine.worker import EngineWorker, Wait
from magnetar_control.services.network.ports import (
    dns,
    nics,
    port_addresses,
    qos,
    requested_networks,
    server_ports,
    virtual_functions,
)
from magnetar_control.services.network.ports import ports as port_resource
from magnetar_control.services.network.ports.trunks import TRUNK, TrunkStore
from magnetar_control.services.network.routers.floating_ips import FLOATING_IP
from magnetar_control.services.network.routers.forwardings import PORT_FORWARDING, FloatingIpStore
from magnetar_control.services.network.routers.routers import ROUTER, RouterStore
from magnetar_control.services.network.security import default_rules, host_groups
from magnetar_control.services.network.security import security_groups as security_group
from magnetar_control.services.network.security.address_groups import ADDRESS_GROUP, AddressGroupStore
from magnetar_control.services.network.security.security_groups import GroupStore, group_resource, named, rule_resource
from magnetar_control.services.network.subnets import subnet_pools
from magnetar_control.services.network.subnets.address_scopes import ADDRESS_SCOPE
from magnetar_control.services.network.subnets.subnet_pools import SUBNET_POOL
from magnetar_control.services.network.subnets.subnets import check_range, resource
from magnetar_control.store.engine.database import Database, added, collided, now, passing
from magnetar_core import addresses
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, Unavailable
from magnetar_core.flows import Sure, always
from magnetar_core.hardware.pci import PAST_OVN, REMOTE

from . import networks as network_resource
from . import quotas, sharing
from .auto_topologies import AutoTopologies
from .rbac import RBAC_POLICY
from .resources import NetworkStore, transacted
from .tables import TAKEN, networks, ports, security_groups, subnets, taken
from .tables import changes as noted
from .tables import engine as engines


def _moves(port: FromClause) -> ColumnElement[bool]:
    """Whether the engine is to be told that the server of a port, of the table, is on a host."""
    return (port.c.host != bindparam("there")) | (port.c.next_host != "") | port.c.arriving | (
        port.c.vnic_type == REMOTE)


# Statements that each server needs, made once: to make one takes longer than to execute it.
_BIND = update(ports).where(ports.c.device_id == bindparam("server"), TAKEN)
#: Of what was told to the host before, not all may have come along.
_MOVED = _BIND.values(groups_due=case(
    ((ports.c.host != "") & (ports.c.host != bindparam("there")) & host_groups.OURS, True), else_=ports.c.groups_due))
_MOVING = select(ports.c.id).where(ports.c.device_id == bindparam("server"), TAKEN, _moves(ports))
#: Where no port of the server moves, all are bound at once; with whether something is noted of one of them, and the
#: number of the engine's last change. In what it returns SQLite has no names of tables.
_own = ports.alias("own")
_OWN = (_own.c.device_id == bindparam("server")) & taken(_own)
_BOUND = _BIND.where(~exists().where(_OWN, _moves(_own))).values(status="ACTIVE", device="{}").returning(
    ports.c.id, exists().where(noted.c.unit.in_(select(literal("port/") + _own.c.id).where(_OWN))).label("noted"),
    select(engines.c.number).scalar_subquery().label("number"))
_OF_ENGINE = select(*ports.c["id", "host", "next_host", "arriving", "vnic_type", "device"]).join(
    networks, networks.c.id == ports.c.network_id).where(
    ports.c.device_id == bindparam("server"), TAKEN, networks.c.by_engine, ports.c.vnic_type.not_in(PAST_OVN))
#: What there is with an engine besides routers.
OF_ENGINE = {"port_forwardings": PORT_FORWARDING, **{f"{one.name}s": one for one in qos.RULES}}
#: Those of them whose parts can be said too.
WITH_PARTS = {"floatingips": (FloatingIpStore, FLOATING_IP), "qos_policies": (qos.PolicyStore, qos.POLICY)}
NAMESPACE = uuid.UUID("6f0a6f0c-4f0b-5c47-9f59-9b1d4f2b7a10")


def _going(port: Row[Any], host: str, running: bool) -> Document:
    """What changes of a port (of ``_OF_ENGINE``) whose server goes to *host*."""
    place = {"host": host} if port.host in ("", host) else {"next_host": host}
    values = {"host": port.host, "next_host": "", "arriving": running, **place}
    return values if any(getattr(port, name) != value for name, value in values.items()) else {}


class EmbeddedNetworks:
    """See ``services.Networks``; in the API *database*. *default_cidr*: addresses of the network or pool that
    ``bootstrap`` makes, /16 since it serves all projects; ``None`` for none. *pools*: ranges of users' subnets.
    *limits*: see ``quotas.of``. *engine*: what makes networks, where it is not the agents alone; *wait*: see
    ``EngineWorker``; *physical_mtu*: of the hosts' own networks; *domain*: of names, where a network has none."""

    def __init__(self, database: Database, default_cidr: str | None = "10.213.0.0/16",
                 pools: Sequence[IPv4Network] = addresses.PRIVATE, limits: Mapping[str, int] | None = None,
                 engine: NetworkEngine | None = None, wait: Wait = Wait(), physical_mtu: int = 1500,  # noqa: B008 - it is frozen
                 gateways: Sequence[str] = (), domain: str = "") -> None:
        self.database, self.default_cidr, self.pools = database, default_cidr, pools
        self.quota = quotas.of(limits or {}, engine is not None)
        self.moved: Callable[[Collection[str]], None] = lambda _servers: None  # see ``on_moved``
        self.worker = None if engine is None else EngineWorker(database, engine, wait, gateways)
        self.log = ChangeLog(database, engine is not None, self._leads)
        self.host_groups = host_groups.HostGroups(database)
        network = network_resource.resource(physical_mtu if engine else None)
        port = port_resource.resource(dns.domain(domain), cards=bool(engine and engine.knows_cards))
        self.resources: dict[str, NetworkStore] = {f"{one.name}s": NetworkStore(database, one, self.quota, self.log)
                          for one in (network, resource(pools), port,
                                      rule_resource(engine is not None), default_rules.resource(engine is not None))}
        self.resources["address_scopes"] = NetworkStore(database, ADDRESS_SCOPE, self.quota, self.log)
        self.resources["subnetpools"] = NetworkStore(database, SUBNET_POOL, self.quota, self.log)
        self.resources["rbac_policies"] = NetworkStore(database, RBAC_POLICY, self.quota, self.log)
        self.resources["security_groups"] = GroupStore(
            database, group_resource(engine is not None), self.quota, self.log, self.resources["security_group_rules"])
        if engine is not None:
            self.routers = RouterStore(database, ROUTER, self.quota, self.log)
            self.topologies = AutoTopologies(
                database, self.resources["networks"], self.resources["subnets"], self.routers)
            self.addresses = AddressGroupStore(database, ADDRESS_GROUP, self.quota, self.log)
            self.trunks = TrunkStore(database, TRUNK, self.quota, self.log)
            self.resources.update(address_groups=self.addresses, routers=self.routers, trunks=self.trunks, **{
                name: NetworkStore(database, one, self.quota, self.log) for name, one in OF_ENGINE.items()}, **{
                name: made(database, one, self.quota, self.log) for name, (made, one) in WITH_PARTS.items()})

    def on_moved(self, tell: Callable[[Collection[str]], None]) -> None:
        """Have *tell* called with the uuids of servers whose floating IP has changed here."""
        self.moved = tell
        if isinstance(store := self.resources.get("floatingips"), FloatingIpStore):
            store.moved = tell

    def bootstrap(self) -> None:
        """What a new cloud has: the default rules of security groups; with an engine a default subnet pool, of which
        each project gets a network of its own, else a shared network ``default``, while there is no network at all.
        May be done again and by many."""
        with self.database.write() as connection:
            default_rules.begin(connection)
        if self.default_cidr is None:
            return
        net, id = IPv4Network(self.default_cidr), str(uuid.uuid5(NAMESPACE, "network default"))
        with self.database.write() as connection:
            if connection.execute(select(networks.c.id).limit(1)).first():
                return
            if self.worker is not None:
                subnet_pools.begin(connection, net)
                return
            common = {"project_id": "", "name": "default", "created_at": now()}
            usual = {name: self.resources["networks"].resource.defaults[name] for name in ("type", "mtu")}
            if added(connection, networks, id=id, shared=True, is_default=True, **usual, **common):
                sharing.begin(connection, "network", {"id": id, "project_id": "", "shared": True})
                added(connection, subnets, id=str(uuid.uuid5(NAMESPACE, "subnet default")), network_id=id,
                      cidr=str(net), gateway_ip=str(net[1]), dns_nameservers="[]", host_routes="[]", **common,
                      allocation_pools=orjson.dumps([{"start": str(net[2]), "end": str(net[-2])}]).decode())

    def check_requested(self, context: Context, requested: Any, external: bool = False) -> list[Document]:
        """The normal form has ``make`` besides: what the id of a port to be made follows from, so that asking again
        does not make another."""
        try:
            with self.database.read() as connection:
                return requested_networks.checked(connection, context, requested, external)
        except InvalidRequest as error:
            if self.worker is None or error.details.get("type") != requested_networks.NO_NETWORK:
                raise
        self._first_network(context)
        with self.database.read() as connection:
            return requested_networks.checked(connection, context, requested, external)

    def _leads(self) -> bool:
        return self.worker is not None and self.worker.leads

    def _first_network(self, context: Context) -> None:
        """Raises ``InvalidRequest``, as Nova does, where the project can have none."""
        try:
            self.topologies.find(context, context.project_id or "")
        except (Conflict, Forbidden) as error:
            raise InvalidRequest(f"Unable to automatically allocate a network for project {context.project_id}: "
                                 f"{error.message}", type=requested_networks.NO_NETWORK) from None

    def check_range(self, context: Context, cidr: str) -> None:
        check_range(self.pools, context, IPv4Network(cidr))

    def allocate(self, context: Context, server_id: str, requested: Sequence[Document],
                 groups: Sequence[str] = (), sure: Sure = always, hostname: str = "",
                 host: str = "") -> list[Document]:
        """*groups*: names or ids of security groups of the ports that are made."""
        project, makes = context.project_id or "", not all(wanted.get("port_id") for wanted in requested)

        def once() -> list[Document]:
            with self.database.write() as connection:
                # Before any row is made: who has one that others wait for does not wait for the turn.
                most = self.quota.bound(connection, project, "port") if makes else {}
                ids = named(connection, project, groups or ["default"], make=True) if makes else []
                found = nics.allocated(connection, context, (server_id, hostname, host), requested, ids,
                                       lambda new: self.quota.check(connection, project, most, port=new))
                if self.log.enabled:
                    self.log.note(connection, *changes.ports(nic["port_id"] for nic in found))
                    if not any("port" in nic["on_host"] for nic in found):  # else the engine gets them with a port
                        self.log.note(connection, *(f"group/{id}" for id in ids))
                host_groups.changed(connection, [  # of what is on bridges other hosts are told
                    f"group/{id}" for nic in found if "bridge" in nic["on_host"]
                    for id in nic["on_host"].get("security_groups") or ()])
                sure()
                return found

        try:
            return self.database.retried(once, when=lambda error: passing(error) or collided(error))
        except Conflict as error:
            if error.details.get("type") != quotas.OVER:
                raise
            raise Forbidden(f"Maximum number of ports exceeded. {error.message}") from None

    def reserve(self, server_id: str, port_ids: Sequence[str]) -> None:
        transacted(self.database, lambda connection: server_ports.reserve(connection, server_id, port_ids))

    def room(self, context: Context, name: str,
             given: Mapping[str, Mapping[str, int]] | None = None) -> int | None:
        project = context.project_id or ""
        if given is None:
            with self.database.read() as connection:
                limit = self.quota.limits(connection, project)[name]
        else:
            limit = self.quota.merged(given, project)[name]
        if limit < 0:
            return None
        with self.database.read() as connection:
            return limit - self.quota.count(connection, project, (name,))[name]

    def prepare(self, server_id: str, host: str, sure: Sure = always, *, running: bool = False) -> None:
        if self.worker is None:
            return
        with self.database.read() as connection:
            found = connection.execute(_OF_ENGINE, {"server": server_id}).all()
        if any(_going(port, host, running) for port in found):
            with self.database.write() as connection:
                found = connection.execute(_OF_ENGINE, {"server": server_id}).all()
                for port in found:
                    if values := _going(port, host, running):
                        connection.execute(update(ports).where(ports.c.id == port.id).values(
                            **values, updated_at=now()))
                        self.log.note(connection, f"port/{port.id}")
                sure()
        for port in found:  # what lacks is said at once
            card = virtual_functions.remote(port._mapping).get("card_serial_number")  # noqa: SLF001 - SQLAlchemy's name
            if card and port.host == host and self.worker.engine.chassis_of(card) is None:
                raise Conflict(f"Port {port.id} is of the SmartNIC with serial number {card} of host {host}, and no "
                               "chassis of OVN says that it is there. On the SmartNIC: ovs-vsctl set Open_vSwitch . "
                               f"external_ids:ovn-cms-options=card-serial-number={card}.", type="PortBindingFailed")
        self.worker.settle(changes.ports(port.id for port in found))

    def stay(self, server_id: str, sure: Sure = always) -> None:
        if self.worker is None:
            return
        with self.database.write() as connection:
            found = connection.execute(_OF_ENGINE.where((ports.c.next_host != "") | ports.c.arriving), {
                "server": server_id}).scalars().all()
            connection.execute(update(ports).where(ports.c.id.in_(found)).values(
                next_host="", arriving=False, updated_at=now()))
            self.log.note(connection, *changes.ports(found))
            sure()

    def bind(self, server_id: str, host: str, sure: Sure = always,
             devices: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        self._bind(server_id, host, "ACTIVE", sure, devices)

    def bind_prepared(self, server_id: str, host: str, sure: Sure = always,
                      devices: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        if self.worker is None:
            self.bind(server_id, host, sure, devices)
            return
        with self.worker.hears() as hearing:
            found: Sequence[Row[Any]] = ()
            if not devices:
                with self.database.single() as connection:
                    sure()
                    found = connection.execute(_BOUND, {
                        "server": server_id, "there": host, "updated_at": now()}).all()
            if not found:
                self.bind(server_id, host, sure, devices)
                self.prepare(server_id, host, sure)
            else:
                self.worker.follow(changes.ports(row.id for row in found), hearing,
                                   None if found[0].noted else found[0].number or 0)

    def unbind(self, server_id: str, sure: Sure = always) -> None:
        self._bind(server_id, "", "DOWN", sure, {})

    def _bind(self, server_id: str, host: str, status: str, sure: Sure,
              devices: Mapping[str, Mapping[str, Any]]) -> None:
        with self.database.write() as connection:
            if self.log.enabled:
                self.log.note(connection, *changes.ports(connection.execute(
                    _MOVING, {"server": server_id, "there": host}).scalars()))
            connection.execute(_MOVED, {"server": server_id, "there": host, "host": host, "next_host": "",
                                        "arriving": False, "updated_at": now(), "status": status, "device": "{}"})
            for mac, device in devices.items():
                connection.execute(_BIND.where(ports.c.mac_address == mac).values(
                    device=orjson.dumps(dict(device)).decode()), {"server": server_id})
            sure()

    def release(self, server_id: str, port_id: str | None = None, sure: Sure = always, *, delete: bool = False) -> None:
        def act(connection: Connection) -> None:
            server_ports.release(connection, self.log, server_id, port_id, delete=delete)
            sure()

        transacted(self.database, act)

    def names(self) -> set[str]:
        with self.database.read() as connection:
            return {nics.host_name(id) for id in connection.execute(select(networks.c.id)).scalars()}

    def users(self) -> dict[str, str]:
        with self.database.read() as connection:
            return {row.id: row.device_id for row in connection.execute(
                select(ports.c.id, ports.c.device_id).where(TAKEN))}

    def on_host(self, network_id: str) -> Document | None:
        """The name follows from the uuid, so that it is the same on each host."""
        with self.database.read() as connection:
            network = connection.execute(select(networks).where(networks.c.id == network_id)).mappings().first()
            subnet = connection.execute(select(subnets).where(subnets.c.network_id == network_id)
                                        .order_by(subnets.c.created_at).limit(1)).mappings().first()
        if network is None or subnet is None or network["type"] not in network_resource.OF_AGENTS:
            return None
        found = {"name": nics.host_name(network_id), "mode": network["type"], "cidr": subnet["cidr"],
                 "dhcp": subnet["enable_dhcp"]}
        return found if network["mtu"] == 1500 else {**found, "mtu": network["mtu"]}

    def ports(self, server_id: str) -> list[Document]:
        """``port_state`` is ACTIVE or DOWN, ``host`` where it is bound."""
        with self.database.read() as connection:
            return nics.found(connection, server_id, states=True)

    def floating(self, server_ids: Sequence[str]) -> dict[str, dict[tuple[str, str], str]]:
        if self.worker is None or not server_ids:
            return {}  # and so no statement
        with self.database.read() as connection:
            return nics.floating(connection, server_ids)

    def groups(self, context: Context, names: Sequence[str]) -> Documents:
        """None given is the project's ``default``, which there is once in each project."""
        if set(names) <= {"default"}:
            return [{"name": "default"}]
        with self.database.read() as connection:
            ids = list(dict.fromkeys(named(connection, context.project_id or "", names)))
            known = {row.id: row.name for row in connection.execute(select(security_groups).where(
                security_groups.c.id.in_(ids)))}
        return [{"name": known[id], "id": id} if id in known else {"name": "default"} for id in ids]

    def groups_of(self, server_id: str) -> Documents:
        with self.database.read() as connection:
            return security_group.of_server(connection, server_id)

    def change_groups(self, project_id: str, server_id: str, name: str, *, add: bool) -> None:
        transacted(self.database, lambda connection: self.log.changed(
            connection, *security_group.change(connection, project_id, server_id, name, add=add)))

    def change_address(self, server_id: str, *, network_id: str = "", address: str = "") -> None:
        def act(connection: Connection) -> list[str]:
            units = port_addresses.change(connection, server_id, network_id, address)
            self.log.changed(connection, *units)
            return units

        if any(unit.startswith("router/") for unit in transacted(self.database, act)):  # a floating IP led there
            self.moved([server_id])

    def differences(self) -> list[EngineDifference]:
        """What is wrong with the engine, and what it has otherwise than the rows say; ``[]`` where there is none."""
        if self.worker is None:
            return []
        try:
            found = self.worker.differences()
        except Unavailable as error:
            found = [EngineDifference("", error.message)]
        return [*(EngineDifference("", text) for text in self.worker.engine.faults()), *found]
