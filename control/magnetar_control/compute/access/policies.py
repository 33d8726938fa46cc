# SPDX-License-Identifier: GPL-3.0-or-later
"""Nova's policy rules and the roles that pass each by default (API reference and policy reference, 2026)."""

from __future__ import annotations

from typing import NamedTuple

#: Nova's base rules, which other rules and policy files refer to. The last seven occur in older files.
BASE = {
    "context_is_admin": "role:admin",
    "project_reader_api": "role:reader and project_id:%(project_id)s",
    "project_member_api": "role:member and project_id:%(project_id)s",
    "project_manager_api": "role:manager and project_id:%(project_id)s",
    "project_reader_or_admin": "rule:project_reader_api or rule:context_is_admin",
    "project_member_or_admin": "rule:project_member_api or rule:context_is_admin",
    "project_manager_or_admin": "rule:project_manager_api or rule:context_is_admin",
    "service_api": "role:service",
    "service_or_admin": "rule:service_api or rule:context_is_admin",
    "admin_api": "is_admin:True",
    "admin_or_owner": "is_admin:True or project_id:%(project_id)s",
    "project_admin_api": "role:admin and project_id:%(project_id)s",
    "system_admin_api": "role:admin and system_scope:all",
    "system_reader_api": "role:reader and system_scope:all",
    "system_admin_or_owner": "rule:system_admin_api or rule:project_member_api",
    "system_or_project_reader": "rule:system_reader_api or rule:project_reader_api",
}
#: Nova's check string for each role word of the tables below. Administrators of other projects do not pass the words
#: that begin with project_.
CHECKS = {
    "any": "@",
    "reader": "rule:project_reader_or_admin",
    "member": "rule:project_member_or_admin",
    "manager": "rule:project_manager_or_admin",
    "project_reader": "rule:project_reader_api",
    "project_member": "rule:project_member_api",
    "admin": "rule:context_is_admin",
    "owner": "rule:context_is_admin or user_id:%(user_id)s",
    "service": "rule:service_or_admin",
    "nobody": "!",
}
#: Resource to role to rules: the part of their names after os_compute_api:RESOURCE:.
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
    "os-server-shares": {"project_reader": "index show", "project_member": "create delete"},
    "os-server-tags": {"reader": "index show", "member": "delete delete_all update update_all"},
    "os-services": {"admin": "delete list update"},
    "os-shelve": {"member": "shelve unshelve", "admin": "shelve_offload unshelve_to_host"},
    "os-simple-tenant-usage": {"reader": "show", "admin": "list"},
    "os-suspend-server": {"member": "resume suspend"},
    "os-tenant-networks": {"project_reader": "list show"},
    "os-volumes": {"reader": "detail list show snapshots:detail snapshots:list snapshots:show",
                   "member": "create delete snapshots:create snapshots:delete"},
    "os-volumes-attachments": {"reader": "index show", "member": "create delete update", "service": "swap"},
    "server-metadata": {"reader": "index show", "member": "create delete update update_all"},
    "servers": {"reader": "detail index show show:flavor-extra-specs",
                "member": "confirm_resize create create:attach_network create:attach_volume create:trusted_certs "
                          "create_image create_image:allow_volume_backed delete reboot rebuild rebuild:trusted_certs "
                          "resize revert_resize start stop trigger_crash_dump update",
                "manager": "migrations:delete migrations:force_complete migrations:index",
                "admin": "allow_all_filters create:forced_host create:zero_disk_flavor detail:get_all_tenants "
                         "index:get_all_tenants migrations:index:host migrations:show show:host_status "
                         "show:host_status:unknown-only"},
}
#: Rule to role.
POLICIES = {
    "network:attach_external_network": "admin",
    "compute:aggregates:images": "admin", "compute:server:topology:index": "reader",
    "compute:server:topology:host:index": "admin",
    "compute:servers:create:requested_destination": "admin", "compute:servers:resize:cross_cell": "nobody",
    **{f"os_compute_api:{name}": role for role, names in {
        "any": "extensions limits os-floating-ip-pools",
        "member": "os-admin-password os-console-output os-create-backup os-remote-consoles os-rescue os-unrescue",
        "admin": "os-console-auth-tokens os-evacuate os-extended-server-attributes os-flavor-access "
                 "os-server-diagnostics",
    }.items() for name in names.split()},
    **{f"os_compute_api:{resource}:{name}": role for resource, roles in OF_RESOURCE.items()
       for role, names in roles.items() for name in names.split()},
    "magnetar:servers:guest": "admin", "magnetar:servers:adopt": "admin",
}


