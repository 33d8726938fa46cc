# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that report resources."""

from __future__ import annotations

import fnmatch
import functools

from ..core.errors import InvalidField
from ..core.kinds import CloudVolumeBackup, Server, Volume, VolumeSnapshot, VolumeTransfer
from ..core.options import Option, name_options
from ..core.query import filter_reader, filter_texts, matches_one_text
from ..core.server_keys import KEYS, METADATA, flatten_metadata, matches_server_filters
from ..core.values import Boolean, Choices, Integer, ListOf, MapOf, Nullable, Text, Value
from ..foreign import FOREIGN
from .module import Module, looks_like_uuid, scalar_text


class InfoModule(Module):
    """The base class of the modules that report resources of the type *kind*. An empty result is not a failure."""

    def __init__(self, kind=None):
        self.kind = kind or self.kind
        self.name = self.kind.noun + "_info"
        self.foreign = FOREIGN.get(self.name, ())
        self.options = (self.selecting() if self.kind.selectable else ()) + self.foreign

    def selecting(self):
        """Return the options that select the resources and fields to report."""
        plural, sample = self.kind.plural, "V(web*)"
        return name_options(
            name=Option(Text(), "Only %s of this name; a pattern such as %s is allowed." % (plural, sample),
                        aliases=(self.kind.noun,)),
            id=Option(Text(), "Only the %s with this uuid." % self.kind.noun), **self.narrowing(),
            **({"all_projects": Option(Boolean(), "Whether the resources of all projects of a cloud are reported, for "
                                       "its administrators. By default, only the resources of the login's project.")}
               if self.kind in (Server, Volume, VolumeSnapshot, VolumeTransfer, CloudVolumeBackup) else {}),
        )

    def narrowing(self):
        """Return the options filters, fields, limit and sort, by name: the part of ``selecting`` that all modules which
        report several resources have.
        """
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
            answer = client.get(self.kind.noun)  # one host from an agent, a list from a cloud
            return {"changed": False, self.kind.plural: answer.get(self.kind.plural, [answer])}
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
            query["id" if looks_like_uuid(name) and not query["id"] else "name"] = name
        return {"changed": False, self.kind.plural: self.passing(client, query, tests)}

    def filters(self, filters):
        """Split the option *filters* into filters that the API applies and filters that the module applies. Return the
        API's query parameters (single values without wildcards), and the module's own filters as ``{field: function}``,
        where the function tests a value of the field. Raises ``InvalidField``.
        """
        readers = {f.name: filter_reader(f.value) for f in self.kind.fields if "list" in f.on
                   and filter_reader(f.value)}
        keys = self._keys(readers)
        query, tests = {}, {}
        for name, value in flatten_metadata(filters):
            where = "filters.%s" % name
            key = "metadata" if name.startswith(METADATA) and "metadata" in keys else name
            if name not in readers and (key not in keys or name == "metadata"):
                names = [*readers, *("metadata.KEY" if key_name == "metadata" else key_name for key_name in keys)]
                raise InvalidField(where, "is nothing to filter by; known are %s" % ", ".join(names))
            values = value if isinstance(value, list) else [value]
            if not values or any(alternative is None or isinstance(alternative, (dict, list))
                                 for alternative in values):
                raise InvalidField(where, "must be a value, or a list of values of which one must fit", value)
            field = keys.get(key, name)
            if key in keys or (_is_text(self.kind.field(name)) and _has_pattern(values)):
                tests[field] = functools.partial(_matches, field, name, filter_texts(values), tests.get(field))
            elif len(values) == 1:
                query[name] = scalar_text(values[0])
            else:
                accepted = set(filter_texts(values))
                for text in sorted(accepted):
                    readers[name](where, text)  # refuse a value that no field can have, as the host does
                tests[name] = functools.partial(_one_of, accepted)
        return query, tests

    def _keys(self, filterable):
        """Return the filters that only the module itself can apply, because the API cannot: ``{name of the filter: name
        of the field that it tests}``. *filterable*: the fields that the API can filter by.
        """
        listed = [f.name for f in self.kind.fields if "list" in f.on]
        return {name: field for name, field in _KEYS.items() if field in listed and name not in filterable
                and (self.kind is Server or name in _COMMON)}

    def passing(self, client, query, tests):
        """Return the resources that match *query*, the query parameters of the API, and pass all *tests* (``{field:
        function}``).

        The module runs the tests after the API has answered. Therefore it also requests the tested fields, and applies
        the limit itself.
        """
        if not tests:
            return client.list(self.kind.noun, **query)
        fields, limit = query.pop("fields"), query.pop("limit")
        query["fields"] = list(dict.fromkeys(list(fields) + list(tests))) if fields else None
        resources = [r for r in client.list(self.kind.noun, **query)
                     if all(test(r.get(f)) for f, test in tests.items())]
        if fields:
            resources = [{name: value for name, value in r.items() if name in fields} for r in resources]
        return resources[:limit]


#: Keys of ``server_keys``, each with the field that it reads; and those of them that other kinds support too.
_KEYS = dict({key: key for key in KEYS}, network="networks", metadata="metadata")
_COMMON = ("metadata", "tags")


def _is_text(field):
    value = field.value.value if isinstance(field.value, Nullable) else field.value
    return isinstance(value, Text)


def _has_pattern(values):
    return any(sign in str(value) for value in values for sign in "*?[")


def _matches(field, key, patterns, further, value):
    """Return whether *value* of *field* matches one of the *patterns* (of the filter *key*), and also passes *further*,
    another test function (``None``: no other test).
    """
    shown = {field: value}
    is_match = matches_server_filters(shown, {key: patterns}) if key in KEYS or key.startswith(METADATA) else \
        any(fnmatch.fnmatchcase(value or "", pattern) for pattern in patterns)
    return is_match and (further is None or further(value))


def _like(pattern, further, value):
    """Return whether the name *value* matches *pattern*, and also passes *further*, another test function (``None``: no
    other test).
    """
    return fnmatch.fnmatchcase(value or "", pattern) and (further is None or further(value))


def _one_of(accepted, value):
    """Return whether *value*, as a string, is in the set *accepted*, compared as the API does. ``None`` is never
    accepted.
    """
    return value is not None and matches_one_text(value, accepted)
