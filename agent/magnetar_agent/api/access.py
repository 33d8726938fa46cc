# SPDX-License-Identifier: GPL-3.0-or-later
"""Authentication and permissions: peer credentials on the unix socket; client certificates and bearer tokens
over TLS."""

from __future__ import annotations

import functools
import grp
import hashlib
import hmac
import os
import pwd
import re
import secrets
import socket
import ssl
import stat
import struct
import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import yaml

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.link.relay import ALPN, common_name
from magnetar_agent.reconcile.documents import write_atomically
from magnetar_agent.setting_values import SCOPES
from magnetar_agent.settings import AgentSettings
from magnetar_core.errors import Conflict, Forbidden, InvalidField, MagnetarError, NotFound, Unauthenticated
from magnetar_core.operations import utc_timestamp

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable
    from pathlib import Path

READ, OPERATE = SCOPES
#: Linux: the supplementary groups of the process at the other end of a unix socket; Python has no name for it.
SO_PEERGROUPS = 59
#: Python's limit: 256 groups. A member of more gets the error that the kernel cannot report its groups.
PEER_GROUPS_BYTES = 1024
SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
#: Stands for the method of a WebSocket: a client of a console types in it.
WEBSOCKET = "opening a console"
PREFIX = "mag_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}")


class InvalidTokens(MagnetarError):
    """The error for a file of bearer tokens that cannot be used."""

    code = "invalid-tokens"


@dataclass(frozen=True)
class Peer:
    """The caller of a connection or request. *scope*: ``read``, ``operate``, or ``None`` if the caller is rejected;
    *refusal* has the reason."""

    name: str
    scope: str | None = None
    refusal: str | None = None
    via: str = "socket"


NOBODY = Peer("nobody", None, None, "tls")


# The unix socket ------------------------------------------------------------------------------------------------
def unix_socket_peer(sock: Any, group: str) -> Peer:
    """Return the caller on the unix socket *sock*. Root, the agent's user and members of *group* get the scope
    ``operate``; other users are rejected."""
    _pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    name = _user(uid)
    if uid in (0, os.geteuid()):
        return Peer(name, OPERATE)
    allowed = group_id(group)
    if allowed is not None and (gid == allowed or allowed in _peer_groups(sock)):
        return Peer(name, OPERATE)
    return Peer(name, None, f"User {name} is neither root nor in group {group}. Run as root, or add the user to the "
                              f"group (usermod -aG {group} {name}) and log in again.")


def _peer_groups(sock: Any) -> tuple[int, ...]:
    packed = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, PEER_GROUPS_BYTES)
    return struct.unpack(f"{len(packed) // struct.calcsize('i')}i", packed)


