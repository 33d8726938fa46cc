# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type server: observes domains and disks, plans their changes, and shows servers under
Nova's names."""

from __future__ import annotations

import logging
import os.path
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from magnetar_agent import servers
from magnetar_agent.host import hypervisor as hv
from magnetar_agent.metadata.password import PASSWORD
from magnetar_agent.migrations import migration_of_server, refuse_while_it_moves, unsettled_migration
from magnetar_agent.reconcile.documents import HELD, Fields
from magnetar_agent.reconcile.task import Verb
from magnetar_agent.servers import rescue, resize, resolve, spec, verbs
from magnetar_agent.servers.adoption import adopted
from magnetar_agent.servers.disks import block_devices, image_links, own_disks, pmem, rbd_owner
from magnetar_agent.servers.hardware import cpu_modes, machines, mdevs, pci, placement, tpm
from magnetar_agent.servers.nics import addresses, function_settings, nics
from magnetar_agent.servers.rebuild import is_volume_away, missing_image
from magnetar_agent.volumes import attaching
from magnetar_core import adoption, server_plan
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.fields import SHOW
from magnetar_core.kinds import Server
from magnetar_core.local_disks import SWAP
from magnetar_core.plan import Step
from magnetar_core.power import BUILDING, CRASHED, ERROR, MISSING, OFF, POWERS, RESCUED, RUNNING, status_word

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

log = logging.getLogger(__name__)


