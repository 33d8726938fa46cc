# SPDX-License-Identifier: GPL-3.0-or-later
"""server: found by name or uuid in the caller's project, and made be as wanted, step by step.

What is wanted is compared with what is, and the next thing asked for, until nothing differs: so a request that is sent
again, or goes on in another process, ends as the first would have. A name is looked up once more in the transaction
that writes a new server, so the same request never makes two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar_control.compute import quotas as quota
from magnetar_control.compute import server_actions, server_create, volume_attachments
from magnetar_control.compute import servers as compute
from magnetar_control.compute.target import find
from magnetar_control.store import names
from magnetar_control.web import Answer
from magnetar_core.actions import RESCUED, status
from magnetar_core.errors import Ambiguous, Conflict, Failed, InvalidField, MagnetarError, NotFound
from magnetar_core.fields import CREATE as MAKING
from magnetar_core.kinds import Server
from magnetar_core.plan import Result, diff
from magnetar_core.values import Text

from . import server_do as do
from . import server_plan as planning
from .asks import Asks, Document
from .noun import EMPTY, Noun, immutable, is_uuid, merged
from .operations import Operation
from .placing import host_for
from .server_anew import kept
from .server_shown import CONSTANT, POWERS, plain, shown
from .server_want import BLOCK, Wanted


class Taken(Exception):
    """There is a server of that name by now."""


class Servers(Noun):
    """Servers of the project."""

    kind = Server
    absent = {**CONSTANT, "personality": None}

    def __init__(self) -> None:
        self.more = {"console": {"GET": self.console}}

    # Reading

    def rows(self, asks: Asks) -> Sequence[Any]:
        """All of the project; one query for each cell."""
        return compute.of_project(asks)

    def every(self, asks: Asks) -> list[Document]:
        """All of the project."""
        known = _Names(asks)
        return [plain(shown(row, known)) for row in self.rows(asks)]

    def row(self, asks: Asks, key: str) -> Any:
        """The row; ``None`` when there is none. Raises ``Ambiguous``."""
        if is_uuid(key):
            one = do.found(asks, key.lower())
            return one[1] if one else None
        named = names.named(asks.cloud.store, asks.project, key)
        if len(named) > 1:
            raise Ambiguous(f"{len(named)} servers have the name {key!r}; use a uuid.",
                            uuids=[row.id for _database, row in named])
        return named[0][1] if named else None

    def one(self, asks: Asks, key: str) -> Document:
        """As answers show it."""
        row = self.row(asks, key)
        if row is None:
            raise NotFound(f"There is no server {key!r} in your project.", kind="server", key=key)
        asks.check(compute.SHOW, row)
        return plain(self.seen(asks, row))

    def seen(self, asks: Asks, row: Any) -> Document:
        """The row as the plan sees it, names of volumes too."""
        found = shown(row, _Names(asks))
        for one in found["volumes_attached"]:
            volume = asks.cloud.services.volume.show(asks.context, one["id"])
            one["name"] = volume["name"] if volume else ""
        return found

    def console(self, request: Any, asks: Asks, _noun: Noun, key: str) -> Answer:
        """The end of the console log."""
        query = dict(request.query)
        row = self.row(asks, key)
        if row is None:
            raise NotFound(f"There is no server {key!r} in your project.", kind="server", key=key)
        lines = query.get("lines")
        if lines is not None and not lines.isdigit():
            raise InvalidField("lines", "must be a whole number", lines)
        output = server_actions.console_output(asks, find(asks, row.id), int(lines) if lines else None)
        if query.get("format") == "json":
            return Answer({"output": output})
        return Answer(output, media_type="text/plain; charset=utf-8")

    # Changing

    def given(self, key: str, want: Document) -> Document:
        """``host`` is a wish here, and no part of the kind's settable fields."""
        host = want.get("host")
        found = super().given(key, {name: value for name, value in want.items() if name != "host"})
        return found if host is None else {**found, "host": Text(1, 255).check(host, "host")}

    def ensure(self, asks: Asks, key: str, want: Document | None, permissions: Mapping[str, Any], dry: bool,
               operation: Operation) -> Result:
        """See the module."""
        while True:
            row = self.row(asks, key)
            if row is not None and not dry:
                row = do.settled(asks, row.id, operation)
            if want is None:
                return self._gone(asks, row, dry, operation)
            try:
                return Ensuring(self, asks, self.given(key, want), permissions, dry, operation).run(row)
            except Taken:
                continue

    def _gone(self, asks: Asks, row: Any, dry: bool, operation: Operation) -> Result:
        if row is None:
            return Result([], [], None)
        have = self.seen(asks, row)
        if not dry:
            do.removed(asks, row.id, operation)
        named = {name: have.get(name) for name in self.compared() if have.get(name) not in EMPTY}
        if have["image"]:
            named["image"] = have["image"]["id"]
        return Result(planning.removing(have), diff(plain(named), {}, self.kind.secrets()), plain(have))


