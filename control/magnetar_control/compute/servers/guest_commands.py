# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands for the guest agent of a server, which the agent of its host passes on. Who may use them is root in the
guest, so the policy admits administrators only by default."""

from __future__ import annotations

import logging
from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import ServerTarget, server_use_case
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, NotFound, NotSupported, Unavailable

log = logging.getLogger(__name__)

#: The policy rule of guest commands.
RULE = "magnetar:servers:guest"
#: The most seconds that a request waits at the host for the end of a program; the client then asks again. A request
#: occupies a thread of the API.
LONGEST_WAIT = 3
#: Seconds of silence after which the agent counts as unreachable: a guest agent has 15 s for an answer, and another
#: question to it may be waiting.
PATIENCE = 90.0
#: Seconds for the whole request at the host: it is repeated while the agent restarts.
TIME = 60.0
#: Seconds after which a refused client may try again.
AGAIN = "5"


@server_use_case(rule=RULE)
def ask_guest_of_server(caller: Caller, target: ServerTarget, command: str, args: dict[str, Any]) -> Document:
    """Send *command* with *args* to the QEMU guest agent of the server, and return the answer. Raises ``Conflict`` when
    the server has no host, ``Unavailable`` when its host does not answer, ``NotSupported`` when the host's agent is too
    old, and the errors of that agent."""
    id = target.row.id
    host = caller.cloud.hosts.get(target.row.host)
    if host is None:
        raise Conflict(f"Instance {id} is not ready: it is on no host.")
    if not host.up:
        raise Unavailable(f"The host of instance {id} does not answer.", headers={"Retry-After": AGAIN})
    if "wait" in args:
        args = {**args, "wait": min(args["wait"], LONGEST_WAIT)}
    log.info("guest command %s of server %s by user %s, request %s", command, id, caller.context.user_id,
             caller.request_id)
    # Limits of their own: guests that do not answer must not keep other requests to their host waiting.
    with caller.cloud.guest_waiting.of(host.name, caller.project), \
            caller.cloud.agents.client(host.endpoint, PATIENCE) as client:
        try:
            return client.ask_guest(id, command, args, TIME, caller.request_id)
        except NotFound as error:
            if "kind" not in error.details:  # the route does not exist
                raise NotSupported("The agent of the server's host knows no guest commands: it is too old. Update "
                                   "it.") from None
            raise Conflict(f"Instance {id} is not ready: its host does not have it.") from None
