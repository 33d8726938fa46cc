# SPDX-License-Identifier: GPL-3.0-or-later
"""The inputs of an ``ensure``, the only request that creates or changes a resource: permissions in a query string, and
items of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from .errors import InvalidField
from .fields import Field, Kind
from .values import Boolean, Choices, ListOf, MapOf, Nullable, Text, Value

ON_IMMUTABLE = ("fail", "ignore", "recreate", "rebuild")
BATCH_MAX = 10000


class Permissions(Kind):
    """The options of a request to create or change a resource: which disruptive changes are allowed, and how values are
    merged. They are query parameters of ``PUT``, or keys of an item of a batch request.
    """

    on_immutable = Field(
        Choices(*ON_IMMUTABLE),
        "What to do when an immutable field differs: fail with the field's name, ignore it (with a warning in the "
        "answer), recreate the resource, which loses its disks, or (servers) rebuild: make only the root disk again.",
        default="fail")
    allow_reboot = Field(
        Boolean(), "Whether a running server may be shut down, changed and started again if a change needs that.",
        default=False)
    preserve_ephemeral = Field(Boolean(), "Whether a rebuild keeps the ephemeral disk.", default=False)
    merge = Field(
        ListOf(Choices("metadata", "tags", "networks", "hosts", "users", "rules"), unique=True),
        "Fields whose given content is added to the existing content. Other given content replaces it.", default=[])
    revision = Field(
        Text(1, 64), "Revision of the resource in the answer to an earlier dry run. If the resource has changed since, "
        "a change is refused; a request that changes nothing never is.")


class Ensure(Permissions):
    """An item of a batch request: the key of a resource, its desired fields, and the options of ``Permissions``."""

    key = Field(Text(1, 255), "Name or uuid of the resource.", required=True)
    want = Field(Nullable(MapOf(Text(1, 64), Value())), "The desired document; null for absent.", required=True)


def check_permissions(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the options of ``Permissions`` in *requested*, and return them with defaults for omitted ones. Raises
    ``InvalidField``.
    """
    return dict(Permissions.defaults(), **Permissions.check(dict(requested)))


def check_batch(items: Any) -> list[tuple[str, Optional[dict[str, Any]], dict[str, Any]]]:
    """Validate *items*, the body of a batch request, and return a list of ``(key, want, permissions)``. The desired
    fields ``want`` (``None``: the resource must not exist) are not validated yet. Raises ``InvalidField``.
    """
    if not isinstance(items, list):
        raise InvalidField("body", "must be a list of {key, want} objects")
    if len(items) > BATCH_MAX:
        raise InvalidField("body", "must have at most %d items, and has %d" % (BATCH_MAX, len(items)))
    ensures = []
    for at, item in enumerate(items):
        try:
            checked = Ensure.check(item)
        except InvalidField as error:
            raise InvalidField("[%d].%s" % (at, error.details["field"]), error.details["rule"]) from None
        ensures.append((checked.pop("key"), checked.pop("want"), dict(Permissions.defaults(), **checked)))
    return ensures
