# SPDX-License-Identifier: GPL-3.0-or-later
"""server: found by name or uuid in the caller's project, and made be as wanted, action by action.

What is wanted is compared with what is, and the next action asked for, until nothing differs: so a request that is sent
again, or goes on in another process, ends as the first would have. A name is looked up once more in the transaction
that writes a new server, so the same request never makes two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import orjson

from magnetar_control.api.v1.driver import ALL_PROJECTS, CloudChange, CloudDriver
from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.attachments import volume_attachments
from magnetar_control.compute.caller import Caller, Owner
from magnetar_control.compute.cloud import HostView
from magnetar_control.compute.placement.scheduling import predicted_host, why_no_host
from magnetar_control.compute.proxies.networks import check_requested
from magnetar_control.compute.servers import server_actions, server_create, soft_delete
from magnetar_control.compute.servers import servers as compute
from magnetar_control.compute.servers.server_create import NewServers
from magnetar_control.compute.servers.server_passwords import SHOW_PASSWORD
from magnetar_control.compute.target import find
from magnetar_control.store.actions import instance_actions
from magnetar_control.store.servers import servers
from magnetar_control.web import Answer
from magnetar_core import power
from magnetar_core.errors import Ambiguous, Conflict, Failed, InvalidField, MagnetarError, NoSpace, NotFound
from magnetar_core.hardware import machines
from magnetar_core.kinds import Server
from magnetar_core.operations import Operation
from magnetar_core.plan import Result, Step
from magnetar_core.reconcile import Document, is_uuid, recorded, warn
from magnetar_core.server_plan import step
from magnetar_core.values import Text

from . import consoles, server_dry_run, server_plan, server_view
from .server_actions import ServerActions, found, removed, settled, why_failed
from .server_request import complete, network_of, new_server, rebuild_of, with_port_ids


class Taken(Exception):
    """There is a server of that name by now."""


class CloudServers(CloudDriver):
    """Servers of the project."""

    kind = Server
    of_all_projects = True
    host_only = {**server_view.CONSTANT, "personality": None}

    def __init__(self) -> None:
        self.more = {"console": {"GET": self.console}, "consoles": {"POST": consoles.opened}}

    # What there is
    def every(self, caller: Caller) -> list[Document]:
        """All of the project; one query for each cell."""
        return _shown(caller, compute.of_project(caller))

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """*all_projects*: those of all, for administrators. Soft-deleted ones are listed for who names their status or
        uuid."""
        each = compute.of_all_projects if filters.pop(ALL_PROJECTS, False) else compute.of_project
        named = power.status(power.SOFT_DELETED) in filters.get("status", ()) or "id" in filters
        return _shown(caller, each(caller, soft_deleted=named))

    def row(self, caller: Caller, key: str) -> Any:
        """The row; ``None`` when there is none. Raises ``Ambiguous``."""
        if is_uuid(key):
            one = found(caller, key.lower())
            return one[1] if one else None
        named = servers.by_name(caller.cloud.store, caller.project, key)
        if len(named) > 1:
            raise Ambiguous(f"{len(named)} servers have the name {key!r}; use a uuid.",
                            uuids=[row.id for _database, row in named])
        return named[0][1] if named else None

    def find(self, caller: Caller, key: str) -> Document | None:
        row = self.row(caller, key)
        return None if row is None else self.seen(caller, row)

    def one(self, caller: Caller, key: str) -> Document:
        row = self.existing(caller, key)
        return self.seen(caller, compute.show(caller, find(caller, row.id)))

    def existing(self, caller: Caller, key: str) -> Any:
        """As ``row``. Raises ``NotFound``."""
        row = self.row(caller, key)
        if row is None:
            raise NotFound(f"There is no server {key!r} in your project.", kind="server", key=key)
        return row

    def seen(self, caller: Caller, row: Any) -> Document:
        """The row as the plan sees it, names of volumes too."""
        (seen,) = _shown(caller, [row])
        for one in seen["volumes_attached"]:
            volume = caller.cloud.services.volume.show(caller.context, one["id"])
            one["name"] = volume["name"] if volume else ""
        return seen

    def public(self, resource: Document) -> Document:
        """Without what is for the plan, inside of NICs too. What it was made with is not told."""
        return {**{name: value for name, value in resource.items() if name in server_view.SHOWN},
                "networks": [*map(super().public, resource["networks"])], "block_device_mapping": []}

    def comparable(self, resource: Document) -> Document:
        """Without what is for the plan; the image by its uuid."""
        image = resource.get("image")
        return {**resource, "networks": [*map(super().public, resource.get("networks") or ())],
                "image": (image["id"] or image["name"]) if isinstance(image, dict) else image}

    def console(self, request: Any, caller: Caller, _driver: CloudDriver, key: str) -> Answer:
        """The end of the console log."""
        query = dict(request.query)
        row, lines = self.existing(caller, key), query.get("lines")
        if lines is not None and not lines.isdigit():
            raise InvalidField("lines", "must be a whole number", lines)
        output = server_actions.console_output(caller, find(caller, row.id), int(lines) if lines else None)
        if query.get("format") == "json":
            return Answer({"output": output})
        return Answer(output, media_type="text/plain; charset=utf-8")

    # What is wanted
    def given(self, key: str, want: Document) -> Document:
        """``host`` may be given here, though the kind only reports it."""
        host = want.get("host")
        given = super().given(key, {name: value for name, value in want.items() if name != "host"})
        return given if host is None else {**given, "host": Text(1, 255).check(host, "host")}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Who may not read the host of a server cannot ask for one: else the answer would tell whether it is there."""
        if want.get("host") and have is not None:
            caller.check_policy(compute.EXTENDED)
        if have is not None and machines.means(want["machine"], have["machine"]):
            want = {**want, "machine": have["machine"]}
        return complete(caller, want, have)

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        if want is None:
            yield from server_plan.removing(have or {})
        elif have is None:
            yield from server_plan.making(want)
        else:
            yield from server_plan.steps(server_plan.plan(want, have), want, have)

    def predicted_plan(self, caller: Caller, want: Document, have: Document) -> list[Step]:
        return server_dry_run.predicted(caller, list(server_plan.plan(want, have)), want, have)

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """A new server is checked when its host is predicted; one in the place of *have* here."""
        if have is not None and not want["_assumed"]:
            freed = {nic[name] for nic in have["networks"] for name in ("address", "_port")}
            wanted = new_server({**_recreated(want, have), "id": None}, freed)
            there = find(caller, have["id"]).row
            row, _warning = _row_to_be(caller, wanted, there)
            predicted_host(caller, row, orjson.loads(there.flavor), orjson.loads(there.image))

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        """Raises what one of the actions would be refused for, before the first of them is asked for."""
        actions = list(server_plan.plan(want, have))
        asked = {action.key for action in actions}
        if have.get("rebuild"):
            rebuild_of(want, have)
        if want.get("host") and asked & {"migrate", "unshelve"}:
            place = caller.cloud.hosts.get(want["host"])
            if place is None:
                raise Conflict(f"There is no host {want['host']!r} in this cloud. Hosts are listed by hypervisor_info.")
            if "migrate" in asked:
                _check_place(caller, want, have, place)
        own = {nic["address"] for nic in have["networks"]}
        added = [action.args for action in actions if action.key == "attach_interface"]
        nics = [network_of(one["wish"], one["at"], own) for one in added]
        nics = [nic for nic in nics if nic.get("uuid") or nic.get("port")]  # a dry run assumes the others
        if "resize" in asked and want["flavor"]["vcpus"]:  # else a dry run assumes the flavor
            server_plan.shrinks(have, want)
            quotas.check_flavor(caller, Owner(caller.project, have["_user"]), have["flavor"], want["flavor"])
        if nics:
            check_requested(caller, nics)

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """With the host that it would get, or the status that it would have."""
        shown = super().predicted(caller, want, have)
        if have is None:
            if want.get("id"):
                server_create.check_unused(caller, want["id"])
            host = None if want["_assumed"] else predicted_host(caller, _row_to_be(caller, new_server(want))[0])
            return {**shown, "host": host if caller.allows(compute.EXTENDED) else ""}
        if shown["power"] == power.SHELVED != have["power"]:
            shown.update(power_state=power.OFF, status=power.status(
                power.SHELVED if have["image"] and caller.settings.shelved_offload_time else power.OFFLOADED))
        elif (shown["power"], shown["rescue"]) != (have["power"], have["rescue"]):
            state = power.RESCUED if shown["rescue"] is not None else power.POWERS[shown["power"]].vm_state
            shown.update(power_state=shown["power"], status=power.status(str(state)))
        return shown

    # What is done
    def ensure(self, caller: Caller, key: str, want: Document | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        while True:
            row = self.row(caller, key)
            if row is not None and not dry_run:
                row = settled(caller, row.id, operation)
            if row is not None and row.vm_state == power.SOFT_DELETED:
                if not is_uuid(key):
                    continue  # it is so since it was looked up: the name is free
                if want is not None:
                    raise Conflict(f"Server {row.name!r} is soft-deleted. Restore it first: server_action with "
                                   "action: restore.", uuids=[row.id])
                row = None
            have = None if row is None else self.seen(caller, row)
            if want is None:
                return self._removal(caller, row, have, dry_run, operation)
            try:
                given = with_port_ids(caller, self.given(key, want))
                return _ServerChange(self, caller, given, permissions, dry_run, operation).run(have)
            except Taken:
                continue

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        """Write it down, and wait until it is as wanted. Raises ``Taken``; one that could not be made is removed."""
        if want.get("id"):
            server_create.check_unused(caller, want["id"])
        new, warning = _row_to_be(caller, new_server(want))
        if not server_create.create_named(caller, new, warning, want.get("admin_pass")):
            raise Taken
        row = settled(caller, new["id"], operation)
        if row is None:
            raise Conflict(f"Server {want['name']!r} was removed by somebody while it was made.")
        if row.vm_state == power.ERROR:
            raise self.unmade(caller, row, operation)
        have = self.seen(caller, row)
        server = ServerActions(caller, row.id, operation)
        for action in server_plan.powers(want, have, have["power"]):  # a new server runs, or is off
            server.do(action)
        return str(row.id)

    def unmade(self, caller: Caller, row: Any, operation: Operation) -> MagnetarError:
        """Remove a server that could not be made; returns why it could not."""
        why, no_host = why_failed(row), why_no_host(caller, orjson.loads(row.fault)) if row.fault else None
        removed(caller, row.id, operation)
        if no_host:
            return NoSpace(f"Server {row.name!r} could not be made: {no_host}", server=row.id)
        return Failed(f"Server {row.name!r} could not be made: {why}", server=row.id)

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        server = ServerActions(caller, have["id"], operation)
        rebuild = rebuild_of(want, have) if have.get("rebuild") else None
        for action in server_plan.plan(want, have):
            server.do(action._replace(args={"rebuild": rebuild}) if action.key == "rebuild" else action)
        if settled(caller, have["id"], operation) is None:
            raise NotFound(f"Server {have['name']!r} was removed in the meantime.", kind="server", key=have["id"])

    def _removal(self, caller: Caller, row: Any, have: Document | None, dry_run: bool, operation: Operation) -> Result:
        """As ``removal``: of a server that may be soft-deleted, that is its only step."""
        stays = row is not None and soft_delete.restorable(caller, row)
        result = self.removal(caller, have, dry_run, operation)
        return Result([step("soft_delete")], result.diff, result.resource) if stays else result

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        removed(caller, have["id"], operation)

    def recreate(self, caller: Caller, have: Document, want: Document, operation: Operation) -> str:
        """Volumes that the new one is to have too do not go with the old one."""
        new = _recreated(want, have)
        named = {one.get("uuid") for one in new["block_device_mapping"] if one["source_type"] == "volume"}
        for one in have["volumes_attached"]:
            if one["delete_on_termination"] and not named.isdisjoint((one["id"], one["name"])):
                volume_attachments.update(caller, find(caller, have["id"]), one["id"], delete_on_termination=False)
        at_once = compute.force_delete if caller.settings.reclaim_instance_interval else compute.delete
        removed(caller, have["id"], operation, at_once)  # the new one gets what it has
        return self.make(caller, new, operation)


def _check_place(caller: Caller, want: Document, have: Document, place: HostView) -> None:
    """Raises what keeps a server from going to a host of another cell."""
    target = find(caller, have["id"])
    if not server_actions.abroad(caller, target, place):
        return
    server_actions.check_cell(caller, target, place)
    if want["power"] != power.OFF and not have.get("allow_reboot"):
        raise Conflict(f"host: {place.name} is in another cell than server {want['name']!r}, where no guest goes while "
                       "it runs. Stop it first; or, in this API, ?allow_reboot=true has it stopped, moved and started.",
                       fields=["host"])


def _row_to_be(caller: Caller, wanted: NewServers, instead_of: Any = None) -> tuple[dict[str, Any], str | None]:
    """The row that ``server_create`` would write, and a warning of specs without effect, which is told."""
    row, warning = server_create.row_to_be(caller, wanted, instead_of)
    if warning:
        warn(warning)
    return row, warning


class _ServerChange(CloudChange):
    """One ensure of a server. A request that is sent again is told what it has done."""

    driver: CloudServers

    def run(self, have: Document | None) -> Result:
        """As it was the first time, where this request has made or changed the server already."""
        if have is None:
            return super().run(None)
        keys = [] if self.dry_run else self._asked(have["id"])
        if "create" in keys and have["_vm_state"] == power.ERROR and not have["_launched"]:
            raise self.driver.unmade(self.caller, self.driver.row(self.caller, have["id"]), self.operation)
        result = super().run(have)
        if result.changed or not keys:
            return result
        made = "create" in keys
        steps = server_plan.making(have) if made else server_plan.steps_before(keys, have)
        return self.result([recorded(self.kind, have["name"]), *steps],
                           self._difference(None, self.wanted(None)) if made else [], result.resource)

    def _asked(self, id: str) -> list[str]:
        """What this very request has asked of the server before it was sent again."""
        one = found(self.caller, id)
        if one is None:
            return []
        with one[0].read() as connection:
            return instance_actions.keys_of_request(connection, id, self.caller.request_id)


def _recreated(want: Document, have: Document) -> Document:
    """What a server is made of anew. NICs that stay keep their addresses, and get new MAC addresses."""
    if want["networks"] is not have["networks"]:
        return want
    return {**want, "networks": [{name: nic[name] for name in ("network", "_id", "tag", "address") if nic.get(name)}
                                 if nic["_made"] else {**nic, "port": nic["_port"]} for nic in want["networks"]]}


def _shown(caller: Caller, rows: Iterable[Any]) -> list[Document]:
    """The servers of *rows*, with what of their hosts the caller may read."""
    names, rows = _image_names(caller), list(rows)
    floating = compute.floating(caller.cloud, rows)
    return [server_view.shown(row, names, caller.allows(compute.EXTENDED, row),
                              bool(row.password) and caller.allows(SHOW_PASSWORD, row), floating.get(row.id))
            for row in rows]


def _image_names(caller: Caller) -> Callable[[str], str]:
    """Names of images by their uuids, each looked up once."""
    @functools.cache
    def name(id: str) -> str:
        image = caller.cloud.services.image.show(caller.context, id)
        return (image and image["name"]) or ""

    return name


SERVERS = CloudServers()
