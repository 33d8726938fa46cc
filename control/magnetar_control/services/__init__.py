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
    """The caller of a request, as its token says. ``project_id`` is ``None`` unless the token is for a project.
    ``roles``: the roles on the project or on the system. Roles on a domain are left out: they give no rights in this
    service, not even to the domain's admin."""

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
        """Return whether the caller is a service: it has the role service, or sent its own token in addition to a
        user's."""
        return self.for_user or "service" in self.roles

    @property
    def knows_hosts(self) -> bool:
        """Return whether the caller may see the names of hosts: administrators and services, as in Cinder."""
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
    """The filters, order and limits of a list. *filters*: accepted values by field. *sort*: (field, whether
    descending). *limit*: the maximum number of resources (0: all). *marker*: the id of the last resource of the
    previous page."""

    filters: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    sort: Sequence[tuple[str, bool]] = ()
    limit: int = 0
    marker: str | None = None


class Identity(Protocol):
    """The identity service: Keystone, as Nova uses it."""

    def validate(self, token: str) -> Context | None:
        """Return the caller whom *token* identifies; ``None`` if it is unknown, expired or revoked, or if its user or
        project is disabled."""

    def project_exists(self, context: Context, project_id: str) -> bool:
        """Return whether the project exists. Used for access to flavors, and for quotas."""

    def projects_named(self, context: Context, name: str) -> Mapping[str, str]:
        """Return the projects of this name that *context* may see, as {id: id of its domain}."""


class Images(Protocol):
    """The image service: Glance, as Nova uses it. An image is {id, name, status (queued, saving, active, deactivated,
    killed, deleted), visibility, owner, size, virtual_size, disk_format, container_format, min_disk, min_ram, checksum
    (md5), os_hash_algo, os_hash_value (sha512), protected, tags, properties {name: text}, created_at, updated_at}."""

    def show(self, context: Context, id: str) -> Document | None:
        """Return the image; ``None`` if there is none that *context* may see."""

    def list(self, context: Context, name: str | None = None,
             properties: Mapping[str, str] | None = None) -> Documents:
        """Return all images that *context* may list, filtered by *name* and *properties*."""

    def update(self, context: Context, id: str, change: Callable[[Document], Document]) -> Document:
        """Change an image, and return it. *change* gets the image, and returns the new values of its fields and
        properties; ``None`` removes a property."""

    def content(self, id: str) -> tuple[Iterator[bytes], int]:
        """Return the content of an image as (iterator of pieces, size in bytes)."""

    def show_with_location(self, context: Context, id: str) -> tuple[Document | None, str]:
        """Return the image as ``show`` does, and the URL of scheme rbd from which hosts can read its content; "" when
        there is none or it is unknown. Only hosts may learn this URL: API users never see it."""

    def create(self, context: Context, name: str | None, *, share_with: str | None = None, **fields: Any) -> Document:
        """Create a queued image, and return it. *fields*: disk_format, container_format, min_disk, min_ram, visibility,
        properties, id. *share_with*: a project that becomes a member of the image; the visibility is then shared."""

    def check_room(self, context: Context, more: int, size: int, image: str = "") -> None:
        """Raise the service's quota error unless the project of *context* may have *more* additional images and *size*
        additional bytes of content. The claim of a running upload to *image* is left out of the usage. Disk space, and
        quotas of a remote service, cannot be checked in advance."""

    def upload(self, id: str, chunks: Iterable[bytes], *, size: int | None = None) -> Document:
        """Store *chunks* as the content of an image, and return the image, which is then active. *size*: in bytes, if
        known. After an error the image stays queued. Only an image with the property block_device_mapping may be empty:
        it refers to snapshots of volumes."""

    def fail(self, id: str, why: str) -> None:
        """Mark the image *id* as failed, because its content will not arrive: set its status to killed, or delete it.
        *why*: the reason, for users. Does nothing when the image has its content."""

    def delete(self, context: Context, id: str) -> None:
        """Remove an image and its content; do nothing when there is no such image."""


