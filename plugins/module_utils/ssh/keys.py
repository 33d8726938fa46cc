# SPDX-License-Identifier: GPL-3.0-or-later
"""SSH authentication: keys of the SSH agent and key files, in the order of ``ssh``."""

from __future__ import annotations

import base64
import os

from ..core.errors import Unreachable


def authenticate_user(library, transport, target, user):
    """Log in as *user* on *transport*, with one of the keys that are configured for *target* (a ``Hop``). *library*:
    Paramiko. Raises ``Unreachable`` with a list of the keys that were tried.
    """
    tried, agent = [], None
    try:
        agent = library.Agent()
    except (library.SSHException, OSError) as error:
        _note_failure(tried, "SSH agent", error)
    try:
        for key_label, load in _candidates(library, target, agent):
            key = _load_key(library, key_label, load, tried)
            if key is not None and _is_accepted(library, transport, user, key_label, key, tried):
                return
            if not transport.is_active():
                tried.append("then the server ended the connection (too many keys? name the right one)")
                break
    finally:
        if agent is not None:
            agent.close()
    raise _denied(target, user, tried)


def _candidates(library, target, agent):
    """Yield the keys to try, in ssh's order: tuples of a label for error messages and a function that loads the key.
    *target*: a ``Hop``. *agent*: Paramiko's client of the SSH agent, or ``None``.
    """
    offered = {key.asbytes(): key for key in (agent.get_keys() if agent else ())}
    done = set()
    for path in target.identities:
        blob = _public(path)
        if blob in offered:
            done.update((path, blob))
            yield "%s (from the SSH agent)" % path, lambda blob=blob: offered[blob]
    if not target.only:
        for blob, key in offered.items():
            if blob not in done:
                yield "SSH agent's key %s" % (getattr(key, "comment", "") or key.get_name()), lambda key=key: key
    for path in target.identities:
        if path not in done and (os.path.exists(path) or target.only):
            yield path, lambda path=path: _from_file(library, path)


def _public(path):
    """Return the public key in the file ``path.pub`` or *path*, as bytes; ``None`` if neither file contains one."""
    for name in (path + ".pub", path):
        try:
            with open(name, encoding="ascii") as stream:
                return base64.b64decode(stream.readline().split()[1], validate=True)
        except (OSError, ValueError, IndexError):
            continue
    return None


def _from_file(library, path):
    """Return the private key in the file *path*, with its certificate if there is one."""
    for kind in (library.Ed25519Key, library.ECDSAKey, library.RSAKey):
        try:
            key = kind.from_private_key_file(path)
        except library.PasswordRequiredException:
            raise
        except (library.SSHException, ValueError, IndexError):
            continue
        if os.path.exists(path + "-cert.pub"):
            key.load_certificate(path + "-cert.pub")
        return key
    raise library.SSHException("it is no private key that Paramiko can read")


def _note_failure(tried, key_label, why):
    tried.append("%s: %s" % (key_label, why))


def _load_key(library, key_label, load, tried):
    try:
        return load()
    except library.PasswordRequiredException:
        _note_failure(tried, key_label, "it is encrypted, and no SSH agent has it (`ssh-add` adds it)")
    except OSError as error:
        _note_failure(tried, key_label, error.strerror)
    except library.SSHException as error:
        _note_failure(tried, key_label, error)
    return None


def _is_accepted(library, transport, user, key_label, key, tried):
    try:
        further = transport.auth_publickey(user, key)
    except library.BadAuthenticationType as error:
        _note_failure(tried, key_label, "the server takes %s only" % ", ".join(error.allowed_types))
    except library.AuthenticationException as error:
        _note_failure(tried, key_label, "refused" if transport.is_active() else error)
    else:
        if not further:
            return True
        _note_failure(tried, key_label, "accepted, but the server wants %s as well, which is not possible here"
                      % ", ".join(further))
    return False


def _denied(target, user, tried):
    return Unreachable(
        "%s does not let the user %s in. Tried: %s. Give the private key's file as ssh_private_key, or add it to the "
        "SSH agent (`ssh-add`); its public half belongs into ~%s/.ssh/authorized_keys there (`ssh-copy-id`)."
        % (target.label, user, "; ".join(tried) or "nothing, as there is neither a key file nor an SSH agent",
           user))
