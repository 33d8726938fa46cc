# SPDX-License-Identifier: GPL-3.0-or-later
"""Trunks: a server's NIC that has further ports, its subports, as VLANs (API reference, "Trunk networking"). The guest
has a VLAN device for each subport, with the subport's MAC. A subport has the host and status of the parent port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, bindparam, case, exists, insert, or_, select, update
from sqlalchemy import delete as deleting

from magnetar_control.services import Context
from magnetar_control.services.network.engine import changes
from magnetar_control.services.network.resources import (
    NetworkResource,
    NetworkStore,
    find_resource_row,
    insert_resource_row,
    rows_of_caller,
    run_transaction,
)
from magnetar_control.services.network.routers.router_ports import OWN
from magnetar_control.services.network.tables import OWNER, SUBPORT, TAKEN, networks, ports, subports, trunks
from magnetar_control.store.engine.database import utc_now
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from . import reservations, virtual_functions

#: Maximum number of subports of one trunk: the number of VLAN tags.
MOST = 4094
#: The only supported ``segmentation_type`` of subports.
VLAN = "vlan"
_parents = ports.alias("trunk_parents")
#: The trunks of parent ports. Built once: building it takes longer than executing it.
_TRUNKED = select(
    trunks.c.id, trunks.c.port_id.label("parent"), *subports.c["port_id", "segmentation_id"],
    ports.c.mac_address).outerjoin(subports, subports.c.trunk_id == trunks.c.id).outerjoin(
    ports, ports.c.id == subports.c.port_id).where(
    trunks.c.port_id.in_(bindparam("ids", expanding=True))).order_by(subports.c.segmentation_id)


def trunk_documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """Convert trunk *rows* to documents for callers, with the subports, and the status of the parent port as
    ``status``."""
    subports_by_trunk = _subports_of(connection, [row["id"] for row in rows])
    states = {row.id: row.status for row in connection.execute(select(*ports.c["id", "status"]).where(
        ports.c.id.in_([row["port_id"] for row in rows])))}
    return [{**row, "status": states.get(row["port_id"], "DOWN"), "sub_ports": subports_by_trunk.get(row["id"], [])}
            for row in rows]  # trunk and port may be gone meanwhile


def _subports_of(connection: Connection, ids: Sequence[str]) -> dict[str, list[Document]]:
    """Return the subports of the trunks *ids*: {trunk id: its subports, sorted by VLAN tag}."""
    subports_by_trunk: dict[str, list[Document]] = {}
    for row in connection.execute(select(subports).where(subports.c.trunk_id.in_(ids)).order_by(
            subports.c.trunk_id, subports.c.segmentation_id)):
        subports_by_trunk.setdefault(row.trunk_id, []).append(
            {"port_id": row.port_id, "segmentation_type": VLAN, "segmentation_id": row.segmentation_id})
    return subports_by_trunk


def _inside(connection: Connection, id: str) -> list[Document]:
    """Return the subports of the trunk *id*."""
    return _subports_of(connection, [id]).get(id, [])


def trunk_facts_of_ports(connection: Connection, rows: Sequence[RowMapping]) -> dict[str, Document]:
    """Return {port id: additional fields}. A trunk's parent port gets Neutron's ``trunk_details``, a subport gets
    ``status`` and ``host`` of its parent, and other ports get no fields."""
    facts_by_port: dict[str, Document] = {row["id"]: {} for row in rows}
    for row in connection.execute(_TRUNKED, {"ids": list(facts_by_port)}):
        details = facts_by_port[row.parent].setdefault("trunk_details", {"trunk_id": row.id, "sub_ports": []})
        if row.port_id is not None:
            details["sub_ports"].append({
                "port_id": row.port_id, "segmentation_type": VLAN, "segmentation_id": row.segmentation_id,
                "mac_address": row.mac_address})
    inside = [row["id"] for row in rows if row["device_owner"] == SUBPORT]
    for row in connection.execute(select(subports.c.port_id, *_parents.c["status", "host"]).join(
            trunks, trunks.c.id == subports.c.trunk_id).join(_parents, _parents.c.id == trunks.c.port_id).where(
            subports.c.port_id.in_(inside))) if inside else ():
        facts_by_port[row.port_id].update(status=row.status, host=row.host)
    return facts_by_port


def binding_filter(name: str) -> Callable[[Sequence[str]], ColumnElement[bool]]:
    """Return the function for the list filter *name* (status or host) of ports: from the requested values to an SQL
    condition. For a subport, the condition tests its parent port."""
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
    """Raise ``Conflict`` if the port is a subport of a trunk."""
    trunk = connection.execute(select(subports.c.trunk_id).where(subports.c.port_id == port_id)).scalar()
    if trunk is not None:
        raise Conflict(f"Port {port_id} is currently a subport for trunk {trunk}. Remove it there first: openstack "
                       f"network trunk unset --subport {port_id} {trunk}.", type="PortInUseAsSubPort")


def check_in_none(connection: Connection, port_id: str) -> None:
    """Raise ``Conflict`` if the port is the parent port or a subport of a trunk."""
    check_no_subport(connection, port_id)
    trunk = connection.execute(select(trunks.c.id).where(trunks.c.port_id == port_id)).scalar()
    if trunk is not None:
        raise Conflict(f"Port {port_id} is currently a parent port for trunk {trunk}. Delete the trunk first.",
                       type="PortInUseAsTrunkParent")


def create_trunk_row(connection: Connection, context: Context, values: Document) -> None:
    """Check *values* and insert a trunk with its subports. If the parent port was created with a server, change the
    port so that it is not deleted with the server, because the trunk needs the port."""
    new_subports = values["sub_ports"]
    _check_once(new_subports)
    locked_ports = _locked(connection, context, {values["port_id"], *(subport["port_id"] for subport in new_subports)})
    parent = locked_ports[values["port_id"]]
    if parent["trunk"] or parent["inside"] or parent["device_owner"].startswith(OWN):
        raise Conflict(f"Port {parent['id']} is currently in use and is not eligible for use as a parent port.",
                       type="ParentPortInUse")
    _check_engine(parent)
    insert_resource_row(connection, trunks, values)
    connection.execute(update(ports).where(ports.c.id == parent["id"]).values(made_for_server=False))
    _insert_subports(connection, locked_ports, {"id": values["id"], "port_id": parent["id"]}, new_subports)


def _locked(connection: Connection, context: Context, ids: Collection[str]) -> dict[str, RowMapping]:
    """Lock the caller's ports *ids*, and return {id: row}. Each row has data of the port's network. ``trunk`` is the
    trunk with the port as its parent, and ``inside`` is the trunk with the port as a subport. The rows of the networks
    are also locked, so that their MTU cannot change. Raises ``NotFound``."""
    own_ids = connection.execute(select(ports.c.id).where(
        ports.c.id.in_(list(ids)), rows_of_caller(ports)(context)).order_by(
        ports.c.id).with_for_update()).scalars().all()
    if missing := set(ids).difference(own_ids):
        raise NotFound(f"Port {min(missing)} could not be found.", type="PortNotFound")
    return {row["id"]: row for row in connection.execute(select(
        *ports.c["id", "network_id", "device_id", "device_owner", "vnic_type"], networks.c.by_engine, networks.c.type,
        networks.c.mtu, trunks.c.id.label("trunk"), subports.c.trunk_id.label("inside")).join(
        networks, networks.c.id == ports.c.network_id).outerjoin(trunks, trunks.c.port_id == ports.c.id).outerjoin(
        subports, subports.c.port_id == ports.c.id).where(ports.c.id.in_(list(ids))).order_by(
        networks.c.id).with_for_update(read=True, of=networks)).mappings()}


def _check_once(new_subports: Sequence[Document]) -> None:
    if twice := next((id for id, times in Counter(subport["port_id"] for subport in new_subports).items() if times > 1),
                     None):
        raise InvalidRequest(f"sub_ports: port {twice} is given twice, and is one subport.", type="InvalidInput")


def _check_engine(port: RowMapping) -> None:
    virtual_functions.check_reached(port)
    if not port["by_engine"]:
        raise InvalidRequest(f"Port {port['id']} is on network {port['network_id']}, which hosts make without OVN "
                             f"(type {port['type']}): trunks are of ports on networks that OVN makes.",
                             type="InvalidInput")


def _insert_subports(connection: Connection, locked_ports: Mapping[str, RowMapping], trunk: Mapping[Any, Any],
                     new_subports: Sequence[Document]) -> None:
    """Check *new_subports* ({port_id, segmentation_id}) and add them to *trunk*. *locked_ports*: the rows of their
    ports and of the parent port, from ``_locked``. Raises ``Conflict`` for a port that cannot be a subport."""
    tags = set(connection.execute(select(subports.c.segmentation_id).where(
        subports.c.trunk_id == trunk["id"])).scalars())
    for subport in new_subports:
        port, tag = locked_ports[subport["port_id"]], subport["segmentation_id"]
        if port["id"] == trunk["port_id"] or port["trunk"]:
            raise Conflict(f"Port {port['id']} is currently in use and is not eligible for use as a parent port: a "
                           "trunk's parent is no subport.", type="ParentPortInUse")
        if port["inside"]:
            raise Conflict(f"Port {port['id']} is in use by another trunk: {port['inside']}.", type="TrunkPortInUse")
        if port["device_id"]:
            raise Conflict(f"Unable to complete operation on port {port['id']} for network {port['network_id']}. Port "
                           f"already has an attached device {port['device_id']}.", type="PortInUse")
        _check_engine(port)
        most = locked_ports[trunk["port_id"]]["mtu"]
        if port["mtu"] > most:
            raise Conflict(f"MTU {port['mtu']} of subport {port['id']} cannot be greater than MTU {most} of trunk "
                           f"{trunk['id']}.", type="SubPortMtuGreaterThanTrunkPortMtu")
        if tag in tags:
            raise Conflict(f"segmentation_type {VLAN} and segmentation_id {tag} already in use on trunk "
                           f"{trunk['id']}.", type="DuplicateSubPort")
        tags.add(tag)
    if new_subports:
        reservations.check_subports(connection, [subport["port_id"] for subport in new_subports])
        connection.execute(insert(subports), [{
            "port_id": subport["port_id"], "trunk_id": trunk["id"], "segmentation_id": subport["segmentation_id"]}
            for subport in new_subports])
        _owned_by(connection, [subport["port_id"] for subport in new_subports], SUBPORT)


def check_mtu(connection: Connection, network_id: str, mtu: int) -> None:
    """Raise ``Conflict`` if the network *network_id* cannot have the MTU *mtu* because of a trunk: the network of a
    subport cannot have a larger MTU than the network of the parent port."""
    parent, above, below = ports.alias(), networks.alias(), networks.alias()
    of_this = case((above.c.id == network_id, below.c.mtu > mtu), else_=above.c.mtu < mtu)
    exceeding_subport = connection.execute(select(subports.c.port_id).join(
        ports, ports.c.id == subports.c.port_id).join(below, below.c.id == ports.c.network_id).join(
        trunks, trunks.c.id == subports.c.trunk_id).join(parent, parent.c.id == trunks.c.port_id).join(
        above, above.c.id == parent.c.network_id).where(
        above.c.id != below.c.id, or_(above.c.id == network_id, below.c.id == network_id), of_this).limit(1)).first()
    if exceeding_subport is not None:
        raise Conflict(f"MTU {mtu} of network {network_id} cannot be: with it a subport's network would have more than "
                       "that of its trunk's parent. Change the other network first.",
                       type="SubPortMtuGreaterThanTrunkPortMtu")


def at_servers(connection: Connection, network_id: str) -> bool:
    """Return whether servers use ports on the network *network_id*, as NICs or as subports."""
    parent = ports.alias()
    carried = select(subports.c.port_id).join(trunks, trunks.c.id == subports.c.trunk_id).join(
        parent, parent.c.id == trunks.c.port_id).where(parent.c.device_owner == OWNER)
    return connection.execute(select(ports.c.id).where(ports.c.network_id == network_id, or_(
        ports.c.device_owner == OWNER, ports.c.id.in_(carried))).limit(1)).first() is not None


def _delete_subports(connection: Connection, ids: Sequence[str]) -> None:
    if ids:
        connection.execute(deleting(subports).where(subports.c.port_id.in_(ids)))
        _owned_by(connection, ids, "")


def _owned_by(connection: Connection, ids: Sequence[str], owner: str) -> None:
    connection.execute(update(ports).where(ports.c.id.in_(ids)).values(device_owner=owner, updated_at=utc_now()))


def _check_enabled(row: RowMapping) -> None:
    """Raise ``Conflict`` if the trunk is disabled (``admin_state_up`` is false), because then its subports cannot
    change. A disabled trunk still passes packets."""
    if not row["admin_state_up"]:
        raise Conflict(f"Trunk {row['id']} is currently disabled. Enable it first: openstack network trunk set "
                       f"--enable {row['id']}.", type="TrunkDisabled")


def prepare_trunk_update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Do nothing: all *values* are allowed (name, description, ``admin_state_up``)."""


