"""What fields take, and what a refusal says of them: the field, what came, and the bound that holds."""
import json
import re
import subprocess

import pytest
from conftest import CONIFER, held, program, real_model_path, sse, until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


def refused(server, path, body, status=400, **more):
    """The error of an answer that is one; `more`: what it has to be."""
    got, answer = server.post(path, body)
    assert got == status, answer
    for name, value in more.items():
        assert answer["error"][name] == value, answer
    return answer["error"]["message"]


WORDS = [
    (CHAT, {"messages": [{"role": "user\0x", "content": "hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text\0x", "text": "hi"}]}]},
     "messages[0].content[0].type"),
    (CHAT, {**HI, "tool_choice": "none\0x"}, "tool_choice"),
    (CHAT, {**HI, "tool_choice": "auto\0"}, "tool_choice"),
    (CHAT, {**HI, "tools": [{"type": "function\0x", "function": {"name": "f"}}]},
     "tools[0].type"),
    (CHAT, {**HI, "response_format": {"type": "text\0x"}}, "response_format.type"),
    (CHAT, {**HI, "reasoning_effort": "low\0x"}, "reasoning_effort"),
    (CHAT, {**HI, "reasoning_format": "none\0x"}, "reasoning_format"),
    (CHAT, {**HI, "priority": "normal\0x"}, "priority"),
    (CHAT, {**HI, "stop": "a\0b"}, "stop"),
    (TEXT, {"prompt": "hi", "suffix": "\0"}, "suffix"),
]


@pytest.mark.parametrize("path,body,param", WORDS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_word_with_a_nul_is_another_word(tiny, path, body, param):
    refused(tiny, path, {**body, "max_tokens": 1}, param=param)


def test_a_models_name_with_a_nul(tiny):
    name = tiny.get("/v1/models")[2].decode().split('"id":"')[1].split('"')[0]
    message = refused(tiny, CHAT, {**HI, "model": name + "\0x"}, 404, param="model")
    assert f"the model {name}?x does not exist" in message
    assert tiny.get(f"/v1/models/{name}%00x")[0] in (400, 404) and tiny.get(f"/v1/models/{name}")[0] == 200


def test_no_name_is_no_model(tiny):
    assert "model is empty" in refused(tiny, CHAT, {**HI, "model": ""}, param="model", code="invalid_value")


@pytest.mark.parametrize("n", [0, -1, 9, 1024, 2**62])
def test_the_bound_of_n_is_the_configs(tiny, n):
    for path, body in ((CHAT, HI), (TEXT, {"prompt": "hi"})):
        message = refused(tiny, path, {**body, "n": n}, param="n", code="out_of_range")
        assert message == f"n must be between 1 and 8 (limits.max_n), got {n}"
    assert "best_of must be between 1 and 8 (limits.max_n), got 9" == refused(
        tiny, TEXT, {"prompt": "hi", "best_of": 9}, param="best_of")


@pytest.mark.parametrize("seed", ["9223372036854775808", "-9223372036854775809", "1" + "0" * 300, "1e30"])
def test_a_seed_beyond_64_bits(tiny, seed):
    body = ('{"prompt": "hi", "unknown": 18446744073709551616, "max_tokens": 1, "seed": %s}' % seed).encode()
    message = refused(tiny, TEXT, body, param="seed", code="out_of_range")
    assert message.startswith("seed must be between -9223372036854775807 and 9223372036854775807, got ")


def test_integers_beyond_64_bits_elsewhere(tiny):
    status, answer = tiny.post(TEXT, b'{"prompt": "hi", "unknown": [18446744073709551616], "max_tokens": 1}')
    assert status == 200 and answer["usage"]["completion_tokens"] == 1
    message = refused(tiny, TEXT, b'{"prompt": "hi", "temperature": 1e999}', code="out_of_range")
    assert "line 1, column 3" in message and "number is out of range" in message


def test_whole_numbers_with_a_point(tiny):
    status, answer = tiny.post(TEXT, {"prompt": [1.0, 2, 3.0], "max_tokens": 2.0, "n": 1.0, "seed": 1e3,
                                      "top_k": 5.0, "stop_token_ids": [0.0]})
    assert status == 200 and answer["usage"] | {"total_tokens": 0} == answer["usage"] | {
        "prompt_tokens": 3, "total_tokens": 0}, answer
    for field, value in (("max_tokens", 1.5), ("n", 1.5), ("top_k", 0.1)):
        assert "must be an integer" in refused(tiny, TEXT, {"prompt": "hi", field: value}, param=field,
                                               code="invalid_type")


def test_the_length_of_a_completion(tiny):
    """Without max_tokens: 16, as OpenAI's; less where the window ends; a chat goes on."""
    status, answer = tiny.post(TEXT, {"prompt": "hi", "ignore_eos": True})
    assert status == 200 and answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"
    window = tiny.post("/tokenize", {"prompt": "hi"})[1]["max_model_len"]
    status, answer = tiny.post(TEXT, {"prompt": [5] * (window - 3), "ignore_eos": True})
    assert status == 200 and answer["usage"]["completion_tokens"] == 3
    status, answer = tiny.post(CHAT, {**HI, "ignore_eos": True})
    assert status == 200 and answer["usage"]["total_tokens"] == window
    message = refused(tiny, TEXT, {"prompt": "hi", "min_tokens": 17}, param="min_tokens")
    assert message == "min_tokens is above max_tokens, which is 16"


def test_the_prompt_that_is_too_long_is_counted(tiny):
    window = tiny.post("/tokenize", {"prompt": "hi"})[1]["max_model_len"]
    text = "word and " * window
    n = tiny.post("/tokenize", {"prompt": text})[1]["count"]
    assert n > window
    want = (f"the prompt has {n} tokens; the context window of {window} tokens must hold it and at least "
            "one more")
    assert want == refused(tiny, TEXT, {"prompt": text}, param="prompt", code="context_length_exceeded")
    message = refused(tiny, CHAT, {"messages": [{"role": "user", "content": text}]}, param="messages")
    assert int(re.match(r"the prompt has (\d+) tokens; ", message)[1]) > n
    message = refused(tiny, TEXT, {"prompt": [1] * (window + 5)}, param="prompt")
    assert message.startswith(f"the prompt has {window + 5} tokens; ")
    message = refused(tiny, TEXT, {"prompt": "word and " * 100000}, param="prompt")
    assert message.startswith(f"the prompt has more than {window} tokens; ")


def test_what_came_instead_of_json(tiny):
    for headers, said in (({"Content-Type": "text/plain"}, "Content-Type says text/plain"),
                          ({"Content-Type": ""}, "Content-Type says nothing"),
                          ({"Content-Encoding": "gzip"}, "Content-Encoding says gzip")):
        status, _, data = tiny.http("POST", TEXT, b"{}", {"Content-Type": "application/json", **headers})
        assert status == 415 and said in data.decode(), data


def test_health_is_ready(tiny):
    status, _, data = tiny.get("/health")
    assert (status, data) == (200, b'{"status":"ready"}')
    assert tiny.http("HEAD", "/health")[0] == 200


def test_a_missing_key_and_a_wrong_one(start):
    s = start(config='tenants:\n  - name: a\n    keys: ["sha256:%s"]\n' % ("0" * 64))
    for headers, said in (({}, "there is no API key: send one in the header Authorization: Bearer KEY"),
                          ({"Authorization": "Bearer "}, "there is no API key"),
                          ({"x-api-key": ""}, "there is no API key"),
                          ({"Authorization": "Basic c2VjcmV0"}, "the header Authorization must be Bearer"),
                          ({"Authorization": "Bearer c2VjcmV0"}, "the API key is not valid"),
                          ({"x-api-key": "c2VjcmV0"}, "the API key is not valid"),
                          ({"Authorization": "Bearer c2VjcmV0", "x-api-key": "b"}, "different API keys")):
        status, _, data = s.get("/v1/models", headers=headers)
        assert status == 401 and said in data.decode() and b"c2VjcmV0" not in data, data
    assert s.get("/health")[0] == 200


def test_half_a_character_at_the_end(fake):
    """The stand-in repeats the prompt; cut within a character, its first bytes are no text."""
    ids = fake.post("/tokenize", {"prompt": "a\U0001f9ff", "add_special_tokens": False})[1]["tokens"]
    assert len(ids) > 3
    for n in range(1, len(ids) + 1):
        body = {"prompt": ids, "max_tokens": n}
        status, answer = fake.post(TEXT, body)
        text = answer["choices"][0]["text"]
        assert status == 200 and text == ("a\U0001f9ff" if n == len(ids) else "a"), (n, text)
        events = sse(fake.http("POST", TEXT, {**body, "stream": True})[2])
        assert text == "".join(e["choices"][0]["text"] for e in events[:-1] if e["choices"])


@pytest.mark.parametrize("n,said", [(1, "draining: 1 request open"), (2, "draining: 2 requests open")])
def test_what_a_drain_waits_for(start, go, n, said):
    s = start(env=held(go, CONIFER_FAKE_DELAY_US="1000000"))
    streams = [s.connect() for _ in range(n)]
    body = json.dumps({"prompt": "hi", "max_tokens": 3, "stream": True}).encode()
    for c in streams:
        c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % (TEXT.encode(), len(body)) + body)
        assert c.recv(12) == b"HTTP/1.1 200"
    s.process.terminate()
    until(lambda: "draining: " in s.text())
    go.touch()
    assert re.search(f"{said}$", s.text(), re.M), s.text()
    for c in streams:
        c.close()


