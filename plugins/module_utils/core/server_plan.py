# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner of the steps that change a server on its host. Agents run the steps, and a cloud reports them. Pure.

A server has two documents here: *want*, its desired fields, and *have*, its current state (``plan_server`` describes
its fields).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from .document import Document
from .errors import Conflict, Immutable
from .kinds.server import block_device_destination
from .local_disks import GIB, SWAP, flavor_local_disks
from .plan import Step
from .power import CRASHED, LIVE, MISSING, OFF, SUSPENDED, verbs_between

#: The verbs of steps, with their texts for users.
TEXT: Mapping[str, str] = {
    "disks": "make the disks", "drive": "write the config drive", "define": "define the domain",
    "grow": "grow the root disk", "start": "start", "start_paused": "start, paused", "stop": "shut down",
    "pause": "pause", "resume": "resume", "save": "suspend to disk", "destroy": "power off",
    "undefine": "forget the domain", "free": "detach its volumes", "volumes": "make and attach volumes",
    "plug": "change the NICs", "reserve": "have DHCP give its addresses", "release": "give its addresses back",
    "erase": "remove the disks", "drop_swap": "remove the swap disk",
    "grow_ephemeral": "grow the ephemeral disk", "discard": "drop the saved memory", "wipe": "remove the disks",
    "rescue_drive": "write the config drive of the rescue", "forget_password": "forget the password",
    "reimage": "recreate its root volume", "rebuilt": "note that it is rebuilt",
    "rescue": "make the rescue disk", "unrescue": "remove the rescue disk",
    # Verbs of clouds only.
    "confirm": "keep the new flavor", "migrate": "move it to another host",
    "shelve": "shut down, keep the root disk as an image, and leave the host", "unshelve": "start on a host again",
    "soft_delete": "power off, and keep it for a while in case it is restored",
}
ROOT = "disk"
#: Fields of a NIC that do not affect the domain.
NOT_PLUGGED = frozenset(("address", "told", "network_affinity", "card", "port_security", "allowed_addresses",
                        "security_groups"))
#: The state of a server that does not exist yet.
NOTHING: Document = {"power": MISSING, "todo": (ROOT, "config.iso"), "lost": (), "root_bytes": 0}


def server_step(verb: str, **args: Any) -> Step:
    """Return the step with the operation *verb* (a key of ``TEXT``, such as ``start``) and its text for users. *args*:
    arguments of the verb.
    """
    return Step(verb, TEXT[verb], **args)


def plan_server(want: Optional[Document], have: Optional[Document]) -> Iterator[Step]:
    """Yield the steps that bring a server from its present state *have* (``None``: it does not exist) to its desired
    fields *want* (``None``: delete it). Raises ``Conflict`` or ``Immutable`` if that would lose data.

    *have* has the present values of the server's fields, and:

    * ``power``: the power state (``missing``: it has no libvirt domain). ``transient``: another program has undefined
      the running domain, so it disappears when it stops.
    * ``todo``: files to create. ``lost``: files that were created, but are missing now. ``gone``: the server's image,
      if it no longer exists.
    * ``root_bytes``: the size of the root disk. ``sizes``: the bytes of the other local disks, by file name.
    * ``rescue``: the image, device and bus of the existing rescue disk. ``rescued``: the domain boots from that disk.
      ``rescue_drive``: the config drive of the rescue must be written. ``rescue_left``: an ended rescue has left files.
    * ``volumes_made``: the server's new volumes are created. ``attached``: the server has volumes. ``volume_away``: its
      root volume is on another host.
    * ``reserved``: its DHCP reservations, ``[[mac, network, address], ...]``. ``told``: the DHCP server may still have
      reservations for the server.
    * ``drive``: the ``drive_digest`` of its config drive. ``pulled``: NICs that are host devices are detached.
    * ``allow_reboot``, ``rebuild``: see ``Change.allowed``.
    """
    for verb in _removal_verbs(have) if want is None else _change_verbs(want, have or NOTHING):
        args = {"networks": (have or NOTHING)["networks"]} if verb == "plug" else {}
        yield server_step(verb, **args)


