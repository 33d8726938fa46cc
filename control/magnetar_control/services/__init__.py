# SPDX-License-Identifier: GPL-3.0-or-later
"""What the control plane asks of identity, image, network and volume services, and of a key manager. The embedded ones
are in the folders here; the interfaces say what Nova asks of Keystone, Glance, Neutron, Cinder and Barbican, so that
these fit too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from magnetar_core.flows import Sure, always

Document = dict[str, Any]
Documents = list[Document]
#: Roles that may change what a project has: the default rules of Neutron and Cinder.
WRITERS = frozenset({"admin", "manager", "member", "service"})
#: Those that may see images: the default rules of Glance.
READERS = frozenset({"admin", "manager", "member", "reader"})


@dataclass(frozen=True)
class Context:
    """Who asks: what a token says. ``project_id`` is ``None`` for an unscoped token. Roles are those on a project, or
    on the system: those on a domain say nothing about clouds and projects, so a domain's admin has none here."""

    user_id: str
    project_id: str | None
    roles: frozenset[str] = frozenset()
    user_name: str = ""
    project_name: str = ""
    user_domain_id: str = "default"
    project_domain_id: str = "default"
    #: Seconds since the epoch at which the token ends.
    expires: float = 0.0
    #: The token itself, to ask other services with; never logged.
    token: str = field(default="", repr=False)
    #: What the token is for: project, domain, system, or nothing.
    scope: str = "project"
    #: Whether a service asks for this user: the request brought its token too.
    for_user: bool = False

    @property
    def is_admin(self) -> bool:
        return "admin" in self.roles

    @property
    def is_service(self) -> bool:
        """Whether a service asks: by its role, or for a user, with its own token beside the user's."""
        return self.for_user or "service" in self.roles

    @property
    def knows_hosts(self) -> bool:
        """Whether hosts are named to them: to administrators, and to services, as Cinder does."""
        return self.is_admin or self.is_service

    @property
    def is_reader(self) -> bool:
        """Whether one of the roles may see what the project sees."""
        return bool(READERS & self.roles)

    @property
    def is_writer(self) -> bool:
        """Whether one of the roles may change what the project has."""
        return bool(WRITERS & self.roles)


@dataclass(frozen=True, kw_only=True)
class Page:
    """Which resources a list has, and in which order: *filters* by field, of whose values any may be; *sort* by fields,
    with whether downwards; at most *limit* (0: all), and only those after the one with the id *marker*."""

    filters: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    sort: Sequence[tuple[str, bool]] = ()
    limit: int = 0
    marker: str | None = None


class Identity(Protocol):
    """Keystone, as Nova uses it."""

    def validate(self, token: str) -> Context | None:
        """Who bears *token*; ``None`` when it is unknown, expired, revoked or of a disabled user or project."""

    def project_exists(self, context: Context, project_id: str) -> bool:
        """Whether there is such a project (flavor access, quotas)."""

    def projects_named(self, context: Context, name: str) -> Mapping[str, str]:
        """Return the projects of this name that *context* may see: id to the id of its domain."""


class Images(Protocol):
    """Glance. An image is {id, name, status (queued, saving, active, deactivated, killed, deleted), visibility, owner,
    size, virtual_size, disk_format, container_format, min_disk, min_ram, checksum (md5), os_hash_algo, os_hash_value
    (sha512), protected, tags, properties {name: text}, created_at, updated_at}."""

    def show(self, context: Context, id: str) -> Document | None:
        """The image, if *context* may see it."""

    def list(self, context: Context, name: str | None = None,
             properties: Mapping[str, str] | None = None) -> Documents:
        """All images that a list of *context* shows; those of a *name*, and with these *properties*, where given."""

    def update(self, context: Context, id: str, change: Callable[[Document], Document]) -> Document:
        """Change an image: *change* gives the new values of its fields and properties, ``None`` for a property that
        goes."""

    def content(self, id: str) -> tuple[Iterator[bytes], int]:
        """The content piece by piece, and its size in bytes."""

    def show_with_location(self, context: Context, id: str) -> tuple[Document | None, str]:
        """As ``show``, and where hosts might have the content from besides: a URL of scheme rbd; "" where it is nowhere
        else, or nobody says. That is for hosts alone: callers never see it."""

    def create(self, context: Context, name: str | None, *, share_with: str | None = None, **fields: Any) -> Document:
        """A queued image; *fields*: disk_format, container_format, min_disk, min_ram, visibility, properties, id.
        *share_with*: a project that becomes its member; its visibility is shared."""

    def check_room(self, context: Context, more: int, size: int, image: str = "") -> None:
        """Raises what would be refused of so many *more* images of the project, with *size* bytes of content, beside
        those that come to the *image*. Of the disk, and of a service elsewhere, nobody knows beforehand."""

    def upload(self, id: str, chunks: Iterable[bytes], *, size: int | None = None) -> Document:
        """Take the content in, of *size* bytes where that is known: the image becomes active. Anything wrong leaves it
        queued. Only an image with the property block_device_mapping may be empty: it stands for snapshots of
        volumes."""

    def fail(self, id: str, why: str) -> None:
        """Its content will not come: the image becomes killed, or goes. Nothing when it has its content."""

    def delete(self, context: Context, id: str) -> None:
        """Remove image and content; nothing when there is none."""


