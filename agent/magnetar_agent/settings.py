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
from pathlib import Path
from typing import Any

from magnetar_agent.hardware.cpu import CUSTOM, MODES, NONE, PASSTHROUGH
from magnetar_core import bandwidth, vendordata
from magnetar_core.errors import InvalidSettings
from magnetar_core.hardware import mdev_types, pci, pmem
from magnetar_core.hardware.cpus import cpu_set, cpu_text
from magnetar_core.hardware.traits import check_given
from magnetar_core.kinds.server import SHUTDOWN_MAX

from .setting_values import check_cpu_models, check_flags, check_machine_types, checked

FILE = Path("/etc/magnetar/agent.yml")
#: Root formats whose disks lie in the ``root_pool``, which is of the type of the same name.
IN_POOL = ("lvm", "rbd")
ROOT_FORMATS = ("qcow2", "raw", "copy", *IN_POOL)
LEVELS = ("debug", "info", "warning", "error")
#: The ``inject_partition`` with which nothing is written into guests' disks.
NO_INJECTION = -2
#: A name in Ceph.
CEPH_NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
_BRIDGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_LISTEN = re.compile(r"^(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9.-]+)):(?P<port>[0-9]{1,5})$")


def _doc(text: str, **more: Any) -> Any:
    # pylint: disable-next=invalid-field-call  # its result stands in a dataclass
    return field(metadata={"doc": text, **more.pop("metadata", {})}, **more)


def _check_address(text: str) -> str:
    """What is wrong with an address; empty when nothing is."""
    try:
        ipaddress.ip_address(text)
    except ValueError as error:
        return str(error)
    return ""


def _check_ceph_name(text: str) -> str:
    """What is wrong with the name of a user or pool of Ceph; empty when nothing is."""
    return "" if re.fullmatch(CEPH_NAME, text) else "must be a name of letters, digits, _, . and -"


def _parallel() -> int:
    """Starting a guest is waiting for QEMU for the most part: ten start sooner together than four at a time."""
    return max(10, 2 * (os.cpu_count() or 1))


