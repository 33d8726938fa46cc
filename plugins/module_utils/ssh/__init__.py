# SPDX-License-Identifier: GPL-3.0-or-later
"""The way to an agent over SSH: ``login`` gets to the host, ``dial`` from there to the agent's socket."""
