# SPDX-License-Identifier: GPL-3.0-or-later
"""Extra specs of volume types, compared with the capabilities of pools, as Cinder's CapabilitiesFilter does. A type may
have any extra spec. A volume is created only in a pool that fulfils the extra specs of its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magnetar_core.errors import InvalidRequest
from magnetar_core.matching import matches_extra_spec

#: Extra specs that act: whether several servers may have a volume at the same time, and the pool of the volume.
MULTIATTACH, POOL, BACKEND = "multiattach", "pool_name", "volume_backend_name"
#: Extra specs of a scope that Cinder itself reads. Other scopes are for drivers, and every other driver ignores them.
LEAST, MOST, ZONES = "provisioning:min_vol_size", "provisioning:max_vol_size", "RESKEY:availability_zones"
SCOPE = "capabilities:"
#: The backend name that all pools have in addition to their own name, and two attributes of every pool.
BACKEND_NAME, VENDOR, PROTOCOL = "magnetar", "Magnetar", "nbd"
CAPABILITIES: Mapping[str, Any] = {
    BACKEND: BACKEND_NAME, "vendor_name": VENDOR, "storage_protocol": PROTOCOL, "driver_version": "1",
    "thin_provisioning_support": True, "thick_provisioning_support": False, "QoS_support": False,
    "replication_enabled": False, "consistencygroup_support": False, "consistent_group_snapshot_enabled": False,
    "online_extend_support": True, "encryption_support": True}
#: The capabilities of pools of a type that differ from ``CAPABILITIES``. LVM reserves a volume's full size; encrypted
#: volumes are files.
BY_KIND: Mapping[str, Mapping[str, Any]] = {
    "lvm": {"thin_provisioning_support": False, "thick_provisioning_support": True, "encryption_support": False},
    "rbd": {"encryption_support": False}}
#: Words for true and false after ``<is>``.
WORDS = {**dict.fromkeys(("true", "1", "t", "on", "y", "yes"), True),
         **dict.fromkeys(("false", "0", "f", "off", "n", "no"), False)}
TRUTH = {"<is> true": True, "<is> false": False}


def pool_capabilities(name: str, kind: str | None = None, **reported: Any) -> dict[str, Any]:
    """Return the capabilities of the pool *name*, by Cinder's names: {capability: value}. *kind*: its type, such as
    lvm; ``None`` if no host has reported the pool. *reported*: further capabilities, such as sizes, that a host has
    reported."""
    return {**CAPABILITIES, **BY_KIND.get(kind or "", {}), POOL: name, **({"pool_type": kind} if kind else {}),
            **reported}


def names_capability(spec: str) -> bool:
    """Return whether the extra spec called *spec* requires a capability of the pool. False for the specs pool_name and
    multiattach, and for specs of another scope than ``capabilities:``."""
    key = spec.removeprefix(SCOPE)
    return key not in (MULTIATTACH, POOL) and (spec.startswith(SCOPE) or ":" not in spec)


def check_volume(type_name: str, specs: Mapping[str, str], pool: str, size: int, zone: str) -> None:
    """Raise ``InvalidRequest`` if a volume does not fulfil the extra *specs* of its type *type_name*.

    *pool*: the name of its pool. *size*: its size in GiB. *zone*: the availability zone of volumes.
    """
    if unfulfilled := [*unfulfilled_bounds(specs, size, zone), *unfulfilled_capabilities(specs,
                                                                                         pool_capabilities(pool))]:
        raise no_pool_error(type_name, sorted(unfulfilled))


def check_bounds(type_name: str, specs: Mapping[str, str], size: int, zone: str) -> None:
    """Raise ``InvalidRequest`` if a volume of *size* GiB in the availability zone *zone* cannot fulfil the extra
    *specs* of the type *type_name* in any pool."""
    if unfulfilled := [*unfulfilled_bounds(specs, size, zone)]:
        raise no_pool_error(type_name, unfulfilled)


def no_pool_error(type_name: str, reasons: list[str]) -> InvalidRequest:
    """Return the error for a volume of the type *type_name* if no pool is suitable. *reasons*: texts for the message.
    """
    return InvalidRequest(f"Invalid input received: no pool of volumes is as the volume type {type_name} asks: "
                          f"{'; '.join(reasons)}. Choose another volume type.")


def unfulfilled_bounds(specs: Mapping[str, str], size: int, zone: str) -> Iterator[str]:
    """Yield a text for each extra spec in *specs* that a volume of *size* GiB in the availability zone *zone* does not
    fulfil. Only specs on size and zone are checked, and the syntax of ``multiattach``."""
    for name, text in sorted(specs.items()):
        if (name == LEAST and _number(text) > size) or (name == MOST and _number(text) < size):
            yield f"{name}={text}, and the volume is to have {size} GiB"
        elif name == ZONES and zone not in [zone_name.strip() for zone_name in text.split(",")]:
            yield f"{name}={text}, and volumes are in the zone {zone}"
        elif name.removeprefix(SCOPE) == MULTIATTACH and text.lower() not in TRUTH:
            yield f"{name}={text}, and it is <is> True or <is> False"


def unfulfilled_capabilities(specs: Mapping[str, str], capabilities: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text for each extra spec in *specs* that a pool with these *capabilities* does not fulfil."""
    for name, text in sorted(specs.items()):
        key = name.removeprefix(SCOPE)
        if key == POOL:
            if not matches_extra_spec(capabilities[POOL], text):
                yield f"{name}={text}, and there is no such pool"
        elif not names_capability(name):
            continue  # read elsewhere, or for a driver
        elif key not in capabilities:
            yield f"{name}={text}, and no pool says {key} of itself"
        elif not _matches_spec(key, text, capabilities):
            yield f"{name}={text}, and {key} is {_text(capabilities[key])}"


def _number(text: str) -> int:
    """Convert *text*, a minimum or maximum size in an extra spec, to the number of GiB. Raise ``InvalidRequest`` unless
    it is a whole number."""
    if not text.strip().isdecimal():
        raise InvalidRequest(f"Invalid input received: {text[:80]!r}, a size of the volume type, is no "
                             "whole number.")
    return int(text)


def _matches_spec(key: str, text: str, capabilities: Mapping[str, Any]) -> bool:
    """Return whether the capability *key* in *capabilities* matches *text*, the value of an extra spec. A boolean
    matches only the operator ``<is>``. For the capability volume_backend_name, the name of the pool matches too."""
    value = capabilities[key]
    if isinstance(value, bool):
        first, _space, word = text.strip().lower().partition(" ")
        return first == "<is>" and WORDS.get(word.strip()) is value
    return matches_extra_spec(value, text) or (key == BACKEND and matches_extra_spec(capabilities[POOL], text))


def _text(value: Any) -> str:
    """Convert the value of a capability to the form that extra specs have, such as ``<is> True``, for a message."""
    return f"<is> {value}" if isinstance(value, bool) else str(value)
