# SPDX-License-Identifier: GPL-3.0-or-later
"""The first network of a project, created on demand: a network with a subnet from the default subnet pool, and a router
if there is a default external network (Neutron's extension auto-allocated-topology). A server that requests ``auto``
gets this network if its project has none."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection, RowMapping, delete, insert, select

from magnetar_control.services import Context
from magnetar_control.services.network.routers.routers import RouterStore
from magnetar_control.services.network.subnets import subnet_pools
from magnetar_control.services.network.subnets.subnet_pools import SUBNET_POOL
from magnetar_control.store.engine.database import Database, advisory_lock, utc_now
from magnetar_core.errors import Conflict, NotFound

from . import sharing
from .resources import NetworkStore, forbidden_by_policy
from .tables import auto_topologies, networks

NAME = "auto_allocated_{}"


class AutoTopologies:
    """Neutron's auto-allocated topologies: the first network of each project, with a subnet and a router. *networks*,
    *subnets* and *routers*: the stores that create these resources."""

    def __init__(self, database: Database, networks: NetworkStore, subnets: NetworkStore,
                 routers: RouterStore) -> None:
        self.database, self.networks, self.subnets, self.routers = database, networks, subnets, routers

    def find(self, context: Context, project: str) -> str:
        """Return the uuid of *project*'s first network; create the network if there is none. Raises ``Conflict`` when
        there is no default subnet pool that the project may use."""
        owner = self._as_owner(context, project, "get")
        with self.database.write() as connection:
            advisory_lock(connection, "first network", project)
            row = _row(connection, project)
            return str(row["network_id"]) if row else self._make(connection, owner)

    def check(self, context: Context, project: str) -> None:
        """Raise the error that ``find`` would raise for *project*, without creating a network."""
        owner = self._as_owner(context, project, "get")
        with self.database.write() as connection:
            if _row(connection, project) is None:
                _check_pool(connection, owner)

    def delete(self, context: Context, project: str) -> None:
        """Delete the first network of *project*, with its router. Raises ``Conflict`` while the network has ports,
        ``NotFound``, ``Forbidden``."""
        owner = self._as_owner(context, project, "delete")
        with self.database.write() as connection:
            row = _row(connection, project)
            if row is None:
                raise NotFound(f"There is no auto allocated topology of project {project}.",
                               type="AutoAllocatedTopologyNotFound")
            router, network = row["router_id"], row["network_id"]
            connection.execute(delete(auto_topologies).where(auto_topologies.c.project_id == project))
            if router is not None:
                self.routers.dismantle(connection, owner, router)
            self.networks.drop(connection, owner, network)

    def _as_owner(self, context: Context, project: str, verb: str) -> Context:
        """Return a copy of *context* with the project *project*. Raises ``Forbidden`` if the caller may not act for
        *project*. *verb*: get or delete, for the name of the policy rule in the error."""
        if project != context.project_id and not context.is_admin:
            raise forbidden_by_policy(f"{verb}_auto_allocated_topology", "it is another project's")
        if not context.is_writer:
            raise forbidden_by_policy(f"{verb}_auto_allocated_topology", "it needs the role member of the project")
        return replace(context, project_id=project)

    def _make(self, connection: Connection, context: Context) -> str:
        pool = _check_pool(connection, context)
        network = self.networks.make(connection, context, {"name": NAME.format("network")})
        subnet = self.subnets.make(connection, context, {
            "name": NAME.format("subnet_v4"), "network_id": network, "subnetpool_id": pool})
        usable = sharing.shared_with(networks, context.project_id or "", sharing.EXTERNAL)
        outside = connection.execute(select(networks.c.id).where(
            networks.c.external, networks.c.is_default, usable).order_by(networks.c.created_at).limit(1)).scalar()
        router = None
        if outside is not None:
            router = self.routers.make(connection, context, {"name": NAME.format("router"), "gateway": {
                "network_id": outside}})
            self.routers.join(connection, context, router, subnet)
        connection.execute(insert(auto_topologies).values(
            project_id=context.project_id, network_id=network, router_id=router, created_at=utc_now()))
        return network


def _row(connection: Connection, project: str) -> RowMapping | None:
    return connection.execute(select(auto_topologies).where(
        auto_topologies.c.project_id == project)).mappings().first()


def _check_pool(connection: Connection, context: Context) -> str:
    """Return the id of the default IPv4 subnet pool. Raises ``Conflict`` when there is none that the caller may use."""
    pool_id = subnet_pools.default_subnet_pool(connection, 4, SUBNET_POOL.visible(context))
    if pool_id is None:
        raise Conflict("Deployment error: No default subnetpools defined. An administrator makes one: openstack subnet "
                       "pool create --default --share --pool-prefix …", type="AutoAllocationFailure")
    return pool_id
