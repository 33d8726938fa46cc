# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type keypair: the keypairs of the user."""

from __future__ import annotations

import base64
import binascii
import hashlib
import uuid

from magnetar_control.compute.accounts import keypairs
from magnetar_control.compute.caller import Caller
from magnetar_core.document import Document
from magnetar_core.errors import Conflict
from magnetar_core.kinds import Keypair
from magnetar_core.operations import Operation

from .driver import NAMESPACE, CloudDriver


def _sha256(public: str) -> str:
    try:
        blob = base64.b64decode(public.split()[1])
    except (IndexError, binascii.Error):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


class CloudKeypairs(CloudDriver):
    """The driver of the v1 API for keypairs. Nova's keypairs have no uuid; here the uuid is derived from the user and
    the name."""

    kind = Keypair
    takes_id, only_a_document = False, True
    host_only = {"description": ""}

    def every(self, caller: Caller) -> list[Document]:
        return [{"id": str(uuid.uuid5(NAMESPACE, f"{row.user_id} {row.name}")), "name": row.name, "description": "",
                 "public_key": row.public_key, "type": "ssh", "fingerprint": _sha256(row.public_key),
                 "fingerprint_md5": row.fingerprint} for row in keypairs.list_keypairs(caller) if row.type == "ssh"]

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want*. Raises ``InvalidField`` for an invalid public key."""
        if have is None or want["public_key"] != have["public_key"]:
            keypairs.check_public_key("ssh", want["public_key"])
        return want

    def make(self, caller: Caller, want: Document, operation: Operation) -> None:
        keypairs.create_keypair(caller, want["name"], want["public_key"])

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        raise Conflict("A key pair of a cloud cannot be renamed: make another one.", fields=names)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Delete the keypair. Existing servers still contain the public key."""
        keypairs.delete_keypair(caller, have["name"])
