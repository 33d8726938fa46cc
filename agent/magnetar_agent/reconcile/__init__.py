# SPDX-License-Identifier: GPL-3.0-or-later
"""``ensure``: documents, locks, plans and steps."""
