# SPDX-License-Identifier: GPL-3.0-or-later
"""The declarations of an estate: read from a folder and from the task, checked, and converted to requests."""

from __future__ import annotations

import difflib
import os

from ..core.errors import InvalidField
from ..core.options import CONNECTION, Option, applies_default
from ..modules.module import ABSENT
from .nouns import MODULES, NOUNS, REFUSED

SUFFIXES = (".yml", ".yaml")
#: Keys of a declaration that are no nouns.
PLACES, DEFAULTS = "places", "defaults"


class Declared:
    """A resource that the user declares. *place*: the name of its agent or cloud. *noun*: its type. *key*: its key in
    requests. *want*: its desired fields, ``None`` if it must not exist. *permissions*: options of
    ``core.ensure.Permissions``. *source*: where it is declared, such as a file.
    """

    def __init__(self, place, noun, name, key, want, permissions, source):
        self.place, self.noun, self.name, self.key = place, noun, name, key
        self.want, self.permissions, self.source = want, permissions, source

    def request(self):
        """Return the resource as an item of a batch request."""
        return dict(self.permissions, key=self.key, want=self.want)


def read_folder(folder):
    """Read the YAML files in the directory *folder* and its subdirectories, sorted by path. Return a list of (source,
    declaration), where source is the file, for messages. Hidden files and directories are skipped. Raises
    ``InvalidField`` if a file cannot be read as YAML.
    """
    if not os.path.isdir(folder):
        raise InvalidField("folder", "is not a folder here", folder)
    paths = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [os.path.join(parent, name) for name in names
                  if name.endswith(SUFFIXES) and not name.startswith(".")]
    return [resource for path in sorted(paths) for resource in _read_file(path)]


def _read_file(path):
    try:
        import yaml
    except ImportError:
        raise InvalidField("folder", "needs PyYAML on the machine where the task is done; install it, or use "
                           "declarations") from None
    try:
        with open(path, encoding="utf-8") as stream:
            documents = list(yaml.safe_load_all(stream))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InvalidField("folder", "%s cannot be read as YAML: %s" % (path, reason)) from None
    resources = []
    for number, document in enumerate(documents, 1):
        source = path if len(documents) == 1 else "%s (document %d)" % (path, number)
        for at, declaration in enumerate(document if isinstance(document, list) else [document]):
            if declaration is not None:
                resources.append((source + ("[%d]" % at if isinstance(document, list) else ""), declaration))
    return resources


def declared_resources(sources, places):
    """Return a ``Declared`` for each resource in *sources*, a list of (source, declaration) as ``read_folder`` returns
    it. *places*: the names of all agents and clouds, which apply to a declaration without ``places``. Raises
    ``InvalidField``.
    """
    declared, first = [], {}
    for source, declaration in sources:
        for resource in _resources(source, declaration, places):
            key = (resource.place, resource.noun, resource.key)
            if key in first:
                raise InvalidField(resource.source, "declares %s %r at %s, as %s does. Declare each resource once" % (
                    resource.noun, resource.name, resource.place, first[key]))
            first[key] = resource.source
            declared.append(resource)
    return declared


def _resources(source, declaration, places):
    if not isinstance(declaration, dict):
        raise InvalidField(source, "must be a mapping of nouns to lists, such as server: [{name: web1}]", declaration)
    for option_name in declaration:
        if option_name not in (PLACES, DEFAULTS, *NOUNS):
            near = difflib.get_close_matches(str(option_name), NOUNS, 1)
            raise InvalidField("%s: %s" % (source, option_name), "is no noun of an estate; " + (
                "did you mean %s?" % near[0] if near else "they are %s" % ", ".join(NOUNS)))
    defaults = declaration.get(DEFAULTS) or {}
    if not isinstance(defaults, dict) or set(defaults) - set(NOUNS):
        raise InvalidField("%s: defaults" % source, "must be a mapping of nouns to options, such as server: {state: "
                           "running}")
    for noun in NOUNS:
        items = declaration.get(noun) or []
        if not isinstance(items, list):
            raise InvalidField("%s: %s" % (source, noun), "must be a list", items)
        for at, options in enumerate(items):
            where = "%s: %s[%d]" % (source, noun, at)
            for place in _chosen_places(source, declaration, places):
                yield _resource(place, noun, options, defaults.get(noun) or {}, where)


def _chosen_places(source, declaration, places):
    chosen = declaration.get(PLACES)
    if chosen is None:
        return places
    chosen = [chosen] if isinstance(chosen, str) else chosen
    if not isinstance(chosen, list):
        raise InvalidField("%s: places" % source, "must be a list of names", chosen)
    for name in chosen:
        if name not in places:
            raise InvalidField("%s: places" % source, "names an unknown place; known are %s" % ", ".join(places), name)
    return chosen


def _resource(place, noun, options, defaults, where):
    module = MODULES[noun]
    if not isinstance(options, dict) or not isinstance(defaults, dict):
        raise InvalidField(where, "must be a mapping of the options of magnetar.compute.%s" % noun, options)
    params = checked_options(module, dict(defaults, **options), where)
    try:
        params = module.translate(params)
        key = module.key(params)
        want = None if params["state"] == ABSENT else module.want(params)
    except InvalidField as error:
        raise InvalidField("%s.%s" % (where, error.details["field"]), error.details["rule"]) from None
    permissions = dict(module.allowed(params))
    merge = module.merge(params) if want is not None else []
    if merge:
        permissions["merge"] = merge
    return Declared(place, noun, params.get("name") or key, key, want, permissions, where)


def checked_options(module, options, where):
    """Validate a resource's declared *options* with the argument spec of *module*. Return all parameters of the module,
    as Ansible passes them: with defaults, and ``None`` for omitted ones. *where*: a prefix of option names in errors.
    Raises ``InvalidField``.
    """
    connection = {option.name for option in CONNECTION}
    options_by_name = {option.option: option for option in module.options
                       if isinstance(option.option, str) and option.option not in connection}
    names = {alias: name for name, option in options_by_name.items() for alias in (name, *option.aliases)}
    params = {name: option.default if applies_default(option) else None for name, option in options_by_name.items()}
    for word, value in options.items():
        name = names.get(word)
        if name is None or name in REFUSED:
            near = difflib.get_close_matches(str(word), [each for each in options_by_name if each not in REFUSED], 1)
            hint = "; did you mean %s?" % near[0] if near else ""
            raise InvalidField("%s.%s" % (where, word), REFUSED.get(name) or (
                "is not an option of magnetar.compute.%s" % module.name + hint))
        if value is not None:
            option = options_by_name[name]
            params[name] = option.check(value, "%s.%s" % (where, word)) if isinstance(option, Option) else value
    for group in module.rules.get("mutually_exclusive", ()):
        used = [name for name in group if params.get(name) is not None]
        if len(used) > 1:
            raise InvalidField("%s.%s" % (where, used[0]), "cannot be combined with %s" % used[1])
    return params
