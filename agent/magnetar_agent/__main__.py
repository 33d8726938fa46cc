# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m magnetar_agent`` is the command ``magnetar``."""

import sys

from .cli import main

sys.exit(main())
