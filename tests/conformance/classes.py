# SPDX-License-Identifier: GPL-3.0-or-later
"""Classes of strings: what a text in an answer is, when its value may differ from the sample's."""

from __future__ import annotations

import base64
import binascii
import functools
import ipaddress
import re
from collections.abc import Callable

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PATTERNS = {
    "uuid": UUID,
    "request": re.compile(r"req-" + UUID.pattern),
    "hex32": re.compile(r"[0-9a-f]{32}"),
    "hostid": re.compile(r"[0-9a-f]{56}"),
    "time with Z": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
    "time with microseconds": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}"),
    "time with a blank": re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?"),
    "mac": re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}"),
    "fingerprint": re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){15}"),
    "reservation": re.compile(r"r-[0-9a-z]{8}"),
    "url": re.compile(r"(https?|wss?)://\S+"),
    "integer": re.compile(r"-?\d+"),
    "device": re.compile(r"/dev/[a-z0-9]+"),
    "public key": re.compile(r"(ssh-[a-z0-9]+|ecdsa-[a-z0-9-]+) [A-Za-z0-9+/=]+( .*)?", re.DOTALL),
    "private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL),
}


def _whole(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.fullmatch(text) is not None


def _address(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def _base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return bool(text)


CLASSES: dict[str, Callable[[str], bool]] = {
    **{name: functools.partial(_whole, pattern) for name, pattern in _PATTERNS.items()},
    "ipv4": lambda text: _address(text, 4),
    "ipv6": lambda text: _address(text, 6),
    "base64": _base64,
    "empty": lambda text: text == "",
    "text": lambda text: True,
}
#: What Nova's templates call it, and the classes that it may be of; other kinds go by the sample's own text.
KINDS: dict[str, tuple[str, ...]] = {
    "uuid": ("uuid",), "isotime": ("time with Z",), "strtime": ("time with microseconds",),
    "strtime_or_none": ("time with microseconds",), "hostid": ("hostid", "empty"), "event_hostId": ("hostid", "empty"),
    "ip": ("ipv4", "ipv6"), "ip_address": ("ipv4", "ipv6"), "access_ip_v4": ("ipv4", "empty"),
    "access_ip_v6": ("ipv6", "empty"), "request_id": ("request",), "reservation_id": ("reservation",),
    "fingerprint": ("fingerprint",), "public_key": ("public key",), "private_key": ("private key",),
    "mac_addr": ("mac",), "user_data": ("base64",), "device": ("device",), "volume_id": ("uuid",),
    "volume_id2": ("uuid",), "new_volume_id": ("uuid",), "image_id": ("uuid",), "server_id": ("uuid",),
    "project_id": ("text",), "tenant_id": ("text",), "user_id": ("text",), "service_id": ("uuid", "integer"),
    "port_id": ("uuid",), "net_id": ("uuid",), "subnet_id": ("uuid",), "cdrive": ("text",),
}
#: Texts that are told apart by looking; the rest is free text.
_SEEN = ("uuid", "request", "hostid", "time with Z", "time with microseconds", "time with a blank", "mac",
         "fingerprint", "reservation", "url", "device", "public key", "private key", "ipv4", "ipv6")


def looks_like(text: str) -> str:
    """The class of a sample's text."""
    return next((name for name in _SEEN if CLASSES[name](text)), "text")


def allowed(kind: str | None, literal: str) -> frozenset[str]:
    """The classes of a place of which the templates say *kind*, and at which the sample has *literal*."""
    if kind and kind in KINDS:
        return frozenset(KINDS[kind])
    if (kind and "://" in kind) or (kind and kind.startswith("{") and "/" in kind):
        return frozenset({"url"})
    found = looks_like(literal)
    if kind == "id" and found == "uuid":
        return frozenset({"uuid"})
    return frozenset({found if not kind or found in ("uuid", "url") else "text"})


def fits(text: str, names: frozenset[str]) -> bool:
    """Whether *text* is of one of the classes *names*."""
    return any(CLASSES[name](text) for name in names)
