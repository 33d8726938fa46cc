# SPDX-License-Identifier: GPL-3.0-or-later
"""server: a virtual machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidField
from ..fields import FIXED, READ, Field, Record
from ..hardware import machines
from ..hardware.rescue import BUSES as RESCUE_BUSES
from ..hardware.rows import HARDWARE
from ..power import (
    ACTIVE,
    BUILDING,
    CRASHED,
    ERROR,
    MISSING,
    PAUSED,
    RESCUED,
    SHELVED,
    SOFT_DELETED,
    STOPPED,
    SUSPENDED,
    WANTED,
    status_word,
)
from ..values import Base64, Boolean, Choices, Integer, ListOf, Mac, MapOf, Nullable, OneOf, Text, Uuid, Value
from .common import REFERENCE, TAG, OrNone, Resource
from .flavor import size_fields
from .guest_data import GUEST_DATA, PASSWORD, VENDOR_DATA, nic_guest_data
from .network import ALLOWED, DEVICE, GROUPS, NIC_ADDRESS, NIC_MODEL, PHYSICAL, PORT, TX_RATE, VLAN, VNIC_TYPE
from .volume import BUSES, DISK_KEY, POOL, SIZE
from .volume import DEVICE as DISK

#: Nova's limit for user data, counted in base64.
USER_DATA_MAX = 65535
#: The longest path that Linux accepts, and the maximum number of files.
PATH_MAX, FILES_MAX = 4095, 255
#: Those of Nova's status words that an agent reports, and the word for soft-deleted servers of a cloud.
STATUSES = tuple(status_word(state) for state in (BUILDING, ACTIVE, STOPPED, PAUSED, SUSPENDED, RESCUED, ERROR,
                                                  SOFT_DELETED))
META = Text(0, 255)
#: Text of an IP address; the cloud checks its family.
ADDRESS = Text(1, 45)
#: Maximum seconds that a guest may have to shut itself down.
SHUTDOWN_MAX = 3600


def _nic() -> Record:
    return Record(
        network=Field(REFERENCE, "A network of the agent, or a libvirt network."),
        bridge=Field(DEVICE, "A bridge of the host, in place of network."),
        port=Field(OneOf(PORT, REFERENCE), "A port in place of network: on a host a logical switch port of OVN, by its "
                   "uuid there (iface-id); in a cloud a port of the network service, by name or uuid."),
        physical_network=Field(PHYSICAL, "A physical network of the host, in place of network: the NIC is a device of "
                               "that network in the agent's setting pci_device_spec, see vnic_type. It needs "
                               "port_security false, since nothing filters it, except for V(vdpa) and "
                               "V(remote-managed); V(rp_tunnelled) is only for these two."),
        vnic_type=Field(VNIC_TYPE, "Type of such a NIC in the guest: V(direct), the virtual function itself; "
                        "V(macvtap), a virtio NIC over it; V(direct-physical), a whole card; V(vdpa), with port, a "
                        "virtio NIC that the card provides; V(remote-managed), with port, a virtual function of a "
                        "SmartNIC. V(direct) when omitted."),
        network_affinity=Field(PHYSICAL, "From a cloud: the physical network of a port of OVN, or V(rp_tunnelled); "
                               "the server gets NUMA cells near it."),
        card=Field(DEVICE, "From a cloud: the card of a virtual function with claimed bandwidth, by its network "
                   "device."),
        trusted=Field(Boolean(), "Whether the card trusts such a virtual function (V(direct)): its guest may set "
                      "other MACs, and receive all traffic of the card. The agent's setting pci_device_spec must "
                      "permit it. V(false) when omitted."),
        max_tx_rate=Field(TX_RATE, "Maximum rate of outgoing traffic of such a virtual function (V(direct), "
                          "V(macvtap)) in Mbit/s; V(0), the default, for no limit."),
        min_tx_rate=Field(TX_RATE, "Guaranteed rate of outgoing traffic in Mbit/s; V(0), the default, for none."),
        vlan=Field(VLAN, "The VLAN of such a NIC; none when omitted."),
        mac=Field(Mac(), "MAC address; generated once when omitted."),
        model=Field(NIC_MODEL, "Model of the card.", default="virtio"),
        tag=Field(TAG, "Device tag, shown to the guest in the config drive."),
        address=Field(Nullable(NIC_ADDRESS), "IPv4 address. On a network that the agent creates, its DHCP server "
                      "assigns it; elsewhere it is only in the guest's metadata, with a prefix (192.0.2.7/24) for the "
                      "guest to set it. Kept when omitted; null for none."),
        port_security=Field(Boolean(), "Whether only frames from its MAC and its addresses pass, and none of a DHCP "
                            "server or router; V(true) when omitted."),
        allowed_addresses=Field(ALLOWED, "Further addresses and networks that it may send from; none when omitted."),
        security_groups=Field(GROUPS, "From a cloud: the uuids of the security groups (C(group_filter)) that define "
                              "the allowed traffic; null, or omitted, for all traffic."),
        told=Field(Nullable(nic_guest_data()), "From a cloud: guest metadata of this NIC."),
    )


def _block() -> Record:
    """Return the value type of an item of a server's block device mapping (version 2 of Nova's format)."""
    return Record(
        source_type=Field(Choices("image", "volume", "snapshot", "blank"), "Its source.", required=True),
        destination_type=Field(Choices("local", "volume"), "V(local): a disk that is deleted with the server; "
                               "V(volume): a volume. When omitted, V(local) for images and blank disks, V(volume) for "
                               "other sources."),
        uuid=Field(REFERENCE, "The image, volume or volume snapshot, by name or uuid."),
        boot_index=Field(Nullable(Integer(-1, 32)), "Turn among the disks to boot from: 0 for the root disk; null or "
                         "-1 for never."),
        volume_size=Field(SIZE, "Size in GiB of a new volume, by default the size of its source; or of an ephemeral "
                          "disk (in MiB of a swap disk), by default all that the flavor allows. All ephemeral disks "
                          "together cannot exceed the flavor."),
        volume_type=Field(POOL, "Pool of a volume that is made."),
        delete_on_termination=Field(Boolean(), "Whether the volume is deleted with the server."),
        readonly=Field(Boolean(), "Whether the guest may only read the volume."),
        guest_format=Field(Nullable(Choices("swap", "ext4")), "Use of a blank local disk: V(swap) for the swap disk, "
                           "any other value for an ephemeral disk with ext4."),
        device_type=Field(Nullable(Choices("disk")), "Only V(disk)."),
        disk_bus=Field(Nullable(Choices(*BUSES)), "Bus of the volume in the guest; V(virtio) when omitted."),
        device_name=Field(Nullable(DISK), "Device name; generated when omitted, which is best. In a cloud the host "
                          "chooses, as in Nova, and ignores a requested name; the answer has the chosen one."),
        tag=Field(TAG, "Device tag, shown to the guest in the config drive."),
        volume=Field(Uuid(), "Uuid of the new volume; generated once when omitted."),
        name=Field(Text(0, 255), "Name of its source at that time."),
    )


def _file() -> Record:
    """Return the value type of a file that is injected into the guest (``personality`` in Nova until 2.56)."""
    return Record(
        path=Field(Text(1, PATH_MAX, r"[^\x00]+", "must not contain a NUL"), "Path in the guest.",
                   required=True),
        contents=Field(Base64(USER_DATA_MAX), "Its content, in base64.", required=True),
    )


def block_device_destination(block_device: Mapping[str, Any]) -> str:
    """Return the destination type of *block_device*, an item of a block device mapping: ``local`` or ``volume``."""
    usual = "volume" if block_device["source_type"] in ("volume", "snapshot") else "local"
    return str(block_device.get("destination_type", usual))


def is_root_volume(block_device: Mapping[str, Any]) -> bool:
    """Return whether *block_device*, an item of a block device mapping, is a volume and the root disk."""
    return block_device.get("boot_index") == 0 and block_device_destination(block_device) == "volume"


#: Fields of an item of the block device mapping that depend on the image of its volume.
OF_IMAGE = ("uuid", "name")


def _root_of(block_device: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of *block_device*, an item of a block device mapping, that a rebuild must not change. These are
    all fields; but for a root volume that is created from an image, the image's uuid and name are not included."""
    from_image = is_root_volume(block_device) and block_device["source_type"] == "image"
    return {name: value for name, value in block_device.items() if name not in OF_IMAGE} if from_image else block_device