def prepare_trunk_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Convert the subports of the trunk *row*, which will be deleted, back to ordinary ports. Raises ``Conflict`` while
    a server has the parent port."""
    row = find_resource_row(connection, context, TRUNK, row["id"], lock=True)
    _check_enabled(row)
    server = connection.execute(select(ports.c.device_id).where(ports.c.id == row["port_id"], TAKEN)).scalar()
    if server is not None:
        raise Conflict(f"Trunk {row['id']} is currently in use: server {server} has its port. Detach that first: "
                       f"openstack server remove port {server} {row['port_id']}. Subports can be removed meanwhile.",
                       type="TrunkInUse")
    _delete_subports(connection, [subport["port_id"] for subport in _inside(connection, row["id"])])


def changed_trunk_units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """Return the keys of the objects in the network engine (OVN) that a change of the trunk *row* affects. *changed*:
    the new values; ``None`` if the trunk was created or is deleted. With ``None``, return ``port/ID`` of each subport,
    otherwise an empty list."""
    if changed is not None:
        return []
    return changes.port_unit_keys(subport["port_id"] for subport in _inside(connection, row["id"]))


TRUNK = NetworkResource(
    name="trunk", table=trunks, visible=rows_of_caller(trunks), documents=trunk_documents, create=create_trunk_row,
    update=prepare_trunk_update, delete=prepare_trunk_delete,
    units=changed_trunk_units, filters={"status": _with_status},
    defaults={"name": "", "description": "", "admin_state_up": True, "sub_ports": []})


class TrunkStore(NetworkStore):
    """The operations on trunks, with methods that add and remove subports."""

    def remove_old_parts(self, connection: Connection, context: Context, row: RowMapping,
                         parts: Sequence[Document]) -> None:
        """If the trunk *row* is enabled, replace its subports by *parts*. ``put`` calls this before it changes the
        trunk's other values, because these may disable the trunk, and subports of a disabled trunk cannot change."""
        if row["admin_state_up"]:
            self.set_parts(connection, context, row, parts)

    def set_parts(self, connection: Connection, context: Context, row: RowMapping, parts: Sequence[Document]) -> None:
        """Replace the subports of the trunk *row* by *parts* ({port_id, segmentation_id}). A subport whose VLAN tag
        changes is removed and added again."""
        row = find_resource_row(connection, context, self.resource, row["id"], lock=True)
        _check_once(parts)
        have, want = _tags(_inside(connection, row["id"])), _tags(parts)
        removed_ids = [id for id, tag in have.items() if want.get(id) != tag]
        self._remove_subports(connection, row, removed_ids)
        self._add_subports(connection, context, row, [subport for subport in parts
                                                      if have.get(subport["port_id"]) != want[subport["port_id"]]])

    def _add_subports(self, connection: Connection, context: Context, row: RowMapping,
                      new_subports: Sequence[Document]) -> None:
        if not new_subports:
            return
        _check_enabled(row)
        locked_ports = _locked(connection, context, {row["port_id"], *(subport["port_id"] for subport in new_subports)})
        _insert_subports(connection, locked_ports, row, new_subports)
        self.log.note(connection, *changes.port_unit_keys(subport["port_id"] for subport in new_subports))

    def _remove_subports(self, connection: Connection, row: RowMapping, ids: Sequence[str]) -> None:
        if not ids:
            return
        _check_enabled(row)
        _delete_subports(connection, ids)
        self.log.note(connection, *changes.port_unit_keys(ids))

    def move(self, context: Context, id: str, changed_subports: Sequence[Document], *, put: bool) -> Document:
        """Add the subports *changed_subports* to the trunk *id* if *put* is true, otherwise remove them; all of them or
        none. Return the trunk."""
        self._check_writer(context, "add_subports_to" if put else "remove_subports_from")

        def act(connection: Connection) -> Document:
            row = find_resource_row(connection, context, self.resource, id, lock=True)
            if put:
                _check_once(changed_subports)
                self._add_subports(connection, context, row, changed_subports)
            else:
                ids = list(dict.fromkeys(subport["port_id"] for subport in changed_subports))
                have = _tags(_inside(connection, id))
                if missing := [port_id for port_id in ids if port_id not in have]:
                    raise NotFound(f"SubPort on trunk {id} with parent port {missing[0]} could not be found.",
                                   type="SubPortNotFound")
                self._remove_subports(connection, row, ids)
            return self._documents(connection, id)[0]

        return run_transaction(self.database, act)


def _tags(rows: Sequence[Document]) -> dict[str, int]:
    """Return the VLAN tags of the subports *rows*: {port id: VLAN tag}."""
    return {subport["port_id"]: subport["segmentation_id"] for subport in rows}
