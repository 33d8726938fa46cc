# SPDX-License-Identifier: GPL-3.0-or-later
"""Flows: what takes more than one agent, as generators of steps. Whoever runs one may die between any two steps, and
runs it again from its start: each step asks for "at least" something, so that is always right."""

from __future__ import annotations
