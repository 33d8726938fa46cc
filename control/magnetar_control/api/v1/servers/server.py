# SPDX-License-Identifier: GPL-3.0-or-later
"""server: a server of the caller's project, found by name or uuid and changed by server actions until it is as
requested.

The driver compares the request with the server and requests the next action until nothing differs. So a request that is
sent again, or continues in another process, ends as the first one would have. The transaction that writes a new server
looks its name up again, so the same request never creates two servers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from magnetar_control.api.v1.driver import ALL_PROJECTS, CloudChange, CloudDriver
from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.attachments import volume_attachments
from magnetar_control.compute.caller import Caller, Owner
from magnetar_control.compute.cloud import HostView
from magnetar_control.compute.placement.scheduling import predicted_host, why_no_host
from magnetar_control.compute.proxies.networks import resolve_requested_networks
from magnetar_control.compute.servers import server_actions, server_create, soft_delete
from magnetar_control.compute.servers import servers as compute
from magnetar_control.compute.servers.server_create import NewServers
from magnetar_control.compute.servers.server_passwords import SHOW_PASSWORD
from magnetar_control.compute.target import find_server_target
from magnetar_control.store.actions import instance_actions
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_control.web import Answer
from magnetar_core import power
from magnetar_core.document import Document
from magnetar_core.errors import Ambiguous, Conflict, Failed, InvalidField, MagnetarError, NoSpace, NotFound
from magnetar_core.hardware import machines
from magnetar_core.kinds import Server
from magnetar_core.operations import Operation
from magnetar_core.plan import Result, Step
from magnetar_core.reconcile import is_uuid_key, record_step, warn_caller
from magnetar_core.server_plan import server_step
from magnetar_core.values import Text

from . import consoles, guest, server_dry_run, server_plan, server_view
from .server_actions import ServerActions, delete_and_wait, locate_server, wait_until_idle, why_failed
from .server_request import new_server, rebuild_of, requested_network, resolve_server_references, with_port_ids


class Taken(Exception):
    """The error that a concurrent request has just created a server with the requested name. The caller tries again
    with the existing server."""


class CloudServers(CloudDriver):
    """The driver of the v1 API for servers of the caller's project."""

    kind = Server
    of_all_projects = True
    host_only = {**server_view.CONSTANT, "personality": None}

    def __init__(self) -> None:
        self.more = {"console": {"GET": self.console}, "consoles": {"POST": consoles.handle_open_console},
                     "guest": {"POST": guest.handle_guest_command}}

    # Resources that exist
    def every(self, caller: Caller) -> list[Document]:
        """Return all servers of the project in the format of the v1 API. This needs one query for each cell."""
        return _render_servers(caller, compute.list_project_servers(caller))

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return the servers of the project. The filter ``all_projects``, for administrators, returns the servers of
        all projects. Soft-deleted servers are included only if the filters contain the status of soft-deleted servers
        or the uuid of a server."""
        each = compute.list_all_servers if filters.pop(ALL_PROJECTS, False) else compute.list_project_servers
        named = power.status_word(power.SOFT_DELETED) in filters.get("status", ()) or "id" in filters
        return _render_servers(caller, each(caller, soft_deleted=named))

    def row(self, caller: Caller, key: str) -> Any:
        """Return the database row of the project's server with the uuid or name *key*; ``None`` if there is none.
        Raises ``Ambiguous`` if several servers have the name."""
        if is_uuid_key(key):
            located_server = locate_server(caller, key.lower())
            return located_server[1] if located_server else None
        named = servers.find_servers_named(caller.cloud.store, caller.project, key)
        if len(named) > 1:
            raise Ambiguous(f"{len(named)} servers have the name {key!r}; use a uuid.",
                            uuids=[row.id for _database, row in named])
        return named[0][1] if named else None

    def find(self, caller: Caller, key: str) -> Document | None:
        row = self.row(caller, key)
        return None if row is None else self.seen(caller, row)

    def one(self, caller: Caller, key: str) -> Document:
        row = self.existing(caller, key)
        return self.seen(caller, compute.show_server(caller, find_server_target(caller, row.id)))

    def existing(self, caller: Caller, key: str) -> Any:
        """Return the database row of the project's server with the uuid or name *key*. Raises ``NotFound`` if there is
        none, ``Ambiguous`` if several have the name."""
        row = self.row(caller, key)
        if row is None:
            raise NotFound(f"There is no server {key!r} in your project.", kind="server", key=key)
        return row

    def seen(self, caller: Caller, row: ServerRow) -> Document:
        """Return the current state of the server *row*, as ``plan`` needs it, with the names of its volumes."""
        (server,) = _render_servers(caller, [row])
        for attachment in server["volumes_attached"]:
            volume = caller.cloud.services.volume.show(caller.context, attachment["id"])
            attachment["name"] = volume["name"] if volume else ""
        return server

    def public(self, resource: Document) -> Document:
        """Override ``CloudDriver.public``: return the server without internal keys, also in its NICs. In the result,
        ``block_device_mapping`` is always empty, because this field only describes how the server was created."""
        return {**{name: value for name, value in resource.items() if name in server_view.SHOWN},
                "networks": [*map(super().public, resource["networks"])], "block_device_mapping": []}

    def comparable(self, resource: Document) -> Document:
        """Override ``CloudDriver.comparable``: return the server without internal keys in its NICs. In the result,
        ``image`` is the image's uuid, or the image's name if the uuid is not known."""
        image = resource.get("image")
        return {**resource, "networks": [*map(super().public, resource.get("networks") or ())],
                "image": (image["id"] or image["name"]) if isinstance(image, dict) else image}

    def console(self, request: Any, caller: Caller, _driver: CloudDriver, key: str) -> Answer:
        """Return the end of the server's console log, as text or JSON. Query parameters: ``lines`` (the number of
        lines) and ``format=json``."""
        query = dict(request.query)
        row, lines = self.existing(caller, key), query.get("lines")
        if lines is not None and not lines.isdigit():
            raise InvalidField("lines", "must be a whole number", lines)
        output = server_actions.show_console_output(caller, find_server_target(caller, row.id),
                                                    int(lines) if lines else None)
        if query.get("format") == "json":
            return Answer({"output": output})
        return Answer(output, media_type="text/plain; charset=utf-8")

    # Requests
    def given(self, key: str, want: Document) -> Document:
        """Override ``CloudDriver.given``: return the desired state *want* after a check. Also accepts the field
        ``host``, although servers are declared with ``host`` as a read-only field."""
        host = want.get("host")
        document = super().given(key, {name: value for name, value in want.items() if name != "host"})
        return document if host is None else {**document, "host": Text(1, 255).check(host, "host")}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with its references resolved. Raises ``Forbidden`` if *want* contains a host
        for an existing server and the caller may not see hosts: the answer would reveal whether the server is on that
        host."""
        if want.get("host") and have is not None:
            caller.check_policy(compute.EXTENDED)
        if have is not None and machines.is_same_machine(want["machine"], have["machine"]):
            want = {**want, "machine": have["machine"]}
        return resolve_server_references(caller, want, have)

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        if want is None:
            yield from server_plan.removal_steps(have or {})
        elif have is None:
            yield from server_plan.creation_steps(want)
        else:
            yield from server_plan.steps_of_actions(server_plan.plan_actions(want, have), want, have)

    def predicted_plan(self, caller: Caller, want: Document, have: Document) -> list[Step]:
        return server_dry_run.predict_agent_steps(caller, list(server_plan.plan_actions(want, have)), want, have)

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Check that the server *want* can be created in place of the server *have*. If *have* is ``None``, check
        nothing: ``predicted`` and ``make`` check a new server."""
        if have is not None and not want["_assumed"]:
            freed = {nic[name] for nic in have["networks"] for name in ("address", "_port")}
            new_servers = new_server({**_recreated(want, have), "id": None}, freed)
            current_row = find_server_target(caller, have["id"]).row
            row, _warning = _row_to_be(caller, new_servers, current_row)
            predicted_host(caller, row, current_row.flavor, current_row.image)

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        """Check each action of the change before the first action begins. Raises the error of an action that is not
        possible."""
        actions = list(server_plan.plan_actions(want, have))
        action_keys = {action.key for action in actions}
        if have.get("rebuild"):
            rebuild_of(want, have)
        if want.get("host") and action_keys & {"migrate", "unshelve"}:
            place = caller.cloud.hosts.get(want["host"])
            if place is None:
                raise Conflict(f"There is no host {want['host']!r} in this cloud. Hosts are listed by hypervisor_info.")
            if "migrate" in action_keys:
                _check_host(caller, want, have, place)
        own_addresses = {nic["address"] for nic in have["networks"]}
        added = [action.args for action in actions if action.key == "attach_interface"]
        nics = [requested_network(args["wish"], args["at"], own_addresses) for args in added]
        nics = [nic for nic in nics if nic.get("uuid") or nic.get("port")]  # a dry run assumes the others
        if "resize" in action_keys and want["flavor"]["vcpus"]:  # otherwise a dry run assumes the flavor
            server_plan.check_disk_sizes(have, want)
            quotas.check_flavor_quota(caller, Owner(caller.project, have["_user"]), have["flavor"], want["flavor"])
        if nics:
            resolve_requested_networks(caller, nics)

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the state of the server after the change, for a dry run: for a new server with the host that the
        scheduler would choose, for an existing server with its new status."""
        shown = super().predicted(caller, want, have)
        if have is None:
            if want.get("id"):
                server_create.check_unused_uuid(caller, want["id"])
            host = None if want["_assumed"] else predicted_host(caller, _row_to_be(caller, new_server(want))[0])
            return {**shown, "host": host if caller.allows(compute.EXTENDED) else ""}
        if shown["power"] == power.SHELVED != have["power"]:
            shown.update(power_state=power.OFF, status=power.status_word(
                power.SHELVED if have["image"] and caller.settings.shelved_offload_time else power.OFFLOADED))
        elif (shown["power"], shown["rescue"]) != (have["power"], have["rescue"]):
            state = power.RESCUED if shown["rescue"] is not None else power.POWERS[shown["power"]].vm_state
            shown.update(power_state=shown["power"], status=power.status_word(str(state)))
        return shown

    # Changes
    def ensure(self, caller: Caller, key: str, want: Document | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        while True:
            row = self.row(caller, key)
            if row is not None and not dry_run:
                row = wait_until_idle(caller, row.id, operation)
            if row is not None and row.vm_state == power.SOFT_DELETED:
                if not is_uuid_key(key):
                    continue  # it was soft-deleted after the lookup: the name is free
                if want is not None:
                    raise Conflict(f"Server {row.name!r} is soft-deleted. Restore it first: server_action with "
                                   "action: restore.", uuids=[row.id])
                row = None
            have = None if row is None else self.seen(caller, row)
            if want is None:
                return self.checked_removal(caller, have, permissions, dry_run, functools.partial(
                    self._removal, caller, row, have, dry_run, operation))
            try:
                desired = with_port_ids(caller, self.given(key, want))
                return _ServerChange(self, caller, desired, permissions, dry_run, operation).run(have)
            except Taken:
                continue

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        """Create the server, wait until it has the requested power state, and return its uuid. If the build fails,
        remove the server and raise an error with the reason. Raises ``Taken`` if a concurrent request has created a
        server with the same name."""
        if want.get("id"):
            server_create.check_unused_uuid(caller, want["id"])
        new, warning = _row_to_be(caller, new_server(want))
        if not server_create.create_named_server(caller, new, warning, want.get("admin_pass")):
            raise Taken
        row = wait_until_idle(caller, new["id"], operation)
        if row is None:
            raise Conflict(f"Server {want['name']!r} was removed by somebody while it was made.")
        if row.vm_state == power.ERROR:
            raise self.unmade(caller, row, operation)
        have = self.seen(caller, row)
        server = ServerActions(caller, row.id, operation)
        for action in server_plan.power_actions(want, have, have["power"]):  # a new server is running, or off
            server.do(action)
        return str(row.id)

    def unmade(self, caller: Caller, row: ServerRow, operation: Operation) -> MagnetarError:
        """Remove a server whose build has failed. Return an error with the reason, which the caller raises."""
        why, no_host = why_failed(row), why_no_host(caller, row.fault) if row.fault else None
        delete_and_wait(caller, row.id, operation)
        if no_host:
            return NoSpace(f"Server {row.name!r} could not be made: {no_host}", server=row.id)
        return Failed(f"Server {row.name!r} could not be made: {why}", server=row.id)

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        server = ServerActions(caller, have["id"], operation)
        rebuild = rebuild_of(want, have) if have.get("rebuild") else None
        for action in server_plan.plan_actions(want, have):
            server.do(action._replace(args={"rebuild": rebuild}) if action.key == "rebuild" else action)
        if wait_until_idle(caller, have["id"], operation) is None:
            raise NotFound(f"Server {have['name']!r} was removed in the meantime.", kind="server", key=have["id"])

    def _removal(self, caller: Caller, row: ServerRow | None, have: Document | None, dry_run: bool,
                 operation: Operation) -> Result:
        """Remove the server *have*, or predict this in a dry run, and return the result. *row*: the server's database
        row. If soft delete is enabled, the server can be restored later, and the result has only one step: soft_delete.
        """
        stays = row is not None and soft_delete.is_restorable(caller, row)
        result = self.removal(caller, have, dry_run, operation)
        return Result([server_step("soft_delete")], result.diff, result.resource) if stays else result

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        delete_and_wait(caller, have["id"], operation)

    def recreate(self, caller: Caller, have: Document, want: Document, operation: Operation) -> str:
        """Delete the server *have*, create *want* in its place, and return the new uuid. Volumes that the new server
        also uses are kept, even if they have delete_on_termination."""
        new = _recreated(want, have)
        named = {block_device.get("uuid") for block_device in new["block_device_mapping"]
                 if block_device["source_type"] == "volume"}
        for attachment in have["volumes_attached"]:
            if attachment["delete_on_termination"] and not named.isdisjoint((attachment["id"], attachment["name"])):
                volume_attachments.update_volume_attachment(caller, find_server_target(caller, have["id"]),
                                                            attachment["id"], delete_on_termination=False)
        at_once = compute.force_delete_server if caller.settings.reclaim_instance_interval else compute.delete_server
        delete_and_wait(caller, have["id"], operation, at_once)  # the new server gets its volumes and ports
        return self.make(caller, new, operation)


def _check_host(caller: Caller, want: Document, have: Document, new_host: HostView) -> None:
    """Check that the server *have* can move to *new_host* if this host is in another cell. A move within the cell of
    the server is not checked here. If the move is impossible, raise an error with the reason."""
    target = find_server_target(caller, have["id"])
    if not server_actions.is_other_cell(caller, target, new_host):
        return
    server_actions.check_cell_change(caller, target, new_host)
    if want["power"] != power.OFF and not have.get("allow_reboot"):
        raise Conflict(f"host: {new_host.name} is in another cell than server {want['name']!r}, where no guest goes "
                       "while it runs. Stop it first; or, in this API, ?allow_reboot=true has it stopped, moved and "
                       "started.",
                       fields=["host"])


def _row_to_be(caller: Caller, new_servers: NewServers,
               instead_of: ServerRow | None = None) -> tuple[dict[str, Any], str | None]:
    """Return the database row that would be written for a new server, and a warning about extra specs that have no
    effect (``None``: no warning). The warning is also added to the answer. *instead_of*: the row of a server that will
    be replaced."""
    row, warning = server_create.preview_server_row(caller, new_servers, instead_of)
    if warning:
        warn_caller(warning)
    return row, warning


class _ServerChange(CloudChange):
    """A request that creates or changes one server, or, in a dry run, only predicts the result. If the client sends the
    same request again, it gets the result of the first execution."""

    driver: CloudServers

    def run(self, have: Document | None) -> Result:
        """Create the server, or change it if its current state *have* is not ``None``, and return the result. If an
        earlier request with the same id has already made the change, return the steps of that request. If that request
        has created the server and the build has failed, remove the server and raise the error."""
        if have is None:
            return super().run(None)
        keys = [] if self.dry_run else self._earlier_actions(have["id"])
        if "create" in keys and have["_vm_state"] == power.ERROR and not have["_launched"]:
            raise self.driver.unmade(self.caller, self.driver.row(self.caller, have["id"]), self.operation)
        result = super().run(have)
        if result.changed or not keys:
            return result
        made = "create" in keys
        steps = server_plan.creation_steps(have) if made else server_plan.steps_before(keys, have)
        return self.result([record_step(self.kind, have["name"]), *steps],
                           self._difference(None, self.wanted(None)) if made else [], result.resource)

    def _earlier_actions(self, id: str) -> list[str]:
        """Return the names (such as ``resize``) of the actions that an earlier request with the same request id has
        queued for the server *id*; an empty list if that request has queued none, or the server is gone."""
        located_server = locate_server(self.caller, id)
        if located_server is None:
            return []
        with located_server[0].read() as connection:
            return instance_actions.fetch_action_keys(connection, id, self.caller.request_id)


def _recreated(want: Document, have: Document) -> Document:
    """Return the desired state *want* for a new server that replaces *have*. If the request does not change the NICs,
    the new server gets the same NICs: those on a port that the user has created keep this port, the others get new
    ports with the same addresses, but new MAC addresses."""
    if want["networks"] is not have["networks"]:
        return want
    return {**want, "networks": [{name: nic[name] for name in ("network", "_id", "tag", "address") if nic.get(name)}
                                 if nic["_made"] else {**nic, "port": nic["_port"]} for nic in want["networks"]]}


def _render_servers(caller: Caller, rows: Iterable[ServerRow]) -> list[Document]:
    """Return the servers *rows* in the format of the v1 API. Information about their hosts is included only if the
    caller may see it."""
    names, rows = _image_names(caller), list(rows)
    floating = compute.server_floating_ips(caller.cloud, rows)
    return [server_view.render_server(row, names, caller.allows(compute.EXTENDED, row),
                                      bool(row.password) and caller.allows(SHOW_PASSWORD, row), floating.get(row.id))
            for row in rows]


def _image_names(caller: Caller) -> Callable[[str], str]:
    """Return a function that takes the uuid of an image and returns the image's name. The function queries each image
    only once."""
    @functools.cache
    def name(id: str) -> str:
        image = caller.cloud.services.image.show(caller.context, id)
        return (image and image["name"]) or ""

    return name


SERVERS = CloudServers()
