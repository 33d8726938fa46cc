# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports that are devices of a host (``vnic_type`` direct and macvtap: virtual functions by SR-IOV; direct-physical: a
whole card), the rules for these ports, and the devices that they need from the server's host.

Nothing on the host sees their packets: no OVN, no filter, no limit. So they are not written to OVN, and requests that
need OVN are refused. Source: Neutron's *SR-IOV* guide; its mechanism driver has no security groups either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, select

from magnetar_control.services.network.tables import TAKEN, ports, qos_rules
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.pci import BY_OVN, DIRECT, PAST_OVN, REMOTE, WHOLE, network_devices_name

from .reservations import bandwidth_network

NORMAL = "normal"
#: The key in ``binding:profile`` that makes the card trust the port.
TRUST = "trusted"
#: Kinds of QoS rules that act on virtual functions; and kbit/s in a Mbit/s.
LIMIT, PROMISE, MEGA = "bandwidth_limit", "minimum_bandwidth", 1000
#: Types of networks on a physical network.
PHYSICAL = ("flat", "vlan")
#: Features that need OVN: the attribute, its only value for a device of a host, and the error text.
_REFUSED = (
    ("port_security_enabled", False, "must be false: nothing filters the packets of a virtual function or a card"),
    ("admin_state_up", True, "must be true: nothing stops the packets of a virtual function or a card"),
    ("dns_name", "", "must be empty: it is OVN that answers for names, and a device of a host is not OVN's"))


def is_host_device(row: Mapping[Any, Any]) -> bool:
    """Return whether a port is a PCI device of its host that bypasses OVN, such as a virtual function."""
    return row["vnic_type"] in PAST_OVN


def is_plugged_in(wish: Mapping[str, Any]) -> bool:
    """Return whether a NIC on an OVN network is plugged into Open vSwitch on its server's host, and is no PCI device.
    *wish*: the requested NIC; a missing ``vnic_type`` means normal."""
    return wish.get("vnic_type") not in (*PAST_OVN, REMOTE)


def smartnic_device(row: Mapping[Any, Any]) -> Document:
    """Return the data of a SmartNIC's virtual function that OVN needs to plug in the port (the column ``device``,
    reported by the host). Empty for other ports, and as long as the host has not reported the data."""
    device: Document = row["device"]
    return device if row["vnic_type"] == REMOTE else {}


def vif_type(row: Mapping[Any, Any]) -> str:
    """Return the ``vif_type`` of a port, as Nova shows it: ovs, bridge, hw_veb or hostdev_physical."""
    if row["vnic_type"] in BY_OVN:
        return "ovs"
    return "hostdev_physical" if row["vnic_type"] == WHOLE else "hw_veb" if is_host_device(row) else "bridge"


def devices_of_port(row: Mapping[Any, Any]) -> dict[str, int]:
    """Return the PCI device that a port needs from its server's host: {name of the resource (``network_devices_name``):
    1}; empty if it needs none. *row*: the port's ``vnic_type`` and ``profile``, and its network's ``type`` and
    ``bridge``."""
    if row["vnic_type"] in BY_OVN:
        return {network_devices_name(bandwidth_network(row["type"], row["bridge"]), row["vnic_type"]): 1}
    return {network_devices_name(row["bridge"], row["vnic_type"], is_trusted(row)): 1} if is_host_device(row) else {}


def is_trusted(row: Mapping[Any, Any]) -> bool:
    """Return whether the ``profile`` of a port requests a trusted virtual function."""
    return is_host_device(row) and _truth(row["profile"].get(TRUST)) is True


def _truth(value: Any) -> bool | None:
    """Return the boolean that *value* means in Nova (``bool_from_string``): 1, yes, on and true; 0, no, off, false and
    none. Return ``None`` for any other value."""
    return {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False,
            "none": False}.get(str(value).strip().lower())


