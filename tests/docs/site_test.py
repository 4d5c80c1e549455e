#!/usr/bin/env python3
"""Tests the parts of `make docs`: comments become Doxygen's, links between pages work, broken links are found."""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs/site"))
import doxygen_filter
import doxygen_xml
import links
import pages


class Filter(unittest.TestCase):
    def test_a_comment_before_a_declaration_documents_it(self):
        made = doxygen_filter.filtered("#pragma once\n  // Sums.\n  int f();\n")
        self.assertEqual(made, "#pragma once\n  /// Sums.\n  int f();\n")

    def test_a_comment_behind_a_declaration_documents_it(self):
        self.assertEqual(doxygen_filter.filtered("  int f();  // sums\n"), "  int f();  ///< sums\n")

    def test_the_end_of_a_namespace_is_no_documentation(self):
        self.assertEqual(doxygen_filter.filtered("}  // namespace brigade\n"), "}  // namespace brigade\n")

    def test_a_banner_is_no_documentation(self):
        self.assertEqual(doxygen_filter.filtered("int a;\n// ---- speed ----\n"), "int a;\n// ---- speed ----\n")

    def test_the_comment_on_top_is_the_files(self):
        self.assertEqual(doxygen_filter.filtered("// What it is.\n#pragma once\n"), "/// @file\n/// What it is.\n#pragma once\n")

    def test_the_licence_is_no_documentation(self):
        made = doxygen_filter.filtered("// SPDX-License-Identifier: BSD-3-Clause\n// What it is.\n#pragma once\n")
        self.assertEqual(made, "/// @file\n/// What it is.\n#pragma once\n")

    def test_what_doxygen_takes_for_commands_is_text(self):
        self.assertEqual(doxygen_filter.escaped("a < b, `c < d` @ \\n"), "a \\< b, `c < d` \\@ \\\\n")

    def test_indented_lines_after_an_empty_one_are_an_example(self):
        made = list(doxygen_filter.documented([" Use:", "", "   f(a<b>);", "", "     g();", "", " Then."]))
        self.assertEqual(made, ["Use:", "", "@code{.unparsed}", "f(a<b>);", "", "  g();", "@endcode", "", "Then."])

    def test_a_line_indented_further_in_a_list_is_no_example(self):
        self.assertNotIn("@code{.unparsed}", list(doxygen_filter.documented([" values  those that", "   are sent"])))


class Xml(unittest.TestCase):
    def test_private_classes_and_namespaces_are_not_shown(self):
        text = '<a><innernamespace refid="n">x</innernamespace><innerclass refid="c" prot="private">y</innerclass>' \
               '<innerclass refid="d" prot="public">z</innerclass></a>'
        self.assertEqual(doxygen_xml.changed(text), '<a><innerclass refid="d" prot="public">z</innerclass></a>')


class Pages(unittest.TestCase):
    def layout(self, files):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return pages.Layout(root, root / "site")

    def test_links_follow_the_pages(self):
        files = ["README.md", "docs/a.md", "include/brigade/hooks/x.h", "examples/e.cpp", "src/base/README.md"]
        layout = self.layout({name: "" for name in files})
        text = "[1](docs/a.md#b) [2](include/brigade/hooks/x.h) [3](examples/e.cpp) [4](src/base) [5](https://x.org/y)"
        self.assertEqual(
            layout.with_links("README.md", text),
            "[1](docs/a.md#b) [2](api/hooks/x.md) [3](files/examples/e.cpp.md) [4](src/base/README.md) [5](https://x.org/y)",
        )
        self.assertEqual(layout.with_links("docs/a.md", "[1](../README.md) [2](a.md)"), "[1](../index.md) [2](a.md)")

    def test_code_is_left_alone(self):
        code = "```cpp\n[](int) {}\n[a](b.md)\n```"
        self.assertEqual(self.layout({"README.md": ""}).with_links("README.md", code), code)

    def test_a_link_to_nothing_is_an_error(self):
        with self.assertRaisesRegex(SystemExit, "leads to nothing"):
            self.layout({"README.md": ""}).with_links("README.md", "[1](docs/none.md)")

    def test_every_page_of_docs_is_in_the_contents(self):
        pages.front_page_trees(pages.Layout(ROOT, ROOT))
        layout = self.layout({f"docs/{name}.md": "" for names in pages.SECTIONS.values() for name in names} | {"docs/new.md": ""})
        with self.assertRaisesRegex(SystemExit, "docs/new.md"):
            pages.front_page_trees(layout)


class Links(unittest.TestCase):
    def complaints(self, **files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                (pathlib.Path(folder) / f"{name}.html").write_text(text)
            return list(links.complaints(pathlib.Path(folder).resolve()))

    def test_a_link_to_no_file_and_to_no_place_is_named(self):
        found = self.complaints(a='<a href="c.html"></a><a href="b.html#x"></a><img src="d.png">', b='<p id="y">')
        self.assertEqual([line.split(" leads")[0] for line in found], ["a.html: c.html", "a.html: b.html#x", "a.html: d.png"])

    def test_links_that_lead_somewhere_are_fine(self):
        links_of_a = '<a href="b.html#y"></a><a href="#z" id="z"></a><a href="https://x.org"></a>'
        self.assertEqual(self.complaints(a=links_of_a, b='<p id="y">'), [])


if __name__ == "__main__":
    unittest.main()
