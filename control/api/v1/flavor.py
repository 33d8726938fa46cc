# SPDX-License-Identifier: GPL-3.0-or-later
"""flavor: those of the cloud; admins make and remove them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from magnetar_control.api.nova.flavor_extra_specs import SPECS
from magnetar_core.errors import Conflict
from magnetar_core.kinds import Flavor

from .asks import Asks, Document, paged
from .driver import Driver
from .operations import Operation

SIZES = ("vcpus", "ram", "disk", "ephemeral", "swap")


def shown(flavor: Mapping[str, Any]) -> Document:
    """Nova's flavor as the kind has it."""
    return {"id": flavor["id"], "name": flavor["name"], "description": flavor.get("description") or "",
            "vcpus": flavor["vcpus"], "ram": flavor["ram"], "disk": flavor["disk"],
            "ephemeral": flavor["OS-FLV-EXT-DATA:ephemeral"], "swap": flavor["swap"] or 0,
            "extra_specs": dict(flavor.get("extra_specs") or {})}


class Flavors(Driver):
    """Seen by everybody; private ones by projects that have access."""

    kind = Flavor
    plain = True

    def every(self, asks: Asks) -> list[Document]:
        """All pages."""
        query = {"is_public": "none"} if asks.context.is_admin else {}
        return [shown(one) for one in paged(asks.compute, "/flavors/detail", "flavors", **query)]

    def complete(self, asks: Asks, want: Document, have: Document | None) -> Document:
        """Extra specs are their own request: what that would refuse is refused before the flavor is made."""
        SPECS.check(want["extra_specs"], "extra_specs")
        return want

    def make(self, asks: Asks, want: Document, operation: Operation) -> None:
        """POST /flavors, and the extra specs."""
        made = asks.compute("POST", "/flavors", {"flavor": {
            "name": want["name"], "description": want["description"] or None, "OS-FLV-EXT-DATA:ephemeral":
            want["ephemeral"], **{name: want[name] for name in ("vcpus", "ram", "disk", "swap")},
            **({"id": want["id"]} if want.get("id") else {})}})["flavor"]
        if want["extra_specs"]:
            asks.compute("POST", f"/flavors/{_path(made['id'])}/os-extra_specs", {"extra_specs": want["extra_specs"]})

    def change(self, asks: Asks, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Description and extra specs; nothing else of a flavor changes."""
        if "name" in names:
            raise Conflict("A flavor of a cloud cannot be renamed: make another one.", fields=["name"])
        url = f"/flavors/{_path(have['id'])}"
        if "description" in names:
            asks.compute("PUT", url, {"flavor": {"description": want["description"] or None}})
        if "extra_specs" in names:
            for key in set(have["extra_specs"]) - set(want["extra_specs"]):
                asks.compute("DELETE", f"{url}/os-extra_specs/{_path(key)}")
            if want["extra_specs"]:
                asks.compute("POST", f"{url}/os-extra_specs", {"extra_specs": want["extra_specs"]})

    def remove(self, asks: Asks, have: Document, operation: Operation) -> None:
        """DELETE."""
        asks.compute("DELETE", f"/flavors/{_path(have['id'])}")


def _path(word: str) -> str:
    return quote(word, safe="")