class Further(NamedTuple):
    """A policy rule that is checked in addition to an operation's main rule. *of*: the names of the operations that
    check the rule, separated by blanks. *what*: a sentence that describes the permission."""

    of: str
    what: str


#: Rules of routes of ``/v1`` that the Compute API does not have. *of*: the routes.
OF_V1 = {
    "magnetar:servers:guest": Further(
        "POST /v1/server/{key}/guest", "Run programs, and read and write files, in a server as root, by its guest "
        "agent."),
    "magnetar:servers:adopt": Further(
        "GET /v1/adoption, and GET, PUT and DELETE /v1/adoption/{key}", "List the libvirt domains of hosts that other "
        "programs have defined, adopt them as servers of any project, and release them.")}
_ALL_SERVERS = "servers.list servers.detail.list"
_SHOWN = "servers.show servers.detail.list servers.update servers.action.rebuild"
#: Additional rules of operations, and rules of operations whose target is known only later. A test checks each of them.
FURTHER = {
    "compute:servers:create:requested_destination": Further(
        "servers.create", "Ask for a host or hypervisor_hostname, which the scheduler's filters must pass (2.74)."),
    "compute:servers:resize:cross_cell": Further(
        "servers.action.resize servers.action.migrate",
        "Have a server go into another cell with a resize or cold migration."),
    "network:attach_external_network": Further(
        "servers.create servers.os-interface.create",
        "Give a server a NIC on an external network that is not shared with its project."),
    "compute:server:topology:host:index": Further(
        "servers.topology.list", "Show the NUMA nodes and CPUs of the host that a server has."),
    **{f"os_compute_api:{name}": Further(of, description) for name, of, description in (
        ("limits:other_project", "limits.list", "Show the limits of another project."),
        ("os-extended-server-attributes", _SHOWN, "Show on which host a server is, and what it is called there."),
        ("os-flavor-extra-specs:index", "flavors.detail.list flavors.show flavors.create flavors.update",
         "Show the extra specs of flavors (2.61)."),
        ("os-instance-actions:events", "servers.os-instance-actions.show",
         "Show the events of an action before 2.51, with their tracebacks, and the hosts of events (2.62)."),
        ("os-instance-actions:events:details", "servers.os-instance-actions.show",
         "Show the details of an action's events (2.84)."),
        ("os-keypairs:index", "os-keypairs.list", "List key pairs, one's own or those of user_id (2.10)."),
        ("os-keypairs:create", "os-keypairs.create", "Make a key pair, one's own or of user_id (2.10)."),
        ("os-keypairs:show", "os-keypairs.show", "Show a key pair, one's own or of user_id (2.10)."),
        ("os-keypairs:delete", "os-keypairs.delete", "Delete a key pair, one's own or of user_id (2.10)."),
        ("os-lock-server:unlock:unlock_override", "servers.action.unlock", "Unlock what somebody else has locked."),
        ("os-migrate-server:migrate:host", "servers.action.migrate", "Say to which host a server is migrated (2.56)."),
        ("os-migrate-server:migrate_live:host", "servers.action.os-migrateLive",
         "Say to which host a running server is migrated."),
        ("os-migrations:index:all_projects", "os-migrations.list", "List the migrations of other projects."),
        ("os-migrations:index:host", "os-migrations.list", "Show the hosts of migrations."),
        ("os-quota-sets:show", "os-quota-sets.show", "Show the quotas of a project."),
        ("os-quota-sets:detail", "os-quota-sets.detail.list", "Show the quotas of a project and what is used of them."),
        ("os-quota-sets:update", "os-quota-sets.update", "Set the quotas of a project or a user."),
        ("os-quota-sets:delete", "os-quota-sets.delete", "Set the quotas of a project or a user back."),
        ("os-server-groups:index:all_projects", "os-server-groups.list", "List the server groups of all projects."),
        ("os-shelve:unshelve_to_host", "servers.action.unshelve", "Say on which host a server is unshelved (2.91)."),
        ("os-volumes-attachments:swap", "servers.os-volume_attachments.update",
         "Put another volume in the place of one."),
        ("os-simple-tenant-usage:show", "os-simple-tenant-usage.show", "Show the usage of a project."),
        ("servers:allow_all_filters", _ALL_SERVERS, "Use all filters; without it the others are passed over."),
        ("servers:index:get_all_tenants", "servers.list", "List the servers of all projects."),
        ("servers:detail:get_all_tenants", "servers.detail.list", "List the servers of all projects in full."),
        ("servers:create:attach_network", "servers.create", "Make a server with networks or ports that it names."),
        ("servers:create:attach_volume", "servers.create", "Make a server with a block device mapping."),
        ("servers:create:forced_host", "servers.create", "Put a server on a host past the filters (ZONE:HOST)."),
        ("servers:create:trusted_certs", "servers.create", "Make a server that trusts certificates of images (2.63)."),
        ("servers:create:zero_disk_flavor", "servers.create",
         "Make a server of an image with a flavor without a disk, which is then as large as the image."),
        ("servers:create_image:allow_volume_backed", "servers.action.createImage",
         "Make an image of a server whose root disk is a volume."),
        ("servers:migrations:index:host", "servers.migrations.list servers.migrations.show",
         "Show the hosts of a server's migrations."),
        ("servers:rebuild:trusted_certs", "servers.action.rebuild",
         "Rebuild a server with other certificates that it trusts (2.63)."),
        ("servers:show:flavor-extra-specs", _SHOWN, "Show the extra specs of a server's flavor (2.47)."),
        ("servers:show:host_status", _SHOWN, "Show the status of a server's host (2.16)."),
        ("servers:show:host_status:unknown-only", _SHOWN,
         "Show the status of a server's host where it is UNKNOWN, for those who may not read it always (2.16)."),
    )},
}
_OWNER, _ADMIN = "rule:admin_or_owner", "rule:admin_api"


