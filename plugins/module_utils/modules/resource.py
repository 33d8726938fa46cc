# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that bring a resource to the described state, or remove it."""

from __future__ import annotations

from ..core.options import WAITING, Option, name_options
from ..core.values import Boolean, Choices
from ..foreign import FOREIGN
from . import results
from .module import ABSENT, PRESENT, Module, key_from_params, looks_like_uuid, texts_of_field

#: Fields to whose content a task can add, and the word for their parts in the option ``purge_FIELD``.
MERGED = {"metadata": "keys", "tags": "tags", "hosts": "hosts", "users": "users"}


class ResourceModule(Module):
    """The base class of the modules that create or change a resource of the type *kind*, or remove it. Subclasses
    override what is different for their resource type.
    """

    #: Values of ``state`` except the one that removes the resource, each with the fields that it adds to the desired
    #: document.
    states = {PRESENT: {}}
    removed = ABSENT
    state_doc = "V(present) creates a missing resource, and updates given options that differ. V(absent) removes it."
    #: Values of ``on_immutable``, and the documentation of those after the second.
    on_immutable = ("fail", "ignore", "recreate")
    on_immutable_doc = "V(recreate) removes the resource and creates it again, which loses its data."
    #: Options that are permissions of the request (``core.ensure.Permissions``), in addition to ``on_immutable``.
    permissions = ()
    #: Fields of the kind that are no options here, because the module has its own options for them.
    replaced = ()
    #: Options that are no fields of the kind.
    own = ()

    def __init__(self, kind=None):
        self.kind = kind or self.kind
        self.name = self.kind.noun
        self.fields = tuple(f for f in self.kind.settable() if f.name not in self.replaced and f.option is not False)
        self.foreign = FOREIGN.get(self.name, ())
        self.options = self.fields + self.own + self.common() + WAITING + self.foreign

    def common(self):
        """Return the options that all modules for resources share: ``state``, ``on_immutable``, the permissions, and
        ``purge_FIELD`` for fields whose content can be extended.
        """
        names = {field.name for field in self.fields}
        purge = {"purge_" + name: Option(Boolean(), "Whether %s missing in O(%s) are removed, when O(%s) is given."
                                         % (parts, name, name), default=True)
                 for name, parts in MERGED.items() if name in names}
        return name_options(
            state=Option(Choices(*self.states, self.removed), self.state_doc, default=PRESENT),
            on_immutable=Option(
                Choices(*self.on_immutable), "The reaction to an option that differs and cannot change. V(fail) fails "
                "with its name, V(ignore) warns and leaves it, " + self.on_immutable_doc, default="fail"), **purge,
        ) + self.permissions

    @property
    def rules(self):
        return {"required_one_of": [["name", "id"]]}

    def want(self, params):
        """Return the desired fields of the resource from the module parameters *params*."""
        want = {field.name: texts_of_field(field, params[field.option]) for field in self.fields
                if params.get(field.option) is not None}
        want.update(self.states[params["state"]])
        want.pop("id", None)  # it is the key
        if params.get("id") is None and want.get("name") and looks_like_uuid(want["name"]):
            del want["name"]
        return want

    def allowed(self, params):
        """Return the options of ``core.ensure.Permissions`` that the module parameters *params* set, by name."""
        permissions = {option.name: params[option.name] for option in self.permissions if params.get(option.name)}
        return dict(permissions, on_immutable=params["on_immutable"])

    def merge(self, params):
        """Return the names of list and mapping fields whose values in the module parameters *params* are added to the
        existing values, instead of replacing them.
        """
        return [name for name in MERGED if params.get("purge_" + name) is False and name in params]

    def key(self, params):
        """Return the key of the resource from the module parameters *params*. Modules for resources without names
        override this.
        """
        return key_from_params(params)

    def execute(self, params, check_mode, diff_mode, client):
        key = self.key(params)
        waiting = {"dry_run": check_mode, "wait": params["wait"], "timeout": params["timeout"]}
        if params["state"] == self.removed:
            answer = client.delete(self.kind.noun, key, **waiting)
        else:
            answer = self.ensure(client, key, params, waiting)
        return results.module_result(self.kind.noun, params.get("name") or key, answer, diff_mode)

    def ensure(self, client, key, params, waiting):
        """Create or change the resource *key* with ``Client.ensure``, and return the answer. *waiting*: further
        arguments of ``Client.ensure``, such as timeout. Subclasses that need more than one call override this.
        """
        return client.ensure(self.kind.noun, key, self.want(params), merge=self.merge(params),
                             **self.allowed(params), **waiting)
