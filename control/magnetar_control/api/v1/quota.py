# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type quota: the limits of a project."""

from __future__ import annotations

from typing import Any

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.accounts.projects import resolve_project_id
from magnetar_control.compute.caller import Caller
from magnetar_core.document import Document
from magnetar_core.kinds import Quota
from magnetar_core.operations import Operation
from magnetar_core.plan import Result
from magnetar_core.reconcile import field_differences, forget_step

from .driver import CloudDriver

#: The limits that can be set, and the limits with a count of usage.
LIMITS = tuple(field.name for field in Quota.settable())
USED = ("instances", "cores", "ram", "server_groups")


class CloudQuotas(CloudDriver):
    """The driver of the v1 API for quotas. Each project has one quota. This API can change it or reset it to the
    defaults, but not create it."""

    kind = Quota
    takes_id = False

    def every(self, caller: Caller) -> list[Document]:
        """Return a list with the quota of the caller's project."""
        return [self._of(caller, caller.project)]

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return a list with one quota: GET /v1/quota. By default, return the quota of the caller's project;
        administrators may name another project with the filter ``name``."""
        name = filters.pop("name", None)
        return self.every(caller) if name is None else [self.find(caller, name)]

    def find(self, caller: Caller, key: str) -> Document:
        named = caller.is_admin or key == caller.context.project_name  # for other callers the policy refuses it
        return self._of(caller, resolve_project_id(caller, key, "name") if named else key)

    def _of(self, caller: Caller, project: str) -> Document:
        most, used = quotas.show_quota_detail(caller, project, None)
        return {"id": project, "name": project, **{name: most[name] for name in LIMITS},
                **{f"{name}_used": used[name] for name in USED}}

    def given(self, key: str, want: Document) -> Document:
        return self.kind.check(want, partial=True)

    def public(self, resource: Document) -> Document:
        return {name: value for name, value in super().public(resource).items() if name != "id"}

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        quotas.check_quota_update(caller, have["id"], {name: want[name] for name in LIMITS if want[name] != have[name]})

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        quotas.update_quotas(caller, have["id"], {name: want[name] for name in names})

    def removal(self, caller: Caller, have: Document | None, dry_run: bool, operation: Operation) -> Result:
        """Reset the quota to the defaults, unless this is a dry run. Return the result with the differences."""
        assert have is not None
        if not quotas.has_own_limits(caller, have["id"], LIMITS):
            return Result([], [], self.public(have))
        defaults = {**have, **quotas.show_default_quotas(caller, have["id"])}
        if not dry_run:
            quotas.reset_quotas(caller, have["id"])
        return Result([forget_step(self.kind, have["name"])], field_differences(self.kind, have, defaults),
                      self.public(have))
