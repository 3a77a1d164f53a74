"""Tools of type custom: the model is shown a function with one text, and the client gets that text."""
import json
import re

import pytest
from answers import CHAT
from conftest import SERVER, Server, oracle, program, sse
from scripted import answer, call, script

TEXT = {"type": "custom", "custom": {"name": "run", "description": "Runs a program"}}
HEX = {"type": "custom", "custom": {"name": "hex", "format": {
    "type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9a-f]{4}|none"}}}}
LARK = r"""start: "*** Begin\n" line+ "*** End"
line: "+" expr "\n"
expr: "(" expr ")" | "\"" /[a-c\\]/ | "é" """
PATCH = {"type": "custom", "custom": {"name": "patch", "format": {
    "type": "grammar", "grammar": {"syntax": "lark", "definition": LARK}}}}
PING = {"type": "function", "function": {"name": "ping"}}
PROGRAM = 'print("a\\n\tb")\n# é, 😀 and \\u0041\n'
ANY = {"temperature": 1, "top_p": 1, "min_p": 0}


def named(name, kind="custom"):
    return {"type": kind, kind: {"name": name}}


def allowed(mode, *tools):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def user(text):
    return {"role": "user", "content": text}


def both(server, **body):
    """[(type, name, input or arguments)] and the content, of a whole answer, which a stream has as well."""
    body = {"max_tokens": 400, "seed": 1, **body}
    body.setdefault("messages", [user("x")])
    status, a = server.post(CHAT, body)
    assert status == 200, a
    c = a["choices"][0]
    calls = [(t["type"], t[t["type"]]["name"], t[t["type"]]["input" if t["type"] == "custom" else "arguments"])
             for t in c["message"].get("tool_calls", [])]
    assert all(set(t) == {"id", "type", t["type"]} and t["id"] for t in c["message"].get("tool_calls", []))
    assert c["finish_reason"] in (("tool_calls",) if calls else ("stop",)) or c["finish_reason"] == "length"
    got, content = [], ""
    for e in sse(server.http("POST", CHAT, {**body, "stream": True})[2])[:-1]:
        for d in (c["delta"] for c in e["choices"]):
            content += d.get("content") or ""
            for t in d.get("tool_calls", []):
                if "id" in t:
                    assert t["index"] == len(got)
                    got.append([t["type"], t[t["type"]]["name"], ""])
                kind = got[t["index"]][0]
                assert set(t) <= {"index", "id", "type", kind} and ("name" in t[kind]) == ("id" in t)
                got[t["index"]][2] += t[kind]["input" if kind == "custom" else "arguments"]
    assert [tuple(g) for g in got] == calls and content == (c["message"]["content"] or "")
    return calls, content


@pytest.fixture(scope="module")
def null():
    s = Server(program(SERVER), "null:", template=False)
    yield s
    s.wait_idle()
    s.stop()


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    odd = [("number", {"input": 5}), ("list", {"x": {"input": 1}, "input": ["a", {"input": '"}'}]}), ("other", {"code": "a"}),
           ("nothing", {}), ("behind", {"a": "\\\"", "b": {"input": 1}, "input": "it"})]
    path = script(tmp_path_factory.mktemp("custom"), answer("I run it.\n" + call("run", input=PROGRAM), user="run"),
                  answer(call("run", input="1") + "\n" + call("ping") + "\n" + call("run", input="2"), user="three"),
                  answer(call("hex", input="not hex"), user="hex"),
                  answer(call("patch", input='*** Begin\n+(("a))\n+é\n*** End').replace("\\u00e9", "é"), user="patch"),
                  answer(call("patch", input='*** Begin\n+(("a)\n*** End'), user="bad patch"),
                  *(answer(call("run", **arguments), user=name) for name, arguments in odd))
    s = Server(program(SERVER), path, template=False)
    yield s
    s.wait_idle()
    s.stop()


def test_the_model_calls(agent):
    assert both(agent, messages=[user("run")], tools=[PING, TEXT]) == ([("custom", "run", PROGRAM)], "I run it.")
    assert both(agent, messages=[user("three")], tools=[TEXT, PING])[0] == [
        ("custom", "run", "1"), ("function", "ping", "{}"), ("custom", "run", "2")]
    assert both(agent, messages=[user("three")], tools=[TEXT, PING], parallel_tool_calls=False)[0] == [("custom", "run", "1")]
    assert both(agent, messages=[user("three")], tools=[TEXT, PING], tool_choice=allowed("auto", named("ping", "function")))[0] \
        == [("function", "ping", "{}")]


@pytest.mark.parametrize("name, text", [("number", "5"), ("list", '["a", {"input": "\\"}"}]'), ("other", '{"code": "a"}'),
                                        ("nothing", "{}"), ("behind", "it")])
def test_arguments_of_another_shape(agent, name, text):
    """What is no text is given as the model wrote it."""
    assert both(agent, messages=[user(name)], tools=[TEXT])[0] == [("custom", "run", text)]


