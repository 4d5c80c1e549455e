"""``python -m brigade ARGUMENTS`` runs the brigade program, which comes with the package."""

from __future__ import annotations

import os
import pathlib
import sys


def main() -> None:
    program = pathlib.Path(__file__).parent / "bin" / "brigade"
    if not program.exists():
        sys.exit("brigade: this package was built without the program; CLI11 (Debian: libcli11-dev) must be there "
                 "when 'pip install .' runs")
    os.execv(program, ["brigade", *sys.argv[1:]])


if __name__ == "__main__":
    main()
