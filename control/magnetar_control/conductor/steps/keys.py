# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys and secrets of a server that the key manager keeps: the keys of its encrypted disks, the secret of its TPM.

Disks (``hw:ephemeral_encryption``): the first key of a server has the server's uuid in the key manager. Each rebuild
makes another key, after it has saved the key's uuid in the server's request under ``KEYS``. The older keys are deleted
when the rebuild is done. New disks use the last key; existing disks keep their key, which their agent knows.

TPM: ``hw:tpm_secret_security`` says who can get the secret. ``user``: only the server's user. ``host``: the host, which
gets the secret once and keeps it. ``deployment``: any conductor. The uuid of a secret follows from the server's uuid.
Before a secret is made, its owner is saved in the server's request: a request with an owner means that the secret may
exist. The secret stays with the server when its flavor changes, and never goes to other servers.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.conductor.worker.work import ROLES, RunningAction
from magnetar_control.services import Context
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_control.store.servers.servers import TPM_DRAWN, server_tpm_security
from magnetar_core.errors import MagnetarError
from magnetar_core.hardware.merge import DEPLOYMENT, SECURITY, USER, encrypts_disks

#: Name in a server's ``request`` of the uuids of its rebuilds' keys, oldest first.
KEYS: Final = "disk_keys"
log = logging.getLogger(__name__)
#: Namespace of the uuids of secrets; and the field in the agent's document of a server.
TPM_NAMESPACE = uuid.UUID("5f5b3f0e-6f0c-5c1e-8a2b-2f4d7b1c9e63")
TPM_FIELD = "tpm_secret"


def disk_key_field(work: RunningAction) -> dict[str, str]:
    """Return {"disk_key": key} for the agent: the key with which the host encrypts new disks of the server. Empty if
    the disks are not encrypted."""
    if not _is_encrypted(work):
        return {}
    return {"disk_key": work.conductor.services.key_manager.create_key(_key_ids(work)[-1])}


def renewed_disk_key_field(work: RunningAction) -> dict[str, str]:
    """Return {"disk_key": key} with a new key for the disks that a rebuild creates. Empty if the rebuild preserves the
    disks, or if the disks are not encrypted."""
    if not _is_encrypted(work) or work.args["preserve_ephemeral"]:
        return {}
    new, key_ids = str(uuid.uuid5(uuid.UUID(work.id), work.idempotency_key)), _key_ids(work)
    if new not in key_ids:
        _note_keys(work, [*key_ids, new])
    return {"disk_key": work.conductor.services.key_manager.create_key(new)}


def disk_key_of_image(work: RunningAction) -> str | None:
    """Return the uuid of the key that encrypts the root disk of a server and its shelved image; ``None`` if the disk
    and the image are not encrypted."""
    return _key_ids(work)[-1] if _is_encrypted(work) else None


def forget_old_disk_keys(work: RunningAction) -> None:
    """Delete all disk keys of the server except the newest one. Called after a rebuild, when no disk uses the older
    keys."""
    key_ids = _key_ids(work)
    if len(key_ids) > 1 and not work.args["preserve_ephemeral"]:
        _delete_keys(work, key_ids[:-1])
        _note_keys(work, key_ids[-1:])


def forget_disk_keys(work: RunningAction) -> None:
    """Delete all disk keys of a deleted server from the key manager, even if a host that has encrypted disks of the
    server does not answer; the disks on such a host are deleted later."""
    if _is_encrypted(work):
        _delete_keys(work, dict.fromkeys([work.id, *_key_ids(work)]))


def _delete_keys(work: RunningAction, ids: Iterable[str]) -> None:
    for id in ids:
        work.confirm_lease()
        work.conductor.services.key_manager.delete_key(id)


def _is_encrypted(work: RunningAction) -> bool:
    return encrypts_disks(work.flavor, work.server.image)


def _key_ids(work: RunningAction) -> list[str]:
    """Return the uuids of the keys of the server's disks, the oldest first. The last key is in use."""
    return [*(work.request.get(KEYS) or (work.id,))]


def _note_keys(work: RunningAction, ids: list[str]) -> None:
    work.note(request=servers.json_text({**work.request, KEYS: ids}))


def tpm_secret_field(work: RunningAction, hardware: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the field with the secret of the guest's emulated TPM, which the host needs to start the guest. Empty for
    a guest without a TPM. *hardware*: the guest's new hardware; by default the hardware of its flavor. Raises
    ``Forbidden`` if the secret belongs to a user other than the user who requested the action."""
    security = server_tpm_security(work.server) if hardware is None else hardware.get(SECURITY)
    if not security:
        return {}
    drawn = DEPLOYMENT if security == DEPLOYMENT else USER
    if TPM_DRAWN not in work.request:
        work.note(request=servers.json_text({**work.request, TPM_DRAWN: drawn}))
    asks = Context(work.action.user_id, work.action.project_id, ROLES) if security == USER else work.context()
    return {TPM_FIELD: work.conductor.services.key_manager.create_key(
        _tpm_secret_id(work.id), owner=None if drawn == DEPLOYMENT else work.server.user_id, asks=asks)}


def after_boot(conductor: Conductor, server: ServerRow) -> dict[str, str]:
    """Return the field with the TPM's secret for *server*, which is started because its host has rebooted and not
    because a user asked for it. If conductors may not read the secret, return an empty dict: then the server does not
    start, and its host reports the reason."""
    if server_tpm_security(server) != DEPLOYMENT:
        return {}
    try:
        return {TPM_FIELD: conductor.services.key_manager.key(
            Context(server.user_id, server.project_id, ROLES), _tpm_secret_id(server.id))}
    except MagnetarError as error:
        log.warning("server %s: the secret of its TPM: %s", server.id, error.message, extra={"server": server.id})
        return {}


def forget_tpm_secret(work: RunningAction) -> None:
    """Delete the TPM secret of a deleted server from the key manager, if the server had one."""
    if TPM_DRAWN in work.request:
        work.confirm_lease()
        work.conductor.services.key_manager.delete_key(_tpm_secret_id(work.id))


def _tpm_secret_id(server: str) -> str:
    return str(uuid.uuid5(TPM_NAMESPACE, server))
