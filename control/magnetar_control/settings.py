# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: RUF009 - _doc is dataclasses.field
"""Settings of the control plane, which ``settings_file`` reads. Each field's ``doc`` documents it."""

from __future__ import annotations

import math
import typing
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
    """*least*, *most*: the smallest and the largest number that the setting takes."""
    # Its result stands in a dataclass.
    # pylint: disable-next=invalid-field-call
    return field(**{"default_factory" if callable(default) else "default": default},
                 metadata={"doc": text, "least": least, "most": most})


@dataclass(frozen=True)
class Settings:
    """How the control plane runs. Sizes are MiB where not said otherwise, times are seconds."""

    state_dir: Path = _doc("Folder of databases, images, and keys of the embedded services.",
                           Path("/var/lib/magnetar/control"))
    image_dir: Path | None = _doc("Folder of the content of images, best on a file system of its own; the folder "
                                  "images in state_dir when left out.")
    image_reserve_mb: int = _doc("Room that images leave on the file system of image_dir: what would take more is "
                                 "refused.", 1024)
    database_url: str | None = _doc("API database; SQLite in state_dir when left out.")
    cell0_database_url: str | None = _doc("Database of servers without a host; SQLite in state_dir when left out.")
    cell: str = _doc("Name of the cell whose conductor this is.", "cell1")
    cell_database_url: str | None = _doc("Database of that cell, for `magnetar cell create` and `magnetar serve`; "
                                         "SQLite in state_dir when left out.")
    schedules: bool = _doc("Whether this conductor also finds hosts for new servers (takes actions of cell0). Some "
                           "conductor of the cloud must; any number may.", True)
    conductor_name: str | None = _doc("Name of this conductor among the services; the host's name when left out.")
    listen: str = _doc("host:port of the API.", "127.0.0.1:8774")
    tls_cert: Path | None = _doc("PEM file with the API's certificate and its chain.")
    tls_key: Path | None = _doc("Key of that certificate.")
    public_url: str | None = _doc("URL by which clients reach the API, for the catalogue and links; that of each "
                                  "request (its Host header) when left out.")
    health_listen: str | None = _doc("host:port that offers /healthz and /metrics without authentication: of loopback, "
                                     "or of a network that only the monitoring reaches. The API has /healthz, and "
                                     "/metrics for administrators, on its own port as well.")
    image_url: str | None = _doc("URL of the image service, such as https://api1:8774/image, for a conductor on "
                                 "another machine than the images; left out, they are in state_dir.")
    image_ca_cert: Path | None = _doc("PEM file with the CA of its certificate.")
    verify_image_signatures: bool = _doc(
        "Whether servers are made of signed images only: signatures are verified before an image reaches a host, and "
        "when content is uploaded (Nova's verify_glance_signatures). Give API and conductors the same.", False)
    enable_certificate_validation: bool = _doc(
        "Whether the certificate that signed an image must be linked to a trusted one. It counts only with "
        "verify_image_signatures; a request that names trusted certificates has both done.", False)
    default_trusted_certificate_ids: list[str] = _doc(
        "Trusted certificates of servers that name none, where both of these are true.", list)
    non_inheritable_image_properties: list[str] = _doc(
        "Properties of a server's image that images made of the server do not get.",
        lambda: ["cache_in_nova", "bittorrent"])
    keys_dir: Path | None = _doc("Folder of the embedded key manager for the keys of encrypted disks, which the "
                                 "service alone can read; machines with the same database share it; the folder keys in "
                                 "state_dir when left out.")
    volume_pools: list[str] = _doc("Pools of the agents (their setting pools) in which volumes may lie: a volume "
                                   "type for each, of which the first is the usual one.", lambda: ["default"])
    certificates_dir: Path | None = _doc("Folder of the embedded key manager: a certificate is UUID.pem in it, which "
                                         "root or the service owns and nobody else may write; the folder certificates "
                                         "in state_dir when left out.")
    barbican_url: str | None = _doc("URL of Barbican, in place of the embedded key manager.")
    barbican_ca_cert: Path | None = _doc("PEM file with the CA of its certificate.")
    console_url: str | None = _doc("URL by which browsers reach consoles; /console below public_url when left out.")
    console_token_ttl: float = _doc("Seconds for which the URL of a console is good, once.", 600.0, 1)
    console_allowed_origins: list[str] = _doc("Other sites whose pages may open consoles, such as "
                                              "https://dashboard.example: those that show serial consoles themselves, "
                                              "or ours in a frame.", list)
    console_connections: int = _doc("Consoles that are open at once in one process; project_share is of these, too.",
                                    200, 1)
    novnc_dir: Path = _doc("Folder of noVNC, as Debian's package novnc has it.", Path("/usr/share/novnc"))
    spice_dir: Path = _doc("Folder of spice-html5, as Debian's package of that name has it.",
                           Path("/usr/share/spice-html5"))
    xterm_dir: Path = _doc("Folder of xterm.js, as Debian's package node-xterm or npm's package xterm has it.",
                           Path("/usr/share/nodejs/xterm"))
    trust_proxy: bool = _doc("Believe X-Forwarded-Proto, -Host and -For; only behind a proxy that sets them.", False)
    connections_per_address: int = _doc(
        "Connections to one process of the API that one address (of IPv6: a /64) may have open, a quarter of what the "
        "process may open at most; 0 for no limit. With trust_proxy: requests and consoles under way of one address, "
        "as the proxy tells it.", 1024, 0)
    threads: int = _doc("Requests that are worked on at once in one process.", 16)
    log_level: str = _doc("debug, info, warning or error.", "info")
    hosts: dict[str, str] = _doc("Compute hosts of the cell: name to the endpoint of the agent, such as "
                                 "unix:/run/magnetar/agent.sock or https://kvm1:6553.", dict)
    agent_ca_cert: Path | None = _doc("PEM file with the CA of the agents' certificates.")
    agent_client_cert: Path | None = _doc("Certificate that the agents know this service by.")
    agent_client_key: Path | None = _doc("Key of that certificate.")
    project_share: float = _doc("Part of image_uploads, image_downloads, operations and console_connections that "
                                "one project may have, from 0 to 1, but one at least.", 0.25, 0, 1)
    image_uploads: int = _doc("Uploads of image content by users at once, in one process.", 32, 1)
    image_downloads: int = _doc("Downloads of image content by users at once, in one process.", 64, 1)
    image_min_rate: int = _doc("Bytes a second below which an upload or download is ended.", 1024, 1)
    image_rate_window: float = _doc("Seconds of waiting for a client over which that is measured.", 120.0, 1)
    operations: int = _doc("Operations of the modules' API at work at once, in one process. Those that wait for "
                           "servers or volumes are not counted. More of them wait, projects in turn.", 64, 1)
    heartbeat: float = _doc("Seconds between two signs of life of an agent.", 5.0)
    host_down_after: float = _doc("Seconds of silence after which a host counts as down.", 15.0)
    host_return_wait: float = _doc("Seconds after the last heartbeat of a host that is down for which new servers, and "
                                   "those that are unshelved, wait for it where no other host can have them. 0: they "
                                   "fail at once.", 60.0, 0)
    workers: int = _doc("Actions that a conductor works on at once.", 16)
    host_share: float = _doc("Part of a conductor's workers that actions at one host may have, from 0 to 1, but one at "
                             "least; of a host that is down, a quarter of that. Those for servers of other hosts have "
                             "half of it. More of them wait in the queue.",
                             0.6, 0, 1)
    max_attempts: int = _doc("Hosts on which a build is tried.", 3)
    builds_per_host: int = _doc("Builds on a host at once.", 10)
    live_migrations_per_host: int = _doc("Live migrations from a host at once.", 1)
    live_migration_completion_timeout: int = _doc(
        "Seconds that a live migration may take for each GiB of the server's memory and local disks (2 at least); 0: "
        "as long as it takes.", 800, 0)
    live_migration_timeout_action: typing.Literal["abort", "force_complete"] = _doc(
        "What becomes of a live migration then: it is aborted, and the server stays where it is; or the guest stands "
        "still until all of it is there (or runs on at the target at once, see live_migration_permit_post_copy).",
        "abort")
    live_migration_downtime: int = _doc("Milliseconds that a guest may stand still at the end of its live migration.",
                                        500, 100, 60000)
    live_migration_downtime_steps: int = _doc("Steps in which that is reached.", 10, 3, 100)
    live_migration_downtime_delay: int = _doc("Seconds between two of these steps, for each such GiB.", 75, 3, 86400)
    live_migration_bandwidth: int = _doc("Limit of a live migration in MiB/s; 0: none.", 0, 0, 1000000)
    live_migration_permit_post_copy: bool = _doc(
        "Whether a live migration that is forced to complete has the guest run on at the target while the rest of its "
        "memory follows. When a host or the network fails meanwhile, the guest is lost as in a power failure. Servers "
        "with volumes stand still all the same.", False)
    live_migration_permit_auto_converge: bool = _doc(
        "Whether the CPUs of a guest are slowed down that writes memory faster than the network takes it; never where "
        "post-copy is permitted.", True)
    migrate_max_retries: int = _doc("How many further hosts a live migration asks when one refuses the server; -1: as "
                                    "many as there are.", -1, -1)
    action_timeout: float = _doc("Seconds that a step on a host may take.", 3600.0)
    specs_without_effect: typing.Literal["refuse", "warn"] = _doc(
        "What becomes of a request for a server whose flavor or image has extra specs or properties that nothing here "
        "acts on, or that has scheduler hints of Nova that no filter here follows: refuse, or warn in the message of "
        "the server's action.", "refuse")
    allow_resize_to_same_host: bool = _doc(
        "Whether a resize weighs the server's own host like any other; otherwise it is taken only when no other fits.",
        False)
    resize_confirm_window: int = _doc("Seconds after which a resize is confirmed by itself; 0 for never.", 0)
    shelved_offload_time: int = _doc(
        "Seconds after which a shelved server leaves its host: 0 at once, -1 never (an administrator may offload it). "
        "One whose root disk is a volume leaves at once, whatever this says.", 0, least=-1)
    reclaim_instance_interval: int = _doc(
        "Seconds for which a deleted server can be restored (soft delete); 0: it is gone at once, and what was "
        "soft-deleted before stays so.", 0)
    cpu_allocation_ratio: float = _doc("Virtual CPUs for each of the host.", 16.0)
    ram_allocation_ratio: float = _doc("Memory that may be claimed, as a multiple of the host's.", 1.5)
    disk_allocation_ratio: float = _doc("Disk that may be claimed, as a multiple of the host's.", 1.0)
    reserved_host_cpus: int = _doc("CPUs kept from servers.", 0)
    reserved_host_memory_mb: int = _doc("Memory kept from servers.", 512)
    reserved_host_disk_gb: int = _doc("GiB of disk kept from servers.", 0)
    cpu_weight_multiplier: float = _doc("Weight of CPUs that are left when a host is chosen; below 0, servers are "
                                        "stacked instead of spread. What is said of choosing holds for conductors; "
                                        "give the API the same, for check mode.", 1.0)
    ram_weight_multiplier: float = _doc("Weight of memory that is left.", 1.0)
    disk_weight_multiplier: float = _doc("Weight of disk that is left.", 1.0)
    io_ops_weight_multiplier: float = _doc("Weight of servers that are being built, resized, rescued or saved.", -1.0)
    build_failure_weight_multiplier: float = _doc("Weight of builds that failed since one went well; more is worse.",
                                                  1_000_000.0)
    soft_affinity_weight_multiplier: float = _doc("Weight of members of a group with that policy.", 1.0)
    soft_anti_affinity_weight_multiplier: float = _doc("Weight of members of a group with that policy; more is worse.",
                                                       1.0)
    cross_cell_move_weight_multiplier: float = _doc("How much less a host of another cell weighs for a server that a "
                                                    "resize or cold migration may bring there; below 0, such hosts "
                                                    "come first, to drain a cell.", 1_000_000.0)
    metrics_weight_multiplier: float = _doc("Weight of metrics of hosts.", 1.0)
    pci_weight_multiplier: float = _doc("Weight of free PCI devices; more is worse.", 1.0)
    metrics_weight_setting: dict[str, float] = _doc(
        "Metrics that agents tell (cpu.percent, cpu.iowait.percent, …, see scheduler.md) to what each is worth; their "
        "sum is the metrics of a host. Empty: metrics are not looked at.", dict)
    metrics_required: bool = _doc("Whether MetricsFilter is applied, so that a host without one of them gets no "
                                  "server.", True)
    metrics_weight_of_unavailable: float = _doc("The metrics of such a host otherwise.", -10_000.0)
    image_locality_weight_multiplier: float = _doc(
        "Weight of a host that has the content of the image already. Not 0, it has all hosts that pass looked at for "
        "each choice.", 0.0)
    weighers: dict[str, float] = _doc("Weighers of your own (entry points of the group magnetar.weighers) to their "
                                      "multipliers.", dict)
    host_subset_size: int = _doc("A host is drawn among so many of the best.", 1)
    enabled_filters: list[str] = _doc("Filters that are applied beside those that always are; see scheduler.md.",
                                      lambda: list(USUAL_FILTERS))
    max_instances_per_host: int = _doc("Servers from which on NumInstancesFilter refuses a host; metadata of that name "
                                       "of an aggregate comes before it, for AggregateNumInstancesFilter.", 50, 1)
    max_io_ops_per_host: int = _doc("The same of servers that are being built, resized, migrated, rescued, unshelved "
                                    "or saved, for IoOpsFilter and AggregateIoOpsFilter.", 8, 1)
    isolated_hosts: list[str] = _doc("Hosts for isolated_images, for IsolatedHostsFilter.", list)
    isolated_images: list[str] = _doc("Uuids of images whose servers are on isolated_hosts only.", list)
    restrict_isolated_hosts_to_isolated_images: bool = _doc("Whether isolated_hosts have no other servers.", True)
    aggregate_image_properties_isolation_namespace: str | None = _doc(
        "Beginning of the metadata of aggregates that AggregateImagePropertiesIsolation compares with properties of "
        "images; all of it when left out.")
    aggregate_image_properties_isolation_separator: str = _doc("What stands between that and the rest.", ".")
    enable_isolated_aggregate_filtering: bool = _doc(
        "Whether hosts of an aggregate with metadata trait:NAME=required get only servers whose flavor or image "
        "requires that trait.", False)
    limit_tenants_to_placement_aggregate: bool = _doc(
        "Whether servers of a project that an aggregate names in filter_tenant_id are on hosts of such aggregates "
        "only.", False)
    placement_aggregate_required_for_tenants: bool = _doc("Whether projects that none names get no host then.", False)
    default_availability_zone: str = _doc("Zone of hosts that are in no aggregate with a zone.", "nova")
    default_schedule_zone: str | None = _doc("Zone of servers that ask for none; any when left out.")
    max_disk_devices_to_attach: int = _doc(
        "Most disks that a server has: its own and volumes, without the config drive; -1 for any number.", -1, -1)
    max_local_block_devices: int = _doc(
        "Most local disks that a request for a server may ask for, the root disk of its image among them; -1 for any "
        "number, 0 for servers that boot from volumes only.", 3, -1)
    max_limit: int = _doc("Most items that one answer lists.", 1000)
    max_servers_at_once: int = _doc("Most servers that one request may ask for (min_count, max_count), whatever the "
                                    "quota.", 1000)
    cell_timeout: float = _doc("Seconds that a list waits for a cell.", 60.0)
    statement_timeout: float = _doc("Seconds that a statement may take on PostgreSQL, upgrades of tables excepted; 0 "
                                    "for no limit.", 60.0)
    purge_deleted_after: float = _doc("Days after which a deleted server is removed for good, with its actions and "
                                      "migrations; 0 keeps all. `magnetar db purge` does it at any time.", 90.0)
    instance_usage_audit_period: typing.Literal["hour", "day", "month", "year"] = _doc(
        "Into which periods os-instance_usage_audit_log and instance.exists divide time.", "month")
    instance_usage_audit: bool = _doc("Whether notifications (instance.exists) tell at the end of each such period "
                                      "which servers there were in it. Give all conductors the same.", False)
    policy_file: Path | None = _doc("oslo.policy file (YAML) that overrides Nova's default rules.")
    policy_dirs: list[str] = _doc("Folders of such files, which are read after it, by name (`policy.d`); the last that "
                                  "names a rule counts.", list)
    enable_instance_password: bool = _doc("Whether answers to create, rebuild, rescue and evacuate have the password "
                                          "that the guest is told.", True)
    config_drive_format: typing.Literal["agent", "iso9660", "vfat"] = _doc(
        "File system of config drives: iso9660, vfat, or what the settings of each host's agent say.", "agent")
    dhcp_domain: str = _doc("Domain of the host names that guests are told; empty for none.", "novalocal")
    vendordata_jsonfile_path: Path | None = _doc("JSON file whose object guests find in vendor_data.json, 256 KiB at "
                                                 "most. This and what follows of vendordata is read by conductors.")
    vendordata_dynamic_targets: list[str] = _doc(
        "Services that are asked what a server is told in vendor_data2.json when its config drive is written, "
        "NAME@URL each.", list)
    vendordata_dynamic_ssl_certfile: Path | None = _doc("PEM file with the CAs of their certificates; the system's "
                                                        "when left out.")
    vendordata_dynamic_connect_timeout: float = _doc("Seconds to connect to one of them.", 5.0, 0.01, 300)
    vendordata_dynamic_read_timeout: float = _doc("Seconds for its whole answer.", 5.0, 0.01, 300)
    vendordata_dynamic_failure_fatal: bool = _doc("Whether a server is not built when one fails; otherwise its guest "
                                                  "finds an empty entry.", False)
    vendordata_dynamic_service_token: bool = _doc(
        "Whether they are sent a token of a service user (role service), by which they know who asks. They must be "
        "https then.", False)
    vendordata_dynamic_auth: dict[str, Any] = _doc(
        "The user of a Keystone whose token they are sent instead (they must be https then, too), and TLS to them, by "
        "the names of Nova's section: see guest-data.md.", dict)
    notification_urls: dict[str, str] = _doc(
        "Receivers of notifications: a name of your choice to the URL to which they are sent, https, or http of this "
        "machine's loopback; see notifications.md. Give API and conductors the same of all that is said of "
        "notifications.", dict)
    notification_token_files: dict[str, str] = _doc(
        "Names of these to the file with the bearer token that each is sent, which only root and the service may read.",
        dict)
    notification_ca_cert: Path | None = _doc("PEM file with the CAs of their certificates; the system's when left out.")
    notification_allow_http: bool = _doc("Whether notifications may go to other machines by http, for everybody on the "
                                         "way to read; never with a token.", False)
    notification_timeout: float = _doc("Seconds that a receiver has for each notification.", 10.0, 0.1, 15)
    notification_log: str | None = _doc("File to which the conductor that sends adds each notification, a JSON object "
                                        "a line; - for the service's own log.")
    notification_keep_hours: float = _doc("Hours for which notifications wait for a receiver that takes none; then "
                                          "they are dropped.", 24.0, 0.01, 87600)
    notification_keep_count: int = _doc("Most notifications that wait for a receiver in one database; then the oldest "
                                        "are dropped.", 100_000, 1)
    bdms_in_notifications: bool = _doc("Whether notifications of servers tell their volumes.", False)
    shares: dict[str, str] = _doc(
        "Shares that servers may be given: their uuid to NAME or NAME@PROJECT,… (uuids of projects; without them every "
        "project may). Hosts know the share by its name, see shares.md.", dict)
    network_cidr: str = _doc("Addresses that a new cloud begins with: of its shared network `default`, with OVN of "
                             "the subnet pool `default`, of which each project's first network is.", "10.20.0.0/16")
    network_pools: list[str] = _doc("Ranges from which the subnets of users have their addresses, since each host of "
                                    "the cloud routes to them; administrators may use others.",
                                    lambda: list(map(str, PRIVATE)))
    ovn_northbound: str | None = _doc(
        "Northbound database of OVN, which makes the networks of the cloud then: ssl:10.0.0.1:6641, tcp:… or "
        "unix:/path, all servers of a cluster joined by commas. Give API and conductors the same. Left out, agents "
        "make them on each host.")
    ovn_southbound: str | None = _doc(
        "Southbound database of OVN, in the same form, which is read only for ports of SmartNICs (vnic_type "
        "remote-managed): it knows which chassis is on which card. Left out, there are no such ports. By ssl it takes "
        "the certificate of ovn_cert, and has one of the CA in ovn_ca_cert; centrals of a cluster have that at port "
        "6645.")
    ovn_key: Path | None = _doc("PEM file with the key by which the northbound database knows this service, for ssl.")
    ovn_cert: Path | None = _doc("Certificate of that key.")
    ovn_ca_cert: Path | None = _doc("PEM file with the CA of the northbound database's certificate.")
    ovn_wait: float = _doc("Seconds that the start of a server waits for the northbound database to have its ports.",
                           30.0, 0.1)
    ovn_hosts_wait: float = _doc("Seconds that it then waits for all hosts to have followed; after that it goes on. "
                                 "With 0 it does not wait: servers start sooner, and where OVN is slow a guest may ask "
                                 "for its address more than once.",
                                 5.0, 0)
    physical_mtu: int = _doc("MTU of the networks between hosts; those that OVN makes on them have 58 bytes less.",
                             1500, 634, 65535)
    ovn_gateway_hosts: list[str] = _doc("Hosts through which routers reach external networks; any host when left out.",
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
    quota_ports: int = _doc("Ports of a project, those of its servers too.", 500)
    quota_security_groups: int = _doc("Security groups of a project, `default` too.", 10)
    quota_security_group_rules: int = _doc("Rules of a project's security groups, those of `default` too.", 100)
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
    quota_per_volume_gigabytes: int = _doc("GiB of one volume.", -1)
    quota_images: int = _doc("Images of a project, those of its servers too.", 100)
    quota_image_gigabytes: int = _doc("GiB of a project's images.", 1000)
    token_hours: float = _doc("Life of an embedded token in hours.", 8.0)
    keystone_url: str | None = _doc("URL of a real Keystone (with /v3), in place of the embedded identity service.")
    keystone_username: str = _doc("User with which tokens are validated there.", "magnetar")
    keystone_password_file: Path | None = _doc("File with that user's password.")
    keystone_project: str = _doc("Project of that user.", "service")
    keystone_ca_cert: Path | None = _doc("PEM file with the CA of Keystone's certificate.")

    def url(self, name: str) -> str:
        """URL of the database ``api``, ``cell0`` or ``cell``."""
        given = getattr(self, "database_url" if name == "api" else f"{name}_database_url")
        return str(given or f"sqlite:///{self.state_dir}/{self.cell if name == 'cell' else name}.db")

    @property
    def spread(self) -> bool:
        """Whether cells are made with `magnetar cell create`, and not of these settings."""
        return self.database_url is not None and self.cell_database_url is None

    @property
    def images(self) -> Path:
        """Folder of the content of images."""
        return self.image_dir or self.state_dir / "images"

    @property
    def certificates(self) -> Path:
        """Folder of the embedded key manager."""
        return self.certificates_dir or self.state_dir / "certificates"

    @property
    def keys(self) -> Path:
        """Folder of the keys of the embedded key manager."""
        return self.keys_dir or self.state_dir / "keys"

    @property
    def trusted_certificates(self) -> list[str]:
        """What servers trust that name no certificates."""
        both = self.verify_image_signatures and self.enable_certificate_validation
        return self.default_trusted_certificate_ids if both else []

    def pools(self) -> list[IPv4Network]:
        """*network_pools*. Raises ``InvalidSettings``."""
        try:
            return [IPv4Network(pool) for pool in self.network_pools]
        except ValueError as error:
            raise InvalidSettings(f"network_pools must be IPv4 networks such as 10.0.0.0/8: {error}.") from None

    def workers_of_host(self) -> int:
        """How many workers of a conductor actions at one host may have."""
        return share_of(self.workers, self.host_share)

    def of_project(self, all: int) -> int:
        """How many of so many one project may have."""
        return share_of(all, self.project_share)

    def limits(self) -> dict[str, int]:
        """How many actions of a kind may run at a host at once."""
        return {"build": self.builds_per_host, "live": self.live_migrations_per_host}


def share_of(all: int, part: float) -> int:
    """The whole number that is nearest to this part of *all*; one at least."""
    return max(1, round(all * part))
