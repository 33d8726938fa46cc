# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that do what a module of the collection openstack.cloud does, with its options and results."""

from __future__ import annotations
