# SPDX-License-Identifier: GPL-3.0-or-later
"""Claims: the resources that servers and migrations hold on hosts."""
