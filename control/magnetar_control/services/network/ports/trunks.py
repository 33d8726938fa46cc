# SPDX-License-Identifier: GPL-3.0-or-later
"""Trunks: a server's NIC that has further ports, its subports, as VLANs (API reference, "Trunk networking").

The guest has a VLAN device for each subport, with the subport's MAC. Where subports are, and whether they are up, their
parent port says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, case, exists, insert, or_, select, update
from sqlalchemy import delete as deleting

from magnetar_control.services import Context, Document
from magnetar_control.services.network.engine import changes
from magnetar_control.services.network.resources import NetworkResource, NetworkStore, add, find, own, transacted
from magnetar_control.services.network.routers.router_ports import OWN
from magnetar_control.services.network.tables import OWNER, SUBPORT, TAKEN, networks, ports, subports, trunks
from magnetar_control.store.engine.database import now
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from . import reservations, virtual_functions

#: Subports of one trunk: as many as there are tags.
MOST = 4094
#: The only way in which a guest tells subports apart.
VLAN = "vlan"
_parents = ports.alias("trunk_parents")


def documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows, with their subports and whether a running server has them."""
    held = _held(connection, [row["id"] for row in rows])
    states = {row.id: row.status for row in connection.execute(select(*ports.c["id", "status"]).where(
        ports.c.id.in_([row["port_id"] for row in rows])))}
    return [{**row, "status": states.get(row["port_id"], "DOWN"), "sub_ports": held.get(row["id"], [])}
            for row in rows]  # trunk and port may have gone since


def _held(connection: Connection, ids: Sequence[str]) -> dict[str, list[Document]]:
    """Trunk to its subports, by tag."""
    found: dict[str, list[Document]] = {}
    for row in connection.execute(select(subports).where(subports.c.trunk_id.in_(ids)).order_by(
            subports.c.trunk_id, subports.c.segmentation_id)):
        found.setdefault(row.trunk_id, []).append(
            {"port_id": row.port_id, "segmentation_type": VLAN, "segmentation_id": row.segmentation_id})
    return found


def _inside(connection: Connection, id: str) -> list[Document]:
    """The subports of one trunk."""
    return _held(connection, [id]).get(id, [])


def of_ports(connection: Connection, rows: Sequence[RowMapping]) -> dict[str, Document]:
    """Port to what trunks say of it: of a parent ``trunk_details`` (Neutron's), of a subport the ``status`` and
    ``host`` that it has with its parent."""
    found: dict[str, Document] = {row["id"]: {} for row in rows}
    for row in connection.execute(select(
            trunks.c.id, trunks.c.port_id.label("parent"), *subports.c["port_id", "segmentation_id"],
            ports.c.mac_address).outerjoin(subports, subports.c.trunk_id == trunks.c.id).outerjoin(
            ports, ports.c.id == subports.c.port_id).where(trunks.c.port_id.in_(list(found))).order_by(
            subports.c.segmentation_id)):
        details = found[row.parent].setdefault("trunk_details", {"trunk_id": row.id, "sub_ports": []})
        if row.port_id is not None:
            details["sub_ports"].append({
                "port_id": row.port_id, "segmentation_type": VLAN, "segmentation_id": row.segmentation_id,
                "mac_address": row.mac_address})
    inside = [row["id"] for row in rows if row["device_owner"] == SUBPORT]
    for row in connection.execute(select(subports.c.port_id, *_parents.c["status", "host"]).join(
            trunks, trunks.c.id == subports.c.trunk_id).join(_parents, _parents.c.id == trunks.c.port_id).where(
            subports.c.port_id.in_(inside))) if inside else ():
        found[row.port_id].update(status=row.status, host=row.host)
    return found


def bound(name: str) -> Callable[[Sequence[str]], ColumnElement[bool]]:
    """The filter of ports by *name*, status or host: that of its parent counts for a subport."""
    def condition(values: Sequence[str]) -> ColumnElement[bool]:
        parent = exists().where(
            subports.c.port_id == ports.c.id, trunks.c.id == subports.c.trunk_id, _parents.c.id == trunks.c.port_id,
            _parents.c[name].in_(values))
        return or_(and_(ports.c.device_owner != SUBPORT, ports.c[name].in_(values)),
                   and_(ports.c.device_owner == SUBPORT, parent))
    return condition


