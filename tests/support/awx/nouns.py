# SPDX-License-Identifier: GPL-3.0-or-later
"""The resources of AWX's API that the import makes: fields, references, and what AWX refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .survey import answer_errors

ROOT = Path(__file__).resolve().parents[3]
#: What the API shows of a secret.
HIDDEN = "$encrypted$"
Row = dict[str, Any]
Rows = Mapping[str, Mapping[int, Row]]

ASKS = tuple(f"ask_{name}_on_launch" for name in (
    "credential", "diff_mode", "execution_environment", "forks", "instance_groups", "inventory", "job_slice_count",
    "job_type", "labels", "limit", "scm_branch", "skip_tags", "tags", "timeout", "variables", "verbosity"))
TOLD = ("notification_templates_started", "notification_templates_success", "notification_templates_error")


@dataclass(frozen=True)
class AwxNoun:
    """A kind of resource: its settable fields with their defaults, the required ones, the nouns that fields refer to,
    the lists of ids that it has, and the function that says what is wrong with a row.
    """

    fields: Mapping[str, Any]
    required: tuple[str, ...] = ("name",)
    references: Mapping[str, str] = field(default_factory=dict)
    associations: tuple[str, ...] = ()
    error: Callable[[Row, Rows], str | None] = lambda row, rows: None
    identity: tuple[str, ...] = ("name", "organization")


def _type_error(row: Row, rows: Rows) -> str | None:
    """Return what AWX refuses a credential type for."""
    try:
        jsonschema.validate(row["inputs"], INPUTS)
        jsonschema.validate(row["injectors"], INJECTORS)
        render_injectors(row, {one["id"]: "EXAMPLE" for one in row["inputs"].get("fields", ())}, StrictUndefined)
    except (jsonschema.ValidationError, TemplateError) as error:
        return str(error)
    bad = [name for name in row["injectors"].get("env", {}) if name.startswith("ANSIBLE_")]
    return f"{bad} may affect Ansible" if bad else None


INPUTS = {
    "type": "object", "additionalProperties": False, "properties": {
        "required": {"type": "array", "items": {"type": "string"}},
        "fields": {"type": "array", "items": {
            "type": "object", "additionalProperties": False, "required": ["id", "label"], "properties": {
                "type": {"enum": ["string", "boolean"]}, "format": {"enum": ["ssh_private_key", "url"]},
                "id": {"type": "string", "pattern": "^[a-zA-Z_]+[a-zA-Z0-9_]*$"}, "label": {"type": "string"},
                "help_text": {"type": "string"}, "multiline": {"type": "boolean"}, "secret": {"type": "boolean"},
                "ask_at_runtime": {"type": "boolean"}, "default": {"type": ["string", "boolean"]},
                "choices": {"type": "array", "items": {"type": "string"}}}}}}}
TEXT_VALUES = {"type": "string"}
INJECTORS = {
    "type": "object", "additionalProperties": False, "properties": {
        "file": {"type": "object", "additionalProperties": False,
                 "patternProperties": {r"^template(\.[a-zA-Z_]+[a-zA-Z0-9_]*)?$": TEXT_VALUES}},
        "env": {"type": "object", "additionalProperties": False,
                "patternProperties": {"^[a-zA-Z_]+[a-zA-Z0-9_]*$": {"type": "string", "pattern": "^[\x00-\x7f]*$"}}},
        "extra_vars": {"type": "object"}}}


class _Namespace:
    """The word ``tower`` of injectors, with ``tower.filename.LABEL``."""

    def __init__(self) -> None:
        self.filename = type("Filenames", (), {})()


def render_injectors(kind: Row, inputs: Mapping[str, str], undefined: Any = None,
                     folder: Path | None = None) -> dict[str, str]:
    """Write the files of a credential type to *folder*, and return its environment variables, with the *inputs* of a
    credential. Without a folder nothing is written. *undefined*: the class of values that are not there.
    """
    words = {"undefined": undefined} if undefined else {}
    templates, tower = ImmutableSandboxedEnvironment(**words), _Namespace()
    files = kind["injectors"].get("file", {})
    for label in sorted(files, key=lambda name: (len(name), name)):  # the order in which the database keeps the keys
        text = templates.from_string(files[label]).render(**inputs, tower=tower)
        path = (folder or Path("/runner/env")) / label
        if folder:
            path.touch(mode=0o600)
            path.write_text(text)
        setattr(tower.filename, label.partition(".")[2], str(path))
    return {name: templates.from_string(text).render(**inputs, tower=tower)
            for name, text in kind["injectors"].get("env", {}).items()}


def _credential_error(row: Row, rows: Rows) -> str | None:
    """Return what AWX refuses a credential for."""
    inputs = rows["credential_types"][row["credential_type"]]["inputs"]
    unknown = {*row["inputs"]} - {one["id"] for one in inputs["fields"]}
    missing = [name for name in inputs.get("required", ()) if not row["inputs"].get(name)]
    if unknown or missing:
        return f"unknown inputs {sorted(unknown)}, missing inputs {missing}"
    return None


def _project_error(row: Row, rows: Rows) -> str | None:
    """Return what AWX refuses a project for."""
    return None if row["scm_type"] == "" or row["scm_url"] else "SCM URL is required."


def _source_error(row: Row, rows: Rows) -> str | None:
    """Return what AWX refuses an inventory source for."""
    if row["source"] == "scm" and not row["source_project"]:
        return "Project required for scm type sources."
    kinds = rows["credential_types"]
    given = rows["credentials"].get(row["credential"] or 0)
    if given and kinds[given["credential_type"]]["kind"] != "cloud":
        return "Credentials of type machine are disallowed for scm inventory sources."
    return None


def _template_error(row: Row, rows: Rows) -> str | None:
    """Return what AWX refuses a job template for."""
    if not (ROOT / row["playbook"]).is_file():
        return "Playbook not found for project."
    if not row["inventory"] and not row["ask_inventory_on_launch"]:
        return "Job Template must provide 'inventory' or allow prompting for it."
    return None


def _launch_error(row: Row, rows: Rows, required: bool) -> str | None:
    """Return what AWX refuses the variables of a schedule or a node for."""
    template = next((rows[noun][row["unified_job_template"]] for noun in ("job_templates", "workflow_job_templates")
                     if row["unified_job_template"] in rows[noun]), None)
    if template is None:
        return None
    return "; ".join(answer_errors(template["survey"], row["extra_data"], required)) or None


def _schedule_error(row: Row, rows: Rows) -> str | None:
    """Return what AWX refuses a schedule for."""
    start = r"DTSTART(;TZID=[^:]+:\d{8}T\d{6}|:\d{8}T\d{6}Z)"
    if not re.fullmatch(rf"{start}( RRULE:(?=[^ ]*INTERVAL=)(?=[^ ]*FREQ=(MINUTE|HOUR|DAI|WEEK|MONTH|YEAR)LY)[^ ]+)+",
                        row["rrule"]):
        return f"the rule is not valid: {row['rrule']}"
    return _launch_error(row, rows, required=True)


#: The keys of the configuration of notification templates, and which of them are secrets.
NOTIFICATIONS = {
    "webhook": {"url": False, "http_method": False, "headers": False, "disable_ssl_verification": False,
                "username": False, "password": True},
    "email": {"host": False, "port": False, "username": False, "password": True, "use_tls": False, "use_ssl": False,
              "sender": False, "recipients": False, "timeout": False}}


def _notification_error(row: Row, rows: Rows) -> str | None:
    """Return what AWX refuses a notification template for."""
    keys, given = {*NOTIFICATIONS[row["notification_type"]]}, {*row["notification_configuration"]}
    if keys != given:
        return f"Missing required fields {sorted(keys - given)}, unknown fields {sorted(given - keys)}"
    return None


ORGANIZED = {"organization": "organizations"}
AWX_NOUNS = {
    "organizations": AwxNoun({"name": ""}),
    "execution_environments": AwxNoun({"name": "", "description": "", "image": "", "pull": "", "organization": None,
                                       "credential": None}, ("name", "image"), ORGANIZED),
    "credential_types": AwxNoun({"name": "", "description": "", "kind": "", "inputs": {}, "injectors": {},
                                 "managed": False}, ("name", "kind"), error=_type_error),
    "credentials": AwxNoun(
        {"name": "", "description": "", "organization": None, "credential_type": None, "inputs": {}},
        ("name", "credential_type"), {**ORGANIZED, "credential_type": "credential_types"}, error=_credential_error,
        identity=("name", "organization", "credential_type")),
    "notification_templates": AwxNoun(
        {"name": "", "description": "", "organization": None, "notification_type": "", "messages": None,
         "notification_configuration": {}},
        ("name", "organization", "notification_type"), ORGANIZED, error=_notification_error),
    "projects": AwxNoun(
        {"name": "", "description": "", "organization": None, "scm_type": "", "scm_url": "", "scm_branch": "",
         "scm_update_on_launch": False, "scm_update_cache_timeout": 0, "default_environment": None},
        ("name",), {**ORGANIZED, "default_environment": "execution_environments"}, TOLD, _project_error),
    "inventories": AwxNoun({"name": "", "description": "", "organization": None, "kind": "", "host_filter": None,
                            "variables": ""}, ("name", "organization"), ORGANIZED),
    "inventory_sources": AwxNoun(
        {"name": "", "description": "", "inventory": None, "source": "", "source_path": "", "source_vars": "",
         "source_project": None, "credential": None, "execution_environment": None, "overwrite": False,
         "overwrite_vars": False, "update_on_launch": False, "update_cache_timeout": 0},
        ("name", "inventory", "source"),
        {"inventory": "inventories", "source_project": "projects", "credential": "credentials",
         "execution_environment": "execution_environments"}, TOLD, _source_error, ("name", "inventory")),
    "job_templates": AwxNoun(
        {"name": "", "description": "", "job_type": "run", "organization": None, "project": None, "playbook": "",
         "inventory": None, "execution_environment": None, "survey_enabled": False, **dict.fromkeys(ASKS, False)},
        ("name", "project", "playbook"),
        {**ORGANIZED, "project": "projects", "inventory": "inventories",
         "execution_environment": "execution_environments"}, ("credentials", "labels", *TOLD), _template_error),
    "workflow_job_templates": AwxNoun(
        {"name": "", "description": "", "organization": None, "allow_simultaneous": False, "survey_enabled": False,
         "extra_vars": ""}, ("name",), ORGANIZED, (*TOLD, "notification_templates_approvals")),
    "workflow_approval_templates": AwxNoun({"name": "", "description": "", "timeout": 0}, identity=("id",)),
    "workflow_job_template_nodes": AwxNoun(
        {"identifier": "", "workflow_job_template": None, "unified_job_template": None, "extra_data": {},
         "all_parents_must_converge": False}, ("identifier", "workflow_job_template"),
        {"workflow_job_template": "workflow_job_templates", "unified_job_template": "unified_job_templates"},
        ("success_nodes", "failure_nodes", "always_nodes", "credentials", "labels"),
        lambda row, rows: _launch_error(row, rows, required=False), ("identifier", "workflow_job_template")),
    "schedules": AwxNoun(
        {"name": "", "description": "", "rrule": "", "unified_job_template": None, "extra_data": {}, "enabled": True},
        ("name", "rrule", "unified_job_template"), {"unified_job_template": "unified_job_templates"}, ("credentials",),
        _schedule_error, ("name", "unified_job_template")),
}  # fmt: skip
#: The nouns that a node or a schedule can run.
UNIFIED = ("job_templates", "projects", "inventory_sources", "workflow_job_templates", "workflow_approval_templates")
