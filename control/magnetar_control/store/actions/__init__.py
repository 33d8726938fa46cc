# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of actions: the queue of the conductors."""
