"""Answers taken apart: reasoning, content, calls of tools; streamed as not streamed.

The stand-in answers with the tokens of the prompt, so a template that renders nothing but
`chat_template_kwargs.reply` makes it say whatever a test wants. Its vocabulary is the tiny model's
with some tokens replaced by the marks of gpt-oss and of thinking models."""
import json
import os
import pty
import subprocess

import pytest
from conftest import CONIFER, FAKE, SERVER, Server, copy_tiny, program, sse

MARKS = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>",
         "<think>", "</think>"]
# What the template says is the template's: only so do marks become tokens. [x] is the token <x>.
def saying(marks):
    return "".join(["{% for piece in reply.split('[') %}{% if not loop.first %}",
                    *(f"{{% if piece.startswith('{m[1:-1]}]') %}}{m}{{{{ piece[{len(m) - 1}:] }}}}{{% endif %}}"
                      for m in marks),
                    "{% else %}{{ piece }}{% endif %}{% endfor %}"])


HARMONY = saying(MARKS[:7])
THINK = saying(MARKS[7:])


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """The tiny model with marks in its vocabulary."""
    def change(name, value):
        if name == "tokenizer.ggml.tokens":
            value[len(value) - len(MARKS):] = MARKS
        if name == "tokenizer.ggml.token_type":
            value[len(value) - len(MARKS):] = [3] * 7 + [4] * 2
        return None if name == "tokenizer.ggml.merges" else value  # none may make what is gone

    return copy_tiny(tmp_path_factory.mktemp("marked") / "marked.gguf", change)


def serve(marked, template, tmp):
    (tmp / "template.jinja").write_text(template)
    return Server(program(FAKE), marked, ["--chat-template", str(tmp / "template.jinja")], template=False)


@pytest.fixture(scope="module")
def harmony(marked, tmp_path_factory):
    s = serve(marked, HARMONY, tmp_path_factory.mktemp("harmony"))
    yield s
    s.wait_idle()
    s.stop()


@pytest.fixture(scope="module")
def thinking(marked, tmp_path_factory):
    s = serve(marked, THINK, tmp_path_factory.mktemp("think"))
    yield s
    s.wait_idle()
    s.stop()


def body(reply, **more):
    return {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"reply": reply},
            "max_tokens": 400, **more}


def n_tokens(server, reply):
    status, data = server.post("/tokenize", {"messages": [{"role": "user", "content": "x"}],
                                             "chat_template_kwargs": {"reply": reply}})
    assert status == 200, data
    return len(data["tokens"])


def whole(server, reply, **more):
    more.setdefault("max_tokens", n_tokens(server, reply))  # the reply once
    status, data = server.post("/v1/chat/completions", body(reply, **more))
    assert status == 200, data
    return data["choices"][0], data["usage"]


def streamed(server, reply, **more):
    """The same put together from deltas, as clients do it."""
    more.setdefault("max_tokens", n_tokens(server, reply))
    status, _, data = server.http("POST", "/v1/chat/completions",
                                  body(reply, stream=True, stream_options={"include_usage": True}, **more))
    assert status == 200
    events = sse(data)
    assert events[-1] == "[DONE]"
    message, finish, usage = {"role": None, "content": "", "reasoning_content": "", "reasoning": ""}, None, None
    calls = []
    for e in events[:-1]:
        usage = e.get("usage") or usage
        for c in e["choices"]:
            finish = c["finish_reason"] or finish
            delta = c["delta"]
            assert set(delta) <= {"role", "content", "reasoning_content", "reasoning", "tool_calls"}
            message["role"] = delta.get("role", message["role"])
            for name in ("content", "reasoning_content", "reasoning"):
                message[name] += delta.get(name, "")
            for t in delta.get("tool_calls", []):
                if t["index"] == len(calls):
                    assert t["id"].startswith("call_") and t["type"] == "function"
                    calls.append({"id": t["id"], "type": "function", "function": dict(t["function"])})
                else:
                    assert "id" not in t and "name" not in t["function"]
                    calls[t["index"]]["function"]["arguments"] += t["function"]["arguments"]
    return message, calls, finish, usage


