# SPDX-License-Identifier: GPL-3.0-or-later
"""Extra specs of flavors: what they ask of hosts and give to guests besides sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.store.accounts import flavors as store
from magnetar_control.store.servers.servers import text
from magnetar_core.errors import NotFound
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.values import MapOf, Text
from magnetar_core.versions import Version

from . import flavors

RULE = "os_compute_api:os-flavor-extra-specs:"


class SpecText(Text):
    """The text of an extra spec. A number is taken as its text, as in Nova."""

    form: Any = ()  # a number looks like no text

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return super().check(str(value) if is_number else value, path, version)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {**super().schema(version), "type": ["string", "number"]}


#: What a document of extra specs looks like.
SPECS = MapOf(Text(1, 255, r"[a-zA-Z0-9\-_:. ]{1,255}", "may have letters, digits, blanks and - _ : . only"),
              SpecText(0, 255), 10000)


def check_specs(specs: Mapping[str, str]) -> None:
    """Raises ``InvalidField`` for a spec in a namespace that Nova knows, where it does not know spec or value."""
    for name, value in specs.items():
        FLAVOR_SPECS.validate(name, value)


@use_case(f"{RULE}index")
def show(caller: Caller, id: str) -> str:
    """All of the flavor *id*, as JSON text."""
    return str(flavors.show(caller, id).extra_specs)


@use_case(f"{RULE}show")
def show_one(caller: Caller, id: str, name: str) -> str:
    """The value of one. Raises ``NotFound``."""
    specs = orjson.loads(flavors.show(caller, id).extra_specs)
    if name not in specs:
        raise _missing(id, name)
    return str(specs[name])


def _missing(id: str, name: str) -> NotFound:
    return NotFound(f"Flavor {id} has no extra specs with key {name[:255]}.")


@use_case(f"{RULE}create")
def create(caller: Caller, id: str, specs: Mapping[str, str], *, checked: bool = True) -> None:
    """Add *specs* to those of the flavor. *checked*: by ``check_specs``."""
    if checked:
        check_specs(specs)
    _change(caller, id, lambda before: {**before, **specs})


#: Set *specs*; as ``create``, under a rule of its own.
update = use_case(f"{RULE}update")(create.function)


def _change(caller: Caller, id: str, changed: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """Set the specs to what *changed* makes of them, in one transaction."""
    row = flavors.show(caller, id)
    with caller.cloud.store.api.write() as connection:
        now = store.locked(connection, row.number)
        if now is None:
            raise flavors.not_found(row.id)
        specs = text(changed(orjson.loads(now["extra_specs"])))
        store.change(connection, row.number, extra_specs=specs)
        flavors.tell(caller, connection, {**now, "extra_specs": specs}, "update")


@use_case(f"{RULE}delete")
def delete(caller: Caller, id: str, name: str) -> None:
    """Remove one. Raises ``NotFound``."""

    def without(specs: dict[str, str]) -> dict[str, str]:
        if name not in specs:
            raise _missing(id, name)
        return {key: value for key, value in specs.items() if key != name}

    _change(caller, id, without)
