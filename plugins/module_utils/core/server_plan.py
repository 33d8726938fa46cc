# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps that change a server on its host: the one planner, of agents and of a cloud that says what they do. Pure.

A server is two documents here: *want*, its fields as they are to be, and *have*, what is there (``plan`` says of what
it consists).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from .errors import Conflict, Immutable
from .kinds.server import destination
from .local_disks import GIB, SWAP, local_disks
from .plan import Step
from .power import CRASHED, LIVE, MISSING, OFF, SUSPENDED, verbs_between
from .reconcile import Document

#: The verbs of steps, in words for people.
TEXT: Mapping[str, str] = {
    "disks": "make the disks", "drive": "write the config drive", "define": "define the domain",
    "grow": "grow the root disk", "start": "start", "start_paused": "start, paused", "stop": "shut down",
    "pause": "pause", "resume": "resume", "save": "suspend to disk", "destroy": "power off",
    "undefine": "forget the domain", "free": "detach its volumes", "volumes": "make and attach volumes",
    "plug": "change the NICs", "reserve": "have DHCP give its addresses", "release": "give its addresses back",
    "erase": "remove the disks", "drop_swap": "remove the swap disk",
    "grow_ephemeral": "grow the ephemeral disk", "discard": "drop the saved memory", "wipe": "remove the disks",
    "rescue_drive": "write the config drive of the rescue", "forget_password": "forget the password",
    "reimage": "make its root volume anew", "rebuilt": "note that it is rebuilt",
    "rescue": "make the rescue disk", "unrescue": "remove the rescue disk",
    # Of a cloud only.
    "confirm": "keep the new flavor", "migrate": "move it to another host",
    "shelve": "shut down, keep the root disk as an image, and leave the host", "unshelve": "start on a host again",
    "soft_delete": "power off, and keep it for a while in case it is restored",
}
ROOT = "disk"
#: Of a NIC, what is no matter of the domain's.
NOT_PLUGGED = frozenset(("address", "told", "network_affinity", "card", "port_security", "allowed_addresses",
                        "security_groups"))
#: What there is of a server that is to be made.
NOTHING: Document = {"power": MISSING, "todo": (ROOT, "config.iso"), "lost": (), "root_bytes": 0}


def step(verb: str, **args: Any) -> Step:
    """A step, with its words."""
    return Step(verb, TEXT[verb], **args)


def plan(want: Optional[Document], have: Optional[Document]) -> Iterator[Step]:
    """Yield the steps from *have* to *want* (``None``: absent).

    *have* has the server's fields as they are, and ``power`` (``missing`` without a domain), ``todo`` (files to make),
    ``lost`` (files gone), ``root_bytes``, ``sizes`` (bytes of its other own disks, by file), ``rescue`` (the disk that
    is made), ``rescued`` (whether it boots from it), ``rescue_drive`` (its config drive is to be written),
    ``rescue_left`` (something of it is there), ``transient`` (undefined from outside: it would go when it stops),
    ``gone`` (an image that is no longer there), ``volumes_made``, ``attached`` (it has volumes), ``reserved``
    (addresses that DHCP gives it: ``[[mac, network, address], ...]``), ``told`` (it has had some), ``drive``
    (``drive_digest`` of what the config drive says), ``pulled`` (its guest is without its NICs that are devices of the
    host), and what the caller allows or asks for besides: ``allow_reboot``,
    ``rebuild``.

    Raises ``Conflict`` or ``Immutable`` where there is no way that loses nothing.
    """
    for verb in _gone(have) if want is None else _there(want, have or NOTHING):
        args = {"networks": (have or NOTHING)["networks"]} if verb == "plug" else {}
        yield step(verb, **args)


def observed(want: Document) -> Document:
    """What there is of a server that is as *want*: its plan has no steps."""
    return {**want, "todo": (), "lost": (), "sizes": disk_sizes(want),
            "root_bytes": want["flavor"]["disk"] * GIB or 1,  # as large as its image, which is unknown
            "rescued": want.get("rescue") is not None, "reserved": reservations(want["networks"]),
            "volumes_made": True}


def _gone(have: Optional[Document]) -> Iterator[str]:
    have = have or {"power": MISSING}
    if have["power"] in (*LIVE, CRASHED):
        yield "destroy"
    if have["power"] != MISSING:
        yield "undefine"
    if have.get("attached"):
        yield "free"
    if have.get("told"):
        yield "release"
    yield "erase"


