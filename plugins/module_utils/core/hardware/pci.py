# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices that servers request: aliases with counts, and the choice of a host's devices. Pure: agents choose
devices with these functions, and the scheduler counts claims and predicts the choice with them.

Source: Nova's ``pci_passthrough:alias``, ``[pci]alias`` and ``hw:pci_numa_affinity_policy``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ..bandwidth import TUNNELS
from ..errors import InvalidField
from ..values import Text
from ..versions import Version

#: Nova's pattern of the extra spec's value, and the pattern of an alias name.
ALIASES = r"[^:]+:[0-9]+(,\s*[^:]+:[0-9]+)*"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
#: Maximum number of devices of a server.
MOST = 32
_ALIAS_COUNT = re.compile(r"(?P<name>%s):(?P<count>[1-9][0-9]?)" % NAME)


def parse_alias_counts(text: str, field: str = "pci_alias") -> Dict[str, int]:
    """Return the number of PCI devices by alias that *text*, such as ``gpu:1,nic:2``, requests. Raises ``InvalidField``
    for *field*.
    """
    amounts: Dict[str, int] = {}
    for part in text.split(","):
        match = _ALIAS_COUNT.fullmatch(part.strip())
        if not match:
            raise InvalidField(field, "must name aliases and how many devices of each, such as gpu:1 or gpu:1,nic:2",
                               text)
        amounts[match["name"]] = amounts.get(match["name"], 0) + int(match["count"])
    if sum(amounts.values()) > MOST:
        raise InvalidField(field, "must ask for no more than %d devices" % MOST, text)
    return amounts


class PciAliases(Text):
    """The value type of a string that requests PCI devices by alias and count, such as ``gpu:1,nic:2``. The normal form
    names each alias once, in alphabetical order.
    """

    def __init__(self) -> None:
        super().__init__(3, 255, ".*", "must name aliases and how many devices of each, such as gpu:1 or gpu:1,nic:2")

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        amounts = parse_alias_counts(super().check(value, path, version), path)
        return ",".join("%s:%d" % alias for alias in sorted(amounts.items()))


# Devices of a host ---------------------------------------------------------------------------------------------------
VGPU_CLASS = "VGPU"
VGPU = "resources:%s" % VGPU_CLASS
LEGACY, PREFERRED, REQUIRED, SOCKET = POLICIES = ("legacy", "preferred", "required", "socket")
#: Types of devices: a physical function that can have virtual functions, a virtual function, and any other device.
PF, VF, PCI = TYPES = ("type-PF", "type-VF", "type-PCI")
#: Pattern of the name of a physical network.
PHYSICAL_NETWORK = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"


def vgpu_device_name(trait: str) -> str:
    """Return the name of virtual GPUs in requests and counts of devices. *trait*: a trait that their physical GPU must
    have; "" for any virtual GPU.
    """
    return "%s:%s" % (VGPU, trait) if trait else VGPU


def is_vgpu(name: str) -> bool:
    """Return whether *name* is a name that ``vgpu_device_name`` returns."""
    return name == VGPU or name.startswith(VGPU + ":")


#: Ways a NIC uses a device that bypass OVN: a whole virtual function, its network device through macvtap, or a whole
#: card.
DIRECT, MACVTAP, WHOLE = PAST_OVN = ("direct", "macvtap", "direct-physical")
#: Ways that OVN offloads to a card: a virtio device that a virtual function provides in hardware (vDPA), and a virtual
#: function of a SmartNIC (DPU), which runs an OVN of its own.
VDPA, REMOTE = BY_OVN = ("vdpa", "remote-managed")
VNIC_TYPES = (*PAST_OVN, *BY_OVN)
_KINDS = {WHOLE: PF, VDPA: VDPA, REMOTE: REMOTE}


def network_devices_name(network: str, vnic_type: str = DIRECT, trusted: bool = False) -> str:
    """Return a name for those network devices of a host that a NIC with this *vnic_type* and physical *network* (or
    ``TUNNELS``) can use: virtual functions (with *trusted*, only the trusted ones), whole cards, vDPA devices, or
    functions of SmartNICs. Counts of devices use the name like a PCI alias; no PCI alias has such a name.
    """
    return "%s:%s%s" % (_KINDS.get(vnic_type, VF), network, ":trusted" if trusted else "")


