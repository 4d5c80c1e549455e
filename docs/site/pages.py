"""pages.py TARGET: lays out the sources of the site in the folder TARGET, for Sphinx.

The Markdown files keep their places, README.md becomes the front page, and every public header gets a page. Links that lead
to other files of the project lead to a page that shows them.
"""
import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOP = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
TABLES = ["bench/study/RESULTS.md", "tests/faults/TABLE.md"]  # written by programs
LINK = re.compile(r"(?P<before>\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?P<after>\))")
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".cu": "cpp", ".py": "python", ".json": "json", ".cmake": "cmake"}
# Of a header's contents, in this order; what is private is not for its readers.
PUBLIC_SECTIONS = (
    "briefdescription detaileddescription innerclass typedef enum define var func public-type public-func public-static-func "
    "public-attrib public-static-attrib protected-type protected-func protected-attrib"
)

# The pages beside the front page, by what a reader wants; each page of docs/ stands in one of these.
SECTIONS = {
    "Start": ["README", "getting_started", "coming_from", "launching", "command", "troubleshooting"],
    "Hooks": ["choosing_a_hook", "hooks", "writing_a_hook"],
    "Training": ["optimizers", "zero", "local_sgd", "checkpoints", "elastic"],
    "Python": ["python"],
    "Measured": ["benchmarks", "study", "faults", "comparison"],
    "Inside": ["architecture", "words", "facts"],
}


def markdown_files(root):
    yield from (name for name in [*TOP, *TABLES] if (root / name).exists())
    for pattern in ("docs/*.md", "src/*/README.md", "tools/*/README.md", "tests/*/README.md", "examples/*/README.md", "data/README.md"):
        yield from (path.relative_to(root).as_posix() for path in sorted(root.glob(pattern)))


def headers(root):
    """By name."""
    return sorted(path.relative_to(root / "include/brigade") for path in (root / "include/brigade").rglob("*.h"))


def page_of_header(path):
    """include/brigade/hooks.h has the page api/hooks.md."""
    return "api/" + path.removeprefix("include/brigade/").removesuffix(".h") + ".md"


class Layout:
    def __init__(self, root, target):
        self.root, self.target = root, target
        self.pages = {*markdown_files(root), *(name for name in TABLES if (root / name).exists())}
        self.shown = set()  # files that get a page because something links to them

    def place(self, path):
        """Where on the site the file or folder `path` of the project is shown; None: nowhere."""
        if path == "README.md":
            return "index.md"
        if path in self.pages or path.startswith("docs/images/"):
            return path
        if path.startswith("include/brigade/") and path.endswith(".h"):
            return page_of_header(path)
        file = self.root / path
        if file.is_dir():
            # A folder is shown by its README, or by that of the folder it is in.
            readme = os.path.normpath(f"{path}/README.md")
            return self.place(readme if readme in self.pages else os.path.dirname(path) or "README.md")
        if not file.is_file():
            return None
        self.shown.add(path)
        return f"files/{path}.md"

    def with_links(self, page, text):
        here = os.path.dirname(page)

        def replaced(found):
            path = os.path.normpath(os.path.join(here, found["path"]))
            place = self.place(path)
            if place is None:
                raise SystemExit(f"{page}: the link to {found['path']} leads to nothing that the site shows")
            from_folder = os.path.dirname(self.place(page))
            return f"{found['before']}{os.path.relpath(place, from_folder or '.')}{found['anchor'] or ''}{found['after']}"

        # Not in blocks of code: every second part is one.
        parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
        return "".join(part if index % 2 else LINK.sub(replaced, part) for index, part in enumerate(parts))

    def write(self, place, text):
        file = self.target / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def toctree(caption, entries):
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(entries) + "\n```\n"


def front_page_trees(layout):
    listed = {f"docs/{name}.md" for names in SECTIONS.values() for name in names}
    missing = sorted({page for page in layout.pages if page.startswith("docs/")} ^ listed)
    if missing:
        raise SystemExit(f"docs/site/pages.py: SECTIONS and docs/ differ in {', '.join(missing)}")
    text = "".join(toctree(section, [f"docs/{name}" for name in names]) for section, names in SECTIONS.items())
    text += toctree("Tables", [page.removesuffix(".md") for page in TABLES if page in layout.pages])
    text += toctree("Reference", ["api/index"])
    return text + toctree("Project", [page.removesuffix(".md") for page in TOP[1:] if page in layout.pages] + ["folders"])


def write_headers(layout):
    rows = []
    for header in headers(layout.root):
        name = header.as_posix()
        spaces = re.findall(r"^namespace (brigade[\w:]*) {", (layout.root / "include/brigade" / header).read_text(), re.MULTILINE)
        layout.write(
            page_of_header(name),
            f"# {name}\n\n```{{highlight}} cpp\n```\n\n```cpp\n#include <brigade/{name}>\n```\n\n"
            + (f"In namespace `{max(spaces, key=len)}`.\n\n" if spaces else "")
            + f"```{{doxygenfile}} {header.name}\n:sections: {PUBLIC_SECTIONS}\n```\n",
        )
        rows.append(name.removesuffix(".h"))
    layout.write(
        "api/index.md",
        "# The headers\n\nAll that a program may include, and exactly what is installed. Start with "
        "[distributed_data_parallel.h](distributed_data_parallel.md).\n\n"
        "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(rows) + "\n```\n",
    )


def write_folders(layout):
    folders = sorted(page.removesuffix(".md") for page in layout.pages if page.endswith("/README.md") and not page.startswith("docs/"))
    layout.write(
        "folders.md",
        "# The folders\n\nWhat lives in each folder of the project, for those who change it.\n\n"
        "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(folders) + "\n```\n",
    )


def write_shown_files(layout):
    for path in sorted(layout.shown):
        language = LANGUAGES.get(pathlib.PurePosixPath(path).suffix, "text")
        text = (layout.root / path).read_text(encoding="utf-8").rstrip("\n")
        fence = "`" * (3 + max((len(ticks) for ticks in re.findall("`{3,}", text)), default=0))
        layout.write(f"files/{path}.md", f"---\norphan: true\n---\n\n# {path}\n\n{fence}{language}\n{text}\n{fence}\n")


def lay_out(root, target):
    layout = Layout(root, target)
    for page in sorted(layout.pages):
        text = layout.with_links(page, (root / page).read_text(encoding="utf-8"))
        layout.write(layout.place(page), text + (front_page_trees(layout) if page == "README.md" else ""))
    shutil.copytree(root / "docs/images", target / "docs/images", dirs_exist_ok=True)
    write_headers(layout)
    write_folders(layout)
    write_shown_files(layout)


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    lay_out(ROOT, folder)
