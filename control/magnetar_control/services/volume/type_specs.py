# SPDX-License-Identifier: GPL-3.0-or-later
"""Extra specs of volume types, compared with the capabilities of pools, as Cinder's CapabilitiesFilter does. A type may
have any extra spec. A volume is created only if the pool fulfils the extra specs of its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magnetar_core.errors import InvalidRequest
from magnetar_core.matching import matches_extra_spec

#: Extra specs that act: whether several servers may have a volume at the same time, and the pool of the volume.
MULTIATTACH, POOL = "multiattach", "pool_name"
#: Extra specs of a scope that Cinder itself reads. Other scopes are for drivers, and every other driver ignores them.
LEAST, MOST, ZONES = "provisioning:min_vol_size", "provisioning:max_vol_size", "RESKEY:availability_zones"
SCOPE = "capabilities:"
#: The backend name of all pools, and two attributes of every pool.
BACKEND_NAME, VENDOR, PROTOCOL = "magnetar", "Magnetar", "nbd"
CAPABILITIES: Mapping[str, Any] = {
    "volume_backend_name": BACKEND_NAME, "vendor_name": VENDOR, "storage_protocol": PROTOCOL, "driver_version": "1",
    "thin_provisioning_support": True, "thick_provisioning_support": False, "QoS_support": False,
    "replication_enabled": False, "consistencygroup_support": False, "consistent_group_snapshot_enabled": False,
    "online_extend_support": True}
TRUTH = {"<is> true": True, "<is> false": False}


def check_volume(type_name: str, specs: Mapping[str, str], pool: str, size: int, zone: str) -> None:
    """Raise ``InvalidRequest`` when a volume of the type would not fulfil the extra *specs*.

    *pool*: the pool of the volume. *size*: GiB. *zone*: the volume service's availability zone.
    """
    lacking = [*_lacking(specs, {**CAPABILITIES, POOL: pool}, size, zone)]
    if lacking:
        raise InvalidRequest(f"Invalid input received: no pool of volumes is as the volume type {type_name} asks: "
                             f"{'; '.join(lacking)}. Choose another volume type.")


def _lacking(specs: Mapping[str, str], pool: Mapping[str, Any], size: int, zone: str) -> Iterator[str]:
    """Yield each of the extra *specs* that a volume of *size* GiB in *pool*, in the availability zone *zone*, would not
    fulfil, with the reason."""
    for name, text in sorted(specs.items()):
        key = name.removeprefix(SCOPE)
        if (name == LEAST and _number(text) > size) or (name == MOST and _number(text) < size):
            yield f"{name}={text}, and the volume is to have {size} GiB"
        elif name == ZONES and zone not in [zone_name.strip() for zone_name in text.split(",")]:
            yield f"{name}={text}, and volumes are in the zone {zone}"
        elif ":" in key or (key == MULTIATTACH and text.lower() in TRUTH):
            continue  # for a driver, or read by VolumeType.multiattach
        elif key == MULTIATTACH:
            yield f"{name}={text}, and it is <is> True or <is> False"
        elif key == POOL and not matches_extra_spec(pool[POOL], text):
            yield f"{name}={text}, and there is no such pool"
        elif key not in pool:
            yield f"{name}={text}, and no pool says {key} of itself"
        elif not _is_as_asked(pool[key], text):
            yield f"{name}={text}, and {key} is {_text(pool[key])}"


def _number(text: str) -> int:
    """Return the number of GiB in *text*. Raise ``InvalidRequest`` unless it is a whole number."""
    if not text.strip().isdecimal():
        raise InvalidRequest(f"Invalid input received: {text[:80]!r}, a size of the volume type, is no "
                             "whole number.")
    return int(text)


def _is_as_asked(value: Any, text: str) -> bool:
    """Return whether a pool's *value* matches *text*. Only ``<is> True`` and ``<is> False`` match a truth value."""
    return TRUTH.get(text.lower()) is value if isinstance(value, bool) else matches_extra_spec(value, text)


def _text(value: Any) -> str:
    """Return *value* in the form of an extra spec."""
    return f"<is> {value}" if isinstance(value, bool) else str(value)
