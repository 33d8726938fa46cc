# SPDX-License-Identifier: GPL-3.0-or-later
"""The caller of a use case: the first argument of each use case."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from sqlalchemy import Connection

from magnetar_control.compute.access.policy import ADMIN
from magnetar_control.services import Context
from magnetar_control.settings import Settings
from magnetar_core.errors import Forbidden

if TYPE_CHECKING:
    from .cloud import Cloud

P = ParamSpec("P")
R = TypeVar("R")


class Owner(NamedTuple):
    """The project and user that own the target of a policy check. ``None`` stands for the caller's own project or user.
    """

    project_id: str | None = None
    user_id: str | None = None


class Caller:
    """The sender of an API request. *context*: the user, project and roles of the token. *request_id*: the id that is
    stored with the actions of the request."""

    __slots__ = ("cloud", "context", "request_id")

    def __init__(self, cloud: Cloud, context: Context, request_id: str) -> None:
        self.cloud, self.context, self.request_id = cloud, context, request_id

    @property
    def settings(self) -> Settings:
        """The settings of the cloud."""
        return self.cloud.settings

    @property
    def project(self) -> str:
        """The project of the token; "" for a token without one."""
        return self.context.project_id or ""

    @property
    def is_admin(self) -> bool:
        """Whether the caller is an administrator of the compute service, according to the rule ``context_is_admin``."""
        return self.cloud.policy.allows(ADMIN, self.context)

    def under(self, request_id: str) -> Caller:
        """Return a copy of the caller with another *request_id*."""
        return Caller(self.cloud, self.context, request_id)

    def allows(self, rule: str, target: Any = None) -> bool:
        """Return whether the policy rule *rule* allows the caller to act on *target*, a row with project_id and
        user_id. Without *target*, check for the caller's own project and user."""
        if target is None:
            return self.cloud.policy.allows(rule, self.context)
        return self.cloud.policy.allows(rule, self.context, target.project_id, target.user_id)

    def fetch(self, question: Callable[Concatenate[Connection, P], R], *args: P.args, **named: P.kwargs) -> R:
        """Call *question* with a read transaction of the API database, *args* and *named*, and return its result.
        *question*: a function of the package ``store`` that reads rows."""
        with self.cloud.store.api.read() as connection:
            return question(connection, *args, **named)

    def write(self, change: Callable[Concatenate[Connection, P], R], *args: P.args, **named: P.kwargs) -> R:
        """Call *change* with a write transaction of the API database, *args* and *named*, and return its result.
        *change*: a function of the package ``store`` that changes rows."""
        with self.cloud.store.api.write() as connection:
            return change(connection, *args, **named)

    def notify(self, connection: Connection, payload: Callable[[], Any], *event_types: str) -> None:
        """Send a notification of each of *event_types* about a change in the API database, in the change's transaction.
        *payload*: returns the payload; it is called only if the settings name a receiver."""
        self.cloud.notifications.add(connection, payload, *event_types)

    def check_policy(self, rule: str, target: Any = None) -> None:
        """Raise ``Forbidden``, with Nova's message, unless the policy rule *rule* allows the caller to act on *target*,
        as in ``allows``."""
        if not self.allows(rule, target):
            raise Forbidden(f"Policy doesn't allow {rule} to be performed.")


class UseCase(Generic[P, R]):
    """An API operation: a function whose first argument is the caller. Each call first checks that the policy *rule*
    allows the operation for the caller's own project."""

    def __init__(self, function: Callable[Concatenate[Caller, P], R], rule: str) -> None:
        self.function, self.rule = function, rule
        self.__doc__ = function.__doc__

    def check_allowed(self, caller: Caller) -> None:
        """Raise ``Forbidden`` unless the operation's policy rule allows it for the caller."""
        caller.check_policy(self.rule)

    def __call__(self, caller: Caller, *args: P.args, **named: P.kwargs) -> R:
        """Check the operation's policy rule, then call the function and return its result. Raises ``Forbidden``, and
        the errors of the function."""
        self.check_allowed(caller)
        return self.function(caller, *args, **named)


def use_case(rule: str) -> Callable[[Callable[Concatenate[Caller, P], R]], UseCase[P, R]]:
    """Return a decorator that turns a function into a ``UseCase``, which checks the policy rule *rule* before each
    call."""
    return lambda function: UseCase(function, rule)
