# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module: check its parameters, connect, execute, report. Nothing else in module_utils imports Ansible.

The module process (``run``) and the action plugin share ``execute``, so both give the same result.
"""

from __future__ import annotations

import copy
import functools
import json

from ansible.module_utils.basic import AnsibleModule, env_fallback
from ansible.module_utils.common.parameters import DEFAULT_TYPE_VALIDATORS

from . import clouds
from .core.errors import InvalidField, MagnetarError
from .core.http.client import Client
from .core.http.login import Login
from .core.options import CONNECTION, check_options, client_arguments, spec
from .modules import results

HIDDEN = "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"
#: What the value of an option of a type has to be. Ansible takes texts that say it for all of them.
SHAPES = {"int": "a whole number", "float": "a number", "bool": "yes or no", "list": "a list", "dict": "a dictionary"}


@functools.lru_cache(maxsize=None)
def argument_spec(module):
    """The argument spec of *module*."""
    found = spec(module.all_options, env_fallback)
    if "servers" in found:
        found["servers"].update(options=spec(module.item_options), required_one_of=[["name", "id"]])
    return found


class _Process(AnsibleModule):
    """Says which argument does not fit, where Ansible itself tells of conversions between types."""

    def _load_params(self):
        super()._load_params()
        self._given = copy.deepcopy(self.params)  # Ansible takes out what does not fit

    def fail_json(self, msg, **more):
        wrong = misfit(self.argument_spec, self._given)
        super().fail_json(**(dict(more, msg=msg) if wrong is None else refused(wrong)))


def refused(wrong):
    """The result for arguments that do not fit. They are not repeated: Ansible does not know yet which are secret."""
    return dict(results.failed(wrong), invocation={"module_args": {}})


def misfit(options, arguments, prefix=""):
    """An ``InvalidField`` about the first of *arguments* that is nothing its option takes; ``None`` where all are.
    *options*: an argument spec."""
    for name, option in options.items():
        words = (name, *option.get("aliases", ()))
        given = [arguments[word] for word in words if arguments.get(word) is not None]
        wrong = _misfit(option, option.get("type", "str"), given[0], prefix + name) if given else None
        if wrong is not None:
            return wrong
    return None


def _misfit(option, kind, value, path):
    try:
        taken = DEFAULT_TYPE_VALIDATORS[kind](value)
    except (TypeError, ValueError):
        return InvalidField(path, _rule(option, kind, value), None if option.get("no_log") else value)
    if kind == "list":
        found = (_misfit(option, option.get("elements", "raw"), part, "%s[%d]" % (path, at))
                 for at, part in enumerate(taken))
        return next((wrong for wrong in found if wrong is not None), None)
    return misfit(option.get("options") or {}, taken, path + ".") if kind == "dict" else None


def _rule(option, kind, value):
    rule = "must be %s" % SHAPES.get(kind, "of type %s" % kind)
    known = list(option.get("options") or ()) if kind == "dict" else []
    if known:
        rule += " of options such as %s" % ", ".join(known[:3])
    if "name" in known and isinstance(value, str):
        rule += "; write - name: %s" % value
    return rule


def run(module):
    """The main function of a module process: read the parameters, execute *module*, print the result."""
    process = _Process(argument_spec=argument_spec(module), supports_check_mode=True, **module.rules)
    process.no_log_values -= texts_in(module, process.params)
    result = execute(module, process.params, process.check_mode, process._diff)
    for text in result.pop("warnings", ()):
        process.warn(text)
    result["invocation"] = {"module_args": shown(module, process.params)}
    if result.pop("failed", False):
        process.fail_json(**result)
    process.exit_json(**result)


def execute(module, params, check_mode, diff_mode, client=None):
    """The result of *module* for checked *params*; a failure is a result with ``failed`` and ``msg``.

    Without *client* it connects as *params* say, and closes the connection.
    """
    own = client is None
    try:
        check_options(module.options, params)
        client = client or connect(params)
        try:
            module.check_endpoint(client)
            return module.execute(params, check_mode, diff_mode, client)
        finally:
            if own:
                client.close()
    except MagnetarError as error:
        return results.failed(error)


def connect(params):
    """A client for the endpoint or cloud that *params* name; raises ``InvalidField``."""
    check_options(CONNECTION, params)
    arguments = client_arguments(params)
    described = clouds.described(params)
    if described is not None:
        return Client(**dict(arguments, login=Login(described, arguments["connect_timeout"])))
    if str(arguments["endpoint"]).startswith("ssh:"):
        from .ssh.dial import SshDial

        arguments["dial"] = SshDial(arguments["endpoint"], params.get("ssh_private_key"), params.get("ssh_known_hosts"))
    return Client(**arguments)


def texts_in(module, params):
    """Texts inside of structured secrets. Many are common words, so they are not hidden all over the result."""
    return {text for name in module.masked if not isinstance(params.get(name), str)
            for text in _leaves(params.get(name))}


def shown(module, params):
    """*params* as ``invocation`` repeats them, with structured secrets hidden, in items of a batch too."""
    found = json.loads(json.dumps(params, default=str))
    for holder in [found] + list(found.get("servers") or []):
        for name in module.masked:
            if holder.get(name) is not None:
                holder[name] = HIDDEN
    return found


def _leaves(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