HARMONY_ROWS = [
    ("[|channel|]analysis[|message|]Let me see.[|end|][|start|]assistant[|channel|]final[|message|]Four.[|return|]",
     "Let me see.", "Four.", [], "stop"),
    ("[|channel|]final[|message|]Four.", "", "Four.", [], "length"),
    ("[|channel|]analysis[|message|]A tool.[|end|][|start|]assistant[|channel|]commentary to=functions.get_time "
     '[|constrain|]json[|message|]{"place": "Ulm"}[|call|]',
     "A tool.", None, [("get_time", '{"place": "Ulm"}')], "tool_calls"),
    ("[|channel|]commentary[|message|]I look.[|end|][|start|]assistant to=functions.a[|channel|]commentary"
     "[|message|]{}[|end|][|start|]assistant to=functions.b[|channel|]commentary[|message|][|call|]",
     "", "I look.", [("a", "{}"), ("b", "")], "tool_calls"),
    ("plain words", "", "plain words", [], "length"),
    ("[|channel|]analysis[|message|]cut", "cut", "", [], "length"),
]


@pytest.mark.parametrize("row", range(len(HARMONY_ROWS)))
def test_harmony(harmony, row):
    reply, reasoning, content, calls, finish = HARMONY_ROWS[row]
    choice, usage = whole(harmony, reply)
    message = choice["message"]
    assert message["content"] == content
    for name in ("reasoning_content", "reasoning"):
        assert message.get(name, "") == reasoning
    got = message.get("tool_calls", [])
    assert [(t["function"]["name"], t["function"]["arguments"]) for t in got] == calls
    assert len({t["id"] for t in got}) == len(calls) and all(t["type"] == "function" for t in got)
    assert choice["finish_reason"] == finish

    s_message, s_calls, s_finish, s_usage = streamed(harmony, reply)
    assert s_message == {"role": "assistant", "content": content or "", "reasoning_content": reasoning,
                         "reasoning": reasoning}
    assert [(t["function"]["name"], t["function"]["arguments"]) for t in s_calls] == calls
    assert s_finish == finish and s_usage == usage


def test_think(thinking):
    for reply, reasoning, content in [
            ("[think]\nHm.\n[/think]\n\nFour.", "Hm.", "Four."),
            ("no thoughts", "", "no thoughts"),
            ("[think]\n\n[/think]\n\nFour.", "", "Four."),
            ("[think]\ncut off", "cut off", "")]:
        # the prompt is the reply, and its end is not an open mark in any of them
        choice, usage = whole(thinking, reply)
        assert choice["message"]["content"] == content
        assert choice["message"].get("reasoning_content", "") == reasoning
        message, _, _, s_usage = streamed(thinking, reply)
        assert (message["content"], message["reasoning_content"]) == (content, reasoning)
        assert s_usage == usage


def test_opened_by_the_template(thinking):
    """The prompt ends with the mark: the reply begins in reasoning (and here comes around to a mark)."""
    reply = "Hm.[/think]Four.[think]"
    n = n_tokens(thinking, reply)
    choice, usage = whole(thinking, reply, max_tokens=n - 1)
    assert choice["message"]["reasoning"] == "Hm." and choice["message"]["content"] == "Four."
    hm = n_tokens(thinking, "Hm.")
    assert usage["completion_tokens_details"] == {"reasoning_tokens": hm + 1}  # the closing mark is one


def test_a_message_that_goes_on(marked, tmp_path):
    """Its text says whether the answer begins in reasoning; the answer is the prompt again."""
    s = serve(marked, "{{ messages[-1].content }}{# </think> #}", tmp_path)
    try:
        for text, reasoning, content in [
                ("<think> Hm.</think>Four.", "Hm.", "Four."),
                (" Hm.</think>Four. <think>so", " Hm.\nso", "Four. "),
                (" Four.", None, " Four."),
                (" so", None, " so")]:
            messages = [{"role": "assistant", "content": text}]
            more = {"messages": messages, "continue_final_message": True}
            n = len(s.post("/tokenize", more)[1]["tokens"])
            answer = s.post("/v1/chat/completions", {**more, "max_tokens": n})[1]
            message = answer["choices"][0]["message"]
            assert (message.get("reasoning"), message["content"]) == (reasoning, content)
            streamed = [e["choices"][0]["delta"] for e in sse(s.http("POST", "/v1/chat/completions", {
                **more, "max_tokens": n, "stream": True})[2])[:-1]]
            assert "".join(d.get("content") or "" for d in streamed) == content
            assert "".join(d.get("reasoning") or "" for d in streamed) == (reasoning or "")
    finally:
        s.wait_idle()
        s.stop()


