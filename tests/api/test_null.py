"""The null model through the whole daemon: the real client, commands, refusals."""
import json
import subprocess

import pytest
from conftest import CONIFER, SERVER, Server, program

USER = [{"role": "user", "content": "Grüße, 世界 and <|im_end|> too"}]


@pytest.fixture(scope="module")
def null():
    s = Server(program(SERVER), "null:vocab=2000,context=600", ["--threads", "1"], template=False)
    yield s
    s.wait_idle()
    s.stop()


def chat(server, **more):
    more.setdefault("max_tokens", 40)
    return server.client().chat.completions.create(model="null", messages=USER, **more)


def test_the_client_works(null):
    assert [m.id for m in null.client().models.list().data] == ["null"]
    a = chat(null)
    words = a.choices[0].message.content.split()
    assert a.usage.completion_tokens == 40 and a.choices[0].finish_reason == "length"
    assert len(words) == 40 and all(w.isascii() and w.isalpha() and w.islower() for w in words)
    assert len(set(words)) > 20
    chunks = list(chat(null, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == a.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 40


def test_the_same_text_whatever_the_sampling_and_the_load(null):
    want = chat(null, temperature=0).choices[0].message.content
    several = chat(null, n=4, temperature=1.3, seed=5)
    assert {c.message.content for c in several.choices} == {want}
    tops = chat(null, logprobs=True, top_logprobs=3, max_tokens=3).choices[0].logprobs.content
    assert all(t.logprob > -0.001 and len(t.top_logprobs) == 3 for t in tops)


def test_the_window_ends_an_answer(null):
    a = null.client().chat.completions.create(model="null", messages=[{"role": "user", "content": "abc"}])
    assert a.choices[0].finish_reason == "length"
    assert a.usage.prompt_tokens + a.usage.completion_tokens in (600, 601)
    m = null.wait_idle()
    assert m['conifer_kv_blocks{state="filling"}'] == m['conifer_kv_blocks{state="ready"}'] == 0


def test_an_answer_may_end_by_itself():
    config = 'models:\n  - name: short\n    path: "null:answer=50"\n    preload: true\n'
    s = Server(program(SERVER), None, config=config)
    a = s.client().completions.create(model="short", prompt="x" * 20, max_tokens=200)
    assert a.choices[0].finish_reason == "stop"
    assert a.usage.completion_tokens == 31  # at positions 20 to 50, the end's token included
    s.stop()


@pytest.mark.parametrize("text, says", [("null:vocab=9", "vocab=9: it must be a number from 512"),
                                        ("null:depth=1", 'no parameter "depth"')])
def test_what_it_cannot_be_is_refused(text, says):
    for command in ([CONIFER, "run", text, "hi"], [CONIFER, "show", text], [CONIFER, "plan", text],
                    [CONIFER, "bench", text], [SERVER, "--model", text, "--check-config"],
                    [SERVER, "--model", text, "--port", "0"]):
        out = subprocess.run([program(command[0]), *command[1:]], capture_output=True, text=True,
                             timeout=60, check=False)
        assert out.returncode in (1, 2) and says in out.stderr, (command, out)


def test_commands():
    def run(*args):
        out = subprocess.run([program(CONIFER), *args], capture_output=True, text=True, timeout=60,
                             check=False)
        assert out.returncode == 0, out
        return out.stdout

    assert len(run("run", "null:", "Say hi", "--max-tokens", "5").split()) == 5
    shown = run("show", "null:layers=7,vocab=700")
    assert "layers          7" in shown and "vocabulary      700 tokens" in shown
    assert "users" in run("plan", "null:", "--users", "10")
    figures = json.loads(run("bench", "null:", "--rounds", "2", "--json"))
    assert figures["decode_tok_s"] > 0
    assert run("serve", "--model", "null:", "--check-config").startswith("no --config")
