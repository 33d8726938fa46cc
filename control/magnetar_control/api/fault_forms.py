# SPDX-License-Identifier: GPL-3.0-or-later
"""The forms of errors that several OpenStack services share: of keystonemiddleware, of Nova and Cinder, and of webob.
Each API picks its form in one function; python-*client and openstacksdk read status and message from the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from http import HTTPStatus
from typing import Any

from magnetar_control.web import Answer, Fault

HTML, JSON, PLAIN = "text/html", "application/json", "text/plain"
#: Titles that differ from Python's, as in webob.
TITLES = {413: "Request Entity Too Large"}
PAGE = """\
<html>
 <head>
  <title>{status}</title>
 </head>
 <body>
  <h1>{status}</h1>
  {message}<br /><br />

 </body>
</html>"""


def keystone_document(fault: Fault) -> dict[str, Any]:
    """Return the body of an error answer in Keystone's format. Nova, Cinder and other services use this format for
    status 401 too, because their 401 answers come from keystonemiddleware."""
    return {"error": {"code": fault.status, "title": HTTPStatus(fault.status).phrase, "message": fault.message}}


def named_answer(names: Mapping[int, str], fault: Fault) -> Answer:
    """Return the error answer ``{"<name>": {"code", "message"}}``, the format of Nova and Cinder; status 401 has
    Keystone's format.

    *names*: maps HTTP statuses to the name in the body; other statuses have the name ``computeFault``.
    """
    if fault.status == HTTPStatus.UNAUTHORIZED:
        return Answer(keystone_document(fault), fault.status, fault.headers)
    body: dict[str, Any] = {"code": fault.status, "message": fault.message}
    if fault.status in (413, 429) and "Retry-After" in fault.headers:
        body["retryAfter"] = fault.headers["Retry-After"]
    return Answer({names.get(fault.status, "computeFault"): body}, fault.status, fault.headers)


def webob_answer(fault: Fault, accept: str) -> Answer:
    """Return an error answer as the library WebOb formats it: as HTML, JSON or plain text, depending on the request
    header *accept*.

    For an empty *accept* the answer is JSON, although WebOb would send text.
    """
    title = TITLES.get(fault.status, HTTPStatus(fault.status).phrase)
    status = f"{fault.status} {title}"
    kind = chosen_type(accept, (HTML, JSON)) if accept.strip() else JSON
    if kind == JSON:
        return Answer({"code": status, "title": title, "message": fault.message}, fault.status)
    if kind == HTML:
        page = PAGE.format(status=status, message=escape(fault.message))
        return Answer(page, fault.status, media_type=f"{HTML}; charset=UTF-8")
    return Answer(f"{status}\n\n{fault.message}\n", fault.status, media_type=f"{PLAIN}; charset=UTF-8")


def chosen_type(accept: str, offers: Sequence[str]) -> str | None:
    """Return the media type in *offers* that the request header *accept* prefers; the first one if *accept* prefers
    several equally, ``None`` if *accept* allows none of *offers*."""
    weights = {offer: _weight(accept, offer) for offer in offers}
    best = max(offers, key=lambda offer: weights[offer])
    return best if weights[best] > 0 else None


def _weight(accept: str, offer: str) -> float:
    """Return the quality value (q), 0 to 1, of the media type *offer* in the request header *accept*. The most specific
    media range that matches *offer* decides."""
    ranges = {}
    for text in accept.split(","):
        name, *parameters = (part.strip().lower() for part in text.split(";"))
        ranges[name] = next((_number(part[2:]) for part in parameters if part.startswith("q=")), 1.0)
    group = offer.partition("/")[0]
    return next((ranges[name] for name in (offer, f"{group}/*", "*/*") if name in ranges), 0.0)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
