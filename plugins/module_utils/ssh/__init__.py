# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections to an agent over SSH: ``login`` logs in to the host, ``dial`` connects to the agent's socket there."""
