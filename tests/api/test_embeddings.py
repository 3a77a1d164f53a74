"""/v1/embeddings: shapes and errors over the stand-in (its vectors are exact), a real model's vectors
against those of transformers."""
import array
import base64
import concurrent.futures
import json
import math
import time

import openai
import pytest

from conftest import FAKE, SERVER, Server, oracle, program, tiny_model, until

SIZE = 24


def vector(ids, n=None):
    """What the stand-in says, and what `dimensions` makes of it."""
    v = [(ids[i % len(ids)] * 31 + i * 7) % 97 - 48 for i in range(SIZE)][:n or SIZE]
    length = math.sqrt(sum(x * x for x in v))
    return [x / length for x in v]


def close(got, want):
    return len(got) == len(want) and all(abs(a - b) < 1e-6 for a, b in zip(got, want))


def floats(text):
    out = array.array("f")
    out.frombytes(base64.b64decode(text, validate=True))
    return list(out)


@pytest.fixture(scope="module")
def server():
    s = Server(program(FAKE), tiny_model(), env={"CONIFER_FAKE_EMBED": str(SIZE)})
    yield s
    s.wait_idle()
    s.stop()


def ids_of(server, text):
    return server.post("/tokenize", {"prompt": text})[1]["tokens"]


def test_shape(server):
    status, a = server.post("/v1/embeddings", {"input": [5, 6, 7], "user": "me", "model": None})
    assert status == 200
    assert sorted(a) == ["data", "model", "object", "usage"] and a["object"] == "list"
    assert a["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert a["model"] == server.client().models.list().data[0].id
    (one,) = a["data"]
    assert sorted(one) == ["embedding", "index", "object"]
    assert one["object"] == "embedding" and one["index"] == 0
    assert close(one["embedding"], vector([5, 6, 7]))


@pytest.mark.parametrize("value", ["one text", ["one text"], ["a", "bc", "def"], [3, 4], [[3, 4], [5]],
                                   ["mixed", [9, 8]]])
def test_inputs(server, value):
    status, a = server.post("/v1/embeddings", {"input": value})
    assert status == 200
    many = value if isinstance(value, list) and not isinstance(value[0], int) else [value]
    ids = [x if isinstance(x, list) else ids_of(server, x) for x in many]
    assert [d["index"] for d in a["data"]] == list(range(len(many)))
    for d, x in zip(a["data"], ids):
        assert close(d["embedding"], vector(x))
    assert a["usage"]["total_tokens"] == sum(map(len, ids))


def test_base64_is_the_same(server):
    plain = server.post("/v1/embeddings", {"input": ["x", "y"]})[1]
    packed = server.post("/v1/embeddings", {"input": ["x", "y"], "encoding_format": "base64"})[1]
    for a, b in zip(plain["data"], packed["data"]):
        assert len(b["embedding"]) == (SIZE * 4 + 2) // 3 * 4
        assert array.array("f", a["embedding"]).tolist() == floats(b["embedding"])


@pytest.mark.parametrize("n", [1, 2, 7, SIZE - 1, SIZE])
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_dimensions(server, n, encoding):
    a = server.post("/v1/embeddings", {"input": [11, 12], "dimensions": n, "encoding_format": encoding})[1]
    got = a["data"][0]["embedding"]
    assert close(got if encoding == "float" else floats(got), vector([11, 12], n))


@pytest.mark.parametrize("body,param,code,words", [
    ({}, "input", "missing_field", []),
    ({"input": None}, "input", "missing_field", []),
    ({"input": ""}, "input", "invalid_value", ["empty"]),
    ({"input": []}, "input", "invalid_value", ["empty"]),
    ({"input": ["a", ""]}, "input", "invalid_value", ["input[1]"]),
    ({"input": [[]]}, "input", "invalid_value", []),
    ({"input": [[1], []]}, "input", "invalid_value", []),
    ({"input": 5}, "input", "invalid_type", []),
    ({"input": {"a": 1}}, "input", "invalid_type", []),
    ({"input": ["a", 5]}, "input", "invalid_type", ["input[1]"]),
    ({"input": [5, "a"]}, "input", "invalid_type", []),
    ({"input": [1, -1]}, "input", "out_of_range", []),
    ({"input": [[1], [10 ** 9]]}, "input", "out_of_range", []),
    ({"input": [1.5]}, "input", "invalid_type", []),
    ({"input": ["a"] * 2049}, "input", "limit_exceeded", ["2048"]),
    ({"input": [1] * 100000}, "input", "context_length_exceeded", []),
    ({"input": "word " * 100000}, "input", "context_length_exceeded", []),
    ({"input": "a", "dimensions": SIZE + 1}, "dimensions", "out_of_range", [str(SIZE), str(SIZE + 1)]),
    ({"input": "a", "dimensions": 0}, "dimensions", "out_of_range", []),
    ({"input": "a", "dimensions": "4"}, "dimensions", "invalid_type", []),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value", ["base64"]),
    ({"input": "a", "encoding_format": "float\0x"}, "encoding_format", "invalid_value", ["base64"]),
    ({"input": "a", "encoding_format": 1}, "encoding_format", "invalid_type", []),
    ({"input": "a", "user": 1}, "user", "invalid_type", []),
    ({"input": "a", "priority": "urgent"}, "priority", "invalid_value", []),
])
def test_refusals(server, body, param, code, words):
    status, a = server.post("/v1/embeddings", body)
    assert status == 400
    assert a["error"]["param"] == param and a["error"]["code"] == code
    for w in words:
        assert w in a["error"]["message"]


def test_unknown_model(server):
    status, a = server.post("/v1/embeddings", {"input": "a", "model": "other"})
    assert status == 404 and a["error"]["code"] == "model_not_found"


def test_wrong_endpoint(server, fake):
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
                       ("/v1/completions", {"prompt": "hi"})):
        status, a = server.post(path, body)
        assert status == 400 and a["error"]["param"] == "model"
        assert "/v1/embeddings" in a["error"]["message"]
    status, a = fake.post("/v1/embeddings", {"input": "hi"})
    assert status == 400 and a["error"]["param"] == "model" and a["error"]["code"] == "unsupported"
    assert "/v1/chat/completions" in a["error"]["message"]


