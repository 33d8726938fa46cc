# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent of a server's host plans for a change: it is asked for a dry run of what the conductors would send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from magnetar_control.agents import plain
from magnetar_control.compute.caller import Caller
from magnetar_core.errors import HypervisorDown, NotFound, TimedOut, Unreachable
from magnetar_core.http.client import Client
from magnetar_core.plan import Step
from magnetar_core.reconcile import Document, warn

from .server_plan import PlannedAction, predictions, steps, wish

#: Seconds that the agent has to answer.
LIMIT = 10.0
LAST_KNOWN = "The steps are predicted from what was last known of the server."


def predicted(caller: Caller, actions: Sequence[PlannedAction], want: Document, have: Document) -> list[Step]:
    """The steps of *actions* on the server's host. Its agent says those up to the first action that is more than
    another power state; the next starts from a state that the host is not in yet. Raises what the agent refuses; warns
    of an agent that does not answer."""
    host = caller.cloud.hosts.get(have["_host"])
    try:
        if host is not None and any(wish(action, want, have) for action in actions):
            if not host.up:
                raise Unreachable
            with caller.cloud.agents.client(host.endpoint, LIMIT) as client:
                client.get("server", have["id"])
                return list(_planned(client, actions, want, have))
    except (Unreachable, TimedOut, HypervisorDown) as error:
        warn(f"{plain(error)} {LAST_KNOWN}")
    except NotFound:
        warn(f"The server's host does not have it. {LAST_KNOWN}")
    return steps(actions, want, have)


def _planned(client: Client, actions: Sequence[PlannedAction], want: Document, have: Document) -> Iterator[Step]:
    """The agent is asked for the documents of the actions one after the other. Nothing of them is done, so each
    document says what those before it say too, and the agent's plan begins with the steps that are known already.
    Where it does not, the agent has a shorter way than the server actions, and is not asked further."""
    rebuild: Mapping[str, Any] = have.get("rebuild") or {}
    document: Document = {}
    known: list[Step] = []
    asking = True
    for action, wished, expected in predictions(actions, want, have):
        asking = asking and not (action.key == "resize" and want["_assumed"])  # nobody knows the flavor's sizes yet
        asking = asking and action.key != "unshelve"
        asking = asking and (action.key != "rebuild" or bool(want["image"]))  # the volume service knows of volumes
        if wished is None or not asking:
            yield from expected
            continue
        document.update(wished)
        answer = client.ensure("server", have["id"], document, "rebuild" if rebuild else "fail", dry_run=True,
                               timeout=LIMIT, allow_reboot=True,
                               preserve_ephemeral=bool(rebuild.get("preserve_ephemeral")))
        found = [Step(one["verb"], one["text"]) for one in answer["steps"] if one["verb"] != "record"]
        asking = found[:len(known)] == known and (action.key != "rebuild" or found != known)
        yield from found[len(known):] if asking else expected
        known, asking = found, asking and set(document) == {"power"}
