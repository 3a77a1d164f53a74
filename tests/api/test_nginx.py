"""nginx in front, with nothing but proxy_pass: HTTP/1.0 upstream, buffering on, 60 s time-outs."""
import json
import socket

import openai
import pytest
from conftest import FAKE, Nginx, Server, held, program, quick, tiny_model, until


def behind(path, env):
    """A server with these settings and an nginx before it."""
    s = Server(program(FAKE), tiny_model(), env=env)
    try:
        front = Nginx(path, f"location / {{ proxy_pass http://127.0.0.1:{s.port}; }}")
        yield s, front.url
        front.stop()
    finally:
        s.stop()


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    yield from behind(tmp_path_factory.mktemp("nginx"), {"CONIFER_FAKE_DELAY_US": "5000"})


@pytest.fixture
def slow_front(tmp_path, go):
    """Whose first token comes at once, and the others when `go` is there."""
    yield from behind(tmp_path, held(go, CONIFER_FAKE_DELAY_US="600000000"))


def client(url):
    return openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0)


ASK = {"model": "llama3-gqa", "messages": [{"role": "user", "content": "hello"}]}


def test_whole(front):
    a = client(front[1]).chat.completions.create(max_tokens=5, **ASK)
    assert a.usage.completion_tokens == 5


def test_stream_is_not_held_back(slow_front, go):
    text = ""
    for c in client(slow_front[1]).chat.completions.create(max_tokens=40, stream=True, **ASK):
        text += c.choices[0].delta.content or ""
        if len(text) >= 1:  # before there is another one
            go.touch()
    whole = client(slow_front[1]).chat.completions.create(max_tokens=40, **ASK)
    assert text == whole.choices[0].message.content


def test_errors_pass(front):
    with pytest.raises(openai.NotFoundError):
        client(front[1]).chat.completions.create(**{**ASK, "model": "nope"})
    with pytest.raises(openai.BadRequestError):
        client(front[1]).chat.completions.create(temperature=99, **ASK)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_reaches_the_server(slow_front, stream):
    s, url = slow_front
    before = s.metrics()['conifer_requests_total{result="cancelled"}']
    text = json.dumps({**ASK, "max_tokens": 400, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as c:
        c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(text) + text)
        until(lambda: s.metrics()["conifer_requests_running"] == 1)
    m = quick(5, s.wait_idle)
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
    for _, url in behind(tmp_path, {"CONIFER_FAKE_HOLD_MS": "70000"}):
        c = openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0, timeout=120)
        text = "".join(x.choices[0].delta.content or "" for x in
                       c.chat.completions.create(max_tokens=5, stream=True, **ASK))
        assert len(text) >= 5
