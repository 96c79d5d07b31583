# Configuration of Sphinx; `make docs` builds with warnings as errors.
import ignite_ipu

project = "ignite-ipu"
author = "the ignite-ipu authors"
project_copyright = "2026, the ignite-ipu authors"
version = release = ignite_ipu.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["output.css"]
html_title = f"ignite-ipu {version}"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "description"
# A longer signature has one argument a line.
maximum_signature_line_length = 76
# A dataclass lists its attributes in its docstring, and autodoc finds them a second time.
napoleon_use_ivar = True
autodoc_member_order = "bysource"
# Docstrings write names in single backquotes, as Markdown does.
default_role = "code"
