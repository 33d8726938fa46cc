# SPDX-License-Identifier: GPL-3.0-or-later
"""Tools of the project: checks, generated pages, and the set-up of a machine for quickstart and check. The set-up uses
the standard library only: nothing is installed before it.
"""
