"""`conifer run` with a schema, tools and the switch of reasoning, as options and in the chat."""
import json
import os
import pty
import subprocess

import jsonschema
import pytest
from conftest import CONIFER, TEMPLATE, copy_tiny, program, tiny_model
from scripted import answer, call, script
from test_cli import Terminal, conifer, read_until

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Says how the weather is.",
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 14}}, "required": ["city", "days"], "additionalProperties": False}
SCHEMAS = [CITY, {"enum": ["yes", "no", None, 3]}, {"type": "string", "format": "date"},
           {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
           {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
               "name": {"type": "string", "pattern": "^[a-z]{1,6}$"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
               "required": ["name", "next"], "additionalProperties": False}}}]
ARGUMENTS = [{}, {"city": "Paris", "days": 3}, {"odd key": [1, {"a": None, "b": " , : {} "}], "": True, "1st": -1.5e-7},
             {"city": 'a "quoted" \\ name\n', "inner": {"city": {"x": []}}}, {"city": "Zürich ☂"}]


@pytest.fixture
def files(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)
    return write


def run(*args, want=0):
    """(standard output, standard error)."""
    out = subprocess.run([program(CONIFER), "run", *args], stdin=subprocess.DEVNULL, capture_output=True,
                         timeout=60, check=False)
    assert out.returncode == want, out
    return out.stdout.decode(), out.stderr.decode()


def seen(*args):
    """What a terminal gets of one answer."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm", "CONIFER_HISTORY": ""})
        os.execv(program(CONIFER), ["conifer", "run", *args])
    data = read_until(fd, b" s)")
    os.close(fd)
    os.waitpid(pid, 0)
    return data.decode().replace("\r\n", "\n")


# ---- --schema


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_answers_satisfy_the_schema(files, schema):
    path, template = files("s.json", schema), files("t.jinja", TEMPLATE)
    for seed in range(5):
        out, _ = run("--model", tiny_model(), "--chat-template", template, "--schema", path, "-t", "1", "--max-tokens",
                     "200", "--seed", str(seed), "hello")
        jsonschema.validate(json.loads(out), schema)


def test_a_schema_without_a_template(files, tmp_path):
    base = copy_tiny(tmp_path / "base.gguf", lambda name, v: None if name == "tokenizer.chat_template" else v)
    out, err = run("--model", str(base), "--schema", files("s.json", CITY), "--max-tokens", "100", "hello")
    jsonschema.validate(json.loads(out), CITY)
    assert "no chat template" in err


def test_a_schema_after_reasoning(files, tmp_path):
    said = json.dumps({"city": "Rome", "days": 2})
    model = script(tmp_path, answer(f"<think>\nHm.\n</think>\n\n{said}"))
    path = files("s.json", CITY)
    assert json.loads(run(model, "hi", "--schema", path, "--think")[0]) == json.loads(said)
    assert "\x1b[2mHm.\x1b[0m\n\n" + said in seen(model, "hi", "--schema", path, "--think")


def test_an_answer_that_is_cut_off(files):
    """Its exit status says so: what was printed is no JSON."""
    path = files("s.json", CITY)
    out, err = run("null:", "hi", "--schema", path, "--max-tokens", "5", want=1)
    assert "incomplete" in err and path in err and "cut off at 5" in err
    with pytest.raises(ValueError):
        json.loads(out)


@pytest.mark.parametrize("content, words", [
    ("{", ["line 1, column 1", "not valid JSON"]), ("7", ["schema"]),
    ({"type": "objec"}, ["type must be null, boolean, number, integer, string, array, object"]),
    ({"properties": {"a": {"$ref": "http://x/y"}}}, ["properties.a: $ref", "http://x/y", "cannot be enforced: remove or replace it"]),
    ({"items": {"pattern": "(a)\\1"}}, ["items: the pattern", "back references", "cannot be enforced: remove or replace it"]),
    ({"properties": {"a": {"format": "colour"}}}, ["properties.a: format: colour is not a known format", "remove or replace"]),
    ({"type": "string", "minLength": 3, "maxLength": 2}, ["no value satisfies the schema"])], ids=range(7))
def test_schemas_that_cannot_be_used(files, content, words):
    """The file is named, the place in it and the keyword; a model that is not there is not looked for before."""
    path = files("bad.json", content)
    _, err = run("--model", "nowhere.gguf", "--schema", path, "hi", want=1)
    assert path in err and all(w in err for w in words), err
    assert "nowhere" not in err


def test_files_that_cannot_be_read(files, tmp_path):
    for option in ("--schema", "--tools"):
        _, err = run("null:", option, str(tmp_path / "none.json"), "hi", want=1)
        assert "none.json: No such file" in err
        assert "Is a directory" in run("null:", option, str(tmp_path), "hi", want=1)[1]
        assert option in run("null:", "hi", option, want=2)[1]
    assert "name of its file" in run("null:", "hi", "--schema", json.dumps(CITY), want=1)[1]
    for tools, words in [({}, "not a JSON array"), ("[", "not a JSON array: line 1"), ([], "no tools"),
                         ([7], "tools[0].type must be function"), ([{"type": "custom"}], "tools[0].type must be function"),
                         ([{"type": "function"}], "tools[0].function must be an object"),
                         ([{"type": "function", "function": {}}], "tools[0].function.name"),
                         ([WEATHER, WEATHER], "tools[1].function.name: get_weather is offered twice"),
                         ([{"type": "function", "function": {"name": "f", "parameters": 1}}], "parameters must be a JSON schema")]:
        path = files("tools.json", tools)
        _, err = run("null:", "hi", "--tools", path, want=1)
        assert path in err and words in err, err


# ---- --tools


@pytest.fixture
def weather(tmp_path, files):
    """A model that calls once with each of ARGUMENTS, after a thought and some text, and the tools' option."""
    calls = "\n".join(call("get_weather", **a) for a in ARGUMENTS)
    model = script(tmp_path, answer(f"<think>\nI must look.\n</think>\n\nLet me see.\n{calls}", turn=1),
                   answer("It is sunny.", turn=2), answer("Ask me.\n"))
    return [model, "--tools", files("tools.json", [WEATHER])]


