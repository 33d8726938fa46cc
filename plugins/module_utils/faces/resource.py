# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules have in common: one that makes a resource be as described, and one that reports resources."""

from __future__ import annotations

import fnmatch
import functools

from ..core.errors import InvalidField, NotFound
from ..core.kinds.common import REFERENCE
from ..core.options import CONNECTION, WAITING, Option, collect, given
from ..core.query import one_of, reader, texts
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
        key = called(params)
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
            "filters": Option(MapOf(Text(), Value()), "Only %s whose fields have these values; of a list, one."
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
        plain, tests = self._filters(params["filters"] or {})
        query.update(plain)
        name = params["name"]
        if name is not None and any(sign in name for sign in "*?["):
            tests["name"] = functools.partial(_like, name, tests.get("name"))
        elif name is not None:
            query["id" if is_uuid(name) and not query["id"] else "name"] = name
        return {"changed": False, self.kind.plural: self._passing(client, query, tests)}

    def _filters(self, filters):
        """*filters* as a query, and as tests for those of which one of many values must fit."""
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
                query[name] = _plain(values[0])
            else:
                wanted = set(texts(values))
                for text in sorted(wanted):
                    known[name](where, text)  # one that no field can have is refused, as the host does
                tests[name] = functools.partial(_one_of, wanted)
        return query, tests

    def _passing(self, client, query, tests):
        """What the host finds and passes *tests*, ``{field: test}``. They are made here; so their fields must come
        along, and the limit counts what passes."""
        if not tests:
            return client.list(self.kind.noun, **query)
        fields, limit = query.pop("fields"), query.pop("limit")
        query["fields"] = list(dict.fromkeys(list(fields) + list(tests))) if fields else None
        found = [r for r in client.list(self.kind.noun, **query) if all(test(r.get(f)) for f, test in tests.items())]
        if fields:
            found = [{name: value for name, value in r.items() if name in fields} for r in found]
        return found[:limit]


def called(params, where=""):
    """What *params* call a resource: its ``id``, or else its ``name``. The argument spec takes empty ones for given.

    *where* comes before the option in the message of the ``InvalidField`` that this raises.
    """
    for option in ("id", "name"):
        if params.get(option) is not None:
            return REFERENCE.check(params[option], where + option)
    raise InvalidField(where + "name", "is required; give it, or id")


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


def _like(pattern, further, value):
    """Whether a name fits *pattern*, and the test *further* when there is one."""
    return fnmatch.fnmatchcase(value or "", pattern) and (further is None or further(value))


def _one_of(wanted, value):
    """As the host compares; but what is not there is nothing."""
    return value is not None and one_of(value, wanted)


def worded(field, value):
    """Numbers and booleans that YAML reads in a mapping of texts become texts, as users mean them."""
    if isinstance(field.value, MapOf) and isinstance(field.value.value, Text):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _plain(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value
