# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps that the agent of a server's host plans for a change. The agent gets the requests that conductors would
send, as dry runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from magnetar_control.agents import user_message
from magnetar_control.compute.caller import Caller
from magnetar_core.document import Document
from magnetar_core.errors import HypervisorDown, NotFound, TimedOut, Unreachable
from magnetar_core.http.client import Client
from magnetar_core.plan import Step
from magnetar_core.reconcile import warn_caller

from .server_plan import PlannedAction, agent_document, predict_actions, steps_of_actions

#: Seconds that the agent has to answer.
LIMIT = 10.0
LAST_KNOWN = "The steps are predicted from what was last known of the server."


def predict_agent_steps(caller: Caller, actions: Sequence[PlannedAction], want: Document, have: Document) -> list[Step]:
    """Return the steps that the agent of the server's host would do for *actions*, for a dry run of a change from
    *have* to *want*.

    The agent plans the steps of the first actions, up to and including the first one that changes more than the power
    state. Later actions would start from a state that the host does not have yet, so this function itself predicts the
    steps of these actions. If the agent does not answer, this function predicts all steps, and adds a warning to the
    answer. If the agent refuses the change, raise the agent's error.
    """
    host = caller.cloud.hosts.get(have["_host"])
    try:
        if host is not None and any(agent_document(action, want, have) for action in actions):
            if not host.up:
                raise Unreachable
            with caller.cloud.agents.client(host.endpoint, LIMIT) as client:
                client.get("server", have["id"])
                return list(_planned(client, actions, want, have))
    except (Unreachable, TimedOut, HypervisorDown) as error:
        warn_caller(f"{user_message(error)} {LAST_KNOWN}")
    except NotFound:
        warn_caller(f"The server's host does not have it. {LAST_KNOWN}")
    return steps_of_actions(actions, want, have)


def _planned(client: Client, actions: Sequence[PlannedAction], want: Document, have: Document) -> Iterator[Step]:
    """Yield the steps of each of *actions*, as the agent plans them; each action needs one dry run of the agent.

    Because a dry run changes nothing, the request for an action also contains the fields of all previous actions. The
    agent's plan then begins with the steps of the previous actions. These steps were already yielded, so only the
    further steps of the plan are yielded. If a plan begins differently, the steps of its action and of all later
    actions are predicted without the agent.
    """
    rebuild: Mapping[str, Any] = have.get("rebuild") or {}
    document: Document = {}
    planned_steps: list[Step] = []
    asking = True
    for action, wished, expected in predict_actions(actions, want, have):
        asking = asking and not (action.key == "resize" and want["_assumed"])  # the flavor's sizes are not known yet
        asking = asking and action.key != "unshelve"
        asking = asking and (action.key != "rebuild" or bool(want["image"]))  # only the volume service knows volumes
        if wished is None or not asking:
            yield from expected
            continue
        document.update(wished)
        answer = client.ensure("server", have["id"], document, "rebuild" if rebuild else "fail", dry_run=True,
                               timeout=LIMIT, allow_reboot=True,
                               preserve_ephemeral=bool(rebuild.get("preserve_ephemeral")))
        agent_steps = [Step(step["verb"], step["text"]) for step in answer["steps"] if step["verb"] != "record"]
        asking = agent_steps[:len(planned_steps)] == planned_steps and (action.key != "rebuild"
                                                                        or agent_steps != planned_steps)
        yield from agent_steps[len(planned_steps):] if asking else expected
        planned_steps, asking = agent_steps, asking and set(document) == {"power"}