class NetworkResources(Protocol):
    """The store of the network resources of one kind, limited to those that the caller may see. ``create`` creates all
    *requests* or none. *dry*: return the answer without changing anything."""

    def list(self, context: Context, page: Page = Page()) -> Documents: ...
    def show(self, context: Context, id: str) -> Document: ...
    def create(self, context: Context, *requests: Document, dry: bool = False) -> Documents: ...
    def update(self, context: Context, id: str, values: Document, dry: bool = False) -> Document: ...
    def delete(self, context: Context, id: str, dry: bool = False) -> None: ...


class Networks(Protocol):
    """The network service: Neutron, as Nova uses it. *confirm*: a function that is called before each change. It raises
    an error if the caller is no longer allowed to make the change.

    A NIC has the keys port_id, network_id, network (name), mac, fixed_ips ([{ip_address, subnet_id}]), tag, and created
    (whether the port is deleted with the server). on_host: the NIC in the form of the agent's server, with the key
    network, bridge or port. told: the data that the guest gets, such as gateway and name servers; missing if there are
    none.
    """

    @property
    def resources(self) -> Mapping[str, NetworkResources]:
        """Return the stores of the users' resources: networks, subnets, ports, security_groups, security_group_rules
        and others; with an engine also routers and floatingips."""

    def check_requested(self, context: Context, requested: Any, external: bool = False) -> list[PortRequest]:
        """Check the networks that a server requests, and return one request for each NIC, in normal form.

        *requested*: "auto", "none", or Nova's list; an empty list is the default network. *external*: allow external
        networks that are not shared with the caller. Keys of a returned request are, if they apply: ``dns_name``: the
        name of the port. ``resources``: the bandwidth that the port needs from its host, by
        ``bandwidth.bandwidth_resource``. ``devices``: the number of host devices that it needs, by
        ``pci.network_devices_name``. Raises ``InvalidRequest`` that names a missing resource, 409 for a port in use,
        ``Forbidden`` (``ExternalNetworkAttachForbidden``).
        """

    def check_range(self, context: Context, cidr: str) -> None:
        """Raise ``InvalidField`` when *context* may not create a subnet *cidr* on a network that agents create on
        hosts."""

    def allocate(self, context: Context, server_id: str, requested: Sequence[PortRequest],
                 groups: Sequence[str] = (), confirm: Confirm = always_allowed, hostname: str = "",
                 host: str = "") -> list[ServerNic]:
        """Create the missing ports of a server, and return its NICs. *requested*: the result of ``check_requested``.
        Repeated calls return the same NICs.

        *groups*: the security groups of new ports. *confirm*: raises if the change is no longer allowed. *hostname*: of
        the server, for the DNS names of its ports. *host*: the host that the server will be on, if known, so that
        ``prepare`` only waits. Raises ``Conflict`` when a port now needs other resources than ``check_requested``
        returned, ``Forbidden`` when the project's quota of ports is used up, ``NotFound`` when a network or port was
        removed meanwhile.
        """

    def room(self, context: Context, name: str,
             set_limits: Mapping[str, Mapping[str, int]] | None = None) -> int | None:
        """Return how many more of a resource, such as ``port``, the caller's project may have; negative when the quota
        is exceeded already, ``None`` without a limit. *set_limits*: the limits that are set, by holder and resource, if
        the caller has them already (``store.accounts.quotas.fetch_quota_limits``)."""

    def reserve(self, server_id: str, port_ids: Sequence[str]) -> None:
        """Reserve existing ports for a server that will be built: ``allocate`` uses them, ``release`` frees them. All
        or none are reserved; repeated calls change nothing. Raises ``NotFound``, and ``Conflict`` for a port in use."""

    def prepare(self, server_id: str, host: str, confirm: Confirm = always_allowed, *, running: bool = False) -> None:
        """Prepare the ports of a server to start on *host* or to move to it; *running*: its guest runs during the move.
        ``bind`` completes the move; ``stay`` cancels it. Waits until the engine has the ports, then a few seconds until
        hosts have applied them. *confirm*: raises if the change is no longer allowed. Raises ``Unavailable`` when the
        engine takes too long, ``Conflict`` for a SmartNIC without a chassis."""

    def stay(self, server_id: str, confirm: Confirm = always_allowed) -> None:
        """Undo ``prepare`` for a server that will not move to the prepared host: its ports stay bound to their present
        host. Does not wait for the engine. *confirm*: raises if the change is no longer allowed."""

    def bind(self, server_id: str, host: str, confirm: Confirm = always_allowed,
             devices: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        """Record that the server's ports are on *host* now. *devices*: for the ports that are devices of the host, by
        MAC: {pci_slot, pci_vendor_info, physical_network, …} (``nic_devices`` of the agent's server). *confirm*: raises
        if the change is no longer allowed."""

    def bind_prepared(self, server_id: str, host: str, confirm: Confirm = always_allowed,
                      devices: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        """Call ``bind`` with these arguments, then wait for engine and hosts as ``prepare`` does, for a server that
        starts on its first host. This takes a single SQL statement if *host* was known to ``allocate``."""

    def unbind(self, server_id: str, confirm: Confirm = always_allowed) -> None:
        """Record that the server is on no host. The server keeps its ports. *confirm*: raises if the change is no
        longer allowed."""

    def release(self, server_id: str, port_id: str | None = None, confirm: Confirm = always_allowed, *,
                delete: bool = False) -> None:
        """Release all ports of the server, or only *port_id*: delete the ports that were created with the server, and
        free the others. *delete*: delete the others too. *confirm*: raises if the change is no longer allowed."""

    def change_address(self, server_id: str, *, network_id: str = "", address: str = "") -> None:
        """Add an address of the network *network_id* to a port of the server; or, if *address* is set, remove *address*
        from the server's port. Raises ``NotFound``, ``InvalidRequest``, and ``Conflict`` when the network has no free
        address."""

    def on_host(self, network_id: str) -> Document | None:
        """Return the ``network`` resource {name, …} that a host's agent must have for the network; ``None`` if agents
        do not create the network (a bridge of the hosts, or a network of an engine)."""

    def ports(self, server_id: str) -> list[PortOfServer]:
        """Return the NICs of a server, each with the state of its port (``port_state``)."""

    def floating(self, server_ids: Sequence[str]) -> Mapping[str, Mapping[tuple[str, str], str]]:
        """Return the floating IPs of each server, as {(MAC, fixed address): floating address}. Servers without any are
        left out."""

    def users(self, servers: Collection[str] | None = None) -> dict[str, str]:
        """Return {id of the port: id of the server} for all servers, or for *servers*. A server in the result may no
        longer exist."""

    def user_ids(self, after: str, limit: int) -> list[str]:
        """Return ids of servers with ports: the first *limit* after the id *after*, in the service's order."""

    def differences(self) -> Sequence[tuple[str, str]]:
        """Return the differences between the engine's content and the service's rows: (subject, description)."""

    def names(self) -> set[str]:
        """Return the names that networks have on hosts (see ``on_host``). Any other network on a host that is called
        ``mag-`` and eight hex digits is left over from a deleted network."""

    def groups(self, context: Context, names: Sequence[str]) -> Documents:
        """Return the security groups with these names or uuids, each once, as {name, id}. The group ``default`` may
        have no id yet. Raises ``InvalidRequest``."""

    def groups_of(self, server_id: str) -> Documents:
        """Return the security groups of a server's ports, each once, as ``resources`` shows them: with ``rules``."""

    #: Security groups that hosts filter with when no engine does:
    #: ``services.network.security.host_groups.HostSecurityGroups``.
    host_groups: Any

    def change_groups(self, project_id: str, server_id: str, name: str, *, add: bool) -> None:
        """Add the security group *name* (or uuid) of a project to all ports of a server or, without *add*, remove the
        group. Raises ``InvalidRequest`` if the group does not exist or a port cannot have groups, 409 if several groups
        have the name, ``NotFound`` if the server has no port, or no port has the group to remove."""


class Volumes(Protocol):
    """The volume service: Cinder, as Nova uses it. *confirm*: a function that is called before each change. It raises
    an error if the caller is no longer allowed to make the change. A volume is {id, name, status, size (GiB),
    multiattach, bootable, host, attachments: [{id, server_id, device, attached_at}], volume_type, availability_zone,
    metadata, volume_image_metadata, project_id, …}."""

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
        """Return all pools of all hosts (``services.volume.pools.PoolOnHost``), sorted by host and name."""

    def pool_usage(self) -> Mapping[str, tuple[int, int]]:
        """Return the number and the total GiB of the volumes of each pool, by the pool's uuid. Empty pools are
        absent."""

    def act(self, context: Context, id: str, action: Callable[..., Document | None],
            **arguments: Any) -> Document | None:
        """Run *action*, a function of ``services.volume.actions``, on a volume, after checking the caller's rights.
        Return the result of the action."""

    def quotas(self, project_id: str) -> tuple[dict[str, int], dict[str, int]]:
        """Return the limits (-1: none) and the usage of a project: volumes, gigabytes, snapshots."""

    def messages(self, context: Context) -> list[tuple[str, Document]]:
        """Return (kind, row) for each volume and snapshot of the caller's project with a ``fault``: the reason why its
        last task failed."""

    def show(self, context: Context, id: str) -> Document | None:
        """Return the volume; ``None`` if there is none that *context* may see."""

    def snapshot(self, context: Context, id: str) -> Document | None:
        """Return the volume snapshot {id, volume_id, size, status}; ``None`` if *context* sees none."""

    def create_snapshot(self, context: Context, volume_id: str, **fields: Any) -> Document:
        """Create and return a snapshot, also of a volume in use. A worker copies the content later. *fields*: id, name,
        description, metadata. Repeated calls return the same snapshot."""

    def delete_snapshot(self, context: Context, id: str) -> None:
        """Remove a snapshot, even an unfinished one; do nothing when there is no such snapshot."""

    def create(self, context: Context, size: int, **fields: Any) -> Document:
        """Create and return a volume of *size* GiB. A worker creates its content later, see ``wait``. *fields*: name,
        image_id, snapshot_id, source_volume_id, volume_type, id, host, image_names_type (false: ignore the type that an
        image names)."""

    def upload_image(self, context: Context, id: str, name: str, **fields: Any) -> Document:
        """Create an image called *name* from the volume *id*, for the caller; return {volume, image}. *fields*:
        disk_format, container_format, visibility, protected."""

    def is_uploading(self, image_id: str) -> bool:
        """Return whether a queued or running task will upload the content of the image *image_id* from a volume."""

    def wait(self, id: str, limit: float) -> Document:
        """Wait until the volume is created or reimaged, and return the volume. Raises ``InvalidRequest`` when that
        failed or took longer than *limit* seconds."""

    def reimage(self, context: Context, id: str, image_id: str, request: str) -> None:
        """Queue the replacement of the content of a reserved or available volume with the content of the image
        *image_id*. The work is done when ``wait`` returns. Repeated calls with the same *request* replace the content
        once. Raises ``InvalidRequest`` when the image does not fit."""

    def reimaged(self, id: str, request: str) -> bool:
        """Return whether the ``reimage`` of this *request* is done."""

    def reserve(self, context: Context, id: str, server_id: str, confirm: Confirm = always_allowed,
                **fields: Any) -> Document:
        """Reserve a volume for a server, and return {id (of the attachment), volume}. *fields*: attachment_id. A
        repeated call returns the same attachment. *confirm*: raises if the change is no longer allowed. Raises
        ``InvalidRequest`` or 409 when the volume is in use."""

    def attached(self, attachment_id: str, host: str, device: str | None, confirm: Confirm = always_allowed) -> None:
        """Record that the volume of the attachment is attached to its server on *host*, as *device*. *host* is "" for a
        server without a host. *confirm*: raises if the change is no longer allowed."""

    def begin_detaching(self, attachment_id: str, confirm: Confirm = always_allowed) -> None:
        """Show the attachment as detaching: the server will release the volume. Do nothing when there is no such
        attachment. *confirm*: raises if the change is no longer allowed."""

    def roll_detaching(self, attachment_id: str, confirm: Confirm = always_allowed) -> None:
        """Show the attachment as it was before ``begin_detaching``: the server keeps the volume. Do nothing when the
        attachment is not detaching. *confirm*: raises if the change is no longer allowed."""

    def disconnected(self, attachment_id: str, confirm: Confirm = always_allowed) -> None:
        """Record that the server keeps the volume, but is on no host: the attachment is reserved again. Do nothing when
        there is no such attachment. *confirm*: raises if the change is no longer allowed."""

    def detached(self, attachment_id: str, confirm: Confirm = always_allowed) -> None:
        """Remove the attachment; do nothing when there is no such attachment. *confirm*: raises if the change is no
        longer allowed."""

    def users(self, servers: Collection[str] | None = None) -> dict[str, str]:
        """Return {id of the attachment: id of the server} for all servers, or for *servers*. A server in the result may
        no longer exist."""

    def user_ids(self, after: str, limit: int) -> list[str]:
        """Return ids of servers with attachments: the first *limit* after the id *after*, in the service's order."""

    def has_type(self, context: Context, name: str) -> bool:
        """Return whether a volume type of that name or uuid exists."""

    def where(self, id: str) -> str:
        """Return the name of the compute host that stores the volume."""

    def stored_on(self, host: str) -> frozenset[str]:
        """Return the uuids of the volumes that other hosts can use only through this compute host: all volumes that it
        has, except volumes that other hosts open directly (unencrypted volumes in shared pools)."""

    def serving_hosts(self, ids: Collection[str]) -> Mapping[str, str]:
        """Return {uuid of the volume: name of its host} for volumes that other hosts can use only through the volume's
        host. Absent are volumes that other hosts open directly (unencrypted, in shared pools), volumes without a host,
        and unknown ones."""

    def delete(self, context: Context, id: str) -> None:
        """Remove a volume without attachments; do nothing when there is no such volume."""


class KeyManager(Protocol):
    """The key manager: Barbican, as Nova and Cinder use it. It holds the certificates of signed images, the keys of
    encrypted volumes and disks, and the secrets of TPMs."""

    def certificate(self, context: Context, id: str) -> bytes:
        """Return the X.509 certificate with this uuid, PEM or DER. Raises ``NotFound``."""

    def create_key(self, id: str, like: str | None = None, owner: str | None = None,
                   asks: Context | None = None) -> str:
        """Return the key with this uuid, as 64 hexadecimal digits. If there is none, create it: random, or equal to the
        key *like*. *owner*: the user who owns a new key. *asks*: the caller; ``None``: the control plane. Raises
        ``NotFound`` when there is no key *like*, and ``Forbidden`` when the key belongs to another user than the
        caller."""

    def key(self, context: Context, id: str) -> str:
        """Return the key with this uuid, for the caller. Raises ``NotFound``, and ``Forbidden`` when it is another
        user's."""

    def delete_key(self, id: str) -> None:
        """Delete a key, if there is one. Data that it encrypts can then be read only with a copy of the key."""


@dataclass(frozen=True)
class Services:
    identity: Identity
    image: Images
    network: Networks
    volume: Volumes
    key_manager: KeyManager
