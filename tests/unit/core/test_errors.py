# SPDX-License-Identifier: GPL-3.0-or-later
"""What callers are told of errors."""

import errno

import pytest

from magnetar_core.errors import mask_unforeseen_error


@pytest.mark.parametrize(("error", "code"), [
    (OSError(errno.ENOSPC, "No space left on device"), "no-space"), (OSError(errno.EDQUOT, "Quota"), "no-space"),
    (OSError(errno.EIO, "secret"), "internal"), (ValueError("secret"), "internal")])
def test_a_full_disk_is_named_and_nothing_else_that_nobody_foresaw(error, code):
    told = mask_unforeseen_error(error)
    assert told.code == code and "secret" not in str(told)
