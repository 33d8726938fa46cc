# SPDX-License-Identifier: GPL-3.0-or-later
"""What Keystone has and the embedded identity service has none of: lists are empty, and making one is refused, saying
what there is instead (Identity API v3: "Credentials", "Policies", "EC2 credentials", "Access rules")."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NoReturn

from magnetar_control.services import Document
from magnetar_control.services.identity.resources import USERS
from magnetar_control.services.identity.store import IdentityStore
from magnetar_control.services.identity.tokens import Tokens
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import InvalidRequest, NotFound

from .users import own
from .views import listed

#: Path, key of the list, one of it, who may see the list, and what is there instead.
NONE_OF = (
    ("/v3/credentials", "credentials", "credential", "token", "Application credentials let programs in."),
    ("/v3/policies", "policies", "policy", "admin", "Each service reads its policy from its own files."))
OF_USERS = (("credentials/OS-EC2", "credentials", "credential", "Application credentials let programs in."),
            ("access_rules", "access_rules", "access rule", "Application credentials are limited by their roles."))


#: Roles that projects below would inherit: on what, and whose.
INHERITED = [f"/v3/OS-INHERIT/{target}/{actor}/roles" for target in ("projects/{target}", "domains/{target}")
             for actor in ("users/{actor}", "groups/{actor}")]
NOT_INHERITED = ("Roles are not inherited by projects below. Give the role on each project (openstack role add without "
                 "--inherited).")


def routes(tokens: Tokens) -> list[Guarded]:
    """All of them."""
    found = []
    for path, plural, name, who, instead in NONE_OF:
        found += [route(f"GET {path}", partial(_list, plural), who=who),
                  route(f"POST {path}", partial(_refuse, name, instead), who=who),
                  *(route(f"{method} {path}/{{id}}", partial(_missing, name), who=who)
                    for method in ("GET", "PATCH", "DELETE"))]
    for below, plural, name, instead in OF_USERS:
        path, of = f"/v3/users/{{user}}/{below}", partial(_of_user, IdentityStore(USERS, tokens))
        found += [route(f"GET {path}", own(partial(of, partial(_list, plural)))),
                  route(f"POST {path}", own(partial(of, partial(_refuse, name, instead)))),
                  *(route(f"{method} {path}/{{id}}", own(partial(of, partial(_missing, name))))
                    for method in ("GET", "DELETE"))]
    for path in INHERITED:
        found += [route(f"GET {path}/inherited_to_projects", partial(_list, "roles"), who="admin"),
                  route(f"PUT {path}/{{role}}/inherited_to_projects", _not_inherited, who="admin")]
    return found


def _not_inherited(_request: Request) -> NoReturn:
    raise InvalidRequest(NOT_INHERITED)


def _of_user(store: IdentityStore, answer: Callable[[Request], Document], request: Request, user: str) -> Document:
    store.show(request.context, user)  # raises NotFound
    return answer(request)


def _list(plural: str, request: Request) -> Document:
    return listed(request, plural, ())


def _missing(name: str, request: Request) -> NoReturn:
    raise NotFound(f"Could not find {name}: {request.params['id'][:80]}.")


def _refuse(name: str, instead: str, _request: Request) -> NoReturn:
    raise InvalidRequest(f"The embedded identity service makes no {name}. {instead}")
