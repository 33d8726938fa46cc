# SPDX-License-Identifier: GPL-3.0-or-later
"""The PCI devices of this host that a server has.

They are chosen under the lock ``CHOICES``, and kept in the server's document before anything acts on them (``FIELD``:
by address of the device, the alias or the MAC of the NIC that it is for), so no two servers ever get the same. A server
that changes holds the devices of its running guest (``BEFORE``) until its domain is defined again, or its NICs are
plugged. A server whose device is gone gets another one at its next start, or an error that names the missing device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware.pci import (
    PciDevice,
    alias_names_device,
    allowed_devices,
    device_aliases,
    is_remote,
    mac_address,
    moves_live,
    network_device,
)
from magnetar_agent.host.file_modes import make_state_folder
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
    assign_candidates,
    describe_devices,
    is_nic_holder,
    network_of_devices,
    nic_devices_name,
    parse_alias_counts,
    preferred_cells,
)
from magnetar_core.power import LIVE, SUSPENDED

from . import placement

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields

#: Keys of ``want``: address to alias or MAC, and the same of the guest before a change.
FIELD, BEFORE = "pci_devices", "pci_devices_before"
#: Key of ``want``: address to the MAC of a whole card, which cannot be read while a guest has the card.
MACS = "pci_device_macs"
#: Folder of the state: a file, named by its address, for each one-time device (one_time_use) that was used.
USED = "used_devices"


def assignable_devices(host: LocalHost) -> list[PciDevice]:
    """Return the PCI devices of this host that servers may use, including those in use."""
    specs = host.settings.pci_device_spec
    serials = host.hypervisor.card_serials() if any(map(is_remote, specs)) else {}
    return allowed_devices(host.settings.sysfs, specs, serials)


def promised_bandwidths(host: LocalHost) -> dict[str, dict[str, int]]:
    """Return the bandwidths that the host guarantees to ports, in kbit/s: ``{physical network, or card in it:
    {direction: bandwidth}}``."""
    return bandwidth.parse_bandwidth_setting(host.settings.resource_provider_bandwidths)


def _used(host: LocalHost) -> set[str]:
    try:
        return {path.name for path in (host.settings.state_dir / USED).iterdir()}
    except OSError:
        return set()


def needed_pci_devices(want: Mapping[str, Any]) -> dict[str, int]:
    """Return how many PCI devices a server with the desired fields *want* needs: ``{alias or physical network:
    number}``."""
    requested = requested_aliases(want)
    for nic in device_nics(want):
        name = nic_devices_name(nic)
        requested[name] = requested.get(name, 0) + 1
    return requested


def requested_aliases(want: Mapping[str, Any]) -> dict[str, int]:
    """Return how many PCI devices a server with the desired fields *want* requests by alias: ``{alias: number}``."""
    text = (want.get("hardware") or {}).get("pci_alias")
    return parse_alias_counts(text) if text else {}


def device_nics(want: Mapping[str, Any]) -> list[Fields]:
    """Return the server's NICs that are PCI devices of the host: SR-IOV virtual functions, or whole cards."""
    return [nic for nic in want.get("networks") or () if nic.get("physical_network")]


def are_by_name(want: Mapping[str, Any]) -> bool:
    """Return whether the server's domain refers to PCI devices by their network or vDPA device names, which may change
    when the host reboots."""
    return any(nic.get("vnic_type") in (MACVTAP, VDPA) for nic in device_nics(want))


