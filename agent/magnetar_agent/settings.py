# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: RUF009 - _doc is dataclasses.field
"""Settings of the agent: one dataclass, read from a YAML file. Each field's ``doc`` is its documentation."""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from magnetar_agent.hardware.cpu import CUSTOM, MODES, NONE, PASSTHROUGH
from magnetar_core import bandwidth, vendordata
from magnetar_core.errors import InvalidSettings
from magnetar_core.hardware import mdev_types, pci, pmem
from magnetar_core.hardware.cpus import cpu_set, cpu_text
from magnetar_core.hardware.traits import check_operator_traits
from magnetar_core.http import s3_location
from magnetar_core.kinds.server import SHUTDOWN_MAX

from .setting_values import check_cpu_models, check_flags, check_machine_types, check_setting_value

FILE = Path("/etc/magnetar/agent.yml")
#: Root formats whose disks are in the ``root_pool``, which has the type of the same name.
IN_POOL = ("lvm", "rbd")
ROOT_FORMATS = ("qcow2", "raw", "copy", *IN_POOL)
LEVELS = ("debug", "info", "warning", "error")
#: The ``inject_partition`` that disables writing into guests' disks.
NO_INJECTION = -2
#: The pattern of a name in Ceph.
CEPH_NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
_BRIDGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_LISTEN = re.compile(r"^(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9.-]+)):(?P<port>[0-9]{1,5})$")


def _doc(text: str, **more: Any) -> Any:
    # pylint: disable-next=invalid-field-call  # its result stands in a dataclass
    return field(metadata={"doc": text, **more.pop("metadata", {})}, **more)


def _check_address(text: str) -> str:
    """Return an error text if *text* is not an IP address; "" if it is valid."""
    try:
        ipaddress.ip_address(text)
    except ValueError as error:
        return str(error)
    return ""


def _check_ceph_name(text: str) -> str:
    """Return an error text if *text* is not a valid name of a Ceph user or pool; "" if it is valid."""
    return "" if re.fullmatch(CEPH_NAME, text) else "must be a name of letters, digits, _, . and -"


def _parallel() -> int:
    """Return the default limit of parallel operations: two for each CPU, at least ten. Operations mostly wait for QEMU,
    so more of them can run than the host has CPUs."""
    return max(10, 2 * (os.cpu_count() or 1))