def test_calls_for_a_program(weather):
    """Text, then a line of JSON for each call."""
    out, err = run(*weather, "hi")
    first, *lines = out.splitlines()
    assert first == "Let me see." and not err
    assert [json.loads(line) for line in lines] == [{"name": "get_weather", "arguments": a} for a in ARGUMENTS]


def test_calls_for_a_person(weather):
    out = seen(*weather, "hi")
    assert "\x1b[2mI must look.\x1b[0m\n\nLet me see.\n" in out
    lines = out[out.index("get_weather("):].splitlines()
    assert lines[:2] == ["get_weather()", 'get_weather(city="Paris", days=3)']
    assert lines[2] == 'get_weather("odd key"=[1, {"a": null, "b": " , : {} "}], ""=true, "1st"=-1.5e-07)'
    assert lines[3] == 'get_weather(city="a \\"quoted\\" \\\\ name\\n", inner={"city": {"x": []}})'


def test_without_tools_a_call_is_text(weather):
    out, _ = run(weather[0], "hi")
    assert '<tool_call>\n{"name": "get_weather"' in out


def test_a_call_that_is_cut_off(tmp_path, files):
    model = script(tmp_path, answer(call("get_weather", city="Paris " * 40)))
    args = [model, "hi", "--tools", files("tools.json", [WEATHER]), "--max-tokens", "70"]
    out, err = run(*args)
    got = json.loads(out)
    assert got["name"] == "get_weather" and got["arguments"].startswith('{"city": "Paris Paris') and "cut off at 70" in err
    assert ' ...\n' in seen(*args) and 'get_weather(city="Paris Paris' in seen(*args)


def test_a_schema_or_a_call(weather, files):
    out, _ = run(*weather, "--schema", files("s.json", CITY), "hi", "--no-think")
    assert json.loads(out.splitlines()[0])["name"] == "get_weather"


def test_tools_that_the_template_has_no_place_for(files):
    """They are described in the system message; unless that is off, or there is no template."""
    template = files("t.jinja", "{{ raise_exception('[' + messages | map(attribute='content') | join('|') + ']') }}")
    args = ["--model", tiny_model(), "--tools", files("tools.json", [WEATHER]), "hi", "--max-tokens", "3"]
    _, err = run(*args, "--chat-template", template, want=1)
    assert "<tools>" in err and "get_weather" in err
    _, err = run(*args, "--chat-template", template, "--set", "model.tools_fallback=false", want=1)
    assert "no place for them" in err and "tools_fallback" in err


def test_tools_without_a_template(files, tmp_path):
    base = copy_tiny(tmp_path / "base.gguf", lambda name, v: None if name == "tokenizer.chat_template" else v)
    assert "has no chat template" in run("--model", str(base), "--tools", files("tools.json", [WEATHER]), "hi", want=1)[1]


def test_tools_get_the_members_that_templates_write(files):
    template = files("t.jinja", "{{ raise_exception('<' + tools[0].function.description + '>' + tools[0].function.parameters.type) }}")
    bare = [{"type": "function", "function": {"name": "f"}}]
    _, err = run("--model", tiny_model(), "--chat-template", template, "--tools", files("t.json", bare), "hi", want=1)
    assert "<>object" in err


# ---- --think


@pytest.mark.parametrize("option, value", [("--think", "True"), ("--no-think", "False"), (None, "unset")])
def test_the_switch_reaches_the_template(files, option, value):
    said = "{{ enable_thinking if enable_thinking is defined else 'unset' }}"
    template = files("t.jinja", "{% if messages[0].content == 'tell' %}{{ raise_exception('<' ~ ("
                     + said[3:-3] + ") ~ '>') }}{% endif %}" + said)
    args = ["--model", tiny_model(), "--chat-template", template, "tell", *([option] if option else [])]
    assert f"<{value}>" in run(*args, want=1)[1]


