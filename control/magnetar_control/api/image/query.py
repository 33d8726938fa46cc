# SPDX-License-Identifier: GPL-3.0-or-later
"""The parser of the query of a list of images: filters, sorting and pages (Image API v2, "List images")."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar_control.api.values import Comparison, Number, Truth
from magnetar_control.services.image.fields import VISIBILITIES
from magnetar_control.services.image.images import SORTS, ImageListing
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.query import check_sort
from magnetar_core.values import Choices, Nullable

PAGE, LARGEST_PAGE = 25, 1000
#: Limit of filters of a list: databases limit the depth of an expression.
FILTERS = 100
#: Parameters that are no filters.
CONTROLS = frozenset({"limit", "marker", "sort", "sort_key", "sort_dir", "visibility", "member_status"})
TEXTS = frozenset({"name", "status", "owner", "id", "disk_format", "container_format", "checksum", "os_hash_value"})
#: Parameter to its field and operator.
NUMBERS = {"size": ("size", "eq"), "size_min": ("size", "gte"), "size_max": ("size", "lte"),
           "virtual_size": ("virtual_size", "eq"), "min_disk": ("min_disk", "eq"), "min_ram": ("min_ram", "eq")}
#: Fields that the service shows, and that no list can filter by.
NO_FILTERS = frozenset({"self", "file", "schema", "direct_url", "locations", "stores", "deleted", "deleted_at"})
COMPARISON = Comparison()
TRUTH = Truth(("true", "1"), ("false", "0"), any_case=True)
NUMBER, LIMIT = Number(0, 10**18 - 1), Number(0, 10**9 - 1)
VISIBILITY = Nullable(Choices("all", *VISIBILITIES))
MEMBER_STATUS = Nullable(Choices("accepted", "pending", "rejected", "all"))
Query = Sequence[tuple[str, str]]


def parse_image_listing(query: Query) -> ImageListing:
    """Return the ``ImageListing`` (filters, sort order, limit, marker) that the query string describes. Raises
    ``InvalidField`` or ``InvalidRequest`` that names the wrong parameter."""
    parameters = dict(query)
    requested = dict.fromkeys((name, value) for name, value in query if name not in CONTROLS)
    if len(requested) > FILTERS:
        raise InvalidRequest(f"A list of images takes {FILTERS} filters at most, and {len(requested)} were given.")
    filters = [_filter(name, value) for name, value in requested]
    if not any(name == "os_hidden" for name, _value in query):
        filters.append(("os_hidden", "eq", False))
    limit = parameters.get("limit")
    return ImageListing(
        visibility=VISIBILITY.check(parameters.get("visibility"), "visibility"),
        member_status=MEMBER_STATUS.check(parameters.get("member_status"), "member_status"), filters=filters,
        sort=_sort(query), limit=PAGE if limit is None else min(LIMIT.check(limit, "limit"), LARGEST_PAGE),
        marker=parameters.get("marker"))


def _filter(name: str, value: str) -> tuple[str, str, object]:
    """Return the query parameter *name* with *value* as a filter: (field, operator, value). A *name* that is not a
    field of images is the name of an image property."""
    if name in NO_FILTERS:
        raise InvalidField(name, "is nothing by which images are listed; leave it out")
    if name in TEXTS and value.startswith("in:"):
        return name, "in", [choice.strip('"') for choice in value.removeprefix("in:").split(",")]
    if name in NUMBERS:
        return *NUMBERS[name], NUMBER.check(value, name)
    if name in ("protected", "os_hidden"):
        return name, "eq", TRUTH.check(value, name)
    if name in ("created_at", "updated_at"):
        how, moment = COMPARISON.check(value, name)
        return name, how, moment[:19]
    return name, "eq", value


def _sort(query: Query) -> list[tuple[str, bool]]:
    """Return the sort keys of the query string as (field, descending) pairs; by default the newest images first."""
    keys = [value for name, value in query if name == "sort_key"]
    directions = [value for name, value in query if name == "sort_dir"]
    pairs = [(key, directions[min(at, len(directions) - 1)] if directions else "desc") for at, key in enumerate(keys)]
    for name, value in query:
        if name == "sort":
            words = (sort_term.partition(":") for sort_term in value.split(","))
            pairs += [(key.strip(), direction or "desc") for key, _colon, direction in words]
    pairs = pairs or [("created_at", directions[0] if directions else "desc")]
    for key, direction in pairs:
        if key not in SORTS or direction not in ("asc", "desc"):
            raise InvalidRequest(f"The list cannot be sorted by {key}:{direction}; keys are "
                                 f"{', '.join(sorted(SORTS))}, directions asc and desc.")
    check_sort("sort_key", [key for key, _direction in pairs])
    return [(key, direction == "desc") for key, direction in pairs]
