# SPDX-License-Identifier: GPL-3.0-or-later
"""What cloudbridge, unmodified, does with a cloud: from a network to a server with volume and floating IP, and back.

Run by the Python of the environment of Rally and cloudbridge: ``cloudbridge_life.py URL PASSWORD`` (of Keystone's v3).
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from cloudbridge.factory import CloudProviderFactory, ProviderList
from cloudbridge.interfaces.resources import InstanceState, TrafficDirection, VolumeState


def main(url: str, password: str) -> None:
    """Create, use and remove all resources."""
    provider: Any = CloudProviderFactory().create_provider(ProviderList.OPENSTACK, {
        "os_auth_url": url, "os_username": "admin", "os_password": password, "os_project_name": "admin",
        "os_user_domain_name": "Default", "os_project_domain_name": "Default", "os_region_name": "RegionOne",
        "default_wait_interval": 1, "default_wait_timeout": 300})
    assert provider.authenticate()
    with contextlib.ExitStack() as ends:
        network = provider.networking.networks.create(label="bridge1", cidr_block="10.7.0.0/16")
        ends.callback(network.delete)
        subnet = network.subnets.create(label="bridge1", cidr_block="10.7.0.0/24")
        ends.callback(subnet.delete)
        router = provider.networking.routers.create(label="bridge1", network=network)
        ends.callback(router.delete)
        router.attach_subnet(subnet)
        ends.callback(router.detach_subnet, subnet)
        gateway = network.gateways.get_or_create()
        router.attach_gateway(gateway)
        ends.callback(router.detach_gateway, gateway)
        firewall = provider.security.vm_firewalls.create(label="bridge1", description="text", network=network)
        ends.callback(firewall.delete)
        firewall.rules.create(TrafficDirection.INBOUND, protocol="tcp", from_port=22, to_port=22, cidr="0.0.0.0/0")
        assert len([rule for rule in firewall.rules if rule.from_port == 22]) == 1
        key = provider.security.key_pairs.create(name="bridge1")
        ends.callback(key.delete)
        serve(provider, subnet, firewall, key, gateway)
    assert not list(provider.compute.instances) and not list(provider.storage.volumes)
    assert not [one for one in provider.networking.networks if one.label == "bridge1"]
    assert not [one for one in provider.security.vm_firewalls if one.label == "bridge1"]


def serve(provider: Any, subnet: Any, firewall: Any, key: Any, gateway: Any) -> None:
    """Create a server, attach a volume and a floating IP to it, create an image of it, and remove all of them."""
    image = provider.compute.images.find(label="cirros")[0]
    kind = provider.compute.vm_types.find(name="tiny")[0]
    server = provider.compute.instances.create(label="bridge1", image=image, vm_type=kind, subnet=subnet,
                                               key_pair=key, vm_firewalls=[firewall], user_data="#!/bin/sh\n")
    server.wait_till_ready()
    assert server.private_ips and server.subnet_id == subnet.id and server.key_pair_id == key.id
    volume = provider.storage.volumes.create(label="bridge1", size=1)
    volume.wait_till_ready()
    volume.attach(server, "/dev/vdb")
    volume.wait_for([VolumeState.IN_USE], terminal_states=[VolumeState.ERROR, VolumeState.DELETED])
    volume.detach()
    volume.wait_for([VolumeState.AVAILABLE], terminal_states=[VolumeState.ERROR, VolumeState.DELETED])
    snapshot = volume.create_snapshot(label="bridge1", description="text")
    snapshot.wait_till_ready()
    snapshot.delete()
    address = gateway.floating_ips.create()
    server.add_floating_ip(address)
    server.refresh()
    assert address.public_ip in server.private_ips  # the range for documentation is private to cloudbridge
    server.remove_floating_ip(address)
    address.delete()
    made = server.create_image(label="bridge1")
    made.wait_till_ready()
    made.delete()
    server.reboot()
    server.refresh()  # otherwise the client takes the state from before the reboot
    server.wait_till_ready()
    server.delete()
    server.wait_for([InstanceState.DELETED, InstanceState.UNKNOWN], terminal_states=[InstanceState.ERROR])
    volume.delete()
    volume.wait_for([VolumeState.DELETED, VolumeState.UNKNOWN], terminal_states=[VolumeState.ERROR])


if __name__ == "__main__":
    main(*sys.argv[1:])
