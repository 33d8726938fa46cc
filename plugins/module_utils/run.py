# SPDX-License-Identifier: GPL-3.0-or-later
"""The run of a module: checking its parameters, executing, reporting. Only this file of module_utils
imports Ansible.

The module process (``run_module_process``) and the action plugin share ``execute_module``, so both give the same
result.
"""

from __future__ import annotations

import copy
import functools
import json

from ansible.module_utils.basic import AnsibleModule, env_fallback
from ansible.module_utils.common.parameters import DEFAULT_TYPE_VALIDATORS

from .connect import connect_client
from .core.errors import InvalidField, MagnetarError
from .core.options import check_options, options_spec
from .modules import results

HIDDEN = "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"
#: Rule for the value of an option of each type. Ansible also accepts texts of these values.
SHAPES = {"int": "a whole number", "float": "a number", "bool": "yes or no", "list": "a list", "dict": "a dictionary"}


@functools.lru_cache(maxsize=None)
def argument_spec(module):
    """Return the argument spec of *module* (a ``Module``) for ``AnsibleModule``."""
    option_specs = options_spec(module.all_options, env_fallback)
    if "servers" in option_specs:
        option_specs["servers"].update(options=options_spec(module.item_options), required_one_of=[["name", "id"]])
    return option_specs


class _Process(AnsibleModule):
    """An ``AnsibleModule`` whose error message for an invalid argument names the argument. Ansible's own message only
    says that a conversion failed.
    """

    def _load_params(self):
        super()._load_params()
        self._given = copy.deepcopy(self.params)  # Ansible removes values that do not fit

    def fail_json(self, msg, **more):
        wrong = find_misfit(self.argument_spec, self._given)
        super().fail_json(**(dict(more, msg=msg) if wrong is None else refusal_result(wrong)))


def refusal_result(error):
    """Return the module result for *error*, an invalid argument. The result does not contain the arguments, because
    Ansible does not know yet which of them are secret.
    """
    return dict(results.failure_result(error), invocation={"module_args": {}})


def find_misfit(options, arguments, prefix=""):
    """Return an ``InvalidField`` for the first of *arguments* whose value does not have the type of its option;
    ``None`` if all are valid. *options*: an argument spec. *prefix*: a prefix of option names in the error.
    """
    for name, option in options.items():
        words = (name, *option.get("aliases", ()))
        present = [arguments[option_name] for option_name in words if arguments.get(option_name) is not None]
        wrong = _misfit(option, option.get("type", "str"), present[0], prefix + name) if present else None
        if wrong is not None:
            return wrong
    return None


def _misfit(option, kind, value, path):
    try:
        taken = DEFAULT_TYPE_VALIDATORS[kind](value)
    except (TypeError, ValueError):
        return InvalidField(path, _rule(option, kind, value), None if option.get("no_log") else value)
    if kind == "list":
        misfits = (_misfit(option, option.get("elements", "raw"), part, "%s[%d]" % (path, at))
                   for at, part in enumerate(taken))
        return next((wrong for wrong in misfits if wrong is not None), None)
    return find_misfit(option.get("options") or {}, taken, path + ".") if kind == "dict" else None


def _rule(option, kind, value):
    rule = "must be %s" % SHAPES.get(kind, "of type %s" % kind)
    suboptions = list(option.get("options") or ()) if kind == "dict" else []
    if suboptions:
        rule += " of options such as %s" % ", ".join(suboptions[:3])
    if "name" in suboptions and isinstance(value, str):
        rule += "; write - name: %s" % value
    return rule


def run_module_process(module):
    """Run the module process: read the parameters from Ansible, execute *module*, and print the result."""
    process = _Process(argument_spec=argument_spec(module), supports_check_mode=True, **module.rules)
    process.no_log_values -= secret_texts(module, process.params)
    result = execute_module(module, process.params, process.check_mode, process._diff)
    for text in result.pop("warnings", ()):
        process.warn(text)
    result["invocation"] = {"module_args": masked_arguments(module, process.params)}
    if result.pop("failed", False):
        process.fail_json(**result)
    process.exit_json(**result)


def execute_module(module, params, check_mode, diff_mode, client=None):
    """Execute *module* with the validated parameters *params*, and return the module result. After an error, the result
    has ``failed`` and ``msg``.

    *client*: an open client; ``None``: connect as *params* say, and close the connection afterwards.
    """
    owns_client = client is None
    try:
        check_options(module.options, params)
        params = module.translate(params)
        client = client or connect_client(params)
        try:
            module.check_endpoint(client)
            return module.execute(params, check_mode, diff_mode, client)
        finally:
            if owns_client:
                client.close()
    except MagnetarError as error:
        return results.failure_result(error)


def secret_texts(module, params):
    """Return all strings in the values of those secret options that are lists or mappings. The caller exempts these
    strings from Ansible's masking, which would otherwise hide common words everywhere in the output;
    ``masked_arguments`` hides the options themselves.
    """
    return {text for name in module.masked if not isinstance(params.get(name), str)
            for text in _leaves(params.get(name))}


def masked_arguments(module, params):
    """Return *params* in the form for ``invocation`` of the module result. The values of the module's ``masked``
    options are hidden, also in the items of ``servers``. Options that an item omits are not included.
    """
    items = [{name: value for name, value in item.items() if value is not None} for item in params.get("servers") or ()]
    arguments = json.loads(json.dumps(dict(params, servers=items) if items else params, default=str))
    for holder in [arguments] + list(arguments.get("servers") or []):
        for name in module.masked:
            if holder.get(name) is not None:
                holder[name] = HIDDEN
    return arguments


def _leaves(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
