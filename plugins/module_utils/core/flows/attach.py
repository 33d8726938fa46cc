# SPDX-License-Identifier: GPL-3.0-or-later
"""attach: a server of one host has a volume of another. The coordinator's part; the data goes from agent to agent.

First the volume's host gives leave (``volume_export``), then the server's host attaches (``volume_attachment``); a
detachment goes the other way round. Each may be done again. *sure* is called before each: it raises where the caller is
no longer the one who does this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from ..errors import InvalidField, NotFound
from ..reconcile import assumed
from . import always

if TYPE_CHECKING:
    from . import Sure
    from .migrate import Side


def attach(here: Side, there: Side, server: str, volume: str, want: dict[str, Any], sure: Sure = always,
           **waiting: Any) -> dict[str, Any]:
    """*server* of *here* has *volume* of *there*. *want*: what volume_attachment takes besides; *waiting*: further
    arguments of ``Client.ensure``. Returns the attachment's answer, whose ``steps`` begin with the export's. A dry run
    assumes that an earlier one makes what is not there yet."""
    try:
        found, disk = _named(here, "server", server), _named(there, "volume", volume)
    except InvalidField as error:
        if not waiting.get("dry_run"):
            raise
        return _assumed(str(error.details["field"]), server, volume, want)
    if _same(here, there):
        sure()
        return here.client.ensure("volume_attachment", "%s:%s" % (found["id"], disk["id"]),
                                  dict(want, server=found["id"], volume=disk["id"]), **waiting)
    key = "%s:%s" % (found["id"], disk["id"])
    leave = {"server": found["id"], "server_name": found["name"], "volume": disk["id"], "peers": [here.link_name()],
             "readonly": bool(want.get("readonly"))}
    dry = {"dry_run": waiting.get("dry_run", False)}
    sure()
    export = there.client.ensure("volume_export", key, leave, timeout=waiting.get("timeout"), **dry)
    origin = dict(export["resource"]["origin"], address=there.link_address())
    sure()
    made = here.client.ensure("volume_attachment", key,
                              dict(want, server=found["id"], volume=disk["id"], origin=origin), **waiting)
    if "steps" in made:
        made["steps"] = list(export["steps"]) + list(made["steps"])
        made["changed"] = bool(made["changed"] or export["changed"])
    return made


def detach(here: Side, there: Optional[Side], server: str, volume: str, sure: Sure = always,
           **waiting: Any) -> dict[str, Any]:
    """*server* of *here* is without *volume*. *there*, the volume's host, is told by the server's; given here too,
    what an attachment that was never finished left there goes as well."""
    key = "%s:%s" % (server, volume)
    if there is not None:
        found, disk = _id(here, "server", server), _id(there, "volume", volume)
        key = "%s:%s" % (found, disk)
    sure()
    answer = here.client.delete("volume_attachment", key, **waiting)
    if there is not None and not _same(here, there):
        sure()
        closed = there.client.delete("volume_export", key, dry_run=waiting.get("dry_run", False))
        if closed["changed"] and "steps" in answer:
            answer["steps"] = list(answer["steps"]) + list(closed["steps"])
            answer["changed"] = True
    return answer


def _assumed(noun: str, server: str, volume: str, want: dict[str, Any]) -> dict[str, Any]:
    """The answer to a dry run while the *noun*, server or volume, is not there."""
    return {"changed": True, "steps": [{"verb": "open"}, {"verb": "attach"}], "diff": [],
            "resource": dict(want, server=server, volume=volume),
            "warnings": [assumed(noun, server if noun == "server" else volume)]}


def _same(here: Side, there: Side) -> bool:
    """Whether both are one host, which needs no link to itself."""
    return all(here.host[name] == there.host[name] for name in ("id", "name", "link_name"))


def _named(side: Side, noun: str, key: str) -> dict[str, Any]:
    try:
        return side.client.get(noun, key)
    except NotFound:
        raise InvalidField(noun, "must name a %s of %s" % (noun, side.host["name"]), key) from None


def _id(side: Side, noun: str, key: str) -> str:
    """The uuid; the key itself when there is none, for what is absent may be asked to be so."""
    try:
        return str(side.client.get(noun, key)["id"])
    except NotFound:
        return key
