# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of servers whose own disks are encrypted (``hw:ephemeral_encryption``), which the key manager makes.

The first key of a server has the server's uuid in the key manager. Each rebuild draws another: its uuid is noted in the
request that made the server, below ``KEYS``, before it is made, and the older keys are forgotten when the rebuild is
done. The last key is the one with which disks are made; agents keep it for those that there are.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import orjson

from magnetar_control.conductor.worker.work import Work
from magnetar_control.store.servers import servers
from magnetar_core.hardware.merge import encrypts

#: Uuids of the keys of rebuilds, oldest first, in a server's ``request``.
KEYS = "disk_keys"


def given(work: Work) -> dict[str, str]:
    """The field of the agent's server that says with which key its disks are made; nothing where they are plain."""
    if not _is_encrypted(work):
        return {}
    return {"disk_key": work.conductor.services.key_manager.create_key(_known(work)[-1])}


def renewed(work: Work) -> dict[str, str]:
    """The same for a rebuild, with a key of its own. Disks that stay as they are keep the server's key."""
    if not _is_encrypted(work) or work.args["preserve_ephemeral"]:
        return {}
    new, known = str(uuid.uuid5(uuid.UUID(work.id), work.idempotency_key)), _known(work)
    if new not in known:
        _note(work, [*known, new])
    return {"disk_key": work.conductor.services.key_manager.create_key(new)}


def of_image(work: Work) -> str | None:
    """The uuid of the key with which the image of a shelved server is encrypted, as its root disk is; ``None`` for one
    in clear text."""
    return _known(work)[-1] if _is_encrypted(work) else None


def settle(work: Work) -> None:
    """A rebuild is done: the keys before the last one open nothing any more."""
    known = _known(work)
    if len(known) > 1 and not work.args["preserve_ephemeral"]:
        _forget(work, known[:-1])
        _note(work, known[-1:])


def forget(work: Work) -> None:
    """The server is removed, and so are its keys; a host that is away removes what they have opened later."""
    if _is_encrypted(work):
        _forget(work, dict.fromkeys([work.id, *_known(work)]))


def _forget(work: Work, ids: Iterable[str]) -> None:
    for id in ids:
        work.confirm_lease()
        work.conductor.services.key_manager.delete_key(id)


def _is_encrypted(work: Work) -> bool:
    return encrypts(work.flavor, orjson.loads(work.server.image))


def _known(work: Work) -> list[str]:
    """The uuids of its keys, the last one in use last."""
    found: list[str] = work.request.get(KEYS) or [work.id]
    return found


def _note(work: Work, ids: list[str]) -> None:
    work.note(request=servers.text({**work.request, KEYS: ids}))
