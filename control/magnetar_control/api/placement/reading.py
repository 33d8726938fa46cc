# SPDX-License-Identifier: GPL-3.0-or-later
"""The readable part of Placement: resource providers, inventories, usages, traits, aggregates, resource classes; and
all routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import orjson

from magnetar_control.compute.placement.placement import ListedProvider, Placement
from magnetar_control.compute.placement.provider_tree import CLASSES, Provider
from magnetar_control.services import Context
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import Forbidden, InvalidRequest, NotFound

from . import query, views
from .allocations import AllocationRoutes
from .candidates import CandidateRoutes
from .reshaping import ReshapingRoutes
from .writing import WritingRoutes

#: Links of a provider, with their first microversion.
LINKS = (("self", ""), ("inventories", "/inventories"), ("usages", "/usages"), ("aggregates", "/aggregates"),
         ("traits", "/traits"), ("allocations", "/allocations"))
SINCE = {"aggregates": 1, "traits": 6, "allocations": 11}
#: Parameters of the list of providers, with their first microversion.
PARAMETERS = {"name": 0, "uuid": 0, "member_of": 3, "resources": 4, "in_tree": 14, "required": 18}
#: The place of a provider's uuid in the text of its links.
_UUID = "{uuid}"
#: Parameters that match either all providers of a host or none.
OF_HOSTS = frozenset({"member_of"})
#: Parameters for which hosts are tested without the reports of their agents.
WITHOUT_REPORTS = frozenset({"member_of", "resources"})


class PlacementRoutes:
    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    def routes(self) -> list[Guarded]:
        """Return the routes of the Placement API, with their handlers. Administrators and services may use them, as in
        Placement's policy; other callers with the role reader may use only the route that shows the usage of their
        project."""
        provider_path = "resource_providers/{uuid}"
        return [guarded_route(f"GET /{path}", handler, status, "service") for path, handler, status in (
            ("resource_providers", self.providers, 200), (provider_path, self.provider, 200),
            (f"{provider_path}/inventories", self.inventories, 200),
            (f"{provider_path}/inventories/{{name}}", self.inventory, 200),
            (f"{provider_path}/usages", self.usages, 200), (f"{provider_path}/aggregates", self.aggregates, 200),
            (f"{provider_path}/traits", self.traits_of, 200), (f"{provider_path}/allocations", self.held, 200),
            ("resource_classes", self.classes, 200), ("resource_classes/{name}", self.class_, 200),
            ("traits", self.traits, 200), ("traits/{name}", self.trait, 204),
            ("allocation_candidates", CandidateRoutes(self.placement).list, 200))] + [
                guarded_route("GET /usages", self.usage), *AllocationRoutes(self.placement).routes(),
                *WritingRoutes(self.placement).routes(), *ReshapingRoutes(self.placement).routes()]

    def _one(self, request: Request) -> Provider:
        return self.placement.provider(request.params["uuid"])

    def providers(self, request: Request) -> Document:
        """Return the resource providers that match all query parameters: GET /resource_providers."""
        minor = views.minor_version(request)
        if not request.query:
            return {"resource_providers": list(map(_provider_view(minor), self.placement.listed_providers()))}
        tests = [_test(name, value, minor) for name, value in request.query]
        of_hosts = [_test(name, value, minor) for name, value in request.query if name in OF_HOSTS]
        classes = {kind for name, value in request.query if name == "resources"
                   for kind in query.parse_resources(value)}
        self.placement.check_classes(classes)
        # No part of a host gives a class of hosts (``pci.NOT_DEVICES``). Only the parts need the report of a host.
        whole = classes.isdisjoint(CLASSES)
        roots = self._roots(dict(request.query), whole)
        self.placement.check_traits({trait for name, value in request.query if name == "required"
                                     for trait in query.parse_required_traits(value, minor)[1]}, roots)
        matching = (provider for root in roots if all(test(root) for test in of_hosts)
                    for provider in (root.tree if whole else (root,)) if all(test(provider) for test in tests))
        return {"resource_providers": list(map(_provider_view(minor), matching))}

    def _roots(self, parameters: Mapping[str, str], whole: bool) -> list[Provider]:
        """Return the root providers (hosts) that may match the query *parameters*. The calling method tests only these
        hosts. *whole*: whether child providers of the hosts may match too. Return all hosts if *parameters* contains
        ``required``, because the calling method also needs the traits of all hosts to check that the required traits
        exist."""
        if "required" not in parameters and (tree := parameters.get("uuid") or parameters.get("in_tree")):
            return self.placement.roots_of_tree(query.parse_uuids("uuid", [tree])[0])
        if "required" not in parameters and (name := parameters.get("name")):
            return self.placement.roots_of_name(name)
        if not whole and parameters.keys() <= WITHOUT_REPORTS:
            return self.placement.roots_without_reports()
        return self.placement.roots()

    def provider(self, request: Request) -> Document:
        return _provider_view(views.minor_version(request))(self._one(request))

    def inventories(self, request: Request) -> Document:
        return views.inventories_view(self._one(request))

    def inventory(self, request: Request) -> Document:
        """Return the provider's inventory of the resource class that the URL names."""
        return views.inventory_view(self._one(request), request.params["name"])

    def usages(self, request: Request) -> Document:
        provider = self._one(request)
        return {"resource_provider_generation": provider.generation, "usages": provider.usages}

    def aggregates(self, request: Request) -> Document:
        """Return the uuids of a provider's aggregates: GET /resource_providers/{uuid}/aggregates (1.1). Since 1.19, the
        answer has the provider's generation."""
        views.require_minor_version(request, 1)
        return views.aggregates_view(request, self._one(request))

    def traits_of(self, request: Request) -> Document:
        views.require_minor_version(request, 6)
        return views.traits_view(self._one(request))

    def held(self, request: Request) -> Document:
        """Return the allocations from a provider, by the consumer's uuid: GET …/allocations."""
        provider, consumers = self.placement.held_of(request.params["uuid"])
        shows = views.minor_version(request) >= 28
        return {"allocations": {id: {"resources": resources, **({"consumer_generation": generation} if shows else {})}
                                for id, (resources, generation) in consumers.items()},
                "resource_provider_generation": provider.generation}

    def classes(self, request: Request) -> Document:
        views.require_minor_version(request, 2)
        return {"resource_classes": [_class(request, name) for name in self.placement.classes()]}

    def class_(self, request: Request) -> Document:
        views.require_minor_version(request, 2)
        name = request.params["name"]
        if name not in self.placement.classes():
            raise NotFound(f"No such resource class {name[:80]}.")
        return _class(request, name)

    def traits(self, request: Request) -> Document:
        """Return the names of traits: GET /traits (1.6). By default return all. The query parameter ``name``
        (``in:A,B`` or ``startswith:A``) selects traits by name; ``associated`` selects traits that some host has (true)
        or that no host has (false)."""
        views.require_minor_version(request, 6)
        names, had = self.placement.traits()
        for key, value in request.query:
            words = value.removeprefix("in:").split(",")
            if key == "name" and value.startswith("in:"):
                names = names.intersection(words)
            elif key == "name" and value.startswith("startswith:"):
                names = frozenset(name for name in names if name.startswith(value.removeprefix("startswith:")))
            elif key == "associated" and value.lower() in ("true", "false"):
                names = names & had if value.lower() == "true" else names - had
            else:
                raise InvalidRequest("Badly formed querystring: there are name=in:A,B, name=startswith:A and "
                                     f"associated=true or false, and no {key[:80]}={value[:80]}.")
        return {"traits": sorted(names)}

    def trait(self, request: Request) -> None:
        views.require_minor_version(request, 6)
        if request.params["name"] not in self.placement.traits()[0]:
            raise NotFound(f"No such trait(s): {request.params['name'][:255]}.")

    def usage(self, request: Request) -> Document:
        """Return the resource usage of a project, or of one user in it: GET /usages. Since 1.38 by type of consumer."""
        views.require_minor_version(request, 9)
        parameters, minor = dict(request.query), views.minor_version(request)
        known_names = {"project_id", "user_id", *(["consumer_type"] if minor >= 38 else [])}
        if not parameters.get("project_id") or parameters.keys() - known_names:
            raise InvalidRequest(f"Badly formed querystring: project_id is required, and there are no others than "
                                 f"{', '.join(sorted(known_names))}.")
        if not _sees_usage(request.context, parameters["project_id"]):
            raise Forbidden("The usage of a project is shown to its readers, to services and to administrators. Ask "
                            "with a token of that project.")
        usage_by_type = self.placement.usage(parameters["project_id"], parameters.get("user_id"))
        if minor < 38:
            return {"usages": _sum(amounts for _count, amounts in usage_by_type.values())}
        kind = parameters.get("consumer_type")
        if kind == "all":
            usage_by_type = {"all": (sum(n for n, _one in usage_by_type.values()),
                                     _sum(amounts for _n, amounts in usage_by_type.values()))}
        elif kind is not None:
            usage_by_type = {name: count_and_amounts for name, count_and_amounts in usage_by_type.items() if name
                             == kind}
        return {"usages": {name: {"consumer_count": count, **amounts} for name,
                           (count, amounts) in usage_by_type.items()}}


