# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the reference page of the errors: ``python -m tools.reference errors >docs/reference/errors.md``."""

from __future__ import annotations

from collections.abc import Iterator

from magnetar_core.errors import MagnetarError

HEAD = """# Errors

For authors of playbooks and clients: the error codes of agents and of a cloud's `/v1`. `python -m tools.reference
errors` prints this page from `plugins/module_utils/core/errors.py`.

```yaml
- magnetar.compute.server: {name: web1, flavor: small, image: debian}
  register: created
  failed_when: created.failed and created.error.code != 'no-space'
```

| Place | Form |
|---|---|
| HTTP | `{"error": {"code", "message", "details", "request_id"}}` with the status below |
| a failed task | `msg`, and `error` with `code`, `details` and `request_id` |
| a command | `magnetar: MESSAGE` on stderr, and status 1 |

The message says what happened, why, and what to do. `details` are for programs: `field` and `rule` of an invalid field,
for example. The Compute API (`/v2.1`) has Nova's errors instead.

| Code | Class | HTTP | Meaning | What to do |
|---|---|---|---|---|
"""
#: What to do about each code.
ADVICE = {
    "internal": "Look for the request id in the log of the agent or API, and report it.",
    "invalid-field": "Correct the field that `details` names; nothing was changed.",
    "invalid-request": "Correct the request; the message says what is wrong.",
    "unauthenticated": "Send a certificate or token, or use the socket. See "
    "[access](../howto/grant-access-to-an-agent.md).",
    "forbidden": "Use a credential with the scope `operate` or, in a cloud, with the needed role.",
    "not-found": "Check the name, the project and the endpoint.",
    "gone": "Remove it from your lists; it does not come back.",
    "cursor-expired": "Read the current state, then continue with `cursor=oldest`. See [events](events.md).",
    "ambiguous": "Use a uuid; `details` may list them.",
    "conflict": "Change what the message names, or wait for the running action.",
    "immutable": "Set `on_immutable`, or leave the field as it is. See "
    "[modules](modules.md#options-that-cannot-change).",
    "changed-since": "Make a new plan. The message names the resource.",
    "in-use": "Remove the users that the message names first.",
    "own-login": "Log in as another administrator, and repeat the request there.",
    "image-refused": "Use another image; the message says what is wrong with its content.",
    "no-space": "Free disk space on the host, or choose another host; then repeat the call.",
    "method-not-allowed": "Use another method; `/openapi.json` lists the methods.",
    "too-large": "Send less, or raise the limit that the message names.",
    "cancelled": "Repeat the request if you still want it.",
    "too-many-logins": "Wait for the seconds in `Retry-After`.",
    "too-many-requests": "Wait a moment, then repeat the request.",
    "too-slow": "Send the content faster, or from a nearer machine.",
    "hypervisor-down": "Repeat the request after some seconds; look at libvirt's log if it stays.",
    "hypervisor-error": "Read libvirt's message, which is in this one.",
    "guest-silent": "See [guests that hang](faults.md#a-guest-that-hangs).",
    "no-guest-agent": "Install, start or allow `qemu-guest-agent` in the guest: [run tasks in a server]"
                      "(../howto/run-tasks-in-a-server-without-its-network.md#fix-errors).",
    "guest-refused": "Do what the message of the guest agent says.",
    "storage-silent": "Check the storage of the pool that the message names.",
    "unreachable": "Check the address, the network, and whether the service runs.",
    "unavailable": "Repeat the request after some seconds.",
    "not-supported": "Use another host, or leave out the feature that the message names.",
    "failed": "Remove the cause that the message names, then repeat the request.",
    "fencing-failed": "Run `magnetar host fence-status HOST`; see [Fence a host](../howto/fence-a-host.md).",
    "timed-out": "Look at the operation that the message names, or run the task again to continue waiting.",
    "invalid-settings": "Correct the key that the message names. The service does not start before.",
    "process-too-old": "Run the release that the message names; `magnetar upgrade status` lists all processes.",
}
#: Statuses that no answer has: errors of commands and of the start of a service.
WITHOUT_STATUS = ("invalid-settings", "process-too-old", "fencing-failed")


def error_classes(base: type[MagnetarError] = MagnetarError) -> Iterator[type[MagnetarError]]:
    """Yield *base* and all its subclasses in the order of their definition."""
    yield base
    for subclass in base.__subclasses__():
        if subclass.__module__ == base.__module__:
            yield from error_classes(subclass)


def errors_page() -> str:
    """Return the whole page in Markdown."""
    rows = []
    for cls in error_classes():
        status = "none" if cls.code in WITHOUT_STATUS else str(cls.status)
        meaning = " ".join((cls.__doc__ or "").split())
        rows.append(f"| `{cls.code}` | `{cls.__name__}` | {status} | {meaning} | {ADVICE[cls.code]} |\n")
    return HEAD + "".join(rows)
