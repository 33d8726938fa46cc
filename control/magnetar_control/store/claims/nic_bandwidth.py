# SPDX-License-Identifier: GPL-3.0-or-later
"""Where on a host NICs have the bandwidth that they ask for: on their physical network, or, of virtual functions, on
one of its cards, where the host's agent tells cards of that network (``core.bandwidth``).

A claim decides it (``settle``), and keeps it with the allocation (column ``places``): the server's virtual function is
of that card then, as long as the server is on the host. What is asked for names no card: hosts have others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, select

from magnetar_control.store.engine.tables import allocations, hosts, inventories
from magnetar_core.bandwidth import DIRECTIONS, card_of, network_of, split
from magnetar_core.hardware.pci import VF, kind_of, of_card

from . import device_claims

#: How many steps the search for a way to share a host's cards has: a few NICs need one each.
STEPS = 300


class Asking(NamedTuple):
    """A NIC that asks for bandwidth: *id* of its port, the physical *network* (or ``bandwidth.TUNNELS``), *amounts* by
    resource class, and the name of the virtual functions of which it is one (*devices*: ``pci.of_network``), empty for
    none. *place*: where it is known to be; empty while that is open."""

    id: str
    network: str
    amounts: Mapping[str, int]
    devices: str = ""
    place: str = ""


class WantedResources(NamedTuple):
    """What a server is to hold of a host: amounts of classes in ``inventories`` (*resources*) and *devices*, both with
    what its NICs ask for, as if hosts had no cards; the *nics* that ask for bandwidth; whether each of them is to have
    another provider (*isolate*: Nova's ``group_policy``)."""

    resources: Mapping[str, int]
    devices: Mapping[str, int]
    nics: Sequence[Asking] = ()
    isolate: bool = False


class SettledResources(NamedTuple):
    """What a server is to hold of a certain host: *resources* and *devices* with those of its cards, and port to the
    place (``core.bandwidth``) of its bandwidth."""

    resources: Mapping[str, int]
    devices: Mapping[str, int]
    places: Mapping[str, str]


def asking(nics: Iterable[Mapping[str, Any]]) -> tuple[Asking, ...]:
    """Those of NICs (with ``port_id``, ``resources`` and ``devices``) that ask for bandwidth."""
    found = []
    for at, nic in enumerate(nics):
        if nic.get("resources"):
            amounts = {split(name)[0]: int(n) for name, n in nic["resources"].items()}
            devices = next((name for name in nic.get("devices") or () if kind_of(name) == VF), "")
            network = split(next(iter(nic["resources"])))[1]
            found.append(Asking(str(nic.get("port_id") or at), network, amounts, devices))
    return tuple(found)


def shares(nics: Sequence[Asking], left: Mapping[str, int], isolate: bool = False,
           kept: Mapping[str, str] | None = None,
           gives: Callable[[Mapping[str, str]], bool] | None = None) -> Iterator[dict[str, str]]:
    """The ways in which the NICs can have their bandwidth: port to place. Of cards those with most left come first.
    *left*: what a host has left of each inventory. *kept*: port to the place that it has, and keeps. *gives*: whether
    the host has devices for a way, of which it may see a part only. A search that takes too long ends."""
    order = sorted(nics, key=lambda nic: (-sum(nic.amounts.values()), nic.id))
    cards = _cards(left)
    room, found, steps = dict(left), dict[str, str](), iter(range(STEPS))

    def rest(place: str, nic: Asking) -> int:
        return min(room.get(f"{kind}:{place}", 0) - n for kind, n in nic.amounts.items())

    def take(place: str, nic: Asking, sign: int) -> None:
        for kind, n in nic.amounts.items():
            room[f"{kind}:{place}"] -= sign * n

    def fill(at: int) -> Iterator[dict[str, str]]:
        if at == len(order):
            yield dict(found)
            return
        nic = order[at]
        own = nic.place or (kept or {}).get(nic.id)
        may = [own] if own else (cards.get(nic.network) if nic.devices else None) or [nic.network]
        for place in sorted(may, key=lambda one: (-rest(one, nic), one)):
            if rest(place, nic) < 0 or (isolate and not own and place in found.values()):
                continue
            if next(steps, None) is None:
                return
            take(place, nic, 1)
            found[nic.id] = place
            if gives is None or gives(found):
                yield from fill(at + 1)
            del found[nic.id]
            take(place, nic, -1)

    return fill(0)


def on_cards(nics: Iterable[Asking], names: Iterable[str]) -> list[Asking]:
    """Those of NICs that have their bandwidth of a card, on a host with inventories of these *names*."""
    cards = _cards(names)
    return [nic for nic in nics if nic.devices and nic.network in cards]


def _cards(names: Iterable[str]) -> dict[str, list[str]]:
    """Physical network to the places on its cards, of the names of inventories."""
    found: dict[str, list[str]] = {}
    for place in sorted({place for _kind, place in map(split, names) if card_of(place)}):
        found.setdefault(network_of(place), []).append(place)
    return found


def shared_out(wanted: WantedResources, places: Mapping[str, str]) -> tuple[dict[str, int], dict[str, int]]:
    """Resources and devices of what is *wanted*, with the bandwidth and virtual functions of NICs on the cards that
    *places* (of ports) says."""
    resources, devices = dict(wanted.resources), dict(wanted.devices)
    for nic in wanted.nics:
        place = places.get(nic.id, nic.network)
        if card_of(place):
            for kind, n in nic.amounts.items():
                _shift(resources, f"{kind}:{nic.network}", f"{kind}:{place}", n)
            _shift(devices, nic.devices, of_card(nic.devices, card_of(place)), 1)
    return resources, devices


def _shift(amounts: dict[str, int], old: str, new: str, n: int) -> None:
    amounts[old] -= n
    if not amounts[old]:
        del amounts[old]
    amounts[new] = amounts.get(new, 0) + n


def settle(connection: Connection, consumer_id: str, server_id: str, host_id: str,
           wanted: WantedResources) -> SettledResources | None:
    """What a consumer is to hold of a host; ``None`` where the host has not devices enough, or no card with bandwidth
    enough. What the server has there stays where it is. Locks the host's row where devices are wanted."""
    whole = SettledResources(wanted.resources, wanted.devices, {nic.id: nic.network for nic in wanted.nics})
    if not wanted.devices:
        return whole
    room = device_claims.read(connection, host_id)
    if room is None:
        return None
    if not any(nic.devices for nic in wanted.nics):
        return whole if device_claims.suffices(room, {server_id: wanted.devices}) else None
    # Where a host tells less than is claimed, servers keep what they have.
    left = {row.resource_class: max(0, row.limit - row.used) for row in connection.execute(select(inventories).where(
        inventories.c.host_id == host_id)) if split(row.resource_class)[1]}
    kept: dict[str, str] = {}
    for row in connection.execute(select(allocations).where(
            allocations.c.host_id == host_id, allocations.c.server_id == server_id)):
        kept.update(orjson.loads(row.places))
        if row.consumer_id == consumer_id:
            for name, n in orjson.loads(row.resources).items():
                left[name] = left.get(name, 0) + n

    def gives(places: Mapping[str, str]) -> bool:
        return device_claims.suffices(room, {server_id: shared_out(wanted, places)[1]})

    found = next(shares(wanted.nics, left, wanted.isolate, kept, gives), None)
    return None if found is None else SettledResources(*shared_out(wanted, found), found)


def cards_of(connection: Connection, server_ids: Iterable[str]) -> dict[tuple[str, str], str]:
    """(Port, name of a host) to the place on a card that a server has there, of these servers."""
    query = select(allocations.c.places, hosts.c.name).join(hosts, hosts.c.id == allocations.c.host_id).where(
        allocations.c.server_id.in_(list(server_ids)), allocations.c.places != "{}")
    return {(port, row.name): place for row in connection.execute(query)
            for port, place in orjson.loads(row.places).items() if card_of(place)}


def in_words(nics: Sequence[Asking], left: Mapping[str, int]) -> str:
    """What a host lacks for NICs that are virtual functions, by what its cards have *left*; empty where it lacks
    nothing, or has none."""
    mine, cards = on_cards(nics, left), _cards(left)
    if not mine or next(shares(mine, left), None) is not None:
        return ""
    return " and ".join(
        f"has {', '.join(str(max(0, left.get(f'{kind}:{place}', 0))) + f' ({card_of(place)})' for place in places)} "
        f"kbit/s {DIRECTIONS[kind]} left on the cards of {network}, and ports want "
        f"{', '.join(str(nic.amounts[kind]) for nic in mine if nic.network == network and kind in nic.amounts)}"
        for network, places in cards.items() for kind in sorted({
            kind for nic in mine if nic.network == network for kind in nic.amounts}))
