# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type quota: the limits of a project, of the Compute API and of the embedded services."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.accounts.projects import resolve_project_id
from magnetar_control.compute.caller import Caller
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import Quota
from magnetar_core.operations import Operation
from magnetar_core.plan import Result
from magnetar_core.reconcile import field_differences, forget_step

from .driver import CloudDriver

#: The limits of the volume service, and of the network service with the resource that each limits.
OF_VOLUMES = ("volumes", "snapshots", "gigabytes", "per_volume_gigabytes", "backups", "backup_gigabytes")
OF_NETWORKS = {"networks": "network", "subnets": "subnet", "subnet_pools": "subnetpool", "ports": "port",
               "routers": "router", "floating_ips": "floatingip", "security_groups": "security_group",
               "security_group_rules": "security_group_rule", "rbac_policies": "rbac_policy"}
#: The limits of the Compute API that can be set, and the limits with a count of usage.
LIMITS = tuple(field.name for field in Quota.settable() if field.name not in (*OF_VOLUMES, *OF_NETWORKS))
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
        limits = dict.fromkeys((*OF_VOLUMES, *OF_NETWORKS))
        for service, names in _embedded_services(caller):
            with service.database.read() as connection:
                found = service.quota.limits(connection, project)
            limits.update((name, found[resource]) for name, resource in names.items())
        return {"id": project, "name": project, **{name: most[name] for name in LIMITS}, **limits,
                **{f"{name}_used": used[name] for name in USED}}

    def given(self, key: str, want: Document) -> Document:
        return self.kind.check(want, partial=True)

    def public(self, resource: Document) -> Document:
        return {name: value for name, value in super().public(resource).items() if name != "id"}

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        quotas.check_quota_update(caller, have["id"], {name: want[name] for name in LIMITS if want[name] != have[name]})
        for name in (*OF_VOLUMES, *OF_NETWORKS):
            if want[name] != have[name] and None in (want[name], have[name]):
                raise InvalidField(name, "is a limit of another service than this cloud's own; set it there" if have[
                    name] is None else "must be a number; -1 for no limit", want[name])

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        quotas.update_quotas(caller, have["id"], {name: want[name] for name in names if name in LIMITS})
        for service, resources in _embedded_services(caller):
            limits = {resource: want[name] for name, resource in resources.items() if name in names}
            if limits:
                with service.database.write() as connection:
                    service.quota.set(connection, have["id"], limits)

    def removal(self, caller: Caller, have: Document | None, dry_run: bool, operation: Operation) -> Result:
        """Reset the quota to the defaults, unless this is a dry run. Return the result with the differences."""
        assert have is not None
        own_limits = quotas.has_own_limits(caller, have["id"], LIMITS)
        usual_limits = quotas.show_default_quotas(caller, have["id"])
        defaults = {**have, **{name: usual_limits[name] for name in LIMITS}}
        for service, names in _embedded_services(caller):
            with service.database.read() as connection:
                usual = service.quota.limits(connection)
            defaults.update((name, usual[resource]) for name, resource in names.items())
        if not own_limits and all(defaults[name] == have[name] for name in (*OF_VOLUMES, *OF_NETWORKS)):
            return Result([], [], self.public(have))
        if not dry_run:
            quotas.reset_quotas(caller, have["id"])
            for service, names in _embedded_services(caller):
                with service.database.write() as connection:
                    service.quota.set(connection, have["id"], dict.fromkeys(names.values()))
        return Result([forget_step(self.kind, have["name"])], field_differences(self.kind, have, defaults),
                      self.public(have))


def _embedded_services(caller: Caller) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yield the embedded volume service and the embedded network service, each with a dict of its limits: {field of a
    quota in the v1 API: name of the limited resource in the service}. Cinder and Neutron are not yielded, because they
    keep their limits themselves."""
    services = caller.cloud.services
    for service, names in ((services.volume, dict(zip(OF_VOLUMES, OF_VOLUMES, strict=True))),
                           (services.network, OF_NETWORKS)):
        quota = getattr(service, "quota", None)
        if quota is not None:
            yield service, {name: resource for name, resource in names.items() if resource in quota.defaults}
