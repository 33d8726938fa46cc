# SPDX-License-Identifier: GPL-3.0-or-later
"""server: what a domain, its disks and its config drive have to be, and the verbs that make them so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from magnetar_agent import hypervisor as hv
from magnetar_agent import servers
from magnetar_agent.drivers import Fields, Verb
from magnetar_agent.migrations import refuse_while_it_moves
from magnetar_agent.servers import choose, spec, verbs
from magnetar_core.errors import Conflict, Immutable
from magnetar_core.fields import SHOW
from magnetar_core.kinds import Server
from magnetar_core.plan import Step

if TYPE_CHECKING:
    from magnetar_agent.agent import Agent
    from magnetar_agent.documents import Document

MISSING = "missing"
ACTIVE = (hv.RUNNING, hv.PAUSED)

#: From what is seen to what is wanted: the verbs in between.
POWER: Mapping[tuple[str, str], tuple[str, ...]] = {
    (hv.RUNNING, hv.OFF): ("stop",),
    (hv.RUNNING, hv.PAUSED): ("pause",),
    (hv.RUNNING, hv.SUSPENDED): ("save",),
    (hv.OFF, hv.RUNNING): ("start",),
    (hv.OFF, hv.PAUSED): ("start_paused",),
    (hv.OFF, hv.SUSPENDED): ("start", "save"),
    (hv.PAUSED, hv.RUNNING): ("resume",),
    (hv.PAUSED, hv.OFF): ("resume", "stop"),
    (hv.PAUSED, hv.SUSPENDED): ("save",),
    (hv.SUSPENDED, hv.RUNNING): ("start",),
    (hv.SUSPENDED, hv.OFF): ("start", "stop"),
    (hv.SUSPENDED, hv.PAUSED): ("start_paused",),
}
#: The words of the steps, for people.
TEXT = {
    "disks": "make the disks", "drive": "write the config drive", "define": "define the domain",
    "grow": "grow the root disk", "start": "start", "start_paused": "start, paused", "stop": "shut down",
    "pause": "pause", "resume": "resume", "save": "suspend to disk", "destroy": "power off",
    "undefine": "forget the domain", "erase": "remove the disks",
}
STATUS = {hv.RUNNING: "ACTIVE", hv.OFF: "SHUTOFF", hv.PAUSED: "PAUSED", hv.SUSPENDED: "SUSPENDED",
          hv.CRASHED: "SHUTOFF", MISSING: "ERROR"}


def plan(want: Fields | None, have: Fields | None) -> Iterator[Step]:
    """Yield the steps from *have* to *want*. *have* is ``observe``'s view: the server's fields as they are, and
    ``power`` (``missing`` without a domain), ``todo`` (files to make), ``lost`` (files gone), ``root_bytes``, and
    ``transient`` (undefined from outside: it would go when it stops).

    Raises ``Conflict`` or ``Immutable`` where there is no way that loses nothing.
    """
    for verb in _gone(have) if want is None else _there(want, have or NOTHING):
        yield Step(verb, TEXT[verb])


NOTHING: Fields = {"power": MISSING, "todo": ("disk", "config.iso"), "lost": (), "root_bytes": 0}


def _gone(have: Fields | None) -> Iterator[str]:
    have = have or {"power": MISSING}
    if have["power"] in (*ACTIVE, hv.CRASHED):
        yield "destroy"
    if have["power"] != MISSING:
        yield "undefine"
    yield "erase"


def _there(want: Fields, have: Fields) -> Iterator[str]:
    power = have["power"]
    shapes = () if power == MISSING else ("flavor", "networks")
    differs = [name for name in shapes if _shape(want, name) != _shape(have, name)]
    grows = want["flavor"]["disk"] * servers.GIB > have["root_bytes"] > 0
    if have["lost"]:
        raise Conflict(f"{', '.join(have['lost'])} of server {want['name']!r} is gone from the host. Restore the file, "
                       "or delete the server and make it again.", files=list(have["lost"]))
    if 0 < want["flavor"]["disk"] * servers.GIB < have["root_bytes"]:
        raise Immutable(f"flavor: the root disk of server {want['name']!r} has {have['root_bytes'] / servers.GIB:g} "
                        f"GiB and cannot shrink to {want['flavor']['disk']} GiB. Choose a flavor with a larger disk, "
                        "or delete the server and make it again.", fields=["flavor"])
    if (differs or grows) and power in (*ACTIVE, hv.SUSPENDED):
        if want["power"] != hv.OFF:
            raise Conflict(f"{', '.join(differs or ['flavor'])}: can change only while server {want['name']!r} is off, "
                           f"and it is {power}. Stop it first, or ask for power off in the same call.", fields=differs)
        yield from POWER[power, hv.OFF]
        power = hv.OFF
    if set(have["todo"]) - {"config.iso"}:
        yield "disks"
    if "config.iso" in have["todo"] and want["config_drive"]:
        yield "drive"
    if grows:
        yield "grow"
    told = [name for name in ("name", "description") if want[name] != have.get(name)]
    if power == MISSING or have.get("transient") or differs or told:
        yield "define"
    if power == hv.CRASHED and want["power"] != hv.OFF:
        yield "destroy"
    yield from POWER.get((hv.OFF if power in (MISSING, hv.CRASHED) else power, want["power"]), ())


def _shape(document: Fields, name: str) -> Any:
    if name == "flavor":
        return {size: document["flavor"][size] for size in ("vcpus", "ram")}
    return document[name]


class ServerDriver:
    """Servers are libvirt domains with disks under ``<state_dir>/servers/<uuid>``."""

    kind = Server
    unique_names = False
    verbs: Mapping[str, Verb] = verbs.VERBS

    def complete(self, agent: Agent, want: Fields, document: Document | None) -> Fields:
        """Resolve flavor, image, networks, key and kind of virtualisation; draw MACs."""
        refuse_while_it_moves(document)
        return choose.complete(agent, want, document)

    def release(self, agent: Agent, document: Document) -> None:
        """A server may go unless it is on its way to another host."""
        refuse_while_it_moves(document)

    def snapshot(self, agent: Agent) -> servers.Snapshot:
        """All domains in one pass; leases and networks when first asked for."""
        return servers.Snapshot(agent, agent.hypervisor.domains())

    def observe(self, agent: Agent, document: Document, snapshot: Any = None) -> Fields | None:
        """The server's fields as domain and files show them."""
        domain = snapshot.domains.get(document.id) if snapshot else agent.hypervisor.domain(document.id)
        if domain is not None and not domain.owned:
            domain = None  # somebody else's: left alone, and defining ours is refused
        folder = servers.folder(agent, document.id)
        needed = spec.files(document.want)
        absent = [name for name in needed if not (folder / name).exists()]
        made = document.state.get("made", [])
        have: Fields = {
            "power": MISSING,
            "todo": tuple(name for name in needed if name not in made),
            "lost": tuple(name for name in absent if name in made and name != "config.iso"),
            "root_bytes": document.state.get("root_bytes", 0),
        }
        if "config.iso" in absent and "config.iso" in made:
            have["todo"] += ("config.iso",)
        if domain is not None:
            have.update(spec.seen(agent, document, domain))
            have["power"] = _power(document, domain)
            have["transient"] = not domain.persistent
        return have

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """See ``plan`` of this module."""
        return plan(want, have)

    def show(self, agent: Agent, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Nova's names for what it is and does."""
        want, state = document.want, document.state
        power = (have or {}).get("power", MISSING)
        status = STATUS[power]
        if state.get("unfinished") and power == MISSING:
            status = "ERROR" if state.get("fault") else "BUILD"
        domains = snapshot or servers.Snapshot(agent, {})
        known = {
            **want,
            "id": document.id, "name": document.name,
            "image": {"id": want["image"], "name": state.get("image_name") or _image_name(agent, want["image"])}
            if want["image"] else None,
            "power_state": power, "status": status, "fault": state.get("fault"),
            "status_reason": state.get("reason", ""),
            "host": agent.host_name, "instance_name": servers.domain_name(document.id),
            "addresses": domains.addresses(want["networks"]) if power == hv.RUNNING else {},
            "console_log": str(servers.folder(agent, document.id) / "console.log"),
            "created_at": document.created_at, "updated_at": document.updated_at,
        }
        return {f.name: known.get(f.name) for f in Server.fields if f.at(None, SHOW)}

    def sweep(self, agent: Agent) -> list[str]:
        """Folders that no document knows: only what is empty is removed; the rest is told."""
        return servers.orphan_files(agent)


def _power(document: Document, domain: hv.Domain) -> str:
    """What is seen; a stopped domain whose QEMU died is crashed until it is started again."""
    return hv.CRASHED if domain.state == hv.OFF and document.state.get("crashed") else domain.state


def _image_name(agent: Agent, image: str) -> str | None:
    found = agent.documents.get("image", image)
    return found.name if found else None