def converged_state(want: Document) -> Document:
    """Return the current state (parameter *have* of ``plan_server``) of a server that is already exactly as *want*
    requests.
    """
    return {**want, "todo": (), "lost": (), "sizes": disk_sizes(want),
            "root_bytes": want["flavor"]["disk"] * GIB or 1,  # an image's size is unknown here
            "rescued": want.get("rescue") is not None, "reserved": address_reservations(want["networks"]),
            "volumes_made": True}


def _removal_verbs(have: Optional[Document]) -> Iterator[str]:
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


def _change_verbs(want: Document, have: Document) -> Iterator[str]:
    power, rebuild = have["power"], have.get("rebuild")
    _check_disks(want, have)
    sizes = tuple(_resizing(want, have))
    differs = [] if power == MISSING else _differs(want, have)
    rescues = _rescuing(want, have)
    _check_rescue(want, have, bool(sizes) or bool({"flavor", "hardware", "machine"} & {*differs}))
    plugs = differs == ["networks"] and not (sizes or rebuild or rescues) and {power, want["power"]} <= {*LIVE}
    changes = bool(differs or sizes or rebuild or rescues)
    if not plugs and changes and power in (*LIVE, SUSPENDED):
        yield from _stop_verbs(want, have, differs or ["flavor"])
        power = OFF
    if rebuild and power == CRASHED:
        yield "destroy"
        power = OFF
    yield from _files(want, have, sizes)
    if address_reservations(want["networks"]) != have.get("reserved", []):
        yield "reserve"
    yield from ("plug",) * plugs
    yield from (verb for verb in (*sizes, *rescues) if verb not in ("drop_swap", "unrescue"))
    changed_labels = [name for name in ("name", "description") if want[name] != have.get(name)]
    if power == MISSING or have.get("transient") or differs or changed_labels or rebuild or rescues:
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
    """Yield the verbs (names of operations, keys of ``TEXT``) of the steps that remove and create disks and volumes
    while the server is off. *want*, *have*: as in ``plan_server``. *sizes*: the verbs of ``_resizing``."""
    rebuild = have.get("rebuild")
    if rebuild:
        yield from ("reimage",) * bool(root_block_device(want) and not rebuild.get("keep_volume"))
        yield "wipe"
    if "drop_swap" in sizes:
        yield "drop_swap"
    if volume_block_devices(want) and not have.get("volumes_made"):
        yield "volumes"
    if rebuild or set(have["todo"]) - {"config.iso"} or _adds_disk(want, have):
        yield "disks"


def _drives(want: Document, have: Document, power: str, rescues: Sequence[str]) -> Iterator[str]:
    """Yield the verbs of the steps that write the config drives of the server and of its rescue. If no config drive
    needs the admin password, also yield the verb that deletes this password. These steps run after libvirt has assigned
    device addresses. *power*: the power state at this point of the plan. *rescues*: the verbs of ``_rescuing``.
    """
    password, changed = want.get("admin_pass") is not None, have.get("drive") not in (None, drive_digest(want))
    verbs = []
    if have.get("rebuild") or "config.iso" in have["todo"] or (changed and power in (MISSING, OFF)):
        verbs.append("drive")
    if have.get("rescue_drive") or ("rescue" in rescues and password):
        verbs.append("rescue_drive")
    if want["config_drive"]:
        yield from verbs
    if password and not (verbs and want["config_drive"]):
        yield "forget_password"  # it was written before a crash, or the server has no config drive


def _differs(want: Document, have: Document) -> list[str]:
    """Return the names of the fields flavor, hardware, machine and networks that have changed in a way that affects the
    domain. QEMU applies such changes only at its next start; only NICs can also change while the guest runs. *want*,
    *have*: as in ``plan_server``."""
    same = _shape(want["flavor"], disk_sizes(want)) == _shape(have["flavor"], have.get("sizes", ()))
    fields = [] if same else ["flavor"]
    fields += ["hardware"] * (_parts(want) != _parts(have))
    fields += ["machine"] * (want.get("machine") != have.get("machine"))
    desired_nics, present_nics = ([{name: value for name, value in nic.items() if name not in NOT_PLUGGED}
                                   for nic in server["networks"]] for server in (want, have))
    return fields + ["networks"] * (desired_nics != present_nics)


