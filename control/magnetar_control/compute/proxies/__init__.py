# SPDX-License-Identifier: GPL-3.0-or-later
"""Use cases that Nova passes on to other services."""
