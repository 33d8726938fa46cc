# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains, projects, users, groups, roles, role assignments and application credentials of a cloud."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind
from ..values import Boolean, Choices, ListOf, MapOf, Nullable, OneOf, Text, Value
from .common import NAME, PRINTABLE, REFERENCE, OrNone

ID = "0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a"
LONG = Text(0, 65535)
#: The fields of which a role assignment has exactly one: who has the role, and on what.
ROLE_ACTORS, ROLE_TARGETS = ("user", "group"), ("project", "domain", "system")


def escape_key_part(text: str) -> str:
    """Return *text* (a name or an id) with its colons escaped, for use in a key whose parts are separated by colons."""
    return text.replace("%", "%25").replace(":", "%3A")


def _id() -> Field:
    return Field(Text(1, 64), "The id; the cloud generates it.", on=FIXED, sample=ID)


def _own_domain() -> Field:
    return Field(REFERENCE, "The domain, by name or id; reported by name. Without it, names are searched in, and new "
                 "resources belong to, the domain of the login's project.", on=FIXED, aliases=("domain_id",),
                 sample="Default")


def _id_of(thing: str, sample: str = ID) -> Field:
    return Field(Nullable(Text()), "The id of the %s." % thing, on=READ, sample=sample)


def _domain_of(thing: str) -> Field:
    return Field(Nullable(REFERENCE), "The domain of the %s, by name or id, where the %s is given by name." % (
        thing, thing), on=FIXED, compared=False, sample="Default")


def _description() -> Field:
    return Field(LONG, "Free text.", default="", sample="for the shop")


def _is_enabled(effect: str) -> Field:
    return Field(Boolean(), "Whether it is enabled. %s" % effect, default=True, aliases=("enabled",), sample=True)


class IdentityDomain(Kind):
    """A domain: a namespace for projects, users and groups. Its key is its name or id."""

    noun, plural = "domain", "domains"
    sample_changes = {"description": ("", "for the shop")}

    id = _id()
    name = Field(NAME, "The name.", required=True, sample="shop")
    description = _description()
    is_enabled = _is_enabled("Nobody logs in with users or projects of a disabled domain.")


class IdentityProject(Kind):
    """A project. Its key is its id, NAME or DOMAIN:NAME."""

    noun, plural = "project", "projects"
    sample_changes = {"description": ("", "for the shop")}

    id = _id()
    name = Field(Text(1, 64, *PRINTABLE), "The name, unique in the domain.", required=True, sample="shop")
    domain = _own_domain()
    domain_id = _id_of("domain", "default")
    description = _description()
    is_enabled = _is_enabled("Nobody logs in with a disabled project; its servers run on.")
    parent = Field(Nullable(REFERENCE), "The project above it, by name or id; reported by name, V(null) for none.",
                   on=FIXED, sample="retail")
    parent_id = _id_of("project above it, or of its domain", "default")
    tags = Field(ListOf(Text(1, 255, r"[^,/\x00-\x1f\x7f]*", "must have neither comma, slash nor control characters"),
                        80, unique=True), "Tags.", default=[], sample=["retail"])
    properties = Field(MapOf(Text(1, 255), Text(0, 65535)), "Further properties, keys to texts. Exact when given.",
                       default={}, aliases=("extra_specs",), sample={"colour": "red"})
    options = Field(MapOf(Text(), Value()), "Its resource options, such as C(immutable).", on=READ, sample={})
    is_domain = Field(Boolean(), "Whether it is a domain too; never here.", on=READ, sample=False)


class IdentityUser(Kind):
    """A user. Its key is its id, NAME or DOMAIN:NAME."""

    noun, plural = "user", "users"
    sample_changes = {"email": ("", "ann@example.com")}

    id = _id()
    name = Field(NAME, "The name, unique in the domain.", required=True, sample="ann")
    domain = _own_domain()
    domain_id = _id_of("domain", "default")
    description = _description()
    email = Field(Text(0, 255), "The e-mail address.", default="", sample="ann@example.com")
    default_project = Field(OrNone(REFERENCE), "The project that a login without a project uses, by name or id; "
                            "reported by name. V(none) for none. It gives no role.", default=None, sample="shop")
    default_project_id = _id_of("default project")
    is_enabled = _is_enabled("A disabled user cannot log in.")
    password = Field(Text(1, 4096), "The password. A user without one cannot log in.", on="create update", secret=True)
    update_password = Field(
        Choices("always", "on_create"), "Whether O(password) is also set for an existing user: V(always) sets it if "
        "the user has another one, which ends all logins of the user. V(on_create) leaves it.", on="create update",
        default="on_create", compared=False)


