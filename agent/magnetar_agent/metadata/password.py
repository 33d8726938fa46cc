# SPDX-License-Identifier: GPL-3.0-or-later
"""The password that a guest posts for its user, encrypted with the user's public key (os-server-password).

It is in the server's document (``state["password"]``), moves with the server, and ``watch`` reports it to clouds. A
guest posts it once; after it was cleared, it may post another.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

PASSWORD = "password"  # noqa: S105 (a key)
#: Seconds that a guest may wait while its server is being changed.
PATIENCE = 20.0


def store_posted_password(host: LocalHost, id: str, password: str) -> tuple[int, str]:
    """Store the encrypted admin *password* that the guest of server *id* has posted. Return the HTTP status of the
    response, and the reason if the password is refused ("" otherwise)."""
    begun = time.monotonic()
    with host.locks.hold("server", id):
        document = host.documents.get("server", id)
        if document is None or document.deleting:
            return 404, "The server is gone."
        if document.state.get(PASSWORD):
            return 409, "There is a password already."
        if time.monotonic() - begun > PATIENCE:
            return 503, "The server is being changed. Try again later."  # the guest may have given up
        if password:
            document.state[PASSWORD] = password
            host.documents.write(document)
    return 200, ""


def clear_posted_password(host: LocalHost, document: Document) -> None:
    """Remove from the server's document the password that the guest has posted. The caller must hold the server's lock.
    """
    if document.state.pop(PASSWORD, None):
        host.documents.write(document)
