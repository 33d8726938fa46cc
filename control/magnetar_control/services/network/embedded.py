# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded ``services.Networks``, which the API and the conductors call."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import IPv4Network
from types import MappingProxyType
from typing import Any

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

from magnetar_control.documents import PortOfServer, PortRequest, ServerNic
from magnetar_control.services import Context
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
from magnetar_control.services.network.security.security_groups import (
    GroupStore,
    find_group_ids,
    group_resource,
    rule_resource,
)
from magnetar_control.services.network.subnets import subnet_pools
from magnetar_control.services.network.subnets.address_scopes import ADDRESS_SCOPE
from magnetar_control.services.network.subnets.subnet_pools import SUBNET_POOL
from magnetar_control.services.network.subnets.subnets import check_range, subnet_resource
from magnetar_control.store.engine.database import (
    Database,
    insert_if_absent,
    is_transaction_conflict,
    is_transient_error,
    utc_now,
)
from magnetar_core import addresses
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, Unavailable
from magnetar_core.flows import Confirm, always_allowed
from magnetar_core.hardware.pci import PAST_OVN, REMOTE

from . import networks as network_resource
from . import quotas, sharing
from .auto_topologies import AutoTopologies
from .rbac import RBAC_POLICY
from .resources import NetworkStore, run_transaction
from .tables import TAKEN, networks, ports, security_groups, subnets, taken_by_server
from .tables import changes as noted
from .tables import engine as engines


def _moves(port: FromClause) -> ColumnElement[bool]:
    """Return the SQL condition for ports that must be written to the network engine (OVN) again when their server
    starts on a host. The SQL parameter ``there`` is the name of this host. The condition is true for ports with another
    host or an unfinished move in their row, and for all ports on a SmartNIC. *port*: the table of ports, or an alias.
    """
    return (port.c.host != bindparam("there")) | (port.c.next_host != "") | port.c.arriving | (
        port.c.vnic_type == REMOTE)


# Statements that each server needs, built once: building one takes longer than executing it.
_BIND = update(ports).where(ports.c.device_id == bindparam("server"), TAKEN)
_USER_IDS = select(ports.c.device_id).distinct().where(TAKEN, ports.c.device_id > bindparam("after")).order_by(
    ports.c.device_id).limit(bindparam("most"))
#: Binds a server's ports. If the host changes, sets ``groups_due``: the new host may lack groups that the ports have.
_MOVED = _BIND.values(groups_due=case(
    ((ports.c.host != "") & (ports.c.host != bindparam("there")) & host_groups.OURS, True), else_=ports.c.groups_due))
_MOVING = select(ports.c.id).where(ports.c.device_id == bindparam("server"), TAKEN, _moves(ports))
#: Binds all ports of a server in one statement, if none of them moves. Returns whether one of them has a note, and the
#: number of the engine's last change. In RETURNING, SQLite knows no table names.
_own = ports.alias("own")
_OWN = (_own.c.device_id == bindparam("server")) & taken_by_server(_own)
_BOUND = _BIND.where(~exists().where(_OWN, _moves(_own))).values(status="ACTIVE", device={}).returning(
    ports.c.id, exists().where(noted.c.unit.in_(select(literal("port/") + _own.c.id).where(_OWN))).label("noted"),
    select(engines.c.number).scalar_subquery().label("number"))
_OF_ENGINE = select(*ports.c["id", "host", "next_host", "arriving", "vnic_type", "device"]).join(
    networks, networks.c.id == ports.c.network_id).where(
    ports.c.device_id == bindparam("server"), TAKEN, networks.c.by_engine, ports.c.vnic_type.not_in(PAST_OVN))
#: Kinds of resources that need an engine, in addition to routers.
OF_ENGINE = {"port_forwardings": PORT_FORWARDING, **{f"{rule.name}s": rule for rule in qos.RULES}}
#: Kinds of resources that need an engine and can be set together with their parts.
WITH_PARTS = {"floatingips": (FloatingIpStore, FLOATING_IP), "qos_policies": (qos.PolicyStore, qos.POLICY)}
NAMESPACE = uuid.UUID("6f0a6f0c-4f0b-5c47-9f59-9b1d4f2b7a10")