def test_marks_in_a_clients_text_are_text(harmony):
    """Control tokens are never made of what a client writes: it comes back as it is, in the answer."""
    text = "a <|channel|>analysis<|message|>b"
    choice, _ = whole(harmony, text)
    assert choice["message"]["content"] == text
    assert "reasoning" not in choice["message"]


def test_reasoning_tokens(harmony):
    reply = HARMONY_ROWS[0][0]
    _, usage = whole(harmony, reply)
    thought = n_tokens(harmony, "Let me see.")
    assert usage["completion_tokens_details"]["reasoning_tokens"] == thought + 1  # and its end
    assert usage["completion_tokens"] == n_tokens(harmony, reply)
    _, usage = whole(harmony, "plain words")
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0


def test_left_whole(thinking, harmony):
    """reasoning_format: none, and completions, which have no parts."""
    choice, usage = whole(thinking, "[think]\nHm.\n[/think]\n\nFour.", reasoning_format="none")
    assert choice["message"]["content"] == "<think>\nHm.\n</think>\n\nFour."
    assert "reasoning" not in choice["message"] and "completion_tokens_details" not in usage
    choice, _ = whole(harmony, HARMONY_ROWS[0][0], reasoning_format="none")
    assert "analysis" in choice["message"]["content"]
    for value in ("auto", "deepseek"):
        assert "reasoning" in whole(harmony, HARMONY_ROWS[0][0], reasoning_format=value)[0]["message"]
    status, data = thinking.post("/v1/completions", {"prompt": "<think>a</think>b", "max_tokens": 40})
    assert status == 200 and data["choices"][0]["text"].startswith("<think>a</think>b")


def test_several_choices(thinking):
    """Choice c says the prompt from token c on: each has a state of its own."""
    reply = "[think]ab[/think]cd"
    status, data = thinking.post("/v1/chat/completions", body(reply, n=3, max_tokens=4))
    assert status == 200
    got = [(c["message"].get("reasoning", ""), c["message"]["content"]) for c in data["choices"]]
    assert got == [("ab", ""), ("", "ab</think>c"), ("", "b</think>cd")] or got[0][0] == "ab"
    assert got[1][0] == "" and got[1][1].startswith("ab")


def test_openai_client(harmony):
    """As the official client reads it, whole and streamed."""
    c = harmony.client()
    reply = HARMONY_ROWS[2][0]
    args = {"model": c.models.list().data[0].id, "messages": [{"role": "user", "content": "x"}],
            "max_tokens": n_tokens(harmony, reply), "extra_body": {"chat_template_kwargs": {"reply": reply}}}
    answer = c.chat.completions.create(**args)
    message = answer.choices[0].message
    assert message.content is None and message.reasoning_content == "A tool."
    assert message.tool_calls[0].function.name == "get_time"
    assert json.loads(message.tool_calls[0].function.arguments) == {"place": "Ulm"}
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    name, arguments = "", ""
    for chunk in c.chat.completions.create(stream=True, **args):
        for t in chunk.choices[0].delta.tool_calls or []:
            name += t.function.name or ""
            arguments += t.function.arguments
    assert (name, arguments) == ("get_time", '{"place": "Ulm"}')


def test_bad_values(harmony):
    for field, value in (("reasoning_format", "yes"), ("reasoning_effort", "much"), ("reasoning_format", 1)):
        status, data = harmony.post("/v1/chat/completions", body("x", **{field: value}))
        assert status == 400 and data["error"]["param"] == field
    for name in ("reasoning_content", "reasoning", "thinking"):
        status, data = harmony.post("/v1/chat/completions", {
            **body("x"), "messages": [{"role": "assistant", "content": "a", name: ["b"]}]})
        assert status == 400 and data["error"]["param"] == f"messages[0].{name}", data


