# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of answers that reading and writing have in common, and the microversion of a request."""

from __future__ import annotations

from magnetar_control.compute.placement.provider_tree import Provider
from magnetar_control.services import Document
from magnetar_control.web import Request
from magnetar_core.errors import NotFound


def minor(request: Request) -> int:
    """The second number of the microversion that is asked for."""
    return int(request.extra["version"][1])


def since(request: Request, first: int) -> None:
    """Raises ``NotFound`` below microversion 1.*first*."""
    if minor(request) < first:
        raise NotFound(f"This is there from microversion 1.{first} on.")


def traits(one: Provider) -> Document:
    """The traits of a provider."""
    return {"traits": sorted(one.traits), "resource_provider_generation": one.generation}


def tree(one: Provider) -> Document:
    """The provider above it, and its host."""
    return {"parent_provider_uuid": one.parent_id, "root_provider_uuid": one.root_id}


def inventories(one: Provider) -> Document:
    """Its inventories, by class."""
    return {"resource_provider_generation": one.generation, "inventories": one.inventories}


def inventory(one: Provider, name: str) -> Document:
    """That of a class. Raises ``NotFound``."""
    if name not in one.inventories:
        raise NotFound(f"No inventory of class {name[:80]} for {one.id}.")
    return {"resource_provider_generation": one.generation, **one.inventories[name]}


def aggregates(request: Request, one: Provider) -> Document:
    """Uuids of its aggregates; with the generation since 1.19."""
    more = {"resource_provider_generation": one.generation} if minor(request) >= 19 else {}
    return {"aggregates": [group.uuid for group in one.aggregates], **more}