def test_method(server):
    status, head, _ = server.get("/v1/embeddings")
    assert status == 405 and head["Allow"] == "POST"


def test_openai_client(server):
    want = [vector(ids_of(server, t)) for t in ("first", "second")]
    for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        a = server.client().embeddings.create(model=server.client().models.list().data[0].id,
                                              input=["first", "second"], **more)
        for d, w in zip(a.data, want):
            e = floats(d.embedding) if isinstance(d.embedding, str) else d.embedding
            assert close(e, w)


def test_most_inputs(server):
    """As many as one request may have: more than the queue's part of them at once."""
    inputs = [[i % 250, i // 250] for i in range(2048)]
    status, a = server.post("/v1/embeddings", {"input": inputs, "encoding_format": "base64"})
    assert status == 200 and len(a["data"]) == 2048
    for i, d in enumerate(a["data"]):
        assert d["index"] == i and close(floats(d["embedding"]), vector(inputs[i]))


def test_many_clients(server):
    def one(k):
        inputs = [[k % 200, j] for j in range(1 + k * 13 % 90)]
        status, a = server.post("/v1/embeddings", {"input": inputs})
        assert status == 200
        return all(close(d["embedding"], vector(x)) for d, x in zip(a["data"], inputs))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(100)))


def test_few_at_once(start):
    """The runtime takes 2: a request of many inputs waits for its own, as long as it fits the tenant."""
    config = "tenants:\n  - name: t\n    max_concurrency: 2\n    max_queued: 1\n"
    s = start(env={"CONIFER_FAKE_EMBED": str(SIZE), "CONIFER_FAKE_QUEUE": "2"}, config=config)
    status, a = s.post("/v1/embeddings", {"input": [[i] for i in range(50)]})
    assert status == 200
    assert all(close(d["embedding"], vector([i])) for i, d in enumerate(a["data"]))
    s.wait_idle()


def test_all_or_nothing(start):
    s = start(env={"CONIFER_FAKE_EMBED": str(SIZE), "CONIFER_FAKE_QUEUE": "8"})
    status, head, data = s.http("POST", "/v1/embeddings", {"input": [[i] for i in range(50)]})
    assert status == 429 and head["Retry-After"] == "7"
    assert json.loads(data)["error"]["code"] == "queue_full"
    s.wait_idle()
    assert s.post("/v1/embeddings", {"input": [[i] for i in range(8)]})[0] == 200


