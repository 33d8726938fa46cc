# SPDX-License-Identifier: GPL-3.0-or-later
"""Making a plan: a dry run of every declared resource at every place, and the resources that are not declared."""

from __future__ import annotations

import fnmatch

from ..core.errors import InvalidField
from ..core.reconcile import compared_fields
from .nouns import CREATE, MODULES, NOUNS, REMOVE, change_costs, change_of_answer, narrowed_permissions
from .places import work_at_places

IGNORE, REPORT, ABSENT = "ignore", "report", "absent"
#: Resources that every project of a cloud has, and that are never unmanaged, by noun.
BUILT_IN = {"security_group": ("default",)}


class Unmanaged:
    """The rule for existing resources without a declaration. *policy*: ignore, report, or absent (remove them).
    *nouns*: the resource types that the rule covers; if empty, all types with declarations. *kept*: patterns of names
    that the rule never covers.
    """

    def __init__(self, policy, nouns, kept):
        if policy == ABSENT and not nouns:
            raise InvalidField("unmanaged_nouns", "is required with unmanaged: absent. Name the nouns whose undeclared "
                               "resources are removed")
        for noun in nouns:
            if noun not in NOUNS:
                raise InvalidField("unmanaged_nouns", "must name nouns of an estate: %s" % ", ".join(NOUNS), noun)
        self.policy, self.nouns, self.kept = policy, nouns, kept

    def is_kept(self, noun, name):
        """Return whether the rule never covers the resource *name* of the type *noun*."""
        return name in BUILT_IN.get(noun, ()) or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.kept)


class Drift:
    """The differences between declared and existing resources: ``items`` (the changes to make), ``unmanaged``
    (resources without a declaration), the number of ``unchanged`` resources, ``errors``, ``warnings``, and the
    ``places`` (agents and clouds) with their endpoints.
    """

    def __init__(self):
        self.items, self.unmanaged, self.errors, self.warnings = [], [], [], []
        self.unchanged, self.places = 0, {}

    def add(self, other):
        """Add *other*, the ``Drift`` of another agent or cloud, to this one."""
        for name in ("items", "unmanaged", "errors", "warnings"):
            getattr(self, name).extend(getattr(other, name))
        self.unchanged += other.unchanged
        self.places.update(other.places)


def find_drift(parameters, declared, unmanaged):
    """Compare the declared resources with the existing ones at all agents and clouds, and return the differences.
    *parameters*: the result of ``place_parameters``. *declared*: a list of ``Declared``. *unmanaged*: the rule for
    existing resources without a declaration (an ``Unmanaged``).
    """
    nouns = unmanaged.nouns or [noun for noun in NOUNS if any(resource.noun == noun for resource in declared)]
    if unmanaged.policy == IGNORE:
        nouns = []
    by_place = {name: [resource for resource in declared if resource.place == name] for name in parameters}
    names = [name for name in parameters if by_place[name] or nouns]
    drift = Drift()
    drifts, errors = work_at_places(
        parameters, names, lambda place: _drift_at(place, by_place[place.name], nouns, unmanaged))
    for name in names:
        if name in drifts:
            drift.add(drifts[name])
        else:
            drift.errors.append({"place": name, "noun": "", "name": "", "code": errors[name].code,
                                 "message": errors[name].message})
    return drift


def _drift_at(place, declared, nouns, unmanaged):
    drift = Drift()
    drift.places[place.name] = {"endpoint": place.endpoint, "cloud": place.in_cloud}
    managed = {}
    for noun in NOUNS:
        resources = [resource for resource in declared if resource.noun == noun]
        if resources:
            answers = place.ensure(noun, [resource.request() for resource in resources], dry_run=True)
            for resource, answer in zip(resources, answers):
                _add_answer(drift, place, resource, answer)
                managed.setdefault(noun, set()).update(filter(None, (
                    resource.key, resource.name, (answer.get("resource") or {}).get("id"))))
    if unmanaged.policy != IGNORE:
        _add_unmanaged(drift, place, [noun for noun in nouns if noun in place.kinds], managed, unmanaged)
    return drift


