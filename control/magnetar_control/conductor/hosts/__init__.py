# SPDX-License-Identifier: GPL-3.0-or-later
"""Watchers of hosts, and news for hosts and guests."""
