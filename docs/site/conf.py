"""Sphinx's settings; scripts/docs calls it on the pages that docs/site/pages.py lays out."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

project = "Brigade"
author = "The Brigade authors"
copyright = author
version = release = re.search(r"project\(brigade VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]

extensions = ["myst_parser", "breathe"]
myst_heading_anchors = 4
breathe_projects = {"brigade": str(ROOT / "build/docs/xml")}
breathe_default_project = "brigade"
breathe_default_members = ("members", "undoc-members")
primary_domain = "cpp"
highlight_language = "text"

html_theme = "furo"
html_title = f"Brigade {release}"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
