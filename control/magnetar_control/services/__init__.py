# SPDX-License-Identifier: GPL-3.0-or-later
"""The interfaces of the identity, image, network, volume and key manager services that the control plane calls. They
correspond to Nova's use of Keystone, Glance, Neutron, Cinder and Barbican, so these services can implement them, too.
The folders of this package hold the embedded services."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from magnetar_control.documents import PortOfServer, PortRequest, ServerNic
from magnetar_core.document import Document, Documents
from magnetar_core.flows import Confirm, always_allowed

#: Roles that may change a project's resources: the default rules of Neutron and Cinder.
WRITERS = frozenset({"admin", "manager", "member", "service"})
#: Roles that may see images: the default rules of Glance.
READERS = frozenset({"admin", "manager", "member", "reader"})


@dataclass(frozen=True)
class Context:
    """The caller of a request, as identified by the token. ``project_id``: ``None`` unless the token's scope is a
    project. ``roles``: the roles on the project or the system. Roles on a domain are left out, because they give no
    permissions in this service, not even the role admin."""

    user_id: str
    project_id: str | None
    roles: frozenset[str] = frozenset()
    user_name: str = ""
    project_name: str = ""
    user_domain_id: str = "default"
    project_domain_id: str = "default"
    #: Seconds since the epoch at which the token expires.
    expires: float = 0.0
    #: The token itself, for requests to other services; never logged.
    token: str = field(default="", repr=False)
    #: The token's scope: project, domain, system, or none.
    scope: str = "project"
    #: Whether a service sent the request for this user: with its own token in addition to the user's.
    for_user: bool = False

    @property
    def is_admin(self) -> bool:
        return "admin" in self.roles

    @property
    def is_service(self) -> bool:
        """Return whether the caller is another service: it has the role service, or has sent its own token in addition
        to the user's token."""
        return self.for_user or "service" in self.roles

    @property
    def knows_hosts(self) -> bool:
        """Return whether the caller may see host names. As in Cinder, only administrators and services may."""
        return self.is_admin or self.is_service

    @property
    def is_reader(self) -> bool:
        """Return whether one of the caller's roles allows reading the project's resources."""
        return bool(READERS & self.roles)

    @property
    def is_writer(self) -> bool:
        """Return whether one of the caller's roles allows changing the project's resources."""
        return bool(WRITERS & self.roles)


@dataclass(frozen=True, kw_only=True)
class Page:
    """The filters, order and limits of a list request. *filters*: accepted values by field. *sort*: (field, whether
    descending). *limit*: the maximum number of resources; 0 for all. *marker*: the id of the last resource of the
    previous page."""

    filters: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    sort: Sequence[tuple[str, bool]] = ()
    limit: int = 0
    marker: str | None = None


class Identity(Protocol):
    """The interface of the identity service: the functions of Keystone that Nova uses."""

    def validate(self, token: str) -> Context | None:
        """Return the caller whom *token* identifies; ``None`` if it is unknown, expired or revoked, or if its user or
        project is disabled."""

    def project_exists(self, context: Context, project_id: str) -> bool:
        """Return whether the project exists. Used for access to flavors, and for quotas."""

    def projects_named(self, context: Context, name: str) -> Mapping[str, str]:
        """Return the projects called *name* that *context* may see, as {id of the project: id of its domain}."""


