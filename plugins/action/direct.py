# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action plugin of all modules: runs a module in Ansible's own process where that gives the same result (direct
execution). Otherwise it starts a module process, which takes about twelve times as long.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from importlib import import_module
from urllib.parse import urlsplit

from ansible import constants as C
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values
from ansible.module_utils.errors import UnsupportedError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.collection_loader._collection_finder import _get_collection_metadata

from ansible_collections.magnetar.compute.plugins.module_utils import clouds, run
from ansible_collections.magnetar.compute.plugins.module_utils.core.errors import MagnetarError
from ansible_collections.magnetar.compute.plugins.module_utils.core.http import transport
from ansible_collections.magnetar.compute.plugins.module_utils.core.http.endpoint import ENDPOINT
from ansible_collections.magnetar.compute.plugins.module_utils.core.options import (
    CONNECTION,
    CONNECTION_FILES,
    DIRECT,
)

# Ansible forks a worker for each task. This file is imported before the fork (see __init__.py), so its imports and
# computations are paid for once per playbook; anything later is paid for in each task.
COLLECTION = "magnetar.compute"
MODULES = {name: import_module("ansible_collections.%s.plugins.modules.%s" % (COLLECTION, name)).MODULE
           for name in _get_collection_metadata(COLLECTION)["action_groups"]["all"]}
for _each in MODULES.values():
    run.argument_spec(_each)
del transport  # imported only so that the client finds it imported
#: Clients of this worker process: a loop uses one connection.
_clients = {}


class ActionModule(ActionBase):
    """The action plugin of all modules of the collection. It runs the module in Ansible's own process if possible,
    which is faster than a new process.
    """

    _supports_check_mode = True
    _supports_async = True
    _supports_diff = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        module = MODULES[self._task.resolved_action.rpartition(".")[2]]
        mode = str(self._task.args.get("direct") or _mode(task_vars))
        if mode not in DIRECT:
            return dict(result, failed=True, msg="direct must be one of %s (got %s)." % (", ".join(DIRECT), mode))
        reason = "direct is never" if mode == "never" else self._unsupported()
        warnings = [self._meant_for_agent(task_vars)] if self._connection.transport == "local" else []
        checked = None if reason else _CheckedTask(module, _plain(self._task.args))
        if checked and not checked.error:
            reason = self._unreachable(module, checked.params)
        if not reason:
            result.update(checked.run(self._task.check_mode, self._task.diff))
        elif mode == "always":
            result.update(
                failed=True, msg="Direct execution is not possible: %s. Set direct to auto." % reason)
        else:
            result.update(self._execute_module(task_vars=task_vars, wrap_async=self._task.async_val))
        if any(warnings):
            result["warnings"] = [*(result.get("warnings") or ()), *warnings]
        return result

    def _meant_for_agent(self, task_vars):
        """Return the text of a warning if an environment variable makes the task use a cloud although the task's host
        has an agent; otherwise ``None``.
        """
        variable = clouds.deciding_variable(self._task.args)
        if variable is None or not _has_agent(task_vars):
            return None
        return ("%s has an agent, and %s in the environment sends the task to a cloud. Set endpoint (%s) in the task "
                "or in module_defaults for the agent, or cloud for the cloud." % (
                    task_vars.get("inventory_hostname"), variable, ENDPOINT))

    def _unsupported(self):
        """Return the reason why a keyword of the task (``async`` or ``environment``) prevents direct execution (in
        Ansible's own process); ``None`` if none does.
        """
        if self._task.async_val:
            return "the task is asynchronous"
        if any(self._task.environment or ()):
            return "the task has an environment of its own"
        return None

    def _unreachable(self, module, params):
        """Return the reason why Ansible's worker process on the controller cannot run the module itself, so that a
        module process on the managed host is needed. An example is a file in *params* that exists only on that host.
        Return ``None`` if the worker can run the module.

        An ssh endpoint is always reached from the controller, with the controller's keys, even if the task uses another
        connection or ``become``.
        """
        cloud = clouds.chosen_cloud(params) is not None
        address = urlsplit("" if cloud else params["endpoint"] or ENDPOINT)
        local = self._connection.transport == "local"
        if cloud and not local:
            return "clouds.yaml and the OS_* variables are those of the host"
        remote = address.scheme == "ssh" and not local
        become = self._connection.become
        if become and not remote and (become.get_option("become_user") or "root") != _user():
            return "the task becomes another user"
        files = [params[name] for name in module.files + (() if remote else CONNECTION_FILES) if params.get(name)]
        if files and not local:
            return "%s is a file on the host" % files[0]
        if any(not os.path.isabs(name) for name in files):
            return "%s is not an absolute path" % files[0]
        if address.scheme == "unix":
            if not local:
                return "the socket is on the host, and the connection is %s" % self._connection.transport
            if not os.access(address.path, os.W_OK):
                return "%s does not exist here or is not open to user %s" % (address.path, _user())
        elif not cloud and not local and not remote and "endpoint" not in self._task.args:
            return "the endpoint comes from the environment of the controller, and the connection is not local"
        return None


