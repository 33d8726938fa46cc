# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies of servers for the death of their host: whether they are evacuated, and in which order.

The first of these counts: the server's metadata ``ha``, its metadata ``HA_Enabled`` if it is true (as Masakari reads
it), the flavor's extra spec ``magnetar:ha``, the setting ``availability_projects``, the setting
``availability_policy``. docs/explanation/automatic-evacuation.md has the rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from magnetar_control.settings import Settings
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.errors import InvalidField, InvalidSettings

ALWAYS, BEST_EFFORT, NEVER = "always", "best-effort", "never"
POLICIES = (ALWAYS, BEST_EFFORT, NEVER)
#: Keys of servers' metadata, and of flavors' extra specs.
HA, HA_PRIORITY, HA_ENABLED = "ha", "ha_priority", "HA_Enabled"
FLAVOR_HA, FLAVOR_HA_PRIORITY = "magnetar:ha", "magnetar:ha_priority"
#: The priority of servers without one. Higher ones are evacuated first.
USUAL_PRIORITY = 5
PRIORITY = re.compile(r"[0-9]")
#: The values of ``HA_Enabled`` that count as true, in any case (oslo.utils' ``bool_from_string``).
TRUE = frozenset(("1", "t", "true", "on", "y", "yes"))
POLICY_RULE = f"must be one of {', '.join(POLICIES)}"
PRIORITY_RULE = "must be a number from 0 to 9"


class HaPolicy(NamedTuple):
    """The policy of a server for automatic evacuation when its host fails. *policy*: always, best-effort or never.
    *priority*: 0 to 9; servers with 9 are evacuated first. *problems*: a text for each malformed value that was
    ignored."""

    policy: str
    priority: int = USUAL_PRIORITY
    problems: tuple[str, ...] = ()


def check_project_policies(settings: Settings) -> None:
    """Raise ``InvalidSettings`` when the setting ``availability_projects`` has a malformed evacuation policy."""
    for project, policy in settings.availability_projects.items():
        if policy not in POLICIES:
            raise InvalidSettings(f"availability_projects: the policy of project {project} {POLICY_RULE}, and is "
                                  f"{policy!r}.")


def check_ha_metadata(settings: Settings, metadata: Mapping[str, str] | None) -> None:
    """Raise ``InvalidField`` when the *metadata* of a server has a malformed evacuation policy or priority. If
    automatic evacuation is disabled, policy and priority have no effect, and every value of them is accepted."""
    if not settings.availability_enabled or not metadata:
        return
    for key, rule, is_valid in ((HA, POLICY_RULE, POLICIES.__contains__),
                                (HA_PRIORITY, PRIORITY_RULE, PRIORITY.fullmatch)):
        if key in metadata and not is_valid(metadata[key]):
            raise InvalidField(f"metadata.{key}", rule, metadata[key])


def server_ha_policy(settings: Settings, server: ServerRow) -> HaPolicy:
    """Return the policy of a server for automatic evacuation: from its metadata, its flavor, its project or the default
    in the settings, in this order. Malformed values are skipped."""
    metadata, specs = server.metadata, server.flavor.get("extra_specs") or {}
    problems: list[str] = []
    policy = _valid(metadata, HA, "metadata", problems)
    if policy is None and metadata.get(HA_ENABLED, "").strip().lower() in TRUE:
        policy = ALWAYS
    policy = policy or _valid(specs, FLAVOR_HA, "extra spec", problems)
    policy = policy or settings.availability_projects.get(server.project_id) or settings.availability_policy
    priority = _valid(metadata, HA_PRIORITY, "metadata", problems) or _valid(
        specs, FLAVOR_HA_PRIORITY, "extra spec", problems)
    return HaPolicy(policy, USUAL_PRIORITY if priority is None else int(priority), tuple(problems))


def _valid(values: Mapping[str, str], key: str, source: str, problems: list[str]) -> str | None:
    """Return the evacuation policy or priority under *key* in *values*; ``None`` if it is missing or malformed. For a
    malformed value, append a text to *problems*. *source*: the source of *values* (metadata or extra spec), for this
    text."""
    value = values.get(key)
    if value is None:
        return None
    is_policy = key in (HA, FLAVOR_HA)
    if value in POLICIES if is_policy else PRIORITY.fullmatch(value):
        return value
    problems.append(f"{source} {key} {POLICY_RULE if is_policy else PRIORITY_RULE}, and is {value[:40]!r}")
    return None
