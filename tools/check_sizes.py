#!/usr/bin/env python3
"""Checks that no file has more than 600 lines, no function more than 80, that no file is named by a
number that only tells parts apart (methods.c, methods2.c: name them by what they hold), and that no
function of the product is written twice.

Product, tests and tools; not documents and data. Prints one line per finding and exits with 1 when
there is any."""
import ast
import pathlib
import re
import sys

from check_layers import ROOT, SOURCES, strip_code, tracked

FILE_LINES = 600
FUNCTION_LINES = 80
TWIN_LINES = 3  # bodies with fewer lines may be equal
CODE = SOURCES | {".def", ".py", ".sh", ".build"}
# Words that end in a number and are names of their own; so are the families of engine/arch_list.def.
NAMES = {"avx2", "avx512", "utf8", "aarch64", "sm80", "sm90", "sm100"}


def is_code(path):
    """Sources, and scripts without an ending."""
    if path.parts[0] in ("docs", "subprojects"):
        return False
    if path.suffix:
        return path.suffix in CODE
    with open(ROOT / path, "rb") as f:
        return f.read(2) == b"#!"


def braced(code):
    """(name, first line, lines) of each function of C or shell: its body's { ends a line that
    begins in column 0, and } is in column 0 again."""
    lines = code.splitlines()
    for start, line in enumerate(lines):
        if line != "{" and not re.match(r"\w.*\)\s*\{$", line):
            continue
        head = " ".join(lines[max(0, start - 4):start + 1])
        names = re.findall(r"(\w+)\s*\(", head)
        for end in range(start + 1, len(lines)):
            if lines[end].startswith("}"):
                yield names[-1] if names else "?", start + 1, end - start + 1
                break


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def functions(path, text):
    if path.suffix == ".py" or text.startswith("#!/usr/bin/env python"):
        return python_functions(text)
    if path.suffix in SOURCES:
        return braced(strip_code(text))
    return braced(text)


def families():
    table = ROOT / "engine/arch_list.def"
    text = table.read_text(encoding="utf-8") if table.exists() else ""
    return set(re.findall(r"^ARCH\((\w+)", text, re.M))


def numbered(path, names):
    """Whether a number ends the file's name that is no part of a word."""
    stem = path.name.split(".")[0]
    return (re.search(r"\d$", stem) is not None and stem not in names
            and re.split(r"[_-]", stem)[-1] not in names)


def twins(path, text, bodies):
    """Functions of the product whose body another one has. bodies: body -> where it was first seen."""
    if path.suffix not in SOURCES or path.parts[0] in ("tests", "loadtest"):
        return
    lines = strip_code(text).splitlines()
    for name, line, n in braced("\n".join(lines)):
        body = tuple(s.strip() for s in lines[line:line + n - 2] if s.strip())
        where = f"{path}:{line}: {name}"
        if len(body) >= TWIN_LINES and bodies.setdefault(body, where) != where:
            yield f"{where} has the body of {bodies[body]}: one of them can serve both"


def main():
    found = []
    bodies = {}
    names = NAMES | families()
    count = 0
    for path in tracked():
        if not is_code(path):
            continue
        count += 1
        text = (ROOT / path).read_text(encoding="utf-8")
        lines = text.count("\n")
        if lines > FILE_LINES:
            found.append(f"{path}: {lines} lines (at most {FILE_LINES})")
        if numbered(path, names):
            found.append(f"{path}: a number is no name for a part: name it by what it holds")
        found += [f"{path}:{line}: {name} has {n} lines (at most {FUNCTION_LINES})"
                  for name, line, n in functions(path, text) if n > FUNCTION_LINES]
        found += twins(path, text, bodies)
    for line in found:
        print(line)
    print(f"{count} files, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
