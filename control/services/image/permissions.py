# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may do what with an image: Glance's default rules."""

from __future__ import annotations

from magnetar_control.services import Context, Document
from magnetar_core.errors import Forbidden


def owns(context: Context, image: Document) -> bool:
    """Whether the image is the project's; for admins all are."""
    return context.is_admin or (image["owner"] is not None and image["owner"] == context.project_id)


def check_writer(context: Context) -> None:
    """Raises ``Forbidden`` for a caller who may only read."""
    if not context.is_admin and "member" not in context.roles:
        raise Forbidden("You are not authorized to complete this action: it needs the role member.")


def check_owner(context: Context, image: Document) -> None:
    """Raises ``Forbidden`` for a caller who may see the image, but not change it."""
    check_writer(context)
    if not owns(context, image):
        raise Forbidden("You are not permitted to modify this image: it is another project's.")


def check_fields(context: Context, values: Document) -> None:
    """Raises ``Forbidden`` for values that only admins set."""
    if not context.is_admin and values.get("visibility") == "public":
        raise Forbidden("Only administrators make images public; share it, or make it a community image.")
    if not context.is_admin and values.get("owner", context.project_id) != context.project_id:
        raise Forbidden("Only administrators give images to other projects.")


def check_readable(context: Context, image: Document) -> None:
    """Raises ``Forbidden`` when the caller may not have the content."""
    if image["status"] == "deactivated" and not context.is_admin:
        raise Forbidden(f"Image {image['id']} is deactivated; an administrator may reactivate it.")
