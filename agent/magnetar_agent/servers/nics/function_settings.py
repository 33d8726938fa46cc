# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of virtual functions in addition to those that libvirt makes (MAC and VLAN): whether the card trusts a
function, and its send rate; for functions with vDPA devices also the OVN port of their representor.

The card and Open vSwitch keep a setting when another server gets the function. So before a function is set, the names
of the settings are noted in a file named by the function's address (``FOLDER``). The defaults are restored when the
next server starts with the function, or when it is found free. Free functions that cannot be set now stay noted: no
server starts with one before it can be set.
"""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware.pci import ADDRESS, card_of_function, representor_of
from magnetar_agent.host.file_modes import make_state_folder
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
#: Lock for setting functions. No choice waits for it: setting one runs programs, which may wait for a card.
SETTING = ("", "functions")
#: The setting of a function whose representor is a port of OVN.
PORT = "port"
#: The defaults of every function: by the words of ip-link(8), and ``PORT``.
USUAL: Mapping[str, str] = {PORT: "", "trust": "off", "max_tx_rate": "0", "min_tx_rate": "0"}
#: The NIC fields of a device that is no NIC: none.
NO_NIC: Mapping[str, Any] = MappingProxyType({})


def apply_function_settings(host: LocalHost, document: Document) -> None:
    """Apply trust mode, transmit rates and OVN port to the SR-IOV virtual functions of a server before its guest gets
    them. Also restore the defaults of virtual functions that no server uses. Raises ``Conflict`` if a setting cannot be
    applied."""
    devices = document.want.get(pci.FIELD)
    if not devices:
        return
    of = {nic["mac"]: nic for nic in pci.device_nics(document.want)}
    with host.locks.hold(*SETTING):
        notes = _notes(host)
        for address, holder in devices.items():
            nic = of.get(holder, NO_NIC)
            words, former = _changed_settings(nic), _noted(notes[address]) if address in notes else {}
            if words or former:
                _note(host, address, [*words, *former])
                _set_function(host, address, {**former, **words}, nic, document.id)
                _note(host, address, words)
    reset_free_functions(host)


def _changed_settings(nic: Mapping[str, Any]) -> dict[str, str]:
    """Return ``{option: value}`` of the settings of the NIC's virtual function that differ from the defaults. An option
    is named as in ip-link(8), or ``port`` for the OVN port."""
    settings = {PORT: nic["port"] if nic.get("vnic_type") == VDPA else "",
                "trust": "on" if nic.get("trusted") else "off",
                **{option: str(nic.get(option) or 0) for option in ("max_tx_rate", "min_tx_rate")}}
    return {option: settings[option] for option, usual in USUAL.items() if settings[option] != usual}


def release_functions(host: LocalHost, document: Document) -> None:
    """Restore the default settings of the SR-IOV virtual functions of a server that is being deleted."""
    if pci.FIELD in document.want or pci.BEFORE in document.want:
        reset_free_functions(host, document.id)


def reset_guest_functions(host: LocalHost, document: Document) -> None:
    """On the source host of a migration, restore the default settings of the server's virtual functions before its
    guest starts on the target host: OVN must not find a port on two hosts. Raises ``HypervisorError``."""
    mine = {*(document.want.get(pci.FIELD) or ()), *(document.want.get(pci.BEFORE) or ())}
    if not mine & _notes(host).keys():
        return
    with host.locks.hold(*SETTING):
        for address in sorted(mine & (notes := _notes(host)).keys()):
            _set_function(host, address, _noted(notes[address]))
            notes[address].unlink(missing_ok=True)


def reset_free_functions(host: LocalHost, excluded_server: str = "") -> None:
    """Restore the default settings of virtual functions that no server uses. Functions of the server *excluded_server*
    (a uuid) count as unused. Failures are only logged."""
    if not _notes(host):
        return
    with host.locks.hold(*SETTING):  # a server that gets one from now on sets it after this
        held_addresses = pci.held_pci_addresses(host, excluded_server)
        for address, note in _notes(host).items():
            if address in held_addresses:
                continue
            try:
                _set_function(host, address, _noted(note))
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
    """Return ``{name: default value}`` for each setting in the file *note*, which lists the changed settings of a
    virtual function."""
    return {option: USUAL[option] for option in note.read_text().split() if option in USUAL}


def _note(host: LocalHost, address: str, words: Iterable[str]) -> None:
    folder, text = host.settings.state_dir / FOLDER, " ".join(dict.fromkeys(words))
    if not text:
        (folder / address).unlink(missing_ok=True)
        return
    make_state_folder(folder, 0o700)
    write_atomically(folder / address, text.encode())


def _set_function(host: LocalHost, address: str, settings: Mapping[str, str], nic: Mapping[str, Any] = NO_NIC,
                  server: str = "") -> None:
    """Apply *settings* to the virtual function at the PCI *address*. *nic*, *server*: the NIC that uses the virtual
    function, and the uuid of its server; empty to restore the defaults. Raises ``Conflict`` if the card has no network
    device. Default values are excepted, because the driver sets them by itself."""
    card_settings = {option: value for option, value in settings.items() if option != PORT}
    if PORT in settings:
        _plug(host, address, nic if settings[PORT] else NO_NIC, server)
    of = card_of_function(host.settings.sysfs, address) if card_settings else None
    if of is not None:
        host.hypervisor.set_function(of.card, of.number, card_settings)
    elif any(value != USUAL[option] for option, value in card_settings.items()):
        raise Conflict(f"Virtual function {address} of host {host.name} cannot be set as its server's NIC {nic['mac']} "
                       "wants it: its card has no network device there. Have the card's driver take it (drivers_probe "
                       "in /sys/bus/pci), or let the server have another one.")


def _plug(host: LocalHost, address: str, nic: Mapping[str, Any], server: str) -> None:
    """Add the representor of the virtual function at the PCI *address* to Open vSwitch as the OVN port of *nic*, or
    remove it if *nic* is empty. *server*: the server's uuid. Raises ``Conflict`` if the virtual function has no
    representor."""
    representor = representor_of(host.settings.sysfs, address)
    if representor:
        host.hypervisor.plug_representor(representor, RepresentorPort(
            host.settings.integration_bridge, nic["port"], nic["mac"], server) if nic else None)
    elif nic:
        raise Conflict(f"Virtual function {address} of host {host.name} has no representor, at which OVN finds the "
                       f"packets of its server's NIC {nic['mac']}. Have its card be a switch (devlink dev eswitch set "
                       "pci/ADDRESS mode switchdev, of the card), and Open vSwitch offload to it (other_config "
                       "hw-offload=true).")
