#!/usr/bin/env python3
"""Checks the rules between folders and the conventions that a compiler does not check.

usage: tools/check_layers.py [--build DIR]

  includes   a folder includes only the folders below it, by their public header, root-relative;
             libraries stay in the folder they belong to; a source includes its own header first
  leaks      nor does it get any other folder's header through the headers that it includes
  devices    a device's folder below kernels/ includes of kernels only what all devices share;
             CUDA and Metal, their sources and headers, are in kernels/cuda and kernels/metal
  symbols    with --build: what a folder's library exports carries the folder's prefix
  words      no banned function, no marks of unfinished work, no global flags that change results

Prints one line per finding and exits with 1 when a rule is broken.
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# folder -> the folders it may include besides itself and base
MAY = {
    "base": [],
    "config": [],
    "kvpool": [],
    "kernels": [],
    "engine/text": [],
    "engine": ["kernels", "engine/text"],
    "scheduler": ["kvpool"],
    "runtime": ["scheduler", "engine", "engine/text", "kvpool", "kernels", "config"],
    "server": ["runtime", "engine/text", "config"],
    "cli": ["server", "runtime", "scheduler", "engine", "engine/text", "kvpool", "kernels", "config"],
    "loadtest": [],  # a client: what it measures is not to be linked into it
}
PREFIX = {"base": "cn_", "config": "cfg_", "kvpool": "kv_", "kernels": "kr_", "engine": "eng_",
          "engine/text": "eng_", "scheduler": "sch_", "runtime": "rt_", "server": "srv_",
          "cli": "cli_", "loadtest": "lt_"}
# Sources in the languages of a device are in its folder.
ENDINGS = {".cu": "kernels/cuda", ".cuh": "kernels/cuda", ".metal": "kernels/metal", ".m": "kernels/metal"}
INCLUDE = re.compile(r'\s*#\s*(?:include|import)\s*([<"])([^>"]+)[>"]')
# header pattern -> the only folders that may include it
LIBRARIES = {
    r"curl/|histedit\.h": ["cli"],
    r"minizip/": ["cli"],
    r"uv\.h|uv/|llhttp\.h": ["server", "loadtest"],
    r"sqlite3\.h": ["server"],
    r"openssl/": ["server", "cli"],
    r"yaml\.h": ["config", "loadtest"],
    r"pcre2\.h|utf8proc\.h": ["engine/text"],
    r"jansson\.h": ["engine/text", "server", "cli", "loadtest"],
    r"systemd/": ["server", "cli"],
    r"jemalloc/": ["cli"],
    r"cuda.*|cublas.*|nccl.*|mma\.h": ["kernels/cuda"],
    r"metal_.*|(simd|Metal|Foundation)/": ["kernels/metal"],
}
# tests of a folder may use what it may use; those not named here may use everything
TESTED = {"text": "engine/text"}
BANNED = {"strcpy", "strcat", "sprintf", "vsprintf", "gets", "strtok", "tmpnam", "mktemp", "alloca",
          "atoi", "atol", "atof"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\bfor now\b", re.IGNORECASE)
SOURCES = {".c", ".h", ".cu", ".cuh", ".m", ".metal", ".inc"}
OWN_FIRST = {".c", ".cu", ".m"}

problems = []


def bad(path, line, text):
    problems.append(f"{path}:{line}: {text}" if line else f"{path}: {text}")


def tracked():
    """Files of the repository, new ones included; every file where git is absent."""
    git = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT,
                         capture_output=True, text=True, check=False)
    if git.returncode == 0:
        names = git.stdout.splitlines()
    else:
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")
                 if p.is_file() and not p.relative_to(ROOT).parts[0].startswith(("build", "subp"))]
    return [pathlib.PurePath(n) for n in names if (ROOT / n).is_file()]


def folder_of(path):
    """The layer a path belongs to, or None."""
    if path.parts[:2] == ("engine", "text"):
        return "engine/text"
    return path.parts[0] if path.parts[0] in MAY else None


def strip_code(text):
    """The text with comments and the insides of literals blanked, lines kept."""
    def blank(m):
        s = m[0]
        if s[0] in "\"'":
            return s[0] + " " * (len(s) - 2) + s[-1]
        return re.sub(r"[^\n]", " ", s)
    pattern = r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    return re.sub(pattern, blank, text, flags=re.S)


def allowed_for(path):
    """(layer, layers that may be included) for a source file; (None, None) = no limit."""
    if path.parts[0] == "tests" and len(path.parts) > 2:
        layer = TESTED.get(path.parts[1], path.parts[1])
        if layer in MAY:
            return layer, {layer, "base", *below(layer)}
        return None, None
    layer = folder_of(path)
    if layer is None:
        return None, None
    return layer, {layer, "base", *MAY[layer]}


def below(layer):
    """Everything that a folder may reach, through others too (tests may build fixtures of it)."""
    out = set()
    todo = list(MAY[layer])
    while todo:
        at = todo.pop()
        if at not in out:
            out.add(at)
            todo += MAY[at]
    return out


def device_of(path):
    """The device's folder that a path is in, or None. Every folder in kernels/ is a device's; the others
    know the device by kernels.h and device.h alone."""
    return "/".join(path.parts[:2]) if path.parts[0] == "kernels" and len(path.parts) > 2 else None


def check_include(path, number, name, layer, allowed):
    target = pathlib.PurePath(name)
    if len(target.parts) < 2:
        if path.parts[0] != "tests":
            bad(path, number, f'"{name}": includes are root-relative')
        return
    if name.startswith("."):
        bad(path, number, f'"{name}": includes are root-relative')
        return
    to = folder_of(target)
    if device_of(target) not in (None, device_of(path)) and path.parts[0] != "tests":
        bad(path, number, f'"{name}": only {device_of(target)} may include it')
        return
    if to is None:
        if target.parts[0] == "tests" and path.parts[0] != "tests":
            bad(path, number, f'"{name}": only tests include tests')
        return
    if allowed is not None and to not in allowed:
        bad(path, number, f'"{name}": {layer} may not include {to}')
    elif to != layer and layer is not None and path.parts[0] != "tests":
        public = f"{to}/{to.rsplit('/', 1)[-1]}.h"
        if name != public and target.suffix != ".def":
            bad(path, number, f'"{name}": other folders include {public} only')


def check_library(path, number, name, layer):
    if path.parts[0] == "tests" or layer is None:
        return
    for pattern, owners in LIBRARIES.items():
        inside = [o for o in owners if o == layer or str(path).startswith(o + "/")]
        if re.match(pattern, name) and not inside:
            bad(path, number, f"<{name}> belongs to {' and '.join(owners)}")


def check_source(path, text):
    layer, allowed = allowed_for(path)
    lines = text.splitlines()
    first = None
    for number, line in enumerate(lines, 1):
        m = INCLUDE.match(line)
        if not m:
            continue
        first = first or (number, m[1], m[2])
        if m[1] == '"':
            check_include(path, number, m[2], layer, allowed)
        else:
            check_library(path, number, m[2], layer)
    home = ENDINGS.get(path.suffix)
    if home and path.parts[0] != "tests" and not str(path).startswith(home + "/"):
        bad(path, 0, f"{path.suffix} files belong in {home}")
    if path.suffix in OWN_FIRST and first and path.parts[0] != "tests" and layer:
        own = pathlib.PurePath(first[2])
        if first[1] == "<" or folder_of(own) != layer:
            bad(path, first[0], "the folder's own header comes first")
    code = strip_code(text)
    for number, line in enumerate(code.splitlines(), 1):
        for m in re.finditer(r"\b(\w+)\s*\(", line):
            if m[1] in BANNED and path.parts[0] != "tests":
                bad(path, number, f"{m[1]} is banned")
        if path.suffix == ".h" and re.match(r"\s*typedef\s+(struct|union|enum)\b[^(]*$", line):
            bad(path, number, "structs, unions and enums are not typedef'd")
    for number, line in enumerate(lines, 1):
        if UNFINISHED.search(line):
            bad(path, number, "a mark of unfinished work")


def check_meson(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for flag in ("-march=native", "-mtune=native", "-ffast-math", "-Ofast"):
            if flag in line:
                bad(path, number, f"{flag} makes results depend on the machine that built them")


def check_leaks(texts):
    """A header hands on what it includes: nobody gets another folder's header that way whom the
    rules keep from including it. One finding for each header that hands on, what, and to whom."""
    includes = {}
    for path, text in texts.items():
        found = [(number, INCLUDE.match(line)) for number, line in enumerate(text.splitlines(), 1)]
        includes[path] = [(number, pathlib.PurePath(m[2])) for number, m in found if m and m[1] == '"']
    told = set()
    for path in texts:
        layer, allowed = allowed_for(path)
        if allowed is None:
            continue
        seen = {path}
        todo = [target for _, target in includes[path]]
        while todo:
            header = todo.pop()
            if header in seen or header not in includes or folder_of(header) not in allowed:
                continue  # one that must not be included itself is check_include's to tell
            seen.add(header)
            for number, target in includes[header]:
                to = folder_of(target)
                if to is None or to in allowed:
                    todo.append(target)
                elif (header, target, layer) not in told:
                    told.add((header, target, layer))
                    bad(header, number, f'"{target}" reaches {path}, and {layer} may not see {to}')


def check_symbols(build):
    """Exported symbols of each folder's static libraries begin with the folder's prefix."""
    found = 0
    for lib in sorted(build.rglob("*.a")):
        path = lib.relative_to(build)
        layer = folder_of(path)
        if layer is None:
            continue
        out = subprocess.run(["nm", "-g", "--defined-only", str(lib)], capture_output=True, text=True,
                             check=False).stdout
        for line in out.splitlines():
            parts = line.split()
            if len(parts) != 3 or parts[1] not in "TDBRCVWiu":
                continue
            name = parts[2].lstrip("_") if sys.platform == "darwin" else parts[2]
            if name.startswith(("__asan", "__odr_asan", "__sancov", "__ubsan", "__sanitizer",
                                "__stub", "DW.ref", "__x86", "__start", "__stop", "__emutls")):
                continue
            found += 1
            if not name.startswith(PREFIX[layer]):
                bad(path, 0, f"exports {name}, which lacks the prefix {PREFIX[layer]}")
    if not found:
        bad(build, 0, "no libraries with symbols here: build first")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, help="build folder, to check symbols in")
    args = parser.parse_args()
    texts = {}
    for path in tracked():
        if path.parts[0] in ("subprojects", "docs"):
            continue
        if path.suffix in SOURCES:
            texts[path] = (ROOT / path).read_text(encoding="utf-8")
            check_source(path, texts[path])
        elif path.name == "meson.build":
            check_meson(path, (ROOT / path).read_text(encoding="utf-8"))
    check_leaks(texts)
    if args.build:
        check_symbols(args.build)
    for line in problems:
        print(line)
    print(f"{len(texts)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
