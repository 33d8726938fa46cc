# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that report resources."""

from __future__ import annotations

import fnmatch
import functools

from ..core.errors import InvalidField
from ..core.options import Option, collect
from ..core.query import one_of, reader, texts
from ..core.values import Choices, Integer, ListOf, MapOf, Text, Value
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
        )

    def narrowing(self):
        """Those of them that all lists have."""
        return {
            "filters": Option(MapOf(Text(), Value()), "Only %s whose fields have these values; of a list, one."
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
        name = params["name"]
        if name is not None and any(sign in name for sign in "*?["):
            tests["name"] = functools.partial(_like, name, tests.get("name"))
        elif name is not None:
            query["id" if is_uuid(name) and not query["id"] else "name"] = name
        return {"changed": False, self.kind.plural: self.passing(client, query, tests)}

    def filters(self, filters):
        """*filters* as a query for those with one value, and as tests for those with a list of values."""
        known = {f.name: reader(f.value) for f in self.kind.fields if "list" in f.on and reader(f.value)}
        query, tests = {}, {}
        for name, value in filters.items():
            where = "filters.%s" % name
            if name not in known:
                raise InvalidField(where, "is nothing to filter by; known are %s" % ", ".join(known))
            values = value if isinstance(value, list) else [value]
            if not values or any(one is None or isinstance(one, (dict, list)) for one in values):
                raise InvalidField(where, "must be a value, or a list of values of which one must fit", value)
            if len(values) == 1:
                query[name] = as_text(values[0])
            else:
                wanted = set(texts(values))
                for text in sorted(wanted):
                    known[name](where, text)  # one that no field can have is refused, as the host does
                tests[name] = functools.partial(_one_of, wanted)
        return query, tests

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


def _like(pattern, further, value):
    """Whether the name *value* fits *pattern*, and passes the test *further* if there is one."""
    return fnmatch.fnmatchcase(value or "", pattern) and (further is None or further(value))


def _one_of(wanted, value):
    """Whether *value* is one of *wanted*, compared as the host does; an absent value is none of them."""
    return value is not None and one_of(value, wanted)