def _there(want: Document, have: Document) -> Iterator[str]:
    power, rebuild = have["power"], have.get("rebuild")
    _check_disks(want, have)
    sizes = tuple(_resizing(want, have))
    differs = [] if power == MISSING else _differs(want, have)
    rescues = _rescuing(want, have)
    _check_rescue(want, have, bool(sizes) or bool({"flavor", "hardware", "machine"} & {*differs}))
    plugs = differs == ["networks"] and not (sizes or rebuild or rescues) and {power, want["power"]} <= {*LIVE}
    changes = bool(differs or sizes or rebuild or rescues)
    if not plugs and changes and power in (*LIVE, SUSPENDED):
        yield from _off(want, have, differs or ["flavor"])
        power = OFF
    if rebuild and power == CRASHED:
        yield "destroy"
        power = OFF
    yield from _files(want, have, sizes)
    if reservations(want["networks"]) != have.get("reserved", []):
        yield "reserve"
    yield from ("plug",) * plugs
    yield from (verb for verb in (*sizes, *rescues) if verb not in ("drop_swap", "unrescue"))
    told = [name for name in ("name", "description") if want[name] != have.get(name)]
    if power == MISSING or have.get("transient") or differs or told or rebuild or rescues:
        yield "define"
    yield from _drives(want, have, power, rescues)
    yield from (verb for verb in rescues if verb == "unrescue")
    yield from ("rebuilt",) * bool(rebuild)
    if power == CRASHED and want["power"] != OFF:
        yield "destroy"
    yield from verbs_between(OFF if power in (MISSING, CRASHED) else power, want["power"])
    if have.get("pulled") and want["power"] in LIVE and not plugs:
        yield "plug"


def _files(want: Document, have: Document, sizes: Sequence[str]) -> Iterator[str]:
    """The verbs that make disks and volumes while the server is off. *sizes*: those of a resize."""
    rebuild = have.get("rebuild")
    if rebuild:
        yield from ("reimage",) * bool(root_volume(want) and not rebuild.get("keep_volume"))
        yield "wipe"
    if "drop_swap" in sizes:
        yield "drop_swap"
    if volume_items(want) and not have.get("volumes_made"):
        yield "volumes"
    if rebuild or set(have["todo"]) - {"config.iso"} or _adds(want, have):
        yield "disks"


def _drives(want: Document, have: Document, power: str, rescues: Sequence[str]) -> Iterator[str]:
    """The verbs that write config drives, when libvirt has said which addresses the devices have. *power*: as it is by
    then."""
    password, changed = want.get("admin_pass") is not None, have.get("drive") not in (None, drive_digest(want))
    found = []
    if have.get("rebuild") or "config.iso" in have["todo"] or (changed and power in (MISSING, OFF)):
        found.append("drive")
    if have.get("rescue_drive") or ("rescue" in rescues and password):
        found.append("rescue_drive")
    if want["config_drive"]:
        yield from found
    if password and not (found and want["config_drive"]):
        yield "forget_password"  # it was told before a crash, or there is nothing to tell it by


def _differs(want: Document, have: Document) -> list[str]:
    """Fields that QEMU takes up at its next start only. Addresses are no matter of QEMU's, nor what guests are told."""
    same = _shape(want["flavor"], disk_sizes(want)) == _shape(have["flavor"], have.get("sizes", ()))
    found = [] if same else ["flavor"]
    found += ["hardware"] * (_parts(want) != _parts(have))
    found += ["machine"] * (want.get("machine") != have.get("machine"))
    wanted, seen = ([{name: value for name, value in nic.items() if name not in NOT_PLUGGED}
                     for nic in one["networks"]] for one in (want, have))
    return found + ["networks"] * (wanted != seen)


def hardware(server: Document) -> Document:
    """What a server has besides sizes; one of an older agent has nothing."""
    found: Document = server.get("hardware") or {}
    return found


def _parts(server: Document) -> Document:
    """What the domain shows of its hardware: a guest agent's channel is there unless it is not wanted, and whose
    password the agent sets is no matter of QEMU's."""
    return {name: value for name, value in hardware(server).items()
            if name != "admin_user" and (name, value) != ("guest_agent", True)}


def _shape(flavor: Document, files: Iterable[str]) -> Document:
    """What the domain shows of a flavor, and of the server's own disks."""
    return {"vcpus": flavor["vcpus"], "ram": flavor["ram"], "disks": {*files}}


def _off(want: Document, have: Document, names: list[str]) -> Iterator[str]:
    """The way to off, for the sake of the fields *names*; refused where nobody has allowed that."""
    power = have["power"]
    if have.get("rebuild"):
        yield from ("discard",) if power == SUSPENDED else verbs_between(power, OFF)
        return
    if want["power"] != OFF and not have.get("allow_reboot") and not _rescuing(want, have):
        raise Conflict(f"{', '.join(names)}: can change only while server {want['name']!r} is off, and it is {power}. "
                       "Stop it first, ask for power off in the same call, or set allow_reboot to have it stopped, "
                       "changed and started again.", fields=names)
    yield from verbs_between(power, OFF)


# Disks --------------------------------------------------------------------------------------------------------------
def disk_sizes(want: Document) -> dict[str, int]:
    """Bytes of each ephemeral and swap disk that is wanted, by file."""
    return {one.file: one.size for one in local_disks(want["flavor"], want.get("block_device_mapping", ()))}


def volume_items(want: Document) -> list[Document]:
    """The items of the block device mapping that are volumes."""
    return [one for one in want.get("block_device_mapping", ()) if destination(one) == "volume"]


def root_volume(want: Document) -> Optional[Document]:
    """The item that is the root disk; ``None`` when that is a local one."""
    return next((one for one in volume_items(want) if one.get("boot_index") == 0), None)


