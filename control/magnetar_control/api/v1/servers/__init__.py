# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of servers, and of what servers are given."""
