# SPDX-License-Identifier: GPL-3.0-or-later
"""The JSON documents of the tables, as types.

A document is the dictionary that orjson decodes, and its type names the keys. It is not converted into an object,
because it goes on to the agent, to a notification or into another column. Measured for a flavor: orjson decodes it to a
dictionary in 1.9 us, msgspec to a Struct in 0.7 us, and a frozen dataclass takes 6.4 us. mypy refuses unknown keys, and
assignments to keys, since a row keeps its decoded documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

if TYPE_CHECKING:
    from typing_extensions import ReadOnly  # only in the types; typing has it from Python 3.13 on


class FlavorOfServer(TypedDict):
    """A copy of the flavor that a server got at its creation or last resize. ``ram`` and ``swap`` are in MiB, ``disk``
    and ``ephemeral`` in GiB.

    ``grown``: GiB by disk field (``disk``, ``ephemeral``) for disks that are larger than the flavor says, because a
    resize that enlarged them was reverted.
    """

    id: ReadOnly[str]
    name: ReadOnly[str]
    vcpus: ReadOnly[int]
    ram: ReadOnly[int]
    disk: ReadOnly[int]
    ephemeral: ReadOnly[int]
    swap: ReadOnly[int]
    extra_specs: ReadOnly[Mapping[str, str]]
    grown: ReadOnly[NotRequired[Mapping[str, int]]]


class ImageOfServer(TypedDict, total=False):
    """The fields of a server's image that are stored with the server, and the server's machine type (``machine``). If
    the server has no image, only ``machine`` may be present."""

    properties: ReadOnly[Mapping[str, Any]]
    min_disk: ReadOnly[int | None]
    min_ram: ReadOnly[int | None]
    disk_format: ReadOnly[str | None]
    container_format: ReadOnly[str | None]
    machine: ReadOnly[str]


class PortRequest(TypedDict):
    """A requested NIC of a server, after the network service has checked it: an existing port (``port_id``), or a new
    port on a network.

    ``make``: a random text from which the uuid of the new port is derived. ``by_engine``: whether the network engine
    (OVN) connects the port. ``resources``, ``devices``, ``network_affinity``: as in ``ServerNic``. ``mac``,
    ``addresses``: the MAC and all addresses of a NIC that exists already, because a libvirt domain of another program
    is taken over (adopted).
    """

    network_id: ReadOnly[str]
    port_id: ReadOnly[str | None]
    fixed_ip: ReadOnly[str | None]
    tag: ReadOnly[str | None]
    make: ReadOnly[str | None]
    by_engine: ReadOnly[NotRequired[bool]]
    network_affinity: ReadOnly[NotRequired[str]]
    resources: ReadOnly[NotRequired[Mapping[str, int]]]
    devices: ReadOnly[NotRequired[Mapping[str, int]]]
    dns_name: ReadOnly[NotRequired[str]]
    vnic_type: ReadOnly[NotRequired[str]]
    mac: ReadOnly[NotRequired[str]]
    addresses: ReadOnly[NotRequired[Sequence[str]]]


class AddressOfNic(TypedDict):
    """A fixed IP address of a port, and the id of its subnet."""

    subnet_id: ReadOnly[str]
    ip_address: ReadOnly[str]


class ServerNic(TypedDict):
    """A NIC of a server, as stored with the server. ``created``: whether the port was created for the server, and is
    deleted with it.

    ``on_host``: the NIC as the host's agent expects it. ``told``: the data about the NIC in the guest's metadata.
    ``resources``: the claimed bandwidth by resource class. ``devices``: the number of claimed PCI devices by name, a
    text made from the physical network (``pci.network_devices_name``). ``network_affinity``: the name of the physical
    network; the guest should run on NUMA cells near the network cards of this network.
    """

    port_id: ReadOnly[str]
    network_id: ReadOnly[str]
    network: ReadOnly[str]
    mac: ReadOnly[str]
    fixed_ips: ReadOnly[Sequence[AddressOfNic]]
    tag: ReadOnly[str | None]
    created: ReadOnly[bool]
    on_host: ReadOnly[Mapping[str, Any]]
    told: ReadOnly[NotRequired[Mapping[str, Any]]]
    network_affinity: ReadOnly[NotRequired[str]]
    resources: ReadOnly[NotRequired[Mapping[str, int]]]
    devices: ReadOnly[NotRequired[Mapping[str, int]]]


class PortOfServer(ServerNic):
    """A NIC of a server with the state of its port. ``port_state``: ACTIVE or DOWN. ``host``: the host to which the
    port is bound."""

    port_state: ReadOnly[str]
    host: ReadOnly[str]


def nic_of_port(port: PortOfServer) -> ServerNic:
    """Return *port* as a NIC in the form that is stored with a server, without the state of the port."""
    return cast("ServerNic", {name: value for name, value in port.items() if name not in ("port_state", "host")})


class BlockDevice(TypedDict):
    """A block device in the request for a server, as in Nova's block_device_mapping_v2. ``uuid``: the id of the volume,
    snapshot or image, according to ``source_type``. ``volume_size``: in GiB; in MiB for a swap disk."""

    source_type: ReadOnly[str]
    destination_type: ReadOnly[str]
    uuid: ReadOnly[Any]  # a text; null for a blank disk
    volume_size: ReadOnly[int | None]
    boot_index: ReadOnly[int | None]
    delete_on_termination: ReadOnly[bool]
    guest_format: ReadOnly[NotRequired[str | None]]
    device_name: ReadOnly[NotRequired[str | None]]
    disk_bus: ReadOnly[NotRequired[str | None]]
    tag: ReadOnly[NotRequired[str | None]]
    volume_type: ReadOnly[NotRequired[str | None]]


class NewVolume(TypedDict):
    """The volume that will replace a volume of a server when a running volume swap completes."""

    volume_id: ReadOnly[str]
    attachment_id: ReadOnly[str]


class VolumeOfServer(TypedDict):
    """A volume that is attached to a server or is being attached. ``device``: the device path in the guest, such as
    /dev/vdb; ``None`` until it is known. ``swap``: the volume that will replace this one when the running swap
    completes."""

    volume_id: ReadOnly[str]
    attachment_id: ReadOnly[str]
    bdm_uuid: ReadOnly[str]
    device: ReadOnly[str | None]
    tag: ReadOnly[str | None]
    boot_index: ReadOnly[int | None]
    delete_on_termination: ReadOnly[bool]
    disk_bus: ReadOnly[NotRequired[str | None]]
    swap: ReadOnly[NotRequired[NewVolume]]


def attachment_ids(attachment: VolumeOfServer) -> list[str]:
    """Return the id of the volume attachment and, if a swap of the volume is in progress, also the id of the new
    volume's attachment."""
    attachments: tuple[Mapping[str, Any], ...] = (attachment, attachment.get("swap") or {})
    return [id for id in (each.get("attachment_id") for each in attachments) if id]


