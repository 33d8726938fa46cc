# SPDX-License-Identifier: GPL-3.0-or-later
"""Periodic tasks of a conductor: audit, repair, usage, notifications."""
