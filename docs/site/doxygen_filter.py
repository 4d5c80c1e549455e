"""doxygen_filter.py HEADER: the header with its plain comments made into Doxygen's, on standard output.

Headers are written for those who open them, so their comments are `//`. Doxygen reads `///` only, and takes some characters
for commands. Here a comment before a declaration becomes `///`, one behind it `///<`, and the one on top of the file becomes
the file's, without the line that names the licence; indented lines after an empty one become an example.
"""
import re
import sys

COMMENT = re.compile(r"^(\s*)//(?!/)(.*)$")
TRAILING = re.compile(r"^(.*[;,{)\w]\s*)//(?!/)\s?(.*)$")
BANNER = re.compile(r"^\s*--")
LICENCE = "// SPDX-License-Identifier: BSD-3-Clause\n"
COMMANDS = re.compile(r'[\\@<>#%&$"]')


def escaped(text):
    """Without commands, tags and links; what is in backticks stays."""
    parts = text.split("`")
    return "`".join(part if index % 2 else COMMANDS.sub(r"\\\g<0>", part) for index, part in enumerate(parts))


def documented(texts):
    """The lines of one comment, without the slashes, as lines of Doxygen's."""
    code = False
    for position, text in enumerate(texts):
        following = next((later for later in texts[position:] if later.strip()), "")
        if not code and text.startswith("   ") and (position == 0 or not texts[position - 1].strip()):
            code = True
            yield "@code{.unparsed}"
        elif code and not following.startswith("   "):
            code = False
            yield "@endcode"
        yield text[3:].replace("…", "...") if code else escaped(text.strip())
    if code:
        yield "@endcode"


def filtered(source):
    made, texts, indent = [], [], ""

    def flush():
        made.extend(f"{indent}/// {text}" for text in documented(texts))
        texts.clear()

    if source.startswith("//"):
        made.append("/// @file")
    for line in source.removeprefix(LICENCE).splitlines():
        comment = COMMENT.match(line)
        if comment and not BANNER.match(comment[2]):
            indent = comment[1]
            texts.append(comment[2])
            continue
        flush()
        if not comment and (trailing := TRAILING.match(line)):
            line = f"{trailing[1]}///< {escaped(trailing[2])}"
        made.append(line)
    flush()
    return "\n".join(made) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as header:
        sys.stdout.write(filtered(header.read()))
