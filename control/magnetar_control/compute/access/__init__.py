# SPDX-License-Identifier: GPL-3.0-or-later
"""Nova's policy rules, and the files that override them."""
