# SPDX-License-Identifier: GPL-3.0-or-later
"""API processes that share one port: their parent process, and the requests between them."""
