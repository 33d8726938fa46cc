# SPDX-License-Identifier: GPL-3.0-or-later
"""TPMs of servers: the secret that what is in them is encrypted with, and their way to another host.

Who has the secret, ``tpm_secret_security`` of the hardware says. With ``host`` it stands in the document's state,
sealed as keys of volumes are. With ``user`` and ``deployment`` the key manager of a cloud has it: it comes with the
wish that starts the guest (``GIVEN``), and is in this process only until that is done. libvirt has it while a guest
starts.

libvirt keeps what is in the TPM in a folder of its own, so a cold migration takes a copy in the server's folder;
``tpm_came`` notes at the target that it is still to be put in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.reconcile.documents import CLOUD
from magnetar_agent.servers import folder
from magnetar_agent.servers.disks import encryption
from magnetar_agent.volumes import attaching, keys
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.merge import HOST, SECURITY, USER
from magnetar_core.server_plan import hardware

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

#: The field of the server by which a cloud gives the secret. In a document's state: the secret that this host keeps,
#: sealed; that the server has, or had, a TPM; and that a copy is to be put in its place.
GIVEN, SEALED, HAD, CAME = "tpm_secret", "sealed_tpm_secret", "had_tpm", "tpm_came"
#: The copy in the server's folder.
COPY = "tpm.state"


def security(want: Fields) -> str:
    """Who has the secret of the server's TPM; "" where it has none."""
    parts = hardware(want)
    return str(parts.get(SECURITY, HOST)) if parts.get("tpm_version") else ""


def is_away(want: Fields) -> bool:
    """Whether this host does not keep the secret of the server's TPM."""
    return security(want) not in ("", HOST)


def is_users(want: Fields) -> bool:
    """Whether nobody but the server's user can have it started."""
    return security(want) == USER


def check_given(found: Fields, document: Document | None) -> None:
    """Raise ``InvalidField`` where the secret of the server's TPM is to be elsewhere, and no cloud gives it."""
    if is_away(found) and not found.get(GIVEN) and not (
            document and (CLOUD in document.state or security(document.want) == security(found))):
        raise InvalidField(f"hardware.{SECURITY}", f"can be {security(found)} in a cloud only, whose key manager has "
                           f"the secret. Say {HOST} on a single host, which keeps it", security(found))


def keep_secret(task: Task) -> None:
    """Before a server has a TPM: keep the secret, where this host is to open it by itself: the one that a cloud gave,
    else a new one. Forget that of a server whose secret is elsewhere now."""
    state, given, has = task.document.state, task.operation.given.get(GIVEN), security(task.document.want)
    if has == HOST and SEALED not in state and (given or HAD not in state):
        state[SEALED] = keys.seal(task.host, given or keys.draw())
    elif is_away(task.document.want) and given and SEALED in state:
        del state[SEALED]
    elif not has or HAD in state:
        return
    state[HAD] = True
    task.keep()


def secret(host: LocalHost, document: Document, given: str | None) -> str | None:
    """The secret with which the guest starts, which is the one *given* where this host does not keep it; ``None`` for a
    guest without a TPM. Raises ``Conflict`` where nobody has given it, or it is lost."""
    if not security(document.want):
        return None
    kept = None if is_away(document.want) else keys.opened(host, document, SEALED)
    if found := kept or given:
        return found
    who = "its user" if is_users(document.want) else "its cloud"
    raise Conflict(f"Server {document.name!r} has a TPM whose secret is in the key manager of its cloud (hardware."
                   f"{SECURITY}: {security(document.want)}), and starts when {who} has it started there.")


def start(host: LocalHost, document: Document, paused: bool = False, given: str | None = None) -> None:
    """Start the guest, with the secret of its TPM where it has one, and the keys of its encrypted disks and volumes.
    What came of the TPM is put into its place first. *given*: see ``secret``."""
    opened = secret(host, document, given)
    path = folder(host, document.id) / COPY
    if document.state.get(CAME):
        host.hypervisor.load_tpm(document.id, path)
        del document.state[CAME]
        host.documents.write(document)
        path.unlink(missing_ok=True)
    own = encryption.of(host, document)
    host.hypervisor.start(document.id, paused, opened, [*([own] if own else []),
                                                        *attaching.keys_of(host, document.id)])


def leave(host: LocalHost, server: Document) -> str | None:
    """The secret for the host to which the server goes; ``None`` where this one keeps none."""
    return keys.opened(host, server, SEALED)


def arrive(host: LocalHost, server: Fields, secret: str | None) -> None:
    """Seal the *secret* that came with a *server*, parts of a document, as this host's."""
    server["state"].pop(SEALED, None)
    if secret:
        server["state"][SEALED] = keys.seal(host, secret)


def copy(host: LocalHost, server: Document) -> None:
    """Put a copy of what is in the TPM of a server that is off into its folder, unless the one that came is still
    there. A TPM that the server had under another flavor goes along too."""
    if server.state.get(HAD) and not server.state.get(CAME):
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
