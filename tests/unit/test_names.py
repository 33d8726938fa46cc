# SPDX-License-Identifier: GPL-3.0-or-later
"""A class name has one meaning: no two classes of agent, control plane and collection share one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
FOLDERS = ("agent", "control", "plugins")
#: Ansible looks for this name in each file of documentation fragments.
FRAGMENT = "ModuleDocFragment"


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
              if len(folders) > 1 and name != FRAGMENT and not twins(folders)}
    assert not shared, f"qualify one of each by what it is of: {shared}"
