# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that report resources."""

from __future__ import annotations

import fnmatch
import functools

from ..core.errors import InvalidField
from ..core.kinds import Server, Volume, VolumeSnapshot
from ..core.options import Option, collect
from ..core.query import one_of, reader, texts
from ..core.server_keys import KEYS, METADATA, flat, matches
from ..core.values import Boolean, Choices, Integer, ListOf, MapOf, Nullable, Text, Value
from .module import Module, as_text, is_uuid


class InfoModule(Module):
    """Reports resources of *kind*; that there are none is no failure."""

    def __init__(self, kind=None):
        self.kind = kind or self.kind
        self.name = self.kind.noun + "_info"
        self.options = self.selecting() if self.kind.selectable else ()

    def selecting(self):
        """Options that say which resources to report, and how much of each."""
        plural, sample = self.kind.plural, "V(web*)"
        return collect(
            name=Option(Text(), "Only %s of this name; a pattern such as %s is allowed." % (plural, sample),
                        aliases=(self.kind.noun,)),
            id=Option(Text(), "Only the %s with this uuid." % self.kind.noun), **self.narrowing(),
            **({"all_projects": Option(Boolean(), "Whether those of all projects of a cloud are reported, for its "
                                                  "administrators; else those of the login's project.")}
               if self.kind in (Server, Volume, VolumeSnapshot) else {}),
        )

    def narrowing(self):
        """Those of them that all lists have."""
        return {
            "filters": Option(
                MapOf(Text(), Value()), "Only %s whose fields have these values, or fit these patterns such as "
                "V(web*); of a list, one. C(metadata) is a mapping, or C(metadata.KEY)."
                % self.kind.plural.replace("_", " "), default={}),
            "fields": Option(ListOf(Choices(*[f.name for f in self.kind.fields if "list" in f.on])),
                             "Report these fields only; less to send for long lists."),
            "limit": Option(Integer(1), "Report this many at most."),
            "sort": Option(Text(), "Field to sort by; with a V(-) before it from the end."),
        }

    def execute(self, params, check_mode, diff_mode, client):
        if not self.kind.selectable:
            found = client.get(self.kind.noun)  # one host from an agent, a list from a cloud
            return {"changed": False, self.kind.plural: found.get(self.kind.plural, [found])}
        query = {name: params[name] for name in ("id", "fields", "limit", "sort")}
        plain, tests = self.filters(params["filters"] or {})
        query.update(plain)
        if params.get("all_projects"):
            if not client.of_cloud:
                raise InvalidField("all_projects", "is for a cloud; a host has no projects")
            query["all_projects"] = "true"
        name = params["name"]
        if name is not None and any(sign in name for sign in "*?["):
            tests["name"] = functools.partial(_like, name, tests.get("name"))
        elif name is not None:
            query["id" if is_uuid(name) and not query["id"] else "name"] = name
        return {"changed": False, self.kind.plural: self.passing(client, query, tests)}

    def filters(self, filters):
        """*filters* as a query for those with one value, and as tests of fields for the others."""
        known = {f.name: reader(f.value) for f in self.kind.fields if "list" in f.on and reader(f.value)}
        keys = self._keys(known)
        query, tests = {}, {}
        for name, value in flat(filters):
            where = "filters.%s" % name
            key = "metadata" if name.startswith(METADATA) and "metadata" in keys else name
            if name not in known and (key not in keys or name == "metadata"):
                names = [*known, *("metadata.KEY" if one == "metadata" else one for one in keys)]
                raise InvalidField(where, "is nothing to filter by; known are %s" % ", ".join(names))
            values = value if isinstance(value, list) else [value]
            if not values or any(one is None or isinstance(one, (dict, list)) for one in values):
                raise InvalidField(where, "must be a value, or a list of values of which one must fit", value)
            field = keys.get(key, name)
            if key in keys or (_is_text(self.kind.field(name)) and _has_pattern(values)):
                tests[field] = functools.partial(_matches, field, name, texts(values), tests.get(field))
            elif len(values) == 1:
                query[name] = as_text(values[0])
            else:
                wanted = set(texts(values))
                for text in sorted(wanted):
                    known[name](where, text)  # one that no field can have is refused, as the host does
                tests[name] = functools.partial(_one_of, wanted)
        return query, tests

    def _keys(self, known):
        """The keys to filter by besides the fields *known*, and the field that each reads."""
        listed = [f.name for f in self.kind.fields if "list" in f.on]
        return {name: field for name, field in _KEYS.items() if field in listed and name not in known
                and (self.kind is Server or name in _COMMON)}

    def passing(self, client, query, tests):
        """What the host lists and what passes *tests*, ``{field: test}``.

        Tests are done here: the fields that they read must be in the answer, and the limit counts what passes them.
        """
        if not tests:
            return client.list(self.kind.noun, **query)
        fields, limit = query.pop("fields"), query.pop("limit")
        query["fields"] = list(dict.fromkeys(list(fields) + list(tests))) if fields else None
        found = [r for r in client.list(self.kind.noun, **query) if all(test(r.get(f)) for f, test in tests.items())]
        if fields:
            found = [{name: value for name, value in r.items() if name in fields} for r in found]
        return found[:limit]


#: Keys of ``server_keys`` and the field that each reads; those that other kinds have as well.
_KEYS = dict({key: key for key in KEYS}, network="networks", metadata="metadata")
_COMMON = ("metadata", "tags")


def _is_text(field):
    value = field.value.value if isinstance(field.value, Nullable) else field.value
    return isinstance(value, Text)


def _has_pattern(values):
    return any(sign in str(one) for one in values for sign in "*?[")


def _matches(field, key, patterns, further, value):
    """Whether one of *patterns* fits what the *field*'s value says of the *key*, and *further* is passed."""
    shown = {field: value}
    found = matches(shown, {key: patterns}) if key in KEYS or key.startswith(METADATA) else \
        any(fnmatch.fnmatchcase(value or "", pattern) for pattern in patterns)
    return found and (further is None or further(value))


def _like(pattern, further, value):
    """Whether the name *value* fits *pattern*, and passes the test *further* if there is one."""
    return fnmatch.fnmatchcase(value or "", pattern) and (further is None or further(value))


def _one_of(wanted, value):
    """Whether *value* is one of *wanted*, compared as the host does; an absent value is none of them."""
    return value is not None and one_of(value, wanted)
