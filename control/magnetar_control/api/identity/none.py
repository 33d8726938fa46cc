# SPDX-License-Identifier: GPL-3.0-or-later
"""Resources of Keystone that the embedded identity service does not have. Lists are empty; a creation is refused, and
the error names the alternative (Identity API v3: "Credentials", "Policies", "EC2 credentials", "Access rules")."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NoReturn

from magnetar_control.services.identity.resources import USERS
from magnetar_control.services.identity.store import IdentityStore
from magnetar_control.services.identity.tokens import Tokens
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidRequest, NotFound

from .users import require_own_user
from .views import render_list

#: Path, key of the list, name of a resource, callers who may see the list, and the alternative.
NONE_OF = (
    ("/v3/credentials", "credentials", "credential", "token", "Application credentials let programs in."),
    ("/v3/policies", "policies", "policy", "admin", "Each service reads its policy from its own files."))
OF_USERS = (("credentials/OS-EC2", "credentials", "credential", "Application credentials let programs in."),
            ("access_rules", "access_rules", "access rule", "Application credentials are limited by their roles."))


#: Paths of roles that child projects would inherit: target and actor.
INHERITED = [f"/v3/OS-INHERIT/{target}/{actor}/roles" for target in ("projects/{target}", "domains/{target}")
             for actor in ("users/{actor}", "groups/{actor}")]
NOT_INHERITED = ("Roles are not inherited by projects below. Give the role on each project (openstack role add without "
                 "--inherited).")


def absent_identity_routes(tokens: Tokens) -> list[Guarded]:
    """Return routes for Keystone resources that this service does not support, such as policies. Lists of such
    resources are empty, a request for a single resource is answered with 404, and a request to create one is refused.
    """
    routes = []
    for path, plural, name, who, instead in NONE_OF:
        routes += [guarded_route(f"GET {path}", partial(_list, plural), who=who),
                   guarded_route(f"POST {path}", partial(_refuse, name, instead), who=who),
                   *(guarded_route(f"{method} {path}/{{id}}", partial(_missing, name), who=who)
                     for method in ("GET", "PATCH", "DELETE"))]
    for below, plural, name, instead in OF_USERS:
        path, of = f"/v3/users/{{user}}/{below}", partial(_of_user, IdentityStore(USERS, tokens))
        routes += [guarded_route(f"GET {path}", require_own_user(partial(of, partial(_list, plural)))),
                   guarded_route(f"POST {path}", require_own_user(partial(of, partial(_refuse, name, instead)))),
                   *(guarded_route(f"{method} {path}/{{id}}", require_own_user(partial(of, partial(_missing, name))))
                     for method in ("GET", "DELETE"))]
    for path in INHERITED:
        routes += [guarded_route(f"GET {path}/inherited_to_projects", partial(_list, "roles"), who="admin"),
                   guarded_route(f"PUT {path}/{{role}}/inherited_to_projects", _not_inherited, who="admin")]
    return routes


def _not_inherited(_request: Request) -> NoReturn:
    raise InvalidRequest(NOT_INHERITED)


def _of_user(store: IdentityStore, answer: Callable[[Request], Document], request: Request, user: str) -> Document:
    store.show(request.context, user)  # raises NotFound
    return answer(request)


def _list(plural: str, request: Request) -> Document:
    return render_list(request, plural, ())


def _missing(name: str, request: Request) -> NoReturn:
    raise NotFound(f"Could not find {name}: {request.params['id'][:80]}.")


def _refuse(name: str, instead: str, _request: Request) -> NoReturn:
    raise InvalidRequest(f"The embedded identity service makes no {name}. {instead}")