class Ensuring:
    """One ensure of a server that is to be there."""

    def __init__(self, noun: Servers, asks: Asks, given: Document, permissions: Mapping[str, Any], dry: bool,
                 operation: Operation) -> None:
        self.noun, self.asks, self.given, self.permissions = noun, asks, given, permissions
        self.dry, self.operation = dry, operation
        self.warnings: list[str] = []

    def run(self, row: Any) -> Result:
        """Make it, or change it."""
        if row is None:
            return self._made()
        mine = self._mine(row)
        if mine and row.vm_state == "error" and not row.launched_at:
            raise self._failed(row)
        result = self._changed(row)
        if result.changed or self.dry:
            return result
        if mine:
            return Result(planning.making(self.given), self._difference(self.given), result.resource, result.warnings)
        return Result(planning.asked(self._asked(row)), [], result.resource, result.warnings)

    def _asked(self, row: Any) -> list[str]:
        """What this very request has asked of the server before it was sent again."""
        one = do.found(self.asks, row.id)
        if one is None:
            return []
        with one[0].read() as connection:
            return names.asked_by(connection, row.id, self.asks.request_id)

    def _mine(self, row: Any) -> bool:
        """Whether this very request has made the server, and is sent again."""
        one = do.found(self.asks, row.id)
        if one is None:
            return False
        with one[0].read() as connection:
            return names.asked(connection, row.id, self.asks.request_id, "create") is not None

    # Making

    def _difference(self, want: Document) -> list[Document]:
        full = {**self.noun.kind.defaults(), **want}
        return diff({}, {name: full.get(name) for name in self.noun.compared() if full.get(name) not in EMPTY},
                    self.noun.kind.secrets())

    def _made(self) -> Result:
        kind = self.noun.kind
        kind.check({name: value for name, value in self.given.items() if name != "host"}, operation=MAKING)
        want = {**kind.defaults(), **self.given}
        wanted = Wanted(self.asks, want, self.warnings, self.dry)
        completed = wanted.complete(None)
        steps = planning.making(want)
        self._unused(want.get("id"))
        if self.dry:
            resource = self._predicted(completed, self._checked(completed, wanted) if wanted.whole else None)
            return Result(steps, self._difference(self.given), resource, self.warnings)
        row = self._insert(server_create.row_to_be(self.asks, wanted.new(completed)))
        row = do.settled(self.asks, row, self.operation)
        if row is None:
            raise Conflict(f"Server {want['name']!r} was removed by somebody while it was made.")
        if row.vm_state == "error":
            raise self._failed(row)
        self._power(row, completed)
        again = do.found(self.asks, row.id)
        return Result(steps, self._difference(self.given), plain(self.noun.seen(self.asks, again[1] if again else row)),
                      self.warnings)

    def _checked(self, completed: Document, wanted: Wanted) -> str:
        """The host that it would get; refused is what would be refused."""
        row = server_create.row_to_be(self.asks, wanted.new(completed))
        return host_for(self.asks.cloud, row, self.asks.context.is_admin)

    def _predicted(self, want: Document, host: str | None) -> Document:
        names = {f.name for f in self.noun.kind.fields if "show" in f.on}
        found = {name: value for name, value in want.items() if name in names}
        found["networks"] = [{k: v for k, v in nic.items() if not k.startswith("_")} for nic in want["networks"]]
        return {**plain(found), "host": host}

    def _unused(self, id: str | None) -> None:
        """A uuid that is given for a new server was never another's. Raises ``Conflict``."""
        if id:
            server_create.check_unused(self.asks, id)

    def _insert(self, row: dict[str, Any]) -> str:
        """Write it down, unless there is one of its name or uuid by now. Returns the uuid."""
        if not server_create.create_named(self.asks, row):
            raise Taken
        return str(row["id"])

    def _failed(self, row: Any) -> MagnetarError:
        """A making that failed leaves nothing."""
        why = do.fault(row)
        do.removed(self.asks, row.id, self.operation)
        return Failed(f"Server {row.name!r} could not be made: {why}", server=row.id)

    def _power(self, row: Any, want: Document) -> None:
        """A new server runs; what else it is to be comes afterwards."""
        have = self.noun.seen(self.asks, row)
        doing = do.Doing(self.asks, row.id, self.operation)
        for act in planning._powers(want, have, have["power"]):  # noqa: SLF001 - the plan's last part
            doing.do(act, {})

    # Changing

    def _changed(self, row: Any) -> Result:
        have = self.noun.seen(self.asks, row)
        if self.given.get("id", row.id) != row.id:
            raise Conflict(f"server {row.name!r} exists with uuid {row.id}, not {self.given['id']}. Use that uuid, or "
                           "another name.", uuids=[row.id])
        names = self.noun.compared()
        wish = merged(self.given, have, self.permissions["merge"])
        known = self.noun.kind.giving_way({n: have.get(n) for n in names}, self.given)
        wanted = Wanted(self.asks, {**known, **wish}, self.warnings, self.dry)
        want = wanted.complete(have)
        have["_power_wanted"] = "power" in self.given
        policy = self._policy(have, want, wish)
        rebuild = policy == "rebuild" and any(want.get(n) != have.get(n) for n in self.noun.kind.rebuilt)
        if policy == "recreate":
            return self._anew(row, have, want)
        acts = list(planning.plan(want, have, bool(self.permissions.get("allow_reboot")), rebuild))
        if not acts:
            return Result([], [], plain(have), self.warnings)
        changes = diff(plain({n: have.get(n) for n in names}), plain({n: _told(n, want, have) for n in names}),
                       self.noun.kind.secrets())
        steps = planning.steps(acts)
        preserve = bool(self.permissions.get("preserve_ephemeral"))
        extra = {"rebuild": wanted.rebuild(want, have, preserve)} if rebuild else {}
        self._refused(acts, have, want, wanted)
        if self.dry:
            after = {**have, **{n: _told(n, want, have) for n in names}}
            if (after["power"], after["rescue"]) != (have["power"], have["rescue"]):
                after.update(_afterwards(after))
            return Result(steps, changes, plain(after), self.warnings)
        doing = do.Doing(self.asks, row.id, self.operation)
        for act in acts:
            doing.do(act, extra)
        again = do.settled(self.asks, row.id, self.operation)
        if again is None:
            raise NotFound(f"Server {row.name!r} was removed in the meantime.", kind="server", key=row.id)
        return Result(steps, changes, plain(self.noun.seen(self.asks, again)), self.warnings)

    def _refused(self, acts: list[planning.Act], have: Document, want: Document, wanted: Wanted) -> None:
        """Raises what one of the *acts* would be refused for, before the first of them is done."""
        cloud, does = self.asks.cloud, {act.do for act in acts}
        if "migrate" in does and cloud.hosts.get(want["host"]) is None:
            raise Conflict(f"There is no host {want['host']!r} in this cloud. Hosts are listed by hypervisor_info.")
        own = {nic["address"] for nic in have["networks"]}
        wishes = [wanted.nic(act.args["wish"], act.args["at"], own) for act in acts if act.do == "attach_interface"]
        wishes = [wish for wish in wishes if wish["uuid"]]  # others are networks that a dry run assumes
        if "resize" in does and want["flavor"]["disk"] is not None:
            planning.shrinks(have, want)
            quota.check_flavor(self.asks, have["flavor"], want["flavor"])
        if wishes:
            cloud.services.network.check(self.asks.context, wishes)

    def _policy(self, have: Document, want: Document, wish: Document) -> str:
        """What is to be done about fixed fields that differ."""
        fixed = [f.name for f in self.noun.kind.settable() if f.fixed and f.compared and f.name in wish
                 and f.name != "id" and want.get(f.name) != have.get(f.name)]
        return immutable(self.noun.kind, have, want, fixed, self.permissions, self.warnings) if fixed else ""

    def _anew(self, row: Any, have: Document, want: Document) -> Result:
        """Remove it, and make it as wanted."""
        steps = [step for step in planning.removing(have) if step.verb != "forget"] + planning.making(want)
        names = self.noun.compared()
        changes = diff(plain({n: have.get(n) for n in names}), plain({n: want.get(n) for n in names}),
                       self.noun.kind.secrets())
        full = self._full(have, want)
        anew = Ensuring(self.noun, self.asks, full, self.permissions, self.dry, self.operation)
        anew.possible(row, have)
        if self.dry:
            return Result(steps, changes, plain({**have, **want}), self.warnings)
        for volume in kept(have, full):
            volume_attachments.update(self.asks, find(self.asks, have["id"]), volume, delete_on_termination=False)
        do.removed(self.asks, have["id"], self.operation)
        made = anew.run(None)
        return Result(steps, changes, made.resource, self.warnings + anew.warnings)

    def _full(self, have: Document, want: Document) -> Document:
        """What the server is made of anew: what was left out stays as it was, what is not shown of it too."""
        full = {name: want.get(name) for name in self.noun.compared() if want.get(name) is not None}
        full.update(name=want["name"], image=want["image"]["id"] or want["image"]["name"] if want["image"] else None,
                    flavor=want["flavor"]["name"] or {n: want["flavor"][n] for n in want["flavor"] if n != "name"},
                    networks=[{k: v for k, v in nic.items() if k in ("network", "tag", "address") and v}
                              for nic in want["networks"]])
        if "host" in self.given:
            full["host"] = self.given["host"]
        if "user_data" not in self.given and have["_user_data"]:
            full["user_data"] = have["_user_data"]
        if "block_device_mapping" not in self.given:
            blocks = [{key: value for key, value in one.items() if key in BLOCK and value is not None}
                      for one in have["_blocks"] if not one.get("uuid") or one["uuid"] not in have["_of_image"]]
            full.update(self.noun.kind.giving_way({"block_device_mapping": blocks}, self.given))
        return full

    def possible(self, row: Any, have: Document) -> None:
        """Whether the server can be made in the place of *row*, seen as *have*, which goes before. Raises what would be
        refused."""
        kind = self.noun.kind
        kind.check({name: value for name, value in self.given.items() if name != "host"}, operation=MAKING)
        wanted = Wanted(self.asks, {**kind.defaults(), **self.given}, self.warnings, self.dry)
        completed = wanted.complete(None)
        if not wanted.whole:
            return
        own = {nic["address"] for nic in have["networks"]}
        new = server_create.row_to_be(self.asks, wanted.new(completed, own), row)
        host_for(self.asks.cloud, new, self.asks.context.is_admin, have["flavor"])


def _afterwards(want: Document) -> Document:
    """How a server is seen that is as *want* says; to be rescued with its own image is an empty object."""
    vm_state = RESCUED if want["rescue"] is not None else next(
        state for state, power in POWERS.items() if power == want["power"])
    return {"power_state": want["power"], "status": status(vm_state, None)}


def _told(name: str, want: Document, have: Document) -> Any:
    """The value for the difference: NICs that stay show what they have."""
    if name == "networks" and len(want[name]) == len(have[name]) and not planning._plugs(want, have):  # noqa: SLF001
        return have[name]
    if name == "flavor":
        return {key: value for key, value in want[name].items() if key != "id"}
    return want.get(name)


class _Names:
    """Names of images, each looked up once."""

    def __init__(self, asks: Asks) -> None:
        self.asks, self.known = asks, dict[str, str]()

    def __call__(self, id: str) -> str:
        if id not in self.known:
            image = self.asks.cloud.services.image.show(self.asks.context, id)
            self.known[id] = (image and image["name"]) or ""
        return self.known[id]