@dataclass(frozen=True)
class AgentSettings:
    """The configuration of an agent. Sizes are bytes, times are seconds."""

    state_dir: Path = _doc("Folder of documents, disks, images and console logs; one agent per folder.",
                           default=Path("/var/lib/magnetar"))
    instances_path: Path | None = _doc(
        "Folder of servers' disks on storage that several hosts mount (NFS); left out: servers in state_dir, which no "
        "other host reaches.", default=None)
    socket: Path = _doc("The unix socket, mode 0660.", default=Path("/run/magnetar/agent.sock"))
    socket_group: str = _doc("Group whose members may use the socket, in addition to root.", default="magnetar")
    libvirt_uri: str = _doc("libvirt connection URI.", default="qemu:///system")
    listen: str | None = _doc("host:port for HTTPS, such as 0.0.0.0:6553 or [::]:6553; left out: no TCP at all. "
                              "Needs tls_cert, tls_key, and tls_client_ca or a tokens_file with tokens.", default=None)
    tls_cert: Path | None = _doc("PEM file with the server certificate and its chain.", default=None)
    tls_key: Path | None = _doc("PEM file with the private key of tls_cert.", default=None)
    tls_client_ca: Path | None = _doc("PEM file with the CA of client certificates.", default=None)
    tokens_file: Path = _doc("Hashed bearer tokens, mode 0600, written by `magnetar token`.",
                             default=Path("/etc/magnetar/tokens.yml"))
    client_certs: dict[str, str] = _doc("Common name of a client certificate to its scope: read or operate. Unlisted "
                                        "certificates are refused.", default_factory=dict)
    connections_per_address: int = _doc(
        "Open HTTPS connections per address (of IPv6: a /64); 0 for no limit. Links of other agents are not counted.",
        default=1024, metadata={"min": 0, "max": 65536})
    pools: dict[str, dict[str, str]] = _doc(
        "Name of a pool of volumes to {type, path or libvirt_pool}.",
        default_factory=dict)
    backup_directory: Path | None = _doc("Folder of the backups of volumes, with a folder for each; left out: this "
                                         "host makes no backups.", default=None)
    backup_mounted: bool = _doc("Whether a file system must be mounted at backup_directory. With a network file system "
                                "(NFS), each host that mounts it restores the backups of the others.",
                                default=False)
    backup_pool: str | None = _doc("Name of a pool of type dir or nfs, in whose folder backups the backups of volumes "
                                   "are, instead of backup_directory.", default=None)
    backup_s3_endpoint_url: str | None = _doc(
        "URL of an object store with the S3 protocol, for backups of volumes instead of backup_directory.",
        default=None, metadata={"check": s3_location.check_s3_endpoint})
    backup_s3_store_bucket: str | None = _doc("Its bucket for backups, which must exist.", default=None,
                                              metadata={"check": s3_location.check_s3_bucket})
    backup_s3_prefix: str | None = _doc("Beginning of all keys in the bucket, such as clouds/lab.", default=None,
                                        metadata={"check": s3_location.check_s3_prefix})
    backup_s3_region: str = _doc("Region of the bucket, for the signature of requests.", default="us-east-1",
                                 metadata={"check": s3_location.check_s3_region})
    backup_s3_ca_cert_file: Path | None = _doc("PEM file with the CA of the object store's certificate; left out: the "
                                               "CAs of the system.", default=None)
    backup_s3_credentials_file: Path = _doc(
        "File of mode 0600 with the keys of the object store, as the AWS command line has them.",
        default=Path("/etc/magnetar/s3-credentials"))
    shares: dict[str, Path] = _doc("Name of a share to its folder, which servers of a cloud may be given.",
                                   default_factory=dict)
    parallel: int = _doc("Number of operations that run in parallel. Default: twice the number of CPUs, at least 10.",
                         default_factory=_parallel, metadata={"min": 1, "max": 512})
    guest_answer_timeout: float = _doc(
        "How long the QEMU of a guest may leave a libvirt request unanswered before the agent reports that the guest "
        "does not answer.", default=30.0, metadata={"min": 5, "max": 3600})
    wait: float = _doc("How long a PUT or DELETE waits before it answers 202 with an operation, unless the request "
                       "sets `wait`.",
                       default=60.0, metadata={"min": 0, "max": 86400})
    grace: float = _doc("How long running operations may continue after the agent is told to stop.", default=20.0,
                        metadata={"min": 0, "max": 3600})
    heartbeat: float = _doc("Time between two heartbeats of GET /v1/watch, unless the request sets `interval`.",
                            default=5.0,
                            metadata={"min": 0.05, "max": 3600})
    image_paths: tuple[Path, ...] = _doc("Folders that an image's source.path may be read from.",
                                         default=(Path("/var/lib/magnetar/import"),))
    export_paths: tuple[Path, ...] = _doc("Folders that servers may be exported to (server_export).",
                                          default=(Path("/var/lib/magnetar/exports"),))
    image_max_bytes: int = _doc("Largest image content that is accepted.", default=64 * 2**30, metadata={"min": 2**20})
    image_max_virtual_bytes: int = _doc("Largest virtual size that an image may claim.", default=2 * 2**40,
                                        metadata={"min": 2**20})
    rescue_max_virtual_bytes: int = _doc(
        "Largest rescue disk of a server whose root disk is smaller. In a cloud it counts on the host.",
        default=10 * 2**30, metadata={"min": 2**20})
    cpu_allocation_ratio: float = _doc("Most CPUs of one server, as a multiple of the host's.", default=16.0,
                                       metadata={"min": 0.01, "max": 1000})
    ram_allocation_ratio: float = _doc("Most memory of one server, as a multiple of the host's.", default=1.5,
                                       metadata={"min": 0.01, "max": 1000})
    hw_machine_type: tuple[str, ...] = _doc(
        "Default machine types of new servers, such as [x86_64=pc-q35-7.2].",
        default=(), metadata={"check": check_machine_types})
    cpu_mode: str | None = _doc(
        "CPU of guests, from their next start on. Left out: host-model with KVM, none under emulation.",
        default=None, metadata={"choices": MODES})
    cpu_models: tuple[str, ...] = _doc(
        "CPU models of cpu_mode custom, such as [Nehalem, IvyBridge].", default=(),
        metadata={"check": check_cpu_models})
    cpu_model_extra_flags: tuple[str, ...] = _doc(
        "Additional features of guests' CPUs (+vmx or vmx), or removed features (-vmx), by libvirt's names.",
        default=(),
        metadata={"check": check_flags})
    cpu_dedicated_set: str | None = _doc(
        "Host CPUs that servers have for themselves (hardware cpu_policy), such as 4-15,^8. Other servers do not use "
        "them from their next start on. Left out: none.", default=None, metadata={"cpus": True})
    cpu_shared_set: str | None = _doc("CPUs that the other servers share. Left out: all, or none if "
                                      "cpu_dedicated_set is set.", default=None, metadata={"cpus": True})
    reserved_huge_pages: dict[int, dict[int, int]] = _doc(
        "NUMA cell to {KiB of a page: how many} large pages that servers do not get, such as {0: {2048: 64}}.",
        default_factory=dict)
    file_backed_memory: int = _doc(
        "MiB of guest memory in files instead of the host's RAM; 0: none.", default=0,
        metadata={"max": 2**40})
    num_memory_encrypted_guests: int | None = _doc(
        "Limit of servers with encrypted memory (hardware mem_encryption) on this host. Left out: libvirt's limit.",
        default=None, metadata={"min": 0, "max": 2**31 - 1})
    realtime_scheduler_priority: int = _doc(
        "Priority of virtual CPUs that run in real time (hardware cpu_realtime); existing servers keep theirs until "
        "they change.", default=1, metadata={"min": 1, "max": 99})
    pack_numa_cells: bool = _doc("Whether guests with NUMA cells get the fullest host cells that have room, or the "
                                 "emptiest.", default=True)
    physical_network_numa_nodes: dict[str, tuple[int, ...]] = _doc(
        "Physical network (or bridge) to the NUMA cells near its card, such as `{physnet0: [0]}`. Servers with NUMA "
        "cells go there.", default_factory=dict)
    tunnel_numa_nodes: tuple[int, ...] = _doc(
        "NUMA cells near the card that carries networks of OVN (type `ovn`) to other hosts.", default=())
    pci_device_spec: tuple[dict[str, str], ...] = _doc(
        "PCI devices that servers may have: a list.", default=(),
        metadata={"words": pci.DEVICE_WORDS, "needed": (), "check": pci.check_devices})
    pci_alias: tuple[dict[str, str], ...] = _doc(
        "Names that servers use for PCI devices: a list, the same in the whole cloud.",
        default=(), metadata={"words": pci.ALIAS_WORDS, "needed": ("name",), "check": pci.check_aliases})
    enabled_mdev_types: tuple[dict[str, str], ...] = _doc(
        "Types of virtual GPUs (mediated devices) that servers may have: a list.", default=(),
        metadata={"words": ("type", "address", "traits"), "needed": ("type",), "check": mdev_types.check_mdev_types})
    pmem_namespaces: dict[str, tuple[str, ...]] = _doc(
        "Label to namespaces of persistent memory that servers may have, such as `{6GB: [ns0, ns1]}`.",
        default_factory=dict,
        metadata={"check": pmem.check_namespaces})
    sysfs: Path = _doc("Folder where the kernel shows devices.", default=Path("/sys"))
    disk_allocation_ratio: float = _doc("Most that the disks of one server, or one volume, may promise, as a "
                                        "multiple of their file system.", default=1.0,
                                        metadata={"min": 0.01, "max": 1000})
    reserve_disk_resource_for_image_cache: bool = _doc(
        "Whether a cloud also reserves the space of its images' content on this host's disk.", default=False)
    traits: tuple[str, ...] = _doc("Further traits of this host, such as [STORAGE_DISK_SSD, CUSTOM_GOLD]: custom "
                                   "traits, and standard traits that the agent does not detect.", default=(),
                                   metadata={"check": check_operator_traits})
    provider_config_location: Path = _doc("Folder of files *.yaml in Nova's form (provider.yaml) with custom "
                                          "resources and traits of this host.",
                                          default=Path("/etc/magnetar/provider_config"))
    resource_provider_bandwidths: tuple[str, ...] = _doc(
        "Bandwidth that ports of servers may be promised: a list.",
        default=(), metadata={"check": bandwidth.check_bandwidth_setting})
    address_of_host: str | None = _doc("IP address of this host in a cloud, for the hint build_near_host_ip; left "
                                       "out, the address that it uses to reach others.", default=None,
                                       metadata={"check": _check_address})
    console_log_bytes: int = _doc("Size that makes virtlogd rotate a server's console log, as configured in "
                                  "/etc/libvirt/virtlogd.conf; the agent never shows more.",
                                  default=2 * 2**20, metadata={"min": 4096})
    body_max_bytes: int = _doc("Largest JSON body of a request.", default=16 * 2**20, metadata={"min": 4096})
    specs_without_effect: str = _doc(
        "Handling of a request for a server whose flavor or image has extra specs or properties without effect here: "
        "refuse, or warn in the answer.", default="refuse", metadata={"choices": ("refuse", "warn")})
    spice: bool = _doc("Guests have a SPICE server in addition to VNC, and the channel of SPICE's guest agent, from "
                       "their next start on. Needs a QEMU with SPICE.", default=False)
    root_format: str = _doc("Format of root disks if the server does not set it, as in a cloud: qcow2, raw, copy, "
                            "lvm or rbd.",
                            default="qcow2", metadata={"choices": ROOT_FORMATS})
    root_pool: str | None = _doc("Name of the pool (see pools) for the disks of servers with root_format lvm or rbd. "
                                 "Its type must match root_format.", default=None)
    volume_clear: str = _doc("How a removed logical volume (a server's disk or a volume) is cleared: zero "
                             "(overwritten with zeros) or none (the next owner of its blocks may read them).",
                             default="zero", metadata={"choices": ("zero", "none")})
    volume_clear_size: int = _doc("MiB at the beginning of a logical volume that are cleared; 0: all of it.", default=0,
                                  metadata={"max": 2**40})
    virt_type: str = _doc("auto (KVM if a guest really starts under it, otherwise emulation), kvm or qemu.",
                          default="auto", metadata={"choices": ("auto", "kvm", "qemu")})
    restart_on_crash: bool = _doc("Restart servers whose QEMU died, unless their document sets this.",
                                  default=False)
    shutdown_timeout: float = _doc("How long a guest may take to power off before its power is cut; 0: cut "
                                   "immediately. The server (shutdown_timeout) or its image (os_shutdown_timeout) "
                                   "overrides this.", default=60.0, metadata={"min": 0, "max": SHUTDOWN_MAX})
    shutdown_retry_interval: float = _doc("Time between two presses of the power button of a guest that must power "
                                          "off: a guest that still boots does not notice the first.",
                                          default=1.0, metadata={"min": 0.1, "max": 60})
    native_tls: bool = _doc("Live migrations between hosts with this setting go straight from QEMU to QEMU.",
                            default=False)
    detach_timeout: float = _doc("How long a guest may take to release a volume or NIC that is detached.",
                                 default=60.0, metadata={"min": 0, "max": 3600})
    metadata_service: bool = _doc("Answer guests at `http://169.254.169.254` and `fe80::a9fe:a9fe`.",
                                  default=True)
    integration_bridge: str = _doc("Open vSwitch bridge for ports of OVN.",
                                   default="br-int", metadata={"pattern": _BRIDGE})
    guest_ports: tuple[str, ...] = _doc(
        "Ports of this host that its guests may reach in addition to DHCP and DNS, such as [tcp/3142, udp/8000-8100].",
        default=())
    config_drive_format: str = _doc("File system of config drives: iso9660, or vfat for guests that do not read "
                                    "that. In a cloud its conductors may override it.",
                                    default="iso9660", metadata={"choices": ("iso9660", "vfat")})
    vendordata_jsonfile_path: Path | None = _doc(
        "JSON file with the object for vendor_data.json in guests' config drives, 256 KiB at most. In a cloud its "
        "conductors set that content.", default=None)
    inject_partition: int = _doc(
        "Partition of a new root disk that receives the server's key, password, metadata and files.",
        default=NO_INJECTION, metadata={"min": NO_INJECTION, "max": 128})
    inject_password: bool = _doc("Write the password too, as a hash, as root's. Needs inject_partition.", default=False)
    inject_key: bool = _doc("Write the key too, for root. Needs inject_partition.", default=False)
    rbd_blocklist: bool = _doc(
        "Before the agent takes over RBD images in an evacuation, it blocks in Ceph who has them open or locked "
        "(ceph osd blocklist add).", default=True)
    enable_rbd_download: bool = _doc(
        "Images of a cloud come straight from Ceph, as with Nova. Needs rbd_user and rbd_pool.", default=False)
    rbd_user: str | None = _doc("Ceph user that reads the images. The keyring lies next to rbd_ceph_conf: for "
                                "ceph.conf it is ceph.client.USER.keyring.",
                                default=None, metadata={"check": _check_ceph_name})
    rbd_pool: str | None = _doc("Ceph pool with the images; images of other pools are not read.", default=None,
                                metadata={"check": _check_ceph_name})
    rbd_ceph_conf: Path = _doc("Configuration file of the cluster with the images.",
                               default=Path("/etc/ceph/ceph.conf"))
    rbd_connect_timeout: float = _doc("How long the connection to that cluster may take.", default=5.0,
                                      metadata={"min": 1, "max": 600})
    event_keys_kept: int = _doc("How many request ids of one-shot events are remembered, so that none is done twice.",
                                default=10000, metadata={"min": 100})
    log_level: str = _doc("debug, info, warning or error.", default="info", metadata={"choices": LEVELS})
    report_dir: Path | None = _doc("Folder of the reports that the agent writes on SIGUSR2, each to a new file of mode "
                                   "0600; left out: stderr, which is the journal.", default=None)

    def __post_init__(self) -> None:
        for key in dataclasses.fields(self):
            object.__setattr__(self, key.name, check_setting_value(key, getattr(self, key.name)))
        if self.cpu_dedicated_set and self.cpu_shared_set and (
                both := cpu_set(self.cpu_dedicated_set) & cpu_set(self.cpu_shared_set)):
            raise InvalidSettings(f"cpu_shared_set: must not name CPUs of cpu_dedicated_set: {cpu_text(both)}.")
        self._check_cpu_mode()
        self._check_root_pool()
        self._check_backups()
        self._check_rbd_download()
        for name in ("inject_password", "inject_key"):
            if getattr(self, name) and self.inject_partition == NO_INJECTION:
                raise InvalidSettings(f"{name}: needs an inject_partition other than {NO_INJECTION}, with which "
                                      "nothing is written into guests' disks.")
        if self.file_backed_memory and self.ram_allocation_ratio != 1:
            raise InvalidSettings("file_backed_memory: needs ram_allocation_ratio 1: files cannot be promised twice.")
        if self.file_backed_memory and self.reserved_huge_pages:
            raise InvalidSettings("file_backed_memory: excludes large pages, and reserved_huge_pages names some.")
        if self.listen is not None:
            self._check_listen(self.listen)
        if self.vendordata_jsonfile_path is not None:
            try:
                vendordata.read_vendor_data(self.vendordata_jsonfile_path)
            except ValueError as error:
                raise InvalidSettings(f"vendordata_jsonfile_path: {error}.") from None

    def _check_cpu_mode(self) -> None:
        if (self.cpu_mode == CUSTOM) != bool(self.cpu_models):
            raise InvalidSettings("cpu_models: must be set where cpu_mode is custom, and only there.")
        if self.cpu_model_extra_flags and self.cpu_mode in (None, NONE):
            raise InvalidSettings("cpu_model_extra_flags: needs a cpu_mode other than none.")
        if self.cpu_mode == PASSTHROUGH and self.virt_type == "qemu":
            raise InvalidSettings("cpu_mode: host-passthrough is KVM's, and virt_type is qemu. Use maximum.")

    def _check_rbd_download(self) -> None:
        if self.enable_rbd_download and not (self.rbd_user and self.rbd_pool):
            raise InvalidSettings("enable_rbd_download: needs rbd_user and rbd_pool: who reads images, and where.")

    def _check_root_pool(self) -> None:
        types = (self.root_format,) if self.root_format in IN_POOL else IN_POOL
        if self.root_format in IN_POOL and self.root_pool is None:
            raise InvalidSettings(f"root_pool: is required where root_format is {self.root_format}: the name of a pool "
                                  f"of type {self.root_format}.")
        if self.root_pool is not None and self.instances_path is not None:
            raise InvalidSettings("instances_path: excludes root_pool, whose disks are not files in that folder. "
                                  "Remove one of the two.")
        if self.root_pool is not None and self.pools.get(self.root_pool, {}).get("type") not in types:
            usable_pools = ", ".join(sorted(name for name, pool in self.pools.items()
                                            if pool["type"] in types)) or "none"
            raise InvalidSettings(f"root_pool: must be a pool of type {' or '.join(types)} (got {self.root_pool!r}); "
                                  f"the setting pools has {usable_pools}.")

    def _check_backups(self) -> None:
        for name in ("backup_directory", "backup_s3"):
            if name in self.pools:
                raise InvalidSettings(f"pools: {name} is the name under which the host reports the target of its "
                                      "backups. Choose another name for the pool.")
        if self.backup_mounted and self.backup_directory is None:
            raise InvalidSettings("backup_mounted: needs backup_directory, the folder where something is mounted.")
        if (self.backup_s3_endpoint_url is None) != (self.backup_s3_store_bucket is None):
            raise InvalidSettings("backup_s3_endpoint_url: needs backup_s3_store_bucket, and the other way round.")
        targets = [name for name in ("backup_directory", "backup_pool", "backup_s3_store_bucket")
                   if getattr(self, name) is not None]
        if len(targets) > 1:
            raise InvalidSettings(f"{targets[0]}: excludes {targets[1]}, since a host has one target of backups. "
                                  "Remove one of the two.")
        if self.backup_pool is not None and "path" not in self.pools.get(self.backup_pool, {}):
            usable_pools = ", ".join(sorted(name for name, pool in self.pools.items() if "path" in pool)) or "none"
            raise InvalidSettings(f"backup_pool: must be a pool of type dir or nfs (got {self.backup_pool!r}); the "
                                  f"setting pools has {usable_pools}.")

    def _check_listen(self, listen: str) -> None:
        match = _LISTEN.match(listen)
        if not match or not 0 <= int(match["port"]) <= 65535:
            raise InvalidSettings(f"listen: must be host:port such as 0.0.0.0:6553 or [::]:6553 (got {listen!r}).")
        if not self.tls_cert or not self.tls_key:
            raise InvalidSettings("listen: TCP is offered with TLS only. Set tls_cert and tls_key, or remove listen.")

    @property
    def backup_bucket(self) -> s3_location.S3Location | None:
        """Return the place in an object store for backups of volumes; ``None`` if none is set."""
        if self.backup_s3_endpoint_url is None or self.backup_s3_store_bucket is None:
            return None
        return s3_location.S3Location(
            self.backup_s3_endpoint_url, self.backup_s3_store_bucket, str(self.backup_s3_credentials_file),
            self.backup_s3_prefix or "", self.backup_s3_region,
            str(self.backup_s3_ca_cert_file) if self.backup_s3_ca_cert_file else None)

    @cached_property
    def servers_folder(self) -> str:
        """Return the folder that contains, for each server, a folder with the server's disks."""
        return str(self.instances_path or self.state_dir / "servers")

    @property
    def address(self) -> tuple[str, int] | None:
        """Return host and port of the setting *listen*; ``None`` if it is not set."""
        match = _LISTEN.match(self.listen) if self.listen else None
        return (match["six"] or match["host"], int(match["port"])) if match else None


