# SPDX-License-Identifier: GPL-3.0-or-later
"""What virtual functions may do beyond what libvirt sets (MAC and VLAN): whether their card trusts them.

The card keeps it, whoever has the function. So a function that is set is noted first, in a file of its address
(``FOLDER``), and whoever starts with it next, or comes upon it free, gives the card its usual setting back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.documents import sync_folder
from magnetar_agent.hardware.pci import FunctionOf, card_of
from magnetar_agent.locks import CHOICES
from magnetar_agent.networks import FunctionSettings
from magnetar_agent.servers import pci
from magnetar_core.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from magnetar_agent.host import LocalHost

#: Folder of the state: a file, named by its address, for each virtual function that was set.
FOLDER = "set_functions"
USUAL = FunctionSettings()


def wanted(want: Mapping[str, Any]) -> dict[str, FunctionSettings]:
    """The virtual functions of a server, by address, and what each is to be set to."""
    of = {nic["mac"]: FunctionSettings(trusted=bool(nic.get("trusted"))) for nic in pci.functions(want)}
    return {address: of[holder] for address, holder in (want.get(pci.FIELD) or {}).items() if holder in of}


def apply(host: LocalHost, want: Mapping[str, Any]) -> None:
    """Before a guest of these fields gets its NICs: set those that are virtual functions. Raises ``Conflict`` where
    one's card is out of reach."""
    given = wanted(want)
    if not given:
        return
    notes = _notes(host)
    for address, settings in given.items():
        if settings != USUAL:
            _note(host, address)
            _set(host, address, settings)
        elif address in notes:
            _set(host, address, USUAL)
            notes[address].unlink(missing_ok=True)
    give_back(host)


def give_back(host: LocalHost, without: str = "") -> None:
    """Have virtual functions that no server has, but for the server *without*, be as usual. One that has gone, or
    whose card is out of reach, forgets by itself: its driver makes it anew."""
    if not _notes(host):
        return
    with host.locks.hold(*CHOICES):  # nobody gets one meanwhile
        held = pci.held(host, without)
        for address, note in _notes(host).items():
            if address not in held:
                if card_of(host.settings.sysfs, address):
                    _set(host, address, USUAL)
                note.unlink(missing_ok=True)


def _notes(host: LocalHost) -> dict[str, Path]:
    try:
        return {path.name: path for path in (host.settings.state_dir / FOLDER).iterdir()}
    except OSError:
        return {}


def _note(host: LocalHost, address: str) -> None:
    folder = host.settings.state_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / address).touch()
    sync_folder(folder)


def _set(host: LocalHost, address: str, settings: FunctionSettings) -> None:
    found: FunctionOf | None = card_of(host.settings.sysfs, address)
    if found is None:
        raise Conflict(f"Virtual function {address} of host {host.name} cannot be set as its server's NIC wants it: "
                       "its card has no network device there. Have the card's driver take it (drivers_probe in "
                       "/sys/bus/pci), or let the server have another one.")
    host.hypervisor.set_function(found.card, found.number, settings)