def test_failure_in_the_midst(start):
    s = start(env={"CONIFER_FAKE_EMBED": str(SIZE), "CONIFER_FAKE_FAIL_AT": "150"})
    status, a = s.post("/v1/embeddings", {"input": [[i] for i in range(200)]})
    assert status == 500 and a["error"]["code"] == "numeric_error"
    s.wait_idle()
    assert s.post("/v1/embeddings", {"input": [[i] for i in range(150)]})[0] == 200


def test_deadline(start):
    s = start(env={"CONIFER_FAKE_EMBED": str(SIZE), "CONIFER_FAKE_HOLD_MS": "600000"})
    status, a = s.post("/v1/embeddings", {"input": [[i] for i in range(200)], "deadline_ms": 100})
    assert status == 504 and a["error"]["code"] == "deadline_exceeded"
    s.wait_idle()


def test_client_leaves(start):
    """Nothing that waits or runs is left of a request whose client is gone."""
    s = start(env={"CONIFER_FAKE_EMBED": str(SIZE), "CONIFER_FAKE_HOLD_MS": "600000"})
    body = json.dumps({"input": [[i % 250] for i in range(500)]}).encode()
    for _ in range(5):
        c = s.connect()
        c.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body) + body)
        until(lambda: s.metrics()["conifer_requests_running"] > 0)
        c.close()
        s.wait_idle(connections=1)
    m = s.metrics()
    ended = {k: v for k, v in m.items() if k.startswith("conifer_requests_total")}
    assert sum(v for k, v in ended.items() if "ok" in k) == 0, ended
    assert sum(v for k, v in ended.items() if "cancel" in k) == 5 * 64, ended


def test_drain(start):
    s = start(env={"CONIFER_FAKE_EMBED": str(SIZE), "CONIFER_FAKE_HOLD_MS": "30"})
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(s.post, "/v1/embeddings", {"input": [[i % 250] for i in range(300)]})
        time.sleep(0.05)
        s.stop()
        status, a = answer.result()
    assert status in (200, 503) and ("data" in a) == (status == 200)


# ---- a real model ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm():
    s = Server(program(SERVER), oracle("real/minilm-q8_0.gguf"))
    yield s
    s.wait_idle()
    s.stop()


@pytest.fixture(scope="module")
def cases():
    return json.loads(oracle("real/minilm.json").read_text())["cases"]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("together", [False, True])
def test_minilm(minilm, cases, encoding, together):
    client = minilm.client()
    model = client.models.list().data[0].id
    texts = [c["text"] for c in cases]
    calls = [texts] if together else [[t] for t in texts]
    got = []
    for inputs in calls:
        a = client.embeddings.create(model=model, input=inputs, encoding_format=encoding)
        assert a.usage.prompt_tokens == sum(len(c["ids"]) for c in cases if c["text"] in inputs)
        got += [floats(d.embedding) if isinstance(d.embedding, str) else d.embedding for d in a.data]
    each = [cosine(g, c["embedding"]) for g, c in zip(got, cases)]
    assert len(each) == len(cases) and all(len(g) == 384 for g in got)
    print(f"cosine: least {min(each):.6f}, mean {sum(each) / len(each):.6f}")
    assert min(each) >= 0.9985 and sum(each) / len(each) >= 0.9994


def test_minilm_same_bytes(minilm, cases):
    """Alone, together, as ids: the same bytes."""
    texts = [c["text"] for c in cases]
    alone = [minilm.post("/v1/embeddings", {"input": t})[1]["data"][0]["embedding"] for t in texts]
    together = minilm.post("/v1/embeddings", {"input": texts})[1]["data"]
    ids = minilm.post("/v1/embeddings", {"input": [c["ids"] for c in cases]})[1]["data"]
    assert [d["embedding"] for d in together] == alone
    assert [d["embedding"] for d in ids] == alone


def test_minilm_window(minilm):
    """As many tokens as the window has, and one more."""
    window = minilm.client().models.list().data[0].model_dump()["max_model_len"]
    status, a = minilm.post("/v1/embeddings", {"input": [2000] * window})
    assert status == 200 and a["usage"]["total_tokens"] == window
    status, a = minilm.post("/v1/embeddings", {"input": [2000] * (window + 1)})
    assert status == 400 and a["error"]["code"] == "context_length_exceeded"