class Former(NamedTuple):
    """The deprecated former name of a policy rule, and the default check string that it had under that name."""

    name: str
    check: str


#: Rule to its former name, which policy files may still use.
FORMER = {
    **{rule: Former(f"os_compute_api:{resource}", check) for resource, check in {
        **dict.fromkeys(("os-attach-interfaces", "os-deferred-delete", "os-floating-ips", "os-multinic",
                         "os-security-groups", "os-server-password", "os-tenant-networks", "os-volumes"), _OWNER),
        **dict.fromkeys(("os-baremetal-nodes", "os-hosts", "os-hypervisors", "os-instance-usage-audit-log",
                         "os-services"), _ADMIN),
    }.items() for rule in POLICIES if rule.startswith(f"os_compute_api:{resource}:")},
    **{f"os_compute_api:os-instance-actions:{name}": Former("os_compute_api:os-instance-actions", _OWNER)
       for name in ("list", "show")},
    **{f"os_compute_api:os-networks:{name}": Former("os_compute_api:os-networks:view", _OWNER)
       for name in ("list", "show")},
    "os_compute_api:limits:other_project": Former("os_compute_api:os-used-limits", _ADMIN),
    "os_compute_api:os-unrescue": Former("os_compute_api:os-rescue", _OWNER),
    "os_compute_api:servers:show:flavor-extra-specs": Former("os_compute_api:os-flavor-extra-specs:index", _OWNER),
}