def server_hardware(server: Document) -> Document:
    """Return the field ``hardware`` of *server*; empty if an older agent has stored the server without it."""
    parts: Document = server.get("hardware") or {}
    return parts


def _parts(server: Document) -> Document:
    """Return the fields of the server's ``hardware`` that affect the domain's XML. This excludes the name of the
    guest's admin user, and ``guest_agent`` if it is true, the default.
    """
    return {name: value for name, value in server_hardware(server).items()
            if name != "admin_user" and (name, value) != ("guest_agent", True)}


def _shape(flavor: Document, files: Iterable[str]) -> Document:
    """Return the values in *flavor*, and the *files* (names of local disks), on which the domain's XML depends. Callers
    compare the results to decide whether the XML changes.
    """
    return {"vcpus": flavor["vcpus"], "ram": flavor["ram"], "disks": {*files}}


def _stop_verbs(want: Document, have: Document, names: list[str]) -> Iterator[str]:
    """Yield the verbs (names of operations, keys of ``TEXT``) of the steps that power the server off, because the
    fields *names* change. Raises ``Conflict`` for a running, paused or suspended server, with these exceptions: the
    request turns the server off, rebuilds it, allows a reboot, or begins or ends a rescue."""
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
    """Return the bytes of each ephemeral and swap disk that *want* requests, by file name."""
    return {disk.file: disk.size for disk in flavor_local_disks(want["flavor"], want.get("block_device_mapping", ()))}


def volume_block_devices(want: Document) -> list[Document]:
    """Return the items of the server's block device mapping whose destination is a volume."""
    return [block_device for block_device in want.get("block_device_mapping", ())
            if block_device_destination(block_device) == "volume"]


def root_block_device(want: Document) -> Optional[Document]:
    """Return the item of the server's block device mapping that is the root volume; ``None`` if the root disk is local.
    """
    return next((block_device for block_device in volume_block_devices(want) if block_device.get("boot_index") == 0),
                None)


def _resizing(want: Document, have: Document) -> Iterator[str]:
    """Yield the verbs of the steps that change the local disks to the sizes that *want* requests. *want*, *have*: as in
    ``plan_server``.
    """
    sizes, present_sizes, rebuild = disk_sizes(want), have.get("sizes", {}), have.get("rebuild")
    if not rebuild and SWAP in present_sizes and present_sizes[SWAP] != sizes.get(SWAP):
        yield "drop_swap"
    if not rebuild and want["flavor"]["disk"] * GIB > have["root_bytes"] > 0:
        yield "grow"
    if (not rebuild or rebuild["preserve_ephemeral"]) and any(
            size > present_sizes[file] for file, size in sizes.items() if file != SWAP and file in present_sizes):
        yield "grow_ephemeral"


def _adds_disk(want: Document, have: Document) -> bool:
    """Return whether an ephemeral or swap disk must be created, because it does not exist or will first be removed.
    *want*, *have*: as in ``plan_server``.
    """
    present_sizes = have.get("sizes", {})
    return any(file not in present_sizes or (file == SWAP and present_sizes[file] != size) for file,
               size in disk_sizes(want).items())


