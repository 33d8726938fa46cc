# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of the world: what each of two projects has, and what one of them lets others see."""

from __future__ import annotations

import uuid

from sqlalchemy import insert

from magnetar_control.api.v1.driver import NAMESPACE
from magnetar_control.services.image.tables import images, members
from magnetar_control.services.network.tables import (
    address_groups,
    address_scopes,
    addresses,
    default_security_group_rules,
    floating_ips,
    forwardings,
    networks,
    ports,
    qos_policies,
    qos_rules,
    rbac_policies,
    routers,
    security_group_rules,
    security_groups,
    subnet_pools,
    subnets,
    subports,
    trunks,
)
from magnetar_control.services.volume import tables as volume
from magnetar_control.services.volume.transfers import hash_auth_key
from magnetar_control.store.engine import tables as store
from magnetar_control.store.engine.database import insert_if_absent, utc_now
from magnetar_control.store.hosts import hosts
from tests.support.control.columns import row_values

PROJECTS = ("red", "blue")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Zz5bBNJ of-{0}-keypair"
CONTENT = b"0" * 512
#: The key of all transfers.
AUTH_KEY = "0123456789abcdef"
#: In the names of private things: who reads one of another project's reads too much.
MARK = "owned-by-{0}-"


def fresh():
    return str(uuid.uuid4())


def fresh_of(things, noun):
    """A new id, which is kept as that of the noun."""
    return things.setdefault(noun, fresh())


