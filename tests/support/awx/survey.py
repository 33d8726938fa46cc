# SPDX-License-Identifier: GPL-3.0-or-later
"""What AWX checks of surveys and of answers to them, as its API documents it."""

from __future__ import annotations

from typing import Any

#: Python types of the answers, and of the defaults, by the type of the question.
TYPES: dict[str, type] = {"text": str, "textarea": str, "password": str, "integer": int, "float": float,
                          "multiplechoice": str, "multiselect": list}
TEXTS = ("text", "textarea", "password")


def survey_error(survey: dict[str, Any]) -> str | None:
    """Return what AWX refuses a survey for, or ``None``."""
    for key, kind in (("name", str), ("description", str), ("spec", list)):
        if not isinstance(survey.get(key), kind):
            return f"'{key}' must be a {kind.__name__}"
    if not survey["spec"]:
        return "'spec' has no items"
    variables = [question.get("variable") for question in survey["spec"]]
    if len({*variables}) != len(variables):
        return "a variable is asked for twice"
    return next(filter(None, map(_question_error, survey["spec"])), None)


def _question_error(question: dict[str, Any]) -> str | None:
    """Return what AWX refuses a question for, or ``None``."""
    for key, kind in (("type", str), ("question_name", str), ("variable", str), ("required", bool)):
        if not isinstance(question.get(key), kind):
            return f"'{key}' of a question must be a {kind.__name__}: {question}"
    if question["type"] not in TYPES:
        return f"{question['type']} is no type of a question"
    default = question.get("default", "")
    if default != "" and not isinstance(default, TYPES[question["type"]]):
        return f"the default of {question['variable']} is no {question['type']}"
    if any(not isinstance(question.get(key, 0), int) for key in ("min", "max")):
        return f"a limit of {question['variable']} is no integer"
    if question["type"].startswith("multi"):
        if "choices" not in question:
            return f"{question['variable']} has no choices"
        if default != "" and {*([default] if isinstance(default, str) else default)} - {*question["choices"]}:
            return f"the default of {question['variable']} is none of its choices"
    return None


def answer_errors(survey: dict[str, Any], answers: dict[str, Any], required: bool = True) -> list[str]:
    """Return what AWX refuses *answers* for. *required*: also for answers that are missing, as at a launch and for a
    schedule, but not for a node of a workflow.
    """
    questions = {question["variable"]: question for question in survey.get("spec", ())}
    errors = [f"Variables {name} are not allowed on launch" for name in answers if name not in questions]
    for name, question in questions.items():
        if name in answers:
            errors += _answer_errors(question, answers[name])
        elif required and question["required"]:
            errors.append(f"'{name}' value missing")
    return errors


def _answer_errors(question: dict[str, Any], answer: Any) -> list[str]:
    """Return what AWX refuses one answer for."""
    name, kind = question["variable"], question["type"]
    if type(answer) is not TYPES[kind]:
        return [f"Value {answer} for '{name}' expected to be {kind}"]
    if kind.startswith("multi"):
        chosen = {answer} if kind == "multiplechoice" else {*answer}
        return [f"Value {one} for '{name}' expected to be one of {question['choices']}"
                for one in sorted(chosen - {*question["choices"]})]
    size = len(answer) if kind in TEXTS else answer
    errors = []
    if question.get("min") is not None and size < question["min"]:
        errors.append(f"'{name}' value {answer} is too small (must be at least {question['min']})")
    if question.get("max") is not None and size > question["max"]:
        errors.append(f"'{name}' value is too large (must be no more than {question['max']})")
    return errors
