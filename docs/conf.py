"""How the docs are built: `sphinx-build -W -b html docs docs/_build`."""

project = "polymux"
author = "The polymux developers"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "polymux"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_show_copyright = False
highlight_language = "text"