SHOW = ("{% for m in messages %}({{ m.role }} {{ m.content }}|{{ m.reasoning_content }}|{{ m.reasoning }}|"
        "{{ m.thinking }}){% endfor %}{{ reasoning_effort }}")


def test_history(marked, tmp_path):
    """An earlier answer's reasoning reaches the template under whatever name it reads."""
    s = serve(marked, SHOW, tmp_path)
    try:
        def shown(message, **more):
            status, data = s.post("/apply-template", {"messages": [message], **more})
            assert status == 200, data
            return data["prompt"]
        for name in ("reasoning_content", "reasoning", "thinking"):
            assert shown({"role": "assistant", "content": "a", name: "b"}) == "(assistant a|b|b|b)"
        assert shown({"role": "assistant", "content": "a", "reasoning_content": "b", "reasoning": "c"}) \
            == "(assistant a|b|c|b)"
        assert shown({"role": "assistant", "content": "a", "reasoning": None}) == "(assistant a|||)"
        assert shown({"role": "user", "content": "a", "reasoning": "b"}) == "(user a||b|)"
        calls = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
        assert shown({"role": "assistant", "content": "a", "reasoning": "b", "tool_calls": calls}) \
            == '(assistant a\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>|b|b|)'
        assert shown({"role": "assistant", "content": None, "reasoning": "b", "tool_calls": calls}) \
            == '(assistant <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>|b|b|b)'
        assert shown({"role": "user", "content": "a"}, reasoning_effort="high").endswith(")high")
    finally:
        s.wait_idle()
        s.stop()


def test_no_reasoning_in_other_words(marked, tmp_path):
    """An effort of "none" and a budget of 0 turn thinking off in templates that have only enable_thinking."""
    s = serve(marked, "{{ enable_thinking }} {{ reasoning_effort }}", tmp_path)
    try:
        def shown(**more):
            status, data = s.post("/apply-template", {"messages": [{"role": "user", "content": "a"}], **more})
            assert status == 200, data
            return data["prompt"]
        assert shown() == " "
        assert shown(reasoning_effort="none") == "False none"
        assert shown(reasoning_effort="low") == " low"
        assert shown(reasoning_effort="none", enable_thinking=True) == "True none"
        assert shown(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}) == "True none"
    finally:
        s.wait_idle()
        s.stop()


@pytest.mark.parametrize("template, on, off", [
    ("{% if thinking %}on{% else %}off{% endif %}", "on", "off"),
    ("{{ thinking_mode }} 'enabled' 'disabled'", "enabled 'enabled' 'disabled'", "disabled 'enabled' 'disabled'"),
    ("{{ reasoning_effort }} 'high' 'no_think'", "high 'high' 'no_think'", "no_think 'high' 'no_think'"),
], ids=["granite", "minimax", "hunyuan"])
def test_the_templates_own_switch(marked, tmp_path, template, on, off):
    """As in the terminal, whatever its name is there."""
    s = serve(marked, template, tmp_path)
    try:
        def shown(**more):
            status, data = s.post("/apply-template", {"messages": [{"role": "user", "content": "a"}], **more})
            assert status == 200, data
            return data["prompt"]
        assert shown(enable_thinking=True) == on
        for more in {"enable_thinking": False}, {"reasoning_effort": "none"}, {"thinking_token_budget": 0}:
            assert shown(**more) == off, more
        assert shown(reasoning_effort="none", enable_thinking=True) == (on if "effort" not in template else "none 'high' 'no_think'")
        if "mode" in template:  # what the client sets itself stays
            own = {"thinking_mode": "own"}
            assert shown(enable_thinking=False, chat_template_kwargs=own) == "own 'enabled' 'disabled'"
    finally:
        s.wait_idle()
        s.stop()


