# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP client for other OpenStack services, with the standard library only, as in ``identity.keystone``."""

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
    """A handler that does not follow redirects, because a token must only reach the service that it is meant for."""

    def redirect_request(self, *_args: Any) -> None:
        return None


def request_opener(trust: ssl.SSLContext) -> Callable[..., Any]:
    """Return a function that sends HTTP requests, like ``urllib.request.urlopen``. It verifies certificates by *trust*,
    follows no redirects, and ignores proxies from the environment, so that tokens reach only the service itself."""
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust), _NoRedirects()).open


class ServiceClient:
    """An HTTP client for an OpenStack service.

    *service_name*: the service's name in error messages. *url*: of the service, with or without its version. *base*:
    the prefix of all paths, beginning with the version, such as ``/v2/images``. *token*: a function that returns a
    token of a service user; called with true, it requests a new token. *ca*: certificates to trust. *timeout*: seconds
    to wait for data on the connection. The constructor raises ``InvalidSettings``.
    """

    def __init__(self, service_name: str, url: str, base: str, token: Callable[[bool], str], ca: Path | None = None,
                 timeout: float = 60.0) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise errors.InvalidSettings(
                f"The URL of the {service_name} is {url}; it must begin with http:// or https://.")
        self.what, self.token, self.timeout = service_name, token, timeout
        self.url = url.rstrip("/").removesuffix("/" + base.split("/")[1]) + base
        try:
            context = ssl.create_default_context(cafile=str(ca) if ca else None)
        except OSError as error:
            raise errors.InvalidSettings(f"The CA of the {service_name}, {ca}, cannot be used: {error}.") from None
        self._open = request_opener(context)

    def json(self, method: str, path: str, body: Any = None, token: str = "", accept: tuple[int, ...] = ()) -> Any:
        """Send a request with the JSON document *body*, and return the JSON document of the response; ``None`` if the
        response is empty or an error with a status in *accept*. *path*: appended to the service's URL. *token*: the
        caller's token; if empty, the service user's token is used. Raises the same errors as ``send``."""
        content = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        try:
            with self.send(method, path, headers, content, token) as answer:
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
        """Return the body of the response *answer*, up to *most* bytes. Raises ``Unavailable`` when the connection
        breaks."""
        try:
            body: bytes = answer.read(most)
        except (OSError, HTTPException) as error:
            raise self._silent(error) from error
        if most is not None and len(body) < most and answer.length:  # read() with a length does not raise
            raise self._silent(IncompleteRead(body, answer.length))
        return body

    def _silent(self, error: Exception) -> errors.Unavailable:
        return errors.Unavailable(f"The {self.what} does not answer ({type(error).__name__}). Try again in a moment.")

    def send(self, method: str, path: str, headers: dict[str, str], content: Any = None, token: str = "") -> Any:
        """Send a request with *content* (bytes or an iterator), and return the response, which the caller must read and
        close. *path*: appended to the service's URL. *token*: the caller's token; if empty, the service user's token is
        used. If the service rejects that token, the request is sent once more with a new token of the service user.
        Raises the error that corresponds to the response's status, and ``Unavailable`` if there is no response."""
        for fresh in (False, True):
            request_headers = {**headers, "X-Auth-Token": token or self.token(fresh)}
            request = urllib.request.Request(  # noqa: S310 - the scheme was checked when the URL was given
                self.url + path, content, request_headers, method=method)
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
        """Return the error that corresponds to an HTTP error response. A rejected token (401) becomes ``Unavailable``,
        because only an operator can fix the service user."""
        if error.code == 401:
            return errors.Unavailable(f"The {self.what} refused the control plane's own token. An operator must see to "
                                      "the service user and the clocks of both machines.")
        try:
            reply = orjson.loads(error.read())
            message = reply.get("message") or reply["description"]
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError, OSError):
            message = error.reason
        kind = {400: errors.InvalidRequest, 403: errors.Forbidden, 404: errors.NotFound, 409: errors.Conflict,
                410: errors.Gone, 413: errors.TooLarge}
        return kind.get(error.code, errors.Unavailable)(f"The {self.what} answered {error.code}: {message}")
