# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource driver of default security group rules; their key is
USES,DIRECTION,ETHERTYPE,PROTOCOL,MIN,MAX,REMOTE."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.network import attributes
from magnetar_control.api.v1.driver import CloudDriver
from magnetar_control.compute.caller import Caller
from magnetar_control.services.network.security.default_rules import ANYWHERE, PARENT, USES
from magnetar_control.services.network.security.group_rules import ICMP, SAME
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import AddressGroup, DefaultSecurityGroupRule, SecurityGroup
from magnetar_core.operations import Operation
from magnetar_core.plan import Result
from magnetar_core.reconcile import is_uuid_key

from .networking import Row, resolve_reference, rows_by_key, visible_rows

PLURAL = "default_security_group_rules"
FORM = "must be USES,DIRECTION,ETHERTYPE,PROTOCOL,MIN,MAX,REMOTE, such as other,ingress,IPv4,tcp,22,22,192.0.2.0/24"
#: The uses in a key.
WORDS = dict(zip(("default", "other"), USES, strict=True))
#: Prefix of a remote in a key to its field, its kind and the service's plural. A remote without a prefix is a CIDR.
REMOTES = {"group": ("remote_group", SecurityGroup, "security_groups"),
           "addresses": ("remote_address_group", AddressGroup, "address_groups")}


class DefaultRules(CloudDriver):
    """The driver of the v1 API for default security group rules: the rules that a new security group gets. A rule is
    created or removed, never changed."""

    kind = DefaultSecurityGroupRule
    takes_id, only_a_document = False, True

    def every(self, caller: Caller) -> list[Document]:
        return [_rule_document(row) for row in visible_rows(caller, PLURAL)]

    def given(self, key: str, want: Document) -> Document:
        from_key = {} if is_uuid_key(key) else _parse_key(key)
        document: Document = self.kind.check({**from_key, **want}, partial=True)
        return document

    def find(self, caller: Caller, key: str) -> Document | None:
        """Return the default rule with the key *key*: a uuid or USES,DIRECTION,ETHERTYPE,PROTOCOL,MIN,MAX,REMOTE. USES:
        ``default``, ``other`` (the project's default group, its other groups) or both with a plus sign. REMOTE: a CIDR,
        ``group=`` or ``addresses=`` with the name or uuid of a security group or address group. Return ``None`` if
        there is none."""
        if is_uuid_key(key):
            rule_rows = visible_rows(caller, PLURAL, id=[key.lower()])
            return _rule_document(rule_rows[0]) if rule_rows else None
        rule = _checked(_parse_key(key))
        for field, _kind, plural in REMOTES.values():
            if rule[field] not in (None, PARENT) and not is_uuid_key(rule[field]):
                remote_ids = [remote["id"] for remote in rows_by_key(caller, plural, rule[field]) if remote["shared"]]
                rule[field] = remote_ids[0] if len(remote_ids) == 1 else rule[field]
        return self.only(caller, [existing for existing in self.every(caller) if all(
            existing[name] == value for name, value in rule.items() if name != "description")], key)

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        want = {**want, **_checked(want)}
        for field, kind, plural in REMOTES.values():
            if want[field] not in (None, PARENT):
                want[field] = resolve_reference(caller, kind, plural, (field, want[field]), lambda row: row["shared"])
        return {**want, "name": _key(want)}

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        if have is None and all(want[field] in (None, PARENT) or is_uuid_key(want[field])
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


def _parse_key(key: str) -> Document:
    """Return the fields of the default rule that *key* describes: USES,DIRECTION,ETHERTYPE,PROTOCOL,MIN,MAX,REMOTE,
    such as other,ingress,IPv4,tcp,22,22,192.0.2.0/24. Raises ``InvalidField`` for another format."""
    uses, direction, ethertype, protocol, least, most, remote = [*key.split(",", 6), *[""] * 6][:7]
    words = uses.split("+") if uses else []
    if key.count(",") < 6 or not {*words} <= {*WORDS}:
        raise InvalidField("key", FORM, key[:80])
    begin, mark, name = remote.partition("=")
    field = REMOTES[begin][0] if mark and begin in REMOTES else "remote_ip_prefix"
    rule = {**{name: use in words for use, name in WORDS.items()}, "direction": direction, "ethertype": ethertype,
            "protocol": protocol or None, "port_range_min": _number(least), "port_range_max": _number(most)}
    return {**rule, field: (remote if field == "remote_ip_prefix" else name) or None}


def _number(text: str) -> int | str | None:
    return int(text) if text.isdecimal() and len(text) < 9 else text or None


def _checked(want: Document) -> Document:
    """Return the desired rule *want* in normal form, so that it can be compared with existing rules. Raises
    ``InvalidField``."""
    plain = [name for name in (*SAME, *USES, "description") if name.removesuffix("_id") == name and name in want]
    checked = attributes.DEFAULT_SECURITY_GROUP_RULE.check({name: want[name] for name in plain}, "")
    least, most = checked.get("port_range_min"), checked.get("port_range_max")
    if most is None and checked.get("protocol") not in ICMP:
        checked["port_range_max"] = least
    return {**checked, **{field: want.get(field) for field, _kind, _plural in REMOTES.values()},
            "remote_ip_prefix": _prefix(checked.get("remote_ip_prefix"))}


def _prefix(prefix: str | None) -> str | None:
    """Return the CIDR *prefix*; ``None`` if *prefix* contains all addresses, such as 0.0.0.0/0, because a rule without
    a prefix means the same."""
    return None if prefix in ANYWHERE else prefix


def _key(rule: Document) -> str:
    remote = rule["remote_ip_prefix"] or next((f"{remote_kind}={rule[field]}" for remote_kind, (
        field, _kind, _plural) in REMOTES.items() if rule[field]), "")
    words = [rule[name] for name in SAME[:5]]
    return ",".join(["+".join(use_name for use_name, use in WORDS.items() if rule[use]),
                     *("" if part is None else str(part) for part in words), remote])


def _rule_document(row: Row) -> Document:
    rule = {**{name.removesuffix("_id"): row[name] for name in SAME}, **{name: row[name] for name in USES},
            "remote_ip_prefix": _prefix(row["remote_ip_prefix"]), "description": row["description"]}
    return {"id": row["id"], "name": _key(rule), **rule}
