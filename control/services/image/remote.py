# SPDX-License-Identifier: GPL-3.0-or-later
"""``services.Images`` over HTTP: any service that speaks Glance's API v2, the control plane's own on another machine
too. HTTP is the standard library's, as in ``identity.keystone``. Content goes through piece by piece, both ways."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

import orjson

from magnetar_control.services import Context, Document, Documents
from magnetar_core import errors

from .fields import check_properties

#: Bytes of content in one piece.
PIECE = 1 << 20
#: Fields of Glance's image; whatever else it has are properties.
FIELDS = frozenset((
    "checksum", "container_format", "created_at", "direct_url", "disk_format", "file", "id", "locations", "min_disk",
    "min_ram", "name", "os_hash_algo", "os_hash_value", "os_hidden", "owner", "protected", "schema", "self", "size",
    "status", "stores", "tags", "updated_at", "virtual_size", "visibility"))
PATCH = "application/openstack-images-v2.1-json-patch"
#: Statuses of an image that waits for its content.
WAITING = ("queued", "saving")
LINKS = frozenset(("direct_url", "file", "locations", "schema", "self", "stores"))


class Remote:
    """*url*: of the service, without ``/v2``. *token* gives a token of a service user who may see all images (role
    admin); with true, one that was not given before. *ca*: certificates to trust. *timeout*: seconds of silence."""

    def __init__(self, url: str, token: Callable[[bool], str], ca: Path | None = None, timeout: float = 60.0) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"the URL of the image service is {url}; it must begin with http:// or https://")
        self.url = url.rstrip("/").removesuffix("/v2") + "/v2/images"
        self.token, self.timeout = token, timeout
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
        # No proxies of the environment: tokens go to the image service only.
        self._open = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)).open

    def show(self, context: Context, id: str) -> Document | None:
        """The image, if *context* may see it: asked with the user's token where there is one. Without one (a conductor
        at work for a user who was let in before) a private image of another project is not there."""
        answer = self._json("GET", f"/{_word(id)}", token=context.token, accept=(404, 403))
        if answer is None:
            return None
        image = plain(answer)
        hidden = image["visibility"] == "private" and image["owner"] not in (None, context.project_id)
        return None if hidden and not context.token and not context.is_admin else image

    def list(self, context: Context, name: str | None = None,
             properties: Mapping[str, str] | None = None) -> Documents:
        """See ``services.Images``."""
        found: Documents = []
        following = "?" + urllib.parse.urlencode(
            {**(properties or {}), "limit": 1000, **({} if name is None else {"name": name})})
        while following:
            page = self._json("GET", following, token=context.token)
            found += map(plain, page["images"])
            following = page.get("next", "").removeprefix("/v2/images")
        return found

    def update(self, context: Context, id: str, change: Callable[[Document], Document]) -> Document:
        have = self._json("GET", f"/{_word(id)}", token=context.token)
        patch: Documents = [{"op": "remove" if value is None and name not in FIELDS else "add", "value": value,
                             "path": "/" + name.replace("~", "~0").replace("/", "~1")}
                            for name, value in change(plain(have)).items()]
        with self._asked("PATCH", f"/{_word(id)}", {"Content-Type": PATCH}, orjson.dumps(patch), context.token) as got:
            return plain(orjson.loads(got.read()))

    def content(self, id: str) -> tuple[Iterator[bytes], int]:
        """See ``services.Images``. Raises ``NotFound`` when there is none."""
        answer = self._asked("GET", f"/{_word(id)}/file", {"Accept": "application/octet-stream"})
        if answer.status == 204:
            answer.close()
            raise errors.NotFound(f"Image {id} has no content.")
        size = int(answer.headers.get("Content-Length") or 0) or self._json("GET", f"/{_word(id)}").get("size") or 0
        return _pieces(answer, id, size), size

    def create(self, context: Context, name: str | None, **wanted: Any) -> Document:
        """A queued image, made with the user's token where there is one."""
        properties = wanted.pop("properties", {})
        check_properties(properties)
        body = {"name": name, **properties, **wanted}
        if not context.token:
            body.setdefault("owner", context.project_id)
        return plain(self._json("POST", "", body, context.token))

    def check_room(self, context: Context, more: int, size: int, image: str = "") -> None:
        """Only the service knows."""

    def upload(self, id: str, chunks: Iterable[bytes], *, size: int | None = None) -> Document:
        length = {} if size is None else {"Content-Length": str(size)}
        self._asked("PUT", f"/{_word(id)}/file", {"Content-Type": "application/octet-stream", **length}, chunks).close()
        return plain(self._json("GET", f"/{_word(id)}"))

    def fail(self, id: str, why: str) -> None:
        """Its content will not come: the image goes, as Nova has it (Glance has no place for the reason). One that has
        its content stays."""
        found = self._json("GET", f"/{_word(id)}", accept=(404,))
        if found is not None and found["status"] in WAITING:
            self._json("DELETE", f"/{_word(id)}", accept=(404,))

    def delete(self, context: Context, id: str) -> None:
        self._json("DELETE", f"/{_word(id)}", token=context.token, accept=(404,))

    def _json(self, method: str, path: str, body: Any = None, token: str = "", accept: tuple[int, ...] = ()) -> Any:
        """The document of the answer; ``None`` for an empty one, and for a status of *accept*."""
        content = None if body is None else orjson.dumps(body)
        try:
            with self._asked(method, path, {"Content-Type": "application/json"}, content, token) as answer:
                text = answer.read()
        except errors.MagnetarError as error:
            if error.status in accept:
                return None
            raise
        return orjson.loads(text) if text else None

    def _asked(self, method: str, path: str, headers: dict[str, str], content: Any = None, token: str = "") -> Any:
        """The answer, to be read and closed. Our own token is made anew once, when it is refused."""
        for fresh in (False, True):
            given = {**headers, "X-Auth-Token": token or self.token(fresh)}
            request = urllib.request.Request(  # noqa: S310 - the scheme was checked when the URL was given
                self.url + path, content, given, method=method)
            try:
                return self._open(request, timeout=self.timeout)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code != 401 or fresh or token or not isinstance(content, bytes | None):
                        raise _refused(error) from None
            except (OSError, HTTPException) as error:
                raise errors.Unavailable(f"The image service does not answer ({type(error).__name__}). Try again in a "
                                         "moment.") from error
        raise AssertionError("the second answer is given or raised")


