# SPDX-License-Identifier: GPL-3.0-or-later
"""The base class of all modules: their options, and the method that does their work."""

from __future__ import annotations

from ..core.errors import InvalidField, NotFound
from ..core.fields import Record
from ..core.http.endpoint import parse_endpoint
from ..core.kinds import CLOUD_KINDS
from ..core.kinds.common import REFERENCE
from ..core.options import CONNECTION
from ..core.values import ListOf, MapOf, Text, Uuid

PRESENT, ABSENT = "present", "absent"


class Module:
    """A module: its ``name``, its ``options`` (without the connection's), rules between them, and ``execute``.

    ``kind`` is the module's ``Kind``, if any. ``rules`` are keyword arguments of ``AnsibleModule``. ``files`` names
    options that are files on the machine where the module runs. ``masked`` names options whose value is hidden in the
    result's invocation. ``cloud_only``: only a cloud supports the module, as is always so for a kind in
    ``CLOUD_KINDS``.
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
        """The module's own options and the options of the connection."""
        return self.options + CONNECTION

    def check_endpoint(self, client):
        """Raise ``InvalidField`` when the module needs a cloud and *client* uses the unix socket of an agent."""
        if (self.cloud_only or self.kind in CLOUD_KINDS) and client.host is None:
            raise InvalidField("cloud", "is required: %s is about a cloud, and %s is an agent. Name a cloud of "
                               "clouds.yaml, or give the API of one as endpoint" % (self.name, client.endpoint))

    def execute(self, params, check_mode, diff_mode, client):
        """Do the work with *client* and return the result of the module. Raises ``MagnetarError``."""
        raise NotImplementedError


def key_from_params(params, where=""):
    """Return the key of the resource that *params* name: ``id``, otherwise ``name``. Raises ``InvalidField`` for an
    empty value, which an argument spec accepts. *where* precedes the option in its message.
    """
    for option in ("id", "name"):
        if params.get(option) is not None:
            return REFERENCE.check(params[option], where + option)
    raise InvalidField(where + "name", "is required; give it, or id")


def checked_key_part(params, option):
    """Return the value of *option* in *params*, for use as one part of a key with parts that are separated by colons,
    such as ``SERVER:VOLUME``. Only the last part may contain colons. Raises ``InvalidField`` for an empty value.
    """
    return REFERENCE.check(params[option], option)


def checked_endpoint(params, option):
    """Return the value of the endpoint *option* in *params*. Raises ``InvalidField`` naming the option when it is not
    an endpoint.
    """
    try:
        parse_endpoint(params[option])
    except InvalidField as error:
        raise InvalidField(option, error.details["rule"], params[option]) from None
    return params[option]


def get_resource(client, noun, key):
    """Return the resource *key* of the type *noun*, such as server. Raises ``NotFound`` with a message for users of a
    task."""
    try:
        return client.get(noun, key)
    except NotFound as error:
        raise NotFound("There is no %s %s on this host." % (noun, key), **error.details) from None


def looks_like_uuid(text):
    """Return whether *text* is a uuid. A name in the form of a uuid counts as one."""
    try:
        Uuid().check(text, "id")
    except InvalidField:
        return False
    return True


def scalar_text(value):
    """Return a boolean as ``true`` or ``false``, and a number as text; other values unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


def texts_of_field(field, value):
    """Return *value* of *field*. If the field is a mapping of texts, its numbers and booleans become texts: YAML reads
    the texts ``1`` and ``yes`` as a number and a boolean.
    """
    if isinstance(field.value, MapOf) and isinstance(field.value.value, Text):
        return {str(key): scalar_text(item) for key, item in value.items()}
    if isinstance(field.value, ListOf) and isinstance(field.value.item, Record):
        return [_without_omitted(item) for item in value]
    return _without_omitted(value) if isinstance(field.value, Record) else value


def _without_omitted(item):
    """Return *item* without omitted keys, whose value from Ansible is ``None``."""
    return {name: value for name, value in item.items() if value is not None} if isinstance(item, dict) else item
