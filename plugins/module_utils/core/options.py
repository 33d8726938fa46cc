# SPDX-License-Identifier: GPL-3.0-or-later
"""From declarations to Ansible: argument specs and option documentation out of the same list of fields.

An option that is left out is ``None`` and leaves the field untouched; so a field's default is told in the
documentation ("Default when made") and never put into the argument spec. Options of a module itself (``Option``) have
real defaults.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping, Optional

from .fields import UNSET, Field, Record
from .http.endpoint import ENDPOINT
from .values import Boolean, Choices, Integer, ListOf, Text, Value

#: Where a task is done; see the option ``direct``.
DIRECT = ("auto", "always", "never")


class Option(Field):
    """An option that belongs to a module, not to a kind: its default is applied, and *env* may give it."""

    def __init__(self, value: Value, doc: str, env: Optional[str] = None, **kwargs: Any) -> None:
        super().__init__(value, doc, **kwargs)
        self.env = env


class File(Text):
    """The path of a file on the machine where the module runs."""

    def option(self) -> dict[str, Any]:
        return {"type": "path"}


def collect(**options: Field) -> tuple[Field, ...]:
    """Give each option its name; returns them in order."""
    return tuple(option.named(name) for name, option in options.items())


CONNECTION = collect(
    endpoint=Option(Text(), "The agent to ask: V(unix:///PATH) on the host itself, V(https://HOST[:PORT]), or "
                    "V(ssh://[USER@]HOST[:PORT][/PATH]), which goes to the socket of that host with Paramiko. Or the "
                    "API of a cloud, V(https://HOST[:PORT]) with one of its tokens as O(token). Without it and without "
                    "C(cloud) it is V(%s)." % ENDPOINT,
                    env="MAGNETAR_ENDPOINT"),
    cloud=Option(Text(), "Name of a cloud in C(clouds.yaml), whose API is asked in place of an agent; O(endpoint) "
                 "wins. The file is E(OS_CLIENT_CONFIG_FILE), or else in the current folder, C(~/.config/openstack) "
                 "or C(/etc/openstack); C(secure.yaml) beside it is read too. Without O(endpoint) and C(cloud), the "
                 "C(OS_*) variables are used when E(OS_AUTH_URL) is set, or else the only cloud in the file that "
                 "E(OS_CLIENT_CONFIG_FILE) names.", env="OS_CLOUD"),
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
    ssh_private_key=Option(File(), "File with the private key for an C(ssh) endpoint, the only one that is tried. "
                           "Without it, keys of the SSH agent and the usual files of C(~/.ssh) are.",
                           env="MAGNETAR_SSH_PRIVATE_KEY"),
    ssh_known_hosts=Option(File(), "File with host keys for an C(ssh) endpoint, besides C(~/.ssh/known_hosts) and "
                           "C(/etc/ssh/ssh_known_hosts). A host whose key is in none of them is refused.",
                           env="MAGNETAR_SSH_KNOWN_HOSTS"),
    api_timeout=Option(Integer(1), "Seconds in which the endpoint must accept a connection.", default=5),
    timeout=Option(Integer(1), "Seconds that the task may take as a whole. A change that takes longer goes on; the "
                   "error names its operation.", default=180, aliases=("wait_timeout",)),
    direct=Option(Choices(*DIRECT), "Where the work is done. V(auto) does it in the Ansible process where that gives "
                  "the same result, V(never) always starts a module process, V(always) fails where direct execution "
                  "is not possible. Left out, the variable C(magnetar_direct) says it, or E(MAGNETAR_DIRECT), or "
                  "C(direct) in section C([magnetar]) of C(ansible.cfg), or else V(auto)."),
)
#: Files of the connection, which exist on the machine where the module runs.
CONNECTION_FILES = ("ca_cert", "client_cert", "client_key", "ssh_private_key", "ssh_known_hosts")

WAITING = collect(
    wait=Option(Boolean(), "Whether to wait until the change is done. Without it a long change answers with "
                "RV(operation) and goes on by itself.", default=True),
)


def spec(fields: Iterable[Field], fallback: Any = None) -> dict[str, Any]:
    """The argument spec of *fields*, as ``AnsibleModule`` takes it.

    *fallback* is Ansible's ``env_fallback``, given by the shell, as the core does not import Ansible.
    """
    return {name: _spec(field, fallback) for name, field in _visible(fields)}


def documentation(fields: Iterable[Field]) -> dict[str, Any]:
    """The ``options:`` mapping of *fields*, as ``ansible-doc`` reads it."""
    return {name: _documented(field) for name, field in _visible(fields)}


def plugin_documentation(fields: Iterable[Field]) -> dict[str, Any]:
    """The ``options:`` of a plugin, which Ansible reads from the environment itself. Paths are its own affair."""
    found = documentation(fields)
    found.pop("direct", None)
    for name, field in _visible(fields):
        env = getattr(field, "env", None)
        if name in found and env:
            found[name].update(description=[field.doc], env=[{"name": env}])
        if name in CONNECTION_FILES:
            found[name]["type"] = "str"
    return found


def check_options(options: Iterable[Field], params: Mapping[str, Any], prefix: str = "") -> None:
    """Check what an argument spec cannot say of *options*: the range of numbers, and that a text is not empty.

    Raises ``InvalidField``. Fields of kinds are left to the agent, which checks them.
    """
    for name, option in _visible(options):
        if isinstance(option, Option) and _bounded(option.value) and params.get(name) is not None:
            option.value.check(params[name], prefix + name)


def _bounded(value: Value) -> bool:
    return isinstance(value, Integer) or (isinstance(value, Text) and value.min > 0)


def client_arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``Client`` out of a module's parameters."""
    found = {name: params.get(name) for name in ("endpoint", "token", "ca_cert", "client_cert", "client_key")}
    return dict(found, validate_certs=params.get("validate_certs", True),
                connect_timeout=params.get("api_timeout") or 5, timeout=params.get("timeout") or 180)


