# SPDX-License-Identifier: GPL-3.0-or-later
"""Setting up the machine that quickstart and check run on. Standard library only: nothing is installed before it."""
