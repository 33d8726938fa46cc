# SPDX-License-Identifier: GPL-3.0-or-later
"""What Keystone's API reads of requests, and how it shows resources and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from magnetar_control.api.query import check_known
from magnetar_control.api.values import Number, Truth
from magnetar_control.services import Document
from magnetar_control.services.identity.resources import IdentityResource
from magnetar_control.web import Request
from magnetar_core.errors import InvalidField, InvalidRequest

#: A flag of a query: naming it is enough.
TRUTH = Truth(("true", "1", "yes", ""), ("false", "0", "no"), any_case=True)


#: How ``name__contains=x`` and the like compare; with an ``i`` before, in any case (Identity API v3, "Filtering").
COMPARED: Mapping[str, Callable[[str, str], bool]] = {
    "contains": str.__contains__, "startswith": str.startswith, "endswith": str.endswith, "equals": str.__eq__}
#: Filters by tags, separated by commas: what tells by those asked for and those that one has.
TAGGED: Mapping[str, Callable[[set[str], set[str]], bool]] = {
    "tags": set.issubset, "tags-any": lambda asked, has: not asked.isdisjoint(has),
    "not-tags": lambda asked, has: not asked <= has, "not-tags-any": set.isdisjoint}
PAGING, LIMIT = ("limit", "marker"), Number(1, 10**9 - 1)


def filters(request: Request, resource: IdentityResource) -> dict[str, Any]:
    """The filters of a list that are columns. Raises ``InvalidField`` for what is neither that nor one of ``some``."""
    compared = [f"{name}__{i}{how}" for name in resource.filters if name != "enabled"
                for i in ("", "i") for how in COMPARED]
    check_known(request, [
        *resource.filters, *compared, *PAGING, *_flags(resource), *(TAGGED if "tags" in resource.fields else ())],
        f"{resource.plural} are")
    return {name: TRUTH.check(value, name) if name == "enabled" else value
            for name, value in request.query if name in resource.filters}


def some(request: Request, resource: IdentityResource, found: Iterable[Document], query: str = "") -> Document:
    """The list of those of *found* that the further filters of the request name, a page of them where it has a limit;
    with a link to the next page."""
    left = [one for one in found if all(_fits(one, name, value, resource) for name, value in request.query)]
    asked = dict(request.query)
    if "marker" in asked:
        ids = [one["id"] for one in left]
        if asked["marker"] not in ids:
            raise InvalidField("marker", f"must be the id of one of these {resource.plural}", asked["marker"])
        left = left[ids.index(asked["marker"]) + 1:]
    limit = LIMIT.check(asked["limit"], "limit") if "limit" in asked else len(left)
    answer = resources(request, resource.plural, left[:limit], query)
    if len(left) > limit:
        answer["links"]["next"] = request.next_page(left[limit - 1]["id"])[0]["href"]
    return answer


def _flags(resource: IdentityResource) -> Iterator[str]:
    """What is true of all or of none, such as is_domain."""
    return (name for name, value in resource.constant.items() if isinstance(value, bool))


def _fits(one: Document, name: str, value: str, resource: IdentityResource) -> bool:
    if name in TAGGED:
        return TAGGED[name]({*value.split(",")}, {*one["tags"]})
    if name in _flags(resource):
        return bool(TRUTH.check(value, name) is resource.constant[name])
    field, _mark, how = name.partition("__")
    if not how:
        return True
    text = one.get(field)
    if how not in COMPARED:
        how, value, text = how[1:], value.lower(), text.lower() if isinstance(text, str) else text
    return isinstance(text, str) and COMPARED[how](text, value)


def is_on(request: Request, name: str) -> bool:
    """Whether a flag of the query is set."""
    query = dict(request.query)
    return name in query and TRUTH.words.get(query[name].lower(), True)


def body(request: Request, name: str) -> Document:
    """The object *name* of the body."""
    given = request.json()
    wanted = given.get(name) if isinstance(given, dict) else None
    if not isinstance(wanted, dict):
        raise InvalidRequest(f'The body must be an object {{"{name}": {{…}}}}.')
    return wanted


def resource(request: Request, path: str, found: Document) -> Document:
    """A resource with the link to itself, below *path*."""
    return {**found, "links": {"self": f"{request.base}/v3/{path}/{found['id']}"}}


def listed(request: Request, plural: str, documents: Iterable[Document], query: str = "") -> Document:
    """A list, with the link to itself; *query*: what the link says of the filters."""
    path = request.path if request.params else request.extra["route"]
    return {plural: [*documents], "links": {"next": None, "previous": None, "self": request.base + path + query}}


def resources(request: Request, plural: str, found: Iterable[Document], query: str = "") -> Document:
    """A list of resources."""
    return listed(request, plural, (resource(request, plural, one) for one in found), query)
