# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules of domains, projects, users, groups, roles, role assignments and application credentials."""

from __future__ import annotations

from ..core.kinds import ApplicationCredential, RoleAssignment
from ..core.kinds.common import REFERENCE
from ..core.kinds.identity import ROLE_ACTORS, ROLE_TARGETS, escape_key_part
from ..core.options import Option, name_options
from .info import InfoModule
from .module import key_from_params
from .resource import ResourceModule


class NamedIdentityModule(ResourceModule):
    """The base class of the modules for domains and roles, whose names are unique in the cloud."""

    def key(self, params):
        return escape_key_part(key_from_params(params))


class DomainedIdentityModule(NamedIdentityModule):
    """The base class of the modules for projects, users and groups, whose names are unique in their domain. If O(id) is
    set, O(domain) is not part of the key, but an immutable field.
    """

    def key(self, params):
        key = super().key(params)
        if params.get("id") is not None or params.get("domain") is None:
            return key
        return "%s:%s" % (escape_key_part(REFERENCE.check(params["domain"], "domain")), key)


class IdentityInfoModule(InfoModule):
    """The base class of the modules that report projects, users and groups, optionally of one domain."""

    def selecting(self):
        domain = name_options(domain=Option(REFERENCE, "Only %s of this domain, by name or id." % self.kind.plural,
                                            aliases=("domain_id",)))
        return super().selecting() + domain

    def execute(self, params, check_mode, diff_mode, client):
        if params.get("domain") is not None:
            params = dict(params, filters=dict(params["filters"] or {}, domain=params["domain"]))
        return super().execute(params, check_mode, diff_mode, client)


class RoleAssignmentModule(ResourceModule):
    """The module role_assignment, which assigns a role to a user or group, or revokes it."""

    kind = RoleAssignment
    replaced = tuple(field.name for field in RoleAssignment.settable())
    own = name_options(**{
        field.name: Option(field.value, field.doc, required=field.required, on=" ".join(field.on), sample=field.sample)
        for field in RoleAssignment.settable()})
    rules = {"required_one_of": [ROLE_ACTORS, ROLE_TARGETS],
             "mutually_exclusive": [ROLE_ACTORS, ("project", "system"), ("domain", "system")]}
    state_doc = "V(present) gives the role. V(absent) takes it away; roles from groups stay."

    def common(self):
        """Override ``ResourceModule.common``: omit ``on_immutable``, because all fields of an assignment are in the
        key.
        """
        return tuple(option for option in super().common() if option.name != "on_immutable")

    def allowed(self, params):
        return {}

    def key(self, params):
        """Override ``ResourceModule.key``: return the key with all fields. If O(project) and O(domain) are set, the
        role is on the project, and O(domain) is only the default domain of the project, user and group.
        """
        parts = {name: params[name] for name in ("role", *ROLE_ACTORS, *ROLE_TARGETS) if params.get(name) is not None}
        nearest = parts.pop("domain") if "project" in parts and "domain" in parts else None
        for name in (*ROLE_ACTORS, "project"):
            domain = params.get("%s_domain" % name) or nearest
            if name in parts and domain:
                parts["%s_domain" % name] = domain
        return ":".join("%s=%s" % (name, escape_key_part(REFERENCE.check(value, name)))
                        for name, value in parts.items())

    def want(self, params):
        """Override ``ResourceModule.want``: return no fields, because all of them are in the key."""
        return {}


class RoleAssignmentInfoModule(InfoModule):
    """The module role_assignment_info, which reports role assignments."""

    kind = RoleAssignment

    def selecting(self):
        options = {field.name: Option(field.value, "Only assignments with this value. %s" % field.doc)
                   for field in RoleAssignment.settable()}
        return name_options(**options, **self.narrowing())

    def execute(self, params, check_mode, diff_mode, client):
        chosen = {field.name: params[field.name] for field in RoleAssignment.settable()
                  if params.get(field.name) is not None}
        return super().execute(dict(params, id=None, name=None, filters=dict(params["filters"] or {}, **chosen)),
                               check_mode, diff_mode, client)


class ApplicationCredentialModule(ResourceModule):
    """The module application_credential. For a new credential, its result includes an entry for clouds.yaml."""

    kind = ApplicationCredential
    on_immutable_doc = "V(recreate) removes the credential and creates it again, which ends its logins."

    def execute(self, params, check_mode, diff_mode, client):
        result = super().execute(params, check_mode, diff_mode, client)
        credential = result.get(self.kind.noun) or {}
        if credential.get("secret") and client.login is not None:
            result["cloud"] = _cloud_entry(client.login, credential)
        return result


def _cloud_entry(login, credential):
    """Return an entry for clouds.yaml that uses the application *credential*. *login*: the current login, for URL and
    region.
    """
    auth = {"auth_url": login.auth["auth_url"], "application_credential_id": credential["id"],
            "application_credential_secret": credential["secret"]}
    optional = {"region_name": login.region, "cacert": login.ca_cert, "verify": None if login.validate else False}
    return dict({"auth_type": "v3applicationcredential", "auth": auth, "interface": login.interface},
                **{name: value for name, value in optional.items() if value is not None})
