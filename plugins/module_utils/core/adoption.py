# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of adopted servers: libvirt domains that another program has defined. Pure.

An agent never writes the definition of such a domain, and never touches its disks. It starts and stops the guest, and
marks the domain by an element in the metadata of libvirt. So most fields follow the domain, and few can be set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from .document import Document
from .errors import Conflict
from .plan import Step
from .power import CRASHED, LIVE, MISSING, OFF, verbs_between
from .server_plan import server_step

#: Note in a document's ``state``: the server is an adopted domain. {domain, at, disks}.
ADOPTED = "adopted"
#: Note in a document's ``state``: the server is being released, so its removal leaves the domain alone.
RELEASING = "releasing"
#: The fields that can be set: none of them is in the domain's definition.
CHANGEABLE = frozenset(("name", "description", "metadata", "tags", "power", "restart_on_crash", "resume_on_host_boot",
                        "shutdown_timeout"))
#: The events that an adopted server takes.
EVENTS = frozenset(("reboot", "crash_dump"))
#: What to do in place of a change that is refused, by field or operation.
REMEDIES: Mapping[str, str] = {
    "flavor": "Change CPUs and memory with virsh setvcpus and setmem, or virsh edit; the server follows its domain.",
    "networks": "Attach and detach NICs with virsh; the server follows its domain.",
    "volume_attachment": "Attach disks with virsh attach-disk.",
    "migration": "Migrate the domain with virsh migrate, and adopt it on the other host; release it here first.",
    "create_image": "Copy its disk with virsh blockcopy or backup-begin, and register the copy as an image.",
    "rebuild": "Replace the content of its disk by hand while it is off.",
    "rescue": "Attach a rescue disk with virsh.",
    "console_log": "Read the serial line (magnetar console), or the log that its definition names.",
    "change_password": "Set it with virsh set-user-password.",
}
#: The actions of ``actions.ACTIONS`` that an adopted server of a cloud refuses, each with its key of ``REMEDIES``.
REFUSED_ACTIONS: Mapping[str, str] = {
    "rebuild": "rebuild", "evacuate": "migration", "rescue": "rescue", "resize": "flavor", "migrate": "migration",
    "os-migrateLive": "migration", "createImage": "create_image", "createBackup": "create_image",
    "changePassword": "change_password", "shelve": "shelve", "attach_volume": "volume_attachment",
    "detach_volume": "volume_attachment", "swap_volume": "volume_attachment", "attach_interface": "networks",
    "detach_interface": "networks", "attach_share": "share_attachment", "detach_share": "share_attachment",
    "addFixedIp": "networks", "removeFixedIp": "networks", "injectNetworkInfo": "networks"}
_USUAL = "Change the domain with virsh edit: the server follows it."


def refused_for_adopted(name: str, what: str) -> Conflict:
    """Return the error that *what*, a field or an operation, is not possible for the server *name*, because the server
    is adopted: it is an existing libvirt domain, which the agent must not change.
    """
    return Conflict("%s: not possible for server %r. It is an adopted domain, whose definition and disks the agent "
                    "never changes. %s Or release it first (module adopt, state released)."
                    % (what, name, REMEDIES.get(what, _USUAL)), field=what)


def plan_adopted(want: Optional[Document], have: Document) -> Iterator[Step]:
    """Yield the steps that bring an adopted server from its present state *have* to its desired state *want* (``None``:
    removed). Another program has created the libvirt domain of an adopted server. Raises ``Conflict`` if a server that
    is not removed has no domain any more, or has a transient domain that would disappear when stopped.

    Keys of *have*: ``power``, the power state, and optionally ``owned`` (the domain's definition has the metadata with
    which Magnetar marks its domains), ``unmarked`` (the definition or the running domain lacks this mark),
    ``recorded_power`` (the power state that the agent has stored), ``transient`` (the domain runs, and another program
    has undefined it), ``releasing`` (the server is released, not deleted), ``paths`` (of the server's disks), and
    ``definition`` (the file with the domain's XML at the time of the adoption).
    """
    if want is None:
        yield from _removal_steps(have)
        return
    power, name = have["power"], want["name"]
    if power == MISSING:
        raise Conflict("The libvirt domain of adopted server %r is gone: another program undefined it. Define it again "
                       "(its definition at the adoption is %s), or delete the server, which leaves its disks in place."
                       % (name, have.get("definition")))
    if have.get("transient") and want["power"] not in LIVE:
        raise Conflict("The libvirt domain of adopted server %r was undefined while it runs, so it would vanish when "
                       "it stops. Define it again (virsh dumpxml, virsh define), then repeat the call." % name)
    if have.get("unmarked"):
        follows = want["power"] == have.get("recorded_power")  # nobody asks for another state than the guest has
        yield Step("mark_domain", "mark the domain as a server of Magnetar", follows=follows)
        if follows:
            return
    if power == CRASHED and want["power"] != OFF:
        yield server_step("destroy")
    for verb in verbs_between(OFF if power == CRASHED else power, want["power"]):
        yield server_step(verb)


def _removal_steps(have: Document) -> Iterator[Step]:
    is_ours = have["power"] != MISSING and have.get("owned")
    if have.get("releasing"):
        if is_ours:
            yield Step("unmark_domain", "remove Magnetar's mark from the domain, which stays as it is")
    elif is_ours:
        if have["power"] in (*LIVE, CRASHED):
            yield server_step("destroy")
        yield Step("undefine", "forget the domain; its disks, UEFI variables and TPM stay%s" % (
            ": " + ", ".join(have["paths"]) if have.get("paths") else ""))
    yield Step("erase", "remove the agent's folder of the server, in which no disk is")


def adopted_server_fields(want: Mapping[str, Any], former: Mapping[str, Any], current: Mapping[str, Any]) -> Document:
    """Return the fields that the agent stores for an adopted server when *want* is requested. *former*: the fields that
    are stored now. *current*: the fields that the server's libvirt domain has now. Raises ``Conflict`` if *want* has
    another value for a field that cannot be set.
    """
    fields = dict(current)
    for name, value in want.items():
        if name in CHANGEABLE:
            fields[name] = value
        elif value != former.get(name) and not _means(value, current.get(name)):
            raise refused_for_adopted(str(former.get("name", "")), name)
    return fields


def _means(value: Any, current: Any) -> bool:
    """Return whether the *current* value of a field satisfies the requested *value*: both are equal, or *value* is
    ``auto``. Mappings are compared only by the keys of *value*. Lists must have equal lengths; their items are compared
    in order."""
    if value in (current, "auto"):
        return True
    if isinstance(value, dict) and isinstance(current, dict):
        return all(key in current and _means(part, current[key]) for key, part in value.items())
    if isinstance(value, list) and isinstance(current, list):
        return len(value) == len(current) and all(map(_means, value, current))
    return False
