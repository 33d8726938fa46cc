# SPDX-License-Identifier: GPL-3.0-or-later
"""TPMs of servers: the secret that encrypts their state, and their move to another host.

``tpm_secret_security`` of the hardware says where the secret is. With ``host`` it is in the document's state, sealed as
keys of volumes are. With ``user`` and ``deployment`` it is in the key manager of a cloud: it comes with the request
that starts the guest (``GIVEN``), and stays in this process only until that is done. libvirt has it while a guest
starts.

libvirt keeps the state of the TPM in a folder of its own, so a cold migration takes a copy in the server's folder;
``tpm_came`` notes on the target that the copy must still be loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.reconcile.documents import CLOUD
from magnetar_agent.servers import server_folder
from magnetar_agent.servers.disks import encryption
from magnetar_agent.volumes import attaching, keys
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.hardware.merge import HOST, SECURITY, USER
from magnetar_core.server_plan import server_hardware

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

#: The field of the server with the secret from a cloud. In a document's state: the secret that this host keeps, sealed;
#: that the server has, or had, a TPM; and that a copy must be loaded.
GIVEN, SEALED, HAD, CAME = "tpm_secret", "sealed_tpm_secret", "had_tpm", "tpm_came"
#: The copy in the server's folder.
COPY = "tpm.state"


def tpm_security(want: Fields) -> str:
    """Return the setting of the server's hardware for where the secret of its TPM is stored: ``host`` (this host),
    ``user`` or ``deployment`` (the cloud's key manager); "" if the server has no TPM. *want*: the server's desired
    fields."""
    parts = server_hardware(want)
    return str(parts.get(SECURITY, HOST)) if parts.get("tpm_version") else ""


def is_away(want: Fields) -> bool:
    """Return whether the server has a TPM whose secret is stored in the cloud's key manager, not on this host."""
    return tpm_security(want) not in ("", HOST)


def is_users(want: Fields) -> bool:
    """Return whether only the server's user can read the TPM's secret from the key manager. Then only this user can
    start the server."""
    return tpm_security(want) == USER


def check_tpm_secret(desired: Fields, document: Document | None) -> None:
    """Raise ``InvalidField`` if the new fields *desired* store the TPM's secret in a key manager, but no control plane
    provides the secret for this server, as on a stand-alone host. *document*: the existing server; ``None`` for a new
    one."""
    if is_away(desired) and not desired.get(GIVEN) and not (
            document and (CLOUD in document.state or tpm_security(document.want) == tpm_security(desired))):
        raise InvalidField(f"hardware.{SECURITY}",
                           f"can be {tpm_security(desired)} in a cloud only, whose key manager has "
                           f"the secret. Say {HOST} on a single host, which keeps it", tpm_security(desired))


def keep_secret(task: Task) -> None:
    """Store the secret of the server's TPM, encrypted, in the server's document, if its TPM setting is ``host`` and the
    document has no secret. This is the secret in the request; a new TPM gets a random secret if the request has none.
    If the cloud's key manager stores the secret from now on, remove it from the document."""
    state, cloud_secret, has = task.document.state, task.operation.given.get(GIVEN), tpm_security(task.document.want)
    if has == HOST and SEALED not in state and (cloud_secret or HAD not in state):
        state[SEALED] = keys.seal_key(task.host, cloud_secret or keys.draw_key())
    elif is_away(task.document.want) and cloud_secret and SEALED in state:
        del state[SEALED]
    elif not has or HAD in state:
        return
    state[HAD] = True
    task.keep()


def open_tpm_secret(host: LocalHost, document: Document, cloud_secret: str | None) -> str | None:
    """Return the decrypted secret of the server's TPM, needed to start the guest; ``None`` for a guest without a TPM.
    *cloud_secret*: the secret in the request, used if this host does not store it. Raises ``Conflict`` if the secret is
    missing."""
    if not tpm_security(document.want):
        return None
    own_secret = None if is_away(document.want) else keys.open_sealed_key(host, document, SEALED)
    if tpm_secret := own_secret or cloud_secret:
        return tpm_secret
    who = "its user" if is_users(document.want) else "its cloud"
    raise Conflict(f"Server {document.name!r} has a TPM whose secret is in the key manager of its cloud (hardware."
                   f"{SECURITY}: {tpm_security(document.want)}), and starts when {who} has it started there.")


def start_guest(host: LocalHost, document: Document, paused: bool = False, cloud_secret: str | None = None) -> None:
    """Start the guest. libvirt gets the secret of its TPM and the keys of its encrypted disks and volumes; a saved TPM
    state that came with a migration is loaded first. *paused*: leave the guest's CPUs stopped. *cloud_secret*: the
    TPM's secret, if the cloud stores it."""
    opened = open_tpm_secret(host, document, cloud_secret)
    path = server_folder(host, document.id) / COPY
    if document.state.get(CAME):
        host.hypervisor.load_tpm(document.id, path)
        del document.state[CAME]
        host.documents.write(document)
        path.unlink(missing_ok=True)
    disk_key = encryption.open_disk_key(host, document)
    host.hypervisor.start(document.id, paused, opened, [*([disk_key] if disk_key else []),
                                                        *attaching.keys_of(host, document.id)])


def export_tpm_secret(host: LocalHost, server: Document) -> str | None:
    """Return the decrypted TPM secret for the target host of a migration; ``None`` if this host stores no secret."""
    return keys.open_sealed_key(host, server, SEALED)


def import_tpm_secret(host: LocalHost, server: Fields, secret: str | None) -> None:
    """Store the TPM *secret*, encrypted with this host's key, in *server*, the document of a server that migrates to
    this host."""
    server["state"].pop(SEALED, None)
    if secret:
        server["state"][SEALED] = keys.seal_key(host, secret)


def copy_tpm_state(host: LocalHost, server: Document) -> None:
    """Save the TPM state of a stopped server to a file in the server's folder, from which it is copied to another host.
    A file from an earlier migration that was not loaded yet is not overwritten."""
    if server.state.get(HAD) and not server.state.get(CAME):
        host.hypervisor.save_tpm(server.id, server_folder(host, server.id) / COPY)


def forget_copy(host: LocalHost, server: Document) -> None:
    """Remove the saved TPM state after a failed migration, unless it came with an earlier migration and must still be
    loaded."""
    if not server.state.get(CAME):
        (server_folder(host, server.id) / COPY).unlink(missing_ok=True)


def note_tpm_copy(host: LocalHost, server: Document) -> None:
    """Store in the document of *server*, after its migration to this host, whether a saved TPM state came with it and
    must be loaded at the next start."""
    server.state.pop(CAME, None)
    if (server_folder(host, server.id) / COPY).exists():
        server.state[CAME] = True