def _with_status(values: Sequence[str]) -> ColumnElement[bool]:
    return trunks.c.port_id.in_(select(ports.c.id).where(ports.c.status.in_(values)))


def check_no_subport(connection: Connection, port_id: str) -> None:
    """Raises ``Conflict`` for a subport."""
    trunk = connection.execute(select(subports.c.trunk_id).where(subports.c.port_id == port_id)).scalar()
    if trunk is not None:
        raise Conflict(f"Port {port_id} is currently a subport for trunk {trunk}. Remove it there first: openstack "
                       f"network trunk unset --subport {port_id} {trunk}.", type="PortInUseAsSubPort")


def check_in_none(connection: Connection, port_id: str) -> None:
    """Raises ``Conflict`` for a port that a trunk has."""
    check_no_subport(connection, port_id)
    trunk = connection.execute(select(trunks.c.id).where(trunks.c.port_id == port_id)).scalar()
    if trunk is not None:
        raise Conflict(f"Port {port_id} is currently a parent port for trunk {trunk}. Delete the trunk first.",
                       type="PortInUseAsTrunkParent")


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it, with its subports. Its port stays when a server goes that it was made with: the trunk needs it."""
    given = values["sub_ports"]
    _check_once(given)
    known = _locked(connection, context, {values["port_id"], *(one["port_id"] for one in given)})
    parent = known[values["port_id"]]
    if parent["trunk"] or parent["inside"] or parent["device_owner"].startswith(OWN):
        raise Conflict(f"Port {parent['id']} is currently in use and is not eligible for use as a parent port.",
                       type="ParentPortInUse")
    _check_engine(parent)
    add(connection, trunks, values)
    connection.execute(update(ports).where(ports.c.id == parent["id"]).values(made_for_server=False))
    _enter(connection, known, {"id": values["id"], "port_id": parent["id"]}, given)


def _locked(connection: Connection, context: Context, ids: Collection[str]) -> dict[str, RowMapping]:
    """The ports of *ids* that the caller has, locked until the transaction ends: with their network, whose MTU stays
    as long, the trunk whose parent each is (``trunk``), and the one whose subport (``inside``). Raises ``NotFound``.
    """
    rows = connection.execute(select(ports).where(ports.c.id.in_(list(ids)), own(ports)(context)).order_by(
        ports.c.id).with_for_update()).mappings().all()
    if missing := set(ids) - {row["id"] for row in rows}:
        raise NotFound(f"Port {min(missing)} could not be found.", type="PortNotFound")
    return {row["id"]: row for row in connection.execute(select(
        *ports.c["id", "network_id", "device_id", "device_owner", "vnic_type"], networks.c.by_engine, networks.c.type,
        networks.c.mtu, trunks.c.id.label("trunk"), subports.c.trunk_id.label("inside")).join(
        networks, networks.c.id == ports.c.network_id).outerjoin(trunks, trunks.c.port_id == ports.c.id).outerjoin(
        subports, subports.c.port_id == ports.c.id).where(ports.c.id.in_(list(ids))).order_by(
        networks.c.id).with_for_update(read=True, of=networks)).mappings()}


def _check_once(given: Sequence[Document]) -> None:
    if twice := next((id for id, times in Counter(one["port_id"] for one in given).items() if times > 1), None):
        raise InvalidRequest(f"sub_ports: port {twice} is given twice, and is one subport.", type="InvalidInput")


def _check_engine(port: RowMapping) -> None:
    virtual_functions.check_reached(port)
    if not port["by_engine"]:
        raise InvalidRequest(f"Port {port['id']} is on network {port['network_id']}, which hosts make without OVN "
                             f"(type {port['type']}): trunks are of ports on networks that OVN makes.",
                             type="InvalidInput")


def _enter(connection: Connection, known: Mapping[str, RowMapping], trunk: Mapping[Any, Any],
           given: Sequence[Document]) -> None:
    """Make the ports of *given*, which are *known*, subports of the trunk. Raises an error for one that cannot be."""
    tags = set(connection.execute(select(subports.c.segmentation_id).where(
        subports.c.trunk_id == trunk["id"])).scalars())
    for one in given:
        port, tag = known[one["port_id"]], one["segmentation_id"]
        if port["id"] == trunk["port_id"] or port["trunk"]:
            raise Conflict(f"Port {port['id']} is currently in use and is not eligible for use as a parent port: a "
                           "trunk's parent is no subport.", type="ParentPortInUse")
        if port["inside"]:
            raise Conflict(f"Port {port['id']} is in use by another trunk: {port['inside']}.", type="TrunkPortInUse")
        if port["device_id"]:
            raise Conflict(f"Unable to complete operation on port {port['id']} for network {port['network_id']}. Port "
                           f"already has an attached device {port['device_id']}.", type="PortInUse")
        _check_engine(port)
        most = known[trunk["port_id"]]["mtu"]
        if port["mtu"] > most:
            raise Conflict(f"MTU {port['mtu']} of subport {port['id']} cannot be greater than MTU {most} of trunk "
                           f"{trunk['id']}.", type="SubPortMtuGreaterThanTrunkPortMtu")
        if tag in tags:
            raise Conflict(f"segmentation_type {VLAN} and segmentation_id {tag} already in use on trunk "
                           f"{trunk['id']}.", type="DuplicateSubPort")
        tags.add(tag)
    if given:
        reservations.check_subports(connection, [one["port_id"] for one in given])
        connection.execute(insert(subports), [{
            "port_id": one["port_id"], "trunk_id": trunk["id"], "segmentation_id": one["segmentation_id"]}
            for one in given])
        _owned_by(connection, [one["port_id"] for one in given], SUBPORT)


def check_mtu(connection: Connection, network_id: str, mtu: int) -> None:
    """Raises ``Conflict`` where, with this *mtu* of a network, a subport's network would have more than its parent's.
    """
    parent, above, below = ports.alias(), networks.alias(), networks.alias()
    of_this = case((above.c.id == network_id, below.c.mtu > mtu), else_=above.c.mtu < mtu)
    found = connection.execute(select(subports.c.port_id).join(
        ports, ports.c.id == subports.c.port_id).join(below, below.c.id == ports.c.network_id).join(
        trunks, trunks.c.id == subports.c.trunk_id).join(parent, parent.c.id == trunks.c.port_id).join(
        above, above.c.id == parent.c.network_id).where(
        above.c.id != below.c.id, or_(above.c.id == network_id, below.c.id == network_id), of_this).limit(1)).first()
    if found is not None:
        raise Conflict(f"MTU {mtu} of network {network_id} cannot be: with it a subport's network would have more than "
                       "that of its trunk's parent. Change the other network first.",
                       type="SubPortMtuGreaterThanTrunkPortMtu")


def at_servers(connection: Connection, network_id: str) -> bool:
    """Whether servers have ports on a network, or carry some as subports."""
    parent = ports.alias()
    carried = select(subports.c.port_id).join(trunks, trunks.c.id == subports.c.trunk_id).join(
        parent, parent.c.id == trunks.c.port_id).where(parent.c.device_owner == OWNER)
    return connection.execute(select(ports.c.id).where(ports.c.network_id == network_id, or_(
        ports.c.device_owner == OWNER, ports.c.id.in_(carried))).limit(1)).first() is not None


def _leave(connection: Connection, ids: Sequence[str]) -> None:
    if ids:
        connection.execute(deleting(subports).where(subports.c.port_id.in_(ids)))
        _owned_by(connection, ids, "")


def _owned_by(connection: Connection, ids: Sequence[str], owner: str) -> None:
    connection.execute(update(ports).where(ports.c.id.in_(ids)).values(device_owner=owner, updated_at=now()))


def _check_enabled(row: RowMapping) -> None:
    """A trunk that is not up is locked: what passes goes on passing, and nobody changes what it has."""
    if not row["admin_state_up"]:
        raise Conflict(f"Trunk {row['id']} is currently disabled. Enable it first: openstack network trunk set "
                       f"--enable {row['id']}.", type="TrunkDisabled")


def change(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Name, description and whether it is up."""


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """It goes when no server has its port: its subports are ports again."""
    row = find(connection, context, TRUNK, row["id"], lock=True)
    _check_enabled(row)
    server = connection.execute(select(ports.c.device_id).where(ports.c.id == row["port_id"], TAKEN)).scalar()
    if server is not None:
        raise Conflict(f"Trunk {row['id']} is currently in use: server {server} has its port. Detach that first: "
                       f"openstack server remove port {server} {row['port_id']}. Subports can be removed meanwhile.",
                       type="TrunkInUse")
    _leave(connection, [one["port_id"] for one in _inside(connection, row["id"])])