def _holders(want: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Return the server's requests for PCI devices as triples: the name of the request (an alias, or the MAC of a NIC),
    the alias or physical network that a suitable device has, and the number of devices."""
    return [*((alias, alias, count) for alias, count in sorted(requested_aliases(want).items())),
            *sorted((nic["mac"], nic_devices_name(nic), 1) for nic in device_nics(want))]


def check_pci_live(host: LocalHost, want: Mapping[str, Any], source_can: bool, pulls: bool) -> None:
    """Raise ``Conflict`` if a server with the PCI devices in *want* cannot be live-migrated to this host. *source_can*:
    whether the source's agent can replace the devices by those of this host. *pulls*: whether the source's agent can
    unplug SR-IOV NICs from the guest."""
    if device_nics(want) and not pulls:
        macs = ", ".join(nic["mac"] for nic in device_nics(want))
        raise Conflict(f"The server has NICs that are devices of its host ({macs}), which cannot move while the guest "
                       "runs from an agent of an earlier version. Migrate it cold, or upgrade that agent first.")
    if fixed := [alias for alias in sorted(requested_aliases(want)) if not moves_live(alias, host.settings.pci_alias)]:
        raise Conflict(f"The server has PCI devices (hardware.pci_alias: {', '.join(fixed)}), which cannot move while "
                       "the guest runs. Migrate it cold. Aliases whose devices can have live_migratable: true in the "
                       "agents' setting pci_alias.")
    if requested_aliases(want) and not source_can:
        raise Conflict("The server has PCI devices (hardware.pci_alias), which cannot move while the guest runs from "
                       "an agent of an earlier version. Migrate it cold, or upgrade that agent first.")


def held_pci_addresses(host: LocalHost, excluded_server: str = "") -> set[str]:
    """Return the addresses of PCI devices assigned to servers on this host or to servers that are migrating to it. The
    server with the uuid *excluded_server* is ignored.
    """
    return {address for want in placement.fields_of_holders(host, excluded_server)
            for name in (FIELD, BEFORE) for address in want.get(name) or ()}


def _taken(device: PciDevice, held_addresses: Container[str]) -> bool:
    """Return whether *device*, or the card that it is a virtual function of, is in *held_addresses*, the addresses of
    assigned PCI devices."""
    return device.address in held_addresses or device.parent in held_addresses


def pci_facts(host: LocalHost, pci_devices: Sequence[PciDevice]) -> dict[str, Any]:
    """Return the host's fields ``pci_devices`` (numbers of all and of free devices by alias) and ``pci_pools`` (the
    same numbers by group of similar devices). A used device with ``one_time_use`` is never free. It counts among all
    devices only while a server has it."""
    aliases = host.settings.pci_alias
    pci_devices = pci_devices if aliases or any(device.nic_names for device in pci_devices) else ()
    held_addresses, used, places = (held_pci_addresses(host), _used(host),
                                    promised_bandwidths(host)) if pci_devices else (set(), set(), {})
    pool_counts: dict[tuple[tuple[str, ...], int, str, str], list[int]] = {}
    for device in pci_devices:
        if of := device_aliases(device, aliases, places):
            count = pool_counts.setdefault((of, device.numa_node, device.provider, device.resource_class), [0, 0])
            count[0] += device.address in held_addresses or device.address not in used
            count[1] += not _taken(device, held_addresses) and device.address not in used
    by_alias: dict[str, dict[str, Any]] = {}
    for alias in aliases:
        policy = {"numa_policy": alias["numa_policy"]} if "numa_policy" in alias else {}
        by_alias.setdefault(alias["name"], {"total": 0, "free": 0}).update(policy)
    for (of, *_where), (total, free) in pool_counts.items():
        for name in of:
            counted = by_alias.setdefault(name, {"total": 0, "free": 0})
            counted["total"] += total
            counted["free"] += free
    return {"pci_devices": by_alias, "pci_pools": [
        {"aliases": list(of), "numa_node": node, "total": total, "free": free, "provider": provider,
         "resource_class": kind} for (of, node, provider, kind), (total, free) in sorted(pool_counts.items())]}


def pci_providers(host: LocalHost, pci_devices: Sequence[PciDevice], above: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the Placement resource providers for *pci_devices*: one for each device, but one for all virtual functions
    of a card. A device with ``one_time_use`` counts as reserved after its first use. *above*: ``{NUMA cell: name of its
    resource provider}``, the parent providers."""
    used = _used(host)
    by_address = {device.address: device for device in pci_devices}
    by_provider: dict[str, dict[str, Any]] = {}
    for pci_device in pci_devices:
        traits = sorted({MANAGED, *pci_device.own_traits})
        made = by_provider.setdefault(pci_device.provider, {"name": pci_device.provider,
                                                            "parent": above.get(pci_device.numa_node, ""),
                                                            "inventories": {}, "traits": traits, "held": {}})
        made["traits"] = [name for name in made["traits"] if name in traits]
        kind = made["inventories"].setdefault(pci_device.resource_class, {"total": 0, "reserved": 0, "max_unit": 0})
        kind["total"] += 1
        kind["max_unit"] += 1
        kind["reserved"] += pci_device.address in used
    for id, want in placement.fields_by_server(host) if pci_devices else ():
        for address in {*(want.get(FIELD) or ()), *(want.get(BEFORE) or ())} & by_address.keys():
            device = by_address[address]
            mine = by_provider[device.provider]["held"].setdefault(id, {})
            mine[device.resource_class] = mine.get(device.resource_class, 0) + 1
    return list(by_provider.values())


