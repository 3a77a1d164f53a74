"""nginx in front, with nothing but proxy_pass: HTTP/1.0 upstream, buffering on, 60 s time-outs."""
import json
import shutil
import socket
import subprocess
import time

import openai
import pytest


def run_nginx(nginx, path, upstream):
    """An nginx with nothing but proxy_pass: (process, address)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (path / "nginx.conf").write_text(f"""
daemon off; master_process off; pid {path}/pid; error_log {path}/error.log;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {path}/body; proxy_temp_path {path}/proxy;
    fastcgi_temp_path {path}/f; uwsgi_temp_path {path}/u; scgi_temp_path {path}/s;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://127.0.0.1:{upstream}; }}
    }}
}}
""")
    p = subprocess.Popen([nginx, "-c", str(path / "nginx.conf"), "-p", str(path)],
                         stderr=subprocess.PIPE)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            assert p.poll() is None, p.stderr.read()
            time.sleep(0.05)
    return p, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    from conftest import FAKE, Server, program, tiny_model
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
    if not nginx:
        pytest.skip("nginx is not installed")
    s = Server(program(FAKE), tiny_model(), env={"CONIFER_FAKE_DELAY_US": "30000"})
    path = tmp_path_factory.mktemp("nginx")
    p, url = run_nginx(nginx, path, s.port)
    yield s, url
    p.terminate()
    p.wait()
    s.stop()


def client(url):
    return openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0)


ASK = {"model": "llama3-gqa", "messages": [{"role": "user", "content": "hello"}]}


def test_whole(front):
    a = client(front[1]).chat.completions.create(max_tokens=5, **ASK)
    assert a.usage.completion_tokens == 5


def test_stream_is_not_held_back(front):
    t = time.time()
    times = []
    text = ""
    for c in client(front[1]).chat.completions.create(max_tokens=40, stream=True, **ASK):
        times.append(time.time() - t)
        text += c.choices[0].delta.content or ""
    assert times[0] < times[-1] / 3  # 40 tokens of 30 ms: the first long before the last
    whole = client(front[1]).chat.completions.create(max_tokens=40, **ASK)
    assert text == whole.choices[0].message.content


def test_errors_pass(front):
    with pytest.raises(openai.NotFoundError):
        client(front[1]).chat.completions.create(**{**ASK, "model": "nope"})
    with pytest.raises(openai.BadRequestError):
        client(front[1]).chat.completions.create(temperature=99, **ASK)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_reaches_the_server(front, stream):
    s, url = front
    before = s.metrics()['conifer_requests_total{result="cancelled"}']
    text = json.dumps({**ASK, "max_tokens": 400, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as c:
        c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(text) + text)
        time.sleep(0.6)
    m = s.wait_idle(seconds=5)
    assert m['conifer_requests_total{result="cancelled"}'] == before + 1


def test_many_through_nginx(front):
    import concurrent.futures
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        def one(i):
            return client(front[1]).chat.completions.create(
                model="llama3-gqa", max_tokens=6,
                messages=[{"role": "user", "content": f"{i}"}]).usage.completion_tokens
        assert list(pool.map(one, range(32))) == [6] * 32


@pytest.mark.slow
def test_a_long_silence_survives_nginx(tmp_path):
    """70 s before the first token: longer than nginx waits for a silent upstream."""
    from conftest import FAKE, Server, program, tiny_model
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
    if not nginx:
        pytest.skip("nginx is not installed")
    s = Server(program(FAKE), tiny_model(), env={"CONIFER_FAKE_HOLD_MS": "70000"})
    p, url = run_nginx(nginx, tmp_path, s.port)
    try:
        c = openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0, timeout=120)
        text = "".join(x.choices[0].delta.content or "" for x in
                       c.chat.completions.create(max_tokens=5, stream=True, **ASK))
        assert len(text) >= 5
    finally:
        p.terminate()
        p.wait()
        s.stop()
