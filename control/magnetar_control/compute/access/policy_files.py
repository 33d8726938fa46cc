# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of oslo.policy that override rules: one, and folders of them (``policy.d``). Those that Nova reads are read:
rules that nothing asks here, and former names, are told of and harm nobody."""

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
#: Checks that ask a server somewhere, whose answers cannot be kept.
_REMOTE = re.compile(r"(?<![\w:])https?:")
#: The rule that stands for those that are not there, and what an alias in Nova's sample begins with.
_USED = frozenset({"default"})


@dataclass(frozen=True)
class Overrides:
    """What files say: *rules* by name, and the file that says each."""

    rules: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)

    def place(self, names: Mapping[str, str] | Sequence[str]) -> str:
        """The files that say *names*."""
        return ", ".join(sorted({str(self.files[name]) for name in names}))

    def warnings(self) -> Iterator[str]:
        """What whoever wrote the files should know, a sentence for each rule."""
        named, former = set(_NAMED.findall(" ".join(self.rules.values()))), {one.name for one in FORMER.values()}
        for name in sorted(self.rules):
            where = f"{self.files[name]}: "
            if name in former and name not in POLICIES:
                now = ", ".join(rule for rule, one in FORMER.items() if one.name == name)
                yield f"{where}the rule {name} is deprecated. It stands for {now}; write these"
            elif name not in POLICIES.keys() | BASE.keys() | named | _USED:
                like = difflib.get_close_matches(name, POLICIES, 1)
                yield f"{where}nothing asks for the rule {name}" + (f"; is {like[0]} meant?" if like else "")


def listed(file: Path | None, folders: Sequence[Path]) -> list[Path]:
    """The files in the order in which they are read: *file*, then those of each folder by name; hidden ones are none.
    Raises ``InvalidField`` for a folder that is not there."""
    found = [file] if file else []
    for folder in folders:
        try:
            found += sorted(one for one in folder.iterdir() if one.is_file() and not one.name.startswith("."))
        except OSError as error:
            raise InvalidField("policy_dirs", f"must be folders, and {folder} is not ({error.strerror})") from None
    return found


def mark(file: Path | None, folders: Sequence[Path]) -> Any:
    """What changes with the files; ``None`` when a folder is not there."""
    try:
        return [(str(one), _changed(one)) for one in listed(file, folders)]
    except InvalidField:
        return None


def _changed(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def read(file: Path | None, folders: Sequence[Path] = ()) -> Overrides:
    """What the files say; later ones override earlier ones. Raises ``InvalidField``."""
    rules: dict[str, str] = {}
    files: dict[str, Path] = {}
    for one in listed(file, folders):
        found = _read(one)
        rules |= found
        files |= dict.fromkeys(found, one)
    return Overrides(rules, files)


def _read(file: Path) -> dict[str, str]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise wrong(file, " ".join(str(error).split())) from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise wrong(file, "it is no mapping of rules' names to checks")
    for name, text in found.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise wrong(file, f"the rule {name} is no text; write it in quotes")
        if _REMOTE.search(text):
            raise wrong(file, f"the rule {name} asks another server ({text[:200]!r}), which no rule does here")
        check = str(policy.Rules.from_dict({name: text})[name])
        if check.count("!") > text.count("!"):  # what oslo.policy does not understand is nobody to it
            raise wrong(file, f"the rule {name} is not understood: {text[:200]!r}")
    return found


def wrong(file: Path | str, why: str) -> InvalidField:
    """That a policy file cannot be used."""
    return InvalidField("policy_file", f"must be a YAML file of oslo.policy rules, and {file} is not ({why})")
