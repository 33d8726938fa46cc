# SPDX-License-Identifier: GPL-3.0-or-later
"""Use cases that Nova forwards to other services."""
