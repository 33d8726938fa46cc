# SPDX-License-Identifier: GPL-3.0-or-later
"""The login of a cloud's user: authentication with the identity service (Identity API v3), and the address of the
Compute API from the catalogue.

Tokens are kept for the lifetime of this process, and renewed when they expire.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Mapping, Optional, Union
from urllib.parse import urlsplit

from ..errors import Forbidden, InvalidField, MagnetarError, NotFound, Unauthenticated, Unreachable
from .endpoint import Endpoint, cloud_endpoint

#: Environment variables of the fields in a cloud's ``auth``.
VARIABLES = {
    "auth_url": "OS_AUTH_URL", "username": "OS_USERNAME", "user_id": "OS_USER_ID", "password": "OS_PASSWORD",
    "project_name": "OS_PROJECT_NAME", "project_id": "OS_PROJECT_ID", "user_domain_name": "OS_USER_DOMAIN_NAME",
    "user_domain_id": "OS_USER_DOMAIN_ID", "project_domain_name": "OS_PROJECT_DOMAIN_NAME",
    "project_domain_id": "OS_PROJECT_DOMAIN_ID", "token": "OS_TOKEN",
    "application_credential_id": "OS_APPLICATION_CREDENTIAL_ID",
    "application_credential_name": "OS_APPLICATION_CREDENTIAL_NAME",
    "application_credential_secret": "OS_APPLICATION_CREDENTIAL_SECRET"}
#: Environment variables of the fields next to ``auth``.
BESIDE = {"region_name": "OS_REGION_NAME", "interface": "OS_INTERFACE", "cacert": "OS_CACERT"}
DEFAULT = "default"
#: Token and URL of each login of this process.
_sessions: dict[str, tuple[str, str]] = {}
#: Maximum number of logins in ``_sessions``; beyond it, all are removed.
REMEMBERED = 1000


def cloud_from_environment(environ: Optional[Mapping[str, str]] = None) -> dict[str, Any]:
    """Return the cloud that the ``OS_*`` environment variables describe, in the form of an entry of clouds.yaml. The
    result has no ``auth.auth_url`` if the variables do not describe a cloud.
    """
    variables = os.environ if environ is None else environ
    cloud: dict[str, Any] = {name: variables[variable] for name, variable in BESIDE.items() if variables.get(variable)}
    cloud["auth"] = {name: variables[variable] for name, variable in VARIABLES.items() if variables.get(variable)}
    if str(variables.get("OS_INSECURE", "")).lower() in ("1", "true", "yes"):
        cloud["verify"] = False
    return cloud


class Login:
    """A user's login at a cloud's Identity API, which provides tokens for requests. *cloud*: an entry of clouds.yaml,
    with ``auth``, ``region_name``, ``interface``, ``cacert`` and ``verify``.
    """

    def __init__(self, cloud: Mapping[str, Any], timeout: float = 5.0, agent_name: str = "magnetar-client") -> None:
        self.auth: dict[str, Any] = dict(cloud.get("auth") or {})
        self.region, self.interface = cloud.get("region_name"), str(cloud.get("interface") or "public")
        self.ca_cert, self.validate = cloud.get("cacert"), cloud.get("verify", True) is not False
        self.timeout, self._agent_name = timeout, agent_name
        if not self.auth.get("auth_url"):
            raise InvalidField("cloud", "has no auth.auth_url, the URL of its identity service (OS_AUTH_URL)")
        self._key = json.dumps([self.auth, self.region, self.interface], sort_keys=True, default=str)

    @property
    def address(self) -> Endpoint:
        """Return the address of the cloud's Compute API, from the service catalog."""
        return cloud_endpoint(self._session()[1])

    @property
    def token(self) -> str:
        """Return a valid token. The same token is returned until a service refuses it."""
        return self._session()[0]

    def renew(self) -> None:
        """Discard the token after a service has refused it. The next use of ``token`` logs in again."""
        _sessions.pop(self._key, None)

    def _session(self) -> tuple[str, str]:
        session = _sessions.get(self._key)
        if session is None:
            session = self._log_in()
            if len(_sessions) >= REMEMBERED:
                _sessions.clear()
            _sessions[self._key] = session
        return session

    def _log_in(self) -> tuple[str, str]:
        url = self.auth["auth_url"].rstrip("/")
        url = url if url.endswith("/v3") else url + "/v3"
        status, headers, answer = self._post(url + "/auth/tokens", {"auth": login_request(self.auth)})
        if status == 401:
            raise Unauthenticated("%s does not let you in: %s. Check user, password, project and their domains."
                                  % (url, _error_message(answer)))
        if status not in (200, 201) or not headers.get("x-subject-token"):
            raise MagnetarError("%s answered the login with HTTP %d: %s" % (url, status, _error_message(answer)))
        token = (answer or {}).get("token") or {}
        if not token.get("project"):
            raise Forbidden("The login at %s is for no project. Give a project (project_name, OS_PROJECT_NAME)." % url)
        return headers["x-subject-token"], self._compute(token.get("catalog") or [])

    def _compute(self, catalogue: Any) -> str:
        for service in catalogue:
            if service.get("type") != "compute":
                continue
            for endpoint in service.get("endpoints") or []:
                in_region = self.region in (None, endpoint.get("region_id"), endpoint.get("region"))
                if endpoint.get("interface") == self.interface.replace("URL", "") and in_region:
                    return str(endpoint["url"])
        raise NotFound("The catalogue of %s has no compute service with the interface %s%s." % (
            self.auth["auth_url"], self.interface, " in region %s" % self.region if self.region else ""))

    def _post(self, url: str, body: Any) -> tuple[int, dict[str, str], Any]:
        from . import transport

        address = cloud_endpoint(url, "cloud")
        try:
            connection: Any = transport.cloud_connection(address, self.ca_cert, self.validate, self.timeout)
            connection.request("POST", urlsplit(url).path, json.dumps(body).encode(), {
                "Content-Type": "application/json", "Accept": "application/json", "User-Agent": self._agent_name})
            response = connection.getresponse()
            content = response.read()
            connection.close()
        except (OSError, socket.timeout) as error:
            raise Unreachable("Cannot reach the identity service at %s: %s" % (
                url, transport.connection_advice(error, address.scheme, False))) from None
        try:
            answer = json.loads(content) if content else {}
        except ValueError:
            answer = None
        return response.status, {name.lower(): value for name, value in response.getheaders()}, answer


