# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules estate and estate_info: plan and apply of the resources of several hosts and clouds, and a drift report.
"""

from __future__ import annotations

import json

from ..core.operations import utc_timestamp
from ..core.options import File, Option, name_options
from ..core.values import Choices, ListOf, MapOf, Text, Value
from ..modules.module import Module
from . import plan_file
from .applying import APPLIED as DONE
from .applying import (
    FAILED,
    NOT_BEGUN,
    PENDING,
    UNCHANGED,
    ItemRun,
    apply_items,
    check_items,
    check_places,
    public_item,
)
from .declarations import declared_resources, read_folder
from .nouns import CREATE, RECREATE, REMOVE, UPDATE
from .places import place_parameters
from .planning import ABSENT, IGNORE, REPORT, Unmanaged, find_drift, ordered_items
from .report import html_report, text_report

PLANNED, APPLIED = "planned", "applied"
WANTED = name_options(
    folder=Option(File(), "Folder of YAML files with declarations, subfolders included, on the machine where the "
                  "module runs. Templates in the files are not expanded."),
    declarations=Option(
        ListOf(Value()), "Declarations, in addition to those of O(folder). Each is a mapping of nouns, such as "
        "V(network) and V(server), to lists of resources with the options of the module of that name. V(places) names "
        "the places (all by default), V(defaults) has options for all resources of a noun.", secret=True),
    unmanaged=Option(
        Choices(IGNORE, REPORT, ABSENT), "What happens to resources that exist and are not declared. V(report) lists "
        "them. V(absent) plans their removal, for the nouns in O(unmanaged_nouns) only.", default=IGNORE),
    unmanaged_nouns=Option(
        ListOf(Text(1, 64)), "Nouns to which O(unmanaged) applies. Required with V(absent); otherwise all nouns in the "
        "declarations.", default=[]),
    unmanaged_keep=Option(ListOf(Text(1, 255)), "Names or patterns, such as V(golden-*), of resources that are never "
                          "unmanaged.", default=[]),
)
PLACES = name_options(
    places=Option(
        MapOf(Text(1, 64), Value()), "The agents and clouds of the estate by name, each with O(endpoint) or O(cloud) "
        "and further options of the connection. Certificates and timeouts of the task apply where a place has none. "
        "Without it there is one place, V(default), which is the task's own endpoint.", secret=True))
REPORTS = name_options(
    text_report=Option(File(), "File to which the report is written as text."),
    json_report=Option(File(), "File to which the report is written as JSON."),
    html_report=Option(File(), "File to which the report is written as one HTML page that needs no other file."),
)


class _EstateModule(Module):
    """The base class of the modules estate and estate_info, which compare declared resources with existing ones."""

    masked = ("places", "declarations")
    files = ("folder", "text_report", "json_report", "html_report")

    def check_endpoint(self, client):
        """Override ``Module.check_endpoint``: do not check the task's endpoint, because each place (agent or cloud) has
        its own.
        """

    def drift(self, params):
        """Compare the declarations in the module parameters *params* with the existing resources, and return the
        ``Drift``.
        """
        sources = read_folder(params["folder"]) if params["folder"] else []
        sources += [("declarations[%d]" % at, each) for at, each in enumerate(params["declarations"] or [])]
        unmanaged = Unmanaged(params["unmanaged"], params["unmanaged_nouns"], params["unmanaged_keep"])
        parameters = place_parameters(params["places"], params)
        return find_drift(parameters, declared_resources(sources, list(parameters)), unmanaged)


class EstateInfoModule(_EstateModule):
    """The module estate_info, which reports the differences between declared and existing resources."""

    name = "estate_info"
    options = WANTED + PLACES + REPORTS
    rules = {"required_one_of": [["folder", "declarations"]]}

    def execute(self, params, check_mode, diff_mode, client):
        drift = self.drift(params)
        report = drift_report(drift, [public_item(item) for item in ordered_items(drift.items)])
        write_reports(params, "Drift", report, check_mode)
        result = {"changed": False, "drift": bool(drift.items or drift.unmanaged), "estate": report,
                  "text": text_report("Drift", report)}
        return _warned(result, drift.warnings)


class EstateModule(_EstateModule):
    """The module estate, which plans the changes of the declared resources, and applies such a plan."""

    name = "estate"
    options = name_options(
        state=Option(Choices(PLANNED, APPLIED), "V(planned) writes what would change to the file O(plan), and changes "
                     "nothing else. V(applied) does exactly what that file says, or nothing if a resource in it has "
                     "changed since, and names it.", default=PLANNED),
        plan=Option(File(), "File of the plan, on the machine where the module runs. Only its owner can read it: the "
                    "requests in it may hold secrets.", required=True),
        plan_id=Option(Text(1, 64), "Id of the plan that somebody has approved, which RV(estate.plan) was when it was "
                       "made. V(applied) does nothing if the file holds another plan by now."),
    ) + WANTED + PLACES + REPORTS
    rules = {"required_if": [["state", PLANNED, ["folder", "declarations"], True]]}
    files = _EstateModule.files + ("plan",)

    def execute(self, params, check_mode, diff_mode, client):
        if params["state"] == PLANNED:
            result = self._plan(params, check_mode)
        else:
            result = self._apply(params, check_mode)
        if diff_mode and result.pop("differs"):
            result["diff"] = [{"prepared": result["text"]}]
        result.pop("differs", None)
        return result

    def _plan(self, params, check_mode):
        drift = self.drift(params)
        plan = plan_file.new_plan(drift, ordered_items(drift.items), utc_timestamp())
        report = dict(drift_report(drift, [public_item(item) for item in plan["items"]]), plan=plan["id"])
        title = "Plan %s" % plan["id"][:8]
        write_reports(params, title, report, check_mode)
        result = {"changed": False, "differs": bool(plan["items"]), "estate": report,
                  "text": text_report(title, report)}
        if drift.errors:
            return _warned(dict(result, failed=True, msg="No plan was made: %s" % _first_errors(drift.errors)),
                           drift.warnings)
        result["changed"] = not plan_file.same_plan(params["plan"], plan)
        if result["changed"] and not check_mode:
            plan_file.write_file("plan", params["plan"], json.dumps(plan, indent=1) + "\n", private=True)
        return _warned(result, drift.warnings)

    def _apply(self, params, check_mode):
        plan = plan_file.read_plan(params["plan"], params["plan_id"])
        parameters = place_parameters(params["places"], params)
        check_places(plan, parameters)
        works = [ItemRun(item) for item in plan["items"]]
        check_items(works, parameters, plan)
        refused = [work for work in works if work.status == FAILED]
        if not check_mode and not refused:
            apply_items(works, parameters)
        report = applied_report(plan, works)
        title = "Apply of plan %s" % plan["id"][:8]
        write_reports(params, title, report, check_mode)
        pending = report["counts"]["pending"]
        changed = bool(report["counts"]["applied"] or (check_mode and pending and not refused))
        result = {"changed": changed, "differs": changed, "estate": report, "text": text_report(title, report)}
        failed = [dict(item, code="failed") for item in report["items"] if item["status"] == FAILED]
        if not failed:
            return result
        begin = "The plan was not applied, and nothing was changed" if refused else (
            "The plan was applied in part; apply it again to continue")
        return dict(result, failed=True, msg="%s: %s" % (begin, _first_errors(failed)))


def drift_report(drift, items):
    """Return the report of *drift*, which the module returns and writes to files. *items*: the results of
    ``public_item``.
    """
    counts = dict(_counts(items), unmanaged=len(drift.unmanaged), unchanged=drift.unchanged, errors=len(drift.errors))
    return {"counts": counts, "costs": _costs(items), "places": _places(drift.places), "items": items,
            "unmanaged": drift.unmanaged, "errors": drift.errors}


def applied_report(plan, works):
    """Return the report of the application of *plan*. *works*: its items (``ItemRun``) with their status."""
    items = [work.report() for work in works]
    costs = _costs([item for item in items if item["status"] in (PENDING, DONE)])
    return {"plan": plan["id"], "counts": _counts(items), "costs": costs, "places": _places(plan["places"]),
            "items": items, "unmanaged": [], "errors": []}


def _counts(items):
    """Return the number of *items* for each kind of change (such as create) and for each status (such as applied)."""
    counts = dict.fromkeys((CREATE, UPDATE, RECREATE, REMOVE, "unmanaged", PENDING, DONE, UNCHANGED, FAILED, NOT_BEGUN,
                            "errors"), 0)
    for item in items:
        counts[item["change"]] += 1
        if "status" in item:
            counts[item["status"]] += 1
    return counts


def _costs(items):
    return sorted({cost for item in items for cost in item["costs"]})


def _places(places):
    return [dict(place, name=name) for name, place in sorted(places.items())]


def write_reports(params, title, report, check_mode):
    """Write *report* to the files that the module parameters *params* name, except in check mode. *title*: the heading
    of the report. Raises ``InvalidField`` if a file cannot be written.
    """
    if check_mode:
        return
    made_at = utc_timestamp()
    if params["text_report"]:
        plan_file.write_file("text_report", params["text_report"], text_report(title, report))
    if params["json_report"]:
        plan_file.write_file("json_report", params["json_report"], json.dumps(dict(report, made_at=made_at), indent=1))
    if params["html_report"]:
        plan_file.write_file("html_report", params["html_report"], html_report(title, report, made_at))


def _first_errors(errors, most=10):
    texts = ["%s at %s: %s" % (("%s %s" % (error["noun"], error["name"])).strip() or "all", error["place"],
                               error["message"]) for error in errors[:most]]
    more = len(errors) - most
    return "; ".join(texts) + (" and %d more" % more if more > 0 else "")


def _warned(result, warnings):
    return dict(result, warnings=list(warnings)) if warnings else result
