# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible options derived from declarations of fields: argument specs, and the documentation of options.

An omitted option is ``None`` and leaves the field unchanged; so the documentation states a field's default for new
resources, and the argument spec does not. Options of a module itself (``Option``) have real defaults.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping, Optional

from .fields import UNSET, Field, Record
from .http.endpoint import ENDPOINT
from .values import Boolean, Choices, Integer, ListOf, Text, Value

#: Values of the option ``direct``.
DIRECT = ("auto", "always", "never")


class Option(Field):
    """An option of a module that is not a field of a resource, such as the endpoint. If the option is omitted, its
    default is applied. *env*: the environment variable that may set it.
    """

    def __init__(self, value: Value, doc: str, env: Optional[str] = None, **kwargs: Any) -> None:
        super().__init__(value, doc, **kwargs)
        self.env = env


class File(Text):
    """The value type of paths of files on the machine where the module runs."""

    def option(self) -> dict[str, Any]:
        return {"type": "path"}


def name_options(**options: Field) -> tuple[Field, ...]:
    """Set the name of each option to its keyword, and return the options as a tuple."""
    return tuple(option.with_name(name) for name, option in options.items())


CONNECTION = name_options(
    endpoint=Option(Text(), "The agent to ask: V(unix:///PATH) on the host itself, V(https://HOST[:PORT]), or "
                    "V(ssh://[USER@]HOST[:PORT][/PATH]), which goes to the socket of that host with Paramiko. Or the "
                    "API of a cloud, V(https://HOST[:PORT]) with one of its tokens as O(token). Without it and without "
                    "C(cloud) it is V(%s)." % ENDPOINT,
                    env="MAGNETAR_ENDPOINT"),
    cloud=Option(Text(), "Name of a cloud in C(clouds.yaml), whose API is asked in place of an agent; O(endpoint) "
                 "wins. The file is E(OS_CLIENT_CONFIG_FILE), or the one in the current folder, "
                 "C(~/.config/openstack) or C(/etc/openstack); C(secure.yaml) in the same folder is also read. "
                 "Without O(endpoint) and C(cloud), the C(OS_*) variables are used when E(OS_AUTH_URL) is set, or the "
                 "only cloud in the file that E(OS_CLIENT_CONFIG_FILE) names.", env="OS_CLOUD"),
    token=Option(Text(), "Bearer token for an C(https) endpoint.", env="MAGNETAR_TOKEN", secret=True),
    ca_cert=Option(File(), "File with the CA certificates that the server's certificate is checked against. "
                   "Without it the system's are used.", env="MAGNETAR_CA_CERT", aliases=("cacert",)),
    client_cert=Option(File(), "File with a client certificate, in place of a token.", env="MAGNETAR_CLIENT_CERT",
                       aliases=("cert",)),
    client_key=Option(File(), "File with the key of O(client_cert); not needed when that file has it too.",
                      env="MAGNETAR_CLIENT_KEY", aliases=("key",)),
    validate_certs=Option(Boolean(), "Whether the server's certificate is checked. Without it anybody on the way can "
                          "read and change everything.", env="MAGNETAR_VALIDATE_CERTS", default=True,
                          aliases=("verify",)),
    ssh_private_key=Option(File(), "File with the private key for an C(ssh) endpoint; no other key is tried. Without "
                           "it, keys of the SSH agent and the usual files of C(~/.ssh) are tried.",
                           env="MAGNETAR_SSH_PRIVATE_KEY"),
    ssh_known_hosts=Option(File(), "File with host keys for an C(ssh) endpoint, in addition to C(~/.ssh/known_hosts) "
                           "and C(/etc/ssh/ssh_known_hosts). A host with an unknown key is refused.",
                           env="MAGNETAR_SSH_KNOWN_HOSTS"),
    api_timeout=Option(Integer(1), "Seconds for the endpoint to accept a connection.", default=5),
    timeout=Option(Integer(1), "Seconds that the task may take as a whole. A change that takes longer goes on; the "
                   "error names its operation.", default=180, aliases=("wait_timeout",)),
    direct=Option(Choices(*DIRECT), "Place of execution. V(auto) runs in the Ansible process if the result is the "
                  "same, V(never) always starts a module process, V(always) fails if direct execution is not "
                  "possible. The default is the variable C(magnetar_direct), then E(MAGNETAR_DIRECT), then C(direct) "
                  "in section C([magnetar]) of C(ansible.cfg), then V(auto)."),
)
#: Files of the connection, which exist on the machine where the module runs.
CONNECTION_FILES = ("ca_cert", "client_cert", "client_key", "ssh_private_key", "ssh_known_hosts")

WAITING = name_options(
    wait=Option(Boolean(), "Whether to wait until the change is done. Without it, a long change returns "
                "RV(operation) and continues in the background.", default=True),
)


def options_spec(fields: Iterable[Field], fallback: Any = None) -> dict[str, Any]:
    """Return the argument spec of ``AnsibleModule`` for *fields*.

    *fallback*: Ansible's function ``env_fallback``. The caller passes it, because this package does not import Ansible.
    """
    return {name: _spec(field, fallback) for name, field in _visible(fields)}


