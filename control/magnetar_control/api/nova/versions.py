# SPDX-License-Identifier: GPL-3.0-or-later
"""Microversions: the negotiation of a request's version, and the version documents.

A version is its minor number: 2.53 is 53.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from magnetar_control.api.values import Lenient
from magnetar_control.web import Fault
from magnetar_core.errors import InvalidRequest, MagnetarError
from magnetar_core.versions import Version

#: The served microversions. Pages, tests and cases take the newest one from here.
FIRST, NEWEST = 1, 104
OLD_HEADER, HEADER = "x-openstack-nova-api-version", "openstack-api-version"
VARY = "OpenStack-API-Version, X-OpenStack-Nova-API-Version"
_FORM = re.compile(r"([1-9]\d{0,8})\.([1-9]\d{0,8}|0)", re.ASCII)
#: Minor number to the core's ``Version``, for declarations.
VERSIONS = [Version(f"2.{minor}") for minor in range(NEWEST + 1)]
#: The version below ``/v2``.
LEGACY = Lenient(f"2.{FIRST}")
UPDATED = {"v2.0": "2011-01-21T11:33:21Z", "v2.1": "2013-07-23T11:33:21Z"}


def negotiate_microversion(headers: Mapping[str, str]) -> int:
    """Return the minor version that the request's headers ask for, such as 53 for 2.53. Raises ``InvalidRequest`` for a
    malformed version, ``Fault`` 406 for a version out of range."""
    for part in headers.get(HEADER, "").split(","):
        words = part.split()
        if words and words[0].lower() in ("compute", "nova"):
            if len(words) != 2:
                raise _malformed(headers[HEADER])
            return _number(words[1])
    return _number(headers[OLD_HEADER]) if OLD_HEADER in headers else FIRST


def _number(text: str) -> int:
    text = text.strip()
    if text == "latest":
        return NEWEST
    match = _FORM.fullmatch(text)
    if not match:
        raise _malformed(text)
    major, minor = int(match[1]), int(match[2])
    if major != 2 or not FIRST <= minor <= NEWEST:
        raise Fault(406, f"Version {text} is not supported by the API. Minimum is 2.{FIRST} and maximum is 2.{NEWEST}.")
    return minor


def _malformed(text: str) -> MagnetarError:
    return InvalidRequest(f"API Version String {text} is of invalid format. Must be of format MajorNum.MinorNum, or "
                          "latest.")


@lru_cache(NEWEST + 1)
def microversion_headers(version: int) -> Mapping[str, str]:
    """Return the headers that every answer below ``/v2.1`` has: the microversion 2.*version*, and ``Vary``."""
    return {"openstack-api-version": f"compute 2.{version}", "x-openstack-nova-api-version": f"2.{version}",
            "vary": VARY}


def _document(id: str, url: str, media: bool = False) -> dict[str, Any]:
    current = id == "v2.1"
    path = f"{url}/{'v2.1' if current else 'v2'}/"
    document: dict[str, Any] = {
        "id": id, "status": "CURRENT" if current else "DEPRECATED", "version": f"2.{NEWEST}" if current else "",
        "min_version": f"2.{FIRST}" if current else "", "updated": UPDATED[id],
        "links": [{"rel": "self", "href": path}]}
    if media:
        document["links"].append({"rel": "describedby", "type": "text/html", "href": "https://docs.openstack.org/"})
        media_type = f"application/vnd.openstack.compute+json;version={'2.1' if current else '2'}"
        document["media-types"] = [{"base": "application/json", "type": media_type}]
    return document


def version_list_document(url: str) -> dict[str, Any]:
    """Return the body of ``GET /``: the list of API versions. *url*: the root URL of the service."""
    return {"versions": [_document("v2.0", url), _document("v2.1", url)]}


def version_document(id: str, url: str) -> dict[str, Any]:
    """Return the body of ``GET /v2.1`` and ``GET /versions/{id}``: the API version *id*. *url*: the root URL of the
    service."""
    return {"version": _document(id, url, media=True)}


def version_choices_document(url: str, path: str) -> dict[str, Any]:
    """Return the body of an answer with status 300, for a request without a version in its path: the API versions, each
    with a link to *path* in this version. *url*: the root URL of the service."""
    return {"choices": [
        {"id": id, "status": document["status"], "media-types": document["media-types"],
         "links": [{"rel": "self", "href": f"{url}/{segment}{path}"}]}
        for id, segment in (("v2.0", "v2"), ("v2.1", "v2.1")) for document in (_document(id, url, media=True),)]}
