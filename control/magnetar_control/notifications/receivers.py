# SPDX-License-Identifier: GPL-3.0-or-later
"""Receivers of notifications, from the settings: URLs, and a log. Only the operator's settings name a URL."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import ssl
import urllib.parse
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple, Protocol

import orjson

from magnetar_control import http_client
from magnetar_control.settings import Settings
from magnetar_control.store.actions.event_rows import STREAM
from magnetar_core.errors import InvalidSettings

log = logging.getLogger("magnetar.notifications")
log.setLevel(logging.INFO)  # the log is a receiver, independent of log_level
#: The name of the receiver that is the log.
LOG = "log"
#: Answers of a receiver that cannot process a notification, now or later: it is dropped.
REFUSALS = (400, 413, 415, 422)
#: Bytes of an answer that are read and ignored, so that the receiver can close properly.
READ = 64 * 1024
AGENT = "magnetar-notifications"


class NotSent(Exception):
    """The error that a receiver has not accepted a notification, but may accept it later. The text is the reason,
    without secrets."""


class Refused(Exception):
    """The error that a receiver will never accept a notification. The text is the reason."""


class Receiver(Protocol):
    """The interface of the receivers to which notifications are sent."""

    @property
    def name(self) -> str:
        """Return the receiver's name. Waiting notifications are stored in the database under this name."""

    def send(self, message: str) -> None:
        """Send one notification (JSON text). Raises ``NotSent``, ``Refused``."""


class UrlReceiver(NamedTuple):
    """A receiver that gets each notification as JSON in a POST request to a URL. ``token``: the file with the bearer
    token for these requests."""

    name: str
    url: urllib.parse.SplitResult
    trust: ssl.SSLContext
    timeout: float
    token: Path | None = None

    def send(self, message: str) -> None:
        """Post a notification. A status from 200 to 299 means that it was accepted. The response body is ignored, and
        redirects are not followed. Raises ``NotSent``, ``Refused``."""
        headers = {"Content-Type": "application/json", "User-Agent": AGENT}
        try:
            if self.token:
                headers["Authorization"] = f"Bearer {self.token.read_text(encoding='ascii').strip()}"
        except (OSError, ValueError) as error:
            raise NotSent(f"the file with its token, {self.token}, cannot be read ({type(error).__name__})") from None
        try:
            with http_client.timed_connection(self.url, self.trust, self.timeout, self.timeout) as connection:
                connection.request("POST", http_client.request_target(self.url), message.encode(), headers)
                answer = connection.getresponse()
                with contextlib.suppress(OSError, HTTPException, ValueError):  # only the status counts
                    answer.read(READ)
        except (OSError, HTTPException, ValueError) as error:
            raise NotSent(f"it does not answer properly or in time ({type(error).__name__})") from None
        if answer.status in REFUSALS:
            raise Refused(f"it refused it (status {answer.status})")
        if not 200 <= answer.status < 300:
            redirects = ", a redirect, which is not followed" if 300 <= answer.status < 400 else ""
            raise NotSent(f"it answered status {answer.status}{redirects}")


class LogReceiver(NamedTuple):
    """A receiver that appends each notification as a JSON line to the file *path*; if *path* is ``None``, to the
    service's own log."""

    path: Path | None
    name: str = LOG

    def send(self, message: str) -> None:
        """Append a notification to the log. A file is synced to disk before this returns. Raises ``NotSent``."""
        if self.path is None:
            notification = orjson.loads(message)
            log.info("%s", notification["event_type"], extra={"notification": notification})
            return
        try:
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            with os.fdopen(file, "wb") as lines:
                size = os.fstat(file).st_size
                if size and os.pread(file, 1, size - 1) != b"\n":  # half a line, from a crash or a full disk
                    lines.write(b"\n")
                lines.write(message.encode() + b"\n")
                lines.flush()
                os.fsync(lines.fileno())
        except OSError as error:
            raise NotSent(f"{self.path} cannot be written: {error.strerror}") from None


def receivers_of(settings: Settings) -> dict[str, Receiver]:
    """Return the receivers of the settings, by name. Raises ``InvalidSettings``."""
    receivers: dict[str, Receiver] = {receiver.name: receiver for receiver in _urls(settings)}
    for name in settings.notification_token_files:
        if name not in receivers:
            raise InvalidSettings(f"notification_token_files: there is no {name!r} among notification_urls.")
    if settings.notification_log:
        path = None if settings.notification_log == "-" else Path(settings.notification_log)
        if path is not None and not path.is_absolute():
            raise InvalidSettings("notification_log must be an absolute path, or - for the service's own log.")
        receivers[LOG] = LogReceiver(path)
    return receivers


def _urls(settings: Settings) -> Iterator[UrlReceiver]:
    if not settings.notification_urls:
        return
    certificates = settings.notification_ca_cert
    try:
        trust = ssl.create_default_context(cafile=str(certificates) if certificates else None)
    except OSError as error:
        raise InvalidSettings(f"notification_ca_cert: {certificates} cannot be used: {error}") from None
    for name, text in settings.notification_urls.items():
        token = settings.notification_token_files.get(name)
        url = _url(str(name), str(text), bool(token), http=settings.notification_allow_http)
        yield UrlReceiver(str(name), url, trust, settings.notification_timeout, _token(str(name), token))


def _url(name: str, text: str, token: bool, *, http: bool) -> urllib.parse.SplitResult:
    """Return the parsed URL *text* of the receiver *name*. *token*: whether requests to the receiver contain a bearer
    token. *http*: whether http is also allowed if the receiver is on another machine. Raises ``InvalidSettings``."""
    if not name or len(name) > 64 or name in (LOG, STREAM):
        raise InvalidSettings(f"notification_urls: {name!r} is no name of a receiver: it has up to 64 characters, and "
                              f"is not {LOG!r} or {STREAM!r}.")
    try:
        url = urllib.parse.urlsplit(text)
        good = url.scheme in ("http", "https") and url.hostname and url.port != 0
        good = good and text.isascii() and text.isprintable() and " " not in text  # other URLs cannot be requested
    except ValueError:
        good = False
    if not good:
        raise InvalidSettings(f"notification_urls: {name!r} must have an http or https URL, in ASCII "
                              "without blanks (%20), with a port above 0 where it has one.")
    if url.username or url.password:
        raise InvalidSettings(f"notification_urls: the URL of {name!r} must be without user and password; set "
                              "notification_token_files to have it know who sends.")
    if url.scheme == "http" and not _is_loopback(str(url.hostname)):
        if token:
            raise InvalidSettings(f"notification_urls: {name!r} must be https, since it is sent a token "
                                  "(notification_token_files).")
        if not http:
            raise InvalidSettings(f"notification_urls: {name!r} must be https, or on this machine's loopback; "
                                  "notification_allow_http lets everybody on the way read what is sent.")
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(name: str, text: str | None) -> Path | None:
    """Return *text*, the path of the file with the bearer token for the receiver *name*, as a ``Path``; ``None`` if
    *text* is ``None``. Raises ``InvalidSettings``."""
    if text is None:
        return None
    path = Path(str(text))
    try:
        content, mode = path.read_text(encoding="ascii").strip(), path.stat().st_mode
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"notification_token_files: the file of {name!r} cannot be read: {error}") from None
    if mode & 0o007:
        raise InvalidSettings(f"notification_token_files: {path} is open to everybody on this machine; give it mode "
                              "0600.")
    if not content or not content.isprintable():
        raise InvalidSettings(f"notification_token_files: {path} must have one line with the token.")
    return path
