# SPDX-License-Identifier: GPL-3.0-or-later
"""The password that a guest leaves for its user, encrypted with the user's public key (os-server-password).

It stands in the server's document (``state["password"]``), goes along when the server moves, and is told to clouds by
``watch``. A guest leaves it once; after it was cleared, it may leave another.
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


def leave(host: LocalHost, id: str, password: str) -> tuple[int, str]:
    """Keep the *password* of server *id*: status of the answer and, where it is refused, the reason."""
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


def clear(host: LocalHost, document: Document) -> None:
    """Forget the password; whoever calls holds the server's lock."""
    if document.state.pop(PASSWORD, None):
        host.documents.write(document)
