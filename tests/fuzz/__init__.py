# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests that nobody would write by hand, to every route of the APIs: see ``test_fuzz``."""
