# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices that servers ask for: aliases with counts, and which devices of a host they may get. Pure: agents choose
by it, claims count by it, and schedulers foresee the choice.

Source: Nova's ``pci_passthrough:alias``, ``[pci]alias`` and ``hw:pci_numa_affinity_policy`` (spec rows PCI, XPCI).
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

#: What Nova lets the extra spec say, and the name of an alias.
ALIASES = r"[^:]+:[0-9]+(,\s*[^:]+:[0-9]+)*"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
#: The most devices of a server.
MOST = 32
_ASKED = re.compile(r"(?P<name>%s):(?P<count>[1-9][0-9]?)" % NAME)


def counts(text: str, field: str = "pci_alias") -> Dict[str, int]:
    """How many devices of which alias *text* (``gpu:1,nic:2``) asks for. Raises ``InvalidField``."""
    found: Dict[str, int] = {}
    for part in text.split(","):
        match = _ASKED.fullmatch(part.strip())
        if not match:
            raise InvalidField(field, "must name aliases and how many devices of each, such as gpu:1 or gpu:1,nic:2",
                               text)
        found[match["name"]] = found.get(match["name"], 0) + int(match["count"])
    if sum(found.values()) > MOST:
        raise InvalidField(field, "must ask for no more than %d devices" % MOST, text)
    return found


class PciAliases(Text):
    """Aliases of PCI devices with counts; the normal form names each once, in order."""

    def __init__(self) -> None:
        super().__init__(3, 255, ".*", "must name aliases and how many devices of each, such as gpu:1 or gpu:1,nic:2")

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        found = counts(super().check(value, path, version), path)
        return ",".join("%s:%d" % one for one in sorted(found.items()))


# What a host has ----------------------------------------------------------------------------------------------------
#: The name by which virtual GPUs are counted; no alias can have it.
VGPU_CLASS = "VGPU"
VGPU = "resources:%s" % VGPU_CLASS
LEGACY, PREFERRED, REQUIRED, SOCKET = POLICIES = ("legacy", "preferred", "required", "socket")
#: What a device is: a physical function that can have virtual ones, such a virtual one, or another one.
PF, VF, PCI = TYPES = ("type-PF", "type-VF", "type-PCI")
#: The name of a physical network.
PHYSICAL_NETWORK = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"


def vgpu_with(trait: str) -> str:
    """The name by which virtual GPUs of devices with a *trait* are counted; ``VGPU`` for "", of any device."""
    return "%s:%s" % (VGPU, trait) if trait else VGPU


def is_vgpu(name: str) -> bool:
    """Whether a name counts virtual GPUs."""
    return name == VGPU or name.startswith(VGPU + ":")


#: How a NIC has a device: a virtual function whole, or its network device by macvtap; or a whole card.
DIRECT, MACVTAP, WHOLE = PAST_OVN = ("direct", "macvtap", "direct-physical")
#: And those whose packets OVN has a card forward: a virtio device that a virtual function makes in hardware; and a
#: virtual function of a SmartNIC (DPU), which has an OVN of its own.
VDPA, REMOTE = BY_OVN = ("vdpa", "remote-managed")
VNIC_TYPES = (*PAST_OVN, *BY_OVN)
_KINDS = {WHOLE: PF, VDPA: VDPA, REMOTE: REMOTE}


def of_network(network: str, vnic_type: str = DIRECT, trusted: bool = False) -> str:
    """The name by which the devices of a physical network (or ``TUNNELS``) are counted of which NICs of *vnic_type*
    have one: its virtual functions (with *trusted* those that may be), its cards that have none now, its vDPA devices,
    or those of SmartNICs. No alias can have it."""
    return "%s:%s%s" % (_KINDS.get(vnic_type, VF), network, ":trusted" if trusted else "")


def kind_of(name: str) -> str:
    """What ``of_network`` has named so: PF, VF, VDPA or REMOTE; empty for an alias."""
    kind, colon, _network = name.partition(":")
    return kind if colon and kind in (PF, VF, *BY_OVN) else ""


def network_of(name: str) -> str:
    """The physical network that ``of_network`` has named so; empty for an alias."""
    return name.split(":")[1] if kind_of(name) else ""