def test_a_call_that_is_cut(agent):
    status, a = agent.post(CHAT, {"messages": [user("run")], "tools": [TEXT], "max_tokens": 60})
    c = a["choices"][0]
    assert status == 200 and c["finish_reason"] == "length"
    assert PROGRAM.startswith(c["message"]["tool_calls"][0]["custom"]["input"])


@pytest.mark.parametrize("choice, names", [
    ("required", {"run", "hex", "ping"}), (named("run"), {"run"}), (named("hex"), {"hex"}),
    (allowed("required", named("hex"), named("ping", "function")), {"hex", "ping"})])
def test_required(null, choice, names):
    seen = set()
    for seed in range(20):
        for kind, name, text in both(null, tools=[TEXT, HEX, PING], tool_choice=choice, seed=seed, max_tokens=800, **ANY)[0]:
            assert kind == ("function" if name == "ping" else "custom")
            assert name != "hex" or re.fullmatch("[0-9a-f]{4}|none", text)
            seen.add(name)
    assert seen == names


def test_a_grammar_holds_where_the_model_chooses(agent):
    calls = both(agent, messages=[user("hex")], tools=[HEX])[0]
    assert [c[:2] for c in calls] == [("custom", "hex")] and re.fullmatch("[0-9a-f]{4}|none", calls[0][2])


def is_patch(text):
    lines = re.fullmatch(r"\*\*\* Begin\n((?:\+.*\n)+)\*\*\* End", text)[1].splitlines()
    return all(re.fullmatch(r'\+\(*("[a-c\\]|é)\)*', line) and line.count("(") == line.count(")") for line in lines)


def test_a_grammar_of_lark(null, agent):
    """Rules that are not regular, in a JSON string: required, beside a function, and where the model chooses."""
    seen = set()
    for seed in range(8):
        for kind, name, text in both(null, tools=[PATCH, PING], tool_choice="required", seed=seed, max_tokens=600, **ANY)[0]:
            assert kind == ("function" if name == "ping" else "custom") and (name == "ping" or is_patch(text)), text
            seen.add(name)
        calls = both(null, tools=[PATCH, HEX], tool_choice=named("patch"), seed=seed, max_tokens=600, **ANY)[0]
        assert all(c[:2] == ("custom", "patch") and is_patch(c[2]) for c in calls) and calls
    assert seen == {"patch", "ping"}
    calls = both(agent, messages=[user("patch")], tools=[PATCH])[0]
    assert calls == [("custom", "patch", '*** Begin\n+(("a))\n+é\n*** End')]
    calls = both(agent, messages=[user("patch")], tools=[PATCH], **{"grammars of custom tools": {"patch": 'start: "a"'}})[0]
    assert is_patch(calls[0][2])  # no field that has an effect
    calls = both(agent, messages=[user("bad patch")], tools=[PATCH], max_tokens=600, **ANY)[0]
    assert [c[:2] for c in calls] == [("custom", "patch")] and is_patch(calls[0][2])