def run(*args):
    return subprocess.run([program(CONIFER), *args], stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=120, check=False)


@pytest.mark.real_model
def test_one_bound_of_max_tokens_at_the_terminal():
    for most in ("100000", "100000000"):
        out = run("run", str(real_model_path()), "hi", "--max-tokens", most)
        assert out.returncode and re.search(
            rb"--max-tokens is %s, and the prompt has \d+ tokens: the context window of \d+ leaves \d+"
            % most.encode(), out.stderr), out


MANY = 1 << 20  # values of a body: a list counts 4, an object 8
TOO_MANY = f"more than {MANY}, where a list counts 4 and an object 8"


def test_the_values_of_a_body(fake):
    """Up to the bound, which a refusal tells, and one more."""
    def body(n):  # the object 8, its colons and commas 5, "x" a 1 is counted with them; the list 4 and its commas
        return b'{"prompt":"abc","max_tokens":1,"x":[' + b",".join([b"1"] * n) + b"]}"
    fit = MANY - 1 - 8 - 5 - 4 + 1
    assert fake.post(TEXT, body(fit))[0] == 200
    message = refused(fake, TEXT, body(fit + 1), code="limit_exceeded")
    assert message == "the body holds too many values: " + TOO_MANY
    calls = [{"type": "function", "function": {"name": "f", "arguments": "[" + "1," * 600000 + "1]"}}] * 2
    body = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}], "max_tokens": 1}
    message = refused(fake, CHAT, body, code="limit_exceeded", param="messages[1].tool_calls")
    assert message == "messages[1].tool_calls make the body hold too many values: " + TOO_MANY