def units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """Its subports, when it comes or goes."""
    if changed is not None:
        return []
    return changes.ports(one["port_id"] for one in _inside(connection, row["id"]))


TRUNK = NetworkResource(
    name="trunk", table=trunks, visible=own(trunks), documents=documents, create=create, update=change, delete=delete,
    units=units, filters={"status": _with_status},
    defaults={"name": "", "description": "", "admin_state_up": True, "sub_ports": []})


class TrunkStore(NetworkStore):
    """Trunks, whose subports are added and removed."""

    def leave(self, connection: Connection, context: Context, row: RowMapping, held: Sequence[Document]) -> None:
        """One that is up has what it is to hold before its own values change: it may be locked by them."""
        if row["admin_state_up"]:
            self.enter(connection, context, row, held)

    def enter(self, connection: Connection, context: Context, row: RowMapping, held: Sequence[Document]) -> None:
        """All subports of the trunk *row*; one with another tag goes and comes."""
        row = find(connection, context, self.resource, row["id"], lock=True)
        _check_once(held)
        have, want = _tags(_inside(connection, row["id"])), _tags(held)
        gone = [id for id, tag in have.items() if want.get(id) != tag]
        self._leave(connection, row, gone)
        self._enter(connection, context, row, [one for one in held if have.get(one["port_id"]) != want[one["port_id"]]])

    def _enter(self, connection: Connection, context: Context, row: RowMapping, given: Sequence[Document]) -> None:
        if not given:
            return
        _check_enabled(row)
        known = _locked(connection, context, {row["port_id"], *(one["port_id"] for one in given)})
        _enter(connection, known, row, given)
        self.log.note(connection, *changes.ports(one["port_id"] for one in given))

    def _leave(self, connection: Connection, row: RowMapping, ids: Sequence[str]) -> None:
        if not ids:
            return
        _check_enabled(row)
        _leave(connection, ids)
        self.log.note(connection, *changes.ports(ids))

    def move(self, context: Context, id: str, given: Sequence[Document], *, put: bool) -> Document:
        """Add the subports *given* (*put*), or remove those of these ports, all or none."""
        self._check_writer(context, "add_subports_to" if put else "remove_subports_from")

        def act(connection: Connection) -> Document:
            row = find(connection, context, self.resource, id, lock=True)
            if put:
                _check_once(given)
                self._enter(connection, context, row, given)
            else:
                ids = list(dict.fromkeys(one["port_id"] for one in given))
                have = _tags(_inside(connection, id))
                if missing := [one for one in ids if one not in have]:
                    raise NotFound(f"SubPort on trunk {id} with parent port {missing[0]} could not be found.",
                                   type="SubPortNotFound")
                self._leave(connection, row, ids)
            return self._documents(connection, id)[0]

        return transacted(self.database, act)


def _tags(held: Sequence[Document]) -> dict[str, int]:
    """Port to tag."""
    return {one["port_id"]: one["segmentation_id"] for one in held}