def test_the_conversation(agent):
    """Calls come back, and are shown as the function that the model called."""
    def shown(*calls):
        status, a = agent.post("/apply-template", {"tools": [TEXT, PING], "messages": [
            user("x"), {"role": "assistant", "content": None, "tool_calls": list(calls)},
            {"role": "tool", "tool_call_id": "c1", "content": "done"}, user("y")]})
        assert status == 200, a
        return a["prompt"]
    custom = {"id": "c1", "type": "custom", "custom": {"name": "run", "input": PROGRAM}}
    function = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": json.dumps({"input": PROGRAM}, ensure_ascii=False)}}
    assert shown(custom) == shown(function)
    ping = {"id": "c2", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    assert shown(ping, custom) == shown(ping, function)
    assert '"type": "custom"' not in shown(custom) and "Runs a program" in shown(custom)


def test_other_forms(tmp_path):
    """One with a tag for each parameter, one whose calls begin without a mark."""
    for name, auto in ("Qwen3-Coder", 200), ("meta-llama-Llama-3.3-70B-Instruct", 400):
        s = Server(program(SERVER), "null:", ["--chat-template", str(oracle(f"templates/{name}.jinja"))], template=False)
        try:
            for choice, known in (named("run"), "run"), (named("hex"), "hex"):
                for kind, called, text in both(s, tools=[TEXT, HEX], tool_choice=choice, **ANY)[0]:
                    assert (kind, called) == ("custom", known) and (known == "run" or re.fullmatch("[0-9a-f]{4}|none", text))
            status, a = s.post(CHAT, {"messages": [user("x")], "tools": [TEXT, HEX], "max_tokens": 5})
            assert status == auto, a
            assert auto == 200 or a["error"]["param"] == "tools[1].custom.format"
            status, a = s.post(CHAT, {"messages": [user("x")], "tools": [HEX, PATCH], "max_tokens": 500, "tool_choice": named("patch")})
            if auto == 200:
                assert status == 400 and a["error"]["param"] == "tools[1].custom.format.grammar.definition", a
            else:
                assert is_patch(a["choices"][0]["message"]["tool_calls"][0]["custom"]["input"]), a
        finally:
            s.wait_idle()
            s.stop()


def test_the_official_client(null):
    client = null.client()
    a = client.chat.completions.create(model="null", messages=[user("x")], tools=[TEXT, HEX], tool_choice=named("hex"),
                                       max_tokens=100)
    t = a.choices[0].message.tool_calls[0]
    assert t.type == "custom" and t.custom.name == "hex" and re.fullmatch("[0-9a-f]{4}|none", t.custom.input)
    result = {"role": "tool", "tool_call_id": t.id, "content": "done"}
    client.chat.completions.create(model="null", messages=[user("x"), a.choices[0].message, result], tools=[HEX], max_tokens=5)


def test_a_brace_that_is_no_quantifier(null):
    a = null.post(CHAT, {"messages": [user("x")], "max_tokens": 100, "tool_choice": "required", **form(
        syntax="regex", definition="a{3")})[1]
    assert {t["custom"]["input"] for t in a["choices"][0]["message"]["tool_calls"] if t["type"] == "custom"} <= {"a{3"}


def form(**grammar):
    return {"tools": [PING, {"type": "custom", "custom": {"name": "run", "format": {"type": "grammar", "grammar": grammar}}}]}


def custom(**members):
    return {"tools": [{"type": "custom", "custom": members}]}


@pytest.mark.parametrize("more, param, says", [
    ({"tools": [{"type": "custom"}]}, "tools[0].custom", "an object"), (custom(), "tools[0].custom.name", "missing"),
    (custom(name="a b"), "tools[0].custom.name", "letters"), (custom(name="a", description=5), "tools", "description"),
    ({"tools": [PING, TEXT, TEXT]}, "tools[2].custom.name", "twice"),
    ({"tools": [named("run", "function"), TEXT]}, "tools[1].custom.name", "twice"),
    (custom(name="a", format="text"), "tools[0].custom.format", "an object"),
    (custom(name="a", format={"type": "json"}), "tools[0].custom.format.type", "text or grammar"),
    (custom(name="a", format={"type": "grammar"}), "tools[0].custom.format.grammar", "syntax and definition"),
    (form(syntax="lark", definition='start: "a'), "tools[1].custom.format.grammar.definition", "line 1, column 8"),
    (form(syntax="lark", definition="start: %json {}"), "tools[1].custom.format.grammar.definition", "%json within a string"),
    (form(syntax="lark", definition="start: <|im_end|>"), "tools[1].custom.format.grammar.definition", "line 1, column 8"),
    (form(syntax="lark", definition="start: /a/ start"), "tools[1].custom.format.grammar.definition", ""),
    (form(syntax="lark", definition=5), "tools[1].custom.format.grammar.definition", "a grammar in a string"),
    (form(syntax="peg", definition="a"), "tools[1].custom.format.grammar.syntax", "lark or regex"),
    (form(syntax="regex"), "tools[1].custom.format.grammar.definition", "a grammar in a string"),
    (form(syntax="regex", definition="a)|(b"), "tools[1].custom.format.grammar.definition", "parenthesis"),
    (form(syntax="regex", definition="a\0b"), "tools[1].custom.format.grammar.definition", "U+0000"),
    ({**form(syntax="regex", definition=r"(a)\1"), "tool_choice": "required"}, "tools[1].custom.format.grammar.definition", ""),
    # of those that are allowed it is the first
    ({**form(syntax="regex", definition=r"(a)\1"), "tool_choice": named("run")}, "tools[1].custom.format.grammar.definition",
     "back references"),
    ({"tools": [PING, {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "a": {"$recursiveRef": "#"}}}}}], "tool_choice": named("f", "function")},
     "tools[1].function.parameters.properties.a", "tools[1].function.parameters.properties.a: $recursiveRef"),
    (form(syntax="regex", definition=r"(?<=a)b"), "tools[1].custom.format.grammar.definition", ""),
    ({"tools": [TEXT], "tool_choice": named("run", "function")}, "tool_choice", "with its type"),
    ({"tools": [PING], "tool_choice": named("ping")}, "tool_choice", "with its type"),
    ({"tools": [TEXT], "tool_choice": {"type": "custom"}}, "tool_choice", "custom.name is missing"),
    ({"tools": [TEXT], "tool_choice": allowed("auto", named("nope"))}, "tool_choice.allowed_tools.tools", "must name"),
    ({"messages": [user("x"), {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "f"}}]}]},
     "messages[1].tool_calls", "an input"),
])
def test_refused(null, more, param, says):
    for stream in False, True:
        status, a = null.post(CHAT, {"messages": [user("x")], "stream": stream, "max_tokens": 5, **more})
        assert status == 400 and a["error"]["param"] == param and says in a["error"]["message"], a
