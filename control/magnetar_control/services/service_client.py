# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests of ours to another service of OpenStack. HTTP is the standard library's, as in ``identity.keystone``."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Any

import orjson

from magnetar_core import errors


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A token is for the service alone, wherever it points to."""

    def redirect_request(self, *_args: Any) -> None:
        return None


def opened(trust: ssl.SSLContext) -> Callable[..., Any]:
    """What opens requests to services that are trusted by *trust*. No proxies of the environment: tokens go to the
    service only."""
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust), _NoRedirects()).open


class ServiceClient:
    """*what*: what messages call the service. *url*: of the service, with or without its version; *base*: what paths
    are added to, beginning with the version, such as ``/v2/images``. *token* gives a token of a service user; with
    true, one that was not given before. *ca*: certificates to trust. *timeout*: seconds of silence. Raises
    ``InvalidSettings``."""

    def __init__(self, what: str, url: str, base: str, token: Callable[[bool], str], ca: Path | None = None,
                 timeout: float = 60.0) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise errors.InvalidSettings(f"The URL of the {what} is {url}; it must begin with http:// or https://.")
        self.what, self.token, self.timeout = what, token, timeout
        self.url = url.rstrip("/").removesuffix("/" + base.split("/")[1]) + base
        try:
            context = ssl.create_default_context(cafile=str(ca) if ca else None)
        except OSError as error:
            raise errors.InvalidSettings(f"The CA of the {what}, {ca}, cannot be used: {error}.") from None
        self._open = opened(context)

    def json(self, method: str, path: str, body: Any = None, token: str = "", accept: tuple[int, ...] = ()) -> Any:
        """The document of the answer; ``None`` for an empty one, and for a status of *accept*."""
        content = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        try:
            with self.asked(method, path, headers, content, token) as answer:
                text = self.content(answer)
        except errors.MagnetarError as error:
            if error.status in accept:
                return None
            raise
        try:
            return orjson.loads(text) if text else None
        except orjson.JSONDecodeError:
            raise errors.Unavailable(f"The {self.what} answered with something else than JSON. An operator must see to "
                                     f"its URL, {self.url}.") from None

    def content(self, answer: Any, most: int | None = None) -> bytes:
        """What an answer holds, up to *most* bytes. Raises ``Unavailable`` where it breaks off."""
        try:
            found: bytes = answer.read(most)
        except (OSError, HTTPException) as error:
            raise self._silent(error) from error
        if most is not None and len(found) < most and answer.length:  # read() with a length does not mind
            raise self._silent(IncompleteRead(found, answer.length))
        return found

    def _silent(self, error: Exception) -> errors.Unavailable:
        return errors.Unavailable(f"The {self.what} does not answer ({type(error).__name__}). Try again in a moment.")

    def asked(self, method: str, path: str, headers: dict[str, str], content: Any = None, token: str = "") -> Any:
        """The answer, to be read and closed. Our own token is made anew once, when it is refused. Raises the error that
        stands for what the service answers, and ``Unavailable``."""
        for fresh in (False, True):
            given = {**headers, "X-Auth-Token": token or self.token(fresh)}
            request = urllib.request.Request(  # noqa: S310 - the scheme was checked when the URL was given
                self.url + path, content, given, method=method)
            try:
                return self._open(request, timeout=self.timeout)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code != 401 or fresh or token or not isinstance(content, bytes | None):
                        raise self._refused(error) from None
            except (OSError, HTTPException) as error:
                raise self._silent(error) from error
        raise AssertionError("the second answer is given or raised")

    def _refused(self, error: urllib.error.HTTPError) -> errors.MagnetarError:
        """What the service said; a token that is not good is the operator's matter, not the user's."""
        if error.code == 401:
            return errors.Unavailable(f"The {self.what} refused the control plane's own token. An operator must see to "
                                      "the service user and the clocks of both machines.")
        try:
            told = orjson.loads(error.read())
            message = told.get("message") or told["description"]
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError, OSError):
            message = error.reason
        kind = {400: errors.InvalidRequest, 403: errors.Forbidden, 404: errors.NotFound, 409: errors.Conflict,
                410: errors.Gone, 413: errors.TooLarge}
        return kind.get(error.code, errors.Unavailable)(f"The {self.what} answered {error.code}: {message}")
