# SPDX-License-Identifier: GPL-3.0-or-later
"""A story of openstacksdk, unmodified, with real guests, noun by noun: ``Story(...).play()``. It works in a cloud that
is embedded in one host and in one with several machines, and removes everything that it creates.
"""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any

from magnetar_control.api.nova.versions import NEWEST

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Seconds for every wait, and between two checks.
LIMIT, PAUSE = 240.0, 0.2


class Counted:
    """A proxy of the SDK that counts calls."""

    def __init__(self, proxy: Any, calls: list[str]) -> None:
        self._proxy, self._calls = proxy, calls

    def __getattr__(self, name: str) -> Any:
        self._calls.append(name)
        return getattr(self._proxy, name)


class Story:
    """*disk*: the guest's image. *host*: where the server begins. *other*: the only other host of its cell, ``None`` in
    a cloud of one. `calls` are the names of the SDK's functions that were called."""

    def __init__(self, connection: Any, disk: Path, host: str, other: str | None = None) -> None:
        self.calls: list[str] = []
        self.compute, self.image, self.network, self.volume = (
            Counted(getattr(connection, name), self.calls) for name in (
                "compute", "image", "network", "block_storage"))
        self.project = connection.current_project_id
        self.disk, self.host, self.other = disk, host, other
        self.server: Any = None

    def play(self) -> None:
        """Run all parts of the story, in order."""
        for part in (self.versions, self.images, self.flavors, self.keypairs, self.hosts, self.create, self.many,
                     self.lists, self.words, self.power, self.volumes, self.interfaces, self.resize, self.states,
                     self.copies, *((self.migrate, self.live, self.cell) if self.other else ()), self.history,
                     self.end):
            began = time.monotonic()
            part()
            print(f"{time.monotonic() - began:6.1f} s  {part.__name__}")

    # What the cloud is made of

    def versions(self) -> None:
        """Read the microversions of the endpoint."""
        found = self.compute.get_endpoint_data()
        assert (found.min_microversion, found.max_microversion) == ((2, 1), (2, NEWEST))

    def images(self) -> None:
        """Upload the guest's image."""
        self.guest = self.image.create_image("sdk", filename=str(self.disk), disk_format="qcow2",
                                             container_format="bare", wait=True)
        assert self.image.get_image(self.guest).status == "active"

    def flavors(self) -> None:
        """Create two flavors with extra specs, one of them for this project alone."""
        compute = self.compute
        self.small = compute.create_flavor(name="sdk.small", ram=128, vcpus=1, disk=1)
        self.larger = compute.create_flavor(name="sdk.larger", ram=160, vcpus=1, disk=1, is_public=False)
        compute.create_flavor_extra_specs(self.small, {"quota:cpu_shares": "512"})
        compute.update_flavor_extra_specs_property(self.small, "quota:cpu_shares", "1024")
        assert compute.get_flavor_extra_specs_property(self.small, "quota:cpu_shares") == "1024"
        compute.delete_flavor_extra_specs_property(self.small, "quota:cpu_shares")
        assert compute.fetch_flavor_extra_specs(self.small).extra_specs == {}
        assert compute.get_flavor_access(self.larger) == []
        compute.flavor_add_tenant_access(self.larger, self.project)
        assert [one["tenant_id"] for one in compute.get_flavor_access(self.larger)] == [self.project]
        assert compute.update_flavor(self.larger, description="for more").description == "for more"
        assert compute.find_flavor("sdk.small").id == self.small.id
        assert {"sdk.small", "sdk.larger"} <= {one.name for one in compute.flavors(is_public=None)}

    def keypairs(self) -> None:
        """Create a key pair, whose private key the cloud generates."""
        assert self.compute.create_keypair(name="sdk").private_key
        assert "sdk" in [one.name for one in self.compute.keypairs()]
        assert self.compute.get_keypair("sdk").fingerprint == self.compute.find_keypair("sdk").fingerprint

    def hosts(self) -> None:
        """Read services, hypervisors, zones and limits; disable a host for the scheduler, and enable it again."""
        compute = self.compute
        service = next(compute.services(binary="nova-compute", host=self.host))
        assert (service.state, service.status) == ("up", "enabled")
        compute.disable_service(service, disabled_reason="a new fan")
        assert compute.find_hypervisor(self.host, details=True).status == "disabled"
        compute.enable_service(service)
        compute.update_service_forced_down(service, forced=True)
        assert next(compute.services(binary="nova-compute", host=self.host)).state == "down"
        compute.update_service_forced_down(service, forced=False)
        found = next(one for one in compute.hypervisors(details=True) if one.name == self.host)
        assert compute.get_hypervisor(found).state == "up"
        zones = {zone.name: zone for zone in compute.availability_zones(details=True)}
        assert self.host in zones["nova"].hosts
        assert compute.get_limits().absolute.total_cores
        assert compute.get_quota_set(self.project, usage=True).instances

    # Servers

    def wanted(self, name: str, **more: Any) -> dict[str, Any]:
        """Return the arguments of a new server."""
        networks = [{"uuid": self.network.find_network("default").id}]
        return {"name": name, "flavor_id": self.small.id, "networks": networks, **more}

    def create(self) -> None:
        """Create a server on the host, with all kinds of arguments."""
        data = base64.b64encode(b"#!/bin/sh\necho GUEST told >/dev/console\n").decode()
        made = self.compute.create_server(**self.wanted(
            "sdk", image_id=self.guest.id, key_name="sdk", user_data=data, metadata={"role": "web"}, tags=["shop"],
            host=self.host, description="the first"))
        self.server = self.compute.wait_for_server(made, interval=PAUSE, wait=LIMIT)
        assert (self.server.compute_host, self.server.description) == (self.host, "the first")

    def many(self) -> None:
        """Create two servers at once on the host of the first one, on volumes of their own; delete them."""
        root = {"boot_index": 0, "uuid": self.guest.id, "source_type": "image", "destination_type": "volume",
                "volume_size": 1, "delete_on_termination": True}
        self.compute.create_server(**self.wanted(
            "sdk-two", min_count=2, max_count=2, availability_zone="nova",
            scheduler_hints={"same_host": self.server.id}, block_device_mapping=[root]))
        two = list(self.compute.servers(name="sdk-two"))
        assert len(two) == 2
        for one in two:
            assert self.compute.wait_for_server(one, interval=PAUSE, wait=LIMIT).compute_host == self.host
        for one in two:
            self.compute.delete_server(one, force=True)
        self.until(lambda: not list(self.compute.servers(details=False, name="sdk-two")), "both are gone")

    def lists(self) -> None:
        """List servers by name, tag, status, host and flavor, with and without details."""
        compute = self.compute
        for given in ({"tags": "shop"}, {"status": "ACTIVE", "name": "^sdk$"}, {"compute_host": self.host},
                      {"flavor": self.small.id}, {"image": self.guest.id}):
            assert self.server.id in [one.id for one in compute.servers(all_projects=True, **given)], given
        assert list(compute.servers(details=False, status="SHUTOFF", name="^sdk")) == []
        assert compute.find_server("sdk").id == self.server.id
        assert compute.get_server(self.server).flavor.name == "sdk.small"

    def words(self) -> None:
        """Use name, metadata, tags, console, diagnostics, lock, password and state of the server."""
        compute, server = self.compute, self.server
        assert compute.update_server(server, name="sdk1", description="again").name == "sdk1"
        compute.set_server_metadata(server, tier="front")
        assert compute.fetch_server_metadata(server).metadata == {"role": "web", "tier": "front"}
        compute.delete_server_metadata(server, ["role"])
        compute.add_tag_to_server(server, "open")
        compute.remove_tag_from_server(server, "shop")
        assert compute.get_server(server).tags == ["open"]
        compute.remove_tags_from_server(server)
        assert compute.get_server_diagnostics(server).state == "running"
        compute.lock_server(server, locked_reason="hands off")
        assert compute.get_server(server).is_locked
        compute.unlock_server(server)
        self.until(lambda: "GUEST told" in compute.get_server_console_output(server)["output"], "the guest boots")
        self.until(self.password_set, "the guest's agent sets a password")
        compute.reset_server_state(server, "error")
        assert compute.get_server(server).status == "ERROR"
        compute.reset_server_state(server, "active")

    def power(self) -> None:
        """Stop, start, reboot, pause and suspend the server."""
        compute, server = self.compute, self.server
        for act, status in ((compute.pause_server, "PAUSED"), (compute.unpause_server, "ACTIVE"),
                            (compute.suspend_server, "SUSPENDED"), (compute.resume_server, "ACTIVE"),
                            (compute.stop_server, "SHUTOFF")):
            act(server)
            self.becomes(status)
        for act in (compute.start_server, lambda one: compute.reboot_server(one, "HARD")):
            before = self.boots()
            act(server)
            self.becomes("ACTIVE")
            # A guest that boots hears nothing, and would not let go of what is taken away next.
            self.until(lambda before=before: self.boots() > before, "the guest boots")

    def boots(self) -> int:
        """Return how often the guest has reported that it has booted."""
        output: str = self.compute.get_server_console_output(self.server)["output"]
        return output.count("GUEST ready")

    def volumes(self) -> None:
        """Create a volume, attach it, show it, and detach it."""
        made = self.volume.create_volume(name="sdk", size=1)
        self.volume.wait_for_status(made, "available", interval=PAUSE, wait=LIMIT)
        attached = self.compute.create_volume_attachment(self.server, volume=made.id, tag="data",
                                                         delete_on_termination=False)
        self.until(lambda: self.volume.get_volume(made).status == "in-use", "the volume is in use")
        assert [one.volume_id for one in self.compute.volume_attachments(self.server)] == [made.id]
        assert self.compute.get_volume_attachment(self.server, made).device == attached.device
        self.compute.delete_volume_attachment(self.server, made)
        self.until(lambda: self.volume.get_volume(made).status == "available", "the volume is free")
        self.volume.delete_volume(made)

    def interfaces(self) -> None:
        """Attach a second NIC, and detach it."""
        compute, network = self.compute, self.network.find_network("default")
        made = compute.create_server_interface(self.server, net_id=network.id)
        assert len(list(compute.server_interfaces(self.server))) == 2
        assert compute.get_server_interface(made.port_id, self.server).mac_addr == made.mac_addr
        assert len(list(compute.server_ips(self.server, network_label="default"))) == 2
        compute.delete_server_interface(made.port_id, self.server)
        self.until(lambda: len(list(compute.server_interfaces(self.server))) == 1, "the NIC is gone")
        assert list(self.network.ports(id=made.port_id)) == []

    def states(self) -> None:
        """Rebuild and rescue the server."""
        compute, server = self.compute, self.server
        compute.rebuild_server(server, self.guest.id, description="anew")
        assert self.becomes("ACTIVE").description == "anew"
        compute.rescue_server(server, image=self.guest.id)
        self.becomes("RESCUE")
        compute.unrescue_server(server)
        self.becomes("ACTIVE")

    def copies(self) -> None:
        """Create an image of the server."""
        made = self.compute.create_server_image(self.server, "sdk-copy")
        self.until(lambda: self.image.get_image(made.id).status == "active", "the copy is there")
        self.image.delete_image(made.id)
        self.becomes("ACTIVE")  # the image is there a moment before the action is over

    # Moves

    def resize(self) -> None:
        """Resize the server and revert that; resize it and confirm that. In a cell of one host it stays on the host."""
        compute, server = self.compute, self.server
        compute.resize_server(server, self.larger)
        assert self.becomes("VERIFY_RESIZE").compute_host == (self.other or self.host)
        compute.revert_server_resize(server)
        assert self.becomes("ACTIVE").flavor.name == "sdk.small"
        compute.resize_server(server, self.larger)
        self.becomes("VERIFY_RESIZE")
        compute.confirm_server_resize(server)
        found = self.becomes("ACTIVE")
        assert (found.flavor.name, found.compute_host) == ("sdk.larger", self.other or self.host)

    def migrate(self) -> None:
        """Migrate the server cold, back to the first host."""
        self.compute.migrate_server(self.server, host=self.host)
        assert self.becomes("VERIFY_RESIZE").compute_host == self.host
        self.compute.confirm_server_resize(self.server)
        self.becomes("ACTIVE")

    def live(self) -> None:
        """Migrate two servers live at once. The second one waits for the first, and is aborted."""
        compute, server = self.compute, self.server
        second = compute.wait_for_server(compute.create_server(**self.wanted(
            "sdk-second", image_id=self.guest.id, host=self.host)), interval=PAUSE, wait=LIMIT)
        compute.live_migrate_server(server, host=self.other, block_migration="auto")
        compute.live_migrate_server(second, block_migration="auto")
        found = self.until(lambda: list(compute.server_migrations(second)), "the second one is to go")[0]
        assert compute.get_server_migration(found.id, second).status in ("queued", "preparing", "running")
        compute.abort_server_migration(found.id, second)
        assert self.becomes("ACTIVE").compute_host == self.other
        assert self.becomes("ACTIVE", second).compute_host == self.host
        ended = {one.server_id: one.status for one in compute.migrations(migration_type="live-migration")}
        assert (ended[server.id], ended[second.id]) == ("completed", "cancelled")
        compute.delete_server(second)
        compute.wait_for_delete(second, interval=PAUSE, wait=LIMIT)

    def cell(self) -> None:
        """Migrate the server while the only other host of its cell is disabled: it stays, though another cell has room.
        """
        compute, server = self.compute, self.server
        service = next(compute.services(binary="nova-compute", host=self.host))
        compute.disable_service(service)
        before = len(list(compute.migrations(status="error", instance_uuid=server.id)))
        compute.migrate_server(server)
        self.until(lambda: len(list(compute.migrations(status="error", instance_uuid=server.id))) > before,
                   "the migration has ended")
        assert self.becomes("ACTIVE").compute_host == self.other
        compute.enable_service(service)

    # The end

    def history(self) -> None:
        """Read the server's actions and their results."""
        found = list(self.compute.server_actions(self.server))
        assert {"create", "rebuild", "resize", "rescue"} <= {one.action for one in found}
        create = self.compute.get_server_action(found[-1], self.server)
        assert "Success" in {event.result for event in create.events}
        assert self.compute.get_quota_set(self.project, usage=True).usage["instances"] >= 1

    def end(self) -> None:
        """Delete everything, and check that nothing is left."""
        self.compute.delete_server(self.server)
        self.compute.wait_for_delete(self.server, interval=PAUSE, wait=LIMIT)
        assert self.compute.find_server(self.server.id) is None
        self.compute.delete_keypair("sdk")
        self.compute.flavor_remove_tenant_access(self.larger, self.project)
        for flavor in (self.small, self.larger):
            self.compute.delete_flavor(flavor)
        self.image.delete_image(self.guest)

    def password_set(self) -> bool:
        """Return whether the guest accepts a password: its agent may start after the last line of the console."""
        from openstack.exceptions import ConflictException

        try:
            self.compute.change_server_password(self.server, "correct-horse")
        except ConflictException:
            return False
        return True

    def until(self, ready: Callable[[], Any], what: str) -> Any:
        """Call *ready* until its result is true, and return the result. *what*: the expected event, for the error."""
        end = time.monotonic() + LIMIT
        while not (found := ready()):
            assert time.monotonic() < end, f"{what}: not within {LIMIT:g} s"
            time.sleep(PAUSE)
        return found

    def becomes(self, status: str, server: Any = None) -> Any:
        """Wait until the server has that status and no task_state, and return it."""
        id = (server or self.server).id

        def look() -> Any:
            found = self.compute.get_server(id)
            assert found.status != "ERROR", found.fault
            return found if found.status == status and found.task_state is None else None

        return self.until(look, f"the server is {status}")
