# SPDX-License-Identifier: GPL-3.0-or-later
"""From the agent's answers to module results."""

from __future__ import annotations

from ..core.errors import MagnetarError


def changed(noun, label, answer, diff_mode):
    """The result of an ensure: ``changed``, ``<noun>``, ``actions``, ``changes``, ``request_id``, ``diff``, …

    An answer with only an operation (``wait: false``) counts as changed: something is under way.
    """
    if "changed" not in answer:
        return {"changed": True, "operation": _operation(answer), "request_id": answer.get("request_id")}
    leaves = answer.get("diff") or []
    result = {
        "changed": answer["changed"],
        noun: answer.get("resource"),
        "actions": [step["verb"] for step in answer.get("steps") or []],
        "changes": {leaf["path"]: {"old": leaf["old"], "new": leaf["new"]} for leaf in leaves},
        "request_id": answer.get("request_id"),
    }
    if answer.get("warnings"):
        result["warnings"] = list(answer["warnings"])
    if diff_mode:
        result["diff"] = _diff(leaves, "%s %s" % (noun, label))
    return result


def _operation(answer):
    if not answer.get("operation"):
        raise MagnetarError("The answer says neither whether anything changed nor what goes on, so what was done is "
                            "unknown. Check that the endpoint is a Magnetar agent, and a proxy in between.")
    return answer["operation"]


def _diff(leaves, header):
    return {
        "before": {leaf["path"]: leaf["old"] for leaf in leaves if leaf["old"] is not None},
        "after": {leaf["path"]: leaf["new"] for leaf in leaves if leaf["new"] is not None},
        "before_header": header,
        "after_header": header,
    }


def failed(error):
    """The result of a failure: one line with cause and remedy, and ``error`` for programs."""
    return {
        "failed": True,
        "msg": one_line(error.message),
        "error": {"code": error.code, "details": error.details, "request_id": getattr(error, "request_id", None)},
    }


def one_line(text):
    """*text* without line breaks."""
    return " ".join(str(text).split())


def batch(noun, labels, answers, diff_mode, continue_on_error):
    """The result of a batch, items in the order given; see ``continue_on_error`` for when the task fails."""
    results = [_item(noun, label, answer, diff_mode) for label, answer in zip(labels, answers)]
    bad = [item for item in results if item["failed"]]
    found = {
        "changed": any(item["changed"] for item in results),
        "results": results,
        "changed_ids": [_known(noun, item) for item in results if item["changed"]],
        "failed_ids": [_known(noun, item) for item in bad],
    }
    warnings = [text for answer in answers for text in answer.get("warnings") or []]
    if warnings:
        found["warnings"] = warnings
    if diff_mode:
        found["diff"] = [item.pop("diff") for item in results if "diff" in item]
    if bad and (not continue_on_error or len(bad) == len(results)):
        found["failed"] = True
        found["msg"] = "%d of %d failed: %s" % (
            len(bad), len(results), "; ".join("%s: %s" % (item["name"], item["msg"]) for item in bad[:10]))
    return found


def _item(noun, label, answer, diff_mode):
    if "error" in answer:
        error = answer["error"]
        return {"name": label, "changed": False, "failed": True, "msg": one_line(error.get("message")),
                "error": {"code": error.get("code"), "details": error.get("details") or {}}}
    found = changed(noun, label, answer, diff_mode)
    found.pop("warnings", None)
    found.pop("request_id", None)
    return dict(found, name=label, failed=False, msg="")


def _known(noun, item):
    return (item.get(noun) or {}).get("id") or item["name"]
