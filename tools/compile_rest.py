#!/usr/bin/env python3
"""Goes over the sources that a build folder could compile and has not, for the warnings alone.

    tools/compile_rest.py BUILD

With clang that takes a tenth of the time, and is all that is wanted of programs that nobody runs in
that build. Fails when a source has a warning.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys


def command(entry):
    """As the build would call it, but nothing is written."""
    words, out = iter(shlex.split(entry["command"])), []
    for word in words:
        if word in ("-o", "-MF", "-MQ"):
            next(words)
        elif word != "-MD":
            out.append(word)
    return [*out, "-fsyntax-only"]


def check(entry):
    return subprocess.run(command(entry), cwd=entry["directory"], capture_output=True, text=True,
                          check=False)


def compiled(entry, headers):
    """Whether the build did it, since its source or any header changed."""
    folder = pathlib.Path(entry["directory"])
    out = folder / entry["output"]
    return out.exists() and out.stat().st_mtime > max(headers, (folder / entry["file"]).stat().st_mtime)


def main():
    build = pathlib.Path(sys.argv[1])
    root = pathlib.Path(__file__).resolve().parent.parent
    headers = max(p.stat().st_mtime for p in root.glob("*/**/*.h") if not p.parts[len(root.parts)].startswith("build"))
    entries = json.loads((build / "compile_commands.json").read_text())
    rest = [e for e in entries if not compiled(e, headers)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for entry, out in zip(rest, pool.map(check, rest)):
            if out.returncode or out.stderr:
                print(f"{entry['file']}:\n{out.stderr}")
                failed += 1
    print(f"{len(rest)} sources, {failed} with warnings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
