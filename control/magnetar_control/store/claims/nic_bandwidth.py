# SPDX-License-Identifier: GPL-3.0-or-later
"""The *place* of a NIC's bandwidth on a host: its physical network or, for a virtual function, one of the network
cards that are connected to this network, if the host's agent reports such cards (``core.bandwidth``).

A claim decides the place (``resolve_claim_resources``) and stores it with the allocation (column ``places``). The
server's virtual function then belongs to that card for as long as the server is on the host. Requests name no card,
because cards differ between hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import orjson
from sqlalchemy import Connection, select

from magnetar_control.documents import PortRequest, ServerNic
from magnetar_control.store.engine.tables import allocations, hosts, inventories
from magnetar_core.bandwidth import DIRECTIONS, card_of_place, network_of_place, split_resource
from magnetar_core.hardware.pci import VF, card_devices_name, device_kind

from . import device_claims

#: Most steps of the search for a placement on a host's cards. A few NICs usually need one step each.
STEPS = 300


class BandwidthRequest(NamedTuple):
    """A port's request for guaranteed bandwidth.

    *id*: uuid of the port. *network*: the physical network; ``bandwidth.TUNNELS`` for a tunnelled network. *amounts*:
    kbit/s by resource class. *devices*: for an SR-IOV NIC, the name under which suitable virtual functions are counted
    (``pci.network_devices_name``); empty for other NICs. *place*: the physical network or network card that must
    provide the bandwidth; empty if it is chosen when the resources are claimed.
    """

    id: str
    network: str
    amounts: Mapping[str, int]
    devices: str = ""
    place: str = ""


class RequestedResources(NamedTuple):
    """The resources that a server requests on a host, before network cards are chosen for its bandwidth.

    *resources*: amounts by resource class. *devices*: numbers of PCI devices by alias. *resources* and *devices*
    include the requests of *nics*, the NICs with guaranteed bandwidth. *isolate*: whether each NIC must have a
    different provider (Nova's ``group_policy``).
    """

    resources: Mapping[str, int]
    devices: Mapping[str, int]
    nics: Sequence[BandwidthRequest] = ()
    isolate: bool = False


class GrantedResources(NamedTuple):
    """The resources that a server claims on a host, after network cards were chosen for its bandwidth. *resources*:
    amounts by resource class. *devices*: numbers of PCI devices by alias. Where a card was chosen, the names of classes
    and aliases contain the card instead of only the physical network. *places*: by port uuid, the physical network or
    card that provides its bandwidth."""

    resources: Mapping[str, int]
    devices: Mapping[str, int]
    places: Mapping[str, str]


def bandwidth_requests(nics: Iterable[ServerNic | PortRequest]) -> tuple[BandwidthRequest, ...]:
    """Return the bandwidth requests of *nics*; NICs without ``resources`` are skipped."""
    requests = []
    for at, nic in enumerate(nics):
        if nic.get("resources"):
            amounts = {split_resource(name)[0]: int(n) for name, n in nic["resources"].items()}
            devices = next((name for name in nic.get("devices") or () if device_kind(name) == VF), "")
            network = split_resource(next(iter(nic["resources"])))[1]
            requests.append(BandwidthRequest(str(nic.get("port_id") or at), network, amounts, devices))
    return tuple(requests)


def bandwidth_placements(nics: Sequence[BandwidthRequest], free_amounts: Mapping[str, int], isolate: bool = False,
                         current_places: Mapping[str, str] | None = None,
                         devices_fit: Callable[[Mapping[str, str]], bool] | None = None) -> Iterator[dict[str, str]]:
    """Yield possible placements of the NICs' bandwidth as ``{port: place}``; places with most free bandwidth come
    first. A place is a physical network, or ``NETWORK/CARD`` for a virtual function of a card.

    *free_amounts*: unclaimed amounts on the host, as ``{"CLASS:PLACE": kbit/s}``. *isolate*: give each NIC a different
    place. *current_places*: by port, the place that a NIC must keep. *devices_fit*: returns whether the host has the
    PCI devices for a (maybe partial) placement. The search ends after ``STEPS`` steps."""
    order = sorted(nics, key=lambda nic: (-sum(nic.amounts.values()), nic.id))
    cards = _cards(free_amounts)
    room, places, steps = dict(free_amounts), dict[str, str](), iter(range(STEPS))

    def rest(place: str, nic: BandwidthRequest) -> int:
        return min(room.get(f"{kind}:{place}", 0) - n for kind, n in nic.amounts.items())

    def take(place: str, nic: BandwidthRequest, sign: int) -> None:
        for kind, n in nic.amounts.items():
            room[f"{kind}:{place}"] -= sign * n

    def fill(at: int) -> Iterator[dict[str, str]]:
        if at == len(order):
            yield dict(places)
            return
        nic = order[at]
        fixed_place = nic.place or (current_places or {}).get(nic.id)
        may = [fixed_place] if fixed_place else (cards.get(nic.network) if nic.devices else None) or [nic.network]
        for place in sorted(may, key=lambda candidate: (-rest(candidate, nic), candidate)):
            if rest(place, nic) < 0 or (isolate and not fixed_place and place in places.values()):
                continue
            if next(steps, None) is None:
                return
            take(place, nic, 1)
            places[nic.id] = place
            if devices_fit is None or devices_fit(places):
                yield from fill(at + 1)
            del places[nic.id]
            take(place, nic, -1)

    return fill(0)


def requests_on_cards(nics: Iterable[BandwidthRequest], names: Iterable[str]) -> list[BandwidthRequest]:
    """Return the requests in *nics* whose bandwidth must come from a single network card: requests for virtual
    functions on a physical network to which cards of the host belong. *names*: the names of the host's inventories
    (``CLASS:NETWORK``, or ``CLASS:NETWORK/CARD`` for a network card)."""
    cards = _cards(names)
    return [nic for nic in nics if nic.devices and nic.network in cards]


def _cards(names: Iterable[str]) -> dict[str, list[str]]:
    """Return ``{physical network: [NETWORK/CARD of each of its network cards]}`` from *names*, the names of a host's
    inventories, such as ``RESOURCE_CLASS:NETWORK/CARD``. Networks without cards are left out."""
    places_by_network: dict[str, list[str]] = {}
    for place in sorted({place for _kind, place in map(split_resource, names) if card_of_place(place)}):
        places_by_network.setdefault(network_of_place(place), []).append(place)
    return places_by_network


def apply_bandwidth_places(desired: RequestedResources, places: Mapping[str, str]) -> tuple[dict[str, int],
                                                                                            dict[str, int]]:
    """Return (resources, devices) of *desired* after network cards were chosen: amounts by resource class, and numbers
    of PCI devices by alias. Each NIC on a card takes its bandwidth and virtual function from that card instead of the
    physical network. *places*: by port uuid, the place of its bandwidth (``NETWORK`` or ``NETWORK/CARD``)."""
    resources, devices = dict(desired.resources), dict(desired.devices)
    for nic in desired.nics:
        place = places.get(nic.id, nic.network)
        if card_of_place(place):
            for kind, n in nic.amounts.items():
                _shift(resources, f"{kind}:{nic.network}", f"{kind}:{place}", n)
            _shift(devices, nic.devices, card_devices_name(nic.devices, card_of_place(place)), 1)
    return resources, devices


def _shift(amounts: dict[str, int], old: str, new: str, n: int) -> None:
    amounts[old] -= n
    if not amounts[old]:
        del amounts[old]
    amounts[new] = amounts.get(new, 0) + n


def resolve_claim_resources(connection: Connection, consumer_id: str, server_id: str, host_id: str,
                            desired: RequestedResources) -> GrantedResources | None:
    """Choose network cards for the bandwidth in *desired*, and return the resources to claim on the host.
    *consumer_id*: the server, its migration or another consumer, whose present claim counts as free. Return ``None``
    when the host has too few PCI devices, or no card with enough bandwidth. NICs keep the cards that they already use
    on this host. Locks the host's row when devices are requested."""
    whole = GrantedResources(desired.resources, desired.devices, {nic.id: nic.network for nic in desired.nics})
    if not desired.devices:
        return whole
    room = device_claims.lock_device_room(connection, host_id)
    if room is None:
        return None
    if not any(nic.devices for nic in desired.nics):
        return whole if device_claims.devices_suffice(room, {server_id: desired.devices}) else None
    # When a host reports less than is claimed, servers keep their places.
    free_amounts = {row.resource_class: max(0, row.limit - row.used)
                    for row in connection.execute(select(inventories).where(
        inventories.c.host_id == host_id)) if split_resource(row.resource_class)[1]}
    current_places: dict[str, str] = {}
    for row in connection.execute(select(allocations).where(
            allocations.c.host_id == host_id, allocations.c.server_id == server_id)):
        current_places.update(orjson.loads(row.places))
        if row.consumer_id == consumer_id:
            for name, n in orjson.loads(row.resources).items():
                free_amounts[name] = free_amounts.get(name, 0) + n

    def devices_fit(places: Mapping[str, str]) -> bool:
        return device_claims.devices_suffice(room, {server_id: apply_bandwidth_places(desired, places)[1]})

    granted_places = next(bandwidth_placements(desired.nics, free_amounts, desired.isolate, current_places,
                                               devices_fit),
                          None)
    return None if granted_places is None else GrantedResources(*apply_bandwidth_places(desired, granted_places),
                                                                granted_places)


def fetch_card_places(connection: Connection, server_ids: Iterable[str]) -> dict[tuple[str, str], str]:
    """Return the network card, as ``NETWORK/CARD``, that provides the bandwidth of each NIC of these servers, by (port
    uuid, host name). NICs whose bandwidth no card provides are absent."""
    query = select(allocations.c.places, hosts.c.name).join(hosts, hosts.c.id == allocations.c.host_id).where(
        allocations.c.server_id.in_(list(server_ids)), allocations.c.places != "{}")
    return {(port, row.name): place for row in connection.execute(query)
            for port, place in orjson.loads(row.places).items() if card_of_place(place)}


def _free_on_card(free_amounts: Mapping[str, int], kind: str, place: str) -> str:
    """Return a text for an error message with the free bandwidth (kbit/s) and the name of a network card, such as
    ``5000 (eth1)``. *free_amounts*: unclaimed amounts on the host, as ``{"CLASS:PLACE": kbit/s}``. *place*: the card,
    as ``NETWORK/CARD``. *kind*: the resource class of the direction (ingress or egress)."""
    return f"{max(0, free_amounts.get(f'{kind}:{place}', 0))} ({card_of_place(place)})"


def bandwidth_shortage_text(nics: Sequence[BandwidthRequest], free_amounts: Mapping[str, int]) -> str:
    """Return a text for users that says how much bandwidth a host's network cards lack for the virtual functions in
    *nics*; empty when the cards have enough, or *nics* need no card of the host. *free_amounts*: unclaimed amounts on
    the host, as ``{"CLASS:PLACE": kbit/s}``; a place is ``NETWORK`` or ``NETWORK/CARD``."""
    mine, cards = requests_on_cards(nics, free_amounts), _cards(free_amounts)
    if not mine or next(bandwidth_placements(mine, free_amounts), None) is not None:
        return ""
    return " and ".join(
        "has "
        f"{', '.join(_free_on_card(free_amounts, kind, place) for place in places)} "
        f"kbit/s {DIRECTIONS[kind]} left on the cards of {network}, and ports want "
        f"{', '.join(str(nic.amounts[kind]) for nic in mine if nic.network == network and kind in nic.amounts)}"
        for network, places in cards.items() for kind in sorted({
            kind for nic in mine if nic.network == network for kind in nic.amounts}))
