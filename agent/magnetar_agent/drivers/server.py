# SPDX-License-Identifier: GPL-3.0-or-later
"""server: what a domain, its disks and its config drive have to be, and the verbs that make them so."""

from __future__ import annotations

import logging
import os.path
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from magnetar_agent import servers
from magnetar_agent.host import hypervisor as hv
from magnetar_agent.metadata.password import PASSWORD
from magnetar_agent.migrations import moving, refuse_while_it_moves, settling
from magnetar_agent.reconcile.documents import HELD, Fields
from magnetar_agent.reconcile.task import Verb
from magnetar_agent.servers import rescue, resize, resolve, spec, verbs
from magnetar_agent.servers.disks import block_devices, image_links, own_disks, pmem
from magnetar_agent.servers.hardware import cpu_modes, machines, mdevs, pci, placement, tpm
from magnetar_agent.servers.nics import addresses, function_settings, nics
from magnetar_agent.servers.rebuild import is_volume_away, missing_image
from magnetar_agent.volumes import attaching
from magnetar_core import server_plan
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.fields import SHOW
from magnetar_core.kinds import Server
from magnetar_core.local_disks import SWAP
from magnetar_core.plan import Step
from magnetar_core.power import BUILDING, CRASHED, ERROR, MISSING, OFF, POWERS, RESCUED, RUNNING
from magnetar_core.power import status as status_word

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

log = logging.getLogger(__name__)


class ServerDriver:
    """Servers are libvirt domains with disks under ``<state_dir>/servers/<uuid>``."""

    kind = Server
    unique_names = False
    verbs: Mapping[str, Verb] = verbs.VERBS

    def locate(self, host: LocalHost, key: str) -> str:
        """Keys are names or uuids."""
        return key

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Resolve flavor, image, networks, key and kind of virtualisation; draw MACs."""
        refuse_while_it_moves(host, document)
        found = resolve.complete(host, want, document)
        tpm.check_given(found, document)
        return found

    def check_replacement(self, host: LocalHost, want: Fields, given: Fields, document: Document) -> None:
        """What it is made from must still be here; the server's own hold on it goes with the old one."""
        for field, image, old in (("image", want["image"], document.want["image"]),
                                  ("rescue", _rescue_image(want), _rescue_image(document.want))):
            # A dry run may assume an image that is not here yet.
            if not image or not (image == old or host.documents.get("image", image)):
                continue
            if not image_links.is_complete(host, image):
                raise Conflict(f"{field}: the image of server {document.name!r} is no longer on this host, or has no "
                               "content there, so the server cannot be made anew. Register it again and send its "
                               "content, or name another image.", field=field)
        block_devices.check_replacement(host, want, document)

    def release(self, host: LocalHost, document: Document) -> None:
        """A server may go unless it is on its way to another host, or from there."""
        refuse_while_it_moves(host, document)
        if migration := settling(host, document.id):
            raise Conflict(f"Server {document.name!r} has arrived with migration {migration}, which has not ended. Run "
                           "the migration again, then delete the server.", migration=migration)

    def snapshot(self, host: LocalHost, document: Document | None = None) -> servers.DomainsView:
        """All domains in one pass; leases and networks when first asked for."""
        return servers.DomainsView(host, servers.seen(host, document.id) if document else host.hypervisor.domains())

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """What ``server_plan.plan`` takes: the server's fields as domain and files show them."""
        domain = snapshot.domains.get(document.id) if snapshot else host.hypervisor.domain(document.id)
        if domain is not None and not domain.owned:
            domain = None  # somebody else's: left alone, and defining ours is refused
        needed = spec.files(document.want)
        absent = [name for name in needed if not os.path.exists(servers.path(host, document.id, name))]  # noqa: PTH110
        made = document.state.get("made", [])
        have: Fields = {
            "power": MISSING,
            "todo": tuple(name for name in needed if name not in made),
            "lost": tuple(name for name in absent if name in made and name != "config.iso"),
            **resize.seen(document),
        }
        if snapshot is None:  # somebody plans: whether a rebuild could use the image
            have["gone"], have["volume_away"] = missing_image(host, document), is_volume_away(host, document)
        have.update(rescue.seen(host, document, domain))
        if "config.iso" in absent and "config.iso" in made:
            have["todo"] += ("config.iso",)
        if domain is not None:
            have.update(spec.seen(host, document, domain))
            have["power"] = _power(document, domain)
            have["transient"] = not domain.persistent or _has_dropped(domain, have["sizes"])
        look = snapshot or servers.DomainsView(host, {})
        have["attached"] = bool(look.volumes(document.id) or server_plan.volume_items(document.want))
        have[addresses.RESERVED] = document.state.get(addresses.RESERVED, [])
        have["told"] = bool(addresses.reservations_of(document))
        have["drive"], have["pulled"] = document.state.get("drive"), bool(document.state.get(nics.PULLED))
        have["volumes_made"] = bool(document.state.get("volumes_made"))
        return have

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """See ``server_plan.plan``."""
        return server_plan.plan(want, have)

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Nova's names for what it is and does."""
        want, state = document.want, document.state
        power = (have or {}).get("power", MISSING)
        domains = snapshot or servers.DomainsView(host, {})
        known = {
            **want,
            "volumes_attached": [_attached(host, one) for one in domains.volumes(document.id)
                                 if attaching.is_current(host, one)],
            "id": document.id, "name": document.name,
            "image": {"id": want["image"], "name": _image_name(host, want["image"]) or state.get("image_name")}
            if want["image"] else None,
            **_condition(document, power, (have or {}).get("rescue")), "fault": state.get("fault"),
            "guest_password": state.get(PASSWORD, ""), "placement": want.get(placement.FIELD, {}),
            "pci_devices": want.get(pci.FIELD, {}),
            "nic_devices": pci.told_of_nics(want, partial(domains.devices, pci.devices)),
            "mdev": want.get(mdevs.FIELD), "pmem_namespaces": [one["name"] for one in want.get(pmem.FIELD) or ()],
            "host": host.name, "instance_name": servers.domain_name(document.id),
            "addresses": domains.addresses(want["networks"], power == RUNNING),
            "console_log": servers.path(host, document.id, "console.log"),
            "created_at": document.created_at, "updated_at": document.updated_at,
        }
        return {f.name: known.get(f.name) for f in Server.fields if SHOW in f.on}

    def sweep(self, host: LocalHost) -> None:
        """Leaves nothing that may be removed. Domains that an earlier agent defined without saying what their disks
        stand on, or what their taps are called, are defined anew, and so are those that have SPICE or lack it against
        the settings, have another CPU mode, memory in files or not, or may be on CPUs that the settings do not share:
        it holds from their next start. Versions of machine types that such an agent did not note are noted."""
        function_settings.give_back(host)
        floating, domains = placement.shared(host), host.hypervisor.domains()
        machines.record(host, domains)
        for id, domain in domains.items():
            old = (domain.probed or any(nic.tap is None and not nic.device for nic in domain.nics)
                   or domain.spice is not host.settings.spice)
            old = old or (domain.owned and (domain.cpuset != floating or cpu_modes.is_other(host, domain) or
                                            domain.file_backed is not bool(host.settings.file_backed_memory)))
            if domain.owned and old and host.documents.get(self.kind.noun, id):
                with host.locks.hold(self.kind.noun, id):
                    _define_anew(host, id)

    def left(self, host: LocalHost) -> list[str]:
        """Folders of servers, and their logical volumes."""
        return own_disks.left(host)