def _resizing(want: Document, have: Document) -> Iterator[str]:
    """The verbs that make the disks have the sizes that are wanted."""
    sizes, there, rebuild = disk_sizes(want), have.get("sizes", {}), have.get("rebuild")
    if not rebuild and SWAP in there and there[SWAP] != sizes.get(SWAP):
        yield "drop_swap"
    if not rebuild and want["flavor"]["disk"] * GIB > have["root_bytes"] > 0:
        yield "grow"
    if (not rebuild or rebuild["preserve_ephemeral"]) and any(
            size > there[file] for file, size in sizes.items() if file != SWAP and file in there):
        yield "grow_ephemeral"


def _adds(want: Document, have: Document) -> bool:
    """Whether an ephemeral or swap disk is wanted that is not there, or will not be."""
    there = have.get("sizes", {})
    return any(file not in there or (file == SWAP and there[file] != size) for file, size in disk_sizes(want).items())


def _check_disks(want: Document, have: Document) -> None:
    """Raise ``Immutable`` for a disk that would shrink, ``Conflict`` for one that is lost or cannot be rebuilt."""
    rebuild, name = have.get("rebuild"), want["name"]
    there = have.get("sizes", {})
    _check_root_volume(want, have)
    lost = [file for file in have["lost"] if _is_kept(file, rebuild)]
    if lost:
        way = "Restore the file, " + ("or do without preserve_ephemeral." if rebuild else "rebuild the server, or "
                                      "delete it and make it again.")
        raise Conflict(f"{', '.join(lost)} of server {name!r} is gone from the host. {way}", files=lost)
    gone = have.get("gone") if rebuild else None
    if gone is not None and gone in (want["image"], (root_volume(want) or {}).get("uuid")):
        raise Conflict(f"The image that server {name!r} was made from is no longer on this host, or has no content "
                       "there. Register it again and send its content (and that of the kernel that it boots with), or "
                       "rebuild from another image.", field="image")
    sizes = {**disk_sizes(want), ROOT: want["flavor"]["disk"] * GIB or have["root_bytes"]}  # as large as its image
    for file, had in {ROOT: have["root_bytes"], **there}.items():
        size = sizes.get(file, 0)
        if size < had and file != SWAP and _is_kept(file, rebuild):
            raise Immutable(
                f"flavor: the {'root' if file == ROOT else 'ephemeral'} disk of server {name!r} has {had / GIB:g} GiB "
                f"and cannot shrink to {size / GIB:g} GiB. Choose a flavor with a larger disk, or delete the server "
                "and make it again.", fields=["flavor"])


def _is_kept(file: str, rebuild: Optional[Document]) -> bool:
    """Whether a disk stays as it is, with what is in it; in a *rebuild*, where that was asked for."""
    return not rebuild or (rebuild["preserve_ephemeral"] and file not in (ROOT, SWAP))


def drive_digest(want: Document) -> str:
    """A digest of what a config drive says that is written again when it changes, as by Nova: by a resize or a move. A
    rename changes it at the next rebuild."""
    told = [want.get("guest_data"), want.get("vendor_data"), want["flavor"].get("name", "")]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _check_root_volume(want: Document, have: Document) -> None:
    """Raise ``Conflict`` where a rebuild is to make a root volume anew, and cannot."""
    rebuild, root = have.get("rebuild"), root_volume(want)
    if not rebuild or root is None or rebuild.get("keep_volume"):
        return
    if root["source_type"] != "image":
        raise Conflict(f"The root disk of server {want['name']!r} is a volume that it was not made with from an image, "
                       "so nothing says of what a rebuild would make it anew. Make another server.")
    if have.get("volume_away"):
        raise Conflict(f"The root disk of server {want['name']!r} is a volume of another host, which a rebuild cannot "
                       "make anew here. Migrate the server to the volume's host first.")


# Rescue -------------------------------------------------------------------------------------------------------------
def _rescuing(want: Document, have: Document) -> tuple[str, ...]:
    """``rescue`` before the domain is defined, ``unrescue`` after it; none when all is as it is to be."""
    wanted = want.get("rescue")
    if wanted is None:
        return ("unrescue",) if have.get("rescued") or have.get("rescue_left") else ()
    return () if have.get("rescued") and have.get("rescue") == wanted else ("rescue",)


def _check_rescue(want: Document, have: Document, differs: bool) -> None:
    """Raise ``Conflict`` where a rescue and another change do not go together."""
    name = want["name"]
    if want.get("rescue") is not None and (differs or have.get("rebuild")):
        raise Conflict(f"flavor, hardware and root disk of server {name!r} cannot change while it is rescued. Unrescue "
                       "it first.", fields=["rescue"])
    if have["power"] == SUSPENDED and _rescuing(want, have):
        raise Conflict(f"Server {name!r} is suspended, and its memory fits only the disks that it has now. Start it or "
                       "stop it first.", fields=["rescue"])


# Addresses ----------------------------------------------------------------------------------------------------------
def reservations(networks: Iterable[Document]) -> list[list[Any]]:
    """The MAC, network and address of each NIC that was given an address on a network."""
    return [[nic["mac"], nic["network"], nic["address"]] for nic in networks
            if nic.get("network") and nic.get("address")]