def plain(answer: Document) -> Document:
    """Glance's image as ``services.Images`` has it: what is no field of Glance is a property."""
    image = {name: value for name, value in answer.items() if name in FIELDS - LINKS}
    return {**image, "properties": {name: value for name, value in answer.items() if name not in FIELDS}}


def _word(id: str) -> str:
    return urllib.parse.quote(id, safe="")


def _pieces(answer: Any, id: str, size: int) -> Iterator[bytes]:
    """All *size* bytes; a content that breaks off is told, and never taken for the whole."""
    sent = 0
    with answer:
        try:
            while piece := answer.read(PIECE):
                sent += len(piece)
                yield piece
        except (OSError, HTTPException) as error:
            raise errors.Unavailable(f"The content of image {id} broke off after {sent} of {size} bytes.") from error
    if sent != size:
        raise errors.Unavailable(f"The content of image {id} broke off after {sent} of {size} bytes.")


def _refused(error: urllib.error.HTTPError) -> errors.MagnetarError:
    """What the service said; a token that is not good is the operator's matter, not the user's."""
    if error.code == 401:
        return errors.Unavailable("The image service refused the control plane's own token. An operator must see to "
                                  "the service user and the clocks of both machines.")
    try:
        message = orjson.loads(error.read())["message"]
    except (orjson.JSONDecodeError, LookupError, TypeError, OSError):
        message = error.reason
    kind = {400: errors.InvalidRequest, 403: errors.Forbidden, 404: errors.NotFound, 409: errors.Conflict,
            410: errors.Gone, 413: errors.TooLarge}
    return kind.get(error.code, errors.Unavailable)(f"The image service answered {error.code}: {message}")
