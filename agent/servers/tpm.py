# SPDX-License-Identifier: GPL-3.0-or-later
"""TPMs of servers: the secret that what is in them is encrypted with, and their way to another host.

``document.state["tpm_secret"]`` has the secret. It goes with the document, which nobody but root can read; libvirt has
it while a guest starts. libvirt keeps what is in the TPM in a folder of its own, so a cold migration takes a copy in
the server's folder; ``tpm_came`` notes at the target that it is still to be put in its place.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from magnetar_agent.servers import encryption, folder
from magnetar_agent.volumes import attaching
from magnetar_core.server_plan import hardware

if TYPE_CHECKING:
    from magnetar_agent.documents import Document
    from magnetar_agent.host import LocalHost
    from magnetar_agent.task import Task

SECRET, CAME = "tpm_secret", "tpm_came"
#: The copy in the server's folder.
COPY = "tpm.state"


def draw_secret(task: Task) -> None:
    """Draw the secret of a server that is to have a TPM, once."""
    if hardware(task.document.want).get("tpm_version") and SECRET not in task.document.state:
        task.document.state[SECRET] = secrets.token_hex(32)
        task.keep()


def start(host: LocalHost, document: Document, paused: bool = False) -> None:
    """Start the guest, with the secret of its TPM where it has one, and the keys of its encrypted disks and volumes.
    What came of the TPM is put into its place first."""
    path = folder(host, document.id) / COPY
    if document.state.get(CAME):
        host.hypervisor.load_tpm(document.id, path)
        del document.state[CAME]
        host.documents.write(document)
        path.unlink(missing_ok=True)
    secret = document.state[SECRET] if hardware(document.want).get("tpm_version") else None
    own = encryption.of(host, document)
    host.hypervisor.start(document.id, paused, secret, [*([own] if own else []),
                                                        *attaching.keys_of(host, document.id)])


def copy(host: LocalHost, server: Document) -> None:
    """Put a copy of what is in the TPM of a server that is off into its folder, unless the one that came is still
    there. A TPM that the server had under another flavor goes along too."""
    if SECRET in server.state and not server.state.get(CAME):
        host.hypervisor.save_tpm(server.id, folder(host, server.id) / COPY)


def forget_copy(host: LocalHost, server: Document) -> None:
    """Remove the copy of a server that stays."""
    if not server.state.get(CAME):
        (folder(host, server.id) / COPY).unlink(missing_ok=True)


def came(host: LocalHost, server: Document) -> None:
    """Note of a server that has arrived whether such a copy came with it."""
    server.state.pop(CAME, None)
    if (folder(host, server.id) / COPY).exists():
        server.state[CAME] = True
