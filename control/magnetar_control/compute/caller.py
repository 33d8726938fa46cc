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
    """The project and user that own the target of a policy check; ``None``: the caller's project or user."""

    project_id: str | None = None
    user_id: str | None = None


class Caller:
    """One caller of the cloud. *context*: the content of its token. *request_id*: recorded with its actions."""

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
        """Return a copy of the caller with *request_id* for its actions."""
        return Caller(self.cloud, self.context, request_id)

    def allows(self, rule: str, target: Any = None) -> bool:
        """Return whether the caller passes *rule* for *target*, a row with project_id and user_id (the caller's own
        when left out)."""
        if target is None:
            return self.cloud.policy.allows(rule, self.context)
        return self.cloud.policy.allows(rule, self.context, target.project_id, target.user_id)

    def fetch(self, question: Callable[Concatenate[Connection, P], R], *args: P.args, **named: P.kwargs) -> R:
        """Return the result of *question*, a function of ``store``, called with a transaction that reads the API
        database, and with *args* and *named*."""
        with self.cloud.store.api.read() as connection:
            return question(connection, *args, **named)

    def write(self, change: Callable[Concatenate[Connection, P], R], *args: P.args, **named: P.kwargs) -> R:
        """Return the result of *change*, a function of ``store``, called with a transaction that changes the API
        database, and with *args* and *named*."""
        with self.cloud.store.api.write() as connection:
            return change(connection, *args, **named)

    def notify(self, connection: Connection, payload: Callable[[], Any], *event_types: str) -> None:
        """Send notifications about a change in the API database, in its transaction. *payload* is called only when
        there is a receiver."""
        self.cloud.notifications.add(connection, payload, *event_types)

    def check_policy(self, rule: str, target: Any = None) -> None:
        """Raise ``Forbidden``, in Nova's words, unless the caller passes *rule*."""
        if not self.allows(rule, target):
            raise Forbidden(f"Policy doesn't allow {rule} to be performed.")


class UseCase(Generic[P, R]):
    """A function of a caller and more arguments. A call first checks the policy *rule* for the caller's own
    resources."""

    def __init__(self, function: Callable[Concatenate[Caller, P], R], rule: str) -> None:
        self.function, self.rule = function, rule
        self.__doc__ = function.__doc__

    def check_allowed(self, caller: Caller) -> None:
        """Raise ``Forbidden`` unless the caller passes the rule."""
        caller.check_policy(self.rule)

    def __call__(self, caller: Caller, *args: P.args, **named: P.kwargs) -> R:
        """Call the function after the check of the policy, and return its result. Raises ``Forbidden``, and the errors
        of the function."""
        self.check_allowed(caller)
        return self.function(caller, *args, **named)


def use_case(rule: str) -> Callable[[Callable[Concatenate[Caller, P], R]], UseCase[P, R]]:
    """Return a decorator that makes a function a use case under a policy rule."""
    return lambda function: UseCase(function, rule)
