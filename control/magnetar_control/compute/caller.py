# SPDX-License-Identifier: GPL-3.0-or-later
"""Who asks, of which cloud: what every use case takes first."""

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
    """Whose the thing is that a rule is asked about; what is left out is the caller's."""

    project_id: str | None = None
    user_id: str | None = None


class Caller:
    """One caller of the cloud. *context*: what its token says. *request_id*: what its actions are noted under."""

    __slots__ = ("cloud", "context", "request_id")

    def __init__(self, cloud: Cloud, context: Context, request_id: str) -> None:
        self.cloud, self.context, self.request_id = cloud, context, request_id

    @property
    def settings(self) -> Settings:
        """The settings of the cloud."""
        return self.cloud.settings

    @property
    def project(self) -> str:
        """The project of the token; empty for a token without one."""
        return self.context.project_id or ""

    @property
    def is_admin(self) -> bool:
        """Whether the caller is an administrator of the compute service, as the rule ``context_is_admin`` says."""
        return self.cloud.policy.allows(ADMIN, self.context)

    def under(self, request_id: str) -> Caller:
        """The same caller, whose actions are noted under another request id."""
        return Caller(self.cloud, self.context, request_id)

    def allows(self, rule: str, target: Any = None) -> bool:
        """Whether the caller may do *rule* to *target*, a row with project_id and user_id; left out: to its own."""
        if target is None:
            return self.cloud.policy.allows(rule, self.context)
        return self.cloud.policy.allows(rule, self.context, target.project_id, target.user_id)

    def fetch(self, question: Callable[Concatenate[Connection, P], R], *args: P.args, **named: P.kwargs) -> R:
        """Ask the API database: *question* is a function of ``store``."""
        with self.cloud.store.api.read() as connection:
            return question(connection, *args, **named)

    def write(self, change: Callable[Concatenate[Connection, P], R], *args: P.args, **named: P.kwargs) -> R:
        """Change the API database in one transaction: *change* is a function of ``store``."""
        with self.cloud.store.api.write() as connection:
            return change(connection, *args, **named)

    def notify(self, connection: Connection, payload: Callable[[], Any], *event_types: str) -> None:
        """Tell what is done to something in the API database, in its transaction. *payload* is called only where
        somebody is told."""
        self.cloud.notifications.add(connection, payload, *event_types)

    def check_policy(self, rule: str, target: Any = None) -> None:
        """Raises ``Forbidden``, in Nova's words."""
        if not self.allows(rule, target):
            raise Forbidden(f"Policy doesn't allow {rule} to be performed.")


class UseCase(Generic[P, R]):
    """A function of caller and more. A call checks the policy *rule* first, to what is the caller's."""

    def __init__(self, function: Callable[Concatenate[Caller, P], R], rule: str) -> None:
        self.function, self.rule = function, rule
        self.__doc__ = function.__doc__

    def check_allowed(self, caller: Caller) -> None:
        """Raises ``Forbidden``."""
        caller.check_policy(self.rule)

    def __call__(self, caller: Caller, *args: P.args, **named: P.kwargs) -> R:
        """Raises ``Forbidden``, and what the function raises."""
        self.check_allowed(caller)
        return self.function(caller, *args, **named)


def use_case(rule: str) -> Callable[[Callable[Concatenate[Caller, P], R]], UseCase[P, R]]:
    """Make a function a use case under a policy rule."""
    return lambda function: UseCase(function, rule)