def of_nic(nic: Mapping[str, Any]) -> str:
    """The same name, of what a *nic* of a server (with ``physical_network``) is."""
    way = nic.get("vnic_type") or DIRECT
    found = of_network(nic["physical_network"], way, bool(nic.get("trusted")) and way not in BY_OVN)
    return of_card(found, nic.get("card", ""))


def of_card(name: str, card: str) -> str:
    """The name of those of one *card* (its network device; empty for any) among the devices of ``of_network``."""
    kind, network, *trusted = name.split(":")
    return ":".join((kind, "%s/%s" % (network, card) if card else network, *trusted))


def in_words(name: str, one: bool = False) -> str:
    """What ``of_network`` has named so, to be read: several of them, or *one*."""
    kind, _network, *trusted = name.split(":")
    network = network_of(name).replace("/", ", card ")
    return "%s%s%s of %s" % (
        "trusted " if trusted else "",
        {PF: "card", VDPA: "vDPA device", REMOTE: "remote-managed virtual function"}.get(kind, "virtual function"),
        "" if one else "s", "networks between hosts" if network == TUNNELS else "physical network %s" % network)


def is_nic(name: str) -> bool:
    """Whether a device's holder is a NIC, by its MAC address, and no alias."""
    return ":" in name


class DevicePool(NamedTuple):
    """Devices of a host that are alike for those who ask: the *aliases* that name them, their NUMA cell (*node*, -1
    where the host does not tell), how many there are and how many are free; the *provider* of the host that they are
    counted at, and its *resource_class* that they are one of (both empty where the host does not tell)."""

    aliases: tuple[str, ...]
    node: int
    total: int
    free: int
    provider: str = ""
    resource_class: str = ""


def asked(hardware: Mapping[str, Any]) -> dict[str, int]:
    """How many devices a server of this *hardware* asks for, by alias and ``vgpu_with``."""
    found = counts(hardware["pci_alias"]) if hardware.get("pci_alias") else {}
    if not hardware.get("vgpus"):
        return found
    return {**found, vgpu_with(hardware.get("vgpu_trait", "")): hardware["vgpus"]}


