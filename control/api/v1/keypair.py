# SPDX-License-Identifier: GPL-3.0-or-later
"""keypair: those of the user."""

from __future__ import annotations

import base64
import binascii
import hashlib
import uuid
from urllib.parse import quote

from magnetar_control.compute import keys
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.kinds import Keypair

from .asks import FURTHER, Asks, Document, paged
from .driver import Driver
from .operations import Operation


def _sha256(public: str) -> str:
    try:
        blob = base64.b64decode(public.split()[1])
    except (IndexError, binascii.Error):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def shown(asks: Asks, key: Document) -> Document:
    """Nova's key pair as the kind has it."""
    return {"id": str(uuid.uuid5(FURTHER, f"{asks.context.user_id} {key['name']}")), "name": key["name"],
            "description": "", "public_key": key["public_key"], "type": "ssh",
            "fingerprint": _sha256(key["public_key"]), "fingerprint_md5": key["fingerprint"]}


class Keypairs(Driver):
    """Nova's have no uuid: the one that is shown follows from user and name."""

    kind = Keypair
    takes_id, plain = False, True
    absent = {"description": ""}

    def every(self, asks: Asks) -> list[Document]:
        """All of the user, on all pages."""
        keys = (one["keypair"] for one in paged(asks.compute, "/os-keypairs", "keypairs"))
        return [shown(asks, key) for key in keys if key.get("type", "ssh") == "ssh"]

    def complete(self, asks: Asks, want: Document, have: Document | None) -> Document:
        """A key that is none is refused before anything is changed."""
        if have is None or want["public_key"] != have["public_key"]:
            try:
                keys.fingerprint("ssh", want["public_key"])
            except InvalidField as error:
                raise InvalidField("public_key", error.details["rule"]) from None
        return want

    def make(self, asks: Asks, want: Document, operation: Operation) -> None:
        """POST os-keypairs."""
        asks.compute("POST", "/os-keypairs", {"keypair": {
            "name": want["name"], "type": "ssh", "public_key": want["public_key"]}})

    def change(self, asks: Asks, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Nothing of a key pair changes."""
        raise Conflict("A key pair of a cloud cannot be renamed: make another one.", fields=names)

    def remove(self, asks: Asks, have: Document, operation: Operation) -> None:
        """DELETE; servers keep the key."""
        asks.compute("DELETE", f"/os-keypairs/{quote(have['name'], safe='')}")