def pci_device_totals(host: LocalHost) -> dict[str, dict[str, Any]]:
    """Return the host's field ``pci_devices`` (numbers by alias) with all devices counted as free, to check whether the
    host has enough devices at all."""
    return {name: {**counted, "free": counted["total"]} for name,
            counted in pci_facts(host, assignable_devices(host))["pci_devices"].items()}


def preferred_device_cells(host: LocalHost, want: Mapping[str, Any], id: str = "") -> dict[int, int]:
    """Return ``{NUMA cell: weight}``, to place the server *id* near its PCI devices: a cell of the host has a higher
    weight if it has free devices that the desired fields *want* request."""
    if not host.settings.pci_device_spec or placement.placement_needs(want) is None:
        return {}
    taken = held_pci_addresses(host, id) | _used(host)
    aliases, places = host.settings.pci_alias, promised_bandwidths(host)
    return preferred_cells(((device_aliases(device, aliases, places), device.numa_node, 1)
                            for device in assignable_devices(host)
                            if not _taken(device, taken)), needed_pci_devices(want))


def choose_pci_devices(host: LocalHost, want: Mapping[str, Any], id: str,
                       current_devices: Mapping[str, str] | None = None,
                       fixed: bool = False) -> dict[str, str]:
    """Return the PCI devices for the server *id* with the desired fields *want* as ``{address: alias or MAC of the
    NIC}``. *current_devices*, in the same form, are preferred, then free devices near the server's NUMA cells. *fixed*:
    never replace a current device, because the guest may be using it. Raises ``Conflict`` if too few devices are free.
    The caller must hold the lock ``CHOICES`` until the choice is stored in the server's JSON document. The lock allows
    one choice at a time on the host."""
    if not needed_pci_devices(want):
        return {}
    taken = held_pci_addresses(host, id) | (_used(host) - set(current_devices or ()))
    aliases, near = host.settings.pci_alias, _affinity(host, want)
    free = [device for device in assignable_devices(host) if not _taken(device, taken)]
    taps = {nic["mac"] for nic in device_nics(want) if nic.get("vnic_type") == MACVTAP}
    units: list[list[str]] = []
    of: list[str] = []
    for holder, alias, count in _holders(want):
        alias_policy = next((spec["numa_policy"] for spec in aliases if spec["name"] == alias
                             and "numa_policy" in spec), "")
        suited = sorted(((current_devices or {}).get(device.address) != holder, near.far(device.numa_node),
                         device.trusted,
                         device.address)
                        for device in free if alias_names_device(device, alias, aliases)
                        and near.suits(device.numa_node, alias_policy)
                        and (holder not in taps or network_device(host.settings.sysfs, device.address)))
        if len(suited) < count:
            raise _too_few(host, [alias], count, len(suited), near)
        units += [[address for *_order, address in suited]] * count
        of += [holder] * count
    room = dict.fromkeys((device.address for device in free), 1)
    chosen = assign_candidates(_keep_candidates(units, of, current_devices or {}), room)
    if chosen is None and not fixed:
        chosen = assign_candidates(units, room)
    if chosen is None:
        raise _too_few(host, sorted(needed_pci_devices(want)), len(of), len(set().union(*units)), near)
    return dict(zip(chosen, of, strict=True))


def _keep_candidates(units: Sequence[Sequence[str]], of: Sequence[str],
                     current_devices: Mapping[str, str]) -> list[list[str]]:
    """Return *units*, reduced so that each request keeps the PCI devices that it has in *current_devices* (``{address:
    alias or MAC}``): a kept device becomes the only candidate for its request and is removed from the candidates for
    all other requested devices. *units*: for each requested device, the addresses of the candidates (suitable devices).
    *of*: for each requested device, its alias or MAC."""
    kept_by_holder: dict[str, list[str]] = {}
    for candidates, holder in zip(units, of, strict=True):
        kept_by_holder.setdefault(holder, [address for address in candidates if current_devices.get(address) == holder])
    mine = {address for addresses in kept_by_holder.values() for address in addresses}
    return [[kept_by_holder[holder].pop(0)] if kept_by_holder[holder]
            else [address for address in candidates if address not in mine]
            for candidates, holder in zip(units, of, strict=True)]


def _affinity(host: LocalHost, want: Mapping[str, Any]) -> Affinity:
    on = frozenset(placement.on_cells(want))
    if not on:
        return Affinity()
    policy = (want.get("hardware") or {}).get("pci_numa_affinity", "")
    return Affinity(policy, on, {cell.id: cell.sockets for cell in host.hypervisor.numa_cells()})


