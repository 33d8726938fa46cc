# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of former extensions of the API. Nova has not changed this list since 2014, and lists removed extensions
too; so does this module. Clients learn about features from microversions."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar_control.compute.caller import Caller, use_case

#: Each alias in order, and its name unless the name is the alias as one word, without os-.
NAMES = """
    NMN:Multinic OS-DCF:DiskConfig OS-EXT-AZ:ExtendedAvailabilityZone OS-EXT-IMG-SIZE:ImageSize OS-EXT-IPS:ExtendedIps
    OS-EXT-IPS-MAC:ExtendedIpsMac OS-EXT-SRV-ATTR:ExtendedServerAttributes OS-EXT-STS:ExtendedStatus
    OS-EXT-VIF-NET:ExtendedVIFNet OS-FLV-DISABLED:FlavorDisabled OS-FLV-EXT-DATA:FlavorExtraData
    OS-SCH-HNT:SchedulerHints OS-SRV-USG:ServerUsage os-access-ips:AccessIPs os-admin-actions os-admin-password
    os-agents os-aggregates os-assisted-volume-snapshots os-attach-interfaces os-availability-zone
    os-baremetal-ext-status:BareMetalExtStatus os-baremetal-nodes:BareMetalNodes os-block-device-mapping
    os-block-device-mapping-v2-boot os-cell-capacities os-cells os-certificates os-cloudpipe os-cloudpipe-update
    os-config-drive os-console-auth-tokens os-console-output os-consoles os-create-backup
    os-create-server-ext:Createserverext os-deferred-delete os-evacuate os-extended-evacuate-find-host
    os-extended-floating-ips os-extended-hypervisors os-extended-networks os-extended-quotas
    os-extended-rescue-with-image os-extended-services os-extended-services-delete os-extended-status
    os-extended-volumes os-fixed-ips:FixedIPs os-flavor-access os-flavor-extra-specs os-flavor-manage os-flavor-rxtx
    os-flavor-swap os-floating-ip-dns os-floating-ip-pools os-floating-ips os-floating-ips-bulk os-fping
    os-hide-server-addresses os-hosts os-hypervisor-status os-hypervisors os-instance-actions
    os-instance_usage_audit_log:OSInstanceUsageAuditLog os-keypairs os-lock-server os-migrate-server os-migrations
    os-multiple-create os-networks os-networks-associate:NetworkAssociationSupport os-pause-server os-personality
    os-preserve-ephemeral-rebuild:PreserveEphemeralOnRebuild os-quota-class-sets:QuotaClasses os-quota-sets:Quotas
    os-rescue os-security-group-default-rules os-security-groups os-server-diagnostics os-server-external-events
    os-server-group-quotas os-server-groups os-server-list-multi-status os-server-password os-server-sort-keys
    os-server-start-stop os-services os-shelve os-simple-tenant-usage os-suspend-server
    os-tenant-networks:OSTenantNetworks os-used-limits os-used-limits-for-admin os-user-data os-user-quotas
    os-virtual-interfaces os-volume-attachment-update os-volumes
"""


def _extension_name(alias: str) -> str:
    return "".join(part.capitalize() for part in alias.removeprefix("os-").split("-"))


EXTENSIONS = {alias: name or _extension_name(alias) for alias, _colon,
              name in (pair.partition(":") for pair in NAMES.split())}


@use_case("os_compute_api:extensions")
def list_extensions(_caller: Caller) -> Mapping[str, str]:
    """Return the names of Nova's API extensions, by alias."""
    return EXTENSIONS