def device_kind(name: str) -> str:
    """Return the device type in *name*, if ``network_devices_name`` returned it: PF, VF, VDPA or REMOTE; "" if it is a
    PCI alias.
    """
    kind, colon, _network = name.partition(":")
    return kind if colon and kind in (PF, VF, *BY_OVN) else ""


def network_of_devices(name: str) -> str:
    """Return the physical network in *name*, if ``network_devices_name`` returned it; "" if it is a PCI alias."""
    return name.split(":")[1] if device_kind(name) else ""


def nic_devices_name(nic: Mapping[str, Any]) -> str:
    """Return the name (see ``network_devices_name``) of the devices that fit *nic*: the fields of a NIC, with
    ``physical_network``.
    """
    way = nic.get("vnic_type") or DIRECT
    name = network_devices_name(nic["physical_network"], way, bool(nic.get("trusted")) and way not in BY_OVN)
    return card_devices_name(name, nic.get("card", ""))


def card_devices_name(name: str, card: str) -> str:
    """Return *name* (of ``network_devices_name``), limited to the devices of one network card; unchanged if *card* is
    "". *card*: the card's network device, such as ens1.
    """
    kind, network, *trusted = name.split(":")
    return ":".join((kind, "%s/%s" % (network, card) if card else network, *trusted))


def describe_devices(name: str, single: bool = False) -> str:
    """Return a text for users that describes the devices of *name* (of ``network_devices_name``). *single*: in the
    singular instead of the plural.
    """
    kind, _network, *trusted = name.split(":")
    network = network_of_devices(name).replace("/", ", card ")
    return "%s%s%s of %s" % (
        "trusted " if trusted else "",
        {PF: "card", VDPA: "vDPA device", REMOTE: "remote-managed virtual function"}.get(kind, "virtual function"),
        "" if single else "s", "networks between hosts" if network == TUNNELS else "physical network %s" % network)


def is_nic_holder(name: str) -> bool:
    """Return whether *name* is the MAC address of a NIC and not a PCI alias. For each allocated device, a host records
    the holder: the MAC address of the NIC, or the alias, that requested the device.
    """
    return ":" in name


class DevicePool(NamedTuple):
    """A group of a host's PCI devices or virtual GPUs that are interchangeable. *aliases*: the names with which
    requests refer to the devices. *node*: the NUMA cell of the devices; -1 if the host does not report it. *total*,
    *free*: the numbers of devices. *provider*, *resource_class*: the resource provider that counts the devices, and the
    class of the devices; both "" if the host reports no provider.
    """

    aliases: tuple[str, ...]
    node: int
    total: int
    free: int
    provider: str = ""
    resource_class: str = ""