def _too_few(host: LocalHost, names: Sequence[str], count: int, free: int, near: Affinity) -> Conflict:
    where = (f" that suit the server's NUMA cells ({', '.join(map(str, sorted(near.cells)))} of the host)"
             if near.cells else "")
    field = "networks" if any(map(network_of_devices, names)) else "hardware.pci_alias"
    devices_text = " and ".join(describe_devices(name) if network_of_devices(name) else f"PCI devices of alias {name}"
                                for name in names)
    return Conflict(
        f"{field}: the server needs {count} {devices_text}, and host {host.name} has "
        f"{free} free{where}. Choose another host, free some there, or look at its agent's settings pci_device_spec "
        "and pci_alias.", field=field)


def complete_pci_devices(host: LocalHost, desired: Fields, old: Fields, id: str) -> None:
    """Choose the PCI devices for the changed server *id* and store them in its new fields *desired*, in which hardware
    and placement are already set. *old*: the fields before the change. Raises ``Conflict`` if too few devices are free,
    and ``InvalidField`` if *desired* would suspend a server that has PCI devices other than NICs."""
    had, former = old.get(FIELD) or {}, old.get(BEFORE) or {}
    desired.pop(FIELD, None)
    desired.pop(BEFORE, None)
    if requested_aliases(desired) and desired.get("power") == SUSPENDED:
        raise InvalidField("power", "cannot be suspended while the server has PCI devices, whose state cannot be "
                                    "saved; stop it, or pause it", SUSPENDED)
    same = bool(old) and _choice_inputs(desired) == _choice_inputs(old)
    # then NICs are plugged while the guest runs
    fixed = bool(old) and requested_aliases(desired) == requested_aliases(old)
    made = dict(had) if same and had else choose_pci_devices(host, desired, id, {**former, **had}, fixed)
    desired.update({FIELD: made} if made else {})
    former = {**former, **({} if same else had)}
    desired.update({BEFORE: former} if former else {})
    _note_macs(host, desired, old.get(MACS) or {})


def _note_macs(host: LocalHost, want: Fields, known_macs: Mapping[str, str]) -> None:
    """Store in the server's fields *want* the MAC address of each whole network card that is passed to the guest. The
    host cannot read the MAC of a card that a guest uses; it is taken from *known_macs* (``{PCI address: MAC}``)."""
    whole_cards = {nic["mac"] for nic in device_nics(want) if nic.get("vnic_type") == WHOLE}
    macs = {address: mac_address(host.settings.sysfs, address) or known_macs.get(address, "")
            for address, holder in (want.get(FIELD) or {}).items() if holder in whole_cards} if whole_cards else {}
    want.pop(MACS, None)
    want.update({MACS: macs} if macs else {})


def choose_target_pci(host: LocalHost, want: Fields, id: str) -> None:
    """Replace the PCI devices in *want* by free devices of this host, to which the server *id* migrates. Raises
    ``Conflict`` if too few devices are free. The caller must hold the lock ``CHOICES`` until the choice is stored in
    the server's JSON document. The lock allows one choice at a time on the host."""
    for name in (FIELD, BEFORE, MACS):
        want.pop(name, None)
    if made := choose_pci_devices(host, want, id):
        want[FIELD] = made
    _note_macs(host, want, {})


