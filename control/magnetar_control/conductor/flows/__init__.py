# SPDX-License-Identifier: GPL-3.0-or-later
"""Flows of actions, one file for each, named by resource type and action (``server_create``)."""