class NetworkResources(Protocol):
    """The resources of one kind, for callers, who get those that they may see. *create* makes all or none. *dry*: what
    would be answered; nothing changes."""

    def list(self, context: Context, page: Page = Page()) -> Documents: ...
    def show(self, context: Context, id: str) -> Document: ...
    def create(self, context: Context, *wanted: Document, dry: bool = False) -> Documents: ...
    def update(self, context: Context, id: str, values: Document, dry: bool = False) -> Document: ...
    def delete(self, context: Context, id: str, dry: bool = False) -> None: ...


class Networks(Protocol):
    """Neutron. A NIC is {port_id, network_id, network (name), mac, fixed_ips: [{ip_address, subnet_id}], tag, created
    (whether the port goes with the server), on_host: what the agent's server takes: {network}, {bridge} or
    {port}, and told: what its guest is told of the subnet, where there is something}."""

    @property
    def resources(self) -> Mapping[str, NetworkResources]:
        """What users have: networks, subnets, ports, security_groups, security_group_rules; where there is an engine
        also routers and floatingips."""

    def check_requested(self, context: Context, requested: Any, external: bool = False) -> list[Document]:
        """The networks that a server asks for, in normal form: [{network_id, port_id, fixed_ip, tag}], of a port with a
        name also dns_name, and of one that asks for bandwidth of its host resources, amounts by
        ``bandwidth.resource``, and of one that is a device of a host devices, how many by ``pci.of_network``.
        *requested*: "auto", "none", or Nova's list; an empty list is the default network.
        *external*: also external networks that are not shared with the caller. Raises ``InvalidRequest`` naming what
        does not exist, 409 for a port in use, ``Forbidden`` (``ExternalNetworkAttachForbidden``)."""

    def check_range(self, context: Context, cidr: str) -> None:
        """Raises ``InvalidField`` where *context* may not have *cidr* on a network that the agents make."""

    def allocate(self, context: Context, server_id: str, requested: Sequence[Document],
                 groups: Sequence[str] = (), sure: Sure = always, hostname: str = "",
                 host: str = "") -> list[Document]:
        """NICs for the answer of ``check_requested``, with the same resources; ports that are not there are made, with
        the security groups *groups*. *hostname*: of the server, which its ports are called in DNS. *host*: where it is
        to be, if that is known, so that ``prepare`` only waits. Asked twice, the same NICs. Raises ``Conflict`` where a
        port asks for other resources by now, ``Forbidden`` where the project may not have so many ports, ``NotFound``
        where a network or port went meanwhile."""

    def room(self, context: Context, name: str,
             given: Mapping[str, Mapping[str, int]] | None = None) -> int | None:
        """How many more of a resource, such as ``port``, the caller's project may have, below 0 where it has too many
        already; ``None``: as many as it likes. *given*: the limits that are set, by holder and
        resource (``store.accounts.quotas.found``), where the caller has asked for them."""

    def reserve(self, server_id: str, port_ids: Sequence[str]) -> None:
        """Reserve existing ports for a server that will be built: ``allocate`` takes them, ``release`` frees them. All
        or none; asked twice, the same. Raises ``NotFound``, and ``Conflict`` for a port in use."""

    def prepare(self, server_id: str, host: str, sure: Sure = always, *, running: bool = False) -> None:
        """The server is about to start on *host*, or to come there from another, *running* or not; ``bind`` says that
        it is there, or back. Waits until the engine knows, and a while for the hosts; raises ``Unavailable`` where that
        takes too long."""

    def stay(self, server_id: str, sure: Sure = always) -> None:
        """The server does not come to the host of ``prepare``: its ports are where they were, which nobody is asked
        about."""

    def bind(self, server_id: str, host: str, sure: Sure = always,
             devices: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        """The server's ports are on *host* now. *devices*: {pci_slot, pci_vendor_info, physical_network} and more
        (``nic_devices`` of the agent's server) of those that are devices there, by MAC."""

    def bind_prepared(self, server_id: str, host: str, sure: Sure = always,
                      devices: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        """``bind``, then ``prepare`` to wait for engine and hosts, of a server that starts where it was made. Where
        the engine has been told so by ``allocate``, one statement does it."""

    def unbind(self, server_id: str, sure: Sure = always) -> None:
        """The server keeps its ports, and is on no host."""

    def release(self, server_id: str, port_id: str | None = None, sure: Sure = always, *, delete: bool = False) -> None:
        """The server has no port any more (or not this one): those made with it are deleted, others are free again.
        *delete*: others are deleted too."""

    def change_address(self, server_id: str, *, network_id: str = "", address: str = "") -> None:
        """Give a port of the server one more address of the network, or take *address* away. Raises ``NotFound``,
        ``InvalidRequest``, ``Conflict`` when no address is left."""

    def on_host(self, network_id: str) -> Document | None:
        """The ``network`` resource that a host's agent must have for it, {name, …}; ``None`` for a host's bridge."""

    def ports(self, server_id: str) -> list[Document]:
        """The NICs of a server, each with port_state besides."""

    def floating(self, server_ids: Sequence[str]) -> Mapping[str, Mapping[tuple[str, str], str]]:
        """Server to its floating IPs: (MAC, fixed address) to floating address; servers without are left out."""

    def users(self) -> dict[str, str]:
        """The ports that servers have: port to server, whether there is such a server or not."""

    def differences(self) -> Sequence[tuple[str, str]]:
        """What the engine of networks has otherwise than the service says: (what it is of, in words)."""

    def names(self) -> set[str]:
        """Names on hosts of all networks that ``on_host`` gives; another there, ``mag-`` with eight hex digits, is left
        of a deleted one."""

    def groups(self, context: Context, names: Sequence[str]) -> Documents:
        """The security groups of these names or uuids, each once: {name, id}; ``default`` may have no id yet. Raises
        ``InvalidRequest``."""

    def groups_of(self, server_id: str) -> Documents:
        """The security groups of a server's ports, each once, as ``resources`` show them: with ``rules``."""

    #: Security groups that hosts filter by, where no engine does: ``services.network.security.host_groups.HostGroups``.
    host_groups: Any

    def change_groups(self, project_id: str, server_id: str, name: str, *, add: bool) -> None:
        """Give all ports of a server of a project its security group *name* (or uuid) besides theirs, or take it off
        them. Raises ``InvalidRequest`` where there is no such group, or a port cannot have any, 409 where several have
        the name, ``NotFound`` where there is no port, or none that has the group to be taken off."""


class Volumes(Protocol):
    """Cinder. A volume is {id, name, status, size (GiB), multiattach, bootable, host, attachments: [{id, server_id,
    device, attached_at}], volume_type, availability_zone, metadata, volume_image_metadata, project_id, …}."""

    #: The availability zone of all volumes.
    zone: str
    #: For callers: ``services.volume.volumes.VolumeStore`` and ``services.volume.snapshots.SnapshotStore``.
    volumes: Any
    snapshots: Any
    #: The volume types: ``services.volume.types.TypeStore``.
    types: Any

    def act(self, context: Context, id: str, action: Callable[..., Document | None], **given: Any) -> Document | None:
        """Have one of ``services.volume.actions`` done to a volume, for a caller."""

    def quotas(self, project_id: str) -> tuple[dict[str, int], dict[str, int]]:
        """What a project may have at most (-1: as much as it likes), and what it has: volumes, gigabytes, snapshots."""

    def messages(self, context: Context) -> list[tuple[str, Document]]:
        """What went wrong with the project's volumes and snapshots: the kind, and the row with its ``fault``."""

    def show(self, context: Context, id: str) -> Document | None:
        """The volume, if *context* may see it."""

    def snapshot(self, context: Context, id: str) -> Document | None:
        """The volume snapshot {id, volume_id, size, status}."""

    def create_snapshot(self, context: Context, volume_id: str, **fields: Any) -> Document:
        """A snapshot that is being taken, also of a volume in use; *fields*: id, name, description, metadata. Asked
        twice, the same."""

    def delete_snapshot(self, context: Context, id: str) -> None:
        """Remove it, also one that is still being taken; nothing when there is none."""

    def create(self, context: Context, size: int, **fields: Any) -> Document:
        """A volume that is being made; *fields*: name, image_id, snapshot_id, source_volume_id, volume_type, id,
        host, image_names_type (false: the type that an image names does not count)."""

    def upload_image(self, context: Context, id: str, name: str, **fields: Any) -> Document:
        """Have an image *name* made of a volume, for a caller: {volume, image}; *fields*: disk_format,
        container_format, visibility, protected."""

    def is_uploading(self, image_id: str) -> bool:
        """Whether the content of an image is to come from a volume."""

    def wait(self, id: str, limit: float) -> Document:
        """The volume when it is made, or made anew; raises ``InvalidRequest`` when that failed or took longer."""

    def reimage(self, context: Context, id: str, image_id: str, request: str) -> None:
        """Have the content of a volume, which is reserved or available, made anew from an image: ``wait`` tells when
        that is done. Asked twice by one *request*, once. Raises ``InvalidRequest`` where the image does not fit."""

    def reimaged(self, id: str, request: str) -> bool:
        """Whether what this *request* asked of ``reimage`` is done."""

    def reserve(self, context: Context, id: str, server_id: str, sure: Sure = always, **fields: Any) -> Document:
        """Keep it for a server: {id (of the attachment), volume}; *fields*: attachment_id. Asked twice, the same.
        Raises ``InvalidRequest`` or 409 when it is in use."""

    def attached(self, attachment_id: str, host: str, device: str, sure: Sure = always) -> None:
        """The server on *host* has it now; *host* is empty for a server that is on none."""

    def begin_detaching(self, attachment_id: str, sure: Sure = always) -> None:
        """Show the attachment as detaching: the server will release the volume. Nothing when there is none."""

    def roll_detaching(self, attachment_id: str, sure: Sure = always) -> None:
        """Show the attachment as it was before ``begin_detaching``: the server keeps the volume. Nothing when it is not
        detaching."""

    def disconnected(self, attachment_id: str, sure: Sure = always) -> None:
        """The server keeps it, and is on no host: it is reserved again. Nothing when the server had it not."""

    def detached(self, attachment_id: str, sure: Sure = always) -> None:
        """The server has it no more; nothing when it had not."""

    def users(self) -> dict[str, str]:
        """The attachments of servers: attachment to server, whether there is such a server or not."""

    def has_type(self, context: Context, name: str) -> bool:
        """Whether there is a volume type of that name or uuid."""

    def where(self, id: str) -> str:
        """Name of the compute host on which the volume lies."""

    def delete(self, context: Context, id: str) -> None:
        """Remove it, when nothing is attached; nothing when there is none."""


class KeyManager(Protocol):
    """Barbican, as Nova and Cinder use it: certificates for images that are signed, keys of encrypted volumes and
    disks, secrets of TPMs."""

    def certificate(self, context: Context, id: str) -> bytes:
        """The X.509 certificate with this uuid, PEM or DER. Raises ``NotFound``."""

    def create_key(self, id: str, like: str | None = None, owner: str | None = None,
                   asks: Context | None = None) -> str:
        """The key with this uuid, 64 hexadecimal digits; it is drawn, or is the same as the key *like*, when there is
        none yet. *owner*: the user whose it is then. *asks*: who asks for it, where not the cloud itself. Raises
        ``NotFound`` where there is no key *like*, and ``Forbidden`` where the key is another user's."""

    def key(self, context: Context, id: str) -> str:
        """The key with this uuid, for who asks. Raises ``NotFound``, and ``Forbidden`` where it is another user's."""

    def delete_key(self, id: str) -> None:
        """Forget a key; fine where there is none. What it encrypts can be read by nobody who has not got it."""


@dataclass(frozen=True)
class Services:
    identity: Identity
    image: Images
    network: Networks
    volume: Volumes
    key_manager: KeyManager
