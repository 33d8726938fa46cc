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
    """The state of one item of a plan (a change of one resource) while the plan is applied. ``revision``: the revision
    (a digest of the fields) that the resource must still have when the item is applied. ``status``: ``PENDING``,
    ``APPLIED``, ``UNCHANGED``, ``FAILED`` or ``NOT_BEGUN``. ``message``: the reason of a failure.
    """

    def __init__(self, item):
        self.item, self.revision = item, item["revision"]
        self.status, self.message = PENDING, ""

    def request(self):
        """Return this planned change as one entry of a batch request. The entry contains ``revision``, so that the API
        refuses the change if the resource has another revision by then.
        """
        item = self.item
        return dict(item["permissions"], key=item["key"], want=item["want"], revision=self.revision)

    def fail(self, message):
        """Set the status of the item to failed, with this *message*."""
        self.status, self.message = FAILED, " ".join(str(message).split())

    def report(self):
        """Return the item for results and reports: without its request, with its status and message."""
        return dict(public_item(self.item), status=self.status, message=self.message)


def public_item(item):
    """Return *item* of a plan for results and reports, without its request, which may contain secrets."""
    public = {name: item[name] for name in ("place", "noun", "name", "declared", "change", "costs", "actions")}
    return dict(public, changes={leaf["path"]: {"old": leaf["old"], "new": leaf["new"]} for leaf in item["diff"]})


def check_places(plan, parameters):
    """Raise ``InvalidField`` if *parameters*, the connection parameters by place (agent or cloud), lack a place of
    *plan*.
    """
    missing = sorted({item["place"] for item in plan["items"]} - set(parameters))
    if missing:
        raise InvalidField("places", "lacks the plan's place %s; give the places that the plan was made with"
                           % ", ".join(missing))


def check_items(works, parameters, plan):
    """Check all items in *works* (``ItemRun``) with a dry run. Items that are already applied get the status unchanged;
    items whose resource differs from the *plan*, and all items of a place (agent or cloud) that cannot be reached, get
    the status failed. *parameters*: connection parameters by place.
    """
    _at_places(works, parameters, lambda place, own: _check_at(place, own, plan["places"]))


def apply_items(works, parameters):
    """Apply the pending items in *works* (``ItemRun``), in order. After a failed item, the remaining items at the same
    place (agent or cloud) are not begun. *parameters*: connection parameters by place.
    """
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
    """Split *works* (a list of ``ItemRun``) into groups that one batch request can process: successive items with the
    same resource type that are all removals, or all creations and changes. Return a list of (resource type, items).
    """
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
    """Set the status of *work* (an ``ItemRun``) from *answer*, the answer to a dry run of its request."""
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
    """Repeat the dry run of *work* (an ``ItemRun``) without its required revision, because the resource has changed
    since the plan. Return the answer if all these changes are a part of the plan, made by an interrupted run. Otherwise
    mark *work* as failed, with the changed fields, and return ``None``.
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
    """Return the fields of an item's resource whose present values are neither the values before the plan nor the
    desired values, as ``{path: (value before the plan, present value)}``. *item*: an item of a plan. *answer*: the
    answer to a new dry run of its request.
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
    """Return the value at *path* in *resource*; ``None`` if *resource* has no such value. *path*: keys separated by
    dots, as ``diff_documents`` returns it. Keys may contain dots.
    """
    name, _dot, rest = path.partition(".")
    value = resource.get(name)
    if not rest or not isinstance(value, dict):
        return value
    return value[rest] if rest in value else _field_at(value, rest)


def shown(value):
    """Return *value* as a short text for messages, with booleans as in YAML."""
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
    """Apply *group*, items (``ItemRun``) with the same resource type *noun*, at *place*. If some items succeed, repeat
    those that failed with an error in ``DEPENDING``, because a failed item may refer to the resource of another item.
    """
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
