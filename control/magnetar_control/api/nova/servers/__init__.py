# SPDX-License-Identifier: GPL-3.0-or-later
"""Routes about servers and what they have."""
