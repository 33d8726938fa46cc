# SPDX-License-Identifier: GPL-3.0-or-later
"""The contract of hypervisors: migration. See ``test_hypervisor``."""

from __future__ import annotations

import socket

import pytest

from magnetar_agent.host.hypervisor import MigrationParams
from magnetar_core.errors import HypervisorError
from magnetar_core.power import OFF, PAUSED, RUNNING

from .place import Place


def test_libvirts_socket_takes_connections(place: Place) -> None:
    """Another host's libvirt comes through it."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(place.hypervisor.libvirt_socket()))


def test_a_cpu_that_a_host_gives_fits_it(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid, paused=True)
    cpu = place.hypervisor.cpu(uuid)
    assert cpu is None or (cpu.startswith("<cpu") and not place.hypervisor.cpu_lacks(cpu))


def test_arrived_is_what_is_active_and_lasts(place: Place) -> None:
    spec, hypervisor = place.spec(), place.hypervisor
    assert not hypervisor.arrived(spec.uuid)
    hypervisor.define(spec)
    assert not hypervisor.arrived(spec.uuid)
    hypervisor.start(spec.uuid, paused=True)
    assert hypervisor.arrived(spec.uuid)
    hypervisor.resume(spec.uuid)
    assert hypervisor.arrived(spec.uuid)
    place.outside.forget(spec.uuid)  # as an incoming one is before its end
    assert not hypervisor.arrived(spec.uuid)
    hypervisor.destroy(spec.uuid)


def test_a_domain_without_a_job_is_not_astray(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.abort_stale_job(uuid)
    place.hypervisor.start(uuid)
    place.hypervisor.abort_stale_job(uuid)
    assert place.state(uuid) == RUNNING


@pytest.mark.parametrize("state", [OFF, PAUSED, RUNNING])
def test_a_migration_that_cannot_be_leaves_the_domain_alone(place: Place, state: str) -> None:
    """Nobody answers at the other end."""
    uuid, hypervisor = place.defined(), place.hypervisor
    if state != OFF:
        hypervisor.start(uuid, paused=state == PAUSED)
    params = MigrationParams(
        libvirt=place.folder / "libvirt", qemu=place.folder / "qemu", disks=place.folder / "disks",
        persistent=hypervisor.render(place.spec(uuid=uuid)), folder=(place.folder, place.folder), nics={},
        bandwidth=None, max_downtime=None, auto_converge=True, time_limit=None, on_time_limit="abort")
    gone: list[str] = []
    with pytest.raises(HypervisorError, match="not running" if state == OFF else "could not migrate"):
        hypervisor.migrate(uuid, params, lambda _facts: None, lambda: bool(gone.append("called")))
    assert place.state(uuid) == state and not gone
    hypervisor.destroy(uuid)