def _check_disks(want: Document, have: Document) -> None:
    """Raise ``Immutable`` if a disk would shrink, and ``Conflict`` if a disk is lost or cannot be rebuilt. *want*,
    *have*: as in ``plan_server``.
    """
    rebuild, name = have.get("rebuild"), want["name"]
    present_sizes = have.get("sizes", {})
    _check_root_volume(want, have)
    lost = [file for file in have["lost"] if _is_kept(file, rebuild)]
    if lost:
        way = "Restore the file, " + ("or do without preserve_ephemeral." if rebuild else "rebuild the server, or "
                                      "delete it and make it again.")
        raise Conflict(f"{', '.join(lost)} of server {name!r} is gone from the host. {way}", files=lost)
    missing_image = have.get("gone") if rebuild else None
    if missing_image is not None and missing_image in (want["image"], (root_block_device(want) or {}).get("uuid")):
        raise Conflict(f"The image that server {name!r} was made from is no longer on this host, or has no content "
                       "there. Register it again and send its content (and that of the kernel that it boots with), or "
                       "rebuild from another image.", field="image")
    sizes = {**disk_sizes(want), ROOT: want["flavor"]["disk"] * GIB or have["root_bytes"]}  # an image's size
    for file, present_size in {ROOT: have["root_bytes"], **present_sizes}.items():
        size = sizes.get(file, 0)
        if size < present_size and file != SWAP and _is_kept(file, rebuild):
            raise Immutable(
                f"flavor: the {'root' if file == ROOT else 'ephemeral'} disk of server {name!r} has "
                f"{present_size / GIB:g} GiB "
                f"and cannot shrink to {size / GIB:g} GiB. Choose a flavor with a larger disk, or delete the server "
                "and make it again.", fields=["flavor"])


def _is_kept(file: str, rebuild: Optional[Document]) -> bool:
    """Return whether the disk *file* keeps its content. *rebuild*: the options of a requested rebuild, or ``None``.
    Without a rebuild, all disks keep their content; during a rebuild, only ephemeral disks do, if requested.
    """
    return not rebuild or (rebuild["preserve_ephemeral"] and file not in (ROOT, SWAP))


def drive_digest(want: Document) -> str:
    """Return a digest of the data in the server's config drive. If the digest changes, as in a resize or migration, the
    config drive is written again, as in Nova. The server's name is not in the digest, so a rename has no effect until
    the next rebuild.
    """
    contents = [want.get("guest_data"), want.get("vendor_data"), want["flavor"].get("name", "")]
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def _check_root_volume(want: Document, have: Document) -> None:
    """Raise ``Conflict`` if a rebuild must recreate a root volume that was not created from an image, or is on another
    host.
    """
    rebuild, root = have.get("rebuild"), root_block_device(want)
    if not rebuild or root is None or rebuild.get("keep_volume"):
        return
    if root["source_type"] != "image":
        raise Conflict(f"The root disk of server {want['name']!r} is a volume that it was not made with from an image, "
                       "so nothing says of what a rebuild would create it again. Make another server.")
    if have.get("volume_away"):
        raise Conflict(f"The root disk of server {want['name']!r} is a volume of another host, which a rebuild cannot "
                       "recreate here. Migrate the server to the volume's host first.")


# Rescue -------------------------------------------------------------------------------------------------------------
def _rescuing(want: Document, have: Document) -> tuple[str, ...]:
    """Return the verbs of the steps that begin or end a rescue: ``rescue``, which runs before the domain is defined, or
    ``unrescue``, which runs afterwards; empty if the rescue state does not change.
    """
    rescue_image = want.get("rescue")
    if rescue_image is None:
        return ("unrescue",) if have.get("rescued") or have.get("rescue_left") else ()
    return () if have.get("rescued") and have.get("rescue") == rescue_image else ("rescue",)


def _check_rescue(want: Document, have: Document, differs: bool) -> None:
    """Raise ``Conflict`` if a rescue is requested together with a rebuild or another change (*differs*), or for a
    suspended server.
    """
    name = want["name"]
    if want.get("rescue") is not None and (differs or have.get("rebuild")):
        raise Conflict(f"flavor, hardware and root disk of server {name!r} cannot change while it is rescued. Unrescue "
                       "it first.", fields=["rescue"])
    if have["power"] == SUSPENDED and _rescuing(want, have):
        raise Conflict(f"Server {name!r} is suspended, and its memory fits only the disks that it has now. Start it or "
                       "stop it first.", fields=["rescue"])


# Addresses ----------------------------------------------------------------------------------------------------------
def address_reservations(networks: Iterable[Document]) -> list[list[Any]]:
    """Return ``[MAC, network, address]`` for each NIC in *networks* (a server's field) that has a fixed address."""
    return [[nic["mac"], nic["network"], nic["address"]] for nic in networks
            if nic.get("network") and nic.get("address")]