@functools.lru_cache(256)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def group_id(name: str) -> int | None:
    """Return the numeric id of the group *name*; ``None`` when there is no such group."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


# TLS ------------------------------------------------------------------------------------------------------------
def server_tls_context(settings: AgentSettings, tokens: BearerTokens) -> ssl.SSLContext | None:
    """Return the TLS context of the TCP listener. Return ``None`` if *settings* have no address or no certificate, or
    if no caller could authenticate, because *settings* have no client CA and there are no bearer *tokens*."""
    if not settings.listen or not settings.tls_cert or not settings.tls_key:
        return None
    if not settings.tls_client_ca and not tokens.list():
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1", ALPN])
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
        if settings.tls_client_ca:
            context.load_verify_locations(settings.tls_client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL if tokens.list() else ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise MagnetarError(f"The TLS files of the settings cannot be used: {error}. Check tls_cert, tls_key and "
                            "tls_client_ca.") from error
    return context


def certificate_peer(tls_object: ssl.SSLObject, scopes: dict[str, str]) -> Peer:
    """Return the caller with the verified client certificate of *tls_object*; an anonymous caller if the client sent
    none. *scopes*: the scope (``read`` or ``operate``) by common name of the certificate."""
    if not tls_object.getpeercert():
        return NOBODY
    name = common_name(tls_object)
    scope = scopes.get(name)
    refusal = None if scope else (f"The client certificate for {name!r} is not listed under client_certs in the "
                                  "agent's settings. Add it there with the scope read or operate.")
    return Peer(f"cert:{name}", scope, refusal, "tls")


def of_connection(transport: asyncio.BaseTransport, settings: AgentSettings) -> Peer:
    """Return the caller of a new connection: over TLS by the client certificate, on the unix socket by the user that
    the kernel reports. Over plain TCP, return a caller without a scope, whose requests are rejected."""
    tls_object = transport.get_extra_info("ssl_object")
    if tls_object is not None:
        return certificate_peer(tls_object, settings.client_certs)
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return Peer("nobody", None, "Plain TCP is not offered.", "tcp")
    try:
        return unix_socket_peer(sock, settings.socket_group)
    except OSError as error:
        return Peer("nobody", None, f"The kernel does not say who is calling: {error.strerror or error}.")


# Requests -------------------------------------------------------------------------------------------------------
def admit_caller(caller: Peer, method: str, headers: dict[bytes, bytes], tokens: BearerTokens) -> Peer:
    """Return the caller of a request: the owner of the bearer token in *headers*, if there is one (only over TLS);
    otherwise *caller*, who opened the connection. Raises ``Unauthenticated``, or ``Forbidden`` if the caller's scope
    does not allow the HTTP *method*; the message says how to get access."""
    if caller.via == "tls" and b"authorization" in headers:
        caller = tokens.caller(headers[b"authorization"])
    if caller.refusal:
        raise Forbidden(caller.refusal, caller=caller.name)
    if caller.scope is None and b"x-auth-token" in headers:
        raise Unauthenticated("This is the agent of one host, and X-Auth-Token is a token of a cloud: ask the cloud's "
                              "API with it, or this agent with a token of its own.")
    if caller.scope is None:
        raise Unauthenticated("The agent does not know who asks. Send a client certificate that it trusts, or "
                              "'Authorization: Bearer TOKEN' with a token made by `magnetar token create` on its host.")
    if method not in SAFE:
        require_operate(caller.name, caller.scope, f"{method} changes something")
    origin = headers.get(b"origin")
    if origin and method not in SAFE and origin.partition(b"://")[2] != headers.get(b"host"):
        raise Forbidden("A page of another site sent this request; browsers may not change anything from there.")
    return caller


def require_operate(name: str, scope: str, why: str) -> None:
    """Raise ``Forbidden`` if the caller *name* has only the scope ``read``. *why*: the reason that the message gives.
    """
    if scope == READ:
        raise Forbidden(f"{name} has the scope read, and {why}. Use a token or a certificate with the scope operate.",
                        caller=name, scope=READ)


# Tokens ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class BearerToken:
    """A stored bearer token; only its SHA-256 hash is stored. A token is 256 random bits, so no slower hash is needed.
    """

    name: str
    scope: str
    sha256: str
    created_at: str


class BearerTokens:
    """The bearer tokens in the file *path*. The file is read again whenever it changes, so a revoked token stops
    working immediately."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None
        self._tokens: list[BearerToken] = []
        self._lock = threading.Lock()

    def list(self) -> list[BearerToken]:
        """Return all tokens, sorted by name. Raises ``InvalidTokens`` when other users may read the file, or it is
        malformed."""
        with self._lock:
            try:
                file_status = self.path.stat()
            except FileNotFoundError:
                self._seen, self._tokens = None, []
                return []
            fingerprint = (file_status.st_mtime_ns, file_status.st_size, file_status.st_ino, file_status.st_mode)
            if fingerprint != self._seen:
                self._tokens = _read_tokens(self.path, file_status)
                self._seen = fingerprint
            return [*self._tokens]

    def caller(self, header: bytes) -> Peer:
        """Return the owner of the bearer token in *header*, the value of an ``Authorization`` header. Raises
        ``Unauthenticated`` for a malformed header or an unknown token."""
        scheme, _space, secret = header.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise Unauthenticated("The Authorization header must be 'Bearer TOKEN'.")
        digest = _digest(secret.strip())
        matched = None
        for token in self.list():  # compare all, so that the time does not reveal a near match
            if hmac.compare_digest(token.sha256, digest):
                matched = token
        if matched is None:
            raise Unauthenticated("This token is not known here: mistyped, revoked, made on another host, or one of a "
                                  "cloud (whose API is elsewhere). `magnetar token list` on the agent's host shows the "
                                  "names of its tokens.")
        return Peer(f"token:{matched.name}", matched.scope, None, "tls")

    def create(self, name: str, scope: str) -> str:
        """Create a token for the caller *name* with this *scope* (read or operate), store its hash, and return the
        token. The token cannot be read again later."""
        if not _NAME.fullmatch(name):
            raise InvalidField("name", "must be 1 to 63 letters, digits and . _ @ -", name)
        if scope not in SCOPES:
            raise InvalidField("scope", f"must be one of {', '.join(SCOPES)}", scope)
        tokens = self.list()
        if any(token.name == name for token in tokens):
            raise Conflict(f"There is a token called {name!r} already. Revoke it first, or choose another name.")
        secret = PREFIX + secrets.token_urlsafe(32)
        self._write([*tokens, BearerToken(name, scope, _digest(secret), utc_timestamp())])
        return secret

    def revoke(self, name: str) -> None:
        """Remove the token *name*. Raises ``NotFound``."""
        tokens = self.list()
        remaining = [token for token in tokens if token.name != name]
        if len(remaining) == len(tokens):
            names = ", ".join(token.name for token in tokens) or "none"
            raise NotFound(f"There is no token called {name!r}; there are: {names}.")
        self._write(remaining)

    def _write(self, tokens: Iterable[BearerToken]) -> None:
        content = yaml.safe_dump({"tokens": [asdict(token) for token in sorted(tokens, key=lambda t: t.name)]})
        make_state_folder(self.path.parent, 0o755)
        write_atomically(self.path, content.encode())


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _read_tokens(path: Path, file_status: os.stat_result) -> list[BearerToken]:
    if stat.S_IMODE(file_status.st_mode) & 0o077:
        raise InvalidTokens(f"{path} can be read by others than its owner. Run: chmod 600 {path}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {"tokens": []}
        tokens = [BearerToken(**{key: str(value) for key, value in token.items()}) for token in content["tokens"]]
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, KeyError, AttributeError) as error:
        raise InvalidTokens(f"{path} makes no sense ({type(error).__name__}). Create it again with `magnetar token`.") \
            from error
    if any(token.scope not in SCOPES for token in tokens):
        raise InvalidTokens(f"{path}: each scope must be one of {', '.join(SCOPES)}.")
    return tokens
