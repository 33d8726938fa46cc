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
    status,
)
from ..values import Base64, Boolean, Choices, Integer, ListOf, Mac, MapOf, Nullable, OneOf, Text, Uuid, Value
from .common import REFERENCE, TAG, OrNone, Resource
from .flavor import sizes
from .guest_data import GUEST_DATA, PASSWORD, VENDOR_DATA, told
from .network import ALLOWED, DEVICE, GROUPS, NIC_ADDRESS, NIC_MODEL, PHYSICAL, PORT, TX_RATE, VLAN, VNIC_TYPE
from .volume import BUSES, DISK_KEY, POOL, SIZE
from .volume import DEVICE as DISK

#: Nova's limit for user data, counted in base64 (MD-51).
USER_DATA_MAX = 65535
#: The longest path that Linux takes, and files at once.
PATH_MAX, FILES_MAX = 4095, 255
#: Nova's status words for what a host alone can see, and that by which soft-deleted servers of a cloud are listed.
STATUSES = tuple(status(one) for one in (BUILDING, ACTIVE, STOPPED, PAUSED, SUSPENDED, RESCUED, ERROR, SOFT_DELETED))
META = Text(0, 255)
#: Text of an IP address; the cloud checks its family.
ADDRESS = Text(1, 45)
#: The longest time that a guest may have to shut itself down, in seconds.
SHUTDOWN_MAX = 3600


def _nic() -> Record:
    return Record(
        network=Field(REFERENCE, "A network known to the agent, or a libvirt network."),
        bridge=Field(DEVICE, "A bridge of the host, in place of network."),
        port=Field(OneOf(PORT, REFERENCE), "A port in place of network: on a host a logical switch port of OVN, by its "
                   "uuid there (iface-id); in a cloud a port of the network service, by name or uuid."),
        physical_network=Field(PHYSICAL, "A physical network of the host, in place of network: the NIC is a device "
                               "that the agent's setting pci_device_spec has there, see vnic_type. It needs "
                               "port_security false, since nothing filters it, but for V(vdpa) and V(remote-managed); "
                               "V(rp_tunnelled) is for these alone."),
        vnic_type=Field(VNIC_TYPE, "How the guest has such a NIC: V(direct), the virtual function itself; V(macvtap), "
                        "a virtio NIC over it; V(direct-physical), a whole card; V(vdpa), with port, a virtio NIC that "
                        "the card makes; V(remote-managed), with port, a virtual function of a SmartNIC. V(direct) "
                        "when omitted."),
        network_affinity=Field(PHYSICAL, "What a cloud says of a port of OVN: the physical network, or "
                               "V(rp_tunnelled), near whose NUMA cells the server is to be."),
        card=Field(DEVICE, "What a cloud says of a virtual function whose bandwidth is claimed of a card: that one, by "
                   "its network device."),
        trusted=Field(Boolean(), "Whether the card trusts such a virtual function (V(direct)): its guest may set other "
                      "MACs, and hear all that the card hears. The setting pci_device_spec says of which it may. "
                      "V(false) when omitted."),
        max_tx_rate=Field(TX_RATE, "How much such a virtual function (V(direct), V(macvtap)) sends at most, in Mbit/s; "
                          "V(0) for no limit, which it is when omitted."),
        min_tx_rate=Field(TX_RATE, "How much of its card it is sure of, in Mbit/s; V(0) for nothing, which it is when "
                          "omitted."),
        vlan=Field(VLAN, "The VLAN of such a NIC; none when omitted."),
        mac=Field(Mac(), "MAC address; drawn once when omitted."),
        model=Field(NIC_MODEL, "Model of the card.", default="virtio"),
        tag=Field(TAG, "Device tag, shown to the guest in the config drive."),
        address=Field(Nullable(NIC_ADDRESS), "IPv4 address. On a network that the agent makes, its DHCP gives it; "
                      "elsewhere the guest is told only, with a prefix (192.0.2.7/24) to set it itself. Kept when "
                      "omitted; null for none."),
        port_security=Field(Boolean(), "Whether only frames from its MAC and its addresses pass, and none of a DHCP "
                            "server or router; V(true) when omitted."),
        allowed_addresses=Field(ALLOWED, "Addresses and networks that it may send from, "
                                "besides its own; none when omitted."),
        security_groups=Field(GROUPS, "What a cloud says: the uuids of the "
                              "security groups (C(group_filter)) that say what passes; null, or omitted, for all."),
        told=Field(Nullable(told()), "What a cloud has the guest told of it."),
    )


