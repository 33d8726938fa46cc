# SPDX-License-Identifier: GPL-3.0-or-later
"""Sources of the content of an image: a file of the host, or an http(s) address."""

from __future__ import annotations

import http.client
import os
import stat
import urllib.error
import urllib.request
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from magnetar_core.errors import InvalidField, TooLarge, Unreachable
from magnetar_core.image_format import PACK_OVF

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

CHUNK = 256 * 1024
TIMEOUT = 30.0  # seconds without a byte
REDIRECTS = 5


class Opened:
    """The open source of an image. *chunks*: iterator over the content. *length*: bytes, ``None`` if unknown. *origin*:
    the attributes that identify a local file's content (``file_origin``); ``None`` for a URL."""

    def __init__(self, chunks: Iterator[bytes], length: int | None, origin: dict[str, Any] | None = None) -> None:
        self.chunks, self.length, self.origin = chunks, length, origin


@contextmanager
def open_source(source: dict[str, Any], folders: tuple[Path, ...], limit: int) -> Iterator[Opened]:
    """Open *source*, ``{"path"}`` or ``{"url"}``, and yield it. A file must be in one of *folders*. Raises ``TooLarge``
    if the content is longer than *limit* bytes."""
    if "path" in source:
        with open_file(source["path"], folders) as file:
            size = os.fstat(file.fileno()).st_size
            _check_length(size, limit, "source.path")
            yield Opened(iter(partial(file.read, CHUNK), b""), size, file_origin(source["path"], file))
    else:
        with open_url(source["url"]) as answer:
            text = answer.headers.get("Content-Length", "")
            length = int(text) if text.isdecimal() and len(text) < 20 else None
            _check_length(length, limit, "source.url")
            yield Opened(_loaded(answer, source["url"]), length)


def _check_length(length: int | None, limit: int, field: str) -> None:
    if length is not None and length > limit:
        raise TooLarge(f"{field}: the content has {length} bytes, and this host takes images up to {limit}. Raise "
                       "image_max_bytes in the agent's settings if that is too little.")


def open_file(path: str, folders: tuple[Path, ...]) -> BufferedReader:
    """Return the regular file *path*, open for reading. Raises ``InvalidField`` unless it is in one of *folders*, with
    symbolic links resolved.

    The check is repeated for the open file (its path in /proc), so no process can replace a link between check and use.
    """
    where = ", ".join(map(str, folders)) or "none"
    rule = f"must be a file in one of the agent's image_paths ({where})"
    if not Path(path).is_absolute() or not any(Path(os.path.realpath(path)).is_relative_to(_real(f)) for f in folders):
        raise InvalidField("source.path", rule, path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise InvalidField("source.path", f"cannot be opened on the host: {error.strerror}", path) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise InvalidField("source.path", f"is a folder, and must be a file. Is it an exported OVF? {PACK_OVF}",
                               path)
        if not stat.S_ISREG(mode):
            raise InvalidField("source.path", "must be a regular file", path)
        real = Path(f"/proc/self/fd/{descriptor}").readlink()
        if not any(real.is_relative_to(_real(folder)) for folder in folders):
            raise InvalidField("source.path", rule, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _real(folder: Path) -> Path:
    return Path(os.path.realpath(folder))


def file_origin(path: str, file: BufferedReader) -> dict[str, Any]:
    """Return attributes of the file, such as size and modification time, to detect later that its content has changed:
    every change alters at least one of them."""
    status = os.fstat(file.fileno())
    return {"path": path, "size": status.st_size, "mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns,
            "inode": status.st_ino, "device": status.st_dev}


def check_url(url: str) -> None:
    """Raise ``InvalidField`` unless *url* is http or https, with a host, and without a password in it."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good or any(ord(character) <= 32 or ord(character) > 126 for character in url):
        raise InvalidField("source.url", "must be an http or https URL, with other characters percent-encoded")
    if "@" in parts.netloc:
        raise InvalidField("source.url", "must not hold a user name or password, since it is kept and shown")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """An HTTP redirect handler that follows few redirects, and only to URLs that ``check_url`` permits."""

    max_redirections = REDIRECTS
    max_repeats = REDIRECTS

    def redirect_request(self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any,
                         newurl: str) -> urllib.request.Request | None:
        check_url(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_url(url: str) -> http.client.HTTPResponse:
    """Send a GET request for *url* and return the open response. Raises ``InvalidField`` if the server answers with an
    error below 500, ``Unreachable`` for other errors."""
    check_url(url)
    opener = urllib.request.OpenerDirector()  # by hand: build_opener would add file:, ftp: and data:
    for handler in (urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(),
                    _Redirects(), urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler(),
                    urllib.request.UnknownHandler()):
        opener.add_handler(handler)
    headers = {"User-Agent": "magnetar", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - check_url let http and https pass only
    try:
        return cast("http.client.HTTPResponse", opener.open(request, timeout=TIMEOUT))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code < 500:
            raise InvalidField("source.url", f"was answered with {error.code} {error.reason}", url) from error
        raise Unreachable(f"{url} was answered with {error.code} {error.reason}. Try again later.") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{url} cannot be loaded: {getattr(error, 'reason', error)}. Check the address, and that "
                          "this host reaches it.") from error


def _loaded(answer: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    """Yield the body of the response *answer* in pieces, as soon as data arrives, so that a cancelled operation ends
    soon. *url*: for the error message. Raises ``Unreachable``."""
    try:
        while piece := answer.read1(CHUNK):
            yield piece
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{url}: the connection broke in the middle ({error}). Try again.") from error
