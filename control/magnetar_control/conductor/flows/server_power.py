# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of power actions: start, stop, pause, suspend, reboot, crash dump."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from magnetar_control.conductor.steps import keys, nics
from magnetar_control.conductor.worker.retry import flow_on_host
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_core.errors import Conflict, NotFound
from magnetar_core.http.client import Client
from magnetar_core.power import LIVE, SUSPENDED, power_number


def stop_guest(work: RunningAction, host: str) -> None:
    """Power off the guest on *host* if it runs. Do nothing if *host* does not have the server, because the server is
    then being moved and is already off."""
    work.confirm_lease()
    with work.client(host) as client:
        try:
            resource = client.get("server", work.id)
        except NotFound:
            return
        if resource["power_state"] in (*LIVE, SUSPENDED):
            work.confirm_lease()
            with work.guest(client) as watch:
                client.ensure("server", work.id, {"power": "off"}, progress=watch)


def _secret(work: RunningAction) -> dict[str, str]:
    """Return the secret of the guest's TPM as a field of the request to the agent, if the action starts the guest and
    the guest has a TPM; otherwise an empty dict."""
    return keys.tpm_secret_field(work) if work.rule.starts else {}


@flow_on_host(RunningAction.failed)
def run_power_action(work: RunningAction, client: Client) -> dict[str, Any]:
    """Set the guest of the server of the action *work* to the power state that ``work.rule.want`` defines. *client*: a
    client of the host's agent. Return the changed columns of the server's row."""
    work.begin()
    with work.guest(client) as watch:
        answer = client.ensure("server", work.id, {**(work.rule.want or {}), **_secret(work)}, progress=watch)
    nics.bind_started_devices(work, answer["resource"])
    return {"power_state": power_number(answer["resource"]["power_state"]), "fault": None}


@flow_on_host(RunningAction.failed)
def run_reboot(work: RunningAction, client: Client) -> dict[str, Any]:
    """Reboot the guest of the server of the action *work*, soft or hard. Return the changed columns of the server's
    row. A server in error becomes active when it starts. A soft reboot stops waiting for the guest when another action,
    such as a deletion, replaces the reboot."""
    work.begin()
    work.note(task_state=work.rule.steps[-1])

    def watch(operation: Mapping[str, Any]) -> None:
        if work.cancelled.is_set():
            with contextlib.suppress(Conflict, NotFound):  # it has ended meanwhile
                client.cancel(operation["id"])

    client.event("server", work.id, "reboot", {"type": work.args["type"], **_secret(work)},
                 request_id=work.idempotency_key, progress=watch if work.args["type"] == "soft" else None)
    resource = client.get("server", work.id)
    nics.bind_started_devices(work, resource)
    return {"power_state": power_number(resource["power_state"]), "fault": None}


@flow_on_host(RunningAction.failed)
def run_crash_dump(work: RunningAction, client: Client) -> dict[str, Any]:
    """Inject an NMI into the guest, so that its kernel writes a crash dump. Return an empty dict, because no column of
    the server's row changes."""
    client.event("server", work.id, "crash_dump", {}, request_id=work.idempotency_key)
    return {}