def _block() -> Record:
    """An item of Nova's block device mapping v2 (BDM-10 to BDM-18)."""
    return Record(
        source_type=Field(Choices("image", "volume", "snapshot", "blank"), "What it is made from.", required=True),
        destination_type=Field(Choices("local", "volume"), "A disk that goes with the server, or a volume. V(local) "
                               "when omitted for images and blank ones, else V(volume)."),
        uuid=Field(REFERENCE, "The image, volume or volume snapshot, by name or uuid."),
        boot_index=Field(Nullable(Integer(-1, 32)), "Turn among the disks to boot from: 0 for the root disk; null or "
                         "-1 for never."),
        volume_size=Field(SIZE, "Size in GiB of a volume that is made, that of its source when omitted; or of an "
                          "ephemeral disk (of a swap disk in MiB), all that the flavor has when omitted. Ephemeral "
                          "disks have no more together than the flavor says."),
        volume_type=Field(POOL, "Pool of a volume that is made."),
        delete_on_termination=Field(Boolean(), "Whether the volume is deleted with the server."),
        readonly=Field(Boolean(), "Whether the guest may only read the volume."),
        guest_format=Field(Nullable(Choices("swap", "ext4")), "What a blank local disk is: V(swap) the swap disk, "
                           "else an ephemeral disk with ext4."),
        device_type=Field(Nullable(Choices("disk")), "Only V(disk)."),
        disk_bus=Field(Nullable(Choices(*BUSES)), "What the guest sees a volume behind of; V(virtio) when omitted."),
        device_name=Field(Nullable(DISK), "Device name; drawn when omitted, which is best. In a cloud the "
                          "host chooses, as with Nova, and a name that is asked for is passed over; the answer has the "
                          "one that was given."),
        tag=Field(TAG, "Device tag, shown to the guest in the config drive."),
        volume=Field(Uuid(), "Uuid of the volume that is made; drawn once when omitted."),
        name=Field(Text(0, 255), "Name of what it is made from, as it was then."),
    )


def _file() -> Record:
    """An injected file (Nova's personality, until 2.56)."""
    return Record(
        path=Field(Text(1, PATH_MAX, r"[^\x00]+", "must not contain a NUL"), "Where the guest is to have it.",
                   required=True),
        contents=Field(Base64(USER_DATA_MAX), "What is in it, in base64.", required=True),
    )


def destination(block: Mapping[str, Any]) -> str:
    """What an item of the block device mapping is: ``local`` or ``volume``."""
    usual = "volume" if block["source_type"] in ("volume", "snapshot") else "local"
    return str(block.get("destination_type", usual))


def is_root_volume(block: Mapping[str, Any]) -> bool:
    """Whether an item of the block device mapping is a volume that is the root disk."""
    return block.get("boot_index") == 0 and destination(block) == "volume"


#: Of an item of the block device mapping, what follows from the image that its volume is made from.
OF_IMAGE = ("uuid", "name")


