# SPDX-License-Identifier: GPL-3.0-or-later
"""Error classes, one for each kind of failure, for HTTP answers, Ansible results and the audit log.

The class docstring is the default message; ``code`` is the stable word in answers, ``status`` the HTTP status. A
message has three parts: the failure, its reason, and the remedy.
"""

from __future__ import annotations

import errno
from typing import Any, Mapping, Optional, Sequence


class MagnetarError(Exception):
    """Something failed inside Magnetar; the agent's log has the cause under the request id."""

    code = "internal"
    status = 500
    #: Whether a repeated call may soon succeed, because the agent or libvirt restarts.
    again = False
    #: Whether the error comes from an answer of an agent or cloud, and not from this process.
    remote = False
    #: The id of the failed request, as its client knows it.
    request_id: Optional[str] = None

    def __init__(self, message: Optional[str] = None, **details: Any) -> None:
        """Create the error. *message*: by default the docstring of the class. *details*: values for programs that can
        be encoded as JSON, such as ``field``, ``rule`` and ``uuids``.
        """
        self.message = message or " ".join((type(self).__doc__ or "").split())
        self.details = details
        super().__init__(self.message)

    @property
    def retry_after(self) -> Optional[float]:
        """Return the seconds in the header ``Retry-After`` of the response that caused this error; ``None`` if the
        response has no such header.
        """
        header = str((self.details.get("headers") or {}).get("Retry-After", ""))
        return float(header) if header.isdecimal() else None

    def as_dict(self) -> dict[str, Any]:
        """Return the error as the API reports it: ``{"code": str, "message": str, "details": {...}}``."""
        return {"code": self.code, "message": self.message, "details": self.details}


class InvalidField(MagnetarError):
    """A field of the request breaks its rule."""

    code = "invalid-field"
    status = 400

    def __init__(self, field: str, rule: str, value: Any = None) -> None:
        shown = "" if value is None else " (got %s)" % _short(value)
        end = "" if rule.endswith("?") and not shown else "."
        super().__init__("%s: %s%s%s" % (field, rule, shown, end), field=field, rule=rule)


class InvalidRequest(MagnetarError):
    """The request cannot be understood."""

    code = "invalid-request"
    status = 400


class Unauthenticated(MagnetarError):
    """The agent does not know who asks. Send a client certificate or a bearer token, or use the unix socket."""

    code = "unauthenticated"
    status = 401


class Forbidden(MagnetarError):
    """You are known but not allowed to do this."""

    code = "forbidden"
    status = 403


class NotFound(MagnetarError):
    """There is no such resource."""

    code = "not-found"
    status = 404


class Gone(NotFound):
    """The resource no longer exists."""

    code = "gone"
    status = 410


class CursorExpired(MagnetarError):
    """Events after this cursor are not kept any more, so some are missing. Read the current state, then follow from
    the oldest event (cursor=oldest) or from now on (cursor=now).
    """

    code = "cursor-expired"
    status = 410


class Ambiguous(MagnetarError):
    """Several resources share this name; use the uuid."""

    code = "ambiguous"
    status = 409


class Conflict(MagnetarError):
    """The request contradicts what exists."""

    code = "conflict"
    status = 409


class Immutable(Conflict):
    """A field cannot change on what exists."""

    code = "immutable"
    status = 409


class ChangedSince(Conflict):
    """The resource has changed since the dry run with that revision. Make a new plan."""

    code = "changed-since"
    status = 412


class InUse(Conflict):
    """The resource is still used."""

    code = "in-use"
    status = 409


class OwnLogin(Conflict):
    """The change would end the login of the caller who requests it."""

    code = "own-login"
    status = 409


class ImageRefused(MagnetarError):
    """The content of the image is not acceptable."""

    code = "image-refused"
    status = 400


class NoSpace(MagnetarError):
    """The host has no room left."""

    code = "no-space"
    status = 507


class MethodNotAllowed(MagnetarError):
    """This route exists, and does not know that method."""

    code = "method-not-allowed"
    status = 405


class TooLarge(MagnetarError):
    """The request is larger than the agent accepts."""

    code = "too-large"
    status = 413


