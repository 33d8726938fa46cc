# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP application of the agent, and the process that serves it."""