class ServerDriver:
    """The driver that creates, changes and removes this host's resources of the type server: libvirt domains with disks
    under ``<state_dir>/servers/<uuid>``."""

    kind = Server
    unique_names = False
    verbs: Mapping[str, Verb] = verbs.VERBS

    def locate(self, host: LocalHost, key: str) -> str:
        """Return *key*, from an API request, unchanged: it is the server's name or uuid already. (Drivers of other
        types resolve keys such as ``SERVER:VOLUME``.)"""
        return key

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* in the form in which they are stored: with the sizes of the flavor, the
        uuid of the image, the chosen type of virtualisation (kvm or qemu), and a MAC address for each NIC. *document*:
        the stored server, ``None`` for a new one."""
        refuse_while_it_moves(host, document)
        if document is not None and adopted.is_adopted(document):
            return adopted.complete_adopted(host, want, document)
        completed = resolve.complete_server(host, want, document)
        tpm.check_tpm_secret(completed, document)
        return completed

    def check_replacement(self, host: LocalHost, want: Fields, requested: Fields, document: Document) -> None:
        """Raise an error if a server with the fields *want* could not be created after the removal of the old server
        *document*: the host lacks the image's content, or volumes of the block device mapping cannot be used."""
        for field, image, old in (("image", want["image"], document.want["image"]),
                                  ("rescue", _rescue_image(want), _rescue_image(document.want))):
            # A dry run may assume an image that is not here yet.
            if not image or not (image == old or host.documents.get("image", image)):
                continue
            if not image_links.is_complete(host, image):
                raise Conflict(f"{field}: the image of server {document.name!r} is no longer on this host, or has no "
                               "content there, so the server cannot be recreated. Register it again and send its "
                               "content, or name another image.", field=field)
        block_devices.check_replacement(host, want, document)

    def release(self, host: LocalHost, document: Document) -> None:
        """Raise ``Conflict`` if the server must not be removed now: it takes part in a migration that has not ended."""
        refuse_while_it_moves(host, document)
        if migration := unsettled_migration(host, document.id):
            raise Conflict(f"Server {document.name!r} has arrived with migration {migration}, which has not ended. Run "
                           "the migration again, then delete the server.", migration=migration)

    def snapshot(self, host: LocalHost, document: Document | None = None) -> servers.DomainsView:
        """Return a snapshot of all domains of the host, or only of the domain of *document*. DHCP leases, volume
        attachments and PCI devices are read when they are first used."""
        return servers.DomainsView(host, servers.domains_of_server(host, document.id) if document
                                   else host.hypervisor.domains())

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the current state of the server, from its domain and its files, as ``server_plan.plan_server`` needs
        it. If the server has no domain, ``power`` is ``missing``. *snapshot*: a result of the method ``snapshot``;
        ``None``: ask libvirt now."""
        domain = snapshot.domains.get(document.id) if snapshot else host.hypervisor.domain(document.id)
        if adopted.is_adopted(document):
            return adopted.observe_adopted(host, document, domain)
        if domain is not None and not domain.owned:
            domain = None  # not ours: left alone, and defining ours is refused
        needed = spec.required_files(document.want)
        absent = [name for name in needed if not os.path.exists(servers.server_path(host, document.id, name))]  # noqa: PTH110
        made = document.state.get("made", [])
        have: Fields = {
            "power": MISSING,
            "todo": tuple(name for name in needed if name not in made),
            "lost": tuple(name for name in absent if name in made and name != "config.iso"),
            **resize.recorded_sizes(document),
        }
        if snapshot is None:  # for a plan: whether a rebuild could use the image
            have["gone"], have["volume_away"] = missing_image(host, document), is_volume_away(host, document)
        have.update(rescue.observe_rescue(host, document, domain))
        if "config.iso" in absent and "config.iso" in made:
            have["todo"] += ("config.iso",)
        if domain is not None:
            have.update(spec.fields_of_domain(host, document, domain))
            have["power"] = _power(document, domain)
            have["transient"] = not domain.persistent or _has_dropped(domain, have["sizes"])
        look = snapshot or servers.DomainsView(host, {})
        have["attached"] = bool(look.volumes(document.id) or server_plan.volume_block_devices(document.want))
        have[addresses.RESERVED] = document.state.get(addresses.RESERVED, [])
        have["told"] = bool(addresses.reservations_of(document))
        have["drive"], have["pulled"] = document.state.get("drive"), bool(document.state.get(nics.PULLED))
        have["volumes_made"] = bool(document.state.get("volumes_made"))
        return have

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps from the current state *have* to the requested fields *want* (``None``: remove the server).
        Adopted servers, whose domain another program defined, have only steps that leave the definition unchanged."""
        if have is not None and have.get("adopted"):
            return adoption.plan_adopted(want, have)
        return server_plan.plan_server(want, have)

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the server as API responses show it, with Nova's names for its state. *have*: the result of
        ``observe``. *snapshot*: a result of the method ``snapshot``; ``None``: ask libvirt now."""
        want, state = {**document.want, **(have or {}).get("shown", {})}, document.state
        power = (have or {}).get("power", MISSING)
        domains = snapshot or servers.DomainsView(host, {})
        values = {
            **want,
            "volumes_attached": [_attached(host, attachment) for attachment in domains.volumes(document.id)
                                 if attaching.is_current(host, attachment)],
            "id": document.id, "name": document.name,
            "image": {"id": want["image"], "name": _image_name(host, want["image"]) or state.get("image_name")}
            if want["image"] else None,
            **_condition(document, power, (have or {}).get("rescue")), "fault": state.get("fault"),
            "guest_password": state.get(PASSWORD, ""), "placement": want.get(placement.FIELD, {}),
            "pci_devices": want.get(pci.FIELD, {}),
            "nic_devices": pci.nic_device_facts(want, partial(domains.devices, pci.assignable_devices)),
            "mdev": want.get(mdevs.FIELD), "pmem_namespaces": [namespace["name"] for namespace in want.get(pmem.FIELD)
                                                               or ()],
            "host": host.name, "instance_name": (have or {}).get("domain") or servers.domain_name(document.id),
            "adopted": adopted.shown_adoption(document, have), "locked": False,
            "addresses": domains.addresses(want["networks"], power == RUNNING),
            "console_log": servers.server_path(host, document.id, "console.log"),
            "created_at": document.created_at, "updated_at": document.updated_at,
        }
        return {f.name: values.get(f.name) for f in Server.fields if SHOW in f.on}

    def sweep(self, host: LocalHost) -> None:
        """Update libvirt's definitions of domains that were defined by an earlier agent or with other settings; the
        change takes effect at the domain's next start. Unlike other drivers' ``sweep``, remove nothing.

        A definition is outdated if it lacks the backing files of disks or the names of taps, or if it differs from the
        settings for SPICE, CPU mode, memory in files or shared CPUs. Also store machine type versions that are not
        stored yet, write the owners of RBD images into Ceph, and reset SR-IOV virtual functions that no server has.
        """
        function_settings.reset_free_functions(host)
        rbd_owner.record_all_rbd_disks(host)
        floating, domains = placement.shared_cpus(host), host.hypervisor.domains()
        machines.record_machine_versions(host, domains)
        for id, domain in domains.items():
            old = (domain.probed or any(nic.tap is None and not nic.device for nic in domain.nics)
                   or domain.spice is not host.settings.spice)
            old = old or (domain.owned and (domain.cpuset != floating or cpu_modes.is_other(host, domain) or
                                            domain.file_backed is not bool(host.settings.file_backed_memory)))
            if domain.owned and not domain.adopted and old and host.documents.get(self.kind.noun, id):
                with host.locks.hold(self.kind.noun, id):
                    _define_anew(host, id)

    def left(self, host: LocalHost) -> list[str]:
        """Return the folders and logical volumes of servers that have no document."""
        return own_disks.orphan_server_disks(host)


def _define_anew(host: LocalHost, id: str) -> None:
    document = host.documents.get("server", id)
    if document is None or document.deleting or document.state.get("unfinished") or migration_of_server(host, document):
        return  # its current operation defines it, or is done with it
    try:
        host.hypervisor.define(spec.domain_spec(host, document))
    except MagnetarError as error:
        log.warning("server %s is not defined again: %s", document.name, error, extra={"server": id})


def server_condition(host: LocalHost, document: Document, domain: hv.Domain | None) -> Fields:
    """Return the fields that describe the server's state: ``power_state``, ``status``, ``status_reason``; and ``held``,
    true while the server must not start until its control plane permits it. *domain*: the server's domain, ``None`` if
    it has none."""
    power = MISSING if domain is None or not domain.owned else _power(document, domain)
    return _condition(document, power, document.state.get("rescue")
                      and rescue.observe_rescue(host, document, None)["rescue"])


def _condition(document: Document, power: str, rescued: Any) -> Fields:
    state = document.state
    status = status_word(RESCUED if power != MISSING and rescued else POWERS[power].vm_state or ERROR)
    if state.get("unfinished") and (power == MISSING or (power == OFF and state.get("making"))):
        status = status_word(ERROR if state.get("fault") else BUILDING)
    held_field = {HELD: True} if state.get(HELD) else {}
    return {"power_state": power, "status": status, "status_reason": state.get("reason", ""), **held_field}


def _has_dropped(domain: hv.Domain, sizes: Fields) -> bool:
    """Return whether the domain's definition still has a swap disk, although the server no longer has one: the agent
    was interrupted between removing the disk and redefining the domain. *sizes*: the sizes of the server's current
    disks by file name."""
    return SWAP not in sizes and any(disk.path.name.endswith(SWAP) for disk in domain.disks)


def _power(document: Document, domain: hv.Domain) -> str:
    """Return the power state of the *domain*. A domain that is off because its QEMU crashed counts as ``crashed`` until
    it is started again."""
    return CRASHED if domain.state == OFF and document.state.get("crashed") else domain.state


def _attached(host: LocalHost, attachment: Document) -> Fields:
    volume = host.documents.get("volume", attachment.want["volume"])
    return {"id": attachment.want["volume"], "name": volume.name if volume else "", "device": attachment.want["device"],
            "delete_on_termination": attachment.want["delete_on_termination"]}


def _rescue_image(want: Fields) -> str | None:
    return (want.get("rescue") or {}).get("image")


def _image_name(host: LocalHost, image: str) -> str | None:
    image_document = host.documents.get("image", image)
    return image_document.name if image_document else None
