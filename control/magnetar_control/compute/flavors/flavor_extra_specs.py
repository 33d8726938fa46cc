# SPDX-License-Identifier: GPL-3.0-or-later
"""Extra specs of flavors: requirements on hosts and features of guests, in addition to sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.store.accounts import flavors as store
from magnetar_control.store.servers.servers import json_text
from magnetar_core.errors import NotFound
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.values import MapOf, Text
from magnetar_core.versions import Version

from . import flavors

RULE = "os_compute_api:os-flavor-extra-specs:"


class SpecText(Text):
    """The schema of an extra spec's value: a text. A number is accepted and stored as text, as in Nova."""

    form: Any = ()  # a number has no form of text

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return super().check(str(value) if is_number else value, path, version)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {**super().schema(version), "type": ["string", "number"]}


#: The schema of a document of extra specs.
SPECS = MapOf(Text(1, 255, r"[a-zA-Z0-9\-_:. ]{1,255}", "may have letters, digits, blanks and - _ : . only"),
              SpecText(0, 255), 10000)


def check_extra_specs(specs: Mapping[str, str]) -> None:
    """Raise ``InvalidField`` for an unknown extra spec or an invalid value in a namespace that Nova validates, such as
    ``hw``."""
    for name, value in specs.items():
        FLAVOR_SPECS.validate(name, value)


@use_case(f"{RULE}index")
def show_extra_specs(caller: Caller, id: str) -> str:
    """Return all extra specs of the flavor *id*, as JSON text."""
    return str(flavors.show_flavor(caller, id).stored.extra_specs)


@use_case(f"{RULE}show")
def show_extra_spec(caller: Caller, id: str, name: str) -> str:
    """Return the value of the extra spec *name* of the flavor *id*. Raises ``NotFound``."""
    specs = flavors.show_flavor(caller, id).extra_specs
    if name not in specs:
        raise _missing(id, name)
    return specs[name]


def _missing(id: str, name: str) -> NotFound:
    return NotFound(f"Flavor {id} has no extra specs with key {name[:255]}.")


@use_case(f"{RULE}create")
def create_extra_specs(caller: Caller, id: str, specs: Mapping[str, str], *, checked: bool = True) -> None:
    """Add *specs* to the extra specs of the flavor *id*. *checked*: validate them first with ``check_extra_specs``."""
    if checked:
        check_extra_specs(specs)
    _change(caller, id, lambda current_specs: {**current_specs, **specs})


#: The same as ``create_extra_specs``, with the policy rule for updates.
update_extra_specs = use_case(f"{RULE}update")(create_extra_specs.function)


def _change(caller: Caller, id: str, changed: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
    """Replace the flavor's extra specs in one transaction. *changed*: a function that gets the current extra specs and
    returns the new ones."""
    row = flavors.show_flavor(caller, id)
    with caller.cloud.store.api.write() as connection:
        now = store.lock_flavor_row(connection, row.number)
        if now is None:
            raise flavors.flavor_not_found(row.id)
        specs = changed(now.extra_specs)
        store.update_flavor_row(connection, row.number, extra_specs=json_text(specs))
        flavors.notify_flavor(caller, connection, now, "update", extra_specs=specs)


@use_case(f"{RULE}delete")
def delete_extra_spec(caller: Caller, id: str, name: str) -> None:
    """Remove the extra spec *name* from the flavor *id*. Raises ``NotFound``."""

    def without(specs: Mapping[str, str]) -> dict[str, str]:
        if name not in specs:
            raise _missing(id, name)
        return {key: value for key, value in specs.items() if key != name}

    _change(caller, id, without)