def _going(port: Row[Any], host: str, running: bool) -> Document:
    """Return the new column values of a port when its server begins to move to *host*: {host, next_host, arriving}.
    Return {} if the port already has these values. ``arriving``: whether the port stays silent on the next host until
    the guest announces itself there. *port*: the port's row. *running*: whether the guest runs during the move."""
    place = {"host": host} if port.host in ("", host) else {"next_host": host}
    values = {"host": port.host, "next_host": "", "arriving": running, **place}
    return values if any(getattr(port, name) != value for name, value in values.items()) else {}


class EmbeddedNetworks:
    """The network service inside the control plane, an implementation of ``services.Networks``. *database*: the API
    database. *default_cidr*: the address range of the first network or subnet pool, which ``bootstrap`` creates for all
    projects; ``None``: create none. *pools*: the ranges for users' subnets. *limits*: the default quotas of projects.
    *engine*: makes networks that connect hosts, such as OVN; ``None``: each host's agent makes the networks of its
    host. *wait*: how long the start of a guest waits for the engine. *physical_mtu*: the MTU of the physical network.
    *gateways*: the hosts that may have the gateways of routers. *domain*: the default DNS domain of networks."""

    def __init__(self, database: Database, default_cidr: str | None = "10.213.0.0/16",
                 pools: Sequence[IPv4Network] = addresses.PRIVATE, limits: Mapping[str, int] | None = None,
                 engine: NetworkEngine | None = None, wait: Wait = Wait(), physical_mtu: int = 1500,  # noqa: B008 - it is frozen
                 gateways: Sequence[str] = (), domain: str = "") -> None:
        self.database, self.default_cidr, self.pools = database, default_cidr, pools
        self.quota = quotas.build_network_quotas(limits or {}, engine is not None)
        self.moved: Callable[[Collection[str]], None] = lambda _servers: None  # see ``on_moved``
        self.worker = None if engine is None else EngineWorker(database, engine, wait, gateways)
        self.log = ChangeLog(database, engine is not None, self._leads)
        self.host_groups = host_groups.HostSecurityGroups(database)
        network = network_resource.network_resource(physical_mtu if engine else None)
        port = port_resource.port_resource(dns.normalize_domain(domain),
                                           engine_knows_smartnics=bool(engine and engine.knows_cards))
        self.resources: dict[str, NetworkStore] = {f"{resource.name}s": NetworkStore(database, resource, self.quota,
                                                                                     self.log)
                          for resource in (network, subnet_resource(pools), port,
                                           rule_resource(engine is not None),
                                           default_rules.default_rule_resource(engine is not None))}
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
                name: NetworkStore(database, resource, self.quota, self.log) for name, resource in OF_ENGINE.items()},
                                  **{
                name: made(database, resource, self.quota, self.log) for name, (made, resource) in WITH_PARTS.items()})

    def on_moved(self, tell: Callable[[Collection[str]], None]) -> None:
        """Register the function *tell*, which is called with the uuids of servers after this process has changed their
        floating IPs."""
        self.moved = tell
        if isinstance(store := self.resources.get("floatingips"), FloatingIpStore):
            store.moved = tell

    def bootstrap(self) -> None:
        """Create the initial rows of a new cloud. These are the default rules of security groups, and, if there is no
        network yet: with an engine (OVN) a default subnet pool, without an engine a shared network ``default``. May run
        repeatedly, and in several processes."""
        with self.database.write() as connection:
            default_rules.bootstrap_default_rules(connection)
        if self.default_cidr is None:
            return
        net, id = IPv4Network(self.default_cidr), str(uuid.uuid5(NAMESPACE, "network default"))
        with self.database.write() as connection:
            if connection.execute(select(networks.c.id).limit(1)).first():
                return
            if self.worker is not None:
                subnet_pools.bootstrap_default_pool(connection, net)
                return
            common = {"project_id": "", "name": "default", "created_at": utc_now()}
            usual = {name: self.resources["networks"].resource.defaults[name] for name in ("type", "mtu")}
            if insert_if_absent(connection, networks, id=id, shared=True, is_default=True, **usual, **common):
                sharing.share_new_row(connection, "network", {"id": id, "project_id": "", "shared": True})
                insert_if_absent(connection, subnets, id=str(uuid.uuid5(NAMESPACE, "subnet default")), network_id=id,
                                 cidr=str(net), gateway_ip=str(net[1]), dns_nameservers=[], host_routes=[],
                                 allocation_pools=[{"start": str(net[2]), "end": str(net[-2])}], **common)

    def check_requested(self, context: Context, requested: Any, external: bool = False) -> list[PortRequest]:
        """Check the networks that a request for a new server names, and return one ``PortRequest`` for each NIC.
        *requested*: as in Nova's API. *external*: allow external networks that are not shared. If a NIC needs a new
        port, its request has the key ``make``; the port's id is derived from this key, so that a repeated ``allocate``
        creates no second port."""
        try:
            with self.database.read() as connection:
                return requested_networks.parse_requested_networks(connection, context, requested, external)
        except InvalidRequest as error:
            if self.worker is None or error.details.get("type") != requested_networks.NO_NETWORK:
                raise
        self._first_network(context)
        with self.database.read() as connection:
            return requested_networks.parse_requested_networks(connection, context, requested, external)

    def _leads(self) -> bool:
        return self.worker is not None and self.worker.leads

    def _first_network(self, context: Context) -> None:
        """Create the first network of the caller's project (an auto-allocated topology). Raises ``InvalidRequest``, as
        Nova does, when this is not possible."""
        try:
            self.topologies.find(context, context.project_id or "")
        except (Conflict, Forbidden) as error:
            raise InvalidRequest(f"Unable to automatically allocate a network for project {context.project_id}: "
                                 f"{error.message}", type=requested_networks.NO_NETWORK) from None

    def check_range(self, context: Context, cidr: str) -> None:
        check_range(self.pools, context, IPv4Network(cidr))

    def allocate(self, context: Context, server_id: str, requested: Sequence[PortRequest],
                 groups: Sequence[str] = (), confirm: Confirm = always_allowed, hostname: str = "",
                 host: str = "") -> list[ServerNic]:
        """Create the missing ports of a server, and return its NICs. *requested*: from ``check_requested``. *groups*:
        names or ids of the security groups of new ports. *hostname*: the server's host name. *host*: the compute host.
        *confirm*: called before the commit; may raise to roll back."""
        project, makes = context.project_id or "", not all(request.get("port_id") for request in requested)

        def once() -> list[ServerNic]:
            with self.database.write() as connection:
                # Before any row is created: a transaction whose rows others wait for must not wait for the quota's
                # lock.
                most = self.quota.bound(connection, project, "port") if makes else {}
                ids = find_group_ids(connection, project, groups or ["default"], make=True) if makes else []
                server_nics = nics.allocate_network_ports(connection, context, (server_id, hostname, host), requested,
                                                          ids,
                                                          lambda new: self.quota.check(connection, project, most,
                                                                                       port=new))
                if self.log.enabled:
                    self.log.note(connection, *changes.port_unit_keys(nic["port_id"] for nic in server_nics))
                    # otherwise the engine gets the groups with a port
                    if not any("port" in nic["on_host"] for nic in server_nics):
                        self.log.note(connection, *(f"group/{id}" for id in ids))
                host_groups.note_changed_units(connection, [  # other hosts need addresses on bridges
                    f"group/{id}" for nic in server_nics if "bridge" in nic["on_host"]
                    for id in nic["on_host"].get("security_groups") or ()])
                confirm()
                return server_nics

        try:
            return self.database.retried(once, when=lambda error: is_transient_error(error)
                                         or is_transaction_conflict(error))
        except Conflict as error:
            if error.details.get("type") != quotas.OVER:
                raise
            raise Forbidden(f"Maximum number of ports exceeded. {error.message}") from None

    def reserve(self, server_id: str, port_ids: Sequence[str]) -> None:
        run_transaction(self.database, lambda connection: server_ports.reserve_ports(connection, server_id, port_ids))

    def room(self, context: Context, name: str,
             set_limits: Mapping[str, Mapping[str, int]] | None = None) -> int | None:
        project = context.project_id or ""
        if set_limits is None:
            with self.database.read() as connection:
                limit = self.quota.limits(connection, project)[name]
        else:
            limit = self.quota.merged(set_limits, project)[name]
        if limit < 0:
            return None
        with self.database.read() as connection:
            return limit - self.quota.count(connection, project, (name,))[name]

    def prepare(self, server_id: str, host: str, confirm: Confirm = always_allowed, *, running: bool = False) -> None:
        if self.worker is None:
            return
        with self.database.read() as connection:
            engine_ports = connection.execute(_OF_ENGINE, {"server": server_id}).all()
        if any(_going(port, host, running) for port in engine_ports):
            with self.database.write() as connection:
                engine_ports = connection.execute(_OF_ENGINE, {"server": server_id}).all()
                for port in engine_ports:
                    if values := _going(port, host, running):
                        connection.execute(update(ports).where(ports.c.id == port.id).values(
                            **values, updated_at=utc_now()))
                        self.log.note(connection, f"port/{port.id}")
                confirm()
        for port in engine_ports:  # report missing chassis immediately
            card = virtual_functions.smartnic_device(port._mapping).get("card_serial_number")  # noqa: SLF001 - SQLAlchemy's name
            if card and port.host == host and self.worker.engine.chassis_of(card) is None:
                raise Conflict(f"Port {port.id} is of the SmartNIC with serial number {card} of host {host}, and no "
                               "chassis of OVN says that it is there. On the SmartNIC: ovs-vsctl set Open_vSwitch . "
                               f"external_ids:ovn-cms-options=card-serial-number={card}.", type="PortBindingFailed")
        self.worker.wait_until_applied(changes.port_unit_keys(port.id for port in engine_ports))

    def stay(self, server_id: str, confirm: Confirm = always_allowed) -> None:
        if self.worker is None:
            return
        with self.database.write() as connection:
            port_ids = connection.execute(_OF_ENGINE.where((ports.c.next_host != "") | ports.c.arriving), {
                "server": server_id}).scalars().all()
            connection.execute(update(ports).where(ports.c.id.in_(port_ids)).values(
                next_host="", arriving=False, updated_at=utc_now()))
            self.log.note(connection, *changes.port_unit_keys(port_ids))
            confirm()

    def bind(self, server_id: str, host: str, confirm: Confirm = always_allowed,
             devices: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        self._bind(server_id, host, "ACTIVE", confirm, devices)

    def bind_prepared(self, server_id: str, host: str, confirm: Confirm = always_allowed,
                      devices: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        if self.worker is None:
            self.bind(server_id, host, confirm, devices)
            return
        with self.worker.watch_writes() as write_watch:
            bound_rows: Sequence[Row[Any]] = ()
            if not devices:
                with self.database.single() as connection:
                    confirm()
                    bound_rows = connection.execute(_BOUND, {
                        "server": server_id, "there": host, "updated_at": utc_now()}).all()
            if not bound_rows:
                self.bind(server_id, host, confirm, devices)
                self.prepare(server_id, host, confirm)
            else:
                self.worker.follow(changes.port_unit_keys(row.id for row in bound_rows), write_watch,
                                   None if bound_rows[0].noted else bound_rows[0].number or 0)

    def unbind(self, server_id: str, confirm: Confirm = always_allowed) -> None:
        self._bind(server_id, "", "DOWN", confirm, {})

    def _bind(self, server_id: str, host: str, status: str, confirm: Confirm,
              devices: Mapping[str, Mapping[str, Any]]) -> None:
        with self.database.write() as connection:
            if self.log.enabled:
                self.log.note(connection, *changes.port_unit_keys(connection.execute(
                    _MOVING, {"server": server_id, "there": host}).scalars()))
            connection.execute(_MOVED, {"server": server_id, "there": host, "host": host, "next_host": "",
                                        "arriving": False, "updated_at": utc_now(), "status": status, "device": {}})
            for mac, device in devices.items():
                connection.execute(_BIND.where(ports.c.mac_address == mac).values(device=dict(device)),
                                   {"server": server_id})
            confirm()

    def release(self, server_id: str, port_id: str | None = None, confirm: Confirm = always_allowed, *,
                delete: bool = False) -> None:
        def act(connection: Connection) -> None:
            server_ports.release_ports(connection, self.log, server_id, port_id, delete=delete)
            confirm()

        run_transaction(self.database, act)

    def names(self) -> set[str]:
        with self.database.read() as connection:
            return {nics.host_name(id) for id in connection.execute(select(networks.c.id)).scalars()}

    def users(self, servers: Collection[str] | None = None) -> dict[str, str]:
        query = select(ports.c.id, ports.c.device_id).where(TAKEN)
        if servers is not None:
            query = query.where(ports.c.device_id.in_(list(servers)))
        with self.database.read() as connection:
            return {row.id: row.device_id for row in connection.execute(query)}

    def user_ids(self, after: str, limit: int) -> list[str]:
        with self.database.read() as connection:
            return list(connection.execute(_USER_IDS, {"after": after, "most": limit}).scalars())

    def on_host(self, network_id: str) -> Document | None:
        """Return the specification from which agents create the network *network_id* on their hosts: {name, mode, cidr,
        dhcp} and maybe mtu. Return ``None`` if the network does not exist, has no subnet, or is of a type that agents
        do not create."""
        with self.database.read() as connection:
            network = connection.execute(select(networks).where(networks.c.id == network_id)).mappings().first()
            subnet = connection.execute(select(subnets).where(subnets.c.network_id == network_id)
                                        .order_by(subnets.c.created_at).limit(1)).mappings().first()
        if network is None or subnet is None or network["type"] not in network_resource.OF_AGENTS:
            return None
        host_network = {"name": nics.host_name(network_id), "mode": network["type"], "cidr": subnet["cidr"],
                        "dhcp": subnet["enable_dhcp"]}
        return host_network if network["mtu"] == 1500 else {**host_network, "mtu": network["mtu"]}

    def ports(self, server_id: str) -> list[PortOfServer]:
        """Return the NICs of a server, each with ``port_state`` (ACTIVE or DOWN) and ``host`` (where the port is
        bound)."""
        with self.database.read() as connection:
            return nics.ports_of_server(connection, server_id)

    def floating(self, server_ids: Sequence[str]) -> dict[str, dict[tuple[str, str], str]]:
        if self.worker is None or not server_ids:
            return {}  # saves the statement
        with self.database.read() as connection:
            return nics.floating_ips_by_server(connection, server_ids)

    def groups(self, context: Context, names: Sequence[str]) -> Documents:
        """Return the security groups of the caller's project with these *names* (or ids). Without *names*: the group
        ``default`` of the project."""
        if set(names) <= {"default"}:
            return [{"name": "default"}]
        with self.database.read() as connection:
            ids = list(dict.fromkeys(find_group_ids(connection, context.project_id or "", names)))
            names_by_id = {row.id: row.name for row in connection.execute(select(
                *security_groups.c["id", "name"]).where(security_groups.c.id.in_(ids)))}
        return [{"name": names_by_id[id], "id": id} if id in names_by_id else {"name": "default"} for id in ids]

    def groups_of(self, server_id: str) -> Documents:
        with self.database.read() as connection:
            return security_group.server_security_groups(connection, server_id)

    def change_groups(self, project_id: str, server_id: str, name: str, *, add: bool) -> None:
        run_transaction(self.database, lambda connection: self.log.changed(
            connection, *security_group.change_server_groups(connection, project_id, server_id, name, add=add)))

    def change_address(self, server_id: str, *, network_id: str = "", address: str = "") -> None:
        def act(connection: Connection) -> list[str]:
            units = port_addresses.change_port_addresses(connection, server_id, network_id, address)
            self.log.changed(connection, *units)
            return units

        if any(unit.startswith("router/") for unit in run_transaction(self.database, act)):  # it had a floating IP
            self.moved([server_id])

    def differences(self) -> list[EngineDifference]:
        """Return the faults of the network engine (OVN), and the differences between its content and the database; an
        empty list without an engine."""
        if self.worker is None:
            return []
        try:
            differences = self.worker.differences()
        except Unavailable as error:
            differences = [EngineDifference("", error.message)]
        return [*(EngineDifference("", text) for text in self.worker.engine.faults()), *differences]
