# SPDX-License-Identifier: GPL-3.0-or-later
"""What virtual functions are set to beyond what libvirt does (MAC and VLAN): whether their card trusts them, and how
much they send; and of those that make vDPA devices, which port of OVN their packets are of, which come out at their
representor.

The card keeps it, whoever has the function, and so does Open vSwitch. So a function that is set is noted first, in a
file of its address (``FOLDER``) with the words that are set, and whoever starts with it next, or comes upon it free,
gives its usual settings back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.documents import write_atomically
from magnetar_agent.hardware.pci import ADDRESS, card_of, representor_of
from magnetar_agent.locks import CHOICES
from magnetar_agent.networks import RepresentorPort
from magnetar_agent.servers import pci
from magnetar_core.errors import Conflict
from magnetar_core.hardware.pci import VDPA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from magnetar_agent.documents import Document, Fields
    from magnetar_agent.host import LocalHost

#: Folder of the state: a file, named by its address, for each virtual function that was set.
FOLDER = "set_functions"
#: What a driver has every function do, by the words of ip-link(8).
USUAL: Mapping[str, str] = {"trust": "off", "max_tx_rate": "0", "min_tx_rate": "0"}


def apply(host: LocalHost, document: Document) -> None:
    """Before the guest of a server gets its NICs: set those that are virtual functions. Raises ``Conflict`` where one's
    card is out of reach."""
    of = {nic["mac"]: nic for nic in pci.functions(document.want)}
    given = {address: of[holder] for address, holder in (document.want.get(pci.FIELD) or {}).items() if holder in of}
    if not given:
        return
    notes = _notes(host)
    for address, nic in given.items():
        words = _words(nic)
        former = notes[address].read_text().split() if address in notes else []
        if words or nic.get("vnic_type") == VDPA:
            _note(host, address, [*words, *former])
            _set(host, address, nic, {**{word: USUAL[word] for word in former}, **words}, document.id)
            _note(host, address, words)
        elif address in notes:
            _unset(host, address, notes[address])
    give_back(host)


def _words(nic: Fields) -> dict[str, str]:
    """What a NIC asks of its virtual function beside the usual, in order of ``USUAL``."""
    said = {"trust": "on" if nic.get("trusted") else "off", **{
        word: str(nic.get(word) or 0) for word in ("max_tx_rate", "min_tx_rate")}}
    return {word: said[word] for word, usual in USUAL.items() if said[word] != usual}


def remove(host: LocalHost, document: Document) -> None:
    """The server goes: what it has is as usual."""
    if pci.FIELD in document.want or pci.BEFORE in document.want:
        give_back(host, document.id)


def give_back(host: LocalHost, without: str = "") -> None:
    """Have virtual functions that no server has, but for the server *without*, be as usual."""
    if not _notes(host):
        return
    with host.locks.hold(*CHOICES):  # nobody gets one meanwhile
        held = pci.held(host, without)
        for address, note in _notes(host).items():
            if address not in held:
                _unset(host, address, note)


def _notes(host: LocalHost) -> dict[str, Path]:
    try:
        return {path.name: path for path in (host.settings.state_dir / FOLDER).iterdir()
                if ADDRESS.fullmatch(path.name)}
    except OSError:
        return {}


def _note(host: LocalHost, address: str, words: Iterable[str]) -> None:
    folder = host.settings.state_dir / FOLDER
    folder.mkdir(exist_ok=True)
    write_atomically(folder / address, " ".join(dict.fromkeys(words)).encode())


def _set(host: LocalHost, address: str, nic: Fields, words: Mapping[str, str], server: str) -> None:
    of, sysfs = card_of(host.settings.sysfs, address), host.settings.sysfs
    if nic.get("vnic_type") != VDPA:
        if of is None:
            raise Conflict(f"Virtual function {address} of host {host.name} cannot be set as its server's NIC "
                           f"{nic['mac']} wants it: its card has no network device there. Have the card's driver take "
                           "it (drivers_probe in /sys/bus/pci), or let the server have another one.")
        host.hypervisor.set_function(of.card, of.number, words)
        return
    representor = representor_of(sysfs, address)
    if not representor:
        raise Conflict(f"Virtual function {address} of host {host.name} has no representor, at which OVN finds the "
                       f"packets of its server's NIC {nic['mac']}. Have its card be a switch (devlink dev eswitch set "
                       "pci/ADDRESS mode switchdev, of the card), and Open vSwitch offload to it (other_config "
                       "hw-offload=true).")
    host.hypervisor.plug_representor(
        representor, RepresentorPort(host.settings.integration_bridge, nic["port"], nic["mac"], server))


def _unset(host: LocalHost, address: str, note: Path) -> None:
    """One that has gone, or whose card is out of reach, forgets by itself: its driver makes it anew."""
    representor, of = representor_of(host.settings.sysfs, address), card_of(host.settings.sysfs, address)
    if representor:
        host.hypervisor.plug_representor(representor, None)
    elif of is not None and (words := {word: USUAL[word] for word in note.read_text().split() if word in USUAL}):
        host.hypervisor.set_function(of.card, of.number, words)
    note.unlink(missing_ok=True)
