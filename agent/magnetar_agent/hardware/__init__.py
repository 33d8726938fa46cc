# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server's ``hardware`` is in its domain: a file for each part of the machine, with pure functions from the
fields (``core.hardware.rows``) to what ``templates/domain.xml.j2`` fills in. A field that is left out has its usual
value there."""
