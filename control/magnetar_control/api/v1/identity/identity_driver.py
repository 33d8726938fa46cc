# SPDX-License-Identifier: GPL-3.0-or-later
"""The common part of the drivers of domains, projects, users, groups and roles. They work on the embedded identity
service; a cloud with a Keystone of its own refuses these kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from sqlalchemy import Connection

from magnetar_control.api.v1.driver import CloudDriver
from magnetar_control.compute.accounts.projects import DRAWN
from magnetar_control.compute.caller import Caller
from magnetar_control.services.identity import EmbeddedIdentity, lookup
from magnetar_control.services.identity.own_login import check_own_scope
from magnetar_control.services.identity.resources import DOMAINS, IdentityResource, Row
from magnetar_control.services.identity.store import IdentityStore
from magnetar_core import reconcile
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, Forbidden, InvalidField, NotSupported
from magnetar_core.operations import Operation
from magnetar_core.plan import Result

#: What openstack.cloud calls the modules that do the same, where the name differs.
THEIR_MODULES = {name: f"identity_{name}" for name in ("domain", "user", "group", "role")}


def embedded_identity(caller: Caller, resource_type: str) -> EmbeddedIdentity:
    """Return the embedded identity service. *resource_type*: of the request, for the error. Raises
    ``NotSupported`` if the cloud uses an external Keystone."""
    identity = caller.cloud.services.identity
    if not isinstance(identity, EmbeddedIdentity):
        raise NotSupported(
            f"The users of this cloud are those of the Keystone at {caller.settings.keystone_url}, which this API does "
            f"not change. Manage each {resource_type.replace('_', ' ')} there: with the module openstack.cloud."
            f"{THEIR_MODULES.get(resource_type, resource_type)}, which has the same options, or with `openstack "
            f"{resource_type.replace('_', ' ')}`.")
    return identity


class AdministratorsDriver(CloudDriver):
    """A base class of drivers whose resources only administrators may create, change and remove."""

    def ensure(self, caller: Caller, key: str, want: Document | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """Override ``CloudDriver.ensure``: raise ``Forbidden`` unless the caller has the role admin."""
        if not caller.context.is_admin:
            raise Forbidden(f"You are not authorized to change a {self.kind.noun.replace('_', ' ')}: that needs the "
                            "role admin.")
        return super().ensure(caller, key, want, permissions, dry_run, operation)


class IdentityDriver(AdministratorsDriver):
    """The base class of the drivers of the v1 API for Keystone resources with names: domains, projects, users, groups
    and roles.

    *resource*: the resource type in the identity service. *in_domain*: whether names are unique within a domain;
    otherwise names are unique in the cloud. *columns*: maps field names of the v1 API to names of database columns, for
    all fields whose values need no conversion.
    """

    resource: IdentityResource
    in_domain = True
    takes_id = False
    columns: Mapping[str, str] = {"name": "name", "description": "description", "is_enabled": "enabled"}

    def store(self, caller: Caller) -> IdentityStore:
        """Return the identity service's store of this resource type, which reads and writes the resources."""
        return IdentityStore(self.resource, embedded_identity(caller, self.kind.noun).tokens)

    # Resources that exist

    def shown(self, connection: Connection, rows: list[Row]) -> list[Document]:
        """Return the resources in the database *rows* in the format of the v1 API."""
        domains = lookup.domain_names(connection) if self.resource.references else {}
        return [self.document(row, domains) for row in rows]

    def document(self, row: Row, domains: Mapping[str, str]) -> Document:
        """Return the resource in the database *row* in the format of the v1 API. *domains*: maps ids of domains to
        names."""
        document = {"id": row["id"], **{field: row[column] for field, column in self.columns.items()}}
        document["description"] = row["description"] or ""
        return document | ({"domain": domains.get(row["domain_id"]), "domain_id": row["domain_id"]}
                           if self.resource.references else {})

    def visible_ids(self, caller: Caller, connection: Connection) -> set[str]:
        """Return the ids of the resources that a caller who is not an administrator may see. The base class raises
        ``Forbidden``: only administrators may see the resources."""
        raise Forbidden(f"You are not authorized to see {self.kind.plural}: that needs the role admin.")

    def every(self, caller: Caller) -> list[Document]:
        return self.filtered(caller, {})

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return the resources for a list request. Administrators get all resources; other callers get only those in
        ``visible_ids``. Applies the filters id, name and domain."""
        with self.store(caller).tokens.database.read() as connection:
            columns: dict[str, Any] = {name: filters[name] for name in ("id", "name") if name in filters}
            if self.resource.references and "domain" in filters:
                domain = lookup.find_in_domain(connection, DOMAINS, filters.pop("domain"), None)
                columns["domain_id"] = domain["id"] if domain else ""
            visible = None if caller.context.is_admin else self.visible_ids(caller, connection)
            return self.shown(connection, [row for row in self.resource.rows(connection, **columns)
                                           if visible is None or row["id"] in visible])

    def find(self, caller: Caller, key: str) -> Document | None:
        """Return the resource with the key *key*: an id, NAME or DOMAIN:NAME. Return ``None`` if there is none that the
        caller may see."""
        domain_key, name = split_domain_key(key, self.in_domain)
        with self.store(caller).tokens.database.read() as connection:
            row = self.row(connection, caller, domain_key, name)
            if row is None or not (caller.context.is_admin or row["id"] in self.visible_ids(caller, connection)):
                return None
            return self.shown(connection, [row])[0]

    def row(self, connection: Connection, caller: Caller, domain_key: str | None, name: str) -> Row | None:
        """Return the database row of the resource with the id or name *name*; ``None`` if there is none. *domain_key*:
        the name or id of its domain; ``None``: look up a name in the domain of the caller's project."""
        if not self.in_domain:
            return lookup.find_in_domain(connection, self.resource, name, None)
        if domain_key is not None:
            domain = lookup.find_in_domain(connection, DOMAINS, domain_key, None)
            return lookup.find_in_domain(connection, self.resource, name, domain["id"]) if domain else None
        return lookup.find_by_id(connection, self.resource, name) or lookup.find_in_domain(
            connection, self.resource, name, caller.context.project_domain_id)

    # Requests

    def given(self, key: str, want: Document) -> Document:
        """Return the desired state *want* after a check, completed by the *key* in the URL: an id, NAME or DOMAIN:NAME.
        Adds two keys that ``complete`` needs: ``_key`` (the id or name in *key*) and ``_renamed`` (whether *want*
        itself contains a name). Raises ``InvalidField``."""
        domain_key, name = split_domain_key(key, self.in_domain)
        if domain_key is not None and want.setdefault("domain", domain_key) != domain_key:
            raise InvalidField("domain", "differs from the domain in the key of the request", want["domain"])
        named = {"id": name} if DRAWN.fullmatch(name) else {"name": name}
        document: Document = self.kind.check({**named, **want}, partial=True)
        return {**document, "_key": name, "_renamed": "name" in want}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with its references resolved. Raises ``InvalidField`` for an unknown domain.
        Also raises ``InvalidField`` for a new name if the URL does not contain the resource's id, because a resource
        can be renamed only by id."""
        identity, key, renamed = embedded_identity(caller, self.kind.noun), want["_key"], want["_renamed"]
        want = dict(want)
        if have is not None and (not renamed or want["name"] == have["id"]):
            want["name"] = have["name"]
        elif want["name"] not in (key, have and have["name"]) and key != (have and have["id"]):
            raise InvalidField("name", f"differs from the key {key!r} of the request; to rename, ask by id",
                               want["name"])
        with identity.database.read() as connection:
            if self.resource.references:
                self.complete_domain(connection, caller, want, have)
            self.complete_references(connection, caller, want, have)
        if have is not None and have.get("is_enabled") and want.get("is_enabled") is False:
            check_own_scope(caller.context, self.kind.noun, have["id"], "disable")
        return want

    def complete_domain(self, connection: Connection, caller: Caller, want: Document, have: Document | None) -> None:
        """Set ``domain`` and ``_domain_id`` in *want* to the name and the id of the resource's domain. This is the
        domain that *want* names (by name or id); by default the domain of the existing resource *have*, or if *have* is
        ``None``, the domain of the caller's project. If there is no such domain, raise ``InvalidField``. A dry run only
        adds a warning, because an earlier Ansible task may create the domain; ``_domain_id`` is then ``None``."""
        key = want.get("domain")
        if have is not None and key in (None, have["domain"], have["domain_id"]):
            want.update(domain=have["domain"], _domain_id=have["domain_id"])
            return
        domain = lookup.find_in_domain(connection, DOMAINS, key or caller.context.project_domain_id, None)
        if domain is None:
            refuse_unknown("domain", "domain", str(key))
        want.update(domain=domain["name"] if domain else key, _domain_id=domain and domain["id"])

    def complete_references(self, connection: Connection, caller: Caller, want: Document,
                            have: Document | None) -> None:
        """For each field of *want* that refers to another resource (except the domain), set the field to that
        resource's name, and add its id to *want*. Subclasses with such fields override this method; the base class does
        nothing. *have*: the current state, ``None`` for a new resource."""

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        if have is None:
            self._check_free(caller, want, None)

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        if want["name"] != have["name"]:
            self._check_free(caller, want, have["id"])

    def _check_free(self, caller: Caller, want: Document, id: str | None) -> None:
        """Raise ``Conflict`` if another resource has the name in *want*, in the same domain. *id*: the id of the
        existing resource that is changed; ``None`` for a new one."""
        domain_id = want.get("_domain_id") if self.in_domain else None
        if self.in_domain and domain_id is None:
            return
        with self.store(caller).tokens.database.read() as connection:
            row = lookup.find_by_name(connection, self.resource, want["name"], domain_id)
        if row is not None and row["id"] != id:
            raise Conflict(f"There is a {self.kind.noun} named {want['name']} already. Choose another name, or remove "
                           "that one first.", uuids=[row["id"]])

    # Changes

    def body(self, want: Document, names: list[str]) -> Document:
        """Return the fields *names* of the desired state *want* as a request body of Keystone's API."""
        return {self.columns[name]: want[name] for name in names if name in self.columns}

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        domain = {"domain_id": want["_domain_id"]} if self.resource.references else {}
        made = self.store(caller).create({**self.body(want, [*want]), **domain})
        return str(made["id"])

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        if body := self.body(want, names):
            self.store(caller).update(have["id"], body)

    def removal(self, caller: Caller, have: Document | None, dry_run: bool, operation: Operation) -> Result:
        """Remove the resource, unless this is a dry run, and return the result. If other resources still refer to it, a
        dry run only adds a warning, because it assumes that those resources are removed first. Raises ``OwnLogin``,
        ``Forbidden``, ``Conflict``."""
        warnings: list[str] = []
        if have is not None:
            with self.store(caller).tokens.database.read() as connection:
                self.check_removal(connection, caller, have, warnings, dry_run)
        result = super().removal(caller, have, dry_run, operation)
        result.warnings += warnings
        return result

    def check_removal(self, connection: Connection, caller: Caller, have: Document, warnings: list[str],
                      dry_run: bool) -> None:
        """Check that the resource *have* can be removed. Raises ``OwnLogin`` if the caller's own login depends on
        *have*, and ``Conflict`` or ``Forbidden`` if other resources refer to *have*. In a dry run, such references only
        add a text to *warnings*."""
        store = self.store(caller)
        check_own_scope(caller.context, self.kind.noun, have["id"], "remove")
        store.check_mutable(self.resource.row(connection, have["id"]))
        try:
            store.check_unused(connection, have["id"])
        except (Conflict, Forbidden) as error:
            if not dry_run:
                raise
            warnings.append(f"{error} The prediction assumes that this is done before.")

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        self.store(caller).delete(have["id"])

    def recreate(self, caller: Caller, have: Document, want: Document, operation: Operation) -> str | None:
        """Override ``CloudDriver.recreate``: check that the resource can be removed, before removing it."""
        with self.store(caller).tokens.database.read() as connection:
            self.check_removal(connection, caller, have, [], dry_run=False)
        return super().recreate(caller, have, want, operation)


def split_domain_key(key: str, in_domain: bool = True) -> tuple[str | None, str]:
    """Split *key*, NAME or DOMAIN:NAME, and return the domain (``None`` if the key has none) and the name. In the
    domain and in the name, ``%3A`` stands for a colon and ``%25`` for a percent sign. *in_domain*: whether *key* may
    contain a domain. Raises ``InvalidField``."""
    domain, colon, name = key.partition(":") if in_domain else ("", "", key)
    if not colon:
        domain, name = "", key
    if (colon and not domain) or not name or ":" in name:
        raise InvalidField("key", "must be an id, " + ("NAME or DOMAIN:NAME, with %3A for a colon in one of them"
                                                       if in_domain else "or a name with %3A for each colon"), key[:80])
    return (unquote(domain) if colon else None), unquote(name)


def refuse_unknown(field: str, resource_type: str, key: str, where: str = "") -> None:
    """Raise ``InvalidField`` because *field* refers to the resource *key* of the type *resource_type*, which does not
    exist. In a dry run, only add a warning. *where*: the domain that was searched, for the error."""
    reconcile.refuse_missing(InvalidField(field, f"there is no {resource_type} {key!r}{where}"), resource_type, key)
