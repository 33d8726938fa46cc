# SPDX-License-Identifier: GPL-3.0-or-later
"""What the drivers of what a cloud's network service has beside networks have in common.

What is asked is checked as Neutron's bodies are (``api/network/attributes.py``). A dry run asks the service for the
same, in a transaction of which nothing stays, and so predicts what it would say.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from magnetar_control.api.network.resources import as_named
from magnetar_control.api.v1.driver import CloudDriver
from magnetar_control.api.v1.servers.server_view import stamp
from magnetar_control.compute.caller import Caller
from magnetar_control.services import Page
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.fields import Kind, Record
from magnetar_core.kinds import Network, QosPolicy
from magnetar_core.operations import Operation
from magnetar_core.reconcile import Document, is_uuid, missing

#: A row of the network service.
Row = Mapping[str, Any]
#: A uuid that nothing has, for checks of the rest.
NOTHING = str(uuid.UUID(int=0))
NO_ENGINE = "This cloud has no engine of networks (setting ovn_northbound), and so no {0}."


def rows(caller: Caller, plural: str, **filters: Sequence[Any]) -> list[Row]:
    """Those of the service that the caller may see. Raises ``Conflict`` where it has none of these."""
    store = caller.cloud.services.network.resources.get(plural)
    if store is None:
        raise Conflict(NO_ENGINE.format(plural))
    return list(store.list(caller.context, Page(filters=filters)))


def named(caller: Caller, plural: str, key: str) -> list[Row]:
    """Those with the uuid or name *key*."""
    found = rows(caller, plural, id=[key.lower()]) if is_uuid(key) else []
    return found or rows(caller, plural, name=[key])


def reference(caller: Caller, kind: type[Kind], plural: str, given: tuple[str, str], usable: Any) -> str:
    """The uuid of what *given*, (field, name or uuid), means among the *usable* rows; as it is where a dry run may
    assume it. The project's own are meant before those shared with all, and these before those that another project
    shares with this one: nobody takes a name from others. Raises ``InvalidField``."""
    field, key = given
    found = [one for one in named(caller, plural, key) if usable(one)]
    found = [one for one in found if one["project_id"] == caller.project] or [
        one for one in found if one.get("shared")] or found
    if len(found) > 1:
        raise InvalidField(field, f"is the name of {len(found)} {plural}; use a uuid of " + ", ".join(
            sorted(one["id"] for one in found)), key)
    if not found:
        missing(InvalidField(field, f"there is no {kind.noun} {key!r} in this cloud that you may use"), kind.noun, key)
    return str(found[0]["id"]) if found else key


def of_project(caller: Caller) -> Callable[[Row], bool]:
    """Whether the caller's project has a row, or it is shared with it."""
    return lambda one: bool(one["shared"]) or caller.project in (one["project_id"], *one["shared_with"])


def usable(caller: Caller, field: str, key: str) -> str:
    """A network that ports may be on."""
    return reference(caller, Network, "networks", (field, key), of_project(caller))


def policy(caller: Caller, want: Document, have: Document | None) -> Document:
    """*want* with the uuid of the QoS policy that it names, among those that the caller may use. The one that *have*
    has may be another's."""
    if want.get("qos_policy") in (None, (have or {}).get("qos_policy")):
        return want
    return {**want, "qos_policy": reference(
        caller, QosPolicy, "qos_policies", ("qos_policy", want["qos_policy"]), of_project(caller))}


def external(caller: Caller, field: str, key: str) -> str:
    """A network that floating IPs and gateways of routers are on."""
    return reference(caller, Network, "networks", (field, key), lambda one: one["external"])


