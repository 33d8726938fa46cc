# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents that the answers of ``reading`` and ``writing`` have in common, and the microversion of a request."""

from __future__ import annotations

from magnetar_control.compute.placement.placement import ListedProvider
from magnetar_control.compute.placement.provider_tree import Provider
from magnetar_control.web import Request
from magnetar_core.document import Document
from magnetar_core.errors import NotFound


def minor_version(request: Request) -> int:
    """Return the minor number of the request's microversion, such as 39 for 1.39."""
    return int(request.extra["version"][1])


def require_minor_version(request: Request, first: int) -> None:
    """Raise ``NotFound`` if the request's microversion is older than 1.*first*."""
    if minor_version(request) < first:
        raise NotFound(f"This is there from microversion 1.{first} on.")


def traits_view(provider: Provider) -> Document:
    """Return the answer with the traits and the generation of *provider*."""
    return {"traits": sorted(provider.traits), "resource_provider_generation": provider.generation}


def tree_view(provider: Provider | ListedProvider) -> Document:
    """Return ``parent_provider_uuid`` and ``root_provider_uuid`` of *provider*. The root provider is the host."""
    return {"parent_provider_uuid": provider.parent_id, "root_provider_uuid": provider.root_id}


def inventories_view(provider: Provider) -> Document:
    """Return the answer with the inventories of *provider*, by resource class, and its generation."""
    return {"resource_provider_generation": provider.generation, "inventories": provider.inventories}


def inventory_view(provider: Provider, name: str) -> Document:
    """Return the provider's inventory of the resource class *name*. Raises ``NotFound``."""
    if name not in provider.inventories:
        raise NotFound(f"No inventory of class {name[:80]} for {provider.id}.")
    return {"resource_provider_generation": provider.generation, **provider.inventories[name]}


def aggregates_view(request: Request, provider: Provider) -> Document:
    """Return the answer with the uuids of the aggregates of *provider*. Since 1.19 it has the provider's generation."""
    more = {"resource_provider_generation": provider.generation} if minor_version(request) >= 19 else {}
    return {"aggregates": [group.uuid for group in provider.aggregates], **more}
