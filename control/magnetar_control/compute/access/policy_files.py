# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of oslo.policy that override rules: one file, and folders of files (``policy.d``). Nova's own files can be
used: rules that no operation here checks, and former names, only cause a warning."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from oslo_policy import policy

from magnetar_core.errors import InvalidField

from .policies import BASE, FORMER, POLICIES

_NAMED = re.compile(r"\brule:([^\s()]+)")
#: Checks that ask another server. Their answers cannot be cached.
_REMOTE = re.compile(r"(?<![\w:])https?:")
#: The fallback for missing rules. Aliases in Nova's sample file begin with it.
_USED = frozenset({"default"})


@dataclass(frozen=True)
class Overrides:
    """The content of the policy files. *rules*: check strings, by the rule's name. *files*: the file that defines each
    rule, by the rule's name."""

    rules: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)

    def file_paths(self, names: Mapping[str, str] | Sequence[str]) -> str:
        """Return the paths of the files that define the rules *names*, joined with commas, for an error message."""
        return ", ".join(sorted({str(self.files[name]) for name in names}))

    def warnings(self) -> Iterator[str]:
        """Yield one warning for each rule in the files that has a deprecated name, or that nothing uses."""
        named, former = set(_NAMED.findall(" ".join(self.rules.values()))), {former_rule.name
                                                                             for former_rule in FORMER.values()}
        for name in sorted(self.rules):
            where = f"{self.files[name]}: "
            if name in former and name not in POLICIES:
                now = ", ".join(rule for rule, former_rule in FORMER.items() if former_rule.name == name)
                yield f"{where}the rule {name} is deprecated. It stands for {now}; write these"
            elif name not in POLICIES.keys() | BASE.keys() | named | _USED:
                like = difflib.get_close_matches(name, POLICIES, 1)
                yield f"{where}nothing asks for the rule {name}" + (f"; is {like[0]} meant?" if like else "")


def list_policy_files(file: Path | None, folders: Sequence[Path]) -> list[Path]:
    """Return the policy files in reading order: *file*, then the files of each folder sorted by name, except hidden
    ones. Raises ``InvalidField`` for a folder that does not exist."""
    paths = [file] if file else []
    for folder in folders:
        try:
            paths += sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        except OSError as error:
            raise InvalidField("policy_dirs", f"must be folders, and {folder} is not ({error.strerror})") from None
    return paths


def policy_files_stamp(file: Path | None, folders: Sequence[Path]) -> Any:
    """Return a value that changes when one of the policy files changes, is added or is removed; ``None`` when a folder
    does not exist."""
    try:
        return [(str(path), _file_stamp(path)) for path in list_policy_files(file, folders)]
    except InvalidField:
        return None


def _file_stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def read_policy_files(file: Path | None, folders: Sequence[Path] = ()) -> Overrides:
    """Read the files ``list_policy_files(file, folders)``, and return their merged content; later files override
    earlier ones. Raises ``InvalidField``."""
    rules: dict[str, str] = {}
    files: dict[str, Path] = {}
    for path in list_policy_files(file, folders):
        file_rules = _read_policy_file(path)
        rules |= file_rules
        files |= dict.fromkeys(file_rules, path)
    return Overrides(rules, files)


def _read_policy_file(file: Path) -> dict[str, str]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise invalid_policy_file(file, " ".join(str(error).split())) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise invalid_policy_file(file, "it is no mapping of rules' names to checks")
    for name, text in document.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise invalid_policy_file(file, f"the rule {name} is no text; write it in quotes")
        if _REMOTE.search(text):
            raise invalid_policy_file(file,
                                      f"the rule {name} asks another server ({text[:200]!r}), which no rule does here")
        check = str(policy.Rules.from_dict({name: text})[name])
        if check.count("!") > text.count("!"):  # oslo.policy turns text that it cannot parse into "!"
            raise invalid_policy_file(file, f"the rule {name} is not understood: {text[:200]!r}")
    return document


def invalid_policy_file(file: Path | str, why: str) -> InvalidField:
    """Return the error for the policy file *file*, which cannot be used. *why*: the reason, for the error message."""
    return InvalidField("policy_file", f"must be a YAML file of oslo.policy rules, and {file} is not ({why})")
