# SPDX-License-Identifier: GPL-3.0-or-later
"""A name has one meaning: no two classes, and no two public functions, of agent, control plane and collection share
one."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from tools.language import files_of_functions, read_source

ROOT = Path(__file__).parents[2]
FOLDERS = ("agent", "control", "plugins")
#: Ansible looks for these names in each file of documentation fragments, and in each connection plugin.
OF_ANSIBLE = ("ModuleDocFragment", "Connection")
#: Functions that several modules of a folder have, and callers call as ``module.verb``.
VERBS: Mapping[str, tuple[str, ...]] = {
    ".": ("main",),
    # the two storages of disks outside of the servers' folders, and the verb of the plan that grows a disk
    "agent/magnetar_agent/servers": ("fill", "grow", "make", "remove", "remove_all", "room", "tidy"),
    # rows as the API shows them
    "control/magnetar_control/services/volume": ("documents",),
    # called by Alembic
    "control/magnetar_control/store/migrations": ("upgrade",)}


def places() -> dict[str, list[PurePosixPath]]:
    """Each class's name with the folders in which there is one."""
    found = defaultdict(list)
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(PurePosixPath(path.relative_to(ROOT).parent))
    return found


def twins(folders: list[PurePosixPath]) -> bool:
    """Whether they are a part of the hypervisor, for libvirt and as a fake."""
    fake, *others = sorted(map(str, folders))
    return fake == "agent/magnetar_agent/fake" and len(others) == 1 and "agent/magnetar_agent/virt" in others[0]


def test_a_class_name_stands_once() -> None:
    shared = {name: [str(folder) for folder in folders] for name, folders in places().items()
              if len(folders) > 1 and name not in OF_ANSIBLE and not twins(folders)}
    assert not shared, f"qualify one of each by what it is of: {shared}"


@pytest.fixture(scope="module")
def functions() -> dict[str, list[str]]:
    """The files of each public function, by the function's name."""
    return files_of_functions(read_source())


def is_declared(name: str, files: list[str]) -> bool:
    """Whether the name is a verb of a folder that holds all its functions."""
    return any(name in verbs and all(PurePosixPath(file).is_relative_to(folder) for file in files)
               for folder, verbs in VERBS.items())


def test_a_public_function_stands_once(functions: dict[str, list[str]]) -> None:
    shared = {name: files for name, files in functions.items() if len(files) > 1 and not is_declared(name, files)}
    assert not shared, f"name what each acts on, or declare a verb: {shared}"


def test_each_declared_verb_recurs(functions: dict[str, list[str]]) -> None:
    assert not [name for verbs in VERBS.values() for name in verbs if len(functions.get(name, ())) < 2]
