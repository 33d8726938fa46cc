# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent of a server's host plans for a change: it is asked for a dry run of what the conductors would send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from magnetar_control.agents import plain
from magnetar_control.compute.caller import Caller
from magnetar_core.actions import ACTIONS
from magnetar_core.client import Client
from magnetar_core.errors import HypervisorDown, NotFound, TimedOut, Unreachable
from magnetar_core.plan import Step
from magnetar_core.reconcile import Document, warn

from .server_plan import Act, steps

#: Seconds that the agent has to answer.
LIMIT = 10.0
LAST_KNOWN = "The steps are predicted from what was last known of the server."


def predicted(caller: Caller, acts: Sequence[Act], want: Document, have: Document) -> list[Step]:
    """The steps of *acts* on the server's host. The agent says them up to the first act that is more than another power
    state; what comes after that starts from a state that the host is not in yet. Raises what the agent refuses; where
    it does not answer, warns of it."""
    host = caller.cloud.hosts.get(have["_host"])
    if host is None or not any(_wish(act, want, have) for act in acts):
        return steps(acts)
    if not host.up:
        warn(f"{plain(Unreachable())} {LAST_KNOWN}")
        return steps(acts)
    try:
        with caller.cloud.agents.client(host.endpoint) as client:
            client.get("server", have["id"])
            return list(_planned(client, acts, want, have))
    except (Unreachable, TimedOut, HypervisorDown) as error:
        warn(f"{plain(error)} {LAST_KNOWN}")
    except NotFound:
        warn(f"The server's host does not have it. {LAST_KNOWN}")
    return steps(acts)


def _planned(client: Client, acts: Sequence[Act], want: Document, have: Document) -> Iterator[Step]:
    """The documents are asked for one after the other, each with what the ones before it say, as nothing of them is
    done: what the agent plans then begins with the steps that are known. Where it does not, it has a shorter way than
    the server actions, and is not asked further."""
    document: Document = {}
    known: list[Step] = []
    asking = True
    for act in acts:
        wish = _wish(act, want, have)
        if wish is None or not asking:
            yield from steps([act])
            continue
        document.update(wish)
        found = _dry_run(client, have, document)
        asking = found[:len(known)] == known and (act.do != "rebuild" or found != known)
        yield from found[len(known):] if asking else steps([act])
        known = found
        asking = asking and set(document) == {"power"}


def _dry_run(client: Client, have: Document, document: Document) -> list[Step]:
    rebuild: Mapping[str, Any] = have.get("rebuild") or {}
    answer = client.ensure("server", have["id"], document, "rebuild" if rebuild else "fail", dry_run=True,
                           timeout=LIMIT, allow_reboot=True,
                           preserve_ephemeral=bool(rebuild.get("preserve_ephemeral")))
    return [Step(one["verb"], one["text"]) for one in answer["steps"] if one["verb"] != "record"]


def _wish(act: Act, want: Document, have: Document) -> Document | None:
    """What the conductors send to the agent for an act, of its document of the server; ``None`` for acts that change
    nothing of it, or that are asked for otherwise."""
    row = ACTIONS.get(act.do)
    if row is not None and row.want:
        return dict(row.want)
    running = {"power": "running"}
    if act.do == "resize":
        sizes = {name: want["flavor"][name] for name in ("vcpus", "ram", "swap")}
        disks = {name: max(size, want["flavor"][name]) for name, size in have["_disks"].items()}
        return {"flavor": {**sizes, **disks}}
    if act.do == "rebuild":
        key = {"key_name": want["key_name"]} if want["key_name"] != have["key_name"] else {}
        return {"image": want["image"]["id"], "user_data": want["user_data"], "metadata": want["metadata"], **key}
    if act.do == "rescue":
        return {"rescue": {"image": act.args["image"]} if act.args["image"] else {}, **running}
    return {"rescue": None, **running} if act.do == "unrescue" else None
