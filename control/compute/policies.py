# SPDX-License-Identifier: GPL-3.0-or-later
"""Nova's policy rules and the role each asks for by default (API reference and policy reference, 2026)."""

from __future__ import annotations

#: Resource to role to rules: what follows os_compute_api:RESOURCE: in their names.
OF_RESOURCE: dict[str, dict[str, str]] = {
    "ips": {"reader": "index show"},
    "limits": {"admin": "other_project"},
    "os-admin-actions": {"admin": "inject_network_info reset_state"},
    "os-aggregates": {"admin": "add_host create delete index remove_host set_metadata show update"},
    "os-assisted-volume-snapshots": {"service": "create delete"},
    "os-attach-interfaces": {"reader": "list show", "member": "create delete"},
    "os-availability-zone": {"any": "list", "admin": "detail"},
    "os-deferred-delete": {"member": "force restore"},
    "os-flavor-access": {"admin": "add_tenant_access remove_tenant_access"},
    "os-flavor-extra-specs": {"reader": "index show", "admin": "create delete update"},
    "os-flavor-manage": {"admin": "create delete update"},
    "os-baremetal-nodes": {"admin": "list show"},
    "os-floating-ips": {"reader": "list show", "member": "add create delete remove"},
    "os-hosts": {"admin": "list reboot show shutdown start update"},
    "os-hypervisors": {"admin": "list list-detail search servers show statistics uptime"},
    "os-instance-actions": {"reader": "list show", "admin": "events events:details"},
    "os-instance-usage-audit-log": {"admin": "list show"},
    "os-keypairs": {"owner": "create delete index show"},
    "os-lock-server": {"member": "lock unlock", "admin": "unlock:unlock_override"},
    "os-migrate-server": {"manager": "migrate migrate_live", "admin": "migrate:host migrate_live:host"},
    "os-migrations": {"manager": "index", "admin": "index:all_projects index:host"},
    "os-multinic": {"member": "add remove"},
    "os-networks": {"reader": "list show"},
    "os-pause-server": {"member": "pause unpause"},
    "os-quota-class-sets": {"admin": "show update"},
    "os-quota-sets": {"any": "defaults", "reader": "detail show", "admin": "delete update"},
    "os-security-groups": {"reader": "get list show",
                           "member": "add create delete remove rule:create rule:delete update"},
    "os-server-external-events": {"service": "create"},
    "os-server-groups": {"reader": "index show", "member": "create delete", "admin": "index:all_projects"},
    "os-server-password": {"reader": "show", "member": "clear"},
    "os-server-shares": {"reader": "index show", "member": "create delete"},
    "os-server-tags": {"reader": "index show", "member": "delete delete_all update update_all"},
    "os-services": {"admin": "delete list update"},
    "os-shelve": {"member": "shelve unshelve", "admin": "shelve_offload unshelve_to_host"},
    "os-simple-tenant-usage": {"reader": "show", "admin": "list"},
    "os-suspend-server": {"member": "resume suspend"},
    "os-tenant-networks": {"reader": "list show"},
    "os-volumes": {"reader": "detail list show snapshots:detail snapshots:list snapshots:show",
                   "member": "create delete snapshots:create snapshots:delete"},
    "os-volumes-attachments": {"reader": "index show", "member": "create delete update", "service": "swap"},
    "server-metadata": {"reader": "index show", "member": "create delete update update_all"},
    "servers": {"reader": "detail index show show:flavor-extra-specs",
                "member": "confirm_resize create create:attach_network create:attach_volume create:trusted_certs "
                          "create_image create_image:allow_volume_backed delete reboot rebuild rebuild:trusted_certs "
                          "resize revert_resize start stop trigger_crash_dump update",
                "manager": "migrations:delete migrations:force_complete migrations:index",
                "admin": "allow_all_filters create:forced_host create:requested_destination create:zero_disk_flavor "
                         "detail:get_all_tenants index:get_all_tenants migrations:index:host migrations:show "
                         "show:host_status show:host_status:unknown-only", "nobody": "resize:cross_cell"}
}
#: Rule to role.
POLICIES = {
    "compute:aggregates:images": "admin", "compute:server:topology:index": "reader",
    "compute:server:topology:host:index": "admin",
    "network:attach_external_network": "admin",
    **{f"os_compute_api:{name}": role for role, names in {
        "any": "extensions limits os-floating-ip-pools",
        "member": "os-admin-password os-console-output os-create-backup os-remote-consoles os-rescue os-unrescue",
        "admin": "os-console-auth-tokens os-evacuate os-extended-server-attributes os-flavor-access "
                 "os-server-diagnostics",
    }.items() for name in names.split()},
    **{f"os_compute_api:{resource}:{name}": role for resource, roles in OF_RESOURCE.items()
       for role, names in roles.items() for name in names.split()},
}
