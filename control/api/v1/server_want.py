# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wanted of a server, with its references resolved, and the same in the words of POST /servers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from magnetar_core.errors import InvalidField
from magnetar_core.kinds.flavor import completed
from magnetar_core.reconcile import is_uuid, missing

from .asks import Asks, Document
from .flavor import Flavors
from .image import Images
from .keypair import Keypairs
from .network import Networks
from .driver import Driver
from .server_plan import nics_fit
from .server_shown import BLOCK, SIZES

FLAVORS, IMAGES, KEYPAIRS, NETWORKS = Flavors(), Images(), Keypairs(), Networks()


class Wanted:
    """*want*: a whole document, of a new server or of one that is there as *have* shows it."""

    def __init__(self, asks: Asks, want: Document, have: Document | None = None) -> None:
        self.asks, self.want, self.have = asks, want, have
        self.assumed = False

    def complete(self) -> Document:
        """References become what they refer to, as ``have`` shows it. What differs in words only is as it is there.
        ``_assumed``: whether a dry run has to assume that something is made before."""
        want = dict(self.want)
        want["flavor"], want["_flavor"] = self._flavor(want["flavor"])
        want["image"] = self._image(want.get("image"))
        want["networks"] = self._networks(want["networks"])
        want["block_device_mapping"] = self._blocks(want.get("block_device_mapping") or [])
        if want.get("key_name") and not (self.have and self.have["key_name"] == want["key_name"]):
            self._resolved(KEYPAIRS, want["key_name"], "key_name")
        want["rescue"] = self._rescue(want.get("rescue"))
        return {**want, "_assumed": self.assumed}

    def _resolved(self, driver: Driver, name: str, field: str) -> Document | None:
        """The resource, or ``None`` where a dry run may assume it. Raises ``InvalidField``."""
        found = driver.find(self.asks, name)
        if found is None:
            self.assumed = True
            noun = driver.kind.noun
            missing(InvalidField(field, f"there is no {noun} {name!r} in this cloud that you may use"), noun, name)
        return found

    def _flavor(self, given: Any) -> tuple[Document, str]:
        """Name and sizes of the flavor, and its id."""
        mine: Document = self.have["flavor"] if self.have else {}
        if isinstance(given, dict):
            sizes = {**dict.fromkeys(SIZES[3:], 0), **{
                name: n for name, n in completed(given, mine).items() if name in SIZES[1:]}}
            if self.have and all(mine.get(name) == value for name, value in sizes.items()):
                return mine, str(self.have["_flavor"])
            fits = [one for one in FLAVORS.every(self.asks) if all(one[name] == n for name, n in sizes.items())]
            if not fits:
                raise InvalidField("flavor", "no flavor of this cloud has these sizes; ask an administrator for one, "
                                             "or name one", sizes)
            found: Document | None = fits[0]
        else:
            found = self._resolved(FLAVORS, str(given), "flavor")
        if found is None:
            return {**dict.fromkeys(SIZES, 0), **mine, "name": given}, str(given)
        return {name: found[name] for name in SIZES}, str(found["id"])

    def _image(self, given: Any) -> Document | None:
        if not given or isinstance(given, dict):
            return given or None
        mine: Document | None = self.have and self.have["image"]
        if mine and given in (mine["id"], mine["name"]):
            return mine
        found = self._resolved(IMAGES, given, "image")
        return {"id": found["id"], "name": found["name"]} if found else {"id": None, "name": given}

    def _networks(self, given: list[Document]) -> list[Document]:
        """The NICs; those that the server has where these fit what is wanted."""
        have: list[Document] | None = self.have and self.have["networks"]
        if have is not None and given is have:
            return have
        wishes = [self._nic(nic, at) for at, nic in enumerate(given)]
        return have if have is not None and nics_fit(wishes, have) == ([], []) else wishes

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

    def _blocks(self, given: list[Document]) -> list[Document]:
        """With uuids in place of names. What a server was made with is compared by what is said now."""
        from .drivers import DRIVERS

        blocks = []
        for at, one in enumerate(given):
            driver = DRIVERS.get("volume_snapshot" if one["source_type"] == "snapshot" else str(one["source_type"]))
            block = {key: value for key, value in one.items() if key in BLOCK and value is not None}
            name = block.get("uuid")
            if name and driver and not is_uuid(name):
                found = self._resolved(driver, name, f"block_device_mapping[{at}].uuid")
                block["uuid"] = found["id"] if found else None
            blocks.append(block)
        kept: list[Document] = self.have["block_device_mapping"] if self.have else []
        same = len(kept) == len(blocks) and all(
            old.get(key) == value for old, new in zip(kept, blocks, strict=True) for key, value in new.items())
        return kept if same else blocks

    def _rescue(self, given: Document | None) -> Document | None:
        """A server that is rescued stays as it is, whatever it is rescued with."""
        if given and given.get("image"):
            image = self._resolved(IMAGES, given["image"], "rescue.image")
            given = {**given, "image": image["id"] if image else given["image"]}
        rescued: Document | None = self.have and self.have["rescue"]
        return given if given is None or rescued is None else rescued

    # In Nova's words

    def body(self, want: Document, freed: Collection[str] = ()) -> Document:
        """The body of POST /servers. The addresses *freed* will be, so they are not named where it is only checked."""
        blocks = [dict(block) for block in want["block_device_mapping"]]
        nics = [self.nic(nic, at, freed) for at, nic in enumerate(want["networks"])]
        server = {
            "name": want["name"], "flavorRef": want["flavor"]["id"], "networks": nics or "none",
            "metadata": want["metadata"], "tags": want["tags"], "config_drive": want["config_drive"],
            "block_device_mapping_v2": blocks}
        more = {"imageRef": (want["image"] or {}).get("id"), "host": want.get("host"), **{
            name: want[name] for name in ("key_name", "user_data", "description", "availability_zone")}}
        return {"server": {**server, **{name: value for name, value in more.items() if value}}}

    def nic(self, nic: Mapping[str, Any], at: int, freed: Collection[str] = ()) -> Document:
        """One of its networks."""
        if nic.get("mac"):
            raise InvalidField(f"networks[{at}].mac", "cannot be chosen in a cloud; it is drawn by the network service")
        address = (nic.get("address") or "").partition("/")[0]
        return {"uuid": nic["_id"], **({"fixed_ip": address} if address and address not in freed else {}),
                **({"tag": nic["tag"]} if nic.get("tag") else {})}

    def rebuild(self, want: Document, have: Document, preserve: bool) -> Document:
        """The arguments of the action rebuild."""
        rules: tuple[tuple[str, str, Callable[[Document], Any]], ...] = (
            ("key_name", "key_name", lambda one: one["key_name"]),
            ("user_data", "user_data", lambda one: one.get("user_data")),
            ("metadata", "metadata", lambda one: one["metadata"]))
        if (want["image"] or {}).get("id") is None:
            raise InvalidField("image", "is required: a server without one cannot be rebuilt")
        if want.get("availability_zone") != have.get("availability_zone"):
            raise InvalidField("availability_zone", "does not change with a rebuild; recreate the server")
        return {"imageRef": want["image"]["id"], "preserve_ephemeral": preserve,
                **{name: value(want) for field, name, value in rules if want.get(field) != have.get(field)}}