def told(host: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """``total`` and ``free`` of what servers can ask for, by alias and ``vgpu_with``, as a host tells it."""
    found = {name: dict(one) for name, one in (host.get("pci_devices") or {}).items()}
    for part in host.get("mdevs") or ():
        for name in _names(part):
            had = found.get(name, {})
            found[name] = {what: had.get(what, 0) + part[what] for what in ("total", "free")}
    return found


def _names(part: Mapping[str, Any]) -> tuple[str, ...]:
    """By what servers ask for a part of a device (of the field ``mdevs``)."""
    return (VGPU, *map(vgpu_with, part.get("traits") or ()))


def pools(host: Mapping[str, Any]) -> list[DevicePool]:
    """The pools that a host tells (the fields ``pci_pools`` and ``mdevs`` of ``kinds.Host``). One of an earlier agent
    tells none, but how many there are of each alias."""
    parts = [DevicePool(_names(one), one["numa_node"], one["total"], one["free"], one.get("provider", ""), VGPU_CLASS)
             for one in host.get("mdevs") or ()]
    return parts + _pools(host)


def _pools(host: Mapping[str, Any]) -> list[DevicePool]:
    if (there := host.get("pci_pools")) is not None:
        return [DevicePool(tuple(one["aliases"]), one["numa_node"], one["total"], one["free"], one.get("provider", ""),
                           one.get("resource_class", "")) for one in there]
    by_alias = host.get("pci_devices") or {}
    return [DevicePool((alias,), -1, one["total"], one["free"]) for alias, one in by_alias.items()]


class Affinity(NamedTuple):
    """Which devices a server may have by their NUMA cells. *policy*: that of flavor or image, "" for the alias's own.
    *cells*: those of the host that its guest is on; a guest without NUMA cells may have any device. *sockets*: those of
    each cell of the host."""

    policy: str = ""
    cells: frozenset[int] = frozenset()
    sockets: Mapping[int, frozenset[int]] = {}

    def suits(self, node: int, own: str = "") -> bool:
        """Whether a device at the cell *node* suits. *own*: the policy of the alias (row XPCI-05)."""
        policy = self.policy or own or LEGACY
        if not self.cells or policy == PREFERRED or node in self.cells:
            return True
        if policy == SOCKET:
            return any(self.sockets.get(node, frozenset()) & self.sockets.get(cell, frozenset()) for cell in self.cells)
        return policy == LEGACY and node < 0

    def far(self, node: int) -> bool:
        """Whether devices at other cells come first."""
        return bool(self.cells) and node not in self.cells


ANYWHERE = Affinity()


def assigned(units: Sequence[Sequence[Hashable]], room: Mapping[Any, int], lax: int = 0) -> Optional[list[Any]]:
    """For each of the *units* one of its candidates, those that come first if that can be, and none of them more often
    than it has *room*; ``None`` where there is not enough for all. Of the first *lax* units as many as can be get one,
    the others ``None``."""
    taken: dict[Any, list[int]] = {}

    def find(at: int, seen: set[Hashable]) -> bool:
        for one in units[at]:
            if one in seen:
                continue
            seen.add(one)
            held = taken.setdefault(one, [])
            if len(held) < room.get(one, 0):
                held.append(at)
                return True
            for other in held:
                if find(other, seen):
                    held[held.index(other)] = at
                    return True
        return False

    if not all(find(at, set()) or at < lax for at in range(len(units))):
        return None
    of = {at: one for one, held in taken.items() for at in held}
    return [of.get(at) for at in range(len(units))]


def suffice(there: Sequence[DevicePool], room: Sequence[int], asked: Iterable[Mapping[str, int]],
            affinity: Affinity = ANYWHERE, policies: Mapping[str, str] = MappingProxyType({}),
            held: Iterable[Mapping[str, int]] = ()) -> bool:
    """Whether the pools, with so much *room* in each, have devices for all servers, which have *asked* for so many of
    each alias. *policies*: of aliases that have one. *held*: what servers have of that room already; what fits nowhere
    (its alias is gone, or its card) is in nobody's way."""
    def units(counted: Iterable[Mapping[str, int]]) -> list[list[int]]:
        return [[at for at, pool in enumerate(there)
                 if alias in pool.aliases and (is_vgpu(alias) or affinity.suits(pool.node, policies.get(alias, "")))]
                for one in counted for alias, count in one.items() for _each in range(count)]

    had = units(held)
    return assigned(had + units(asked), dict(enumerate(room)), len(had)) is not None


#: Devices that a server has: alias (or ``VGPU``), and the place of its pool; ``None`` where no pool has room for it.
Held = Tuple[str, Optional[int]]


def spread(there: Sequence[DevicePool], counted: Mapping[str, Mapping[str, int]],
           known: Mapping[str, Mapping[str, int]]) -> dict[str, list[Held]]:
    """Of which pools the devices are that servers hold. *counted*: how many of each alias by server, as claims say.
    *known*: how many devices of which provider a server has, as its host tells; what it does not tell yet is of the
    first pools with room, and none is given twice."""
    room = {at: pool.total for at, pool in enumerate(there)}
    found: dict[str, list[Held]] = {}
    open_units: list[tuple[str, str]] = []

    def of(alias: str) -> list[int]:
        return [at for at, pool in enumerate(there) if alias in pool.aliases and room[at] > 0]

    for server, wanted in sorted(counted.items()):
        units = [alias for alias, count in sorted(wanted.items()) for _each in range(count)]
        mine = known.get(server) or {}
        left = {at: min(room[at], mine.get(pool.provider, 0)) for at, pool in enumerate(there)}
        got = assigned([[at for at in of(alias) if left[at] > 0] for alias in units], left, len(units)) or []
        found[server] = []
        for alias, at in zip(units, got):
            if at is None:
                open_units.append((server, alias))
            else:
                room[at] -= 1
                found[server].append((alias, at))
    taken: dict[str, int] = {}
    for server, mine in known.items():
        if server not in counted:
            for name, count in mine.items():
                taken[name] = taken.get(name, 0) + count
    candidates = [sorted(of(alias), key=lambda at: taken.get(there[at].provider, 0) >= there[at].total)
                  for _server, alias in open_units]
    for (server, alias), at in zip(open_units, assigned(candidates, room, len(open_units)) or []):
        found[server].append((alias, at))
    return found


def preferred_cells(found: Iterable[tuple[Iterable[str], int, int]], asked: Mapping[str, int]) -> dict[int, int]:
    """How much a guest is to be on each cell of a host whose devices are *found*: (aliases, cell, count) of each that
    is free. Those with devices that it has *asked* for come first; for others those with devices last (row XCPU-03)."""
    worth: dict[int, int] = {}
    for aliases, node, count in found:
        if node >= 0:
            wanted = sum(asked.get(alias, 0) for alias in aliases) if asked else -1
            worth[node] = worth.get(node, 0) + count * wanted
    return worth


# How devices are counted ------------------------------------------------------------------------------------------
#: What each provider of PCI devices has (Nova's trait of devices that it takes care of).
MANAGED = "COMPUTE_MANAGED_PCI_DEVICE"
#: Classes of os-resource-classes that devices can be of, and the traits of os-traits that are theirs.
_CLASSES = frozenset(("PCI_DEVICE", "PGPU", "FPGA", "SRIOV_NET_VF"))
TRAITS = r"HW_(GPU|NIC|PCI)_[A-Z0-9_]+"
_CUSTOM = "CUSTOM_"


def _normal(text: str) -> str:
    name = re.sub(r"[^A-Z0-9_]+", "_", text.strip().upper())
    return name if name.startswith(_CUSTOM) else _CUSTOM + name


def class_name(text: str) -> str:
    """The resource class that *text* names: a standard one of devices, or a custom one, capital, with ``_`` for what
    else is in it (Nova's rule)."""
    name = text.strip().upper()
    return name if name in _CLASSES else _normal(text)


def trait_names(text: str) -> list[str]:
    """The traits that *text* names with commas between, by the same rule, sorted."""
    found = (one.strip() for one in text.split(","))
    return sorted({one.upper() if re.fullmatch(TRAITS, one.upper()) else _normal(one) for one in found if one})


def class_of(vendor_id: str, product_id: str) -> str:
    """The resource class of devices of which the settings say none (row XPCI-08)."""
    return ("%sPCI_%s_%s" % (_CUSTOM, vendor_id, product_id)).upper()


# What settings say of devices ---------------------------------------------------------------------------------------
_KIND = ("vendor_id", "product_id", "resource_class", "traits", "live_migratable")
#: What an entry of ``pci_device_spec`` and of ``pci_alias`` may have.
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
#: Words whose values stay as they are given.
_AS_GIVEN = ("name", "type", "device_type", "physical_network")
#: Classes that hosts and virtual GPUs have.
NOT_DEVICES = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB", VGPU_CLASS)
_ID = (r"[0-9a-f]{4}", "must be four hexadecimal digits as a text, such as \"10de\"")


def checked(word: str, value: Any) -> str:
    """The *value* of a *word* of a device or an alias in its normal form. Raises ``ValueError`` with what is wrong."""
    if word == "physical_network" and value is None:  # as Nova writes it
        return TUNNELS
    if isinstance(value, bool):  # as YAML reads yes and no
        value = "yes" if value else "no"
    pattern, rule = _RULES.get(word, _ID)
    text = value.lower() if isinstance(value, str) and word not in _AS_GIVEN else value
    if pattern == _TRUTH:
        text = {"true": "yes", "false": "no"}.get(text, text)  # as Nova writes some
    if not isinstance(text, str) or not re.fullmatch(pattern, text):
        raise ValueError("%s: %s (got %r)" % (word, rule, value))
    if word == "resource_class":
        if text.strip().upper() in NOT_DEVICES:
            raise ValueError("resource_class: %s counts something else than PCI devices" % text.strip().upper())
        return class_name(text)
    return ",".join(trait_names(text)) if word == "traits" else text


def check_devices(specs: Sequence[Mapping[str, str]]) -> str:
    """What is wrong with devices that settings name; empty when nothing is."""
    for one in specs:
        if one.get("remote_managed") == "yes" and "physical_network" not in one:
            return "remote_managed needs physical_network; null is for networks between hosts"
        if one.get("remote_managed") == one.get("trusted") == "yes":
            return "trusted and remote_managed exclude one another: a SmartNIC itself says which functions it trusts"
    return ""


def check_aliases(aliases: Sequence[Mapping[str, str]]) -> str:
    """What is wrong with aliases that settings name; empty when nothing is."""
    vague = next((one["name"] for one in aliases if not {"vendor_id", "resource_class"} & one.keys()), None)
    return "" if vague is None else "%s needs vendor_id or resource_class" % vague
