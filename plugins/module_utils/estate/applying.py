# SPDX-License-Identifier: GPL-3.0-or-later
"""Applying a plan: first a check of all its items at all places, then the changes, noun by noun.

Each request has the revision that the plan was made for, which the agent or cloud compares while it holds the resource.
So nothing is changed on the basis of an old plan, also when somebody changes the resource after the check. A run that
was interrupted leaves resources in one of two forms: as before the plan, or as after it. A further run recognizes both.
"""

from __future__ import annotations

from ..core.errors import ChangedSince, Conflict, InUse, InvalidField, MagnetarError, NotFound
from .nouns import CREATE, change_costs, change_of_answer
from .places import work_at_places
from .planning import shown_fields

#: Values of ``status`` of an item after a run.
PENDING, APPLIED, UNCHANGED, FAILED, NOT_BEGUN = "pending", "applied", "unchanged", "failed", "not_begun"
#: Codes of errors after which an item is tried again when others of its noun have succeeded: it may refer to them.
DEPENDING = frozenset((InvalidField.code, NotFound.code, InUse.code, Conflict.code))


class ItemRun:
    """One item of a plan during a run: its ``revision`` for the request, ``status``, and ``message`` of a failure."""

    def __init__(self, item):
        self.item, self.revision = item, item["revision"]
        self.status, self.message = PENDING, ""

    def request(self):
        """Return the request of the item, which is refused if the resource has another revision."""
        item = self.item
        return dict(item["permissions"], key=item["key"], want=item["want"], revision=self.revision)

    def fail(self, message):
        """Note that the item failed or is refused."""
        self.status, self.message = FAILED, " ".join(str(message).split())

    def report(self):
        """Return the item for results and reports, without the request."""
        return dict(public_item(self.item), status=self.status, message=self.message)


def public_item(item):
    """Return an item of a plan for results and reports: without the request, which may hold secrets."""
    public = {name: item[name] for name in ("place", "noun", "name", "declared", "change", "costs", "actions")}
    return dict(public, changes={leaf["path"]: {"old": leaf["old"], "new": leaf["new"]} for leaf in item["diff"]})


def check_places(plan, parameters):
    """Raise ``InvalidField`` if a place of *plan* is missing in *parameters*, those of the task's places."""
    missing = sorted({item["place"] for item in plan["items"]} - set(parameters))
    if missing:
        raise InvalidField("places", "lacks the plan's place %s; give the places that the plan was made with"
                           % ", ".join(missing))


def check_items(works, parameters, plan):
    """Check all *works* without a change: items that are done already become unchanged, and those that differ from the
    plan fail. Raises ``MagnetarError`` for a place that cannot be reached.
    """
    _at_places(works, parameters, lambda place, own: _check_at(place, own, plan["places"]))


def apply_items(works, parameters):
    """Do the pending *works*. A failed item ends the work at its place; the items after it are not begun."""
    _at_places([work for work in works if work.status == PENDING], parameters, _apply_at)


def _at_places(works, parameters, function):
    names = list(dict.fromkeys(work.item["place"] for work in works))
    _results, errors = work_at_places(parameters, names, lambda place: function(
        place, [work for work in works if work.item["place"] == place.name]))
    for name, error in errors.items():
        for work in works:
            if work.item["place"] == name and work.status == PENDING:
                work.fail("%s: %s" % (name, error.message))


def _groups(works):
    """Return *works* in lists of successive items with the same noun, of which all or none are removals."""
    groups = []
    for work in works:
        kind = (work.item["noun"], work.item["want"] is None)
        if not groups or groups[-1][0] != kind:
            groups.append((kind, []))
        groups[-1][1].append(work)
    return [(noun, group) for (noun, _removes), group in groups]


# Check ----------------------------------------------------------------------------------------------------------
def _check_at(place, works, endpoints):
    planned = endpoints.get(place.name) or {}
    if planned.get("endpoint") != place.endpoint:
        raise InvalidField("places.%s" % place.name, "is not the place of the plan, which was made for %s"
                           % planned.get("endpoint"), place.endpoint)
    for noun, group in _groups(works):
        answers = place.ensure(noun, [work.request() for work in group], dry_run=True)
        for work, answer in zip(group, answers):
            _check_answer(place, work, answer)