class Cancelled(MagnetarError):
    """The operation was cancelled; nothing of it is left."""

    code = "cancelled"
    status = 409


class TooManyLogins(MagnetarError):
    """There were too many failed logins; wait before the next one."""

    code = "too-many-logins"
    status = 429


class TooManyRequests(MagnetarError):
    """The limit of such requests at a time is reached."""

    code = "too-many-requests"
    status = 429
    again = True


class TooSlow(MagnetarError):
    """The content came too slowly."""

    code = "too-slow"
    status = 408


class HypervisorDown(MagnetarError):
    """libvirt does not answer on this host. The agent reconnects by itself; try again in a few seconds."""

    code = "hypervisor-down"
    status = 503


class HypervisorError(MagnetarError):
    """libvirt or QEMU refused the call."""

    code = "hypervisor-error"
    status = 500


class GuestSilent(HypervisorError):
    """The QEMU of one guest does not answer. Its host and all other guests continue."""

    code = "guest-silent"
    status = 409


class NoGuestAgent(MagnetarError):
    """No guest agent in the guest does what was asked. Install and start qemu-guest-agent there."""

    code = "no-guest-agent"
    status = 409


class GuestRefused(MagnetarError):
    """The guest agent refused a command, or its answer is not valid."""

    code = "guest-refused"
    status = 409


class StorageSilent(HypervisorError):
    """A storage pool of a host does not answer. The host, its guests and its other pools continue."""

    code = "storage-silent"
    status = 409


class Unreachable(MagnetarError):
    """The endpoint cannot be reached."""

    code = "unreachable"
    status = 503


class Unavailable(MagnetarError):
    """Something that this needs does not answer now. Try again in a few seconds."""

    code = "unavailable"
    status = 503


class NotSupported(MagnetarError):
    """This host or service cannot do that."""

    code = "not-supported"
    status = 501


class Failed(MagnetarError):
    """The requested work began, and failed."""

    code = "failed"
    status = 500


class FencingFailed(MagnetarError):
    """The host is not off for certain. Switch it off by hand before its servers are evacuated."""

    code = "fencing-failed"
    status = 500


class TimedOut(MagnetarError):
    """The time allowed has passed; the work may still be going on."""

    code = "timed-out"
    status = 504


class InvalidSettings(MagnetarError):
    """The settings file is wrong."""

    code = "invalid-settings"


class ProcessTooOld(MagnetarError):
    """The process is too old, or too new, to run beside the other processes of the cloud."""

    code = "process-too-old"


ERRORS = {
    cls.code: cls
    for cls in (
        MagnetarError, InvalidField, InvalidRequest, Unauthenticated, Forbidden, NotFound, Gone, CursorExpired,
        Ambiguous, Conflict, Immutable, ChangedSince, InUse, OwnLogin, ImageRefused, NoSpace, TooLarge, Cancelled,
        TooManyRequests, TooSlow, HypervisorDown, HypervisorError, GuestSilent, NoGuestAgent, GuestRefused,
        StorageSilent, Unreachable, Unavailable, NotSupported, Failed, FencingFailed, TimedOut,
    )
}


def error_from_dict(answer: Mapping[str, Any]) -> MagnetarError:
    """Return the exception for *answer*, an error in a response of the API, as ``MagnetarError.as_dict`` returns it."""
    cls = ERRORS.get(str(answer.get("code")), MagnetarError)
    error = cls.__new__(cls)
    MagnetarError.__init__(error, answer.get("message"), **(answer.get("details") or {}))
    error.remote = True
    return error


def mask_unforeseen_error(error: Exception) -> MagnetarError:
    """Return the error to report to the client instead of the unexpected exception *error*, whose text may contain
    internals: ``NoSpace`` for a full disk, otherwise a general ``MagnetarError``.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace("The host has no room left (%s). Free some, then repeat the call." % error.strerror)
    return MagnetarError()


def abbreviate_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first *most* of *names*, separated by commas, followed by the number of omitted names, for a message.
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (" and %d more" % more if more > 0 else "")


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
