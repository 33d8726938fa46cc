# SPDX-License-Identifier: GPL-3.0-or-later
"""The key manager Barbican (API v1) as a ``services.KeyManager``.

Certificates are users' secrets. Keys are secrets of the service user's project. Barbican chooses the uuids of secrets,
so the name of a key's secret contains the key's uuid. The secret's payload is the text that ``KeyStore`` describes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from magnetar_core.errors import Conflict, Forbidden, NotFound

from . import Context
from .key_manager import MOST, KeyStore
from .service_client import ServiceClient

#: The prefix of the names of the secrets that hold keys.
NAME = "magnetar-"
#: Maximum number of secrets of one name: usually one; more if conductors created the key at the same time.
PAGE = 100
#: The type of secrets that are certificates.
CERTIFICATE = "certificate"


class BarbicanKeys(KeyStore):
    """The key manager service with Barbican as its store. All methods raise ``Unavailable`` while Barbican does not
    answer.

    *url*: of Barbican, without ``/v1``. *token*: returns a token of a service user who may create, read and delete
    secrets of its project; called with ``True``, a new token. *ca*: a file with the CA certificates to trust. Raises
    ``InvalidSettings``.
    """

    def __init__(self, url: str, token: Callable[[bool], str], ca: Path | None = None, timeout: float = 60.0) -> None:
        self._client = ServiceClient("key manager", url, "/v1/secrets", token, ca, timeout)

    def certificate(self, context: Context, id: str) -> bytes:
        """Return the X.509 certificate with this uuid, PEM or DER. The request to Barbican uses the token of *context*;
        if the caller has no token, the request uses a token of the service user, who then needs permission to read the
        certificate. Raises ``Forbidden``, and ``Conflict`` for a secret that is not a certificate."""
        try:
            path = f"/{uuid.UUID(id)}"  # an id is never a path
        except ValueError:
            raise _no_certificate(id) from None
        try:
            secret = self._client.json("GET", path, token=context.token)
            if secret["secret_type"] != CERTIFICATE:
                raise Conflict(f"The secret {id} of the key manager is no certificate: its type is "
                               f"{secret['secret_type']}. Store it with the type certificate.")
            type = (secret.get("content_types") or {}).get("default")
            if not type:
                raise _no_certificate(id)
            return self._payload(path, type, context.token)
        except NotFound:
            raise _no_certificate(id) from None
        except Forbidden as refused:
            raise Forbidden(f"{refused.message} Certificates of signed images must be readable for the service user of "
                            f"Magnetar: whose the secret {id} is adds it to the secret's ACL.") from None

    def delete_key(self, id: str) -> None:
        """Delete a key; do nothing if it does not exist. See ``services.KeyManager``."""
        for path in self._secret_paths(id):
            self._client.json("DELETE", path, accept=(404,))

    def _text(self, id: str) -> str | None:
        paths = self._secret_paths(id)
        return self._payload(paths[0], "text/plain").decode() if paths else None

    def _store(self, id: str, text: str) -> None:
        self._client.json("POST", "", {"name": NAME + id, "secret_type": "opaque", "payload_content_type": "text/plain",
                                       "payload": text})

    def _secret_paths(self, id: str) -> list[str]:
        """Return the URL paths of all Barbican secrets that contain the key *id*, the oldest first."""
        name = NAME + str(uuid.UUID(id))
        secrets = self._client.json("GET", f"?name={name}&limit={PAGE}")["secrets"]
        named_secrets = sorted((secret["created"], secret["secret_ref"]) for secret in secrets
                               if secret["name"] == name)
        return [f"/{uuid.UUID(ref.rpartition('/')[2])}" for _created, ref in named_secrets]

    def _payload(self, path: str, type: str, token: str = "") -> bytes:
        with self._client.send("GET", f"{path}/payload", {"Accept": type}, token=token) as answer:
            return self._client.content(answer, MOST)


def _no_certificate(id: str) -> NotFound:
    return NotFound(f"There is no certificate {id[:80]} in the key manager. Store it in Barbican as a secret of the "
                    "type certificate, and name its uuid.", kind="certificate", key=id[:80])
