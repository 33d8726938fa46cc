# SPDX-License-Identifier: GPL-3.0-or-later
"""The places of an estate: agents and clouds, each with a connection of its own, and work on all of them in parallel.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ..connect import connect_client
from ..core.errors import InvalidField, MagnetarError
from ..core.options import CONNECTION

#: The place of a task without ``places``: its own endpoint.
OWN = "default"
#: Options of a connection that the places take from the task.
SHARED = ("ca_cert", "client_cert", "client_key", "validate_certs", "ssh_private_key", "ssh_known_hosts", "api_timeout",
          "timeout")
#: The most places that are worked on at the same time, and the most items of one batch request.
PARALLEL, BATCH = 32, 1000


class EstatePlace:
    """A connection to an agent or cloud ("place"): its ``name``, its ``client``, and whether it is a cloud
    (``in_cloud``).
    """

    def __init__(self, name, client):
        self.name, self.client = name, client
        info = client.info()
        self.in_cloud, self.kinds = bool(info.get("cloud")), info.get("kinds") or ()

    @property
    def endpoint(self):
        """Return the URL of the agent or cloud, which a plan records."""
        return self.client.endpoint

    def ensure(self, noun, requests, dry_run):
        """Send *requests* for resources of the type *noun* in batches, and return the answers in the same order.
        *requests*: items as in ``Client.ensure_many``.
        """
        answers = []
        for at in range(0, len(requests), BATCH):
            answer = self.client.ensure_many(noun, requests[at:at + BATCH], dry_run=dry_run)
            answers += answer["results"]
        return answers


def place_parameters(places, params):
    """Return the connection parameters of each agent or cloud, by its name. *places*: the module option ``places``.
    *params*: the module parameters, which apply where a place sets no parameter of its own. Raises ``InvalidField``.
    """
    if not places:
        return {OWN: params}
    names = {alias: option.option for option in CONNECTION for alias in (option.option, *option.aliases)}
    place_names = sorted({name for name in names.values() if name != "direct"})
    places_by_name = {}
    for place, options in places.items():
        if not isinstance(options, dict):
            raise InvalidField("places.%s" % place, "must be a mapping with endpoint or cloud, and further options of "
                               "the connection")
        for option_name in options:
            if names.get(option_name) not in place_names:
                raise InvalidField("places.%s.%s" % (place, option_name), "is no option of a connection; they are %s"
                                   % ", ".join(place_names))
        own = {names[option_name]: value for option_name, value in options.items() if value is not None}
        if not {"endpoint", "cloud"} & set(own):
            raise InvalidField("places.%s" % place, "must name an endpoint or a cloud")
        shared = {name: params.get(name) for name in SHARED}
        places_by_name[str(place)] = dict(dict.fromkeys(option.option for option in CONNECTION), **dict(shared, **own))
    return places_by_name


def work_at_places(parameters, names, work):
    """Connect to the agents and clouds with these *names* in parallel, and call *work* with the ``EstatePlace`` of
    each. Return the results of *work* by name, and the errors by name. *parameters*: the result of
    ``place_parameters``.
    """
    def one(name):
        try:
            client = connect_client(parameters[name])
            try:
                return work(EstatePlace(name, client)), None
            finally:
                client.close()
        except MagnetarError as error:
            return None, error

    names = list(names)
    if not names:
        return {}, {}
    with ThreadPoolExecutor(min(PARALLEL, len(names)), thread_name_prefix="place") as pool:
        outcomes = dict(zip(names, pool.map(one, names)))
    return ({name: result for name, (result, error) in outcomes.items() if error is None},
            {name: error for name, (_result, error) in outcomes.items() if error is not None})
