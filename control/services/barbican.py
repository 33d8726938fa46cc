# SPDX-License-Identifier: GPL-3.0-or-later
"""``services.KeyManager`` over HTTP: Barbican's API v1.

Certificates are users' secrets. Keys are secrets of the service user's project: Barbican chooses their uuids, so ours
are in their names, and the user whose a key is stands beside it in the payload, as in the embedded key manager's files.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from pathlib import Path

from magnetar_core.errors import Conflict, Forbidden, NotFound

from . import Context
from .key_manager import KEY, MOST
from .service_client import ServiceClient

#: What names of our keys begin with.
NAME = "magnetar-"
#: Most secrets of one name: one, and those of conductors that made it at the same time.
PAGE = 100
#: The type of secrets that are certificates.
CERTIFICATE = "certificate"


class BarbicanKeys:
    """*url*: of Barbican, without ``/v1``. *token* gives a token of a service user who may make, read and delete
    secrets of its project; with true, one that was not given before. *ca*: certificates to trust. Raises
    ``InvalidSettings``. Its calls raise ``Unavailable`` while Barbican is away."""

    def __init__(self, url: str, token: Callable[[bool], str], ca: Path | None = None, timeout: float = 60.0) -> None:
        self._client = ServiceClient("key manager", url, "/v1/secrets", token, ca, timeout)

    def certificate(self, context: Context, id: str) -> bytes:
        """See ``services.KeyManager``. It is read with the user's token where there is one, else with the service
        user's, which Barbican must let read it. Raises ``Forbidden``, and ``Conflict`` for a secret of another type."""
        try:
            path = f"/{uuid.UUID(id)}"  # an id is never a path
        except ValueError:
            raise _no_certificate(id) from None
        try:
            told = self._client.json("GET", path, token=context.token)
            if told["secret_type"] != CERTIFICATE:
                raise Conflict(f"The secret {id} of the key manager is no certificate: its type is "
                               f"{told['secret_type']}. Store it with the type certificate.")
            type = (told.get("content_types") or {}).get("default")
            if not type:
                raise _no_certificate(id)
            return self._payload(path, type, context.token)
        except NotFound:
            raise _no_certificate(id) from None
        except Forbidden as refused:
            raise Forbidden(f"{refused.message} Certificates of signed images must be readable for the service user of "
                            f"Magnetar: whose the secret {id} is adds it to the secret's ACL.") from None

    def create_key(self, id: str, like: str | None = None, owner: str | None = None) -> str:
        """See ``services.KeyManager``. Of two that are made at once the first stays."""
        found = self._read(id)
        if found is None:
            known = None if like is None else self._read(like)
            if like is not None and known is None:
                raise NotFound(f"There is no key {like} in the key manager.", kind="key", key=like)
            self._client.json("POST", "", {
                "name": NAME + id, "secret_type": "opaque", "payload_content_type": "text/plain",
                "payload": "\n".join(filter(None, (known[0] if known else secrets.token_hex(KEY), owner)))})
            found = self._read(id)
        if found is None:
            raise Conflict(f"The key {id} was deleted while it was made.")
        return found[0]

    def key(self, context: Context, id: str) -> str:
        """See ``services.KeyManager``."""
        found = self._read(id)
        if found is None:
            raise NotFound(f"There is no key {id} in the key manager.", kind="key", key=id)
        if found[1] and found[1] != context.user_id:
            raise Forbidden(f"The key {id} in the key manager is another user's. Its user must ask.")
        return found[0]

    def delete_key(self, id: str) -> None:
        """See ``services.KeyManager``."""
        for path in self._named(id):
            self._client.json("DELETE", path, accept=(404,))

    def _read(self, id: str) -> tuple[str, str] | None:
        """A key, and the user whose it is, or ""; ``None`` where there is none."""
        for path in self._named(id):
            key, _line, owner = self._payload(path, "text/plain").decode().partition("\n")
            return key, owner
        return None

    def _named(self, id: str) -> list[str]:
        """The paths of the secrets with the name of a key, the first one first."""
        name = NAME + str(uuid.UUID(id))
        found = self._client.json("GET", f"?name={name}&limit={PAGE}")["secrets"]
        own = sorted((one["created"], one["secret_ref"]) for one in found if one["name"] == name)
        return [f"/{uuid.UUID(ref.rpartition('/')[2])}" for _created, ref in own]

    def _payload(self, path: str, type: str, token: str = "") -> bytes:
        with self._client.asked("GET", f"{path}/payload", {"Accept": type}, token=token) as answer:
            return self._client.content(answer, MOST)


def _no_certificate(id: str) -> NotFound:
    return NotFound(f"There is no certificate {id[:80]} in the key manager. Store it in Barbican as a secret of the "
                    "type certificate, and name its uuid.", kind="certificate", key=id[:80])
