# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks, filters and addresses of guests."""
