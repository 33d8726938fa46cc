# SPDX-License-Identifier: GPL-3.0-or-later
"""What virtual functions are set to beyond what libvirt does (MAC and VLAN): whether their card trusts them, and how
much they send; and of those that make vDPA devices, which port of OVN their packets are of, which come out at their
representor.

The card keeps it, whoever has the function, and so does Open vSwitch. So a function that is set is noted first, in a
file of its address (``FOLDER``) with the words that are set, and whoever starts with it next, or comes upon it free,
gives its usual settings back. Free ones that cannot be set now stay noted: no server starts with one before it can.
"""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware.pci import ADDRESS, card_of, representor_of
from magnetar_agent.host.file_modes import make_folder
from magnetar_agent.host.networks import RepresentorPort
from magnetar_agent.reconcile.documents import write_atomically
from magnetar_agent.servers.hardware import pci
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.hardware.pci import VDPA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

log = logging.getLogger(__name__)

#: Folder of the state: a file, named by its address, for each virtual function that was set.
FOLDER = "set_functions"
#: Held by who sets functions. No choice waits for it: to set one takes programs, which may wait for a card.
SETTING = ("", "functions")
#: The word of a function whose representor is a port of OVN.
PORT = "port"
#: What every function does of itself: by the words of ip-link(8), and ``PORT``.
USUAL: Mapping[str, str] = {PORT: "", "trust": "off", "max_tx_rate": "0", "min_tx_rate": "0"}
#: Of a device that is no NIC.
NO_NIC: Mapping[str, Any] = MappingProxyType({})


def apply(host: LocalHost, document: Document) -> None:
    """Before the guest of a server gets its NICs: set those that are virtual functions, and have its other devices be
    as usual. Raises ``Conflict`` where one's card is out of reach."""
    given = document.want.get(pci.FIELD)
    if not given:
        return
    of = {nic["mac"]: nic for nic in pci.functions(document.want)}
    with host.locks.hold(*SETTING):
        notes = _notes(host)
        for address, holder in given.items():
            nic = of.get(holder, NO_NIC)
            words, former = _words(nic), _noted(notes[address]) if address in notes else {}
            if words or former:
                _note(host, address, [*words, *former])
                _set(host, address, {**former, **words}, nic, document.id)
                _note(host, address, words)
    give_back(host)


def _words(nic: Mapping[str, Any]) -> dict[str, str]:
    """What a NIC asks of its virtual function beside the usual, in order of ``USUAL``."""
    said = {PORT: nic["port"] if nic.get("vnic_type") == VDPA else "", "trust": "on" if nic.get("trusted") else "off",
            **{word: str(nic.get(word) or 0) for word in ("max_tx_rate", "min_tx_rate")}}
    return {word: said[word] for word, usual in USUAL.items() if said[word] != usual}


def remove(host: LocalHost, document: Document) -> None:
    """The server goes: what it has is as usual."""
    if pci.FIELD in document.want or pci.BEFORE in document.want:
        give_back(host, document.id)


def let_go(host: LocalHost, document: Document) -> None:
    """The guest of a server is off here for good, as it goes to another host: what it has is as usual before it starts
    there, so that OVN never finds a port at both. Raises ``HypervisorError`` where that cannot be."""
    mine = {*(document.want.get(pci.FIELD) or ()), *(document.want.get(pci.BEFORE) or ())}
    if not mine & _notes(host).keys():
        return
    with host.locks.hold(*SETTING):
        for address in sorted(mine & (notes := _notes(host)).keys()):
            _set(host, address, _noted(notes[address]))
            notes[address].unlink(missing_ok=True)


def give_back(host: LocalHost, without: str = "") -> None:
    """Have virtual functions that no server has, but for the server *without*, be as usual. One that cannot be set now
    is only told of in the log: no other waits for it."""
    if not _notes(host):
        return
    with host.locks.hold(*SETTING):  # who gets one from now on, sets it after this
        held = pci.held(host, without)
        for address, note in _notes(host).items():
            if address in held:
                continue
            try:
                _set(host, address, _noted(note))
            except MagnetarError as error:
                log.warning("virtual function %s is not as usual yet: %s", address, error)
            else:
                note.unlink(missing_ok=True)


def _notes(host: LocalHost) -> dict[str, Path]:
    try:
        return {path.name: path for path in (host.settings.state_dir / FOLDER).iterdir()
                if ADDRESS.fullmatch(path.name)}
    except OSError:
        return {}


def _noted(note: Path) -> dict[str, str]:
    """The usual settings of what is noted as set."""
    return {word: USUAL[word] for word in note.read_text().split() if word in USUAL}


def _note(host: LocalHost, address: str, words: Iterable[str]) -> None:
    folder, text = host.settings.state_dir / FOLDER, " ".join(dict.fromkeys(words))
    if not text:
        (folder / address).unlink(missing_ok=True)
        return
    make_folder(folder, 0o700)
    write_atomically(folder / address, text.encode())


def _set(host: LocalHost, address: str, settings: Mapping[str, str], nic: Mapping[str, Any] = NO_NIC,
         server: str = "") -> None:
    """Set a virtual function, for the *nic* of a *server*. One that has gone, or whose card is out of reach, is as
    usual by itself: its driver makes it anew. Raises ``Conflict`` where it is to be otherwise."""
    rest = {word: value for word, value in settings.items() if word != PORT}
    if PORT in settings:
        _plug(host, address, nic if settings[PORT] else NO_NIC, server)
    of = card_of(host.settings.sysfs, address) if rest else None
    if of is not None:
        host.hypervisor.set_function(of.card, of.number, rest)
    elif any(value != USUAL[word] for word, value in rest.items()):
        raise Conflict(f"Virtual function {address} of host {host.name} cannot be set as its server's NIC {nic['mac']} "
                       "wants it: its card has no network device there. Have the card's driver take it (drivers_probe "
                       "in /sys/bus/pci), or let the server have another one.")


def _plug(host: LocalHost, address: str, nic: Mapping[str, Any], server: str) -> None:
    """Have the representor of a virtual function be the port of a *nic*, or of none where that is empty."""
    representor = representor_of(host.settings.sysfs, address)
    if representor:
        host.hypervisor.plug_representor(representor, RepresentorPort(
            host.settings.integration_bridge, nic["port"], nic["mac"], server) if nic else None)
    elif nic:
        raise Conflict(f"Virtual function {address} of host {host.name} has no representor, at which OVN finds the "
                       f"packets of its server's NIC {nic['mac']}. Have its card be a switch (devlink dev eswitch set "
                       "pci/ADDRESS mode switchdev, of the card), and Open vSwitch offload to it (other_config "
                       "hw-offload=true).")