def _define_anew(host: LocalHost, id: str) -> None:
    document = host.documents.get("server", id)
    if document is None or document.deleting or document.state.get("unfinished") or moving(host, document):
        return  # what changes it now defines it, or is done with it
    try:
        host.hypervisor.define(spec.domain(host, document))
    except MagnetarError as error:
        log.warning("server %s is not defined anew: %s", document.name, error, extra={"server": id})


def condition(host: LocalHost, document: Document, domain: hv.Domain | None) -> Fields:
    """The fields of the server that say how it is: power_state, status, status_reason; and ``held`` (true) of one that
    starts when its cloud says so."""
    power = MISSING if domain is None or not domain.owned else _power(document, domain)
    return _condition(document, power, document.state.get("rescue") and rescue.seen(host, document, None)["rescue"])


def _condition(document: Document, power: str, rescued: Any) -> Fields:
    state = document.state
    status = status_word(RESCUED if power != MISSING and rescued else POWERS[power].vm_state or ERROR)
    if state.get("unfinished") and (power == MISSING or (power == OFF and state.get("making"))):
        status = status_word(ERROR if state.get("fault") else BUILDING)
    held = {HELD: True} if state.get(HELD) else {}
    return {"power_state": power, "status": status, "status_reason": state.get("reason", ""), **held}


def _has_dropped(domain: hv.Domain, sizes: Fields) -> bool:
    """Whether the definition has a swap disk that the document has dropped: the agent died before it was defined."""
    return SWAP not in sizes and any(disk.path.name.endswith(SWAP) for disk in domain.disks)


def _power(document: Document, domain: hv.Domain) -> str:
    """The power state; a stopped domain whose QEMU died is crashed until it is started again."""
    return CRASHED if domain.state == OFF and document.state.get("crashed") else domain.state


def _attached(host: LocalHost, one: Document) -> Fields:
    volume = host.documents.get("volume", one.want["volume"])
    return {"id": one.want["volume"], "name": volume.name if volume else "", "device": one.want["device"],
            "delete_on_termination": one.want["delete_on_termination"]}


def _rescue_image(want: Fields) -> str | None:
    return (want.get("rescue") or {}).get("image")


def _image_name(host: LocalHost, image: str) -> str | None:
    found = host.documents.get("image", image)
    return found.name if found else None