def _add_answer(drift, place, resource, answer):
    if "error" in answer:
        drift.errors.append(_error(place, resource.noun, resource.name, answer["error"]))
        return
    drift.warnings += ["%s %s at %s: %s" % (resource.noun, resource.name, place.name, text)
                       for text in answer.get("warnings") or () if "prediction assumes" not in text]
    if answer["changed"]:
        drift.items.append(plan_item(place, resource.noun, resource.name, resource.request(), answer, True))
    else:
        drift.unchanged += 1


def _error(place, noun, name, error):
    return {"place": place.name, "noun": noun, "name": name, "code": error.get("code"),
            "message": " ".join(str(error.get("message")).split())}


def plan_item(place, noun, name, request, answer, declared):
    """Return an item of a plan: a mapping that describes one change. *request*: the item of a batch request, for the
    resource *name* of the type *noun*. *answer*: the answer to the dry run of *request*, which predicts a change.
    *declared*: whether the resource is declared. Raises ``InvalidField`` if the agent or cloud is too old to report
    revisions.
    """
    if not answer.get("revision"):
        raise InvalidField("places.%s" % place.name, "is of a release without revisions, so that a plan could not be "
                           "checked later. Upgrade it", place.endpoint)
    change = change_of_answer(request["want"], answer)
    costs = change_costs(noun, change, answer, place.in_cloud)
    permissions = {word: value for word, value in request.items() if word not in ("key", "want")}
    return {
        "place": place.name, "noun": noun, "name": name, "declared": declared, "change": change, "costs": costs,
        "actions": [step["verb"] for step in answer["steps"]], "diff": answer.get("diff") or [],
        "revision": answer["revision"], "key": request["key"], "want": request["want"],
        "permissions": narrowed_permissions(permissions, change, costs),
        "resource": {} if change == CREATE else shown_fields(noun, answer.get("resource")),  # a new one has new uuids
    }


def shown_fields(noun, resource):
    """Return the uuid and the comparable fields of *resource*, without secrets. *noun*: its type."""
    kind = MODULES[noun].kind
    names = {"id", *compared_fields(kind)} - {*kind.secrets()}
    return {name: value for name, value in (resource or {}).items() if name in names}


def _add_unmanaged(drift, place, nouns, managed, unmanaged):
    if not place.in_cloud and nouns and place.client.get("host").get("cloud_servers"):
        if unmanaged.policy == ABSENT:
            raise InvalidField("unmanaged", "cannot be absent at %s: its host is part of a cloud, whose servers nobody "
                               "declares here. Ask the cloud instead" % place.name, ABSENT)
        drift.warnings.append("The host %s is part of a cloud, whose servers nobody declares here; unmanaged resources "
                              "of it are left out." % place.name)
        return
    for noun in reversed([noun for noun in NOUNS if noun in nouns]):
        managed_ids = managed.get(noun, set())
        found = [resource for resource in place.client.list(noun, fields=("id", "name"))
                 if not managed_ids & {resource.get("id"), resource.get("name")}
                 and not unmanaged.is_kept(noun, str(resource.get("name") or ""))]
        if unmanaged.policy == REPORT:
            drift.unmanaged += [{"place": place.name, "noun": noun, "name": resource.get("name") or resource["id"],
                                 "id": resource["id"]} for resource in found]
        else:
            _add_removals(drift, place, noun, found)


def _add_removals(drift, place, noun, resources):
    requests = [{"key": resource["id"], "want": None} for resource in resources]
    for resource, request, answer in zip(resources, requests, place.ensure(noun, requests, dry_run=True)):
        name = resource.get("name") or resource["id"]
        if "error" in answer:
            drift.errors.append(_error(place, noun, name, answer["error"]))
        elif answer["changed"]:
            drift.items.append(plan_item(place, noun, name, request, answer, False))


def ordered_items(items):
    """Return the *items* of a plan in the order of application: first creations and changes, ordered by resource type
    so that referenced resources exist; then removals in the reverse order.
    """
    rank = {noun: at for at, noun in enumerate(NOUNS)}
    return sorted(items, key=lambda item: (
        item["change"] == REMOVE, -rank[item["noun"]] if item["change"] == REMOVE else rank[item["noun"]],
        item["place"], item["name"]))
