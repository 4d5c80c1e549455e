"""doxygen_xml.py FOLDER: changes Doxygen's XML in FOLDER to what a page should show.

A header's page shows its classes directly and not inside of a namespace, which every page would declare again. It shows no
nested class that is private, and not at every class which header it is in. Examples are C++; Doxygen's own colouring of them
drops blanks, so the filter asks for none.
"""
import pathlib
import re
import sys


def changed(text):
    text = re.sub(r"\s*<innernamespace [^>]*>.*?</innernamespace>", "", text)
    text = re.sub(r'\s*<innerclass [^>]*prot="private"[^>]*>.*?</innerclass>', "", text)
    text = re.sub(r"\s*<includes [^>]*>.*?</includes>", "", text)
    return text.replace('filename=".unparsed"', 'filename=".cpp"')


if __name__ == "__main__":
    for file in pathlib.Path(sys.argv[1]).glob("*.xml"):
        before = file.read_text(encoding="utf-8")
        if (after := changed(before)) != before:
            file.write_text(after, encoding="utf-8")