def test_reasoning_is_shown_or_off(weather):
    assert "I must look." in seen(*weather, "hi", "--think")
    assert "I must look." not in seen(*weather, "hi", "--no-think")
    assert "I must look." in seen(*weather, "hi", "--no-think", "--think")  # the last one counts


def test_a_model_without_the_switch(files):
    _, err = run("null:", "hi", "--max-tokens", "3", "--no-think")
    assert err.count("cannot be turned off") == 1
    assert "cannot be turned" not in run("null:", "hi", "--max-tokens", "3")[1]


# ---- in the chat


def test_schema_in_the_chat(files):
    path = files("s.json", CITY)
    with Terminal("--model", tiny_model(), "--chat-template", files("t.jinja", TEMPLATE), "--max-tokens", "200", "-t", "1",
                  term="dumb") as t:
        t.send(b"/set stats off\n", b"off")
        t.send(b"/set wrap off\n", b"off")
        assert b"there is no schema" in t.send(b"/schema\n", b"free)")
        assert b"satisfy" in t.send(f"/schema {path}\n".encode(), b"on)")
        for _ in range(3):
            said = t.send(b"hello\n").decode().replace("\r\n", "\n")
            text = said[said.index("hello") + 5:said.rindex(">>>")]
            jsonschema.validate(json.loads(text), CITY)
        bad = files("bad.json", {"properties": {"a": {"$ref": "http://x/y"}}})
        assert b"properties.a: $ref" in t.send(f"/schema {bad}\n".encode(), b"replace it")
        jsonschema.validate(json.loads(t.send(b"hello\n").decode().split("hello", 1)[1].rsplit(">>>", 1)[0]), CITY)
        assert b"No such file" in t.send(b"/schema nothing.json\n", b"directory")
        assert b"free from now on" in t.send(b"/schema\n", b"on)")
        assert t.ends(b"\x04") == 0


def test_think_in_the_chat(weather):
    with Terminal(*weather) as t:
        assert b"as the model's template has it" in t.send(b"/think\n", b"it)")
        assert b"reasoning is off" in t.send(b"/think off\n", b"off)")
        assert b"I must look." not in t.send(b"hi\n", b"(/result")
        assert b"/think takes on, off or default, not maybe" in t.send(b"/think maybe\n", b"maybe.")
        t.send(b"/clear\n", b"forgotten)")
        assert b"reasoning is on" in t.send(b"/think on\n", b"on)")
        assert b"I must look." in t.send(b"hi\n", b"(/result")
        assert b"cannot be turned on" in t.send(b"/model null:\n", b"turned on)")
        assert b"as the model's template has it" in t.send(b"/think default\n", b"it)")


def test_results_in_the_chat(weather, tmp_path):
    """Each call takes one; after the last the model answers, and the conversation has it all."""
    path = tmp_path / "talk.json"
    with Terminal(*weather, "--no-think") as t:
        assert b"no call that waits" in t.send(b"/result 1\n", b"result.")
        assert b"(/result TEXT says what get_weather gave)" in t.send(b"hi\n", b"gave)")
        for i in range(len(ARGUMENTS) - 1):
            t.send(f"/result {i} degrees\n".encode(), b"(next: /result TEXT of get_weather)")
        assert b"It is sunny." in t.send(b"/result the last\n", b" s)")
        assert b"no call that waits" in t.send(b"/result more\n", b"result.")
        t.send(f"/save {path}\n".encode(), b"as JSON)")
    user, asked, *results, last = json.loads(path.read_text())["messages"]
    assert user["content"] == "hi" and asked["content"] == "Let me see." and last["content"] == "It is sunny."
    ids = [c["id"] for c in asked["tool_calls"]]
    assert [json.loads(c["function"]["arguments"]) for c in asked["tool_calls"]] == ARGUMENTS and len({*ids}) == len(ids)
    assert [m["tool_call_id"] for m in results] == ids and results[-1]["content"] == "the last"


def test_a_cut_call_is_not_kept(tmp_path, files):
    model = script(tmp_path, answer(call("get_weather", city="Paris " * 40), turn=1), answer("Well.", turn=2))
    path = tmp_path / "talk.txt"
    with Terminal(model, "--tools", files("tools.json", [WEATHER]), "--max-tokens", "40") as t:
        assert b" ..." in t.send(b"hi\n", b"limit)")
        assert b"Well." in t.send(b"hello\n", b" s)")
        t.send(f"/save {path}\n".encode(), b"as text)")
    assert path.read_text() == "## user\n\nhi\n\n## assistant\n\n\n\n## user\n\nhello\n\n## assistant\n\nWell.\n"


def test_help():
    told = conifer("run", "--help")
    for option in (b"--schema FILE", b"--tools FILE", b"--think, --no-think"):
        assert option in told
    with Terminal("null:") as t:
        told = t.send(b"/help\n", b"as it is.")
        assert b"/schema [FILE]" in told and b"/think [on|off]" in told and b"/result TEXT" in told
