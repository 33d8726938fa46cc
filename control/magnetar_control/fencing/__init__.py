# SPDX-License-Identifier: GPL-3.0-or-later
"""Fencing: power devices of hosts, from the settings, and the fence agents that switch them."""
