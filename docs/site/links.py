"""links.py SITE: every link inside of the built site leads to a page and a place there that exist.

Links to elsewhere are not followed.
"""
import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    def __init__(self, file):
        super().__init__()
        self.places, self.links = set(), []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.places.add(value)
            elif name in ("href", "src") and value is not None:
                self.links.append(value)


def complaints(site):
    """One line for each link that leads nowhere."""
    pages = {file: Page(file) for file in sorted(site.rglob("*.html"))}
    for file, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else file
            if target.is_dir():
                target = target / "index.html"
            where = f"{file.relative_to(site)}: {link}"
            if not target.exists():
                yield f"{where} leads to no file"
            elif parts.fragment and target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].places:
                yield f"{where} leads to no place on that page"


def main():
    site = pathlib.Path(sys.argv[1]).resolve()
    found = list(complaints(site))
    print("\n".join(found) if found else "links: all that stay in the site lead somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