def _choice_inputs(want: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values in *want* that determine the choice of PCI devices. If they are unchanged, no new choice is
    necessary."""
    return _holders(want), placement.on_cells(want), (want.get("hardware") or {}).get("pci_numa_affinity")


def prepare_pci_devices(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    """Before the server's domain is defined or started, release PCI devices that the server no longer uses, and replace
    assigned devices that no longer exist. *keep*: writes the document to disk. Raises ``Conflict`` if too few devices
    are free."""
    want = document.want
    if FIELD not in want and BEFORE not in want and not needed_pci_devices(want):
        return
    domain = host.hypervisor.domain(document.id)
    if domain is not None and domain.state in LIVE:
        return  # the guest has them
    with host.locks.hold(*CHOICES):
        had = want.get(FIELD) or {}
        made = choose_pci_devices(host, want, document.id, had)
        _note_use(host, made)
        if made == had and BEFORE not in want:
            return
        want.pop(FIELD, None)
        want.pop(BEFORE, None)
        want.update({FIELD: made} if made else {})
        _note_macs(host, want, want.get(MACS) or {})
        placement.write_choice(document, keep)


def follow_nics(want: Fields, failed: bool, present: Container[str] = ()) -> None:
    """Update the assigned PCI devices in *want* after NICs were plugged into or unplugged from the running guest; the
    caller writes the document. *failed*: whether the plugging failed; each NIC then keeps its previous device instead
    of the newly assigned device. *present*: addresses of PCI devices that the guest still has; they stay assigned even
    if their NICs were removed."""
    had, now = want.get(BEFORE) or {}, want.get(FIELD) or {}
    macs = {nic["mac"] for nic in device_nics(want)}
    retained = {**{address: holder for address, holder in now.items() if not is_nic_holder(holder)}}
    for assignment in (had, now) if failed else (now, had):
        retained.update({address: holder for address, holder in assignment.items()
                         if holder in macs and holder not in retained.values()})
    former = {address: holder for address, holder in {**now, **had}.items()
              if (address in had and not is_nic_holder(holder)) or (address in present and address not in retained)}
    for name, value in ((FIELD, retained), (BEFORE, former if former.items() - retained.items() else {})):
        want.pop(name, None)
        want.update({name: value} if value else {})


def _note_use(host: LocalHost, made: Mapping[str, str]) -> None:
    """Store on disk that the devices with ``one_time_use`` in *made* (``{PCI address: alias or MAC}``) are used. Called
    before the guest gets them."""
    for device in assignable_devices(host) if made else ():
        if device.once and device.address in made:
            folder = host.settings.state_dir / USED
            make_state_folder(folder, 0o700)
            (folder / device.address).touch(0o600)
            sync_folder(folder)


def guest_pci_devices(host: LocalHost, want: Mapping[str, Any]) -> tuple[PciDevice, ...]:
    """Return the PCI devices of a server's domain, except NICs, ordered by alias: a live migration replaces them in
    this order by the target's devices. Missing devices are included, so that libvirt reports the error."""
    return tuple(device for holder, device in _assigned_devices(host, want) if not is_nic_holder(holder))


def devices_of_nics(host: LocalHost, want: Mapping[str, Any]) -> dict[str, PciDevice]:
    """Return the PCI devices that are NICs of a server with the desired fields *want*, as ``{MAC of the NIC: device}``.
    If the server has such NICs, the result also contains its other PCI devices, by alias; otherwise it is empty."""
    return dict(_assigned_devices(host, want)) if device_nics(want) else {}


def _assigned_devices(host: LocalHost, want: Mapping[str, Any]) -> list[tuple[str, PciDevice]]:
    had = want.get(FIELD) or {}
    by_address = {device.address: device for device in assignable_devices(host)} if had else {}
    return [(had[address], by_address.get(address) or PciDevice(address, "", "", -1))
            for address in sorted(had, key=lambda address: (had[address], address))]


def bare_devices_of_nics(want: Mapping[str, Any]) -> dict[str, PciDevice]:
    """Return the PCI devices assigned in *want*, as ``{MAC of the NIC, or alias: device}``, without reading the host.
    Only the addresses of the devices are set."""
    return {holder: PciDevice(address, "", "", -1) for address, holder in (want.get(FIELD) or {}).items()}


def mac_in_guest(want: Mapping[str, Any], nic: Mapping[str, Any]) -> str:
    """Return the MAC address that the guest sees for *nic*: the card's address if the NIC is a whole network card,
    otherwise the NIC's field ``mac``."""
    macs: Mapping[str, str] = want.get(MACS) or {}
    address = next((pci_address for pci_address, holder in (want.get(FIELD) or {}).items() if holder == nic["mac"]),
                   "") if macs else ""
    return macs.get(address) or str(nic["mac"])


def nic_device_facts(want: Mapping[str, Any], look: Callable[[], Sequence[PciDevice]]) -> dict[str, dict[str, Any]]:
    """Return the server's field ``devices``: ``{MAC: {pci_slot, pci_vendor_info, …}}`` for its NICs that are PCI
    devices. *look*: the function ``assignable_devices``, called only if the server has such NICs."""
    by_address, macs = {device.address: device for device in look()} if device_nics(want) else {}, want.get(MACS) or {}
    return {mac: {"pci_slot": device.address, "pci_vendor_info": f"{device.vendor_id}:{device.product_id}",
                  "physical_network": device.physical_network,
                  **({"device_mac_address": macs[device.address]} if macs.get(device.address) else {}),
                  **(device.remote._asdict() if device.remote else {})}
            for mac, bare_device in bare_devices_of_nics(want).items() if is_nic_holder(mac)
            for device in [by_address.get(bare_device.address, bare_device)]}
