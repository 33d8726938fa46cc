# SPDX-License-Identifier: GPL-3.0-or-later
"""Conversion of the agent's answers to module results."""

from __future__ import annotations

from ..core.errors import MagnetarError


def module_result(noun, label, answer, diff_mode):
    """Return the module result for *answer*, the answer of ``Client.ensure`` or ``Client.delete``: ``changed``,
    ``<noun>``, ``actions``, ``changes``, ``request_id`` and so on. *noun*, *label*: the resource type, and the
    resource's name for the diff.

    If *answer* has only an operation (``wait: false``), ``changed`` is true, because the operation is still running.
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


def failure_result(error):
    """Return the module result for *error*: ``failed``, ``msg`` (one line with cause and remedy), and ``error``, a
    mapping for programs.
    """
    return {
        "failed": True,
        "msg": one_line(error.message),
        "error": {"code": error.code, "details": error.details, "request_id": getattr(error, "request_id", None)},
    }


def one_line(text):
    """Return *text* as one line: line breaks and repeated spaces become single spaces."""
    return " ".join(str(text).split())


def batch_result(noun, labels, answers, diff_mode, continue_on_error):
    """Return the module result for a batch of resources of the type *noun*. *labels*: the names of the items.
    *answers*: the API's answers to them, in the same order. *continue_on_error*: if true, the task fails only if all
    items have failed; if false, the task fails if any item has failed.
    """
    results = [_item(noun, label, answer, diff_mode) for label, answer in zip(labels, answers)]
    bad = [item for item in results if item["failed"]]
    result = {
        "changed": any(item["changed"] for item in results),
        "results": results,
        "changed_ids": [_resource_key(noun, item) for item in results if item["changed"]],
        "failed_ids": [_resource_key(noun, item) for item in bad],
    }
    warnings = [text for answer in answers for text in answer.get("warnings") or []]
    if warnings:
        result["warnings"] = warnings
    if diff_mode:
        result["diff"] = [item.pop("diff") for item in results if "diff" in item]
    if bad and (not continue_on_error or len(bad) == len(results)):
        result["failed"] = True
        result["msg"] = "%d of %d failed: %s" % (
            len(bad), len(results), "; ".join("%s: %s" % (item["name"], item["msg"]) for item in bad[:10]))
    return result


def _item(noun, label, answer, diff_mode):
    if "error" in answer:
        error = answer["error"]
        return {"name": label, "changed": False, "failed": True, "msg": one_line(error.get("message")),
                "error": {"code": error.get("code"), "details": error.get("details") or {}}}
    result = module_result(noun, label, answer, diff_mode)
    result.pop("warnings", None)
    result.pop("request_id", None)
    return dict(result, name=label, failed=False, msg="")


def _resource_key(noun, item):
    return (item.get(noun) or {}).get("id") or item["name"]