class IdentityGroup(Kind):
    """A group of users. Its key is its id, NAME or DOMAIN:NAME."""

    noun, plural = "group", "groups"
    sample_changes = {"users": ([], ["ann"])}

    id = _id()
    name = Field(NAME, "The name, unique in the domain.", required=True, sample="operators")
    domain = _own_domain()
    domain_id = _id_of("domain", "default")
    description = _description()
    users = Field(ListOf(REFERENCE, 10000, unique=True), "Its users, by id, or by name if they are in its domain; "
                  "reported by name, users of other domains by id.", default=[], sample=["ann", "bob"])


class IdentityRole(Kind):
    """A role. Its key is its name or id."""

    noun, plural = "role", "roles"
    sample_changes = {"description": ("", "reads invoices")}

    id = _id()
    name = Field(NAME, "The name, unique in the cloud.", required=True, sample="auditor")
    description = Field(LONG, "Free text.", default="", sample="reads invoices")
    domain = Field(Nullable(REFERENCE), "The domain that the role belongs to, by name or id; reported by name. Roles "
                   "without one, the default, belong to the cloud.", on=FIXED, aliases=("domain_id",), default=None)
    domain_id = _id_of("domain; V(null) for a role of the cloud", "default")


class RoleAssignment(Kind):
    """A role that a user or a group has on a project, a domain or the system. Its key has a part NAME=VALUE for each
    of its fields, separated by colons: role=member:user=ann:project=shop.
    """

    noun, plural = "role_assignment", "role_assignments"
    sample_changes = {"role": (None, "member")}

    id = Field(Text(), "The uuid, derived from role, user or group, and target.", on=READ,
               sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(), "The key, with names.", on=READ, sample="role=member:user=ann:project=shop")
    role = Field(REFERENCE, "The role, by name or id.", required=True, on=FIXED, sample="member")
    role_id = _id_of("role")
    user = Field(Nullable(REFERENCE), "The user who has the role, by name or id; V(null) for a group.", on=FIXED,
                 sample="ann")
    user_id = _id_of("user")
    user_domain = _domain_of("user")
    group = Field(Nullable(REFERENCE), "The group whose users have the role, by name or id; V(null) for a user.",
                  on=FIXED, sample="operators")
    group_id = _id_of("group")
    group_domain = _domain_of("group")
    project = Field(Nullable(REFERENCE), "The project in which the role counts, by name or id.", on=FIXED,
                    sample="shop")
    project_id = _id_of("project")
    project_domain = _domain_of("project")
    domain = Field(Nullable(REFERENCE), "The domain on which the role counts, by name or id.", on=FIXED,
                   sample="Default")
    domain_id = _id_of("domain", "default")
    system = Field(Nullable(Choices("all")), "The system as the target of the role; always V(all).", on=FIXED,
                   sample="all")


class ApplicationCredential(Kind):
    """A name and a secret that let programs log in as the user who created it. Its key is its name or id."""

    noun, plural = "application_credential", "application_credentials"
    sample_changes = {"roles": (None, ["member"])}

    id = _id()
    name = Field(NAME, "The name, unique for the user.", required=True, on=FIXED, sample="backup")
    description = Field(LONG, "Free text.", default="", on=FIXED, sample="nightly backup")
    roles = Field(
        ListOf(OneOf(REFERENCE, MapOf(Choices("id", "name", "domain_id"), Nullable(REFERENCE))), 1000),
        "Roles that it has, by name or id, or as mappings with V(name) or V(id). They must be among the roles of the "
        "login; by default, all of these. Reported by name.", on=FIXED, sample=["member"])
    expires_at = Field(Nullable(Text(1, 64)), "The time at which it ends, ISO 8601, in UTC unless it has a zone. By "
                       "default it never ends.", on=FIXED, default=None, sample="2030-01-31T12:00:00Z")
    unrestricted = Field(Boolean(), "Whether logins with it may create and remove application credentials.", on=FIXED,
                         default=False, sample=False)
    secret = Field(Nullable(Text(1, 4096)), "The secret, generated if omitted. Only the result of the task that "
                   "creates the credential has it.", on="create show", secret=True,
                   sample="gO5n8QW0c3vXqYb6yQkTt1yJk0vX2c9x")
    user = Field(Text(), "The user for whom it logs in, by name.", on=READ, sample="ann")
    user_id = _id_of("user")
    project = Field(Text(), "The project with which it logs in, by name.", on=READ, sample="shop")
    project_id = _id_of("project")
