# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: RUF009 - _doc is dataclasses.field
"""Settings of the control plane, which ``settings_file`` reads. Each field's ``doc`` documents it."""

from __future__ import annotations

import math
import typing
from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from magnetar_core.addresses import PRIVATE
from magnetar_core.errors import InvalidSettings

#: Filters of the scheduler that are enabled by default.
USUAL_FILTERS = ("AggregateMultiTenancyIsolation", "AggregateInstanceExtraSpecsFilter", "ComputeCapabilitiesFilter",
                 "ImagePropertiesFilter", "DifferentHostFilter", "SameHostFilter")


def _doc(text: str, default: Any = None, least: float | None = None, most: float = math.inf) -> Any:
    """Return the dataclass field for a setting. *text*: its documentation. *default*: its default value, or a function
    that returns the default value. *least*, *most*: the smallest and the largest allowed number."""
    # Its result is used in a dataclass.
    # pylint: disable-next=invalid-field-call
    return field(**{"default_factory" if callable(default) else "default": default},
                 metadata={"doc": text, "least": least, "most": most})


@dataclass(frozen=True)
class Settings:
    """The configuration of the control plane. Sizes are MiB unless stated otherwise, times are seconds."""

    state_dir: Path = _doc("Folder of databases, images, and keys of the embedded services.",
                           Path("/var/lib/magnetar/control"))
    image_dir: Path | None = _doc("Folder of the content of images, preferably on a separate file system. Default: "
        "the folder images in state_dir.")
    image_reserve_mb: int = _doc("Free space that images leave on the file system of image_dir. Content that would "
        "take more is refused.", 1024)
    database_url: str | None = _doc("API database. Default: SQLite in state_dir.")
    cell0_database_url: str | None = _doc("Database of servers without a host. Default: SQLite in state_dir.")
    cell: str = _doc("Name of this conductor's cell.", "cell1")
    cell_database_url: str | None = _doc("Database of that cell, for `magnetar cell create` and `magnetar serve`. "
        "Default: SQLite in state_dir.")
    schedules: bool = _doc("Whether this conductor also finds hosts for new servers (takes actions of cell0). At "
        "least one conductor of the cloud must.", True)
    conductor_name: str | None = _doc("Name of this conductor among the services. Default: the host's name.")
    listen: str = _doc("host:port of the API.", "127.0.0.1:8774")
    tls_cert: Path | None = _doc("PEM file with the API's certificate and its chain.")
    tls_key: Path | None = _doc("Key of that certificate.")
    public_url: str | None = _doc("URL of the API for clients, in the catalogue and in links. Default: the URL of "
        "each request (its Host header).")
    health_listen: str | None = _doc("host:port of /healthz and /metrics without authentication. Use loopback, or a "
        "network for monitoring only. The API also serves both on its own port, /metrics for administrators.")
    image_url: str | None = _doc("URL of the image service, such as https://api1:8774/image, for a conductor on "
        "another machine than the images. Default: images are in state_dir.")
    image_ca_cert: Path | None = _doc("PEM file with the CA of the image service's certificate.")
    verify_image_signatures: bool = _doc(
        "Whether servers need signed images (Nova's verify_glance_signatures). Signatures are verified at an upload, "
        "and before an image reaches a host. Set the same value for API and conductors.", False)
    enable_certificate_validation: bool = _doc(
        "Whether a trusted certificate must vouch for the signer of an image. Requires verify_image_signatures. A "
        "request that names trusted certificates turns on both.", False)
    default_trusted_certificate_ids: list[str] = _doc(
        "Trusted certificates of servers that name none, if the two settings above are true.", list)
    non_inheritable_image_properties: list[str] = _doc(
        "Properties of a server's image that images of the server do not inherit.",
        lambda: ["cache_in_nova", "bittorrent"])
    keys_dir: Path | None = _doc("Folder of the embedded key manager for keys of encrypted disks, readable by the "
        "service only. Machines with the same database share it. Default: the folder keys in state_dir.")
    volume_pools: list[str] = _doc("Pools of the agents (their setting pools) for volumes. Each is a volume type; "
        "the first is the default.", lambda: ["default"])
    certificates_dir: Path | None = _doc("Folder of the embedded key manager for certificates, each in UUID.pem. "
        "Root or the service owns it, without write access for others. Default: the folder certificates in state_dir.")
    barbican_url: str | None = _doc("URL of Barbican, instead of the embedded key manager.")
    barbican_ca_cert: Path | None = _doc("PEM file with the CA of Barbican's certificate.")
    console_url: str | None = _doc("URL of consoles for browsers. Default: /console below public_url.")
    console_token_ttl: float = _doc("Seconds until the URL of a console expires. A URL works once.", 600.0, 1)
    console_allowed_origins: list[str] = _doc("Other sites whose pages may open consoles or show them in a frame, "
        "such as https://dashboard.example.", list)
    console_connections: int = _doc("Maximum number of open consoles in one process. project_share applies.",
                                    200, 1)
    novnc_dir: Path = _doc("Folder of noVNC. Debian's package novnc installs it there.", Path("/usr/share/novnc"))
    spice_dir: Path = _doc("Folder of spice-html5. Debian's package spice-html5 installs it there.",
                           Path("/usr/share/spice-html5"))
    xterm_dir: Path = _doc("Folder of xterm.js, from Debian's package node-xterm or npm's package xterm.",
                           Path("/usr/share/nodejs/xterm"))
    trust_proxy: bool = _doc("Whether X-Forwarded-Proto, -Host and -For are trusted. Set it only behind a proxy that "
        "sets them.", False)
    connections_per_address: int = _doc(
        "Open connections of one address (IPv6: /64) to an API process, at most a quarter of its descriptors; "
        "0: no limit. With trust_proxy, requests and consoles in progress count instead.", 1024, 0)
    threads: int = _doc("Requests that one process handles in parallel.", 16)
    api_workers: int = _doc("API processes of `magnetar serve` and `magnetar api` that share the port. Limits of one "
        "process apply to each of them.", 1, 1, 64)
    api_stop_delay: float = _doc("Seconds for which the API still serves after SIGTERM, with /healthz 503, so that "
        "load balancers notice first.", 0.0, 0, 30)
    log_level: str = _doc("debug, info, warning or error.", "info")
    report_dir: Path | None = _doc("Folder of the reports that processes write on SIGUSR2, each to a new file of mode "
        "0600. Default: stderr, which is the journal.")
    hosts: dict[str, str] = _doc("Compute hosts of the cell: name to the endpoint of the agent, such as "
        "unix:/run/magnetar/agent.sock or https://kvm1:6553.", dict)
    agent_ca_cert: Path | None = _doc("PEM file with the CA of the agents' certificates.")
    agent_client_cert: Path | None = _doc("Client certificate of this service for the agents.")
    agent_client_key: Path | None = _doc("Key of that certificate.")
    project_share: float = _doc("Share of image_uploads, image_downloads, operations and console_connections that "
        "one project may use, from 0 to 1. At least one of each.", 0.25, 0, 1)
    image_uploads: int = _doc("Parallel uploads of image content by users, in one process.", 32, 1)
    image_downloads: int = _doc("Parallel downloads of image content by users, in one process.", 64, 1)
    image_min_rate: int = _doc("Minimum speed of an upload or download in bytes a second. A slower transfer is ended.",
        1024, 1)
    image_rate_window: float = _doc("Seconds over which the speed of a client is measured.", 120.0, 1)
    operations: int = _doc("Parallel operations of the modules' API, in one process. Operations that wait for "
        "servers or volumes do not count. Further operations wait, and projects take turns.", 64, 1)
    heartbeat: float = _doc("Seconds between two heartbeats of an agent.", 5.0)
    host_down_after: float = _doc("Seconds without a heartbeat until a host counts as down.", 15.0)
    hold_upgrade: bool = _doc("Whether features that the previous release lacks stay unused after an upgrade, so that "
        "it can come back. Set the same value for API and conductors.", False)
    fencing: dict[str, dict[str, Any]] = _doc(
        "Power devices of hosts: host to agent (a program of fence-agents), parameters (its options, without secrets) "
        "and secrets_file (NAME=VALUE lines, mode 0600; not for API processes).", dict)
    fence_agents_dir: Path = _doc("Folder of fence agents. Debian's package fence-agents installs them there.",
                                  Path("/usr/sbin"))
    fence_timeout: float = _doc("Seconds for one run of a fence agent. Then it is killed.", 60.0, 0.1, 600)
    fence_tries: int = _doc("How often a fence agent is asked to switch a host, and to confirm it, before fencing has "
        "failed.", 3, 1, 20)
    availability_enabled: bool = _doc(
        "Whether conductors fence hosts that have died (those in fencing), and evacuate their servers. The same for "
        "API and conductors, as all settings of availability.", False)
    availability_silence: float = _doc("Seconds without a heartbeat after which a host may have died.", 60.0, 1, 86400)
    availability_policy: typing.Literal["always", "best-effort", "never"] = _doc(
        "Policy of servers if neither server, flavor nor project has one. always: evacuate, and try again until it "
        "succeeds; best-effort: try once; never: leave them.", "best-effort")
    availability_projects: dict[str, str] = _doc("Policies of projects: uuid to always, best-effort or never.", dict)
    availability_parallel_moves: int = _doc(
        "How many servers of a dead host are evacuated at the same time, within the limits of each host.", 4, 1)
    availability_max_hosts: int = _doc(
        "How many hosts of a cell may be fenced automatically within availability_window. Further ones are only "
        "reported.", 2, 1)
    availability_window: float = _doc("Seconds of that limit.", 600.0, 1)
    host_return_wait: float = _doc("Seconds after the last heartbeat of a down host. Until then, a new, unshelved or "
        "moved server waits for it if no other host is valid. 0: no wait.", 60.0, 0)
    workers: int = _doc("Actions that a conductor runs in parallel.", 16)
    host_share: float = _doc("Share of a conductor's workers for one host, from 0 to 1; at least one. A down host "
        "gets a quarter, actions for other hosts' servers half.",
                             0.6, 0, 1)
    max_attempts: int = _doc("Number of hosts that a build tries.", 3)
    builds_per_host: int = _doc("Parallel builds on a host.", 10)
    live_migrations_per_host: int = _doc("Parallel live migrations from a host.", 1)
    live_migration_completion_timeout: int = _doc(
        "Time limit of a live migration, in seconds for each GiB of the server's memory and local disks (at least 2 "
        "GiB); 0: no limit.", 800, 0)
    live_migration_timeout_action: typing.Literal["abort", "force_complete"] = _doc(
        "What happens at that time limit. abort: the server stays on its host. force_complete: the guest pauses "
        "until all memory is copied, or continues at the target (live_migration_permit_post_copy).",
        "abort")
    live_migration_downtime: int = _doc("Milliseconds that a guest may pause at the end of its live migration.",
                                        500, 100, 60000)
    live_migration_downtime_steps: int = _doc("Number of steps up to that downtime.", 10, 3, 100)
    live_migration_downtime_delay: int = _doc("Seconds between two of these steps, for each GiB as above.",
        75, 3, 86400)
    live_migration_bandwidth: int = _doc("Limit of a live migration in MiB/s; 0: none.", 0, 0, 1000000)
    live_migration_permit_post_copy: bool = _doc(
        "Whether a forced guest continues at the target while its memory follows. A failure of host or network then "
        "loses the guest. Servers with volumes pause in any case.",
        False)
    live_migration_permit_auto_converge: bool = _doc(
        "Whether the CPUs of a guest slow down if it writes memory faster than the network copies it. No effect with "
        "post-copy.", True)
    migrate_max_retries: int = _doc("How many further hosts a live migration tries after a refusal; -1: all.", -1, -1)
    action_timeout: float = _doc("Seconds that a step on a host may take.", 3600.0)
    specs_without_effect: typing.Literal["refuse", "warn"] = _doc(
        "What happens to requests with extra specs, image properties or Nova's scheduler hints without effect here. "
        "refuse, or warn in the message of the server's action.", "refuse")
    allow_resize_to_same_host: bool = _doc(
        "Whether a resize weighs the server's own host like any other. If false, the own host is the last choice.",
        False)
    resize_confirm_window: int = _doc("Seconds until a resize is confirmed automatically; 0: never.", 0)
    drain_parallel_moves: int = _doc(
        "How many servers a drain of a host moves at the same time, within the limits of each host.", 2, 1)
    shelved_offload_time: int = _doc(
        "Seconds until a shelved server leaves its host. 0: immediately; -1: never (an administrator may offload "
        "it). A server with a root disk on a volume always leaves immediately.", 0, least=-1)
    reclaim_instance_interval: int = _doc(
        "Seconds during which a deleted server can be restored (soft delete). 0: deletions are immediate, and "
        "servers that are already soft-deleted stay.", 0)
    cpu_allocation_ratio: float = _doc("Virtual CPUs for each CPU of the host.", 16.0)
    ram_allocation_ratio: float = _doc("Memory that may be claimed, as a multiple of the host's.", 1.5)
    disk_allocation_ratio: float = _doc("Disk that may be claimed, as a multiple of the host's.", 1.0)
    reserved_host_cpus: int = _doc("CPUs kept from servers.", 0)
    reserved_host_memory_mb: int = _doc("Memory kept from servers.", 512)
    reserved_host_disk_gb: int = _doc("GiB of disk kept from servers.", 0)
    cpu_weight_multiplier: float = _doc("Weight of free CPUs; below 0, servers are stacked instead of spread. Set "
        "all settings of the scheduler for the conductors, and the same for the API, for check mode.", 1.0)
    ram_weight_multiplier: float = _doc("Weight of free memory.", 1.0)
    disk_weight_multiplier: float = _doc("Weight of free disk.", 1.0)
    io_ops_weight_multiplier: float = _doc("Weight of servers that are being built, resized, rescued or saved.", -1.0)
    build_failure_weight_multiplier: float = _doc("Weight of failed builds since the last successful one; more is "
        "worse.",
                                                  1_000_000.0)
    soft_affinity_weight_multiplier: float = _doc("Weight of members of a group with that policy.", 1.0)
    soft_anti_affinity_weight_multiplier: float = _doc("Weight of members of a group with that policy; more is worse.",
                                                       1.0)
    cross_cell_move_weight_multiplier: float = _doc("Penalty of hosts of another cell, for a resize or cold "
        "migration that may leave the cell. Below 0, such hosts come first, to drain a cell.", 1_000_000.0)
    metrics_weight_multiplier: float = _doc("Weight of metrics of hosts.", 1.0)
    pci_weight_multiplier: float = _doc("Weight of free PCI devices; more is worse.", 1.0)
    metrics_weight_setting: dict[str, float] = _doc(
        "Weights of agents' metrics, such as cpu.percent; see docs/reference/scheduling.md. The weighted sum is the "
        "host's metric. Empty: metrics are ignored.", dict)
    metrics_required: bool = _doc("Whether MetricsFilter is on: a host without one of these metrics gets no server.",
        True)
    metrics_weight_of_unavailable: float = _doc("The weight of such a host if MetricsFilter is off.", -10_000.0)
    image_locality_weight_multiplier: float = _doc(
        "Weight of a host that already has the content of the image. With any value except 0, each choice examines "
        "all hosts that pass.", 0.0)
    weighers: dict[str, float] = _doc("Your own weighers (entry points of the group magnetar.weighers) and their "
        "multipliers.", dict)
    host_subset_size: int = _doc("Number of best hosts from which chance selects one.", 1)
    enabled_filters: list[str] = _doc("Optional filters that are on, in addition to the filters that are always on; "
        "see docs/reference/scheduling.md.",
                                      lambda: list(USUAL_FILTERS))
    reserve_room_to_fail: bool = _doc("Whether creates, unshelves and resizes are refused that leave too little "
                                      "room for the servers of any one failed host of the zone; see "
                                      "[Check room for a failed host](../howto/check-room-for-a-failed-host.md).",
                                      False)
    max_instances_per_host: int = _doc("Number of servers at which NumInstancesFilter refuses a host. "
        "AggregateNumInstancesFilter uses the aggregates' metadata of that name first.", 50, 1)
    max_io_ops_per_host: int = _doc("The same for servers that are being built, resized, migrated, rescued, "
        "unshelved or saved (IoOpsFilter, AggregateIoOpsFilter).", 8, 1)
    isolated_hosts: list[str] = _doc("Hosts for isolated_images, for IsolatedHostsFilter.", list)
    isolated_images: list[str] = _doc("Uuids of images whose servers run on isolated_hosts only.", list)
    restrict_isolated_hosts_to_isolated_images: bool = _doc("Whether isolated_hosts refuse all other servers.", True)
    aggregate_image_properties_isolation_namespace: str | None = _doc(
        "Prefix of the aggregates' metadata that AggregateImagePropertiesIsolation compares with image properties. "
        "Default: all metadata.")
    aggregate_image_properties_isolation_separator: str = _doc("Separator between that prefix and the rest.", ".")
    enable_isolated_aggregate_filtering: bool = _doc(
        "Whether hosts of an aggregate with metadata trait:NAME=required get only servers whose flavor or image "
        "requires that trait.", False)
    limit_tenants_to_placement_aggregate: bool = _doc(
        "Whether servers of a project run only on hosts of the aggregates that name the project in filter_tenant_id, "
        "if some do.", False)
    placement_aggregate_required_for_tenants: bool = _doc("Whether projects that no aggregate names then get no host.",
        False)
    default_availability_zone: str = _doc("Zone of hosts that are in no aggregate with a zone.", "nova")
    default_schedule_zone: str | None = _doc("Zone of servers whose request names no zone. Default: any.")
    max_disk_devices_to_attach: int = _doc(
        "Maximum number of disks of a server: its own and volumes, without the config drive; -1: no limit.", -1, -1)
    max_local_block_devices: int = _doc(
        "Maximum number of local disks in a request for a server, including the root disk of its image. -1: no "
        "limit; 0: only servers that boot from volumes.", 3, -1)
    max_limit: int = _doc("Maximum number of items in one list.", 1000)
    max_servers_at_once: int = _doc("Maximum number of servers in one request (min_count, max_count), regardless of "
        "the quota.", 1000)
    cell_timeout: float = _doc("Seconds that a list waits for a cell.", 60.0)
    statement_timeout: float = _doc("Time limit of a PostgreSQL statement in seconds, except upgrades of tables; 0: "
        "no limit.", 60.0)
    purge_deleted_after: float = _doc("Days until a deleted server is removed permanently, with its actions and "
        "migrations, or an ended incident or fencing request; 0 keeps all. `magnetar db purge` removes them earlier.",
        90.0)
    instance_usage_audit_period: typing.Literal["hour", "day", "month", "year"] = _doc(
        "Period of os-instance_usage_audit_log and instance.exists.", "month")
    instance_usage_audit: bool = _doc("Whether instance.exists notifications list the servers of each period at its "
        "end. Set the same value for all conductors.", False)
    policy_file: Path | None = _doc("oslo.policy file (YAML) that overrides Nova's default rules.")
    policy_dirs: list[str] = _doc("Folders of further policy files, read after policy_file in the order of their "
        "names (`policy.d`). The last file that names a rule counts.", list)
    enable_instance_password: bool = _doc("Whether responses to create, rebuild, rescue and evacuate contain the "
        "guest's password.", True)
    config_drive_format: typing.Literal["agent", "iso9660", "vfat"] = _doc(
        "File system of config drives: iso9660, vfat, or agent for the setting of each host's agent.", "agent")
    dhcp_domain: str = _doc("Domain of guests' host names; empty: none.", "novalocal")
    vendordata_jsonfile_path: Path | None = _doc("JSON file with the object for vendor_data.json, at most 256 KiB. "
        "Conductors read this and the following settings of vendordata.")
    vendordata_dynamic_targets: list[str] = _doc(
        "Services, NAME@URL each, that provide vendor_data2.json of a server when its config drive is written.", list)
    vendordata_dynamic_ssl_certfile: Path | None = _doc("PEM file with the CAs of these services' certificates. "
        "Default: the system's CAs.")
    vendordata_dynamic_connect_timeout: float = _doc("Seconds to connect to a service.", 5.0, 0.01, 300)
    vendordata_dynamic_read_timeout: float = _doc("Seconds for the whole response.", 5.0, 0.01, 300)
    vendordata_dynamic_failure_fatal: bool = _doc("Whether a failed service fails the build. If false, the guest "
        "finds an empty entry.", False)
    vendordata_dynamic_service_token: bool = _doc(
        "Whether requests carry a token of a service user (role service), which identifies the cloud. Requires https.",
        False)
    vendordata_dynamic_auth: dict[str, Any] = _doc(
        "A Keystone user whose token these requests carry instead (requires https), and TLS options, by the names of "
        "Nova's section; see docs/reference/guest-data.md.", dict)
    notification_urls: dict[str, str] = _doc(
        "Receivers of notifications: a name of your choice to a URL, https or http on loopback; see "
        "docs/reference/notifications.md. The same for API and conductors, as all settings of notifications.", dict)
    notification_token_files: dict[str, str] = _doc(
        "Receiver name to the file with its bearer token. Only root and the service may read the file.",
        dict)
    notification_ca_cert: Path | None = _doc("PEM file with the CAs of the receivers' certificates. Default: the "
        "system's CAs.")
    notification_allow_http: bool = _doc("Whether notifications may go to other machines over http, readable on the "
        "way; never with a token.", False)
    notification_timeout: float = _doc("Seconds for each notification.", 10.0, 0.1, 15)
    notification_log: str | None = _doc("File for a copy of each notification that this conductor sends, a JSON "
        "object a line. -: the service's own log.")
    notification_keep_hours: float = _doc("Hours that notifications wait for an unavailable receiver before they are "
        "dropped.", 24.0, 0.01, 87600)
    notification_keep_count: int = _doc("Maximum number of notifications that wait for a receiver in one database; "
        "the oldest are dropped.", 100_000, 1)
    bdms_in_notifications: bool = _doc("Whether notifications of servers contain their volumes.", False)
    event_stream: bool = _doc("Whether events are kept for /v1/events, which Event-Driven Ansible follows. The same "
        "for API and conductors.", False)
    event_keep_hours: float = _doc("Hours that events are kept for readers that were away.", 24.0, 0.01, 87600)
    event_keep_count: int = _doc("Maximum number of events that are kept in one database; the oldest are dropped.",
                                 100_000, 1)
    event_streams: int = _doc("Clients of one process that may follow /v1/events at the same time.", 200, 1)
    shares: dict[str, str] = _doc(
        "Shares for servers: uuid to NAME, or to NAME@PROJECT,… with uuids of the permitted projects (default: all). "
        "NAME is the share's name on hosts; see docs/howto/mount-a-share.md.", dict)
    network_cidr: str = _doc("Addresses of a new cloud's shared network `default`. With OVN: of the subnet pool "
        "`default`, the source of each project's first network.", "10.20.0.0/16")
    network_pools: list[str] = _doc("Permitted ranges of users' subnets, because each host routes to them. "
        "Administrators may use others.",
                                    lambda: list(map(str, PRIVATE)))
    ovn_northbound: str | None = _doc(
        "Northbound database of OVN: ssl:10.0.0.1:6641, tcp:… or unix:/path; a cluster's servers separated by "
        "commas. The same for API and conductors. Default: no OVN, networks on each host.")
    ovn_southbound: str | None = _doc(
        "Southbound database of OVN, in the same form, for ports of SmartNICs (vnic_type remote-managed). It is only "
        "read. ssl uses ovn_cert and ovn_ca_cert; a cluster listens on port 6645.")
    ovn_key: Path | None = _doc("PEM file with this service's key for the northbound database, for ssl.")
    ovn_cert: Path | None = _doc("Certificate of that key.")
    ovn_ca_cert: Path | None = _doc("PEM file with the CA of the northbound database's certificate.")
    ovn_wait: float = _doc("Seconds that the start of a server waits until the northbound database has its ports.",
                           30.0, 0.1)
    ovn_hosts_wait: float = _doc("Seconds that it then waits for all hosts; after that it continues. 0: no wait. "
        "Servers start sooner, but with a slow OVN a guest may request its address repeatedly.",
                                 5.0, 0)
    physical_mtu: int = _doc("MTU of the networks between hosts. Networks of OVN have 58 bytes less.",
                             1500, 634, 65535)
    ovn_gateway_hosts: list[str] = _doc("Hosts that connect routers to external networks. Default: any host.",
                                        list)
    quota_instances: int = _doc("Servers of a project; -1 for no limit.", 10)
    quota_cores: int = _doc("Virtual CPUs of a project.", 20)
    quota_ram: int = _doc("Memory of a project's servers.", 51200)
    quota_metadata_items: int = _doc("Metadata keys of a server.", 128)
    quota_key_pairs: int = _doc("Key pairs of a user.", 100)
    quota_server_groups: int = _doc("Server groups of a project.", 10)
    quota_server_group_members: int = _doc("Servers in a server group.", 10)
    quota_networks: int = _doc("Networks of a project.", 100)
    quota_subnets: int = _doc("Subnets of a project.", 500)
    quota_ports: int = _doc("Ports of a project, including its servers' ports.", 500)
    quota_security_groups: int = _doc("Security groups of a project, including `default`.", 10)
    quota_security_group_rules: int = _doc("Rules of a project's security groups, including `default`.", 100)
    quota_rbac_policies: int = _doc("RBAC policies of a project: what it shares with others, or with all.", 10)
    quota_subnetpools: int = _doc("Subnet pools of a project.", 10)
    quota_address_scopes: int = _doc("Address scopes of a project.", 10)
    quota_routers: int = _doc("Routers of a project.", 10)
    quota_floatingips: int = _doc("Floating IPs of a project.", 50)
    quota_address_groups: int = _doc("Address groups of a project, with OVN.", 10)
    quota_trunks: int = _doc("Trunks of a project, with OVN.", 10)
    quota_volumes: int = _doc("Volumes of a project.", 10)
    quota_gigabytes: int = _doc("GiB of a project's volumes and snapshots of them.", 1000)
    quota_snapshots: int = _doc("Snapshots of a project's volumes.", 10)
    quota_backups: int = _doc("Backups of a project's volumes.", 10)
    quota_backup_gigabytes: int = _doc("GiB of the volumes that a project's backups are of.", 1000)
    quota_per_volume_gigabytes: int = _doc("GiB of one volume.", -1)
    quota_images: int = _doc("Images of a project, including images of its servers.", 100)
    quota_image_gigabytes: int = _doc("GiB of a project's images.", 1000)
    token_hours: float = _doc("Lifetime of a token of the embedded identity service, in hours.", 8.0, least=1, most=24)
    keystone_url: str | None = _doc("URL of a real Keystone (with /v3), instead of the embedded identity service.")
    keystone_username: str = _doc("User that validates tokens there.", "magnetar")
    keystone_password_file: Path | None = _doc("File with that user's password.")
    keystone_project: str = _doc("Project of that user.", "service")
    keystone_ca_cert: Path | None = _doc("PEM file with the CA of Keystone's certificate.")

    def take_over(self, fresh: Settings, names: Collection[str]) -> None:
        """Set the settings *names* to their values in *fresh*, when the file was reloaded. This object itself is
        changed, because many parts of the process share it. Nothing else ever changes it."""
        for name in names:
            object.__setattr__(self, name, getattr(fresh, name))

    def url(self, name: str) -> str:
        """Return the URL of the database ``api``, ``cell0`` or ``cell``."""
        configured_url = getattr(self, "database_url" if name == "api" else f"{name}_database_url")
        return str(configured_url or f"sqlite:///{self.state_dir}/{self.cell if name == 'cell' else name}.db")

    @property
    def spread(self) -> bool:
        """Return whether the cloud can have several cells, created with `magnetar cell create` instead of from these
        settings: ``database_url`` is set, and ``cell_database_url`` is not."""
        return self.database_url is not None and self.cell_database_url is None

    @property
    def images(self) -> Path:
        """Return the folder for the content of images."""
        return self.image_dir or self.state_dir / "images"

    @property
    def certificates(self) -> Path:
        """Return the folder for the certificates of the embedded key manager."""
        return self.certificates_dir or self.state_dir / "certificates"

    @property
    def keys(self) -> Path:
        """Return the folder for the keys of the embedded key manager."""
        return self.keys_dir or self.state_dir / "keys"

    @property
    def trusted_certificates(self) -> list[str]:
        """Return the ids of the certificates that are trusted for image signatures if the request for a server names
        none; empty unless the settings ``verify_image_signatures`` and ``enable_certificate_validation`` are true."""
        both = self.verify_image_signatures and self.enable_certificate_validation
        return self.default_trusted_certificate_ids if both else []

    def pools(self) -> list[IPv4Network]:
        """Return the networks in the setting ``network_pools``. Raises ``InvalidSettings``."""
        try:
            return [IPv4Network(pool) for pool in self.network_pools]
        except ValueError as error:
            raise InvalidSettings(f"network_pools must be IPv4 networks such as 10.0.0.0/8: {error}.") from None

    def workers_of_host(self) -> int:
        """Return the maximum number of worker threads of a conductor that may execute actions on the same host."""
        return share_of(self.workers, self.host_share)

    def of_project(self, all: int) -> int:
        """Return the share of *all* that one project may use (setting ``project_share``). *all*: a limit on requests or
        connections."""
        return share_of(all, self.project_share)

    def limits(self) -> dict[str, int]:
        """Return how many actions of a kind may run on a host at the same time: {kind (build; live: live migration):
        number}."""
        return {"build": self.builds_per_host, "live": self.live_migrations_per_host}


def share_of(all: int, part: float) -> int:
    """Return the fraction *part* (from 0 to 1) of *all*, rounded to a whole number, but at least 1."""
    return max(1, round(all * part))
