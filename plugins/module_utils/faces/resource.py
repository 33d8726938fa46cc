# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules have in common: one that makes a resource be as described, and one that reports resources."""

from __future__ import annotations

import fnmatch

from ..core.errors import InvalidField, NotFound
from ..core.options import CONNECTION, WAITING, Option, collect, given
from ..core.values import Choices, Integer, ListOf, MapOf, Text, Uuid, Value
from . import results

PRESENT, ABSENT = "present", "absent"


class Face:
    """A module: its ``name``, its ``options`` (without the connection's), rules between them, and ``execute``.

    ``rules`` are keyword arguments of ``AnsibleModule``. ``files`` names options that are files on the machine where
    the module runs. ``masked`` names options whose value is hidden in the result's invocation.
    """

    name = ""
    options = ()
    rules = {}
    files = ()
    masked = ()

    @property
    def all_options(self):
        """The options with those of the connection."""
        return self.options + CONNECTION

    def execute(self, params, check_mode, diff_mode, client):
        """Do it; returns the result of the module. Raises ``MagnetarError``."""
        raise NotImplementedError


class ResourceFace(Face):
    """Makes one resource of *kind* be present as described, or absent."""

    kind = None
    #: Value of ``state`` -> what it adds to the desired document; ``absent`` is not in it.
    states = {PRESENT: {}}
    #: Words of ``on_immutable``, and what the third and later ones mean.
    on_immutable = ("fail", "ignore", "recreate")
    on_immutable_doc = "V(recreate) removes what exists and makes it anew, which loses its data."
    #: Options that are permissions of the request (``core.ensure.Permissions``), besides ``on_immutable``.
    permissions = ()
    #: Fields of the kind that the face words in its own way.
    replaced = ()
    #: Options of its own (``Option``).
    own = ()
    #: Options that become fields of the document by the same name, and options that do not.
    state_doc = "V(present) makes it be as described: made when missing, changed where a given option differs. " \
                "V(absent) removes it."

    def __init__(self):
        self.name = self.kind.noun
        self.taken = tuple(f for f in self.kind.settable() if f.name not in self.replaced and f.option is not False)
        self.options = self.taken + self.own + self.common() + WAITING

    def common(self):
        """``state`` and ``on_immutable``."""
        return collect(
            state=Option(Choices(*self.states, ABSENT), self.state_doc, default=PRESENT),
            on_immutable=Option(
                Choices(*self.on_immutable), "What to do when an option differs that is fixed once made. V(fail) names "
                "it, V(ignore) leaves it with a warning, " + self.on_immutable_doc, default="fail"),
        ) + self.permissions

    @property
    def rules(self):
        return {"required_one_of": [["name", "id"]]}

    def want(self, params):
        """The desired document out of *params*."""
        want = {name: worded(self.kind.field(name), value) for name, value in given(self.taken, params).items()}
        want.update(self.states[params["state"]])
        want.pop("id", None)  # it is the key
        if params.get("id") is None and want.get("name") and is_uuid(want["name"]):
            del want["name"]
        return want

    def allowed(self, params):
        """What the caller allows: ``on_immutable`` and its like by name."""
        found = {option.name: params[option.name] for option in self.permissions if params.get(option.name)}
        return dict(found, on_immutable=params["on_immutable"])

    def merge(self, params):
        """Names of fields whose content is added to what is there."""
        return [name for name in ("metadata", "tags") if params.get("purge_" + name) is False and name in params]

    def execute(self, params, check_mode, diff_mode, client):
        key = params.get("id") or params.get("name")
        waiting = {"dry_run": check_mode, "wait": params["wait"], "timeout": params["timeout"]}
        if params["state"] == ABSENT:
            answer = client.delete(self.kind.noun, key, **waiting)
        else:
            answer = self.ensure(client, key, params, waiting)
        return results.changed(self.kind.noun, params.get("name") or key, answer, diff_mode)

    def ensure(self, client, key, params, waiting):
        """Ask for the resource; a kind with more than one call overrides this."""
        return client.ensure(self.kind.noun, key, self.want(params), merge=self.merge(params),
                             **self.allowed(params), **waiting)


class InfoFace(Face):
    """Reports resources of *kind*, never fails because there are none."""

    def __init__(self, kind, filtered=True):
        self.kind, self.name = kind, kind.noun + "_info"
        self.options = self._selecting() if filtered else ()
        self.filtered = filtered

    def _selecting(self):
        plural, sample = self.kind.plural, "V(web*)"
        return collect(
            name=Option(Text(), "Only %s of this name; a pattern such as %s is allowed." % (plural, sample),
                        aliases=(self.kind.noun,)),
            id=Option(Text(), "Only the %s with this uuid." % self.kind.noun), **self.narrowing(),
        )

    def narrowing(self):
        """Options that say which, and how much of each; all lists have them."""
        return {
            "filters": Option(MapOf(Text(), Value()), "Only %s whose fields have these values, compared on the agent."
                              % self.kind.plural.replace("_", " "), default={}),
            "fields": Option(ListOf(Choices(*[f.name for f in self.kind.fields if "list" in f.on])),
                             "Report these fields only; less to send for long lists."),
            "limit": Option(Integer(1), "Report this many at most."),
            "sort": Option(Text(), "Field to sort by; with a V(-) before it from the end."),
        }

    def execute(self, params, check_mode, diff_mode, client):
        if not self.filtered:
            found = client.get(self.kind.noun)  # an agent has one, a cloud has many
            return {"changed": False, self.kind.plural: found.get(self.kind.plural, [found])}
        query = {name: params[name] for name in ("id", "fields", "limit", "sort")}
        query.update(self._filters(params["filters"] or {}))
        name = params["name"]
        pattern = name is not None and any(sign in name for sign in "*?[")
        if name is not None and not pattern:
            query["id" if is_uuid(name) and not query["id"] else "name"] = name
        if pattern:
            found = self._matching(client, query, name)
        else:
            found = client.list(self.kind.noun, **query)
        return {"changed": False, self.kind.plural: found}

    def _filters(self, filters):
        known = [f.name for f in self.kind.fields if "list" in f.on]
        for name in filters:
            if name not in known:
                raise InvalidField("filters.%s" % name, "is not a field; known are %s" % ", ".join(known))
        return {name: _plain(value) for name, value in filters.items()}

    def _matching(self, client, query, pattern):
        """The match is made here; so ``name`` must come along, and the limit counts what matches."""
        fields, limit = query.pop("fields"), query.pop("limit")
        query["fields"] = list(fields) + ["name"] if fields and "name" not in fields else fields
        found = [r for r in client.list(self.kind.noun, **query) if fnmatch.fnmatchcase(r.get("name", ""), pattern)]
        if fields:
            found = [{name: value for name, value in r.items() if name in fields} for r in found]
        return found[:limit]


def find(client, noun, key):
    """The resource *key*, or ``NotFound`` in the words of a task."""
    try:
        return client.get(noun, key)
    except NotFound as error:
        raise NotFound("There is no %s %s on this host." % (noun, key), **error.details) from None


def is_uuid(text):
    """True for a uuid; a name that looks like one is taken for it."""
    try:
        Uuid().check(text, "id")
    except InvalidField:
        return False
    return True


def worded(field, value):
    """Numbers and booleans that YAML reads in a mapping of texts become texts, as users mean them."""
    if isinstance(field.value, MapOf) and isinstance(field.value.value, Text):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _plain(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value
