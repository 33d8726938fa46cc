# SPDX-License-Identifier: GPL-3.0-or-later
"""What Placement shows: resource providers, inventories, usages, traits, aggregates, resource classes; and all routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from magnetar_control.compute.placement.placement import Placement
from magnetar_control.compute.placement.provider_tree import Provider
from magnetar_control.services import Context, Document
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import Forbidden, InvalidRequest, NotFound

from . import query, views
from .allocations import AllocationRoutes
from .candidates import CandidateRoutes
from .reshaping import ReshapingRoutes
from .writing import WritingRoutes

#: What a provider links to, and since when.
LINKS = (("self", ""), ("inventories", "/inventories"), ("usages", "/usages"), ("aggregates", "/aggregates"),
         ("traits", "/traits"), ("allocations", "/allocations"))
SINCE = {"aggregates": 1, "traits": 6, "allocations": 11}
#: Parameters of the list of providers, and since when.
PARAMETERS = {"name": 0, "uuid": 0, "member_of": 3, "resources": 4, "in_tree": 14, "required": 18}


class PlacementRoutes:
    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    def routes(self) -> list[Guarded]:
        """All are for administrators and services, as in Placement's policy; a project's readers see its usage."""
        one = "resource_providers/{uuid}"
        return [route(f"GET /{path}", handler, status, "service") for path, handler, status in (
            ("resource_providers", self.providers, 200), (one, self.provider, 200),
            (f"{one}/inventories", self.inventories, 200), (f"{one}/inventories/{{name}}", self.inventory, 200),
            (f"{one}/usages", self.usages, 200), (f"{one}/aggregates", self.aggregates, 200),
            (f"{one}/traits", self.traits_of, 200), (f"{one}/allocations", self.held, 200),
            ("resource_classes", self.classes, 200), ("resource_classes/{name}", self.class_, 200),
            ("traits", self.traits, 200), ("traits/{name}", self.trait, 204),
            ("allocation_candidates", CandidateRoutes(self.placement).list, 200))] + [
                route("GET /usages", self.usage), *AllocationRoutes(self.placement).routes(),
                *WritingRoutes(self.placement).routes(), *ReshapingRoutes(self.placement).routes()]

    def _one(self, request: Request) -> Provider:
        return self.placement.provider(request.params["uuid"])

    def providers(self, request: Request) -> Document:
        """Those that all parameters fit."""
        tests = [_test(name, value, views.minor(request)) for name, value in request.query]
        self.placement.check_classes(kind for name, value in request.query if name == "resources"
                                     for kind in query.resources(value))
        roots = self.placement.roots()
        self.placement.check_traits({one for name, value in request.query if name == "required"
                                     for one in query.required(value, views.minor(request))[1]}, roots)
        found = (one for root in roots for one in root.tree if all(test(one) for test in tests))
        return {"resource_providers": [_provider(request, one) for one in found]}

    def provider(self, request: Request) -> Document:
        return _provider(request, self._one(request))

    def inventories(self, request: Request) -> Document:
        return views.inventories(self._one(request))

    def inventory(self, request: Request) -> Document:
        """That of a resource class."""
        return views.inventory(self._one(request), request.params["name"])

    def usages(self, request: Request) -> Document:
        one = self._one(request)
        return {"resource_provider_generation": one.generation, "usages": one.usages}

    def aggregates(self, request: Request) -> Document:
        """Uuids of the host aggregates that the host is in (1.1; with the generation since 1.19)."""
        views.since(request, 1)
        return views.aggregates(request, self._one(request))

    def traits_of(self, request: Request) -> Document:
        views.since(request, 6)
        return views.traits(self._one(request))

    def held(self, request: Request) -> Document:
        """The allocations on a provider, by consumer."""
        one, held = self.placement.held_of(request.params["uuid"])
        shows = views.minor(request) >= 28
        return {"allocations": {id: {"resources": resources, **({"consumer_generation": generation} if shows else {})}
                                for id, (resources, generation) in held.items()},
                "resource_provider_generation": one.generation}

    def classes(self, request: Request) -> Document:
        views.since(request, 2)
        return {"resource_classes": [_class(request, name) for name in self.placement.classes()]}

    def class_(self, request: Request) -> Document:
        views.since(request, 2)
        name = request.params["name"]
        if name not in self.placement.classes():
            raise NotFound(f"No such resource class {name[:80]}.")
        return _class(request, name)

    def traits(self, request: Request) -> Document:
        """All, or those of the names (``in:A,B``, ``startswith:A``), or that some host has (``associated``)."""
        views.since(request, 6)
        names, had = self.placement.traits()
        for key, value in request.query:
            words = value.removeprefix("in:").split(",")
            if key == "name" and value.startswith("in:"):
                names = names.intersection(words)
            elif key == "name" and value.startswith("startswith:"):
                names = frozenset(one for one in names if one.startswith(value.removeprefix("startswith:")))
            elif key == "associated" and value.lower() in ("true", "false"):
                names = names & had if value.lower() == "true" else names - had
            else:
                raise InvalidRequest("Badly formed querystring: there are name=in:A,B, name=startswith:A and "
                                     f"associated=true or false, and no {key[:80]}={value[:80]}.")
        return {"traits": sorted(names)}

    def trait(self, request: Request) -> None:
        views.since(request, 6)
        if request.params["name"] not in self.placement.traits()[0]:
            raise NotFound(f"No such trait(s): {request.params['name'][:255]}.")

    def usage(self, request: Request) -> Document:
        """What a project, or a user in it, holds; since 1.38 by type of consumer."""
        views.since(request, 9)
        given, minor = dict(request.query), views.minor(request)
        known = {"project_id", "user_id", *(["consumer_type"] if minor >= 38 else [])}
        if not given.get("project_id") or given.keys() - known:
            raise InvalidRequest(f"Badly formed querystring: project_id is required, and there are no others than "
                                 f"{', '.join(sorted(known))}.")
        if not _sees_usage(request.context, given["project_id"]):
            raise Forbidden("The usage of a project is shown to its readers, to services and to administrators. Ask "
                            "with a token of that project.")
        found = self.placement.usage(given["project_id"], given.get("user_id"))
        if minor < 38:
            return {"usages": _sum(one for _count, one in found.values())}
        kind = given.get("consumer_type")
        if kind == "all":
            found = {"all": (sum(n for n, _one in found.values()), _sum(one for _n, one in found.values()))}
        elif kind is not None:
            found = {name: one for name, one in found.items() if name == kind}
        return {"usages": {name: {"consumer_count": count, **one} for name, (count, one) in found.items()}}


def _sees_usage(context: Context, project_id: str) -> bool:
    return context.is_admin or "service" in context.roles or (
        context.is_reader and (context.project_id == project_id or context.scope == "system"))


def _sum(found: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in found:
        for name, n in one.items():
            total[name] = total.get(name, 0) + n
    return total


def _provider(request: Request, one: Provider) -> Document:
    """A provider; since 1.14 with its place in the tree."""
    minor, path = views.minor(request), f"/placement/resource_providers/{one.id}"
    tree = views.tree(one) if minor >= 14 else {}
    return {"uuid": one.id, "name": one.name, "generation": one.generation, **tree, "links": [
        {"rel": name, "href": path + end} for name, end in LINKS if minor >= SINCE.get(name, 0)]}


def _class(request: Request, name: str) -> Document:
    del request
    return {"name": name, "links": [{"rel": "self", "href": f"/placement/resource_classes/{name}"}]}


def _test(name: str, value: str, minor: int) -> Callable[[Provider], bool]:
    """What a parameter of the list asks of a provider. Raises ``InvalidRequest``."""
    if PARAMETERS.get(name, minor + 1) > minor:
        raise InvalidRequest(f"Badly formed querystring: at 1.{minor} there is no {name[:80]}. There are "
                             f"{', '.join(one for one, since in PARAMETERS.items() if since <= minor)}.")
    if name == "name":
        return lambda one: one.name == value
    if name == "uuid":
        [wanted_id] = query.uuids("uuid", [value])
        return lambda one: one.id == wanted_id
    if name == "in_tree":
        return query.in_tree(value)
    if name == "member_of":
        return query.member_of(value, minor)
    if name == "required":
        return query.required(value, minor)[0]
    wanted = query.resources(value)
    return lambda one: all(one.gives(kind, amount) for kind, amount in wanted.items())