def function_rates(connection: Connection, rows: Sequence[Mapping[Any, Any]]) -> dict[str, dict[str, int]]:
    """Return the rates of those ports in *rows* that are virtual functions with a QoS policy (``policy``): {port id:
    {max_tx_rate, min_tx_rate: Mbit/s}}. Rates are whole numbers, because cards support no fractions, and the minimum
    never exceeds the maximum."""
    policies = {row["policy"] for row in rows if row["policy"] and is_host_device(row)}
    rates_by_policy: dict[str, dict[str, int]] = {}
    for rule in connection.execute(select(*qos_rules.c["policy_id", "kind", "max_kbps", "min_kbps"]).where(
            qos_rules.c.policy_id.in_(policies))) if policies else ():
        rates_by_policy.setdefault(rule.policy_id, {}).update(
            {"max_tx_rate": max(1, rule.max_kbps // MEGA)} if rule.kind == LIMIT else
            {"min_tx_rate": -(-rule.min_kbps // MEGA)})
    for rate in rates_by_policy.values():
        if "max_tx_rate" in rate and "min_tx_rate" in rate:  # such as 1600 and 1500 kbit/s
            rate["min_tx_rate"] = min(rate.values())
    return {row["id"]: rates_by_policy[row["policy"]] for row in rows if row["policy"] in rates_by_policy
            and is_host_device(row)}


def host_device_nic(row: Mapping[Any, Any], rate: Mapping[str, int] = MappingProxyType({})) -> dict[str, Any]:
    """Return the specification of a NIC that is a PCI device of the host, in the form that agents need. *row*: the
    port's ``id``, ``vnic_type`` and ``profile``, and its network's ``type``, ``bridge`` and ``segment``. *rate*: the
    port's value from ``function_rates``."""
    if row["vnic_type"] in BY_OVN:
        return {"port": row["id"], "vnic_type": row["vnic_type"],
                "physical_network": bandwidth_network(row["type"], row["bridge"])}
    vlan = {} if row["segment"] is None else {"vlan": row["segment"]}
    way = {} if row["vnic_type"] == DIRECT else {"vnic_type": row["vnic_type"]}  # older agents know no other
    trust = {"trusted": True} if is_trusted(row) else {}
    return {"physical_network": row["bridge"], **way, **trust, **vlan, **rate, "port_security": False}


def set_default_port_security(values: Document) -> None:
    """Set ``port_security_enabled`` to false in *values*, the values of a new port, if the port is a PCI device of a
    host and the request does not set it."""
    if is_host_device(values):
        values.setdefault("port_security_enabled", False)


def check_trust(port: Mapping[Any, Any]) -> None:
    """Raise ``InvalidField`` if *port* (all its values) requests a trusted virtual function in ``profile``, but its
    ``vnic_type`` does not support trust."""
    profile: Document = port["profile"]
    if TRUST not in profile:
        return
    asks_trust = _truth(profile[TRUST])
    if asks_trust is None:
        raise InvalidField("binding:profile.trusted", "must be true or false", profile[TRUST])
    if asks_trust and port["vnic_type"] != DIRECT:
        raise InvalidField("binding:profile.trusted", f"must be left out but for vnic_type {DIRECT}: a card trusts "
                           "virtual functions that guests have themselves", profile[TRUST])


def check_host_device_rule(connection: Connection, policy_id: str, rule: Mapping[Any, Any] | None) -> None:
    """Check a change of the rules of a QoS policy, for the virtual functions that have this policy. *rule*: the new
    rule; ``None``: a rule is removed. Raises ``Conflict`` if network cards do not support the new rule. Also raises
    ``Conflict`` while a server has one of these virtual functions, because a card gets the rules only when the port is
    attached. The caller has locked the policy."""
    used = connection.execute(select(ports.c.id, ports.c.device_id, TAKEN.label("taken")).where(
        ports.c.qos_policy_id == policy_id, ports.c.vnic_type.in_(PAST_OVN)).order_by(
        TAKEN.desc()).limit(1)).first()
    if used is None:
        return
    if used.taken:
        raise Conflict(f"The rules of QoS policy {policy_id} cannot change while server {used.device_id} has port "
                       f"{used.id}, a virtual function whose card has been told them. Detach the port first: openstack "
                       f"server remove port {used.device_id} {used.id}.", type="QosPolicyInUse")
    if rule is not None and (odd := _unfit(rule)):
        raise Conflict(f"QoS policy {policy_id} is that of port {used.id}, a virtual function: {odd}.",
                       type="QosPolicyInUse")


def _unfit(rule: Mapping[Any, Any]) -> str:
    """Return the reason why cards do not support a QoS rule for virtual functions; an empty string if they support it.
    """
    if rule["kind"] not in (LIMIT, PROMISE) or rule["direction"] != "egress":
        return (f"a rule {rule['kind']} ({rule['direction']}) acts on none, as cards limit and promise only what "
                "guests send")
    return ("max_burst_kbps must be 0, as cards know no bursts" if rule["kind"] == LIMIT and rule["max_burst_kbps"]
            else "")


def _check_policy(connection: Connection, port: Mapping[Any, Any]) -> None:
    if not port.get("qos_policy_id"):
        return
    if port["vnic_type"] == WHOLE:
        raise InvalidField("qos_policy_id", "must be null: nothing limits or marks the packets of a whole card",
                           port["qos_policy_id"])
    for rule in connection.execute(select(qos_rules).where(
            qos_rules.c.policy_id == port["qos_policy_id"])).mappings():
        if odd := _unfit(rule):
            raise InvalidField("qos_policy_id", f"must be a policy that acts on virtual functions: {odd}",
                               port["qos_policy_id"])


def check_host_device_port(connection: Connection, network: Mapping[Any, Any], port: Mapping[Any, Any],
                           engine_knows_smartnics: bool = True) -> None:
    """Raise an error if *port* (all its values) is a PCI device of a host, and requests features that such devices do
    not support: ``InvalidField``, or ``Conflict`` if its network has a QoS policy. *engine_knows_smartnics*: whether
    the network engine (OVN) supports SmartNICs."""
    if port["vnic_type"] in BY_OVN and not network["by_engine"]:
        raise InvalidField("binding:vnic_type", f"must be another one on a network of type {network['type']}: it is "
                                                "OVN that has cards forward the packets of such devices",
                           port["vnic_type"])
    if port["vnic_type"] == REMOTE and not engine_knows_smartnics:
        raise InvalidField("binding:vnic_type", "must be another one here: nothing finds the chassis of SmartNICs "
                                                "without the control plane's setting ovn_southbound", REMOTE)
    if not is_host_device(port):
        return
    if network["type"] not in PHYSICAL:
        raise InvalidField("binding:vnic_type", f"must be {NORMAL} on a network of type {network['type']}: devices of "
                                                "hosts are on physical networks (type flat or vlan)",
                           port["vnic_type"])
    if port["vnic_type"] == WHOLE and network["type"] != "flat":
        raise InvalidField("binding:vnic_type", f"must be another one on a network of type {network['type']}: nothing "
                                                "keeps a whole card to the network's VLAN, or its guest out of others; "
                                                "use direct, or a network of type flat", WHOLE)
    for name, usual, rule in _REFUSED:
        if port.get(name, usual) != usual:
            raise InvalidField(name, rule, port[name])
    _check_policy(connection, port)
    if network["qos_policy_id"]:
        raise Conflict(f"Network {network['id']} has QoS policy {network['qos_policy_id']}, which counts "
                       "for its ports of OVN. Take the policy from the network, and give it to its ports.",
                       type="QosPolicyInUse")


def check_reached(port: Mapping[Any, Any]) -> None:
    """Raise ``Conflict`` if *port* is a PCI device of a host, because such a port bypasses OVN and so cannot have a
    floating IP, be in a trunk, or be a router's interface."""
    if is_host_device(port):
        raise Conflict(f"Port {port['id']} is a device of a host (binding:vnic_type {port['vnic_type']}), which OVN "
                       "does not see: it can have no floating IP or port forwarding, and be in no trunk and no "
                       f"router's interface. Use a port of vnic_type {NORMAL}.", type="UnsupportedPortVnicType")


def check_no_host_devices(connection: Connection, id: str) -> None:
    """Raise ``Conflict`` if the network *id*, which will get a QoS policy, has ports that are PCI devices of hosts."""
    port_id = connection.execute(select(ports.c.id).where(
        ports.c.network_id == id, ports.c.vnic_type.in_(PAST_OVN)).limit(1)).scalar()
    if port_id is not None:
        raise Conflict(f"Network {id} has port {port_id}, a device of a host, for which no policy of a "
                       "network counts. Delete it first, or give ports a policy, and not the network.",
                       type="QosPolicyInUse")
