# SPDX-License-Identifier: GPL-3.0-or-later
"""Which PCI devices of this host a server has.

They are chosen under the lock of choices, and kept in the server's document (``FIELD``: by address the alias, or the
MAC of the NIC that it is) before anything acts on them: no two servers ever get the same. A server that
changes holds what its guest still runs with (``BEFORE``) until its domain is defined anew, or its NICs are plugged. A
server whose device is gone gets another one at its next start, or an error that says what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware.pci import (
    PciDevice,
    allowed,
    is_remote,
    mac_address,
    moves_live,
    named,
    names,
    network_device,
)
from magnetar_agent.host.file_modes import make_folder
from magnetar_agent.reconcile.documents import sync_folder
from magnetar_agent.reconcile.locks import CHOICES
from magnetar_core import bandwidth
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.pci import (
    MACVTAP,
    MANAGED,
    VDPA,
    WHOLE,
    Affinity,
    assigned,
    counts,
    in_words,
    is_nic,
    network_of,
    of_nic,
    preferred_cells,
)
from magnetar_core.power import LIVE, SUSPENDED

from . import placement

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields

#: What a document has in its ``want``: address to alias or MAC; and what its guest had before a change.
FIELD, BEFORE = "pci_devices", "pci_devices_before"
#: And by address the MAC that a whole card has, which nothing tells while a guest has it.
MACS = "pci_device_macs"
#: Folder of the state: a file, named by its address, for each device that is given once (one_time_use) and was.
USED = "used_devices"


def devices(host: LocalHost) -> list[PciDevice]:
    """Those that servers may have, given away or not."""
    specs = host.settings.pci_device_spec
    serials = host.hypervisor.card_serials() if any(map(is_remote, specs)) else {}
    return allowed(host.settings.sysfs, specs, serials)


def bandwidths(host: LocalHost) -> dict[str, dict[str, int]]:
    """What the host promises to ports, by place (``core.bandwidth``)."""
    return bandwidth.of_setting(host.settings.resource_provider_bandwidths)


def _used(host: LocalHost) -> set[str]:
    try:
        return {path.name for path in (host.settings.state_dir / USED).iterdir()}
    except OSError:
        return set()


def asked(want: Mapping[str, Any]) -> dict[str, int]:
    """How many devices of which alias, or physical network, a server of these fields is to have."""
    found = of_flavor(want)
    for nic in functions(want):
        name = of_nic(nic)
        found[name] = found.get(name, 0) + 1
    return found


def of_flavor(want: Mapping[str, Any]) -> dict[str, int]:
    """How many devices of which alias it is to have."""
    text = (want.get("hardware") or {}).get("pci_alias")
    return counts(text) if text else {}


def functions(want: Mapping[str, Any]) -> list[Fields]:
    """Its NICs that are devices of the host: virtual functions, or whole cards."""
    return [nic for nic in want.get("networks") or () if nic.get("physical_network")]


def are_by_name(want: Mapping[str, Any]) -> bool:
    """Whether its domain has devices by what the host calls them, which another boot of the host may change."""
    return any(nic.get("vnic_type") in (MACVTAP, VDPA) for nic in functions(want))


def _holders(want: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """What asks for devices, an alias or a NIC (by its MAC): how it is called, the name of the devices, and how many.
    """
    return [*((alias, alias, count) for alias, count in sorted(of_flavor(want).items())),
            *sorted((nic["mac"], of_nic(nic), 1) for nic in functions(want))]


def check_live(host: LocalHost, want: Mapping[str, Any], source_can: bool, pulls: bool) -> None:
    """Raise ``Conflict`` where the devices of a server with these fields cannot come here while its guest runs.
    *source_can*: whether the agent that it comes from puts devices of this host in their place; *pulls*: whether it
    has the guest let go of those that are NICs."""
    if functions(want) and not pulls:
        macs = ", ".join(nic["mac"] for nic in functions(want))
        raise Conflict(f"The server has NICs that are devices of its host ({macs}), which cannot move while the guest "
                       "runs from an agent of an earlier version. Migrate it cold, or upgrade that agent first.")
    if fixed := [alias for alias in sorted(of_flavor(want)) if not moves_live(alias, host.settings.pci_alias)]:
        raise Conflict(f"The server has PCI devices (hardware.pci_alias: {', '.join(fixed)}), which cannot move while "
                       "the guest runs. Migrate it cold. Aliases whose devices can have live_migratable: true in the "
                       "agents' setting pci_alias.")
    if of_flavor(want) and not source_can:
        raise Conflict("The server has PCI devices (hardware.pci_alias), which cannot move while the guest runs from "
                       "an agent of an earlier version. Migrate it cold, or upgrade that agent first.")


def held(host: LocalHost, without: str = "") -> set[str]:
    """Addresses that servers of this host have, and those on their way here, but for the server *without*."""
    return {address for want in placement.holders(host, without)
            for name in (FIELD, BEFORE) for address in want.get(name) or ()}


def _taken(one: PciDevice, had: Container[str]) -> bool:
    """Whether a device is, or is part of, what servers *had*: a card is given whole or by its virtual functions."""
    return one.address in had or one.parent in had


def told(host: LocalHost, there: Sequence[PciDevice]) -> dict[str, Any]:
    """``pci_devices`` and ``pci_pools`` of ``kinds.Host``, of the devices *there*. What was given once and is nobody's
    any more counts for nothing, so that no claim is for it."""
    aliases = host.settings.pci_alias
    there = there if aliases or any(one.of_network for one in there) else ()
    had, used, places = (held(host), _used(host), bandwidths(host)) if there else (set(), set(), {})
    found: dict[tuple[tuple[str, ...], int, str, str], list[int]] = {}
    for one in there:
        if of := names(one, aliases, places):
            count = found.setdefault((of, one.numa_node, one.provider, one.resource_class), [0, 0])
            count[0] += one.address in had or one.address not in used
            count[1] += not _taken(one, had) and one.address not in used
    by_alias: dict[str, dict[str, Any]] = {}
    for alias in aliases:
        policy = {"numa_policy": alias["numa_policy"]} if "numa_policy" in alias else {}
        by_alias.setdefault(alias["name"], {"total": 0, "free": 0}).update(policy)
    for (of, *_where), (total, free) in found.items():
        for name in of:
            counted = by_alias.setdefault(name, {"total": 0, "free": 0})
            counted["total"] += total
            counted["free"] += free
    return {"pci_devices": by_alias, "pci_pools": [
        {"aliases": list(of), "numa_node": node, "total": total, "free": free, "provider": provider,
         "resource_class": kind} for (of, node, provider, kind), (total, free) in sorted(found.items())]}


def providers(host: LocalHost, there: Sequence[PciDevice], above: Mapping[int, str]) -> list[dict[str, Any]]:
    """The devices *there* as ``providers`` of ``kinds.Host``: each one, and a parent with its virtual functions (row
    XPCI-08). A device that was given once is reserved from then on. *above*: the provider of each NUMA cell."""
    used = _used(host)
    by_address = {one.address: one for one in there}
    found: dict[str, dict[str, Any]] = {}
    for one in there:
        traits = sorted({MANAGED, *one.own_traits})
        made = found.setdefault(one.provider, {"name": one.provider, "parent": above.get(one.numa_node, ""),
                                               "inventories": {}, "traits": traits, "held": {}})
        made["traits"] = [name for name in made["traits"] if name in traits]
        kind = made["inventories"].setdefault(one.resource_class, {"total": 0, "reserved": 0, "max_unit": 0})
        kind["total"] += 1
        kind["max_unit"] += 1
        kind["reserved"] += one.address in used
    for id, want in placement.wants(host) if there else ():
        for address in {*(want.get(FIELD) or ()), *(want.get(BEFORE) or ())} & by_address.keys():
            device = by_address[address]
            mine = found[device.provider]["held"].setdefault(id, {})
            mine[device.resource_class] = mine.get(device.resource_class, 0) + 1
    return list(found.values())


def whole(host: LocalHost) -> dict[str, dict[str, Any]]:
    """``pci_devices`` as if no server had any."""
    return {name: {**one, "free": one["total"]} for name, one in told(host, devices(host))["pci_devices"].items()}


def cells(host: LocalHost, want: Mapping[str, Any], id: str = "") -> dict[int, int]:
    """How much the server *id* with these fields is to be on each NUMA cell for its devices (``preferred_cells``)."""
    if not host.settings.pci_device_spec or placement.asked(want) is None:
        return {}
    taken = held(host, id) | _used(host)
    aliases, places = host.settings.pci_alias, bandwidths(host)
    return preferred_cells(((names(one, aliases, places), one.numa_node, 1) for one in devices(host)
                            if not _taken(one, taken)), asked(want))


def choose(host: LocalHost, want: Mapping[str, Any], id: str, had: Mapping[str, str] | None = None,
           fixed: bool = False) -> dict[str, str]:
    """What the server *id* with these fields gets: of what it *had*, what is there still, and then the first free
    ones, near its NUMA cells. *fixed*: what it has stays in any case, as its guest may run with it. Hold the lock of
    choices until it is written. Raises ``Conflict``."""
    if not asked(want):
        return {}
    taken = held(host, id) | (_used(host) - set(had or ()))
    aliases, near = host.settings.pci_alias, _affinity(host, want)
    free = [one for one in devices(host) if not _taken(one, taken)]
    taps = {nic["mac"] for nic in functions(want) if nic.get("vnic_type") == MACVTAP}
    units: list[list[str]] = []
    of: list[str] = []
    for holder, alias, count in _holders(want):
        own = next((one["numa_policy"] for one in aliases if one["name"] == alias and "numa_policy" in one), "")
        suited = sorted(((had or {}).get(one.address) != holder, near.far(one.numa_node), one.trusted, one.address)
                        for one in free if named(one, alias, aliases) and near.suits(one.numa_node, own)
                        and (holder not in taps or network_device(host.settings.sysfs, one.address)))
        if len(suited) < count:
            raise _too_few(host, [alias], count, len(suited), near)
        units += [[address for *_order, address in suited]] * count
        of += [holder] * count
    room = dict.fromkeys((one.address for one in free), 1)
    found = assigned(_kept(units, of, had or {}), room)
    if found is None and not fixed:
        found = assigned(units, room)
    if found is None:
        raise _too_few(host, sorted(asked(want)), len(of), len(set().union(*units)), near)
    return dict(zip(found, of, strict=True))


def _kept(units: Sequence[Sequence[str]], of: Sequence[str], had: Mapping[str, str]) -> list[list[str]]:
    """The candidates of *units*, each *of* a holder, where each has what its holder *had*, and others the rest."""
    left: dict[str, list[str]] = {}
    for candidates, holder in zip(units, of, strict=True):
        left.setdefault(holder, [one for one in candidates if had.get(one) == holder])
    mine = {one for found in left.values() for one in found}
    return [[left[holder].pop(0)] if left[holder] else [one for one in candidates if one not in mine]
            for candidates, holder in zip(units, of, strict=True)]


def _affinity(host: LocalHost, want: Mapping[str, Any]) -> Affinity:
    on = frozenset(placement.on_cells(want))
    if not on:
        return Affinity()
    policy = (want.get("hardware") or {}).get("pci_numa_affinity", "")
    return Affinity(policy, on, {one.id: one.sockets for one in host.hypervisor.numa_cells()})


def _too_few(host: LocalHost, names: Sequence[str], count: int, free: int, near: Affinity) -> Conflict:
    where = (f" that suit the server's NUMA cells ({', '.join(map(str, sorted(near.cells)))} of the host)"
             if near.cells else "")
    field = "networks" if any(map(network_of, names)) else "hardware.pci_alias"
    what = " and ".join(in_words(one) if network_of(one) else f"PCI devices of alias {one}" for one in names)
    return Conflict(
        f"{field}: the server needs {count} {what}, and host {host.name} has "
        f"{free} free{where}. Choose another host, free some there, or look at its agent's settings pci_device_spec "
        "and pci_alias.", field=field)


def complete(host: LocalHost, found: Fields, old: Fields, id: str) -> None:
    """Set ``FIELD`` of *found*, whose hardware and placement are known. *old*: what was wanted before. Raises
    ``Conflict``, and ``InvalidField`` for a server that is to be suspended with devices that are no NICs."""
    had, before = old.get(FIELD) or {}, old.get(BEFORE) or {}
    found.pop(FIELD, None)
    found.pop(BEFORE, None)
    if of_flavor(found) and found.get("power") == SUSPENDED:
        raise InvalidField("power", "cannot be suspended while the server has PCI devices, whose state cannot be "
                                    "saved; stop it, or pause it", SUSPENDED)
    same = bool(old) and _wish(found) == _wish(old)
    fixed = bool(old) and of_flavor(found) == of_flavor(old)  # then NICs are plugged while the guest runs
    made = dict(had) if same and had else choose(host, found, id, {**before, **had}, fixed)
    found.update({FIELD: made} if made else {})
    before = {**before, **({} if same else had)}
    found.update({BEFORE: before} if before else {})
    _note_macs(host, found, old.get(MACS) or {})


def _note_macs(host: LocalHost, want: Fields, had: Mapping[str, str]) -> None:
    """Note the MACs of the cards that a server has whole, before its guest has them; *had*: those known, of cards that
    the host does not have now."""
    whole_cards = {nic["mac"] for nic in functions(want) if nic.get("vnic_type") == WHOLE}
    found = {address: mac_address(host.settings.sysfs, address) or had.get(address, "")
             for address, holder in (want.get(FIELD) or {}).items() if holder in whole_cards} if whole_cards else {}
    want.pop(MACS, None)
    want.update({MACS: found} if found else {})


def arrive(host: LocalHost, want: Fields, id: str) -> None:
    """Choose what a server that comes from another host gets here. Hold the lock of choices until it is written.
    Raises ``Conflict``."""
    for name in (FIELD, BEFORE, MACS):
        want.pop(name, None)
    if made := choose(host, want, id):
        want[FIELD] = made
    _note_macs(host, want, {})


def _wish(want: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the choice follows from."""
    return _holders(want), placement.on_cells(want), (want.get("hardware") or {}).get("pci_numa_affinity")


