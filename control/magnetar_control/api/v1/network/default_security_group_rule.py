# SPDX-License-Identifier: GPL-3.0-or-later
"""Default security group rules of the network service: the key is USES,DIRECTION,ETHERTYPE,PROTOCOL,MIN,MAX,REMOTE."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.network import attributes
from magnetar_control.api.v1.driver import CloudDriver
from magnetar_control.compute.caller import Caller
from magnetar_control.services.network.security.default_rules import ANYWHERE, PARENT, USES
from magnetar_control.services.network.security.group_rules import ICMP, SAME
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import AddressGroup, DefaultSecurityGroupRule, SecurityGroup
from magnetar_core.operations import Operation
from magnetar_core.plan import Result
from magnetar_core.reconcile import Document, is_uuid

from .networking import Row, named, reference, rows

PLURAL = "default_security_group_rules"
FORM = "must be USES,DIRECTION,ETHERTYPE,PROTOCOL,MIN,MAX,REMOTE, such as other,ingress,IPv4,tcp,22,22,192.0.2.0/24"
#: The uses in a key.
WORDS = dict(zip(("default", "other"), USES, strict=True))
#: What a remote in a key begins with: the field, its kind, and the service's name of such things. Else it is a prefix.
REMOTES = {"group": ("remote_group", SecurityGroup, "security_groups"),
           "addresses": ("remote_address_group", AddressGroup, "address_groups")}


class DefaultRules(CloudDriver):
    """Those of the cloud, which all see. One cannot change: another one takes its place."""

    kind = DefaultSecurityGroupRule
    takes_id, only_a_document = False, True

    def every(self, caller: Caller) -> list[Document]:
        return [_shown(one) for one in rows(caller, PLURAL)]

    def given(self, key: str, want: Document) -> Document:
        said = {} if is_uuid(key) else _said(key)
        found: Document = self.kind.check({**said, **want}, partial=True)
        return found

    def find(self, caller: Caller, key: str) -> Document | None:
        """By uuid, or by what it says; what it names by name or uuid."""
        if is_uuid(key):
            found = rows(caller, PLURAL, id=[key.lower()])
            return _shown(found[0]) if found else None
        said = _checked(_said(key))
        for field, _kind, plural in REMOTES.values():
            if said[field] not in (None, PARENT) and not is_uuid(said[field]):
                there = [one["id"] for one in named(caller, plural, said[field]) if one["shared"]]
                said[field] = there[0] if len(there) == 1 else said[field]
        return self.only(caller, [one for one in self.every(caller) if all(
            one[name] == value for name, value in said.items() if name != "description")], key)

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        want = {**want, **_checked(want)}
        for field, kind, plural in REMOTES.values():
            if want[field] not in (None, PARENT):
                want[field] = reference(caller, kind, plural, (field, want[field]), lambda one: one["shared"])
        return {**want, "name": _key(want)}

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        if have is None and all(want[field] in (None, PARENT) or is_uuid(want[field])
                                for field, _kind, _plural in REMOTES.values()):
            self._create(caller, want, dry=True)

    def _create(self, caller: Caller, want: Document, *, dry: bool) -> str:
        store: Any = caller.cloud.services.network.resources[PLURAL]
        values = {name: want[name.removesuffix("_id")] for name in SAME}
        (made,) = store.create(caller.context, {
            **values, **{name: want[name] for name in (*USES, "description")}}, dry=dry)
        return str(made["id"])

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        return self._create(caller, want, dry=False)

    def removal(self, caller: Caller, have: Document | None, dry_run: bool, operation: Operation) -> Result:
        if have is not None and dry_run:
            caller.cloud.services.network.resources[PLURAL].delete(caller.context, str(have["id"]), dry=True)
        return super().removal(caller, have, dry_run, operation)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        caller.cloud.services.network.resources[PLURAL].delete(caller.context, str(have["id"]))


def _said(key: str) -> Document:
    """What a key says. Raises ``InvalidField``."""
    uses, direction, ethertype, protocol, least, most, remote = [*key.split(",", 6), *[""] * 6][:7]
    words = uses.split("+") if uses else []
    if key.count(",") < 6 or not {*words} <= {*WORDS}:
        raise InvalidField("key", FORM, key[:80])
    begin, mark, name = remote.partition("=")
    field = REMOTES[begin][0] if mark and begin in REMOTES else "remote_ip_prefix"
    found = {**{name: word in words for word, name in WORDS.items()}, "direction": direction, "ethertype": ethertype,
             "protocol": protocol or None, "port_range_min": _number(least), "port_range_max": _number(most)}
    return {**found, field: (remote if field == "remote_ip_prefix" else name) or None}


def _number(text: str) -> int | str | None:
    return int(text) if text.isdecimal() and len(text) < 9 else text or None


def _checked(want: Document) -> Document:
    """What it says in its normal form. Raises ``InvalidField``."""
    plain = [name for name in (*SAME, *USES, "description") if name.removesuffix("_id") == name and name in want]
    found = attributes.DEFAULT_SECURITY_GROUP_RULE.check({name: want[name] for name in plain}, "")
    least, most = found.get("port_range_min"), found.get("port_range_max")
    if most is None and found.get("protocol") not in ICMP:
        found["port_range_max"] = least
    return {**found, **{field: want.get(field) for field, _kind, _plural in REMOTES.values()},
            "remote_ip_prefix": _prefix(found.get("remote_ip_prefix"))}


def _prefix(given: str | None) -> str | None:
    """All addresses are as none."""
    return None if given in ANYWHERE else given


def _key(rule: Document) -> str:
    remote = rule["remote_ip_prefix"] or next((f"{word}={rule[field]}" for word, (
        field, _kind, _plural) in REMOTES.items() if rule[field]), "")
    words = [rule[name] for name in SAME[:5]]
    return ",".join(["+".join(word for word, use in WORDS.items() if rule[use]),
                     *("" if one is None else str(one) for one in words), remote])


def _shown(row: Row) -> Document:
    found = {**{name.removesuffix("_id"): row[name] for name in SAME}, **{name: row[name] for name in USES},
             "remote_ip_prefix": _prefix(row["remote_ip_prefix"]), "description": row["description"]}
    return {"id": row["id"], "name": _key(found), **found}
