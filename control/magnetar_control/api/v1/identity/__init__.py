# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers of the kinds of the embedded identity service: domains, projects, users, groups, roles, role assignments and
application credentials."""
