# SPDX-License-Identifier: GPL-3.0-or-later
"""Set-up of the machine for quickstart and check. Standard library only: nothing is installed before it."""
