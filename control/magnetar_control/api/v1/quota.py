# SPDX-License-Identifier: GPL-3.0-or-later
"""quota: what a project may use."""

from __future__ import annotations

from typing import Any

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.accounts.projects import project_id
from magnetar_control.compute.caller import Caller
from magnetar_core.kinds import Quota
from magnetar_core.operations import Operation
from magnetar_core.plan import Result
from magnetar_core.reconcile import Document, difference, forgotten

from .driver import CloudDriver

#: The limits that can be set, and those of which something is counted.
LIMITS = tuple(field.name for field in Quota.settable())
USED = ("instances", "cores", "ram", "server_groups")


class CloudQuotas(CloudDriver):
    """Each project has one: it is changed, or set back to the defaults, and never made."""

    kind = Quota
    takes_id = False

    def every(self, caller: Caller) -> list[Document]:
        """That of the caller's project."""
        return [self._of(caller, caller.project)]

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """GET /v1/quota?name=…: that of another project, for administrators."""
        name = filters.pop("name", None)
        return self.every(caller) if name is None else [self.find(caller, name)]

    def find(self, caller: Caller, key: str) -> Document:
        named = caller.is_admin or key == caller.context.project_name  # to others the policy says no
        return self._of(caller, project_id(caller, key, "name") if named else key)

    def _of(self, caller: Caller, project: str) -> Document:
        most, used = quotas.show_detail(caller, project, None)
        return {"id": project, "name": project, **{name: most[name] for name in LIMITS},
                **{f"{name}_used": used[name] for name in USED}}

    def given(self, key: str, want: Document) -> Document:
        return self.kind.check(want, partial=True)

    def public(self, resource: Document) -> Document:
        return {name: value for name, value in super().public(resource).items() if name != "id"}

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        quotas.check(caller, have["id"], {name: want[name] for name in LIMITS if want[name] != have[name]})

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        quotas.update(caller, have["id"], {name: want[name] for name in names})

    def removal(self, caller: Caller, have: Document | None, dry_run: bool, operation: Operation) -> Result:
        """The defaults count again."""
        assert have is not None
        if not quotas.has_own(caller, have["id"], LIMITS):
            return Result([], [], self.public(have))
        after = {**have, **quotas.show_defaults(caller, have["id"])}
        if not dry_run:
            quotas.reset(caller, have["id"])
        return Result([forgotten(self.kind, have["name"])], difference(self.kind, have, after), self.public(have))