def test_a_form_behind_closed_reasoning(marked, tmp_path):
    """It holds from the first token, however much the model wants to think again."""
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}<think>\n\n</think>\n\n")
    s = Server(program(SERVER), marked, ["--chat-template", str(tmp_path / "t.jinja")], template=False)
    try:
        think = str(288 - len(MARKS) + MARKS.index("<think>"))
        status, a = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 40,
                                                    "logit_bias": {think: 100}, "guided_choice": ["red", "green"],
                                                    "return_token_ids": True})
        assert status == 200 and a["choices"][0]["message"]["content"] in ("red", "green"), a
        assert int(think) not in a["choices"][0]["token_ids"] and a["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    finally:
        s.wait_idle()
        s.stop()


def test_no_marks_and_tools(thinking):
    """The answer as the model wrote it, and calls taken out of it: not both."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    more = {"tools": tools, "reasoning_format": "none"}
    status, a = thinking.post("/v1/chat/completions", body("a", **more))
    assert status == 400 and a["error"]["param"] == "reasoning_format" and "tool_choice" in a["error"]["message"], a
    for more in {**more, "tool_choice": "none"}, {**more, "reasoning_format": "auto"}:
        assert thinking.post("/v1/chat/completions", body("a", **more))[0] == 200


@pytest.mark.parametrize("template", [HARMONY, THINK], ids=["harmony", "think"])
def test_the_whole_daemon(marked, tmp_path, template):
    """A model that says anything at all: streamed is not streamed, and the runtime takes apart as the
    stand-in does. Marks are made likely, so that they occur."""
    (tmp_path / "t.jinja").write_text(template)
    s = Server(program(SERVER), marked, ["--chat-template", str(tmp_path / "t.jinja")], template=False)
    try:
        first = 288 - len(MARKS)  # of the vocabulary
        seen = set()
        for seed in range(12):
            bias = {str(first + i): 4.5 for i in range(len(MARKS))}
            more = {"seed": seed, "logit_bias": bias, "max_tokens": 60, "temperature": 1,
                    "top_p": 1, "min_p": 0}
            choice, usage = whole(s, "abc", **more)
            message, calls, finish, s_usage = streamed(s, "abc", **more)
            got = choice["message"]
            assert message["content"] == (got["content"] or "")
            assert message["reasoning"] == got.get("reasoning", "")
            assert [c["function"] for c in calls] == [c["function"] for c in got.get("tool_calls", [])]
            assert finish == choice["finish_reason"]
            assert s_usage["completion_tokens_details"] == usage["completion_tokens_details"]
            seen |= {k for k in ("content", "reasoning", "tool_calls") if got.get(k)}
        # that channel has to be written out, which a random model does not
        assert seen >= ({"content"} if template == HARMONY else {"content", "reasoning"})
    finally:
        s.wait_idle()
        s.stop()


def test_in_the_terminal(marked, tmp_path):
    """`conifer run` shows reasoning to who looks at it, dim, and keeps it out of a file."""
    (tmp_path / "t.jinja").write_text("{# </think> #}{{ messages[0].content }}<think>\n")
    (tmp_path / "plain.jinja").write_text("{{ messages[0].content }}<think>\n")

    def run(template, tty):
        cmd = [program(CONIFER), "run", "--model", marked, "--chat-template", tmp_path / template,
               "--temperature", "0", "--max-tokens", "12", "hello"]
        if not tty:
            return subprocess.run(cmd, stdin=subprocess.DEVNULL, capture_output=True, check=True,
                                  timeout=60).stdout.decode()
        master, slave = pty.openpty()
        env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        with subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.DEVNULL,
                              env=env) as p:
            os.close(slave)
            out = b""
            try:
                while part := os.read(master, 65536):
                    out += part
            except OSError:  # the other end is gone
                pass
            os.close(master)
            assert p.wait(60) == 0
        return out.decode().replace("\r\n", "\n")

    said = run("plain.jinja", tty=False)
    assert said.strip() and run("t.jinja", tty=False) == ""
    shown = run("t.jinja", tty=True)
    assert shown.startswith("\033[2m") and shown.endswith("\033[0m\n")
    assert shown[4:-5].strip() == said.replace("<think>", "").strip()  # what is open is not opened again