def _check_answer(place, work, answer):
    """Judge *answer*, of a dry run with the plan's revision."""
    if (answer.get("error") or {}).get("code") == ChangedSince.code:
        answer = _recheck(place, work)
        if answer is None:
            return
    if "error" in answer:
        work.fail(answer["error"].get("message"))
    elif not answer["changed"]:
        work.status = UNCHANGED
    else:
        item = work.item
        change = change_of_answer(item["want"], answer)
        more = [cost for cost in change_costs(item["noun"], change, answer, place.in_cloud)
                if cost not in item["costs"]]
        if more:
            work.fail("would now also cost %s, which the plan does not say. Make a new plan." % ", ".join(more))


def _recheck(place, work):
    """Return the answer of a dry run without revision if the resource differs from the plan only by what the plan
    itself changes: an interrupted run has begun it, or somebody else applies the same plan. Otherwise let *work* fail,
    naming what has moved, and return ``None``.
    """
    item = work.item
    request = dict(item["permissions"], key=item["key"], want=item["want"])
    (answer,) = place.ensure(item["noun"], [request], dry_run=True)
    if "error" in answer:
        work.fail("has changed since the plan, and now: %s" % answer["error"].get("message"))
        return None
    moved = moved_fields(item, answer) if answer["changed"] else {}
    if moved:
        work.fail("has changed since the plan: %s" % "; ".join(
            "%s was %s and is %s" % (path, shown(old), shown(new)) for path, (old, new) in sorted(moved.items())))
        return None
    work.revision = answer.get("revision") or work.revision
    return answer


def moved_fields(item, answer):
    """Return the fields of the resource of *item* that are neither as before the plan nor as after it, as ``{path:
    (planned, now)}``. *answer*: of a new dry run of the same request.
    """
    planned = {leaf["path"]: leaf for leaf in item["diff"]}
    moved = {}
    for leaf in answer.get("diff") or ():
        mine = planned.get(leaf["path"])
        then = _field_at(item["resource"], leaf["path"]) if mine is None else mine["old"]
        if then != leaf["old"]:
            moved[leaf["path"]] = (then, leaf["old"])
    if item["change"] == CREATE:
        return moved
    now = shown_fields(item["noun"], answer.get("resource"))
    roots = {path.split(".")[0] for path in (*planned, *moved)}
    for name in set(item["resource"]) & set(now) - roots:
        if item["resource"][name] != now[name]:
            moved[name] = (item["resource"][name], now[name])
    return moved


def _field_at(resource, path):
    """Return the value at *path*, in the form of paths of differences, in *resource*; ``None`` if it has none."""
    name, _dot, rest = path.partition(".")
    value = resource.get(name)
    if not rest or not isinstance(value, dict):
        return value
    return value[rest] if rest in value else _field_at(value, rest)


def shown(value):
    """Return *value* for a message: short, and as YAML users write it."""
    text = "nothing" if value in (None, "", [], {}) else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# Apply ----------------------------------------------------------------------------------------------------------
def _apply_at(place, works):
    for noun, group in _groups(works):
        _apply_group(place, noun, group)
        if any(work.status == FAILED for work in group):
            break
    for work in works:
        if work.status == PENDING:
            work.status = NOT_BEGUN


def _apply_group(place, noun, group):
    """Do the items of one noun. Those that fail because they refer to others are tried again after these."""
    while group:
        try:
            answers = place.ensure(noun, [work.request() for work in group], dry_run=False)
        except MagnetarError as error:
            for work in group:
                work.fail(error.message)
            return
        again = []
        for work, answer in zip(group, answers):
            error = answer.get("error")
            if error is None:
                work.status = APPLIED if answer["changed"] else UNCHANGED
                continue
            work.fail(error.get("message"))
            if error.get("code") in DEPENDING:
                again.append(work)
        if len(again) == len(group):
            return
        group = again