class Server(Resource):
    """A virtual machine on a host."""

    noun, plural = "server", "servers"
    sample_actions = ("record", "disks", "define", "drive", "start")
    sample_changes = {"description": ("", "for the shop")}
    of_clouds = frozenset(("host", "scheduler_hints", "security_groups", "access_ip_v4", "access_ip_v6", "hostname",
                           "disk_config", "trusted_image_certificates"))
    rebuilt = frozenset(("image", "key_name", "user_data", "availability_zone", "config_drive", "root_format",
                         "virt_type", "machine", "personality"))

    @classmethod
    def changes(cls, name: str, old: Any, new: Any) -> bool:
        """Override ``Kind.changes``: the machine type may change to a later version of the same type."""
        return name == "machine" and machines.is_machine_upgrade(old, new)

    @classmethod
    def rebuilds(cls, name: str, old: Any, new: Any) -> bool:
        """Override ``Kind.rebuilds``: in the block device mapping, a rebuild may change only the source image of the
        root volume.
        """
        if name == "block_device_mapping":
            return len(old) == len(new) and all(
                _root_of(old_block) == _root_of(new_block) for old_block, new_block in zip(old, new))
        return super().rebuilds(name, old, new)

    flavor = Field(OneOf(REFERENCE, Record(**size_fields(required=False))),
                   "A flavor by name or uuid, or its sizes {vcpus, ram, disk, ephemeral, swap}; omitted sizes stay as "
                   "they are. A new server needs vcpus and ram.", required=True,
                   sample={"name": "small", "vcpus": 1, "ram": 512, "disk": 10, "ephemeral": 0, "swap": 0})
    image = Field(Nullable(REFERENCE), "Image to boot from, by name or uuid; null (in a module V(none)) for a blank "
                  "root disk.", default=None, on=FIXED,
                  sample={"id": "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11", "name": "debian"})
    networks = Field(ListOf(_nic(), 32), "NICs in order. Each names a network, a bridge, a port or a physical network.",
                     default=[],
                     sample=[{"network": "lan", "mac": "52:54:00:12:34:56", "model": "virtio"}])
    block_device_mapping = Field(
        ListOf(_block(), 32), "Nova's block device mapping v2: volumes that the server boots from or is made with, and "
        "tags of its local disks.", default=[], on=FIXED, aliases=("block_device_mapping_v2",),
        sample=[{"source_type": "blank", "destination_type": "volume", "volume_size": 10, "disk_bus": "virtio",
                 "device_name": "vdb", "volume": "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"}])
    key_name = Field(Nullable(REFERENCE), "Keypair whose public key the guest is given.", default=None, on=FIXED,
                     sample="me")
    user_data = Field(Nullable(Base64(USER_DATA_MAX)), "Base64 data for the guest's first boot.", default=None,
                      on="create", secret=True, option="userdata", aliases=("user_data",))
    personality = Field(Nullable(ListOf(_file(), FILES_MAX)), "Files {path, contents} that the guest finds in the "
                        "config drive, for its first boot.", default=None, on="create", secret=True, option=False)
    guest_data = Field(GUEST_DATA, "From a cloud: guest metadata that replaces the facts of the host.", default=None,
                       on="create update", secret=True, option=False, compared=False)
    vendor_data = Field(VENDOR_DATA, "From the operator of a cloud: vendor data for the guest.", default=None,
                        on="create update", secret=True, option=False, compared=False)
    admin_pass = Field(PASSWORD, "Password for the guest in the next config drive. It is deleted after that, or when "
                       "the guest agent has set it.", default=None, on="create update",
                       secret=True, option=False, compared=False)
    disk_key = Field(DISK_KEY, "From a cloud: keys for the encryption of its own disks, of new disks only.",
                     default=None,
                     on="create update", secret=True, option=False, compared=False)
    adopt_disks = Field(Nullable(Text(1, 64)), "From a cloud: the former owner (disk_folder or disk_pool of the host) "
                        "of disks on shared storage, which an evacuated server keeps.", default=None, on=FIXED,
                        option=False, compared=False)
    tpm_secret = Field(DISK_KEY, "From a cloud: the key that encrypts the content of its TPM. The host keeps it where "
                       "tpm_secret_security is host, otherwise only until the guest has started.",
                       default=None,
                       on="create update", secret=True, option=False, compared=False, stored=False)
    metadata = Field(MapOf(Text(1, 255), META), "Keys and values, 255 characters each at most.", default={},
                     aliases=("meta",), sample={"role": "web"})
    tags = Field(ListOf(TAG, 50, unique=True), "Tags, at most 50 of 60 characters.", default=[], sample=["shop"])
    availability_zone = Field(Nullable(Text(1, 255)), "Availability zone in the guest's metadata.", default=None,
                              on=FIXED, sample="nova")
    config_drive = Field(Boolean(), "Whether the guest gets a config drive.", default=True, on=FIXED,
                         sample=True)
    power = Field(Choices(*WANTED, SHELVED), "Desired power state; V(shelved) is for servers of a cloud.",
                  default="running", option=False, sample="running")
    rescue = Field(
        Nullable(Record(
            image=Field(Nullable(REFERENCE), "Image to boot from; the server's own when omitted."),
            device=Field(Choices(*RESCUE_BUSES), "Kind of device of the rescue image, in addition to all of "
                         "the server's own disks; the image's property hw_rescue_device when omitted."),
            bus=Field(Choices(*dict.fromkeys(bus for buses in RESCUE_BUSES.values() for bus in buses)),
                      "Bus of that device; the image's property hw_rescue_bus when omitted."))),
        "Boot from another image, with the root disk as second disk; null for none.", default=None, option=False,
        sample=None)
    restart_on_crash = Field(Boolean(), "Start the guest again when its QEMU dies.", default=False, sample=False)
    resume_on_host_boot = Field(Boolean(), "Start the guest again after the host has rebooted, if it ran.",
                                default=True, sample=True)
    shutdown_timeout = Field(Nullable(Integer(0, SHUTDOWN_MAX)), "Seconds for the guest to power itself off, when it "
                             "is stopped, before its power is cut; 0 cuts it immediately. Null (in a module V(none)) "
                             "means the image's property C(os_shutdown_timeout), or the agent's setting.",
                             default=None, sample=None)
    root_format = Field(Choices("auto", "qcow2", "raw", "copy", "lvm", "rbd"), "Root disk: V(qcow2) on the image, "
                        "a copy (V(raw), V(copy) as qcow2), V(lvm), V(rbd), V(auto).",
                        default="auto", on=FIXED, sample="qcow2")
    virt_type = Field(Choices("auto", "kvm", "qemu"), "kvm, qemu (emulated), or auto: the best that the host can do.",
                      default="auto", on=FIXED, sample="qemu")
    machine = Field(Text(1, 64, "%s|%s" % (machines.AUTO, machines.NAME), "%s; or auto" % machines.RULE),
                    "Machine type: V(q35), V(pc), V(virt), a version of these, or V(auto). Its version stays.",
                    default=machines.AUTO, on=FIXED, sample="pc-q35-7.2")

    hardware = Field(HARDWARE, "Hardware in addition to sizes. It overrides flavor and image.", default={},
                     sample={"watchdog": "reset"})

    scheduler_hints = Field(
        MapOf(Text(1, 255), Value()), "Hints to the scheduler of a cloud: V(group), a server group by name or uuid; "
                                      "V(different_host) and V(same_host), a server or a list of servers by name or "
                                      "uuid; or hints of other filters, as in Nova.", on="create")
    security_groups = Field(ListOf(REFERENCE, 255, unique=True), "Security groups of all its NICs in a cloud, by name "
                            "or uuid. C(default) when omitted for a new server.", on="create update")
    access_ip_v4 = Field(OrNone(ADDRESS), "IPv4 address of the server in lists of a cloud; V(none) for none.",
                         on="create update")
    access_ip_v6 = Field(OrNone(ADDRESS), "IPv6 address of the server in lists of a cloud; V(none) for none.",
                         on="create update")
    hostname = Field(Text(1, 255, r"[a-zA-Z0-9._-]*", "must be a host name of letters, digits and . _ -"),
                     "Host name in the guest's metadata, in a cloud; derived from the name when omitted.",
                     on="create update")
    disk_config = Field(Choices("AUTO", "MANUAL"), "From a cloud: the handling of the root disk's partition "
                        "(C(OS-DCF:diskConfig)).", on="create update")
    trusted_image_certificates = Field(
        ListOf(Text(1, 255), 50, unique=True), "Ids of the certificates of a cloud's key manager that the signature of "
        "the image is verified with.", on="create")

    placement = Field(Value(), "Dedicated CPUs, NUMA cells and pages of the host that it has, empty for none: cells, "
                               "for each of its own host, memory_mb, page (KiB) and pins (CPU of the host by virtual "
                               "CPU); and emulator (a CPU). Of a single host.", on=READ, sample={})
    pci_devices = Field(MapOf(Text(), Text()), "PCI devices of the host that it has: address to the alias of the "
                        "request, or to the MAC address of the NIC. Of a single host.",
                        on=READ, sample={})
    nic_devices = Field(MapOf(Text(), Value()), "MAC address of a NIC that is a device of its host to {pci_slot, "
                        "pci_vendor_info, physical_network}, and more of whole cards and SmartNICs. Of a single "
                        "host.", on=READ, sample={})
    mdev = Field(Nullable(Value()), "The virtual GPU that it has: {uuid, parent, type}. Of a single host.", on=READ,
                 sample=None)
    pmem_namespaces = Field(ListOf(Text()), "Namespaces of persistent memory that it has. Of a single host.",
                            on=READ, sample=[])
    volumes_attached = Field(ListOf(Value()), "The volumes that it has: {id, name, device, delete_on_termination}.",
                             on=READ, sample=[{"id": "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11", "name": "data",
                                               "device": "vdb", "delete_on_termination": False}])
    status = Field(Choices(*STATUSES), "Nova's status word.", on=READ, sample="ACTIVE")
    power_state = Field(Choices(*WANTED, CRASHED, MISSING), "The observed power state.",
                        on=READ, sample="running")
    status_reason = Field(Text(0, 1024), "The reason of a state that the user did not request.", on=READ,
                          sample="the guest shut itself down")
    guest_password = Field(Text(0, 1020), "The password that the guest has left, encrypted with its user's key.",
                           on=READ, sample="")
    fault = Field(Nullable(Value()), "{code, message, created} of the last failure, until one succeeds.", on=READ,
                  sample=None)
    locked = Field(Boolean(), "Whether users are kept from changing the server (action lock). In a cloud only.",
                   on=READ, sample=False)
    locked_reason = Field(Nullable(Text(0, 255)), "Why it is locked.", on=READ, sample=None)
    host = Field(Text(0, 255), "The host.", on=READ, sample="kvm1")
    addresses = Field(Value(), "Network name to a list of {addr, version, mac, source}.", on=READ,
                      sample={"lan": [{"addr": "192.168.100.57", "version": 4, "mac": "52:54:00:12:34:56",
                                       "source": "lease"}]})
    adopted = Field(Nullable(Value()), "The libvirt domain that the server was made of, which another program has "
                    "defined: {domain, disks, adopted_at}; null for other servers. Of a single host.", on=READ,
                    sample=None)
    instance_name = Field(Text(0, 64), "Name of the libvirt domain.", on=READ, sample="magnetar-8c7d3c0e")
    console_log = Field(Text(0, 4096), "Path of the console log on the host.", on=READ,
                        sample="/var/lib/magnetar/servers/8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d/console.log")

    @classmethod
    def check_new(cls, document: Mapping[str, Any]) -> None:
        """Override ``Kind.check_new``: also require the field ``image``, unless a volume is the root disk. The value of
        ``image`` may be null, for a blank root disk.
        """
        super().check_new(document)
        if "image" not in document and not any(is_root_volume(block_device)
                                               for block_device in document.get("block_device_mapping", ())):
            raise InvalidField("image", "is required to make a server that boots from no volume; for a blank root disk "
                               "say null (in a module: none)")

    @classmethod
    def giving_way(cls, current: Mapping[str, Any], requested: Mapping[str, Any]) -> dict[str, Any]:
        """Override ``Kind.giving_way``: also remove the image if *requested* has a root volume, and the root volume if
        *requested* has an image.
        """
        merged = super().giving_way(current, requested)
        if "image" not in requested and any(is_root_volume(block_device)
                                            for block_device in requested.get("block_device_mapping", ())):
            merged["image"] = None
        block_devices = merged.get("block_device_mapping", ())
        if requested.get("image") is not None and any(is_root_volume(block_device) for block_device in block_devices):
            merged["block_device_mapping"] = [block_device for block_device in block_devices
                                              if not is_root_volume(block_device)]
        return merged
