# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of release."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles/agent"


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROLE / "files" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pack, release = load("pack"), load("release")
