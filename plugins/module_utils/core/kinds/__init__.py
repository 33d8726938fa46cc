# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource types, such as server, one file for each: ``KINDS`` of agents, and ``CLOUD_KINDS``, which only a cloud
has."""

from __future__ import annotations

from .aggregate import HostAggregate
from .availability_zone import AvailabilityZone
from .capacity import Balance, Capacity
from .cell import Cell
from .compute_service import ComputeService
from .export import ServerExport, VolumeExport
from .flavor import Flavor, FlavorAccess
from .group_filter import GroupFilter
from .host import Adoption, Host
from .host_maintenance import HostFence, HostMaintenance, Incident
from .hypervisor import Hypervisor
from .identity import (
    ApplicationCredential,
    IdentityDomain,
    IdentityGroup,
    IdentityProject,
    IdentityRole,
    IdentityUser,
    RoleAssignment,
)
from .image import Image, ImageMember
from .instance_action import InstanceAction
from .interface import InterfaceAttachment
from .keypair import Keypair
from .migration import Migration
from .network import Network
from .networking import (
    AddressGroup,
    AddressScope,
    DefaultSecurityGroupRule,
    FloatingIp,
    NetworkPort,
    NetworkRouter,
    NetworkTrunk,
    QosPolicy,
    RbacPolicy,
    SecurityGroup,
    Subnet,
    SubnetPool,
)
from .quota import Limits, Quota, Usage
from .resource_provider import HostTrait, ResourceProvider
from .server import Server
from .server_group import ServerGroup
from .server_topology import ServerTopology
from .share import ShareAttachment
from .volume import (
    CloudStoragePool,
    CloudVolumeBackup,
    Volume,
    VolumeAttachment,
    VolumeBackup,
    VolumeSnapshot,
    VolumeTransfer,
)
from .volume_type import CloudVolumeType

__all__ = ["BY_NOUN", "CLOUD_KINDS", "KINDS", "AddressGroup", "AddressScope", "Adoption", "ApplicationCredential",
           "AvailabilityZone", "Balance", "Capacity", "Cell", "CloudStoragePool", "CloudVolumeBackup",
           "CloudVolumeType", "ComputeService", "DefaultSecurityGroupRule", "Flavor", "FlavorAccess", "FloatingIp",
           "GroupFilter", "Host", "HostAggregate", "HostFence", "HostMaintenance", "HostTrait", "Hypervisor",
           "IdentityDomain", "IdentityGroup", "IdentityProject", "IdentityRole", "IdentityUser", "Image",
           "ImageMember", "Incident", "InstanceAction", "InterfaceAttachment", "Keypair", "Limits", "Migration",
           "Network", "NetworkPort", "NetworkRouter", "NetworkTrunk", "QosPolicy", "Quota", "RbacPolicy",
           "ResourceProvider", "RoleAssignment", "SecurityGroup", "Server", "ServerExport", "ServerGroup",
           "ServerTopology", "ShareAttachment", "Subnet", "SubnetPool", "Usage", "Volume", "VolumeAttachment",
           "VolumeBackup", "VolumeExport", "VolumeSnapshot", "VolumeTransfer"]

KINDS = (Server, Flavor, Image, Keypair, Network, Volume, VolumeSnapshot, VolumeBackup, VolumeAttachment,
         InterfaceAttachment, VolumeExport, ServerExport, GroupFilter, Migration, Adoption, Host)
CLOUD_KINDS = (ComputeService, HostMaintenance, Hypervisor, Cell, InstanceAction, Limits, AvailabilityZone,
               HostAggregate, ServerGroup, Quota, Usage, ServerTopology, ShareAttachment, Subnet, NetworkPort,
               NetworkRouter, FloatingIp, SecurityGroup, AddressGroup, QosPolicy, RbacPolicy, NetworkTrunk,
               AddressScope, SubnetPool, DefaultSecurityGroupRule, CloudVolumeType, ResourceProvider, HostTrait,
               Capacity, Balance, Incident, CloudStoragePool, HostFence, VolumeTransfer, FlavorAccess, ImageMember,
               CloudVolumeBackup, IdentityDomain, IdentityProject, IdentityUser, IdentityGroup, IdentityRole,
               RoleAssignment, ApplicationCredential)
BY_NOUN = {kind.noun: kind for kind in KINDS}
