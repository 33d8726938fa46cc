# SPDX-License-Identifier: GPL-3.0-or-later
"""A module as data and one method: its options, and what it does with their values."""

from __future__ import annotations

from ..core.errors import InvalidField, NotFound
from ..core.fields import Record
from ..core.http.endpoint import parse
from ..core.kinds import CLOUD_KINDS
from ..core.kinds.common import REFERENCE
from ..core.options import CONNECTION
from ..core.values import ListOf, MapOf, Text, Uuid

PRESENT, ABSENT = "present", "absent"


class Module:
    """A module: its ``name``, its ``options`` (without the connection's), rules between them, and ``execute``.

    ``kind`` is the ``Kind`` that it is about, if any. ``rules`` are keyword arguments of ``AnsibleModule``. ``files``
    names options that are files on the machine where the module runs. ``masked`` names options whose value is hidden
    in the result's invocation. ``cloud_only``: only a cloud has what it is about, beside the kinds of clouds.
    """

    name = ""
    kind = None
    cloud_only = False
    options = ()
    rules = {}
    files = ()
    masked = ()

    @property
    def all_options(self):
        """The options with those of the connection."""
        return self.options + CONNECTION

    def check_endpoint(self, client):
        """Raise ``InvalidField`` when an agent is asked about what only a cloud has."""
        if (self.cloud_only or self.kind in CLOUD_KINDS) and client.host is None:
            raise InvalidField("cloud", "is required: %s is about a cloud, and %s is an agent. Name a cloud of "
                               "clouds.yaml, or give the API of one as endpoint" % (self.name, client.endpoint))

    def execute(self, params, check_mode, diff_mode, client):
        """Do the work with *client*; returns the result of the module. Raises ``MagnetarError``."""
        raise NotImplementedError


def key_of(params, where=""):
    """The key of the resource that *params* name: ``id``, or else ``name``. An argument spec accepts empty ones.

    *where* comes before the option in the message of the ``InvalidField`` that this raises.
    """
    for option in ("id", "name"):
        if params.get(option) is not None:
            return REFERENCE.check(params[option], where + option)
    raise InvalidField(where + "name", "is required; give it, or id")


def endpoint_of(params, option):
    """The endpoint that *option* names; ``InvalidField`` names that option, too."""
    try:
        parse(params[option])
    except InvalidField as error:
        raise InvalidField(option, error.details["rule"], params[option]) from None
    return params[option]


def find(client, noun, key):
    """The resource *key*; ``NotFound`` with a message for tasks."""
    try:
        return client.get(noun, key)
    except NotFound as error:
        raise NotFound("There is no %s %s on this host." % (noun, key), **error.details) from None


def is_uuid(text):
    """Whether *text* is a uuid. A name that looks like one counts as one."""
    try:
        Uuid().check(text, "id")
    except InvalidField:
        return False
    return True


def as_text(value):
    """A number or boolean as the text that a user means by it; anything else as it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


def as_texts(field, value):
    """*value* of *field*. YAML reads numbers and booleans in a mapping of texts: they become texts again."""
    if isinstance(field.value, MapOf) and isinstance(field.value.value, Text):
        return {str(key): as_text(item) for key, item in value.items()}
    if isinstance(field.value, ListOf) and isinstance(field.value.item, Record):
        return [_as_said(item) for item in value]
    return _as_said(value) if isinstance(field.value, Record) else value


def _as_said(item):
    """A mapping without what it leaves out, which Ansible fills in."""
    return {name: value for name, value in item.items() if value is not None} if isinstance(item, dict) else item
