# SPDX-License-Identifier: GPL-3.0-or-later
"""Parsing of requests to Keystone's API, and the forms of resources and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from magnetar_control.api.query import check_known
from magnetar_control.api.values import Number, Truth
from magnetar_control.services.identity.resources import IdentityResource
from magnetar_control.web import Request
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest

#: The value type of flags in queries; a flag without a value is set.
TRUTH = Truth(("true", "1", "yes", ""), ("false", "0", "no"), any_case=True)


#: Comparisons such as ``name__contains=x``; a prefixed ``i`` ignores case (Identity API v3, "Filtering").
COMPARED: Mapping[str, Callable[[str, str], bool]] = {
    "contains": str.__contains__, "startswith": str.startswith, "endswith": str.endswith, "equals": str.__eq__}
#: Filters by tags, separated by commas: functions of the requested tags and the tags of a resource.
TAGGED: Mapping[str, Callable[[set[str], set[str]], bool]] = {
    "tags": set.issubset, "tags-any": lambda requested, has: not requested.isdisjoint(has),
    "not-tags": lambda requested, has: not requested <= has, "not-tags-any": set.isdisjoint}
PAGING, LIMIT = ("limit", "marker"), Number(1, 10**9 - 1)


def query_filters(request: Request, resource: IdentityResource) -> dict[str, Any]:
    """Return those query parameters that filter by a column of *resource*, as {name: value}. Raises ``InvalidField``
    for a parameter that neither this function nor ``render_filtered_page`` supports."""
    compared = [f"{name}__{i}{how}" for name in resource.filters if name != "enabled"
                for i in ("", "i") for how in COMPARED]
    check_known(request, [
        *resource.filters, *compared, *PAGING, *_flags(resource), *(TAGGED if "tags" in resource.fields else ())],
        f"{resource.plural} are")
    return {name: TRUTH.check(value, name) if name == "enabled" else value
            for name, value in request.query if name in resource.filters}


def render_filtered_page(request: Request, resource: IdentityResource, documents: Iterable[Document],
                         query: str = "") -> Document:
    """Return the answer to a list request: those *documents* that match the query, including comparisons
    (``name__contains``) and tags. If the query has ``limit``, return one page, with a link to the next. *query*: the
    query string for the ``self`` link."""
    matching = [document for document in documents if all(_fits(document, name, value, resource) for name,
                                                          value in request.query)]
    parameters = dict(request.query)
    if "marker" in parameters:
        ids = [document["id"] for document in matching]
        if parameters["marker"] not in ids:
            raise InvalidField("marker", f"must be the id of one of these {resource.plural}", parameters["marker"])
        matching = matching[ids.index(parameters["marker"]) + 1:]
    limit = LIMIT.check(parameters["limit"], "limit") if "limit" in parameters else len(matching)
    answer = render_resources(request, resource.plural, matching[:limit], query)
    if len(matching) > limit:
        answer["links"]["next"] = request.next_page(matching[limit - 1]["id"])[0]["href"]
    return answer


def _flags(resource: IdentityResource) -> Iterator[str]:
    """Yield the names of the boolean fields that have the same value for all resources of the type *resource*, such as
    is_domain of projects. Lists can be filtered by these fields, although they are not database columns."""
    return (name for name, value in resource.constant.items() if isinstance(value, bool))


def _fits(document: Document, name: str, value: str, resource: IdentityResource) -> bool:
    if name in TAGGED:
        return TAGGED[name]({*value.split(",")}, {*document["tags"]})
    if name in _flags(resource):
        return bool(TRUTH.check(value, name) is resource.constant[name])
    field, _mark, how = name.partition("__")
    if not how:
        return True
    text = document.get(field)
    if how not in COMPARED:
        how, value, text = how[1:], value.lower(), text.lower() if isinstance(text, str) else text
    return isinstance(text, str) and COMPARED[how](text, value)


def is_on(request: Request, name: str) -> bool:
    """Return whether the query string sets the flag *name*: the parameter is present, and its value is not a word for
    false."""
    query = dict(request.query)
    return name in query and TRUTH.words.get(query[name].lower(), True)


def request_object(request: Request, name: str) -> Document:
    """Return the JSON object under the key *name* of the request body. Raises ``InvalidRequest`` if the body has no
    such object."""
    content = request.json()
    requested = content.get(name) if isinstance(content, dict) else None
    if not isinstance(requested, dict):
        raise InvalidRequest(f'The body must be an object {{"{name}": {{…}}}}.')
    return requested


def render_resource(request: Request, path: str, document: Document) -> Document:
    """Return *document* with a ``self`` link in ``links``. *path*: the collection in the URL, such as ``users``."""
    return {**document, "links": {"self": f"{request.base}/v3/{path}/{document['id']}"}}


def render_list(request: Request, plural: str, documents: Iterable[Document], query: str = "") -> Document:
    """Return *documents* as a list under the key *plural*, with a ``self`` link to the list. *query*: the query string
    for this link."""
    path = request.path if request.params else request.extra["route"]
    return {plural: [*documents], "links": {"next": None, "previous": None, "self": request.base + path + query}}


def render_resources(request: Request, plural: str, documents: Iterable[Document], query: str = "") -> Document:
    """Return *documents* as a list under the key *plural*, with a ``self`` link for each document and one for the list.
    *query*: the query string for the list's link."""
    return render_list(request, plural, (render_resource(request, plural, document) for document in documents), query)