class ShareOfServer(TypedDict):
    """A share (shared file system) that is attached to a server or is being attached. ``share``: the name of the share
    on hosts."""

    uuid: ReadOnly[str]
    share_id: ReadOnly[str]
    share: ReadOnly[str]
    tag: ReadOnly[str]
    status: ReadOnly[str]
    location: ReadOnly[str | None]


class ServerRequest(TypedDict, total=False):
    """The fields of a server's create request that are stored because later actions need them. ``off``: create the
    server powered off. ``past_filters``: the request named the host as ZONE:HOST, which bypasses the scheduler's
    filters. ``roles``: the roles of the user. ``tpm_secret_drawn``: the owner of the TPM secret that was created
    (``user`` or ``deployment``). ``adopted``: the server is a libvirt domain of another program: {domain, disks,
    adopted_at}."""

    networks: ReadOnly[Sequence[PortRequest]]
    blocks: ReadOnly[Sequence[BlockDevice]]
    public_key: ReadOnly[str | None]
    host: ReadOnly[str | None]
    hypervisor_hostname: ReadOnly[str | None]
    image: ReadOnly[str | None]
    roles: ReadOnly[Sequence[str]]
    personality: ReadOnly[Any]
    past_filters: ReadOnly[bool]
    off: ReadOnly[bool]
    tpm_secret_drawn: ReadOnly[str]
    disk_keys: ReadOnly[Sequence[str]]
    adopted: ReadOnly[Mapping[str, Any]]


#: Names of networks to the addresses there as Nova shows them: addr, version, OS-EXT-IPS:type, OS-EXT-IPS-MAC:mac_addr.
AddressesOfServer = Mapping[str, Sequence[Mapping[str, Any]]]


class FaultOfServer(TypedDict):
    """The last failure of a server, as in Nova's field ``fault``. ``code``: an HTTP status. ``details``: shown to
    administrators."""

    code: ReadOnly[int]
    created: ReadOnly[str]
    message: ReadOnly[str]
    details: ReadOnly[NotRequired[str | None]]


class SecurityGroupOfServer(TypedDict):
    """A security group that a server was created with."""

    name: ReadOnly[str]
    id: ReadOnly[NotRequired[str]]