class Images(Protocol):
    """The interface of the image service: the functions of Glance that Nova uses. An image is {id, name, status
    (queued, saving, active, deactivated, killed, deleted), visibility, owner, size, virtual_size, disk_format,
    container_format, min_disk, min_ram, checksum (md5), os_hash_algo, os_hash_value (sha512), protected, tags,
    properties {name: text}, created_at, updated_at}."""

    def show(self, context: Context, id: str) -> Document | None:
        """Return the image; ``None`` if it does not exist or *context* may not see it."""

    def list(self, context: Context, name: str | None = None,
             properties: Mapping[str, str] | None = None) -> Documents:
        """Return all images that *context* may list, filtered by *name* and *properties*."""

    def update(self, context: Context, id: str, change: Callable[[Document], Document]) -> Document:
        """Change an image, and return it. *change*: takes the image, and returns new values for fields and properties;
        ``None`` removes a property."""

    def content(self, id: str) -> tuple[Iterator[bytes], int]:
        """Return the content of an image as (iterator of pieces, size in bytes)."""

    def show_with_location(self, context: Context, id: str) -> tuple[Document | None, str]:
        """Return (image as from ``show``, rbd URL from which hosts can read its content directly). The URL is "" if the
        image has none, or if it is not known. The URL may be sent only to hosts; API users must never see it."""

    def create(self, context: Context, name: str | None, *, share_with: str | None = None, **fields: Any) -> Document:
        """Create an image without content (status queued), and return it. *fields*: disk_format, container_format,
        min_disk, min_ram, visibility, properties, id. *share_with*: the id of a project that becomes a member of the
        image; the visibility is then shared."""

    def check_room(self, context: Context, more: int, size: int, image: str = "") -> None:
        """Raise the service's quota error if the project of *context* may not have *more* additional images and *size*
        additional bytes of content. *image*: the id of an image whose running upload is not counted. Free disk space,
        and the quotas of a remote service, cannot be checked in advance."""

    def upload(self, id: str, chunks: Iterable[bytes], *, size: int | None = None) -> Document:
        """Store *chunks* as the content of the image *id*, and return the image, whose status is then active. *size*:
        in bytes, if known. After an error the image stays queued. The content may be empty only if the image has the
        property block_device_mapping, which refers to volume snapshots."""

    def fail(self, id: str, why: str) -> None:
        """Mark the image *id* as failed, because its content will not be uploaded: set its status to killed, or delete
        the image. *why*: the reason, for users. Do nothing if the image already has its content."""

    def delete(self, context: Context, id: str) -> None:
        """Delete an image and its content. Do nothing if the image does not exist."""


class NetworkResources(Protocol):
    """The interface for the network resources of one type, such as subnets. Each method accesses only resources that
    the caller may see. ``create`` creates the resources of all *requests*, or none. With *dry*, a method returns the
    result without changing anything."""

    def list(self, context: Context, page: Page = Page()) -> Documents: ...
    def show(self, context: Context, id: str) -> Document: ...
    def create(self, context: Context, *requests: Document, dry: bool = False) -> Documents: ...
    def update(self, context: Context, id: str, values: Document, dry: bool = False) -> Document: ...
    def delete(self, context: Context, id: str, dry: bool = False) -> None: ...