def _sees_usage(context: Context, project_id: str) -> bool:
    return context.is_admin or "service" in context.roles or (
        context.is_reader and (context.project_id == project_id or context.scope == "system"))


def _sum(usages: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for usage in usages:
        for name, n in usage.items():
            total[name] = total.get(name, 0) + n
    return total


def _provider_view(minor: int) -> Callable[[Provider | ListedProvider], Document]:
    """Return a function that converts a provider to JSON at microversion 1.*minor*; since 1.14 with the uuids of its
    parent and root. The function inserts the links as ready JSON text. This is faster than encoding them, because
    thousands of providers have six links each."""
    links = orjson.dumps([{"rel": name, "href": f"/placement/resource_providers/{_UUID}{end}"} for name, end in LINKS
                          if minor >= SINCE.get(name, 0)]).decode()

    def view(provider: Provider | ListedProvider) -> Document:
        id = provider.id
        tree = views.tree_view(provider) if minor >= 14 else {}
        return {"uuid": id, "name": provider.name, "generation": provider.generation, **tree,
                "links": orjson.Fragment(links.replace(_UUID, id))}
    return view


def _class(request: Request, name: str) -> Document:
    del request
    return {"name": name, "links": [{"rel": "self", "href": f"/placement/resource_classes/{name}"}]}


def _test(name: str, value: str, minor: int) -> Callable[[Provider], bool]:
    """Return a function that tells whether a provider matches the query parameter *name* with *value*. Raises
    ``InvalidRequest`` for an invalid value, and for a parameter that is unknown at microversion 1.*minor*."""
    if PARAMETERS.get(name, minor + 1) > minor:
        raise InvalidRequest(f"Badly formed querystring: at 1.{minor} there is no {name[:80]}. There are "
                             f"{', '.join(parameter for parameter, since in PARAMETERS.items() if since <= minor)}.")
    if name == "name":
        return lambda provider: provider.name == value
    if name == "uuid":
        [wanted_id] = query.parse_uuids("uuid", [value])
        return lambda provider: provider.id == wanted_id
    if name == "in_tree":
        return query.in_tree(value)
    if name == "member_of":
        return query.member_of(value, minor)
    if name == "required":
        return query.parse_required_traits(value, minor)[0]
    amounts = query.parse_resources(value)
    return lambda provider: all(provider.has_room_for(kind, amount) for kind, amount in amounts.items())
