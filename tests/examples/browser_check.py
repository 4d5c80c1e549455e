#!/usr/bin/env python3
"""The report of brigade demo in a real browser. browser_check.py BRIGADE; needs chromium, so `make check` runs it."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BRIGADE = sys.argv[1]
WALL = 240


class Report(unittest.TestCase):
    """A report that the demo makes with its defaults."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        subprocess.run([BRIGADE, "demo"], capture_output=True, timeout=WALL, cwd=cls.folder, check=True)

    def test_the_report_renders_in_a_browser_at_any_width(self):
        page = (self.folder / "out/demo/report.html").read_text()
        lines = page.count("<path class='line")
        self.assertGreater(lines, 40)
        ask = ("<script>console.log('measured', innerWidth, document.documentElement.scrollWidth,"
               " document.querySelectorAll('svg path.line').length)</script>")
        (self.folder / "page.html").write_text(page.replace("</body>", ask + "</body>"))
        # Frames are used because a browser's window has a least width.
        frames = "".join(f"<iframe src=page.html style='width:{width}px;height:1500px;border:0'></iframe>" for width in (400, 1400))
        (self.folder / "frames.html").write_text("<!doctype html><body>" + frames)
        shot = self.folder / "shot.png"
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr",
             f"--user-data-dir={self.folder}/profile", "--window-size=1900,1600", f"--screenshot={shot}", f"file://{self.folder}/frames.html"],
            capture_output=True, text=True, timeout=120, cwd=self.folder,
        )
        said = sorted(re.findall(r'CONSOLE.*?\] "(.*?)", source', done.stderr))
        self.assertEqual(len(said), 2, f"the page says more, or less, than it was asked: {said}\n{done.stderr}")
        for text, width in zip(said, (1400, 400)):
            self.assertEqual(text, f"measured {width} {width} {lines}", "the page is wider than its window, or lacks lines")
        self.assertGreater(shot.stat().st_size, 50_000, "the picture is all but empty")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
