# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that make a resource be as described, or absent."""

from __future__ import annotations

from ..core.options import WAITING, Option, collect, given
from ..core.values import Boolean, Choices
from . import results
from .module import ABSENT, PRESENT, Module, as_texts, is_uuid, key_of

#: Fields that can be added to instead of replaced, and what their option ``purge_FIELD`` calls their parts.
MERGED = {"metadata": "keys", "tags": "tags", "hosts": "hosts"}


class ResourceModule(Module):
    """Makes one resource of *kind* be present as described, or absent. Subclasses say what is different for theirs."""

    #: Value of ``state`` -> what it adds to the desired document; ``absent`` is not in it.
    states = {PRESENT: {}}
    state_doc = "V(present) makes it be as described: made when missing, changed where a given option differs. " \
                "V(absent) removes it."
    #: Values of ``on_immutable``, and what those after the second mean.
    on_immutable = ("fail", "ignore", "recreate")
    on_immutable_doc = "V(recreate) removes what exists and makes it anew, which loses its data."
    #: Options that are permissions of the request (``core.ensure.Permissions``), besides ``on_immutable``.
    permissions = ()
    #: Fields of the kind that are no options here, as the module has options of its own for them.
    replaced = ()
    #: Options that are no fields of the kind.
    own = ()

    def __init__(self, kind=None):
        self.kind = kind or self.kind
        self.name = self.kind.noun
        self.fields = tuple(f for f in self.kind.settable() if f.name not in self.replaced and f.option is not False)
        self.options = self.fields + self.own + self.common() + WAITING

    def common(self):
        """``state``, ``on_immutable``, the permissions, and ``purge_FIELD`` for fields that can be added to."""
        names = {field.name for field in self.fields}
        purge = {"purge_" + name: Option(Boolean(), "Whether %s missing in O(%s) are removed, when O(%s) is given."
                                         % (parts, name, name), default=True)
                 for name, parts in MERGED.items() if name in names}
        return collect(
            state=Option(Choices(*self.states, ABSENT), self.state_doc, default=PRESENT),
            on_immutable=Option(
                Choices(*self.on_immutable), "What to do when an option differs that is fixed once made. V(fail) names "
                "it, V(ignore) leaves it with a warning, " + self.on_immutable_doc, default="fail"), **purge,
        ) + self.permissions

    @property
    def rules(self):
        return {"required_one_of": [["name", "id"]]}

    def want(self, params):
        """The desired document out of *params*."""
        want = {name: as_texts(self.kind.field(name), value) for name, value in given(self.fields, params).items()}
        want.update(self.states[params["state"]])
        want.pop("id", None)  # it is the key
        if params.get("id") is None and want.get("name") and is_uuid(want["name"]):
            del want["name"]
        return want

    def allowed(self, params):
        """The permissions of the request out of *params*, by name."""
        found = {option.name: params[option.name] for option in self.permissions if params.get(option.name)}
        return dict(found, on_immutable=params["on_immutable"])

    def merge(self, params):
        """Names of fields whose content is added to what is there."""
        return [name for name in MERGED if params.get("purge_" + name) is False and name in params]

    def key(self, params):
        """What the resource of *params* is known by; a kind without names of its own overrides this."""
        return key_of(params)

    def execute(self, params, check_mode, diff_mode, client):
        key = self.key(params)
        waiting = {"dry_run": check_mode, "wait": params["wait"], "timeout": params["timeout"]}
        if params["state"] == ABSENT:
            answer = client.delete(self.kind.noun, key, **waiting)
        else:
            answer = self.ensure(client, key, params, waiting)
        return results.changed(self.kind.noun, params.get("name") or key, answer, diff_mode)

    def ensure(self, client, key, params, waiting):
        """Ask for the resource; a kind that needs more than one call overrides this."""
        return client.ensure(self.kind.noun, key, self.want(params), merge=self.merge(params),
                             **self.allowed(params), **waiting)