class Things:
    """Adds the rows to the databases of a ``World``, and notes their ids."""

    def _add(self, table, **values):
        """Add a row; its id."""
        columns = {"created_at": utc_now()} if "created_at" in table.c else {}
        columns |= {"id": fresh()} if "id" in table.c and table.c.id.autoincrement is not True else {}
        row = {**columns, **row_values(values, table)}
        self.connection.execute(insert(table).values(**row))
        return row.get("id")

    def _host(self):
        cell = self.parts.store.find_cell("cell1").id
        self.common["host"] = hosts.upsert_host_row(self.connection, "kvm1", cell, "https://kvm1.example:6553")
        hosts.save_host_inventory(self.connection, "kvm1", {"name": "kvm1", "vcpus": 8, "memory_mb": 16384,
                                                            "disk_gb": 100,
                                                            "hypervisor_type": "QEMU", "hypervisor_version": "7.2.22"})
        self._add(store.aggregates, id=1, uuid=fresh(), name="fast")
        self.common |= {"aggregate": "1", "public_key": KEY.format("all"), "content": CONTENT.decode()}

    def _compute(self, project):
        things, mark, id = self.things[project], MARK.format(project), self.projects[project]
        things["keypair"] = str(uuid.uuid5(NAMESPACE, f"{things['user']} key"))
        self.connection.execute(insert(store.flavors).values(
            id=fresh_of(things, "flavor"), name=f"{mark}flavor", vcpus=1, ram=64, disk=1, is_public=False,
            created_at=utc_now(), extra_specs='{"hw:cpu_policy": "shared"}'))
        things["private_flavor"] = things["flavor"]
        number = self.connection.execute(store.flavors.select().filter_by(id=things["flavor"])).one().number
        self.connection.execute(insert(store.flavor_projects).values(flavor_number=number, project_id=id))
        things["server_group"] = self._add(store.server_groups, name=f"{mark}server group", project_id=id,
                                           user_id=things["user"], policy="affinity")

    def _images(self, project):
        things = self.things[project]
        things["image"] = self._image(project, "private", MARK.format(project) + "image")
        things["queued_image"] = self._image(project, "private", MARK.format(project) + "queued", status="queued")
        things["shared_image"] = self._image(project, "shared", MARK.format(project) + "shared")
        things["member"] = self._member(things["shared_image"], fresh())

    def _member(self, image, project):
        """Share an image with a project; its id."""
        self.connection.execute(insert(members).values(
            image_id=image, member=project, status="accepted", created_at=utc_now()))
        return project

    def _image(self, project, visibility, name, status="active"):
        return self._add(images, owner=self.projects[project], visibility=visibility, name=name, status=status,
                         size=512, virtual_size=512, disk_format="raw", container_format="bare", checksum="0" * 32,
                         os_hash_value="0" * 128)

    def _networks(self, project, corner=None, **values):
        """A network with subnet and ports; the corner of a shared one has the network and the subnet only."""
        own, mark = self.things[project], MARK.format(project) if corner is None else "open "
        things, id = self.things[corner or project], self.projects[project]
        number = 100 + sum("network" in one for one in self.things.values())
        things["network"] = self._add(networks, project_id=id, name=f"{mark}network", type="nat", **values)
        things["subnet"] = self._add(
            subnets, project_id=id, name=f"{mark}subnet", network_id=things["network"], cidr=f"10.{number}.0.0/24",
            gateway_ip=f"10.{number}.0.1", dns_nameservers=[], host_routes=[], allocation_pools=[
                {"start": f"10.{number}.0.2", "end": f"10.{number}.0.254"}])
        if corner:
            for last, one in enumerate(PROJECTS, 4):
                self.things[one]["port_there"] = self._port(self.things[one], things, number, last,
                                                            name=f"{MARK.format(one)}port there")
            return
        things["group_of_rules"] = things["security_group"] = self._add(
            security_groups, project_id=id, name=f"{mark}security group")
        things["rule"] = self._add(security_group_rules, project_id=id, security_group_id=things["security_group"],
                                   direction="ingress", ethertype="IPv4")
        things["port"] = self._port(own, things, number, 2, name=f"{mark}port")
        things["nic"] = self._port(own, things, number, 3, name=f"{mark}nic", device_id=fresh_of(things, "server"),
                                   device_owner="compute:nova", host="kvm1", place=0)

    def _outside(self):
        """An external network of the operator, for all, and a default rule."""
        self.common["default_rule"] = self._add(default_security_group_rules, direction="egress", ethertype="IPv4",
                                                protocol="udp")
        self.common["external"] = self._subnetted("", "external", "192.0.2", "outer_subnet", self.common, external=True,
                                                  bridge="ext")
        self._policy("", "network", self.common["external"], action="access_as_external")

    def _policy(self, project, kind, id, target="*", action="access_as_shared"):
        """An RBAC policy; its id."""
        return self._add(rbac_policies, project_id=project, object_type=kind, object_id=id, action=action,
                         target_project=target)

    def _subnetted(self, project, name, prefix, noun, things, **values):
        """A network of OVN with a subnet, which is noted as *noun*; its id."""
        id = self._add(networks, project_id=project, name=name, type="flat" if "bridge" in values else "ovn",
                       by_engine=True, **values)
        things[noun] = self._add(
            subnets, project_id=project, name=name, network_id=id, cidr=f"{prefix}.0/24", gateway_ip=f"{prefix}.1",
            dns_nameservers=[], host_routes=[], allocation_pools=[{"start": f"{prefix}.2", "end": f"{prefix}.254"}])
        return id

    def _of_engine(self, project):
        """What there is on networks of OVN: a port, a router that leads out, a floating IP, a QoS policy."""
        things, mark, id = self.things[project], MARK.format(project), self.projects[project]
        number = PROJECTS.index(project) + 1
        things["inner"] = self._subnetted(id, f"{mark}inner", f"10.20{number}.0", "inner_subnet", things)
        inner = {"network": things["inner"], "subnet": things["inner_subnet"]}
        things["inner_port"] = self._port(things, inner, 200 + number, 2, name=f"{mark}inner port")
        things["router"] = self._add(routers, project_id=id, name=f"{mark}router")
        things["floatingip"] = self._floating(id, f"{mark}floating IP", 10 + number)
        things["forwarded"] = self._floating(id, f"{mark}forwarded", 20 + number)
        things["port_forwarding"] = self._add(
            forwardings, project_id=id, floatingip_id=things["forwarded"], internal_port_id=things["inner_port"],
            internal_ip_address=f"10.20{number}.0.2", protocol="tcp", internal_port=22, external_port=22)
        things["address_group"] = self._add(address_groups, project_id=id, name=f"{mark}address group",
                                            addresses=["198.51.100.0/24"])
        things["address_scope"] = self._add(address_scopes, project_id=id, name=f"{mark}address scope", ip_version=4)
        things["subnetpool"] = self._add(
            subnet_pools, project_id=id, name=f"{mark}subnet pool", ip_version=4, prefixes=["10.210.0.0/16"],
            min_prefixlen=8, default_prefixlen=24, max_prefixlen=32)
        things["trunk_port"], things["subport"], things["free_port"] = (
            self._port(things, inner, 200 + number, last, name=f"{mark}port {last}", device_owner=owner)
            for last, owner in ((3, ""), (4, "trunk:subport"), (5, "")))
        things["trunk"] = self._add(trunks, project_id=id, name=f"{mark}trunk", port_id=things["trunk_port"])
        self.connection.execute(subports.insert().values(
            port_id=things["subport"], trunk_id=things["trunk"], segmentation_id=5))
        self._qos(things, id, f"{mark}QoS policy")
        things["rbac_policy"] = self._policy(id, "network", things["inner"], fresh())

    def _floating(self, project, name, last):
        """A floating IP 192.0.2.*last*; its id."""
        own = self._add(ports, project_id="", network_id=self.common["external"], status="ACTIVE", name="",
                        mac_address=f"52:54:00:01:00:{last:02x}", device_owner="network:floatingip")
        self._add(addresses, subnet_id=self.common["outer_subnet"], number=0xc0000200 + last, port_id=own,
                  ip_address=f"192.0.2.{last}")
        return self._add(floating_ips, project_id=project, name=name, network_id=self.common["external"],
                         own_port_id=own, floating_ip_address=f"192.0.2.{last}")

    def _qos(self, things, project, name, **values):
        policy = things["qos_policy"] = self._add(qos_policies, project_id=project, name=name, **values)
        rule = {"project_id": project, "policy_id": policy, "direction": "egress"}
        things["limit_rule"] = self._add(qos_rules, kind="bandwidth_limit", max_kbps=5, max_burst_kbps=0, **rule)
        things["minimum_rule"] = self._add(qos_rules, kind="minimum_bandwidth", min_kbps=1, **rule)
        things["mark_rule"] = self._add(qos_rules, kind="dscp_marking", dscp_mark=8, **rule)

    def _port(self, own, things, number, last, **values):
        id = self._add(ports, project_id=own["project"], network_id=things["network"], status="DOWN",
                       mac_address=f"52:54:00:00:{number % 256:02x}:{last:02x}", description="", **values)
        self._add(addresses, subnet_id=things["subnet"], number=0x0a000000 + (number << 16) + last, port_id=id,
                  ip_address=f"10.{number}.0.{last}")
        return id

    def _volume_types(self):
        """One that all have, and one that few projects have."""
        self._add(volume.types, name="shared-disks", is_public=True, extra_specs={"multiattach": "<is> True"})
        self._add(volume.types, name="few", is_public=False, encryption={
            "encryption_id": "00000000-0000-4000-8000-000000000001", "provider": "luks", "cipher": None,
            "key_size": 256, "control_location": "front-end"})

    def _volumes(self, project):
        things, mark = self.things[project], MARK.format(project)
        row = {"project_id": self.projects[project], "user_id": things["user"], "size": 1, "host": "kvm1",
               "volume_type": "default", "metadata": {"a": "b"}}
        more = {"availability_zone": "nova", "status": "available", "image_metadata": {"a": "b"}}
        things["volume"] = self._add(volume.volumes, name=f"{mark}volume", **row, **more)
        things["free_volume"] = self._add(volume.volumes, name=f"{mark}free volume", **row, **more)
        things["used_volume"] = self._add(volume.volumes, name=f"{mark}used volume", **row,
                                          **{**more, "status": "in-use"})
        things["held_volume"] = self._add(volume.volumes, name=f"{mark}held", **row, **{**more, "status": "reserved"})
        waiting = self._add(volume.volumes, name=f"{mark}awaiting", **row, **{**more, "status": "awaiting-transfer"})
        things["transfer"] = self._add(volume.transfers, volume_id=waiting, project_id=row["project_id"],
                                       name=f"{mark}transfer", salt="00", key_hash=hash_auth_key(AUTH_KEY, "00"))
        things["awaiting_volume"] = waiting
        things["attachment"] = self._add(
            volume.attachments, volume_id=things["used_volume"], project_id=row["project_id"], host="kvm1",
            server_id=things["server"], device="/dev/vdb", status="attached", attached_at=utc_now())
        things["free_attachment"] = self._add(volume.attachments, volume_id=things["held_volume"], status="reserved",
                                              project_id=row["project_id"], server_id=fresh())
        things["snapshot"] = self._add(volume.snapshots, name=f"{mark}snapshot", volume_id=things["volume"],
                                       status="available", **row)
        things["backup"] = self._add(volume.backups, name=f"{mark}backup", volume_id=things["volume"],
                                     status="available", data_timestamp=utc_now(), **row)

    def _servers(self, project):
        things, mark, id = self.things[project], MARK.format(project), self.projects[project]
        flavor = {"id": things["flavor"], "name": "tiny", "vcpus": 1, "ram": 64, "disk": 0, "ephemeral": 0, "swap": 0}
        network = f"{mark}network"
        nic = {"port_id": things["nic"], "network_id": things["network"], "network": network,
               "mac": "52:54:00:00:00:03", "tag": None,
               "fixed_ips": [{"ip_address": "10.1.0.3", "subnet_id": things["subnet"]}]}
        held = {"volume_id": things["used_volume"], "attachment_id": things["attachment"], "bdm_uuid": fresh(),
                "device": "/dev/vdb", "tag": None, "boot_index": None, "delete_on_termination": False}
        with self.cell.write() as self.connection:
            self._add(store.servers, id=things["server"], project_id=id, user_id=things["user"], name=f"{mark}server",
                      vm_state="active", power_state=1, host="kvm1", flavor_id=things["flavor"], flavor=flavor,
                      image_id=things["image"], metadata={"a": "b"}, tags=["a"], interfaces=[nic], volumes=[held],
                      addresses={network: [{"addr": "10.1.0.3", "version": 4, "OS-EXT-IPS:type": "fixed",
                                            "OS-EXT-IPS-MAC:mac_addr": nic["mac"]}]}, key_name="key")
            share = {"uuid": fresh(), "share_id": fresh_of(things, "share"), "share": "files", "tag": "files",
                     "status": "inactive", "location": "kvm1:/srv/files"}
            self._add(store.servers, id=fresh_of(things, "sharing_server"), project_id=id, user_id=things["user"],
                      name=f"{mark}sharing server", vm_state="stopped", power_state=4, host="kvm1",
                      flavor_id=things["flavor"], flavor=flavor, shares=[share])
            things["request"] = f"req-{fresh()}"
            self._add(store.actions, request_id=things["request"], server_id=things["server"], action="os-stop",
                      project_id=id, user_id=things["user"], start_time=utc_now(), state="done")
            migration = {"server_id": things["server"], "project_id": id, "user_id": things["user"], "source": "kvm1",
                         "target": "kvm2", "type": "live-migration"}
            self._add(store.migrations, uuid=fresh_of(things, "migration_uuid"), status="running", **migration)
            found = self.connection.execute(store.migrations.select().filter_by(uuid=things["migration_uuid"])).one()
            things["migration"] = str(found.id)
            insert_if_absent(self.connection, store.host_states, host="kvm1", seen_at=utc_now())
        with self.api.write() as self.connection:
            for server in ("server", "sharing_server"):
                self._add(store.server_mappings, server_id=things[server], project_id=id,
                          cell_id=self.parts.store.find_cell("cell1").id)
            self.connection.execute(insert(store.server_group_members).values(
                group_id=things["server_group"], server_id=things["server"]))

    def _shared(self):
        """What blue lets others see."""
        for visibility in ("public", "community", "shared"):
            self.things[visibility] = {"image": self._image("blue", visibility, f"open {visibility}")}
        self.things["public"]["offered_transfer"] = self.things["blue"]["transfer"]
        shared = self.things["shared"]
        shared |= {"shared_image": shared["image"], "member": self._member(shared["image"], self.projects["red"])}
        self._networks("blue", "public", shared=True)
        public, blue = self.things["public"], self.projects["blue"]
        self._qos(public, blue, "open QoS policy", shared=True)
        for kind, noun in (("network", "network"), ("qos_policy", "qos_policy")):
            self._policy(blue, kind, public[noun])
        self._add(store.flavors, id=fresh_of(self.things["public"], "flavor"), name="open flavor", vcpus=1, ram=64,
                  disk=1, extra_specs='{"hw:cpu_policy": "shared"}')