class _CheckedTask:
    """A call of *module* (a ``Module``) with the *arguments* of a task, which are validated as ``AnsibleModule``
    validates them.
    """

    def __init__(self, module, arguments):
        self._module = module
        validation = ArgumentSpecValidator(run.argument_spec(module), **module.rules).validate(arguments)
        self.params = validation.validated_parameters
        self._hidden = validation._no_log_values - run.secret_texts(module, self.params)
        self._deprecations = validation._deprecations
        self._warnings = ["Both option %(option)s and its alias %(alias)s are set." % both
                          for both in validation._warnings]
        self.error = _refusal(module, arguments, validation) if validation.error_messages else None

    def run(self, check_mode, diff_mode):
        """Run the module and return the result that a module process would print; for invalid arguments, the failure.
        """
        if self.error:
            result = dict(self.error)
        else:
            result = self._execute(check_mode, diff_mode)
        warnings = self._warnings + result.pop("warnings", [])
        if warnings:
            result["warnings"] = warnings
        if self._deprecations:
            result["deprecations"] = self._deprecations
        result.setdefault("invocation", {"module_args": run.masked_arguments(self._module, self.params)})
        if not self._hidden:
            return result
        plain_values = {name: value for name, value in result.items() if value is None or isinstance(value, bool)}
        return dict(remove_values(result, self._hidden), **plain_values)

    def _execute(self, check_mode, diff_mode):
        try:
            client = _client(self.params)
        except MagnetarError as error:
            return run.results.failure_result(error)
        return run.execute_module(self._module, self.params, check_mode, diff_mode, client)


def _has_agent(task_vars):
    """Return whether the task's host has an agent. This is so if the agent's socket exists on this machine, or if the
    inventory has the host in the group kvm_hosts. It is also so if the inventory has an endpoint without a cloud, or
    variables of the role agent, for the host."""
    if os.path.exists(urlsplit(ENDPOINT).path) or "kvm_hosts" in (task_vars.get("group_names") or ()):
        return True
    return bool(task_vars.get("magnetar_endpoint") and not task_vars.get("magnetar_cloud")) or any(
        name.startswith("agent_") for name in task_vars)


def _refusal(module, arguments, validation):
    """Return the module result (a mapping with ``failed`` and ``msg``) for invalid *arguments*. *validation*: the
    result of Ansible's ``ArgumentSpecValidator``.
    """
    wrong = run.find_misfit(run.argument_spec(module), arguments)
    if wrong is not None:
        return run.refusal_result(wrong)
    unsupported = isinstance(validation.errors[0], UnsupportedError)
    prefix = "Unsupported parameters for (%s) module: " % module.name if unsupported else ""
    return {"failed": True, "msg": prefix + validation.errors.msg}


def _client(params):
    key = (os.getpid(), *(params.get(option.name) for option in CONNECTION))
    if key not in _clients:
        _clients[key] = run.connect_client(params)
    return _clients[key]


def _user():
    return pwd.getpwuid(os.geteuid()).pw_name


def _mode(task_vars):
    """Return the mode of direct execution, that is, running modules in Ansible's own process: auto (the default),
    always or never. The mode comes from the variable ``magnetar_direct``, else from the environment variable
    ``MAGNETAR_DIRECT``, else from ansible.cfg."""
    mode = task_vars.get("magnetar_direct") or os.environ.get("MAGNETAR_DIRECT") or _configured() or "auto"
    if str(mode).lower() in DIRECT:
        return str(mode).lower()
    try:
        return "always" if boolean(mode) else "never"
    except TypeError:
        return str(mode)


def _configured():
    parser = C.config._parsers.get(C.CONFIG_FILE) if C.CONFIG_FILE else None
    return parser.get("magnetar", "direct", fallback=None) if parser else None


def _plain(value):
    """Return *value* in plain Python types, without Ansible's tags, as a module process would read it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return str(value)