def given(fields: Iterable[Field], params: Mapping[str, Any]) -> dict[str, Any]:
    """What *params* say about the settable *fields*: ``{field name: value}`` without the omitted ones."""
    return {field.name: params[name] for name, field in _visible(fields) if params.get(name) is not None}


def _visible(fields: Iterable[Field]) -> Iterator[tuple[str, Field]]:
    """The fields that modules show, each with its name there."""
    return ((field.option, field) for field in fields if isinstance(field.option, str))


def applies_default(field: Field) -> bool:
    return isinstance(field, Option) and field.default is not UNSET


def _shape(field: Field) -> dict[str, Any]:
    """Type, choices and the like, which spec and documentation share."""
    found = dict(field.value.option())
    found.pop("options", None)
    if field.required and isinstance(field, Option):
        found["required"] = True
    if applies_default(field):
        found["default"] = field.default
    if field.aliases:
        found["aliases"] = [alias for alias in field.aliases if alias != field.option]
    return found


def _inner(value: Value) -> tuple[Field, ...]:
    """The fields of a record, or of the records in a list; else nothing."""
    if isinstance(value, ListOf):
        value = value.item
    return value.fields if isinstance(value, Record) else ()


def _spec(field: Field, fallback: Any) -> dict[str, Any]:
    found = _shape(field)
    found["no_log"] = bool(field.secret)
    inner = _inner(field.value)
    if inner:
        found["options"] = spec(inner)
    env = getattr(field, "env", None)
    if env and fallback:
        found["fallback"] = (fallback, [env])
    return found


def _documented(field: Field) -> dict[str, Any]:
    found = dict(_shape(field), description=[field.doc])
    env = getattr(field, "env", None)
    if env:
        found["description"].append("The environment variable E(%s) is used when it is not given." % env)
    if not isinstance(field, Option):
        found["description"].extend(_told(field))
    inner = _inner(field.value)
    if inner:
        found["suboptions"] = documentation(inner)
    return found


def _told(field: Field) -> Iterator[str]:
    """What the type does not say: what omission means, and that the field is fixed."""
    if field.default is not UNSET:
        yield "Default when made is %s; omitted later, it stays as it is." % _shown(field.default)
    elif field.required:
        yield "Needed to make one."
    if field.fixed:
        yield "Fixed once made; see O(on_immutable)."


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "none"
    if value in ([], {}):
        return "empty"
    return "V(%s)" % (str(value).lower() if isinstance(value, bool) else value)
