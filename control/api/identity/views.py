# SPDX-License-Identifier: GPL-3.0-or-later
"""Resources, lists and tokens as Keystone shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from magnetar_control.services import Document
from magnetar_control.services.identity.tokens import Token
from magnetar_control.web import Answer, Request


def resource(request: Request, plural: str, found: Document) -> Document:
    """A resource with the link to itself."""
    return {**found, "links": {"self": f"{request.base}/v3/{plural}/{found['id']}"}}


def listed(plural: str, documents: Iterable[Document], link: str) -> Answer:
    """The answer of a list, which is at *link*."""
    return Answer({plural: [*documents], "links": {"next": None, "previous": None, "self": link}})


def resources(request: Request, plural: str, found: Iterable[Document], link: str | None = None) -> Answer:
    """A list of resources."""
    return listed(plural, (resource(request, plural, one) for one in found), link or request.base + request.path)


def credential(request: Request, found: Document) -> Document:
    """An application credential."""
    path = f"users/{found['user_id']}/application_credentials/{found['id']}"
    return {**found, "links": {"self": f"{request.base}/v3/{path}"}}


def role(request: Request, row: Mapping[str, Any]) -> Document:
    """A role in an inference."""
    return {"id": row["id"], "name": row["name"], "links": {"self": f"{request.base}/v3/roles/{row['id']}"}}


def assignment(request: Request, row: Mapping[str, Any], names: Mapping[str, Document]) -> Document:
    """A role assignment; *names*: what ids are called, where that is asked for."""
    def named(id: str) -> Document:
        return {"id": id, **names.get(id, {})}

    target, actor = row["target"], f"{row['actor']}s/{row['actor_id']}"
    where = "system" if target == "system" else f"{target}s/{row['target_id']}"
    return {"role": named(row["role_id"]), row["actor"]: named(row["actor_id"]),
            "scope": {target: {"all": True} if target == "system" else named(row["target_id"])},
            "links": {"assignment": f"{request.base}/v3/{where}/{actor}/roles/{row['role_id']}"}}


def token(found: Token) -> Document:
    """A token, without the catalogue."""
    claims, user, target = found.claims, found.user, found.target
    shown: Document = {
        "methods": list(claims.methods), "expires_at": _time(claims.expires), "issued_at": _time(claims.issued),
        "audit_ids": [claims.id, *claims.ancestors[:1]],
        "user": {"id": user["id"], "name": user["name"], "password_expires_at": None,
                 "domain": {"id": user["domain_id"], "name": user["domain_name"]}}}
    if target is not None:
        shown["roles"] = list(found.roles)
    if claims.scope == "project" and target:
        shown["is_domain"] = False
        shown["project"] = {"id": target["id"], "name": target["name"],
                            "domain": {"id": target["domain_id"], "name": target["domain_name"]}}
    elif claims.scope == "domain" and target:
        shown["domain"] = {"id": target["id"], "name": target["name"]}
    elif claims.scope == "system":
        shown["system"] = {"all": True}
    if found.credential:
        shown["application_credential"] = found.credential
    return shown


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
