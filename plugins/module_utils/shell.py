# SPDX-License-Identifier: GPL-3.0-or-later
"""The Ansible face: from a module's parameters to the core and back. The only importer of Ansible in module_utils.

``execute`` is shared by the module process (``run``) and by the action plugin, so both give the same result.
"""

from __future__ import annotations

import functools
import json

from ansible.module_utils.basic import AnsibleModule, env_fallback

from . import clouds
from .core.client import Client
from .core.errors import MagnetarError
from .core.login import Login
from .core.options import CONNECTION, check, client_arguments, spec
from .faces import results

HIDDEN = "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"


@functools.lru_cache(maxsize=None)
def argument_spec(face):
    """The argument spec of the module *face*."""
    found = spec(face.all_options, env_fallback)
    rules = {"required_one_of": [["name", "id"]]}
    if "servers" in found:
        found["servers"].update(options=spec(face.item_options), **rules)
    return found


def run(face):
    """Be the module: read parameters, do it, print the result."""
    module = AnsibleModule(argument_spec=argument_spec(face), supports_check_mode=True, **face.rules)
    module.no_log_values -= texts_in(face, module.params)
    result = execute(face, module.params, module.check_mode, module._diff)
    for text in result.pop("warnings", ()):
        module.warn(text)
    result["invocation"] = {"module_args": shown(face, module.params)}
    if result.pop("failed", False):
        module.fail_json(**result)
    module.exit_json(**result)


def execute(face, params, check_mode, diff_mode, client=None):
    """The result of the module *face* for checked *params*; failures are results with ``failed`` and ``msg``."""
    own = client is None
    try:
        check(face.options, params)
        client = client or connect(params)
        try:
            return face.execute(params, check_mode, diff_mode, client)
        finally:
            if own:
                client.close()
    except MagnetarError as error:
        return results.failed(error)


def connect(params):
    """The client that *params*, the options of the connection, describe; raises ``InvalidField``."""
    check(CONNECTION, params)
    arguments = client_arguments(params)
    described = clouds.described(params)
    if described is not None:
        return Client(**dict(arguments, login=Login(described, arguments["connect_timeout"])))
    if str(arguments["endpoint"]).startswith("ssh:"):
        from .ssh.dial import Dial

        arguments["dial"] = Dial(arguments["endpoint"], params.get("ssh_private_key"), params.get("ssh_known_hosts"))
    return Client(**arguments)


def texts_in(face, params):
    """Leaves of structured secrets: each is too common a word to be blanked out of the whole result."""
    return {text for name in face.masked if not isinstance(params.get(name), str)
            for text in _leaves(params.get(name))}


def shown(face, params):
    """*params* as the result repeats them: structured secrets hidden, in items of a batch as well."""
    found = json.loads(json.dumps(params, default=str))
    for holder in [found] + list(found.get("servers") or []):
        for name in face.masked:
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