def settle(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    """Before a domain is defined or started: give up what the server had before a change, and choose anew where a
    device is gone. *keep* writes the document. Raises ``Conflict``."""
    want = document.want
    if FIELD not in want and BEFORE not in want and not asked(want):
        return
    domain = host.hypervisor.domain(document.id)
    if domain is not None and domain.state in LIVE:
        return  # the guest has them
    with host.locks.hold(*CHOICES):
        had = want.get(FIELD) or {}
        made = choose(host, want, document.id, had)
        _note_use(host, made)
        if made == had and BEFORE not in want:
            return
        want.pop(FIELD, None)
        want.pop(BEFORE, None)
        want.update({FIELD: made} if made else {})
        _note_macs(host, want, want.get(MACS) or {})
        placement.write_choice(document, keep)


def follow_nics(want: Fields, failed: bool, there: Container[str] = ()) -> None:
    """Have a server whose guest has been given the NICs that it wants hold what these are, and nothing for others; its
    document is to be written. *failed*: the guest has those from before, and may have got some of the new ones. What
    is *there* (addresses) stays the server's until its guest is off or has let go of it."""
    had, now = want.get(BEFORE) or {}, want.get(FIELD) or {}
    macs = {nic["mac"] for nic in functions(want)}
    kept = {**{address: holder for address, holder in now.items() if not is_nic(holder)}}
    for found in (had, now) if failed else (now, had):
        kept.update({address: holder for address, holder in found.items()
                     if holder in macs and holder not in kept.values()})
    before = {address: holder for address, holder in {**now, **had}.items()
              if (address in had and not is_nic(holder)) or (address in there and address not in kept)}
    for name, value in ((FIELD, kept), (BEFORE, before if before.items() - kept.items() else {})):
        want.pop(name, None)
        want.update({name: value} if value else {})


def _note_use(host: LocalHost, made: Mapping[str, str]) -> None:
    """Note which of a server's devices are given once, before its guest has them."""
    for one in devices(host) if made else ():
        if one.once and one.address in made:
            folder = host.settings.state_dir / USED
            make_folder(folder, 0o700)
            (folder / one.address).touch(0o600)
            sync_folder(folder)


def of(host: LocalHost, want: Mapping[str, Any]) -> tuple[PciDevice, ...]:
    """The devices of the domain of a server with these fields, by alias, as a live migration puts those of the target
    in the place of those here one by one. One that is gone stays: libvirt says so. Not those that are NICs."""
    return tuple(one for holder, one in _had(host, want) if not is_nic(holder))


def of_nics(host: LocalHost, want: Mapping[str, Any]) -> dict[str, PciDevice]:
    """MAC to the device that the NIC is."""
    return dict(_had(host, want)) if functions(want) else {}


def _had(host: LocalHost, want: Mapping[str, Any]) -> list[tuple[str, PciDevice]]:
    had = want.get(FIELD) or {}
    there = {one.address: one for one in devices(host)} if had else {}
    return [(had[one], there.get(one) or PciDevice(one, "", "", -1))
            for one in sorted(had, key=lambda one: (had[one], one))]


def seen_of_nics(want: Mapping[str, Any]) -> dict[str, PciDevice]:
    """As ``of_nics``, with nothing but the addresses, for which nobody has to look at the host."""
    return {holder: PciDevice(address, "", "", -1) for address, holder in (want.get(FIELD) or {}).items()}


def mac_in_guest(want: Mapping[str, Any], nic: Mapping[str, Any]) -> str:
    """The MAC by which the guest sees a NIC: its own, but that of the card where it is a whole one."""
    macs: Mapping[str, str] = want.get(MACS) or {}
    address = next((one for one, holder in (want.get(FIELD) or {}).items() if holder == nic["mac"]), "") if macs else ""
    return macs.get(address) or str(nic["mac"])


def told_of_nics(want: Mapping[str, Any], look: Callable[[], Sequence[PciDevice]]) -> dict[str, dict[str, Any]]:
    """``nic_devices`` of ``kinds.Server``. *look*: ``devices``, for a server that has some."""
    there, macs = {one.address: one for one in look()} if functions(want) else {}, want.get(MACS) or {}
    return {mac: {"pci_slot": one.address, "pci_vendor_info": f"{one.vendor_id}:{one.product_id}",
                  "physical_network": one.physical_network,
                  **({"device_mac_address": macs[one.address]} if macs.get(one.address) else {}),
                  **(one.remote._asdict() if one.remote else {})}
            for mac, seen in seen_of_nics(want).items() if is_nic(mac)
            for one in [there.get(seen.address, seen)]}
