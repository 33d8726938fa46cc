# SPDX-License-Identifier: GPL-3.0-or-later
"""Key pairs: public keys of users, validated, with Nova's fingerprints. A pair can be generated here; its private key
is returned once and never stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar_control.compute.caller import Caller, Owner
from magnetar_control.notifications import payloads
from magnetar_control.store.accounts import keypairs
from magnetar_control.store.accounts.keypairs import KeypairRow
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from . import quotas

RULE = "os_compute_api:os-keypairs:"


class NewKeypair(NamedTuple):
    """A new key pair. *private_key*: the generated private key; ``None`` if the user has supplied the public key."""

    name: str
    user_id: str
    type: str
    public_key: str
    fingerprint: str
    private_key: str | None = None


def list_keypairs(caller: Caller, user: str | None = None, limit: int | None = None,
                  marker: str | None = None) -> Sequence[KeypairRow]:
    """Return the rows of the key pairs of *user* (default: the caller), sorted by name: at most *limit*, beginning
    after the key pair named *marker*. Raises ``InvalidRequest`` when *marker* does not exist."""
    user = _checked_user(caller, "index", user)
    rows = caller.fetch(keypairs.fetch_keypair_rows, user, limit, marker)
    if rows is None:
        raise InvalidRequest(f"marker [{str(marker)[:255]}] not found")
    return rows


def _checked_user(caller: Caller, action: str, user: str | None) -> str:
    """Return the id of *user*, or of the caller if *user* is ``None``. Raises ``Forbidden`` when the policy rule of
    *action* does not allow the caller to act for that user."""
    user = user or caller.context.user_id
    caller.check_policy(RULE + action, Owner(caller.project, user))
    return user


def show_keypair(caller: Caller, name: str, user: str | None = None) -> KeypairRow:
    """Return the row of the key pair *name* of *user* (default: the caller). Raises ``NotFound``."""
    user = _checked_user(caller, "show", user)
    row = caller.fetch(keypairs.fetch_keypair_row, user, name)
    if row is None:
        raise _keypair_missing(name, user)
    return row


def _keypair_missing(name: str, user: str) -> NotFound:
    return NotFound(f"Keypair {name[:255]} not found for user {user}")


def create_keypair(caller: Caller, name: str, public_key: str | None = None, *, type: str = "ssh",
                   user_id: str | None = None) -> NewKeypair:
    """Create a key pair for *user_id* (default: the caller) from *public_key*, or generate the keys if *public_key* is
    ``None``; return the key pair. *type*: ``ssh`` or ``x509``. Raises ``Conflict`` when the user has a key pair of that
    name, ``Forbidden`` when the user's quota is used up."""
    user = _checked_user(caller, "create", user_id)
    most = quotas.quota_limits(caller, user=user)["key_pairs"]
    with caller.cloud.store.api.read() as connection:  # before generating a pair for nothing
        if keypairs.fetch_keypair_row(connection, user, name) is not None:
            raise _keypair_exists(name)
        quotas.check_keypair_quota(connection, user, most)
    from . import key_material  # needs 10 MiB of libraries, which not every process uses

    private = None
    if public_key is None:
        private, public_key = key_material.generate_key_pair(type, user)
    keypair = NewKeypair(name, user, type, public_key, key_material.public_key_fingerprint(type, public_key), private)
    with caller.cloud.store.api.write() as connection:
        quotas.check_keypair_quota(connection, user, most, locked=True)
        row = {"user_id": user, "name": name, "type": type, "fingerprint": keypair.fingerprint,
               "public_key": public_key}
        new = keypairs.insert_keypair_row(connection, **row)
        if new:
            event = "create" if private else "import"
            caller.notify(connection, lambda: payloads.keypair_payload(row), f"keypair.{event}.start",
                          f"keypair.{event}.end")
    if not new:
        raise _keypair_exists(name)
    return keypair


def _keypair_exists(name: str) -> Conflict:
    return Conflict(f"Key pair '{name}' already exists.")


def delete_keypair(caller: Caller, name: str, user: str | None = None) -> None:
    """Delete the key pair *name* of *user* (default: the caller). Servers that were created with it are not changed.
    Raises ``NotFound``."""
    user = _checked_user(caller, "delete", user)
    with caller.cloud.store.api.write() as connection:
        row = keypairs.fetch_keypair_row(connection, user, name) if caller.cloud.notifications else None
        if row is not None:
            caller.notify(connection, lambda: payloads.keypair_payload(row.column_values()), "keypair.delete.start",
                          "keypair.delete.end")
        if not keypairs.remove_keypair_row(connection, user, name):
            raise _keypair_missing(name, user)


def check_public_key(kind: str, public: str) -> None:
    """Raise ``InvalidField`` unless *public* is a public key (*kind* ``ssh``) or a certificate (*kind* ``x509``)."""
    from . import key_material

    key_material.public_key_fingerprint(kind, public)