def options_documentation(fields: Iterable[Field]) -> dict[str, Any]:
    """Return the documentation of *fields* for ``ansible-doc``: the mapping ``options``."""
    return {name: _documented(field) for name, field in _visible(fields)}


def plugin_documentation(fields: Iterable[Field]) -> dict[str, Any]:
    """Return the documentation of *fields* for a plugin: the mapping ``options``. Unlike for modules, Ansible itself
    reads the environment variables, and paths have the type ``str``, because plugins expand them.
    """
    options = options_documentation(fields)
    options.pop("direct", None)
    for name, field in _visible(fields):
        env = getattr(field, "env", None)
        if name in options and env:
            options[name].update(description=[field.doc], env=[{"name": env}])
        if name in CONNECTION_FILES:
            options[name]["type"] = "str"
    return options


def check_options(options: Iterable[Field], params: Mapping[str, Any], prefix: str = "") -> None:
    """Raise ``InvalidField`` if *params* break a rule of *options* that an argument spec cannot express: the range of a
    number, or a non-empty text. *prefix*: a prefix of the option's name in the error. Fields of resources are not
    checked; the agent validates them.
    """
    for name, option in _visible(options):
        if params.get(name) is not None and isinstance(option, Option) and _bounded(option.value):
            option.value.check(params[name], prefix + name)


def bounded_options(options: Iterable[Field]) -> tuple[Field, ...]:
    """Return the *options* that ``check_options`` checks: numbers with a range, and non-empty texts."""
    return tuple(option for _name, option in _visible(options)
                 if isinstance(option, Option) and _bounded(option.value))


def _bounded(value: Value) -> bool:
    return isinstance(value, Integer) or (isinstance(value, Text) and value.min > 0)


def client_arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments for ``Client`` from the module parameters *params*."""
    arguments = {name: params.get(name) for name in ("endpoint", "token", "ca_cert", "client_cert", "client_key")}
    return dict(arguments, validate_certs=params.get("validate_certs", True),
                connect_timeout=params.get("api_timeout") or 5, timeout=params.get("timeout") or 180)


def requested_fields(fields: Iterable[Field], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the module parameters *params* set, by the name of the field in *fields*. Options that are
    omitted or ``None`` are not included.
    """
    return {field.name: params[name] for name, field in _visible(fields) if params.get(name) is not None}


def _visible(fields: Iterable[Field]) -> Iterator[tuple[str, Field]]:
    """Yield (option name, field) for each of the *fields* that modules have as an option."""
    return ((field.option, field) for field in fields if isinstance(field.option, str))


def applies_default(field: Field) -> bool:
    return isinstance(field, Option) and field.default is not UNSET


def _shape(field: Field) -> dict[str, Any]:
    """Return the keys that the argument spec and the documentation of *field* share: type, choices, required, default
    and aliases.
    """
    shape = dict(field.value.option())
    shape.pop("options", None)
    if field.required and isinstance(field, Option):
        shape["required"] = True
    if applies_default(field):
        shape["default"] = field.default
    if field.aliases:
        shape["aliases"] = [alias for alias in field.aliases if alias != field.option]
    return shape


def _inner(value: Value) -> tuple[Field, ...]:
    """Return the fields of *value* if it is a ``Record`` or a list of records; otherwise an empty tuple."""
    if isinstance(value, ListOf):
        value = value.item
    return value.fields if isinstance(value, Record) else ()


def _spec(field: Field, fallback: Any) -> dict[str, Any]:
    option_spec = _shape(field)
    option_spec["no_log"] = bool(field.secret)
    inner = _inner(field.value)
    if inner:
        option_spec["options"] = options_spec(inner)
    env = getattr(field, "env", None)
    if env and fallback:
        option_spec["fallback"] = (fallback, [env])
    return option_spec


def _documented(field: Field) -> dict[str, Any]:
    option_doc = dict(_shape(field), description=[field.doc])
    env = getattr(field, "env", None)
    if env:
        option_doc["description"].append("Without it, the environment variable E(%s) is used." % env)
    if not isinstance(field, Option):
        option_doc["description"].extend(_default_notes(field))
    inner = _inner(field.value)
    if inner:
        option_doc["suboptions"] = options_documentation(inner)
    return option_doc


def _default_notes(field: Field) -> Iterator[str]:
    """Yield sentences for the documentation of *field*: its default or that it is required, and whether it can change.
    """
    if field.default is not UNSET:
        yield "The default of a new resource is %s. Omitted later, the value stays." % _describe_value(field.default)
    elif field.required:
        yield "Required for a new resource."
    if field.fixed:
        yield "Cannot change later; see O(on_immutable)."


def _describe_value(value: Any) -> str:
    if value is None or value == "":
        return "none"
    if value in ([], {}):
        return "empty"
    return "V(%s)" % (str(value).lower() if isinstance(value, bool) else value)