def login_request(auth: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object ``auth`` for the body of a login request to the Identity API. *auth*: the section ``auth`` of
    an entry of clouds.yaml. Raises ``InvalidField`` for a missing value.
    """
    if auth.get("application_credential_secret"):
        credential = {"secret": auth["application_credential_secret"]}
        if auth.get("application_credential_id"):
            credential["id"] = auth["application_credential_id"]
        else:
            credential.update(name=_needed(auth, "application_credential_name"), user=_user(auth))
        return {"identity": {"methods": ["application_credential"], "application_credential": credential}}
    if auth.get("token"):
        identity: dict[str, Any] = {"methods": ["token"], "token": {"id": auth["token"]}}
    else:
        user = dict(_user(auth), password=_needed(auth, "password"))
        identity = {"methods": ["password"], "password": {"user": user}}
    return dict({"identity": identity}, **_scope(auth))


def _user(auth: Mapping[str, Any]) -> dict[str, Any]:
    if auth.get("user_id"):
        return {"id": auth["user_id"]}
    return {"name": _needed(auth, "username"), "domain": _domain(auth, "user")}


def _scope(auth: Mapping[str, Any]) -> dict[str, Any]:
    if auth.get("project_id"):
        return {"scope": {"project": {"id": auth["project_id"]}}}
    if auth.get("project_name"):
        return {"scope": {"project": {"name": auth["project_name"], "domain": _domain(auth, "project")}}}
    return {}


def _domain(auth: Mapping[str, Any], owner: str) -> dict[str, Any]:
    name = auth.get("%s_domain_name" % owner) or auth.get("domain_name")
    id = auth.get("%s_domain_id" % owner) or auth.get("domain_id")
    return {"name": name} if name and not id else {"id": id or DEFAULT}


def _needed(auth: Mapping[str, Any], name: str) -> Any:
    if not auth.get(name):
        raise InvalidField("cloud", "has no auth.%s (%s)" % (name, VARIABLES[name]))
    return auth[name]


def _error_message(answer: Any) -> Union[str, Any]:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or "no reason is given").rstrip(".")