@dataclass(frozen=True)
class AgentSettings:
    """How an agent runs. Sizes are bytes, times are seconds."""

    state_dir: Path = _doc("Folder of documents, disks, images and console logs; one agent per folder.",
                           default=Path("/var/lib/magnetar"))
    socket: Path = _doc("The unix socket, mode 0660.", default=Path("/run/magnetar/agent.sock"))
    socket_group: str = _doc("Group whose members may use the socket, besides root.", default="magnetar")
    libvirt_uri: str = _doc("libvirt connection URI.", default="qemu:///system")
    listen: str | None = _doc("host:port for HTTPS, such as 0.0.0.0:6553 or [::]:6553; left out: no TCP at all. Needs "
                              "tls_cert, tls_key, and tls_client_ca or a tokens_file with tokens.", default=None)
    tls_cert: Path | None = _doc("PEM file with the server certificate and its chain.", default=None)
    tls_key: Path | None = _doc("PEM file with the private key of tls_cert.", default=None)
    tls_client_ca: Path | None = _doc("PEM file with the CA of client certificates.", default=None)
    tokens_file: Path = _doc("Hashed bearer tokens, mode 0600, written by `magnetar token`.",
                             default=Path("/etc/magnetar/tokens.yml"))
    client_certs: dict[str, str] = _doc("Common name of a client certificate to its scope: read or operate. A "
                                        "certificate that is not listed is refused.", default_factory=dict)
    connections_per_address: int = _doc(
        "Connections over HTTPS that one address (of IPv6: a /64) may have open; 0 for no limit. Links of other agents "
        "are not counted.", default=1024, metadata={"min": 0, "max": 65536})
    pools: dict[str, dict[str, str]] = _doc(
        "Name of a pool of volumes to {type, path or libvirt_pool}: dir (a folder), nfs (a folder that must be a mount "
        "point), lvm or rbd (a storage pool of libvirt). The pool default (dir, STATE_DIR/volumes) is always there.",
        default_factory=dict)
    shares: dict[str, Path] = _doc("Name of a share to its folder, which servers of a cloud may be given, see "
                                   "docs/shares.md.", default_factory=dict)
    parallel: int = _doc("How many operations run at once. Default: twice the number of CPUs, at least 10.",
                         default_factory=_parallel, metadata={"min": 1, "max": 512})
    guest_answer_timeout: float = _doc(
        "How long the QEMU of a guest may leave a request of libvirt without an answer before the agent says that the "
        "guest does not answer.", default=30.0, metadata={"min": 5, "max": 3600})
    wait: float = _doc("How long a PUT or DELETE waits before it answers 202 with an operation, unless told.",
                       default=60.0, metadata={"min": 0, "max": 86400})
    grace: float = _doc("How long running operations may go on when the agent is told to stop.", default=20.0,
                        metadata={"min": 0, "max": 3600})
    heartbeat: float = _doc("Time between two heartbeats of GET /v1/watch, unless told.", default=5.0,
                            metadata={"min": 0.05, "max": 3600})
    image_paths: tuple[Path, ...] = _doc("Folders from which an image's source.path may be read.",
                                         default=(Path("/var/lib/magnetar/import"),))
    image_max_bytes: int = _doc("Largest image content that is taken in.", default=64 * 2**30, metadata={"min": 2**20})
    image_max_virtual_bytes: int = _doc("Largest virtual size that an image may claim.", default=2 * 2**40,
                                        metadata={"min": 2**20})
    rescue_max_virtual_bytes: int = _doc(
        "Largest rescue disk of a server whose root disk is smaller; no filter or quota counts a rescue disk.",
        default=10 * 2**30, metadata={"min": 2**20})
    cpu_allocation_ratio: float = _doc("Most CPUs of one server, as a multiple of the host's.", default=16.0,
                                       metadata={"min": 0.01, "max": 1000})
    ram_allocation_ratio: float = _doc("Most memory of one server, as a multiple of the host's.", default=1.5,
                                       metadata={"min": 0.01, "max": 1000})
    hw_machine_type: tuple[str, ...] = _doc(
        "Machine types of new servers of which neither they nor their image say one: a list of ARCHITECTURE=TYPE such "
        "as [x86_64=pc-q35-7.2]. Left out: q35, of aarch64 virt, of ppc64le pseries, of s390x s390-ccw-virtio. A "
        "server keeps the version that it is made with.",
        default=(), metadata={"check": check_machine_types})
    cpu_mode: str | None = _doc(
        "CPU of guests: host-model (libvirt's nearest model with the features of the host's CPU), host-passthrough "
        "(the host's CPU as it is; KVM only), custom (see cpu_models), maximum (all that KVM or emulation can give) or "
        "none (QEMU's usual). Left out: host-model with KVM, none under emulation. It holds from a guest's next start "
        "on.",
        default=None, metadata={"choices": MODES})
    cpu_models: tuple[str, ...] = _doc(
        "CPU models of cpu_mode custom, such as [Nehalem, IvyBridge]: a guest has the first that this host can give "
        "and that has the features (trait:HW_CPU_X86_*) which its flavor and image require.", default=(),
        metadata={"check": check_cpu_models})
    cpu_model_extra_flags: tuple[str, ...] = _doc(
        "Features that guests' CPUs have besides (+vmx or vmx), or have not (-vmx), by libvirt's names.", default=(),
        metadata={"check": check_flags})
    cpu_dedicated_set: str | None = _doc(
        "CPUs of this host that servers have for themselves (hardware cpu_policy), such as 4-15,^8; all other servers "
        "keep off them from their next start on. Left out: none.", default=None, metadata={"cpus": True})
    cpu_shared_set: str | None = _doc("CPUs that the other servers share. Left out: all, or none where there is a "
                                      "cpu_dedicated_set.", default=None, metadata={"cpus": True})
    reserved_huge_pages: dict[int, dict[int, int]] = _doc(
        "NUMA cell to {KiB of a page: how many} large pages that servers do not get, such as {0: {2048: 64}}.",
        default_factory=dict)
    file_backed_memory: int = _doc(
        "MiB of memory that guests have in files (of qemu.conf's memory_backing_dir) in place of the host's RAM, from "
        "their next start on; 0: none. Needs ram_allocation_ratio 1, and excludes large pages.", default=0,
        metadata={"max": 2**40})
    num_memory_encrypted_guests: int | None = _doc(
        "How many servers with encrypted memory (hardware mem_encryption) this host has at most. Left out: as many as "
        "libvirt says.", default=None, metadata={"min": 0, "max": 2**31 - 1})
    realtime_scheduler_priority: int = _doc(
        "Priority of virtual CPUs that run in real time (hardware cpu_realtime); servers that are there keep theirs "
        "until they change.", default=1, metadata={"min": 1, "max": 99})
    pack_numa_cells: bool = _doc("Whether guests with NUMA cells get the fullest of the host's that have room, or the "
                                 "emptiest.", default=True)
    physical_network_numa_nodes: dict[str, tuple[int, ...]] = _doc(
        "Physical network (or bridge) to the NUMA cells that its card is near, such as {physnet0: [0]}: servers with "
        "NUMA cells are put there.", default_factory=dict)
    tunnel_numa_nodes: tuple[int, ...] = _doc(
        "NUMA cells near the card over which networks of OVN (type ovn) go to other hosts.", default=())
    pci_device_spec: tuple[dict[str, str], ...] = _doc(
        "PCI devices that servers may have: a list of {vendor_id, product_id, address (may have * and ?), managed "
        "(true or false), one_time_use (true or false), resource_class, traits (with commas between), "
        "live_migratable (true or false), physical_network (of NICs; null: networks between hosts), trusted, "
        "remote_managed (virtual functions of SmartNICs)}, see docs/pci.md. Left out: none.", default=(),
        metadata={"words": pci.DEVICE_WORDS, "needed": (), "check": pci.check_devices})
    pci_alias: tuple[dict[str, str], ...] = _doc(
        "What servers call them: a list of {name, vendor_id, product_id, resource_class, traits, live_migratable, "
        "device_type (type-PCI, type-PF or type-VF), numa_policy (legacy, preferred, required or socket)}, alike in a "
        "cloud.", default=(), metadata={"words": pci.ALIAS_WORDS, "needed": ("name",), "check": pci.check_aliases})
    enabled_mdev_types: tuple[dict[str, str], ...] = _doc(
        "Types of virtual GPUs (mediated devices) that servers may have: a list of {type, address (of the devices that "
        "are to have it; may have * and ?; left out for the last: all others), traits (with commas between)}, see "
        "docs/pci.md. Left out: none.", default=(),
        metadata={"words": ("type", "address", "traits"), "needed": ("type",), "check": mdev_types.check_mdev_types})
    pmem_namespaces: dict[str, tuple[str, ...]] = _doc(
        "Label to namespaces of persistent memory that servers may have: names by ndctl, in mode devdax, or paths of "
        "files in their place, such as {6GB: [ns0, ns1]}, see docs/reference/hardware.md.", default_factory=dict,
        metadata={"check": pmem.check_namespaces})
    sysfs: Path = _doc("Where the kernel tells of devices.", default=Path("/sys"))
    disk_allocation_ratio: float = _doc("Most that the disks of one server, or one volume, may promise, as a multiple "
                                        "of the file system that they are on.", default=1.0,
                                        metadata={"min": 0.01, "max": 1000})
    reserve_disk_resource_for_image_cache: bool = _doc(
        "Whether a cloud reserves, of this host's disk, what the content of its images takes, besides what it keeps "
        "from servers anyway.", default=False)
    traits: tuple[str, ...] = _doc("Further traits of this host, such as [STORAGE_DISK_SSD, CUSTOM_GOLD]; flavors and "
                                   "images require or forbid them.", default=(), metadata={"check": check_given})
    provider_config_location: Path = _doc("Folder of files *.yaml as Nova's provider.yaml: custom resources and traits",
                                          default=Path("/etc/magnetar/provider_config"))
    resource_provider_bandwidths: tuple[str, ...] = _doc(
        "Bandwidth that ports of servers may be promised: a list of NETWORK:EGRESS:INGRESS in kbit/s, of a physical "
        "network or rp_tunnelled, and of NETWORK/CARD:EGRESS: of cards whose virtual functions servers have, see "
        "docs/cloud-networks.md.", default=(), metadata={"check": bandwidth.check_setting})
    address_of_host: str | None = _doc("IP address by which a cloud knows this host, for the hint build_near_host_ip; "
                                       "left out, the one from which it speaks to others.", default=None,
                                       metadata={"check": _check_address})
    console_log_bytes: int = _doc("Size at which virtlogd starts a server's console log anew, as told in "
                                  "/etc/libvirt/virtlogd.conf; the agent never shows more.",
                                  default=2 * 2**20, metadata={"min": 4096})
    body_max_bytes: int = _doc("Largest JSON body of a request.", default=16 * 2**20, metadata={"min": 4096})
    specs_without_effect: str = _doc(
        "What becomes of a request for a server whose flavor or image has extra specs or properties that nothing here "
        "acts on: refuse, or warn in the answer.", default="refuse", metadata={"choices": ("refuse", "warn")})
    spice: bool = _doc("Guests have a SPICE server beside VNC, and the channel of SPICE's guest agent, from their next "
                       "start on. Needs a QEMU with SPICE.", default=False)
    root_format: str = _doc("Root disks of servers of which nobody says it, such as those of a cloud: qcow2 (an "
                            "overlay on the image), raw or copy (a copy of the image, raw or as qcow2, which takes "
                            "time and room), lvm (a raw copy, and all of the server's own disks are logical volumes "
                            "of the root_pool) or rbd (a clone of the image, and all of them are RBD images of the "
                            "root_pool).",
                            default="qcow2", metadata={"choices": ROOT_FORMATS})
    root_pool: str | None = _doc("Name of the pool (see pools), of the type that root_format says, in which the "
                                 "disks of servers with root_format lvm or rbd lie.", default=None)
    volume_clear: str = _doc("How a logical volume is cleared when it goes, be it a server's disk or a volume: zero "
                             "(overwritten with zeros) or none (whoever gets its blocks next may read them).",
                             default="zero", metadata={"choices": ("zero", "none")})
    volume_clear_size: int = _doc("MiB at the beginning of a logical volume that are cleared; 0: all of it.", default=0,
                                  metadata={"max": 2**40})
    virt_type: str = _doc("auto (KVM where a guest really starts under it, else emulation), kvm or qemu.",
                          default="auto", metadata={"choices": ("auto", "kvm", "qemu")})
    restart_on_crash: bool = _doc("Start servers again whose QEMU died, when their document does not say.",
                                  default=False)
    shutdown_timeout: float = _doc("How long a guest may take to power itself off before its power is cut, when "
                                   "neither its server (shutdown_timeout) nor its image (os_shutdown_timeout) says; 0: "
                                   "at once.", default=60.0, metadata={"min": 0, "max": SHUTDOWN_MAX})
    shutdown_retry_interval: float = _doc("Time between two presses of the power button of a guest that is to power "
                                          "itself off: one that still boots does not notice the first.",
                                          default=1.0, metadata={"min": 0.1, "max": 60})
    native_tls: bool = _doc("Memory and disks of live migrations go straight from QEMU to QEMU, under QEMU's own TLS, "
                            "where both hosts say so; else through the agents. Needs open ports and certificates of "
                            "QEMU's, see docs/migration.md.", default=False)
    detach_timeout: float = _doc("How long a guest may take to let go of a volume or NIC that is detached.",
                                 default=60.0, metadata={"min": 0, "max": 3600})
    metadata_service: bool = _doc("Answer guests at http://169.254.169.254 and fe80::a9fe:a9fe, see docs/metadata.md.",
                                  default=True)
    integration_bridge: str = _doc("Bridge of Open vSwitch at which ports of OVN are plugged in, see docs/networks.md.",
                                   default="br-int", metadata={"pattern": _BRIDGE})
    guest_ports: tuple[str, ...] = _doc(
        "Ports of this host that its guests may reach besides DHCP and DNS, such as [tcp/3142, udp/8000-8100].",
        default=())
    config_drive_format: str = _doc("File system of config drives: iso9660, or vfat for guests that do not read that. "
                                    "In a cloud its conductors may say another.",
                                    default="iso9660", metadata={"choices": ("iso9660", "vfat")})
    vendordata_jsonfile_path: Path | None = _doc(
        "JSON file whose object guests find in vendor_data.json of their config drive, 256 KiB at most. In a cloud its "
        "conductors say what they find there.", default=None)
    inject_partition: int = _doc(
        "Where the key, password, metadata and files of a server are written into its root disk when that is made, as "
        "with Nova: -2 nowhere, -1 where libguestfs finds the operating system, 0 a disk without partitions, 1 and up "
        "that partition. See docs/guest-data.md.", default=NO_INJECTION, metadata={"min": NO_INJECTION, "max": 128})
    inject_password: bool = _doc("Write the password too, as a hash, as root's. Needs inject_partition.", default=False)
    inject_key: bool = _doc("Write the key too, for root. Needs inject_partition.", default=False)
    enable_rbd_download: bool = _doc(
        "Images of a cloud come straight out of Ceph where its image service keeps them there and says where (Glance's "
        "show_image_direct_url), as with Nova; by HTTP where that fails. Needs rbd_user and rbd_pool, see "
        "docs/storage.md.", default=False)
    rbd_user: str | None = _doc("User of Ceph who reads them. His keyring lies beside rbd_ceph_conf: for ceph.conf it "
                                "is ceph.client.USER.keyring.", default=None, metadata={"check": _check_ceph_name})
    rbd_pool: str | None = _doc("Pool of Ceph with the images; of another pool none is read.", default=None,
                                metadata={"check": _check_ceph_name})
    rbd_ceph_conf: Path = _doc("Configuration file of the cluster with the images.",
                               default=Path("/etc/ceph/ceph.conf"))
    rbd_connect_timeout: float = _doc("How long it may take to reach that cluster.", default=5.0,
                                      metadata={"min": 1, "max": 600})
    event_keys_kept: int = _doc("How many request ids of one-shot events are remembered, so that none is done twice.",
                                default=10000, metadata={"min": 100})
    log_level: str = _doc("debug, info, warning or error.", default="info", metadata={"choices": LEVELS})

    def __post_init__(self) -> None:
        for key in dataclasses.fields(self):
            object.__setattr__(self, key.name, checked(key, getattr(self, key.name)))
        if self.cpu_dedicated_set and self.cpu_shared_set and (
                both := cpu_set(self.cpu_dedicated_set) & cpu_set(self.cpu_shared_set)):
            raise InvalidSettings(f"cpu_shared_set: must not name CPUs of cpu_dedicated_set: {cpu_text(both)}.")
        self._check_cpu_mode()
        self._check_root_pool()
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
                vendordata.read(self.vendordata_jsonfile_path)
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
        if self.root_pool is not None and self.pools.get(self.root_pool, {}).get("type") not in types:
            there = ", ".join(sorted(name for name, pool in self.pools.items() if pool["type"] in types)) or "none"
            raise InvalidSettings(f"root_pool: must be a pool of type {' or '.join(types)} (got {self.root_pool!r}); "
                                  f"the setting pools has {there}.")

    def _check_listen(self, listen: str) -> None:
        match = _LISTEN.match(listen)
        if not match or not 0 <= int(match["port"]) <= 65535:
            raise InvalidSettings(f"listen: must be host:port such as 0.0.0.0:6553 or [::]:6553 (got {listen!r}).")
        if not self.tls_cert or not self.tls_key:
            raise InvalidSettings("listen: TCP is offered with TLS only. Set tls_cert and tls_key, or remove listen.")

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of *listen*."""
        match = _LISTEN.match(self.listen) if self.listen else None
        return (match["six"] or match["host"], int(match["port"])) if match else None


def load(path: Path | None = None, **given: Any) -> AgentSettings:
    """Settings from the YAML file *path*, or from ``FILE`` when that exists; *given* (not ``None``) wins.

    Raises ``InvalidSettings`` naming the file, the key and the rule."""
    found: dict[str, Any] = _read(path or FILE) if path is not None or FILE.exists() else {}
    found.update((key, value) for key, value in given.items() if value is not None)
    try:
        return AgentSettings(**found)
    except InvalidSettings as error:
        raise InvalidSettings(f"{path or FILE}: {error.message}" if found else error.message) from None


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"{path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        raise InvalidSettings(f"{path} is not valid YAML{line}: {getattr(error, 'problem', error)}.") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidSettings(f"{path}: must be a mapping of keys to values.")
    known = [key.name for key in dataclasses.fields(AgentSettings)]
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Known keys: {', '.join(known)}."
            raise InvalidSettings(f"{path}: {key} is not a known key. {hint}")
    return found


def describe(settings: AgentSettings | None = None) -> list[dict[str, Any]]:
    """``{"key", "value", "doc"}`` of each setting; the values are the defaults unless *settings* are given."""
    shown = settings or AgentSettings()
    return [{"key": key.name, "value": getattr(shown, key.name), "doc": key.metadata["doc"]}
            for key in dataclasses.fields(AgentSettings)]
