# SPDX-License-Identifier: GPL-3.0-or-later
"""XML from Jinja2 templates: values are escaped, undefined ones raise an error, characters that XML forbids are
replaced."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from magnetar_agent.hardware.pci import pci_address_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The templates that come with the agent.
FOLDER = Path(__file__).resolve().parents[2] / "templates"
#: Namespace and schema number of Magnetar's metadata in a domain or network.
NAMESPACE = "https://magnetar.dev/xmlns/1"
SCHEMA = "1"

#: XML 1.0 cannot carry these characters, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_text(value: object) -> str:
    """Return *value* as a string in which U+FFFD replaces the characters that XML forbids."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", str(value))


def xml_line(value: object) -> str:
    """Return *value* as one line in which characters that XML forbids are replaced, for XML fields such as titles,
    where libvirt forbids line breaks."""
    return " ".join(xml_text(value).split())


@cache
def template_environment(folder: Path) -> Environment:
    """Return the Jinja2 environment for the templates in *folder*. Cached; later changes of the files have no effect.
    """
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined,
                              auto_reload=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters.update(xml_text=xml_text, xml_line=xml_line, pci_address=pci_address_attributes)
    return environment


def fill_template(name: str, values: Mapping[str, Any], folder: Path = FOLDER) -> str:
    """Render the Jinja2 template *name* with *values*, and return the text."""
    return template_environment(folder).get_template(name).render(namespace=NAMESPACE, schema=SCHEMA, **values)