def device_requests(hardware: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of devices that a server with this *hardware* requests, by PCI alias or by the name of
    ``vgpu_device_name``.
    """
    amounts = parse_alias_counts(hardware["pci_alias"]) if hardware.get("pci_alias") else {}
    if not hardware.get("vgpus"):
        return amounts
    return {**amounts, vgpu_device_name(hardware.get("vgpu_trait", "")): hardware["vgpus"]}


def reported_devices(host: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the ``total`` and ``free`` numbers of devices that *host* (fields of ``kinds.Host``) reports, by PCI alias
    or by the name of ``vgpu_device_name``.
    """
    devices = {name: dict(device_counts) for name, device_counts in (host.get("pci_devices") or {}).items()}
    for part in host.get("mdevs") or ():
        for name in _names(part):
            sums = devices.get(name, {})
            devices[name] = {measure: sums.get(measure, 0) + part[measure] for measure in ("total", "free")}
    return devices


def _names(part: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names that requests for virtual GPUs can use. *part*: an item of the host's field ``mdevs``. The names
    are ``VGPU``, and one for each of the item's traits.
    """
    return (VGPU, *map(vgpu_device_name, part.get("traits") or ()))


def device_pools(host: Mapping[str, Any]) -> list[DevicePool]:
    """Return the device pools (groups of interchangeable devices) that *host* (fields of ``kinds.Host``) reports in
    ``pci_pools`` and ``mdevs``. If there is no ``pci_pools``, because the host's agent has an older release, make a
    pool of each alias in ``pci_devices``.
    """
    parts = [DevicePool(_names(mdev), mdev["numa_node"], mdev["total"], mdev["free"], mdev.get("provider", ""),
                        VGPU_CLASS)
             for mdev in host.get("mdevs") or ()]
    return parts + _pools(host)


def _pools(host: Mapping[str, Any]) -> list[DevicePool]:
    if (pci_pools := host.get("pci_pools")) is not None:
        return [DevicePool(tuple(pool["aliases"]), pool["numa_node"], pool["total"], pool["free"],
                           pool.get("provider", ""), pool.get("resource_class", "")) for pool in pci_pools]
    by_alias = host.get("pci_devices") or {}
    return [DevicePool((alias,), -1, device_counts["total"], device_counts["free"]) for alias,
            device_counts in by_alias.items()]


class Affinity(NamedTuple):
    """The NUMA affinity of a server's devices. *policy*: the affinity policy of the server's flavor or image; if
    *policy* is "", the policy of each device's alias applies. *cells*: the host's NUMA cells that the guest uses; if
    there are none, any device is allowed. *sockets*: the CPU sockets of each NUMA cell of the host.
    """

    policy: str = ""
    cells: frozenset[int] = frozenset()
    sockets: Mapping[int, frozenset[int]] = {}

    def suits(self, node: int, alias_policy: str = "") -> bool:
        """Return whether the policy allows a device at the host's NUMA cell *node* (-1: unknown). *alias_policy*: the
        policy of the device's alias, which applies if flavor and image have no policy.
        """
        policy = self.policy or alias_policy or LEGACY
        if not self.cells or policy == PREFERRED or node in self.cells:
            return True
        if policy == SOCKET:
            return any(self.sockets.get(node, frozenset()) & self.sockets.get(cell, frozenset()) for cell in self.cells)
        return policy == LEGACY and node < 0

    def far(self, node: int) -> bool:
        """Return whether the guest uses NUMA cells and *node* is not one of these host cells. Devices at such cells are
        chosen last.
        """
        return bool(self.cells) and node not in self.cells


ANYWHERE = Affinity()


def assign_candidates(units: Sequence[Sequence[Hashable]], room: Mapping[Any, int],
                      lax: int = 0) -> Optional[list[Any]]:
    """Choose one candidate (such as a device pool) for each unit (such as a requested device), and return the choices
    in the order of *units*; ``None`` if that is impossible.

    *units*: for each unit, its candidates, the preferred ones first. *room*: how often each candidate may be chosen.
    *lax*: the first *lax* units may remain without a candidate; the choice for such a unit is ``None``.
    """
    taken: dict[Any, list[int]] = {}

    def find(at: int, tried: set[Hashable]) -> bool:
        for candidate in units[at]:
            if candidate in tried:
                continue
            tried.add(candidate)
            holders = taken.setdefault(candidate, [])
            if len(holders) < room.get(candidate, 0):
                holders.append(at)
                return True
            for other in holders:
                if find(other, tried):
                    holders[holders.index(other)] = at
                    return True
        return False

    if not all(find(at, set()) or at < lax for at in range(len(units))):
        return None
    candidate_of = {at: candidate for candidate, holders in taken.items() for at in holders}
    return [candidate_of.get(at) for at in range(len(units))]


def pools_suffice(pools: Sequence[DevicePool], room: Sequence[int], requested: Iterable[Mapping[str, int]],
                  affinity: Affinity = ANYWHERE, policies: Mapping[str, str] = MappingProxyType({}),
                  occupied: Iterable[Mapping[str, int]] = ()) -> bool:
    """Return whether a host's *pools* (groups of interchangeable devices) have enough devices for several servers.

    *room*: for each pool, how many of its devices may be used. *requested*: for each server, the number of devices by
    alias. *affinity*: the NUMA affinity of the devices. *policies*: the affinity policy of each alias that has one.
    *occupied*: devices that servers use already, in the same form as *requested*. Occupied devices reduce *room*; an
    occupied device that fits no pool, because its alias or card no longer exists, is ignored.
    """
    def units(counted: Iterable[Mapping[str, int]]) -> list[list[int]]:
        return [[at for at, pool in enumerate(pools)
                 if alias in pool.aliases and (is_vgpu(alias) or affinity.suits(pool.node, policies.get(alias, "")))]
                for amounts in counted for alias, count in amounts.items() for _each in range(count)]

    held_units = units(occupied)
    return assign_candidates(held_units + units(requested), dict(enumerate(room)), len(held_units)) is not None


#: A device that a server has: alias (or ``VGPU``) and the index of its pool; ``None`` where no pool has room for it.
Held = Tuple[str, Optional[int]]


def assign_held_devices(pools: Sequence[DevicePool], counted: Mapping[str, Mapping[str, int]],
                        reported: Mapping[str, Mapping[str, int]]) -> dict[str, list[Held]]:
    """Match the devices of each server to the host's *pools* (groups of interchangeable devices).
    Return, by server, a list of (alias, index of the pool); the index is ``None`` if no pool has a device left.

    *counted*: the number of allocated devices, by server and alias. *reported*: the number of devices that the host
    reports, by server and resource provider. Allocated devices that the host does not report yet are assigned to the
    first pools with enough devices.
    """
    room = {at: pool.total for at, pool in enumerate(pools)}
    held_devices: dict[str, list[Held]] = {}
    open_units: list[tuple[str, str]] = []

    def of(alias: str) -> list[int]:
        return [at for at, pool in enumerate(pools) if alias in pool.aliases and room[at] > 0]

    for server, amounts in sorted(counted.items()):
        units = [alias for alias, count in sorted(amounts.items()) for _each in range(count)]
        mine = reported.get(server) or {}
        remaining = {at: min(room[at], mine.get(pool.provider, 0)) for at, pool in enumerate(pools)}
        got = assign_candidates([[at for at in of(alias) if remaining[at] > 0] for alias in units], remaining,
                                len(units)) or []
        held_devices[server] = []
        for alias, at in zip(units, got):
            if at is None:
                open_units.append((server, alias))
            else:
                room[at] -= 1
                held_devices[server].append((alias, at))
    taken: dict[str, int] = {}
    for server, mine in reported.items():
        if server not in counted:
            for name, count in mine.items():
                taken[name] = taken.get(name, 0) + count
    candidates = [sorted(of(alias), key=lambda at: taken.get(pools[at].provider, 0) >= pools[at].total)
                  for _server, alias in open_units]
    for (server, alias), at in zip(open_units, assign_candidates(candidates, room, len(open_units)) or []):
        held_devices[server].append((alias, at))
    return held_devices


def preferred_cells(free_devices: Iterable[tuple[Iterable[str], int, int]], requested: Mapping[str, int]) -> dict[int,
                                                                                                                  int]:
    """Return a weight for each NUMA cell of a host; guests are placed on cells with high weights first. Cells with
    *requested* devices have high weights; if no devices are requested, cells with devices have low ones.
    *free_devices*: tuples (aliases, NUMA cell, count). *requested*: number of devices by alias.
    """
    weights_by_node: dict[int, int] = {}
    for aliases, node, count in free_devices:
        if node >= 0:
            weight = sum(requested.get(alias, 0) for alias in aliases) if requested else -1
            weights_by_node[node] = weights_by_node.get(node, 0) + count * weight
    return weights_by_node


# Counting of devices --------------------------------------------------------------------------------------------------
MANAGED = "COMPUTE_MANAGED_PCI_DEVICE"
#: Classes of os-resource-classes that devices can have, and the pattern of their traits in os-traits.
_CLASSES = frozenset(("PCI_DEVICE", "PGPU", "FPGA", "SRIOV_NET_VF"))
TRAITS = r"HW_(GPU|NIC|PCI)_[A-Z0-9_]+"
_CUSTOM = "CUSTOM_"


def _normal(text: str) -> str:
    name = re.sub(r"[^A-Z0-9_]+", "_", text.strip().upper())
    return name if name.startswith(_CUSTOM) else _CUSTOM + name


def normalize_resource_class(text: str) -> str:
    """Return the resource class for *text*: a standard class of devices, or a custom class. Like Nova, convert the name
    of a custom class to upper case, replace characters that are not allowed by ``_``, and add the prefix ``CUSTOM_``.
    """
    name = text.strip().upper()
    return name if name in _CLASSES else _normal(text)


def normalize_traits(text: str) -> list[str]:
    """Return the sorted traits for *text*, names separated by commas. Names of custom traits are converted as in
    ``normalize_resource_class``.
    """
    names = (name.strip() for name in text.split(","))
    return sorted({name.upper() if re.fullmatch(TRAITS, name.upper()) else _normal(name) for name in names if name})


def pci_resource_class(vendor_id: str, product_id: str) -> str:
    """Return the resource class of devices with these PCI ids if the settings name no resource class:
    ``CUSTOM_PCI_VENDOR_PRODUCT``.
    """
    return ("%sPCI_%s_%s" % (_CUSTOM, vendor_id, product_id)).upper()


# Devices in settings
# ---------------------------------------------------------------------------------------------------
_KIND = ("vendor_id", "product_id", "resource_class", "traits", "live_migratable")
#: Keys of an entry of ``pci_device_spec`` and of ``pci_alias``.
DEVICE_WORDS = (*_KIND, "address", "managed", "one_time_use", "physical_network", "trusted", "remote_managed")
ALIAS_WORDS = ("name", *_KIND, "device_type", "numa_policy")
_TRUTH = "yes|no"
_RULES = {
    "name": (NAME, "must have letters, digits, and . - _ only"),
    "address": (r"[0-9a-f:.*?]{1,12}", "must be like 0000:81:00.0, and may have * and ?"),
    **dict.fromkeys(("managed", "one_time_use", "live_migratable", "trusted", "remote_managed"),
                    (_TRUTH, "must be true or false")),
    "physical_network": (PHYSICAL_NETWORK, "must be the name of a physical network: letters, digits, and . - _ only"),
    "resource_class": (r"[^\x00-\x1f]{1,200}", "must be the name of a resource class, such as CUSTOM_GPU or PGPU"),
    "traits": (r"[^\x00-\x1f]{1,1000}", "must be names of traits with commas between, such as CUSTOM_NVLINK"),
    "type": (r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", "must be the name of a folder in mdev_supported_types"),
    "numa_policy": ("|".join(POLICIES), "must be one of %s" % ", ".join(POLICIES)),
    "device_type": ("|".join(TYPES), "must be one of %s" % ", ".join(TYPES))}
#: Keys whose values keep their case.
_AS_GIVEN = ("name", "type", "device_type", "physical_network")
#: Resource classes that PCI devices cannot have: those of hosts and virtual GPUs.
NOT_DEVICES = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB", VGPU_CLASS)
_ID = (r"[0-9a-f]{4}", "must be four hexadecimal digits as a text, such as \"10de\"")


def normalize_device_field(field_name: str, value: Any) -> str:
    """Return the normal form of *value*, which the settings have for the field *field_name* of a device or alias.
    Raises ``ValueError`` with the reason if it is not valid.
    """
    if field_name == "physical_network" and value is None:  # Nova's notation
        return TUNNELS
    if isinstance(value, bool):  # YAML reads yes and no as booleans
        value = "yes" if value else "no"
    pattern, rule = _RULES.get(field_name, _ID)
    text = value.lower() if isinstance(value, str) and field_name not in _AS_GIVEN else value
    if pattern == _TRUTH:
        text = {"true": "yes", "false": "no"}.get(text, text)  # Nova writes some booleans as texts
    if not isinstance(text, str) or not re.fullmatch(pattern, text):
        raise ValueError("%s: %s (got %r)" % (field_name, rule, value))
    if field_name == "resource_class":
        if text.strip().upper() in NOT_DEVICES:
            raise ValueError("resource_class: %s counts something else than PCI devices" % text.strip().upper())
        return normalize_resource_class(text)
    return ",".join(normalize_traits(text)) if field_name == "traits" else text


def check_devices(specs: Sequence[Mapping[str, str]]) -> str:
    """Return an error message for *specs*, the devices in an agent's settings (as Nova's ``[pci]device_spec``); empty
    if they are valid.
    """
    for spec in specs:
        if spec.get("remote_managed") == "yes" and "physical_network" not in spec:
            return "remote_managed needs physical_network; null is for networks between hosts"
        if spec.get("remote_managed") == spec.get("trusted") == "yes":
            return "trusted and remote_managed exclude one another: a SmartNIC itself says which functions it trusts"
    return ""


def check_aliases(aliases: Sequence[Mapping[str, str]]) -> str:
    """Return an error message for *aliases*, the PCI aliases in the settings (as Nova's ``[pci]alias``); empty if they
    are valid.
    """
    vague = next((alias["name"] for alias in aliases if not {"vendor_id", "resource_class"} & alias.keys()), None)
    return "" if vague is None else "%s needs vendor_id or resource_class" % vague