class Networking(CloudDriver):
    """What the kinds have in common. *plural*: the service's name of them; *body*: of what the service is asked;
    *held*: the field that is a list of all that one holds, if there is one; *references*: fields that are uuids
    then."""

    plural = ""
    body: Record
    held = ""
    references: tuple[str, ...] = ()
    takes_id, only_a_document = False, True

    # What there is
    def every(self, caller: Caller) -> list[Document]:
        """Those of the project; none where the service has none of these."""
        if self.plural not in caller.cloud.services.network.resources:
            return []
        return self.shown_all(caller, self.mine(caller, rows(caller, self.plural)))

    def mine(self, caller: Caller, found: list[Row]) -> list[Row]:
        """Those that are the project's: an administrator is in one, too."""
        return [one for one in found if one["project_id"] == caller.project]

    def find(self, caller: Caller, key: str) -> Document | None:
        if self.plural not in caller.cloud.services.network.resources:
            return None
        found = self.mine(caller, named(caller, self.plural, key))
        return self.only(caller, self.shown_all(caller, found), key)

    def shown_all(self, caller: Caller, found: Iterable[Row]) -> list[Document]:
        return [{"id": one["id"], "name": one["name"], "description": one["description"] or "",
                 "created_at": stamp(one["created_at"]), "updated_at": stamp(one["updated_at"] or one["created_at"]),
                 "_owner": one["project_id"], **self.shown(one)} for one in found]

    def shown(self, row: Row) -> Document:
        """The fields of the kind that are its own."""
        raise NotImplementedError

    # What is wanted
    def values(self, want: Document, names: Iterable[str]) -> Document:
        """Of *want* the fields *names*, as Neutron has them."""
        return {name: want[name] for name in names if name in want and name != self.held}

    def parts(self, want: Document, id: str | None) -> list[Any] | None:
        """What one (*id*, ``None``: a new one) is to hold, as the service takes it; ``None``: what it does."""
        found: list[Any] | None = want.get(self.held)
        return found

    def assumed(self, want: Document) -> bool:
        """Whether it names what is not there, and a dry run assumes."""
        given = [want.get(name) for name in self.references]
        words = [one for each in given for one in (each if isinstance(each, list) else [each])]
        return any(not is_uuid(one) for one in words if one)

    def checked(self, want: Document) -> Document:
        """*want* of a new one, in the service's names. Raises ``InvalidField``."""
        settable = [field.name for field in self.kind.settable() if field.name != "id"]
        return as_named(self.body.check(self.values(want, settable), ""))

    def differing(self, want: Document, have: Document) -> Document:
        """What of *want* is otherwise than in *have*, in the service's names. Raises ``InvalidField``."""
        names = [field.name for field in self.kind.settable()
                 if field.name in want and want[field.name] != have.get(field.name)]
        return as_named(self.body.changes(self.values(want, names), ""))

    def create(self, caller: Caller, want: Document, dry: bool) -> Row:
        """Have the service make it."""
        store: Any = caller.cloud.services.network.resources[self.plural]
        found: Row
        if self.held:
            found = store.put(caller.context, None, self.checked(want), self.parts(want, None), dry)
        else:
            (found,) = store.create(caller.context, self.checked(want), dry=dry)
        return found

    def update(self, caller: Caller, want: Document, have: Document, dry: bool) -> Row:
        """Have the service change it."""
        store: Any = caller.cloud.services.network.resources[self.plural]
        id, values = str(have["id"]), self.differing(want, have)
        found: Row
        if self.held:
            parts = None if want.get(self.held) == have[self.held] else self.parts(want, id)
            found = store.put(caller.context, id, values, parts, dry)
        else:
            found = store.update(caller.context, id, values, dry=dry)
        return found

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        if self.plural not in caller.cloud.services.network.resources:
            raise Conflict(NO_ENGINE.format(self.plural))
        if have is not None:
            caller.cloud.services.network.resources[self.plural].delete(caller.context, str(have["id"]), dry=True)
        elif not self.assumed(want):
            self.create(caller, want, dry=True)

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        if not self.assumed(want):
            self.update(caller, want, have, dry=True)

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        anew = have is not None and any(want.get(field.name) != have.get(field.name) for field in self.kind.settable()
                                        if field.fixed and field.name != "id")
        if self.assumed(want) or anew:
            return super().predicted(caller, want, have)
        row = self.update(caller, want, have, True) if have else self.create(caller, want, True)
        (found,) = self.shown_all(caller, [row])
        unknown = self.drawn(want, have) | (set() if have else {"id"})
        return {name: value for name, value in found.items() if name not in unknown}

    def drawn(self, want: Document, have: Document | None) -> set[str]:
        """Fields of which nobody knows the value before it is done."""
        return set()

    # What is done
    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        if self.plural not in caller.cloud.services.network.resources:
            raise Conflict(NO_ENGINE.format(self.plural))
        return str(self.create(caller, want, dry=False)["id"])

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        self.update(caller, want, have, dry=False)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        caller.cloud.services.network.resources[self.plural].delete(caller.context, str(have["id"]))
