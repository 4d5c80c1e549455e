#!/usr/bin/env python3
"""Checks that libbrigade.so shows what public headers mark with BRIGADE_API and nothing else, and that they mark all that programs use.

symbols.py INCLUDE_FOLDER [LIBRARY]
"""
import pathlib
import re
import subprocess
import sys

COMMENT = re.compile(r"//[^\n]*")
# A symbol may tell these of a class or a function.
ABOUT = re.compile(r"^(?:(?:vtable|VTT|typeinfo|typeinfo name|guard variable) for |(?:non-virtual|virtual) thunk to )")
NO_FUNCTION = re.compile(r"^(template|using|enum|inline|constexpr|friend|static|concept|requires|namespace|extern)\b")


def statements(text):
    """Yields each statement of a header at namespace level, up to its ';' or its body, with its namespace."""
    text = re.sub(r"^\s*#.*(?:\\\n.*)*", "", COMMENT.sub("", text), flags=re.MULTILINE)
    spaces, depth, parens, begin = [], 0, 0, 0
    for at, sign in enumerate(text):
        parens += (sign == "(") - (sign == ")")
        if parens:
            continue
        if sign in "{;" and depth == 0:
            statement = " ".join(text[begin:at].split())
            named = re.match(r"namespace ([\w:]+)$", statement)
            begin = at + 1
            if sign == "{" and named:
                spaces.append(named[1])
                continue
            if statement:
                yield "::".join(spaces), statement, sign
        if sign == "{":
            depth += 1
        elif sign == "}" and depth:
            depth -= 1
            begin = at + 1
        elif sign == "}":
            spaces.pop()
            begin = at + 1


def declared(folder):
    """Returns the classes and functions that headers mark, by full name, and complaints about missing marks."""
    classes, functions, wrong = set(), set(), []
    for header in sorted(pathlib.Path(folder).rglob("*.h")):
        for space, statement, end in statements(header.read_text()):
            if not space.startswith("brigade") or statement.startswith(("template", "TORCH_MODULE(")):
                continue
            marked = "BRIGADE_API" in statement
            words = statement.replace("BRIGADE_API", "").replace("[[nodiscard]]", "")
            if found := re.match(r"(class|struct)\s+(\w+)", words):
                if marked:
                    classes.add(f"{space}::{found[2]}")
                elif end == "{" and found[1] == "class":
                    wrong.append(f"{header}: class {found[2]} is not marked with BRIGADE_API")
            elif end == ";" and not NO_FUNCTION.match(words) and (found := re.search(r"(operator\S+|\w+)\s*\(", words)):
                if "= delete" in words:
                    continue
                functions.add(f"{space}::{found[1]}")
                if not marked:
                    wrong.append(f"{header}: {found[1]}() is not marked with BRIGADE_API")
    return classes, functions, wrong


def shown(library):
    """Returns the names in namespace brigade that the library shows, without parameters."""
    said = subprocess.run(["nm", "-D", "--defined-only", "-C", library], capture_output=True, text=True, check=True).stdout
    for line in said.splitlines():
        name = ABOUT.sub("", line.split(" ", 2)[2])
        if name.startswith("brigade::"):
            yield re.split(r"\((?!anonymous)|\[abi", name)[0]


def check(include, library):
    classes, functions, wrong = declared(include)
    if library:
        seen = set(shown(library))
        for name in sorted(seen - functions):
            if not any(name == each or name.startswith(each + "::") for each in classes):
                wrong.append(f"{library} shows {name}, which no public header marks")
        wrong += [f"{library} lacks {name}, which a public header declares" for name in sorted(functions - seen)]
    return wrong


if __name__ == "__main__":
    complaints = check(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    print("\n".join(complaints) or "symbols: public headers and library agree")
    sys.exit(bool(complaints))