class Networks(Protocol):
    """The interface of the network service: the functions of Neutron that Nova uses. *confirm*: a function that is
    called before each change; it raises an error if the caller may no longer make the change.

    A NIC is {port_id, network_id, network (name), mac, fixed_ips [{ip_address, subnet_id}], tag, created (whether the
    port is deleted with the server), on_host, told}. on_host: the NIC as the host's agent expects it, with the key
    network, bridge or port. told: the data for the guest, such as gateway and name servers; the key is missing if there
    are no such data. The "network engine" is OVN; there is none unless the settings enable OVN.
    """

    @property
    def resources(self) -> Mapping[str, NetworkResources]:
        """Return, by type, the interfaces of the resources that users can manage: networks, subnets, ports,
        security_groups, security_group_rules and others. With a network engine (OVN) also routers and floatingips."""

    def check_requested(self, context: Context, requested: Any, external: bool = False) -> list[PortRequest]:
        """Check the networks in a request for a server, and return one request for each NIC, in a uniform format.

        *requested*: "auto", "none", or Nova's list; an empty list requests the default network. *external*: allow
        external networks that are not shared with the caller. Optional keys of a returned request: ``dns_name``: the
        DNS name of the port. ``resources``: the bandwidth that the port needs on its host: {name from
        ``bandwidth.bandwidth_resource``: kbit/s}. ``devices``: the host devices that the port needs: {name from
        ``pci.network_devices_name``: number}. Raises ``InvalidRequest`` with the name of a missing resource, an error
        with status 409 for a port in use, and ``Forbidden`` (``ExternalNetworkAttachForbidden``).
        """

    def check_range(self, context: Context, cidr: str) -> None:
        """Raise ``InvalidField`` if *context* may not create a subnet with the range *cidr* on a network that agents
        create on hosts."""

    def allocate(self, context: Context, server_id: str, requested: Sequence[PortRequest],
                 groups: Sequence[str] = (), confirm: Confirm = always_allowed, hostname: str = "",
                 host: str = "") -> list[ServerNic]:
        """Create the ports that the server *server_id* still lacks, and return its NICs. *requested*: the result of
        ``check_requested``. Repeated calls return the same NICs.

        *groups*: the security groups of new ports. *hostname*: of the server, for the DNS names of its ports. *host*:
        the server's future host, if known; the ports are then prepared for this host already, and ``prepare`` only has
        to wait for the network engine. *confirm*: raises an error if the change is no longer allowed. Raises
        ``Conflict`` if a port now needs other resources than ``check_requested`` returned, ``Forbidden`` if the
        project's port quota is used up, and ``NotFound`` if a network or port was deleted meanwhile.
        """

    def room(self, context: Context, name: str,
             set_limits: Mapping[str, Mapping[str, int]] | None = None) -> int | None:
        """Return how many more resources of the type *name*, such as ``port``, the caller's project may have: negative
        if the quota is already exceeded, ``None`` without a limit. *set_limits*: the result of
        ``store.accounts.quotas.fetch_quota_limits``, if the caller already has it."""

    def reserve(self, server_id: str, port_ids: Sequence[str]) -> None:
        """Reserve existing ports for a server that will be built. Later, ``allocate`` uses these ports, or ``release``
        frees them. Either all are reserved or none; repeated calls change nothing. Raises ``NotFound``, and
        ``Conflict`` for a port in use."""

    def prepare(self, server_id: str, host: str, confirm: Confirm = always_allowed, *, running: bool = False) -> None:
        """Prepare the ports of a server that will start on *host* or move to *host*. *running*: whether the guest runs
        during the move. Wait until the network engine has configured the ports, and then a few seconds until the hosts
        have applied this. Later call ``bind`` to complete the move, or ``stay`` to cancel the move. *confirm*: raises
        an error if the change is no longer allowed. Raises ``Unavailable`` if the engine takes too long, and
        ``Conflict`` for a SmartNIC without an OVN chassis."""

    def stay(self, server_id: str, confirm: Confirm = always_allowed) -> None:
        """Undo ``prepare`` because the server will not move: its ports stay bound to their present host. Do not wait
        for the network engine. *confirm*: raises an error if the change is no longer allowed."""

    def bind(self, server_id: str, host: str, confirm: Confirm = always_allowed,
             devices: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        """Record that the server's ports are on *host* now. *devices*: for ports that are PCI devices of the host:
        {MAC: {pci_slot, pci_vendor_info, physical_network, …}} (``nic_devices`` in the agent's report on the server).
        *confirm*: raises an error if the change is no longer allowed."""

    def bind_prepared(self, server_id: str, host: str, confirm: Confirm = always_allowed,
                      devices: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        """Bind the ports of a server that starts on its first host, as ``bind`` does (with the same parameters), and
        then wait until the network engine and the hosts have configured the ports, as ``prepare`` does. If *host* was
        passed to ``allocate``, this needs only a single SQL statement."""

    def unbind(self, server_id: str, confirm: Confirm = always_allowed) -> None:
        """Record that the server is on no host. Its ports still belong to it. *confirm*: raises an error if the change
        is no longer allowed."""

    def release(self, server_id: str, port_id: str | None = None, confirm: Confirm = always_allowed, *,
                delete: bool = False) -> None:
        """Release all ports of the server, or only *port_id*. Delete the ports that were created for the server, and
        free the others; with *delete*, delete all. *confirm*: raises an error if the change is no longer allowed."""

    def change_address(self, server_id: str, *, network_id: str = "", address: str = "") -> None:
        """If *address* is set, remove this address from the server's port. Otherwise add an address of the network
        *network_id* to a port of the server. Raises ``NotFound``, ``InvalidRequest``, and ``Conflict`` if the network
        has no free address."""

    def on_host(self, network_id: str) -> Document | None:
        """Return the ``network`` resource {name, …} that the agent of a host must create for the network. Return
        ``None`` if agents do not create it: it does not exist, has no subnet, is an existing bridge of the hosts, or
        belongs to the network engine."""

    def ports(self, server_id: str) -> list[PortOfServer]:
        """Return the NICs of a server, each with the state of its port (``port_state``)."""

    def floating(self, server_ids: Sequence[str]) -> Mapping[str, Mapping[tuple[str, str], str]]:
        """Return the floating IPs of servers, as {id of the server: {(MAC, fixed address): floating address}}. Servers
        without floating IPs are left out."""

    def users(self, servers: Collection[str] | None = None) -> dict[str, str]:
        """Return {id of the port: id of the server} for the ports of all servers, or only of *servers* (uuids). A
        server in the result may no longer exist."""

    def user_ids(self, after: str, limit: int) -> list[str]:
        """Return the ids of servers that have ports, in the service's order: the first *limit* ids after *after*."""

    def differences(self) -> Sequence[tuple[str, str]]:
        """Return (object, description) for each difference between the configuration in the network engine and the
        service's database, and ("", description) for each fault of the engine. Empty without an engine."""

    def names(self) -> set[str]:
        """Return the names that the networks have on hosts (see ``on_host``). If a host has a network that is called
        ``mag-`` plus eight hex digits, and is not in this set, it is the leftover of a deleted network."""

    def groups(self, context: Context, names: Sequence[str]) -> Documents:
        """Return the security groups with these *names* (names or uuids), each once, as {name, id}. The group
        ``default`` has no id until it is created. Raises ``InvalidRequest`` for an unknown group."""

    def groups_of(self, server_id: str) -> Documents:
        """Return the security groups of a server's ports, each once, with their ``rules``, in the same format as from
        ``resources``."""

    #: Security groups that hosts filter with when no engine does:
    #: ``services.network.security.host_groups.HostSecurityGroups``.
    host_groups: Any

    def change_groups(self, project_id: str, server_id: str, name: str, *, add: bool) -> None:
        """Add the security group *name* (a name or uuid) of a project to all ports of a server; without *add*, remove
        it from all ports. Raises ``InvalidRequest`` if the group does not exist or a port cannot have groups, an error
        with status 409 if several groups have this name, and ``NotFound`` if the server has no port, or no port has the
        group to remove."""


class Volumes(Protocol):
    """The interface of the volume service: the functions of Cinder that Nova uses. *confirm*: a function that is called
    before each change; it raises an error if the caller may no longer make the change. A volume is {id, name, status,
    size (GiB), multiattach, bootable, host, attachments: [{id, server_id, device, attached_at}], volume_type,
    availability_zone, metadata, volume_image_metadata, project_id, …}."""

    #: The availability zone of all volumes.
    zone: str
    #: The stores for callers: ``services.volume.volumes.VolumeStore``, ``services.volume.snapshots.SnapshotStore``.
    volumes: Any
    snapshots: Any
    #: The volume types: ``services.volume.types.TypeStore``.
    types: Any
    #: The hosts of volumes: ``services.volume.homes.VolumeHomes``.
    homes: Any
    #: The open transfers: ``services.volume.transfers.TransferStore``.
    transfers: Any

    def host_pools(self) -> Sequence[Any]:
        """Return all storage pools of all hosts (``services.volume.pools.PoolOnHost``), sorted by host and name."""

    def pool_usage(self) -> Mapping[str, tuple[int, int]]:
        """Return (number of volumes, their total size in GiB) for each storage pool, by uuid of the pool. Pools without
        volumes are left out."""

    def act(self, context: Context, id: str, action: Callable[..., Document | None],
            **arguments: Any) -> Document | None:
        """Run a volume action after checking the permissions of *context*, and return its result. *action*: a function
        of ``services.volume.actions``. *arguments*: its keyword arguments."""

    def quotas(self, project_id: str) -> tuple[dict[str, int], dict[str, int]]:
        """Return (limits, usage) of a project, each by name: volumes, gigabytes, snapshots. The limit -1 means
        unlimited."""

    def messages(self, context: Context) -> list[tuple[str, Document]]:
        """Return (resource type, database row) for each volume, snapshot and backup of the caller's project whose last
        task failed. The reason is in the column ``fault``."""

    def show(self, context: Context, id: str) -> Document | None:
        """Return the volume; ``None`` if it does not exist or *context* may not see it."""

    def snapshot(self, context: Context, id: str) -> Document | None:
        """Return the volume snapshot {id, volume_id, size, status}; ``None`` if it does not exist or *context* may not
        see it."""

    def create_snapshot(self, context: Context, volume_id: str, **fields: Any) -> Document:
        """Create and return a snapshot; the volume may be in use. A worker copies the content later. *fields*: id,
        name, description, metadata. Repeated calls with the same id return the same snapshot."""

    def delete_snapshot(self, context: Context, id: str) -> None:
        """Delete a snapshot, even if its creation is not complete. Do nothing if the snapshot does not exist."""

    def create(self, context: Context, size: int, **fields: Any) -> Document:
        """Create and return a volume of *size* GiB. A worker creates its content later; call ``wait`` to wait until the
        content is complete. *fields*: name, image_id, snapshot_id, source_volume_id, volume_type, id, host,
        image_names_type (false: ignore the volume type that the image names)."""

    def upload_image(self, context: Context, id: str, name: str, **fields: Any) -> Document:
        """Create an image called *name* from the content of the volume *id*, owned by the caller. Return {volume,
        image}. *fields*: disk_format, container_format, visibility, protected."""

    def is_uploading(self, image_id: str) -> bool:
        """Return whether a queued or running task will upload the content of the image *image_id* from a volume."""

    def wait(self, id: str, limit: float) -> Document:
        """Wait until the volume is created or reimaged, and return the volume. Raises ``InvalidRequest`` if the
        operation failed or took longer than *limit* seconds."""

    def reimage(self, context: Context, id: str, image_id: str, request: str) -> None:
        """Queue the replacement of a volume's content with the content of the image *image_id*. The volume must be
        reserved or available. Call ``wait`` to wait for the end. *request*: an idempotency key; repeated calls with the
        same key replace the content once. Raises ``InvalidRequest`` if the image does not fit."""

    def reimaged(self, id: str, request: str) -> bool:
        """Return whether the ``reimage`` with the idempotency key *request* is complete."""

    def reserve(self, context: Context, id: str, server_id: str, confirm: Confirm = always_allowed,
                **fields: Any) -> Document:
        """Reserve a volume for a server, and return {id (of the attachment), volume}. *fields*: attachment_id, the id
        of the new attachment. A repeated call returns the same attachment. *confirm*: raises an error if the change is
        no longer allowed. Raises ``InvalidRequest``, or an error with status 409, if the volume is in use."""

    def attached(self, attachment_id: str, host: str, device: str | None, confirm: Confirm = always_allowed) -> None:
        """Record that the volume of the attachment is attached to its server on *host* as *device* (such as /dev/vdb).
        *host* is "" for a server without a host. *confirm*: raises an error if the change is no longer allowed."""

    def begin_detaching(self, attachment_id: str, confirm: Confirm = always_allowed) -> None:
        """Set the status of the attachment to detaching, because the server is about to release the volume. Do nothing
        if the attachment does not exist. *confirm*: raises an error if the change is no longer allowed."""

    def roll_detaching(self, attachment_id: str, confirm: Confirm = always_allowed) -> None:
        """Undo ``begin_detaching``, because the volume stays attached. Do nothing if the attachment is not detaching.
        *confirm*: raises an error if the change is no longer allowed."""

    def disconnected(self, attachment_id: str, confirm: Confirm = always_allowed) -> None:
        """Record that the server is on no host, so that its volume is reserved instead of attached. Do nothing if the
        attachment does not exist. *confirm*: raises an error if the change is no longer allowed."""

    def detached(self, attachment_id: str, confirm: Confirm = always_allowed) -> None:
        """Remove the attachment. Do nothing if the attachment does not exist. *confirm*: raises an error if the change
        is no longer allowed."""

    def users(self, servers: Collection[str] | None = None) -> dict[str, str]:
        """Return {id of the attachment: id of the server} for the volume attachments of all servers, or only of
        *servers* (uuids). A server in the result may no longer exist."""

    def user_ids(self, after: str, limit: int) -> list[str]:
        """Return the ids of servers that have volume attachments, in the service's order: the first *limit* ids after
        *after*."""

    def has_type(self, context: Context, name: str) -> bool:
        """Return whether a volume type of that name or uuid exists."""

    def where(self, id: str) -> str:
        """Return the name of the compute host that stores the volume *id*."""

    def stored_on(self, host: str) -> frozenset[str]:
        """Return the uuids of the volumes that are stored on *host* and that other hosts can use only through *host*.
        Volumes that other hosts can open directly (unencrypted, in a shared pool) are left out."""

    def serving_hosts(self, ids: Collection[str]) -> Mapping[str, str]:
        """Return {uuid of the volume: name of the host that stores it} for those of the volumes *ids* that other hosts
        can use only through this host. Left out are volumes that other hosts can open directly (unencrypted, in a
        shared pool), volumes without a host, and unknown volumes."""

    def delete(self, context: Context, id: str) -> None:
        """Delete a volume without attachments. Do nothing if the volume does not exist."""


class KeyManager(Protocol):
    """The interface of the key manager: the functions of Barbican that Nova and Cinder use. The key manager stores
    certificates of signed images, keys of encrypted volumes and disks, and secrets of TPMs."""

    def certificate(self, context: Context, id: str) -> bytes:
        """Return the X.509 certificate with this uuid, PEM or DER. Raises ``NotFound``."""

    def create_key(self, id: str, like: str | None = None, owner: str | None = None,
                   asks: Context | None = None) -> str:
        """Return the key with this uuid, as 64 hexadecimal digits. If it does not exist, create it: a random key, or a
        copy of the key *like* (a uuid). *owner*: the id of the user who will own a new key. *asks*: the caller;
        ``None`` for the control plane itself. Raises ``NotFound`` if the key *like* does not exist, and ``Forbidden``
        if the key belongs to another user than the caller."""

    def key(self, context: Context, id: str) -> str:
        """Return the key with this uuid, as 64 hexadecimal digits. Raises ``NotFound``, and ``Forbidden`` if the key
        belongs to another user than the caller."""

    def delete_key(self, id: str) -> None:
        """Delete a key; do nothing if it does not exist. Data that is encrypted with the key is then lost, unless
        somebody has a copy of the key."""


@dataclass(frozen=True)
class Services:
    identity: Identity
    image: Images
    network: Networks
    volume: Volumes
    key_manager: KeyManager
