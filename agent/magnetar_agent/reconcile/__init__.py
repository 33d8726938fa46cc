# SPDX-License-Identifier: GPL-3.0-or-later
"""The reconciliation of resources (``ensure``): documents, locks, plans and steps."""
