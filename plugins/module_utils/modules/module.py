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
    """The base class of all modules.

    ``name``: the module's name. ``options``: its options, except the connection options. ``kind``: its resource type,
    if any. ``rules``: keyword arguments of ``AnsibleModule``, such as ``mutually_exclusive``. ``files``: names of
    options with files on the machine where the module runs. ``masked``: names of options whose value is hidden in
    ``invocation`` of the result. ``cloud_only``: the module needs a cloud; always so for a kind in ``CLOUD_KINDS``.
    """

    name = ""
    kind = None
    cloud_only = False
    options = ()
    rules = {}
    files = ()
    masked = ()
    #: Options of the module in openstack.cloud that this module names otherwise, or refuses.
    foreign = ()

    @property
    def all_options(self):
        """Return the module's own options and the options of the connection."""
        return self.options + CONNECTION

    def translate(self, params):
        """Return *params* with the options of openstack.cloud replaced by the module's own. Raises ``InvalidField``."""
        translated = dict(params)
        for option in self.foreign:
            if translated.get(option.option) is not None:
                option.translate(translated)
        return translated

    def check_endpoint(self, client):
        """Raise ``InvalidField`` if the module needs a cloud and *client* is connected to the unix socket of an agent.
        """
        if (self.cloud_only or self.kind in CLOUD_KINDS) and client.host is None:
            raise InvalidField("cloud", "is required: %s is about a cloud, and %s is an agent. Name a cloud of "
                               "clouds.yaml, or give the API of one as endpoint" % (self.name, client.endpoint))

    def execute(self, params, check_mode, diff_mode, client):
        """Do the module's work with *client*, and return the module result. *params*: the validated module parameters.
        Raises ``MagnetarError``.
        """
        raise NotImplementedError


def key_from_params(params, where=""):
    """Return the key of the resource from the module parameters *params*: ``id``, or else ``name``. *where*: a prefix
    of the option's name in errors. Raises ``InvalidField`` for an empty value, which the argument spec does not refuse.
    """
    for option in ("id", "name"):
        if params.get(option) is not None:
            return REFERENCE.check(params[option], where + option)
    raise InvalidField(where + "name", "is required; give it, or id")


def checked_key_part(params, option):
    """Return the value of *option* in the module parameters *params*, for use as a part of a key such as
    ``SERVER:VOLUME``. Raises ``InvalidField`` for an empty value. Colons are not refused, although only the last part
    of a key may contain them.
    """
    return REFERENCE.check(params[option], option)


def checked_endpoint(params, option):
    """Return the value of *option* in the module parameters *params*. Raises ``InvalidField`` for *option* if it is not
    the URL of an endpoint.
    """
    try:
        parse_endpoint(params[option])
    except InvalidField as error:
        raise InvalidField(option, error.details["rule"], params[option]) from None
    return params[option]


def get_resource(client, noun, key):
    """Return the resource *key* of the type *noun*, such as server. Raises ``NotFound`` with a message for the user of
    a module.
    """
    try:
        return client.get(noun, key)
    except NotFound as error:
        raise NotFound("There is no %s %s on this host." % (noun, key), **error.details) from None


def looks_like_uuid(text):
    """Return whether *text* has the form of a uuid, with or without hyphens."""
    try:
        Uuid().check(text, "id")
    except InvalidField:
        return False
    return True


def scalar_text(value):
    """Return *value* as a string if it is a boolean (``true`` or ``false``) or a number; otherwise unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


def texts_of_field(field, value):
    """Return *value* of *field*, adapted to the API. In a mapping of strings, numbers and booleans become strings,
    because YAML reads ``1`` and ``yes`` as such. In objects, keys with the value ``None`` are removed.
    """
    if isinstance(field.value, MapOf) and isinstance(field.value.value, Text):
        return {str(key): scalar_text(item) for key, item in value.items()}
    if isinstance(field.value, ListOf) and isinstance(field.value.item, Record):
        return [_without_omitted(item, field.value.item) for item in value]
    return _without_omitted(value, field.value) if isinstance(field.value, Record) else value


def _without_omitted(item, record):
    """Return the mapping *item* without omitted keys, which Ansible sets to ``None``. Aliases of the fields of *record*
    are removed too, because Ansible also sets the field itself. Return any other *item* unchanged."""
    if not isinstance(item, dict):
        return item
    aliases = {alias for field in record.fields for alias in field.aliases}
    return {name: value for name, value in item.items() if value is not None and name not in aliases}
