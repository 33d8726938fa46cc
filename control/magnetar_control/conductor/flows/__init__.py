# SPDX-License-Identifier: GPL-3.0-or-later
"""Flows of actions, a file for each: noun and verb."""
