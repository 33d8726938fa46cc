# SPDX-License-Identifier: GPL-3.0-or-later
"""Attributes of Neutron's resources: what each may be, who may set it and when (API reference, Networking v2.0)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError, ip_network
from typing import Any

from magnetar_control.services import Context, Document
from magnetar_core.errors import Forbidden, InvalidRequest, MagnetarError

#: Says that an attribute must be given.
REQUIRED = object()
#: Says that an attribute is left out of what is made when it is not given.
ABSENT = object()
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
#: Roles that may change what a project has; Neutron's default rules.
WRITERS = frozenset({"admin", "manager", "member", "service"})

Check = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """*check* turns what was sent into what is kept, or raises ``ValueError`` with the rule. *on*: create, update."""

    name: str
    check: Check
    default: Any = ABSENT
    on: str = "create update"
    admin: bool = False


def text(value: Any) -> str:
    """At most 255 characters; null is the empty text."""
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"'{value!r}' is not a valid string".replace("\\x00", "NUL"))
    if len(value) > 255:
        raise ValueError("it exceeds the maximum length of 255 characters")
    return value


def boolean(value: Any) -> bool:
    """True and false, also as words."""
    if isinstance(value, bool):
        return value
    if str(value).lower() in TRUE + FALSE:
        return str(value).lower() in TRUE
    raise ValueError(f"'{value}' cannot be converted to boolean")


def ident(value: Any) -> str:
    """A uuid."""
    try:
        return str(uuid.UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"'{value}' is not a valid UUID") from None


def mac(value: Any) -> str:
    """A MAC address of one host, in lower case."""
    if not isinstance(value, str) or not MAC.fullmatch(value.lower()) or int(value[1], 16) & 1:
        raise ValueError(f"'{value}' is not a valid MAC address of a NIC")
    return value.lower()


def address(value: Any) -> str:
    """An IPv4 address; the agents' networks have no other."""
    try:
        return str(IPv4Address(str(value)))
    except AddressValueError:
        raise ValueError(f"'{value}' is not an IPv4 address, and embedded networking has no other") from None


def cidr(value: Any) -> str:
    """An IPv4 network."""
    try:
        found = IPv4Network(str(value), strict=False)
    except (AddressValueError, NetmaskValueError, ValueError):
        raise ValueError(f"'{value}' is not an IPv4 subnet such as 10.1.0.0/24") from None
    if "/" not in str(value) or not 8 <= found.prefixlen <= 30:
        raise ValueError(f"'{value}' must have a prefix length between 8 and 30")
    return str(found)


def prefix(value: Any) -> str:
    """An IPv4 or IPv6 network."""
    try:
        return str(ip_network(str(value), strict=False))
    except ValueError:
        raise ValueError(f"'{value}' is not a valid IP subnet") from None


def integer(least: int, most: int) -> Check:
    """A number."""
    def check(value: Any) -> int:
        try:
            found = int(value) if not isinstance(value, bool | float) else None
        except (ValueError, TypeError):
            found = None
        if found is None or not least <= found <= most:
            raise ValueError(f"'{value}' is not an integer between {least} and {most}")
        return found

    return check


def one_of(*choices: Any) -> Check:
    """One of *choices*."""
    def check(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"'{value}' is not in {list(choices)}")
        return value

    return check


def nullable(check: Check) -> Check:
    """Null, or what *check* takes."""
    return lambda value: None if value is None else check(value)


def list_of(check: Check) -> Check:
    """A list; null is the empty one."""
    def checked(value: Any) -> list[Any]:
        if value is not None and not isinstance(value, list):
            raise ValueError(f"'{value}' is not a list")
        return [check(item) for item in value or ()]

    return checked


def record(required: Sequence[str] = (), **checks: Check) -> Check:
    """An object of known keys."""
    def checked(value: Any) -> Document:
        if not isinstance(value, dict) or not set(required) <= set(value) <= set(checks):
            raise ValueError(f"'{value}' is not an object of {', '.join(checks)}"
                             + (f", of which {', '.join(required)} must be there" if required else ""))
        return {name: checks[name](item) for name, item in value.items()}

    return checked


def mapping(value: Any) -> Document:
    """Any object."""
    if not isinstance(value, dict):
        raise ValueError(f"'{value}' is not an object")  # noqa: TRY004 - told as a rule
    return value


def invalid(name: str, rule: str) -> MagnetarError:
    """An attribute that cannot be so."""
    return InvalidRequest(f"Invalid input for {name}. Reason: {rule.rstrip('.')}.", type="HTTPBadRequest")


def may_write(context: Context, rule: str) -> None:
    """Raises ``Forbidden`` for a reader."""
    if not WRITERS & context.roles:
        raise forbidden(rule, "it needs the role member of the project")


def forbidden(rule: str, why: str) -> MagnetarError:
    """The policy says no."""
    return Forbidden(f"(rule:{rule}) is disallowed by policy: {why}.", type="PolicyNotAuthorized")


def checked(attributes: Mapping[str, Attribute], noun: str, body: Any, context: Context, operation: str) -> Document:
    """What is kept of *body* when *operation* (create, update) is asked, with defaults when it is create."""
    if not isinstance(body, dict):
        raise InvalidRequest(f"Unable to find '{noun}' in request body, or it is not an object.", type="HTTPBadRequest")
    unknown = sorted(set(body) - set(attributes))
    if unknown:
        raise InvalidRequest(f"Unrecognized attribute(s) '{', '.join(unknown)}'", type="HTTPBadRequest")
    found: Document = {}
    for name, value in body.items():
        attribute = attributes[name]
        if operation not in attribute.on:
            verb = "POST" if operation == "create" else "PUT"
            raise InvalidRequest(f"Attribute '{name}' not allowed in {verb}", type="HTTPBadRequest")
        if attribute.admin and not context.is_admin:
            raise forbidden(f"{operation}_{noun}:{name}", "only admins may set it")
        try:
            found[name] = attribute.check(value)
        except ValueError as error:
            raise invalid(name, str(error)) from None
    return {**_defaults(attributes, found), **found} if operation == "create" else found


def _defaults(attributes: Mapping[str, Attribute], given: Mapping[str, Any]) -> Document:
    for attribute in attributes.values():
        if attribute.default is REQUIRED and attribute.name not in given:
            raise InvalidRequest(f"Failed to parse request. Required attribute '{attribute.name}' not specified",
                        type="HTTPBadRequest")
    return {a.name: a.default() if callable(a.default) else a.default for a in attributes.values()
            if a.default is not ABSENT and a.default is not REQUIRED}


def table(*attributes: Attribute) -> dict[str, Attribute]:
    """By name, with what all have."""
    common = (Attribute(name="description", check=text, default=""),
              Attribute(name="project_id", check=text, on="create"),
              Attribute(name="tenant_id", check=text, on="create"))
    return {attribute.name: attribute for attribute in (*attributes, *common)}
