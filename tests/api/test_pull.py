"""conifer pull: whole files, what is cut off and goes on, two at once, no room."""
import hashlib
import json
import os
import select
import signal
import threading
import time

import pytest
from conftest import until
from hub import gguf
from pulling import NAME, check, conifer, home, hub, left, pull, start


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

    hub.once(hub.stall(150000))
    assert "no bytes for 1 seconds" in pull(source, "--stall", "1")
    check(home, "m.gguf", data)
    assert hub.ranges()[1] == "bytes=150000-"


def test_stalls_for_ever(hub, home):
    data = gguf(1000)
    source = hub.add(NAME, "m.gguf", data)
    hub.rules.append(lambda h, r: h.closed.wait(600))
    assert "no bytes" in pull(source, "--stall", "1", "--retries", "1", want=1)
    assert left(home) == []


def test_kill_and_go_on(hub, home):
    data = gguf(3000000)
    source = hub.add(NAME, "m.gguf", data)

    def slow(h, r):
        begin = r.range() or 0
        r.head(200 if not begin else 206, ETag=h.etag(r.path), Content_Length=len(data) - begin,
               Content_Range=f"bytes {begin}-{len(data) - 1}/{len(data)}" if begin else None)
        for i in range(begin, begin + 400000, 50000):
            r.wfile.write(data[i:i + 50000])
        h.closed.wait(600)
        return True
    hub.once(slow, times=2)
    for _ in range(2):
        p = start("pull", source)
        part = home / "m.gguf.part"
        before = part.stat().st_size if part.exists() else 0
        until(lambda: part.exists() and part.stat().st_size >= before + 300000)
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

    hub.once(hub.stall(150000))
    p = start("pull", source)
    part = home / "m.gguf.part"
    until(lambda: part.exists() and part.stat().st_size == 150000)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 130 and "the same command resumes it" in err
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


# ---- two at once, no room --------------------------------------------------------------------------

def test_two_at_once(hub, home):
    data = gguf(600000)
    source = hub.add(NAME, "m.gguf", data)

    both_there = threading.Event()

    def slow(h, r):
        r.head(200, ETag=h.etag(r.path), Content_Length=len(data))
        r.wfile.write(data[:60000])
        both_there.wait(60)
        r.wfile.write(data[60000:])
        return True
    hub.once(slow)
    both = [start("pull", source) for _ in range(2)]
    said = ["", ""]

    def waits():
        for i, p in enumerate(both):
            if select.select([p.stderr], [], [], 0)[0]:
                said[i] += os.read(p.stderr.fileno(), 65536).decode()
        return "waiting" in said[0] + said[1]
    until(waits)
    both_there.set()
    outs = [(out, before + err) for before, (out, err) in zip(said, [p.communicate(timeout=60) for p in both])]
    assert [p.returncode for p in both] == [0, 0], outs
    assert sorted("waiting" in e for _, e in outs) == [False, True]
    assert any("there already" in e for _, e in outs)
    check(home, "m.gguf", data)
    assert len(hub.seen) == 1


def test_first_of_two_dies(hub, home):
    data = gguf(600000)
    source = hub.add(NAME, "m.gguf", data)

    hub.once(hub.stall(200000))
    first = start("pull", source)
    until(lambda: (home / "m.gguf.part").exists())
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
    assert "large" in out and "resumes it once there is space" in out
    assert 0 < (home / "m.gguf.part").stat().st_size <= 250000
    pull(source)
    check(home, "m.gguf", data)
    assert hub.ranges()[1] is not None
