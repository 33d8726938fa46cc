# SPDX-License-Identifier: GPL-3.0-or-later
"""Routes of servers and of their resources."""
