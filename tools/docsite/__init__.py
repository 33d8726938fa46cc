# SPDX-License-Identifier: GPL-3.0-or-later
"""The documentation site: `python -m tools.docsite` builds it in `.cache/site`, without a network."""
