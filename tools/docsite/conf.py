# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of Sphinx for the documentation site; `tools.docsite` passes the folder of pages."""

project = "Magnetar"
author = copyright = "Magnetar contributors"
html_title = "Magnetar"
extensions = ["myst_parser", "sphinx_antsibull_ext", "tools.docsite.menu"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["downloads"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
#: Quotes stay as they are written: most stand in code, and the transform takes an eighth of the time.
smartquotes = False
#: antsibull-docs refers to labels of Ansible's own documentation. `links.py` checks the links of the finished site.
suppress_warnings = ["ref.ref"]
#: Anchors of headings are those of a public forge, so links of pages hold there and here.
myst_heading_anchors = 6
antsibull_ext_color_scheme = "default-autodark"
pygments_style, pygments_dark_style = "default", "github-dark"
