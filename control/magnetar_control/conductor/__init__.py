# SPDX-License-Identifier: GPL-3.0-or-later
"""Does what the action table asks for: takes actions by lease, converges servers on their hosts, runs flows."""
