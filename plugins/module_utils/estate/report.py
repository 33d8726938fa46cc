# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a plan, of drift or of an apply, as text and as one HTML page without other files."""

from __future__ import annotations

from html import escape

from .applying import shown
from .nouns import CREATE, RECREATE, REMOVE, UPDATE

SIGNS = {CREATE: "+", UPDATE: "~", RECREATE: "!", REMOVE: "-"}
WORDS = {"create": "to create", "update": "to update", "recreate": "to recreate", "remove": "to remove",
         "unmanaged": "not declared", "unchanged": "unchanged", "errors": "with an error", "pending": "to do",
         "applied": "applied", "failed": "failed", "not_begun": "not begun"}
COSTS = {"reboot": "reboots", "stop": "stops", "move": "may move", "data_loss": "loses data"}
STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}small{color:#59636e;font-weight:400}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.35rem .6rem;
border-bottom:1px solid #d1d9e0}code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
.cost{background:#ffebe9;color:#a40e26;border-radius:.5em;padding:0 .5em;white-space:nowrap}
.create{color:#1a7f37}.update{color:#9a6700}.recreate,.remove,.failed{color:#a40e26}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}td,th{border-color:#30363d}small{color:#9198a1}
.cost{background:#5d0f12;color:#ffdcd7}.create{color:#3fb950}.update{color:#d29922}
.recreate,.remove,.failed{color:#ff7b72}}
"""


def summary(report):
    """Return the numbers of changes in *report* as a sentence; zeros are left out. The changes of a plan are counted by
    kind of change, those of an applied plan by status.
    """
    of_run = any("status" in item for item in report["items"])
    parts = ["%d %s" % (number, WORDS[name]) for name, number in report["counts"].items()
             if number and not (of_run and name in SIGNS)]
    return (", ".join(parts) or "nothing to do") + "."


def text_report(title, report):
    """Return *report* as plain text. *title*: its heading. *report*: a mapping with ``counts``, ``places``, ``items``,
    ``unmanaged`` and ``errors``.
    """
    lines = ["%s: %s" % (title, summary(report))]
    for place in report["places"]:
        own = _of_place(report, place["name"])
        if any(own.values()):
            lines += ["", "%s (%s)" % (place["name"], place["endpoint"])]
            for item in own["items"]:
                lines += _item_lines(item)
            lines += ["  ? %s %s (not declared)" % (resource["noun"], resource["name"])
                      for resource in own["unmanaged"]]
            lines += ["  x %s" % _error_text(error) for error in own["errors"]]
    unreached = _unreached(report)
    lines += [""] * bool(unreached) + ["%s: %s" % (error["place"], error["message"]) for error in unreached]
    return "\n".join(lines) + "\n"


def _unreached(report):
    """Return the errors in *report* of agents and clouds that cannot be reached."""
    reached = [place["name"] for place in report["places"]]
    return [error for error in report["errors"] if error["place"] not in reached]


def _of_place(report, place):
    return {name: [entry for entry in report[name] if entry["place"] == place]
            for name in ("items", "unmanaged", "errors")}


def _item_lines(item):
    notes = [COSTS[cost] for cost in item["costs"]] + ["not declared"] * (not item["declared"])
    notes += [WORDS[item["status"]]] if "status" in item else []
    yield "  %s %s %s%s" % (SIGNS[item["change"]], item["noun"], item["name"],
                            " [%s]" % ", ".join(notes) if notes else "")
    if item.get("message"):
        yield "      %s" % item["message"]
    if item["change"] in (UPDATE, RECREATE):
        for path, change in item["changes"].items():
            yield "      %s: %s -> %s" % (path, shown(change["old"]), shown(change["new"]))


def _error_text(error):
    return "%s %s: %s" % (error["noun"], error["name"], error["message"])


def html_report(title, report, made_at):
    """Return *report* as an HTML page without external files. All values are escaped. *made_at*: the time for the
    footer. Other parameters: as in ``text_report``.
    """
    parts = ["<!DOCTYPE html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
             "<title>%s</title><style>%s</style>" % (escape(title), STYLE),
             "<h1>%s</h1><p>%s</p>" % (escape(title), escape(summary(report)))]
    for place in report["places"]:
        own = _of_place(report, place["name"])
        if any(own.values()):
            parts.append("<h2>%s <small>%s</small></h2><table><tr><th>Change<th>Resource<th>Details" % (
                escape(place["name"]), escape(place["endpoint"])))
            parts += map(_item_row, own["items"])
            parts += [_row("", "not declared", "%s %s" % (resource["noun"], resource["name"]), "")
                      for resource in own["unmanaged"]]
            parts += [_row("failed", "error", "%s %s" % (error["noun"], error["name"]), escape(error["message"]))
                      for error in own["errors"]]
            parts.append("</table>")
    parts += ["<p class=failed>%s: %s</p>" % (escape(error["place"]), escape(error["message"]))
              for error in _unreached(report)]
    return "\n".join((*parts, "<p><small>Made at %s by magnetar.compute.estate.</small></p></html>" % escape(made_at)))


def _item_row(item):
    marks = ["<span class=cost>%s</span>" % escape(COSTS[cost]) for cost in item["costs"]]
    marks += ["<small>not declared</small>"] * (not item["declared"])
    details = ["<b class=%s>%s</b>" % ("failed" if item["status"] == "failed" else "", escape(WORDS[item["status"]]))
               ] if "status" in item else []
    details += [escape(item["message"])] if item.get("message") else []
    if item["change"] in (UPDATE, RECREATE):
        details += ["<code>%s: %s → %s</code>" % tuple(map(escape, (path, shown(change["old"]), shown(change["new"]))))
                    for path, change in item["changes"].items()]
    return _row(item["change"], item["change"], "%s %s" % (item["noun"], item["name"]),
                "<br>".join([" ".join(marks)] * bool(marks) + details))


def _row(css_class, change, resource, details):
    return "<tr><td class='%s'>%s<td><code>%s</code><td>%s" % (css_class, escape(change), escape(resource), details)