def _root_of(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """An item of the block device mapping; a root volume without the image that it is made from."""
    anew = is_root_volume(block) and block["source_type"] == "image"
    return {name: value for name, value in block.items() if name not in OF_IMAGE} if anew else block


class Server(Resource):
    """A virtual machine on a host."""

    noun, plural = "server", "servers"
    of_clouds = frozenset(("host", "scheduler_hints", "security_groups", "access_ip_v4", "access_ip_v6", "hostname",
                           "disk_config", "trusted_image_certificates"))
    rebuilt = frozenset(("image", "key_name", "user_data", "availability_zone", "config_drive", "root_format",
                         "virt_type", "machine", "personality"))

    @classmethod
    def changes(cls, name: str, old: Any, new: Any) -> bool:
        """A machine type becomes a later version of itself."""
        return name == "machine" and machines.upgrades(old, new)

    @classmethod
    def rebuilds(cls, name: str, old: Any, new: Any) -> bool:
        """Of the block devices only what a root volume is made from."""
        if name == "block_device_mapping":
            return len(old) == len(new) and all(
                _root_of(one) == _root_of(other) for one, other in zip(old, new))
        return super().rebuilds(name, old, new)

    flavor = Field(OneOf(REFERENCE, Record(**sizes(required=False))),
                   "A flavor by name or uuid, or its sizes {vcpus, ram, disk, ephemeral, swap}; those that are left "
                   "out stay as they are. A new server needs vcpus and ram.", required=True,
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
    guest_data = Field(GUEST_DATA, "What a cloud has the guest told in place of what the host knows.", default=None,
                       on="create update", secret=True, option=False, compared=False)
    vendor_data = Field(VENDOR_DATA, "What the operator of a cloud has the guest told.", default=None,
                        on="create update", secret=True, option=False, compared=False)
    admin_pass = Field(PASSWORD, "Password that the guest is told by the config drive that is written next; it is "
                       "forgotten then, or when the guest agent has set it.", default=None, on="create update",
                       secret=True, option=False, compared=False)
    disk_key = Field(DISK_KEY, "What a cloud has its own disks encrypted with, those that are made next.", default=None,
                     on="create update", secret=True, option=False, compared=False)
    tpm_secret = Field(DISK_KEY, "What a cloud has the content of its TPM encrypted with. The host keeps it where "
                       "tpm_secret_security is host, else it has it until the guest has started.", default=None,
                       on="create update", secret=True, option=False, compared=False, kept=False)
    metadata = Field(MapOf(Text(1, 255), META), "Keys and values, 255 characters each at most.", default={},
                     sample={"role": "web"})
    tags = Field(ListOf(TAG, 50, unique=True), "Tags, at most 50 of 60 characters.", default=[], sample=["shop"])
    availability_zone = Field(Nullable(Text(1, 255)), "Availability zone that the guest is told.", default=None,
                              on=FIXED, sample="nova")
    config_drive = Field(Boolean(), "Whether the guest gets a config drive.", default=True, on=FIXED,
                         sample=True)
    power = Field(Choices(*WANTED, SHELVED), "Desired power state; V(shelved) is for servers of a cloud.",
                  default="running", option=False, sample="running")
    rescue = Field(
        Nullable(Record(
            image=Field(Nullable(REFERENCE), "Image to boot from; the server's own when omitted."),
            device=Field(Choices(*RESCUE_BUSES), "As what the guest gets it, beside all of its own disks; what the "
                         "image's property hw_rescue_device says when omitted."),
            bus=Field(Choices(*dict.fromkeys(bus for buses in RESCUE_BUSES.values() for bus in buses)),
                      "Behind what it gets it; what hw_rescue_bus says when omitted."))),
        "Boot from another image, with the root disk as second disk; null for none.", default=None, option=False,
        sample=None)
    restart_on_crash = Field(Boolean(), "Start the guest again when its QEMU dies.", default=False, sample=False)
    resume_on_host_boot = Field(Boolean(), "Start the guest again after the host has rebooted, if it ran.",
                                default=True, sample=True)
    shutdown_timeout = Field(Nullable(Integer(0, SHUTDOWN_MAX)), "Seconds that the guest has to power itself off, when "
                             "it is stopped, before its power is cut; 0 cuts it at once. Null (in a module V(none)) "
                             "for what the image says (C(os_shutdown_timeout)), else the agent's setting.",
                             default=None, sample=None)
    root_format = Field(Choices("auto", "qcow2", "raw", "copy", "lvm", "rbd"), "Root disk: V(qcow2) on the image, "
                        "a copy (V(raw), V(copy) as qcow2), V(lvm), V(rbd), V(auto).",
                        default="auto", on=FIXED, sample="qcow2")
    virt_type = Field(Choices("auto", "kvm", "qemu"), "kvm, qemu (emulated), or what the host can do.",
                      default="auto", on=FIXED, sample="qemu")
    machine = Field(Text(1, 64, "%s|%s" % (machines.AUTO, machines.NAME), "%s; or auto" % machines.RULE),
                    "Machine type: V(q35), V(pc), V(virt), a version of these, or V(auto). Its version stays.",
                    default=machines.AUTO, on=FIXED, sample="pc-q35-7.2")

    hardware = Field(HARDWARE, "What it has besides sizes, over what its flavor and image ask for.", default={},
                     sample={"watchdog": "reset"})

    scheduler_hints = Field(
        MapOf(Text(1, 255), Value()), "Hints to the scheduler of a cloud: V(group), a server group by name or uuid; "
        "V(different_host) and V(same_host), a server or a list of servers by name or uuid; or those of other filters "
        "as Nova has them.", on="create")
    security_groups = Field(ListOf(REFERENCE, 255, unique=True), "Security groups of all its NICs in a cloud, by name "
                            "or uuid. C(default) when omitted for a new server.", on="create update")
    access_ip_v4 = Field(OrNone(ADDRESS), "IPv4 address under which a cloud lists the server; V(none) for none.",
                         on="create update")
    access_ip_v6 = Field(OrNone(ADDRESS), "IPv6 address under which a cloud lists the server; V(none) for none.",
                         on="create update")
    hostname = Field(Text(1, 255, r"[a-zA-Z0-9._-]*", "must be a host name of letters, digits and . _ -"),
                     "Host name that a cloud tells the guest; made of the name when omitted.", on="create update")
    disk_config = Field(Choices("AUTO", "MANUAL"), "What a cloud says of the root disk's partition "
                        "(C(OS-DCF:diskConfig)).", on="create update")
    trusted_image_certificates = Field(
        ListOf(Text(1, 255), 50, unique=True), "Ids of the certificates of a cloud's key manager that the signature of "
        "the image is verified with.", on="create")

    placement = Field(Value(), "Dedicated CPUs, NUMA cells and pages of the host that it has, empty for none: cells, "
                               "for each of its own host, memory_mb, page (KiB) and pins (CPU of the host by virtual "
                               "CPU); and emulator (a CPU). Of a single host.", on=READ, sample={})
    pci_devices = Field(MapOf(Text(), Text()), "PCI devices of the host that it has: address to the alias that asked "
                                               "for it, or to the MAC address of the NIC that it is. Of a single host.",
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
    power_state = Field(Choices(*WANTED, CRASHED, MISSING), "What is seen.",
                        on=READ, sample="running")
    status_reason = Field(Text(0, 1024), "Why it is in this state, when the user did not ask for it.", on=READ,
                          sample="the guest shut itself down")
    guest_password = Field(Text(0, 1020), "The password that the guest has left, encrypted with its user's key.",
                           on=READ, sample="")
    fault = Field(Nullable(Value()), "{code, message, created} of the last failure, until one succeeds.", on=READ,
                  sample=None)
    host = Field(Text(0, 255), "The host it is on.", on=READ, sample="kvm1")
    addresses = Field(Value(), "Network name to a list of {addr, version, mac, source}.", on=READ,
                      sample={"lan": [{"addr": "192.168.100.57", "version": 4, "mac": "52:54:00:12:34:56",
                                       "source": "lease"}]})
    instance_name = Field(Text(0, 64), "Name of the libvirt domain.", on=READ, sample="magnetar-8c7d3c0e")
    console_log = Field(Text(0, 4096), "Path of the console log on the host.", on=READ,
                        sample="/var/lib/magnetar/servers/8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d/console.log")

    @classmethod
    def check_new(cls, given: Mapping[str, Any]) -> None:
        """An image that is forgotten is no blank disk: that is asked for by null."""
        super().check_new(given)
        if "image" not in given and not any(is_root_volume(one) for one in given.get("block_device_mapping", ())):
            raise InvalidField("image", "is required to make a server that boots from no volume; for a blank root disk "
                               "say null (in a module: none)")

    @classmethod
    def giving_way(cls, known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """An image gives way to a volume as root disk, and such a volume to an image."""
        found = super().giving_way(known, given)
        if "image" not in given and any(is_root_volume(one) for one in given.get("block_device_mapping", ())):
            found["image"] = None
        blocks = found.get("block_device_mapping", ())
        if given.get("image") is not None and any(is_root_volume(one) for one in blocks):
            found["block_device_mapping"] = [one for one in blocks if not is_root_volume(one)]
        return found
