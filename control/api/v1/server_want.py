# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wanted of a server, with its references resolved, and the same as the use cases take it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from magnetar_control.compute.metadata import METADATA
from magnetar_control.compute.server_actions import Rebuild
from magnetar_control.compute.server_create import NewServers
from magnetar_core.errors import InvalidField
from magnetar_core.kinds.flavor import completed

from .asks import Asks, Document
from .flavor import Flavors
from .image import Images
from .keypair import Keypairs
from .network import Networks
from .noun import Noun, foreseen, is_uuid
from .server_shown import SIZES

FLAVORS, IMAGES, KEYPAIRS, NETWORKS = Flavors(), Images(), Keypairs(), Networks()
#: Block devices are compared by what was said of them.
BLOCK = ("source_type", "destination_type", "uuid", "boot_index", "volume_size", "delete_on_termination", "tag",
         "guest_format", "disk_bus", "volume_type")


class Wanted:
    """*want*: a whole document. ``whole`` is false when a dry run had to assume that something is made before."""

    def __init__(self, asks: Asks, want: Document, warnings: list[str], dry: bool) -> None:
        self.asks, self.want, self.warnings, self.dry = asks, want, warnings, dry
        self.whole = True

    def complete(self, have: Document | None) -> Document:
        """References become what they refer to, as ``have`` shows it."""
        want = dict(self.want)
        want["flavor"] = self._flavor(want["flavor"], have)
        want["image"] = self._image(want.get("image"), have)
        want["networks"] = want["networks"] if have and want["networks"] is have["networks"] else [
            self._nic(nic, at) for at, nic in enumerate(want["networks"])]
        want["block_device_mapping"] = self._blocks(want.get("block_device_mapping") or [], have)
        if want.get("key_name") and not (have and have["key_name"] == want["key_name"]):
            self._resolved(KEYPAIRS, want["key_name"], "key_name")
        if want.get("rescue") and want["rescue"].get("image"):
            image = self._resolved(IMAGES, want["rescue"]["image"], "rescue.image")
            want["rescue"] = {**want["rescue"], "image": image["id"] if image else want["rescue"]["image"]}
        if have and "user_data" not in want:
            want["user_data"] = None
        if have:
            have["user_data"] = have["_user_data"] if want.get("user_data") else want.get("user_data")
        return want

    def _resolved(self, noun: Noun, name: str, field: str) -> Document | None:
        """The resource, or ``None`` where a dry run may assume it. Raises ``InvalidField``."""
        found = noun.find(self.asks, name)
        if found is None:
            self.whole = False
            foreseen(self.dry, self.warnings, InvalidField(
                field, f"there is no {noun.kind.noun} {name!r} in this cloud that you may use"), noun.kind.noun, name)
        return found

    def _flavor(self, given: Any, have: Document | None) -> Document:
        if isinstance(given, dict):
            mine = have["flavor"] if have else {}
            sizes = {**dict.fromkeys(SIZES[3:], 0), **{
                name: n for name, n in completed(given, mine).items() if name in SIZES[1:]}}
            if have and all(mine.get(name) == value for name, value in sizes.items()):
                return {**mine, "id": have["_flavor"]}
            fits = [one for one in FLAVORS.every(self.asks) if all(one[name] == n for name, n in sizes.items())]
            if not fits:
                raise InvalidField("flavor", "no flavor of this cloud has these sizes; ask an administrator for one, "
                                             "or name one", sizes)
            found: Document | None = fits[0]
        else:
            found = self._resolved(FLAVORS, str(given), "flavor")
        if found is None:
            return {"name": given, "id": given, **dict.fromkeys(SIZES[1:], None)}
        return {**{name: found[name] for name in SIZES}, "id": found["id"]}

    def _image(self, given: Any, have: Document | None) -> Document | None:
        if not given or isinstance(given, dict):
            return given or None
        if have and have["image"] and given in (have["image"]["id"], have["image"]["name"]):
            mine: Document = have["image"]
            return mine
        found = self._resolved(IMAGES, given, "image")
        return {"id": found["id"], "name": found["name"]} if found else {"id": None, "name": given}

    def _nic(self, given: Mapping[str, Any], at: int) -> Document:
        where = f"networks[{at}]"
        if given.get("bridge"):
            raise InvalidField(f"{where}.bridge", "is for a single host; in a cloud, name a network (mode bridge makes "
                                                  "one of a bridge)", given["bridge"])
        if not given.get("network"):
            raise InvalidField(f"{where}.network", "is required")
        if given.get("model", "virtio") != "virtio":
            raise InvalidField(f"{where}.model", "must be virtio in a cloud", given["model"])
        found = self._resolved(NETWORKS, given["network"], where)
        name, id = (found["name"], found["id"]) if found else (given["network"], None)
        return {"network": name, "model": "virtio", "_id": id,
                **{key: given[key] for key in ("mac", "tag", "address") if given.get(key)}}

    def _blocks(self, given: list[Document], have: Document | None) -> list[Document]:
        """With uuids in place of names. What a server was made with is compared by what is said now."""
        from .nouns import NOUNS

        blocks = []
        for at, one in enumerate(given):
            noun = NOUNS.get("volume_snapshot" if one["source_type"] == "snapshot" else str(one["source_type"]))
            block = {key: value for key, value in one.items() if key in BLOCK and value is not None}
            name = block.get("uuid")
            if name and noun and not is_uuid(name):
                found = self._resolved(noun, name, f"block_device_mapping[{at}].uuid")
                block["uuid"] = found["id"] if found else None
            blocks.append(block)
        if have and blocks:
            kept = have["_blocks"]
            same = len(kept) == len(blocks) and all(
                old.get(key) == value for old, new in zip(kept, blocks, strict=True) for key, value in new.items())
            have["block_device_mapping"] = blocks if same else [
                {key: value for key, value in one.items() if key in BLOCK and value is not None} for one in kept]
        return blocks

    # As the use cases take it

    def new(self, want: Document, freed: Collection[str] = ()) -> NewServers:
        """A request for the server. The addresses *freed* will be, so they are not named where it is only checked."""
        nics = [self.nic(nic, at, freed) for at, nic in enumerate(want["networks"])]
        return NewServers(
            id=want.get("id"), name=want["name"], flavor_id=want["flavor"]["id"], networks=nics or "none",
            image_id=(want["image"] or {}).get("id"), mapping=want["block_device_mapping"],
            metadata=METADATA.check(want["metadata"], "metadata"), tags=want["tags"],
            config_drive=want["config_drive"], host=want.get("host"), key_name=want["key_name"],
            user_data=want["user_data"], description=want["description"] or None,
            availability_zone=want["availability_zone"])

    def nic(self, nic: Mapping[str, Any], at: int, freed: Collection[str] = ()) -> Document:
        """One of its networks, as ``Networks.check`` takes it."""
        if nic.get("mac"):
            raise InvalidField(f"networks[{at}].mac", "cannot be chosen in a cloud; it is drawn by the network service")
        address = (nic.get("address") or "").partition("/")[0]
        return {"uuid": nic["_id"], **({"fixed_ip": address} if address and address not in freed else {}),
                **({"tag": nic["tag"]} if nic.get("tag") else {})}

    def rebuild(self, want: Document, have: Document, preserve: bool) -> Rebuild:
        """The arguments of the action rebuild."""
        if (want["image"] or {}).get("id") is None:
            raise InvalidField("image", "is required: a server without one cannot be rebuilt")
        if want.get("availability_zone") != have.get("availability_zone"):
            raise InvalidField("availability_zone", "does not change with a rebuild; recreate the server")
        metadata = want["metadata"] if want["metadata"] != have["metadata"] else None
        return Rebuild(
            image_id=want["image"]["id"], preserve_ephemeral=preserve,
            columns={name: want.get(name) for name in ("key_name", "user_data") if want.get(name) != have.get(name)},
            metadata=None if metadata is None else METADATA.check(metadata, "metadata"))
