"""conifer reply: a model's text taken apart at the command line, with a template alone and with a model's vocabulary."""
import json

import gguf
import pytest
from conftest import copy_tiny, oracle_files, tiny_model
from test_cli import conifer

FILES = oracle_files("tools/*.json")
FEW = ("one_content", "two", "reasoning_content_one", "own_open", "after_result")  # of each template

HERMES = "{% for m in messages %}{{ m.content }}{% endfor %}<tool_call>{% if '</think>' in m %}{% endif %}"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.fixture
def files(tmp_path):
    """A writer of files: name and text or value, to the path."""
    def write(name, what):
        (tmp_path / name).write_text(what if isinstance(what, str) else json.dumps(what))
        return str(tmp_path / name)
    return write


def reply(text, *args):
    return json.loads(conifer("reply", *args, stdin=text.encode()))


def numbers(x):
    """1 and 1.0 are one number."""
    return json.loads(json.dumps(x), parse_int=float)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_oracle(path, files):
    doc = json.loads(path.read_text())
    template = str(path.parent.parent / "templates" / f"{path.stem}.jinja")
    cases = [c for c in doc["cases"] if c["name"] in FEW and c.get("level") == "text"]
    assert cases
    for c in cases:
        request = files("request.json", {"messages": c["messages"], "tools": doc["tools"],
                                         "chat_template_kwargs": c["kwargs"]})
        args = ["--chat-template", template, "--request", request]
        got, want = reply(c["raw"], *args), c["expect"]
        assert (got["content"] or "").strip() == want["content"].strip(), c["name"]
        assert got.get("reasoning_content", "").strip() == want["reasoning"].strip(), c["name"]
        calls = got.get("tool_calls", [])
        assert [x["function"]["name"] for x in calls] == [x["name"] for x in want["tool_calls"]]
        for x, y in zip(calls, want["tool_calls"]):
            assert numbers(json.loads(x["function"]["arguments"])) == numbers(y["arguments"])
            assert x["function"]["arguments"] == y.get("arguments_text", x["function"]["arguments"])
            assert x["id"] == y.get("id", x["id"])
        assert reply(c["raw"], *args, "--pieces", "7") == got


def test_marks_are_tokens_with_a_model(tmp_path, files):
    """Where the vocabulary has the mark, its spelling in other tokens is text; without a model it is the mark."""
    template, request = files("t.jinja", HERMES), files("r.json", {"tools": TOOLS})
    call = {"id": "call_" + 24 * "0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    want = {"role": "assistant", "content": "Hm.", "tool_calls": [call]}
    assert reply("Hm.\n" + CALL, "--chat-template", template, "--request", request) == want

    def mark(name, value):
        if name == "tokenizer.ggml.tokens":
            return value[:-1] + ["<tool_call>"]
        return value[:-1] + [gguf.TokenType.USER_DEFINED] if name == "tokenizer.ggml.token_type" else value

    copy_tiny(tmp_path / "m.gguf", mark)
    args = ["--model", str(tmp_path / "m.gguf"), "--chat-template", template, "--request", request]
    assert reply("Hm.\n" + CALL, *args) == want  # the tokenizer finds the token
    assert reply("Hm.\n" + CALL, *args, "--pieces", "3") == want
    plain = ["--model", tiny_model(), "--chat-template", template, "--request", request]
    assert reply("Hm.\n" + CALL, *plain) == want  # no such token: text


def test_requests(files):
    template = files("t.jinja", HERMES + "{% if add_generation_prompt %}<think>\n{% endif %}")
    base = ["--chat-template", template]
    messages = [{"role": "user", "content": "x"}]
    assert reply(CALL, *base) == {"role": "assistant", "content": CALL}  # no tools, no calls
    none = files("none.json", {"tools": TOOLS, "tool_choice": "none"})
    assert reply(CALL, *base, "--request", none) == {"role": "assistant", "content": CALL}
    other = files("other.json", {"tools": [{"type": "function", "function": {"name": "g"}}]})
    assert reply(CALL, *base, "--request", other) == {"role": "assistant", "content": CALL}
    asked = files("asked.json", {"messages": messages, "tools": TOOLS})
    got = reply("Hm.</think>" + CALL, *base, "--request", asked)
    assert got["reasoning_content"] == "Hm." and got["content"] is None and len(got["tool_calls"]) == 1
    # cut off: nothing is invented
    got = reply("Hm.</think>" + CALL[:-15], *base, "--request", asked, "--cut")
    assert got["tool_calls"][0]["function"]["arguments"] == '{"a": 1'
    assert "tool_calls" not in reply("Hm.</think>" + CALL[:20], *base, "--request", asked, "--cut")


def test_a_template_without_tools_and_system(files):
    """The conversation takes the way that it takes in the server: tools become text first, and that text has to
    find its place in a template without a system message."""
    request = {"messages": [{"role": "system", "content": "Be kind."},
                            {"role": "user", "content": [{"type": "text", "text": "Hi."}, {"type": "text", "text": "Weather?"}]},
                            {"role": "assistant", "content": None, "tool_calls": [
                                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                            {"role": "tool", "tool_call_id": "a", "content": "2"}], "tools": TOOLS}
    template = oracle_files("templates/google-gemma-2-2b-it.jinja")[0]
    message = reply(CALL, "--chat-template", str(template), "--request", files("r.json", request))
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_errors(files):
    template = files("t.jinja", "{{ raise_exception('no such order') }}")
    assert b"which model?" in conifer("reply", want=2)
    assert b"--pieces" in conifer("reply", "--chat-template", template, "--pieces", "x", want=2)
    assert b"nothing.jinja" in conifer("reply", "--chat-template", "nothing.jinja", want=1)
    args = ["reply", "--chat-template", template, "--request"]
    assert b"not a JSON object" in conifer(*args, files("r.json", "[]"), want=1)
    assert b"not a JSON object: line 1" in conifer(*args, files("r.json", "{"), want=1)
    assert b"tools must be an array" in conifer(*args, files("r.json", {"tools": {}}), want=1)
    assert b"tools[1].function.name: f is offered twice" in conifer(*args, files("r.json", {"tools": TOOLS * 2}), want=1)
    assert b"messages must be an array of objects" in conifer(*args, files("r.json", {"messages": [1]}), want=1)
    assert b"no such order" in conifer(*args, files("r.json", {"messages": [{"role": "user", "content": ""}]}), want=1)
    good = files("g.jinja", HERMES)
    assert b"not valid UTF-8" in conifer("reply", "--chat-template", good, stdin=b"\xff", want=1)