def load_agent_settings(path: Path | None = None, **overrides: Any) -> AgentSettings:
    """Return the settings from the YAML file *path*; by default from ``FILE``, if that exists. *overrides*: values of
    settings that replace those in the file; ``None`` values are ignored.

    Raises ``InvalidSettings`` naming the file, the key and the rule."""
    values: dict[str, Any] = _read(path or FILE) if path is not None or FILE.exists() else {}
    values.update((key, value) for key, value in overrides.items() if value is not None)
    try:
        return AgentSettings(**values)
    except InvalidSettings as error:
        raise InvalidSettings(f"{path or FILE}: {error.message}" if values else error.message) from None


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"{path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        raise InvalidSettings(f"{path} is not valid YAML{line}: {getattr(error, 'problem', error)}.") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidSettings(f"{path}: must be a mapping of keys to values.")
    known_keys = [key.name for key in dataclasses.fields(AgentSettings)]
    for key in content:
        if key not in known_keys:
            near = difflib.get_close_matches(str(key), known_keys, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Known keys: {', '.join(known_keys)}."
            raise InvalidSettings(f"{path}: {key} is not a known key. {hint}")
    return content


def describe_agent_settings(settings: AgentSettings | None = None) -> list[dict[str, Any]]:
    """Return ``{"key", "value", "doc"}`` for each setting. The values are those in *settings*, or the default values if
    *settings* is ``None``."""
    shown = settings or AgentSettings()
    return [{"key": key.name, "value": getattr(shown, key.name), "doc": key.metadata["doc"]}
            for key in dataclasses.fields(AgentSettings)]
