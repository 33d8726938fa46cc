# SPDX-License-Identifier: GPL-3.0-or-later
"""What the routes do, a file for each noun."""
