# SPDX-License-Identifier: GPL-3.0-or-later
"""Where an answer may differ from its sample although both are right: by who asks, by a condition, by the user's words.

Each row says where (a pattern over pointers, * for an element of a list), and when.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

#: Maps whose keys are the users' or the hosts' own.
USER_KEYED = (
    r"(/servers/\*|/server)/(metadata|addresses|scheduler_hints)",
    r"(/servers/\*|/server)/(flavor/extra_specs|image/properties)",
    r"(/flavors/\*|/flavor)?/extra_specs", r"/metadata", r"/meta", r"/(aggregates/\*|aggregate)/metadata",
    r"/server_groups?(/\*)?/(metadata|rules)",
    r"/availabilityZoneInfo/\*/hosts", r"/availabilityZoneInfo/\*/hosts/[^/]*",
    r"/instance_usage_audit_logs?/log", r"/hypervisors?(/\*)?/cpu_info",
)
#: Lists that may be empty although the sample's are not: the fixtures have nothing to show there, or not everywhere.
MAY_BE_EMPTY = (
    r"(/servers/\*|/server)/(os-extended-volumes:volumes_attached|tags|server_groups|security_groups)",
    r"/hypervisors?(/\*)?/(servers|cpu_info/features)", r"/aggregates?(/\*)?/hosts", r"/server_groups?(/\*)?/members",
    r"/instance_usage_audit_logs?/hosts_not_run", r"/limits/rate", r"/migrations/\*/links",
)
#: Places where null stands for something that is not there just now.
MAY_BE_NULL = (
    r"(/servers/\*|/server)/(OS-EXT-STS:task_state|OS-SRV-USG:(launched|terminated)_at|key_name|description)",
    r"(/servers/\*|/server)/(locked_reason|trusted_image_certificates|pinned_availability_zone)",
    r"(/servers/\*|/server)/OS-EXT-SRV-ATTR:(host|hypervisor_hostname|user_data|root_device_name)",
    r"/(flavors/\*|flavor)/description", r"/migrations/\*/(dest_.*|source_.*|.*_instance_type_id|updated_at)",
    r"/services/\*/(disabled_reason|updated_at)", r"/aggregates?(/\*)?/(updated_at|deleted_at|availability_zone)",
    r"/hypervisors?(/\*)?/(uptime|host_ip|disk_available_least|service/disabled_reason)",
    r"/instanceActions?(/\*)?/(message|updated_at)",
    r"/instanceAction/events/\*/(finish_time|result|details|traceback)",
    r"/volumeAttachments?(/\*)?/tag", r"/interfaceAttachments?(/\*)?/tag", r"/keypair/(updated_at|deleted_at)",
    r"/availabilityZoneInfo/\*/hosts/.*/updated_at",
)


#: Places that may be of another type: a server that was started from a volume has no image.
OTHER_TYPES: dict[str, set[str]] = {
    r"(/servers/\*|/server)/image": {"string"},
}
#: Words that real hosts bring where Nova's fake ones were ready at once.
OTHER_WORDS: dict[tuple[str, str], set[Any]] = {
    ("servers.action.rebuild", "status"): {"REBUILD"},
    ("servers.show", "OS-EXT-STS:power_state"): {1},
    ("servers.os-instance-actions.list", "action"): {"create", "stop"},
}
#: Statuses with which an operation may be refused where Nova does it. In a cloud whose network service gives each NIC
#: one address, a server gets or loses none on the NICs that it has; Nova leaves it to the network service too.
REFUSED: dict[str, tuple[int, ...]] = {
    "servers.action.addFixedIp": (400,),
    "servers.action.removeFixedIp": (400, 404),
}


@dataclass(frozen=True)
class Condition:
    """A key that may be there or not. *extra*: in an answer and not in its sample; *missing*: the reverse."""

    pattern: str
    when: str
    extra: bool = True
    missing: bool = True
    since: int = 1


_SERVER = r"(/servers/\*|/server)"
CONDITIONS = (
    Condition(rf"{_SERVER}/progress", "only while building, active, or on its way"),
    Condition(rf"{_SERVER}/fault", "only in error", missing=False),
    Condition(rf"{_SERVER}/security_groups", "only where there are some", extra=False),
    Condition(r"/[a-z_]*_?links", "only where the page is full"),
    Condition(rf"{_SERVER}/adminPass", "only where passwords are made"),
    Condition(r"/migrations/\*/links", "only of live migrations under way"),
    Condition(r"/instanceAction/events/\*/(host|traceback|details)", "by policy", extra=False, missing=False),
    Condition(r"/hypervisors?(/\*)?/servers", "only where there are some", extra=False, since=1),
    Condition(r"/hypervisors?(/\*)?/cpu_info/topology/cells", "of libvirt's driver", missing=False),
    Condition(r"/version/media-types", "both forms are published"),
)
#: Administrators' attributes of a server: samples taken as another user have not got them.
ADMIN_KEYS = (
    Condition(rf"{_SERVER}/OS-EXT-SRV-ATTR:(host|hypervisor_hostname|instance_name)", "administrators", missing=False),
    Condition(rf"{_SERVER}/OS-EXT-SRV-ATTR:(reservation_id|launch_index|hostname|kernel_id|ramdisk_id|root_device_name"
              r"|user_data)", "administrators", missing=False, since=3),
    Condition(rf"{_SERVER}/host_status", "administrators", missing=False, since=16),
    Condition(rf"{_SERVER}/OS-EXT-SRV-ATTR:(?!hostname).*|{_SERVER}/host_status", "administrators", extra=False,
              missing=False),
)
#: Operations whose view of a server has the administrators' attributes, and since when.
FULL_VIEW = {"servers.show": 1, "servers.detail.list": 1, "servers.update": 75, "servers.action.rebuild": 75}


@lru_cache(maxsize=4096)
def matches(pattern: str, pointer: str) -> bool:
    """Whether *pattern* is the whole of *pointer*."""
    return re.fullmatch(pattern, pointer) is not None


def one_of(patterns: tuple[str, ...], pointer: str) -> bool:
    """Whether one of *patterns* is *pointer*."""
    return any(matches(pattern, pointer) for pattern in patterns)


def may_be_extra(pointer: str, operation: str, version: int) -> bool:
    """Whether an answer may have a key that its sample has not."""
    rows: tuple[Condition, ...] = CONDITIONS
    if FULL_VIEW.get(operation, 999) <= version:
        rows = (*CONDITIONS, *ADMIN_KEYS)
    return any(row.extra and version >= row.since and matches(row.pattern, pointer) for row in rows)


def may_be_missing(pointer: str) -> bool:
    """Whether an answer may lack a key of its sample."""
    return any(row.missing and matches(row.pattern, pointer) for row in CONDITIONS)


def for_administrators(pointer: str, version: int) -> bool:
    """Whether a key is in the view of administrators only."""
    if pointer.endswith("OS-EXT-SRV-ATTR:hostname"):
        return version < 90
    return any(matches(row.pattern, pointer) for row in ADMIN_KEYS)
