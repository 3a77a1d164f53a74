"""Tools with models of all families: calls that are required, that are strict, or that may stand for a form of the
answer; and histories in all orders that clients send."""
import json
import re

import pytest
from answers import CHAT, both, values
from conftest import SERVER, Server, oracle, oracle_files, program
from scripted import answer, played, script, tagged
from test_choices import ANY, PARIS, PING, REASON, SCHEMAS, TOOLS, body, check_calls, function, named, user

# ---- all families ---------------------------------------------------------------------------------

FORMS = [p.stem for p in oracle_files("tools/*.json")]
REFUSED = {"llama-cpp-deepseek-r1"}  # its template dumps a generator, which no renderer does


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """One daemon with a model for each form of oracle/tools, which are loaded when they are asked."""
    folder = tmp_path_factory.mktemp("families")
    models = {form: played(folder, form, slice(0, 1)) for form in FORMS}
    config = "models:\n" + "".join(f"  - name: {form}\n    path: {json.dumps(path)}\n"
                                   for form, (path, _, _) in models.items())
    s = Server(program(SERVER), None, ["--threads", "1"], config=config)
    s.models = models
    yield s
    s.wait_idle()
    s.stop()


@pytest.mark.parametrize("form", FORMS)
def test_required_of_every_family(families, form):
    """In the form of the family, which its reader takes apart; also where reasoning goes before."""
    doc = families.models[form][1]
    tools = [t for t in doc["tools"] if t["function"]["name"] in ("get_weather", "search", "ping")]
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    if form in REFUSED:
        pytest.skip("its template renders no tools")
    for choice, names in (("required", set(schemas)), (named("search"), {"search"}), (named("ping"), {"ping"})):
        for seed in range(2):
            request = {"model": form, "messages": [user("go on")], "tools": tools, "tool_choice": choice,
                       "max_tokens": 500, "seed": seed, **ANY}
            said = both(families, request)[0]
            said.content = said.content.strip()
            check_calls(said, names, schemas)
            if doc["form"].startswith("mistral"):
                assert all(re.fullmatch("[0-9A-Za-z]{9}", i) for i, _, _ in said.calls)


# ---- histories ------------------------------------------------------------------------------------

def calls(*items, content=None):
    return {"role": "assistant", "content": content, "tool_calls": [
        {"id": i, "type": "function", "function": {"name": "get_weather", "arguments": a}} for i, a in items]}


def result(i, content="warm"):
    return {"role": "tool", "tool_call_id": i, "content": content}


ASK = [user("W?"), calls(("x1", '{"city": "Rome"}'))]
BOTH = [user("W?"), calls(("x1", '{"city": "Rome"}'), ("x2", '{"city": "Oslo"}'))]
HISTORIES = {
    "plain": [*ASK, result("x1")], "two": [*BOTH, result("x1"), result("x2", "cold")],
    "reversed": [*BOTH, result("x2", "cold"), result("x1")], "one missing": [*BOTH, result("x1")],
    "no result": ASK, "goes on": [*ASK, result("x1"), {"role": "assistant", "content": "Warm."}, user("thanks")],
    "result without calls": [user("W?"), result("x9")],
    "no id": [*ASK, {"role": "tool", "content": "warm"}],
    "only a name": [*ASK, {"role": "tool", "name": "get_weather", "content": "warm"}],
    "empty id": [user("W?"), calls(("", "{}")), result("")], "long id": [user("W?"), calls(("x" * 64, "{}")), result("x" * 64)],
    "id of another kind": [user("W?"), calls(("toolu_01A-b_9", "{}")), result("toolu_01A-b_9")],
    "same id again": [*ASK, result("x1"), {"role": "assistant", "content": "Warm."}, *ASK, result("x1", "cold")],
    "text beside": [user("W?"), calls(("x1", "{}"), content="Let me see."), result("x1")],
    "empty text": [user("W?"), calls(("x1", "{}"), content=""), result("x1", "")],
    "null result": [*ASK, result("x1", None)], "parts": [*ASK, result("x1", [{"type": "text", "text": "warm"}])],
    "no arguments": [user("W?"), calls(("x1", "")), result("x1")],
    "null calls": [user("W?"), {"role": "assistant", "content": "hi", "tool_calls": None}, user("x")],
    "no calls": [user("W?"), {"role": "assistant", "content": "hi", "tool_calls": []}, user("x")],
    "older": [user("W?"), {"role": "assistant", "content": None, "function_call": {
        "name": "get_weather", "arguments": '{"city": "Rome"}'}}, {"role": "function", "name": "get_weather", "content": "warm"}],
    "user between": [*ASK, user("Hm."), result("x1")], "half arguments": [user("W?"), calls(("x1", '{"city": "Ro')), result("x1")],
}
# A template's own rules: one call a turn, roles that take turns, results behind calls, arguments as an object.
OWN_RULES = {
    "mistralai-Mistral-Nemo-Instruct-2407": {"user between"}, "Mistral-Small-3.2-24B-Instruct-2506": {"user between"},
    "meta-llama-Llama-3.3-70B-Instruct": {"two", "reversed", "one missing"},
    "openai-gpt-oss-120b": {"result without calls"}, "Apertus-8B-Instruct": {"result without calls", "user between"},
    "Qwen3-Coder": {"half arguments"}, "GLM-4.6": {"half arguments"}, "deepseek-ai-DeepSeek-V4": {"half arguments"}}
SHOWN_IN_PART = {"openai-gpt-oss-120b"}  # of several calls the first
HISTORY_OF = ["Qwen-Qwen2.5-7B-Instruct", "Kimi-K2-Instruct", "deepseek-ai-DeepSeek-V3.1", "google-gemma-4-31B-it-interleaved",
              "ibm-granite-granite-4.0", "LFM2-8B-A1B", "MiniMax-M1", *OWN_RULES]


def left_out(server, form):
    """Words of HISTORIES that the family's template leaves out, as the reference's rendering of such a history shows."""
    name = server.models[form][1]["template"]
    cases = json.loads(oracle(f"templates/{name}.json").read_text(encoding="utf-8"))["cases"]
    output = next(c for c in cases if c["name"] == "parallel_tools").get("output", "")
    return ({"Let me see."} if "Let me look." not in output else set()) | (
        {"Rome", "Oslo"} if output and "Rome" not in output else set())


@pytest.mark.parametrize("form", HISTORY_OF)
def test_histories(families, form):
    hidden = left_out(families, form)
    for name, messages in HISTORIES.items():
        status, a = families.post("/apply-template", {"model": form, "messages": messages, "tools": TOOLS})
        if name in OWN_RULES.get(form, ()):
            assert status == 400 and a["error"]["param"].startswith("messages"), (name, a)
            continue
        assert status == 200, (name, a)
        for word in ("warm", "cold", "Rome", "Oslo", "Let me see."):
            if word in json.dumps(messages) and word not in hidden and (word != "Oslo" or form not in SHOWN_IN_PART):
                assert word in a["prompt"], (name, word)


def test_ids_that_a_template_wants(families):
    """Mistral's are nine letters and digits, whatever the client sends; different ones stay different."""
    for form in "mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506":
        for a, b in (("x1", "x2"), ("call_" + "a" * 24, "call_" + "a" * 23 + "b"), ("abcdefghi", "abcdefgh1")):
            messages = [user("W?"), calls((a, "{}"), (b, "{}")), result(b, "cold"), result(a)]
            prompt = families.post("/apply-template", {"model": form, "messages": messages, "tools": TOOLS})[1]["prompt"]
            ids = re.findall(r'(?:"id": "|"call_id": "|\[CALL_ID\]|\[TOOL_CONTENT\]|\[TOOL_RESULTS\])([0-9A-Za-z]{9})\b', prompt)
            assert len(set(ids)) == 2 and len(ids) >= 3, prompt
    messages = [user("W?"), calls(("toolu_1", "{}")), result("toolu_1"), user("again"), calls(("x", "{}"))]
    prompt = families.post("/apply-template", {"model": "Kimi-K2-Instruct", "messages": messages, "tools": TOOLS})[1]["prompt"]
    assert "functions.get_weather:0" in prompt and "functions.get_weather:1" in prompt and "toolu_1" not in prompt


def test_ids_that_count(tmp_path):
    """Kimi's count the calls of a conversation, also where the model counts from 0 again; names stay as they are."""
    path, doc, _ = played(tmp_path, "Kimi-K2-Instruct", slice(0, 1))
    said = "<|tool_calls_section_begin|>" + "".join(
        f"<|tool_call_begin|>functions.get_weather:{i}<|tool_call_argument_begin|>{{}}<|tool_call_end|>" for i in (0, 1, 0)) + (
        "<|tool_calls_section_end|>")
    text = (tmp_path / "Kimi-K2-Instruct.txt").read_text(encoding="utf-8")
    (tmp_path / "Kimi-K2-Instruct.txt").write_text(text[:text.index("=== answer")] + answer(said), encoding="utf-8")
    s = Server(program(SERVER), path, template=False)
    messages = [user("W?")]
    for turn in range(3):
        got = both(s, {"messages": messages, "tools": TOOLS, "max_tokens": 500})[0]
        assert [i for i, _, _ in got.calls] == [f"functions.get_weather:{3 * turn + k}" for k in range(3)]
        messages += [calls(*((i, "{}") for i, _, _ in got.calls)), *(result(i) for i, _, _ in got.calls), user("again")]
    s.wait_idle()
    s.stop()


def test_ids_of_the_model_are_text(tmp_path):
    """An id that the model writes may hold anything, and none comes twice."""
    path, doc, _ = played(tmp_path, "mistralai-Mistral-Nemo-Instruct-2407", slice(0, 1))
    said = "[TOOL_CALLS]" + json.dumps([{"name": "ping", "arguments": {}, "id": i} for i in ('a"b\n', 'a"b\n', "x" * 200)])
    file = tmp_path / "mistralai-Mistral-Nemo-Instruct-2407.txt"
    text = file.read_text(encoding="utf-8")
    file.write_text(text[:text.index("=== answer")] + answer(said), encoding="utf-8")
    s = Server(program(SERVER), path, template=False)
    got = both(s, {"messages": [user("x")], "tools": TOOLS, "max_tokens": 500})[0]
    assert len(got.calls) == 3 and got.calls[0][0] == 'a"b\n'
    s.wait_idle()
    s.stop()


def test_required_where_headers_name_calls(tmp_path):
    """gpt-oss: its reasoning is kept, an answer that would be text becomes a call, and a form beside tools holds."""
    path, _, _ = played(tmp_path, "openai-gpt-oss-120b", slice(0, 1))
    thought = f"<|channel|>analysis<|message|>{REASON}<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>"
    paris = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}'
    file = tmp_path / "openai-gpt-oss-120b.txt"
    text = file.read_text(encoding="utf-8")
    file.write_text(text[:text.index("=== answer")] + answer(thought + paris, user="weather") + answer(paris, user="at once")
                    + answer(f"{thought}<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant{paris}", user="aside")
                    + answer(f"{thought}{final}Hello.", user="prose") + answer(f'{thought}{final}{{"a": true}}', user="json"),
                    encoding="utf-8")
    s = Server(program(SERVER), path, template=False)
    for text, reasoning in (("weather", REASON), ("at once", "")):
        for choice in "required", named("get_weather"), "auto":
            said = both(s, body(text, tool_choice=choice))[0]
            assert (said.reasoning, said.content, values(said)) == (reasoning, "", [PARIS])
            assert said.finish == "tool_calls"
    for seed in range(4):
        said = both(s, body("prose", tool_choice="required", seed=seed, **ANY))[0]
        check_calls(said, SCHEMAS)
        check_calls(both(s, body("prose", tool_choice=named("pick"), seed=seed, max_tokens=120, **ANY))[0], {"pick"})
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}}}}
    said = both(s, body("json", **form))[0]
    assert (said.reasoning, said.content, said.finish) == (REASON, '{"a": true}', "stop")
    said = both(s, body("weather", **form))[0]
    assert (said.reasoning, said.content, values(said)) == (REASON, "", [PARIS])
    strict = {"tools": [PING, only("Oslo", strict=True)]}
    said = both(s, body("prose", **strict))[0]
    assert (said.reasoning, said.content, said.calls, said.finish) == (REASON, "Hello.", [], "stop")
    said = both(s, body("aside", **strict))[0]
    assert (said.reasoning, said.content, values(said)) == (REASON, "Let me see.", [("get_weather", {"city": "Oslo"})])
    for n in range(3, 40, 4):  # nothing is made up where the answer is cut
        said = both(s, body("prose", max_tokens=n, **strict))[0]
        assert REASON.startswith(said.reasoning) and "Hello.".startswith(said.content) and not said.calls
    for n in range(4):  # thoughts have their bound, whatever comes behind them
        for more in strict, {"tool_choice": "required"}, form:
            said = both(s, body("weather", thinking_token_budget=n, **{"tools": TOOLS, **more}))[0]
            assert REASON.startswith(said.reasoning) and len(said.reasoning.split()) <= n + 1, said.shape()
    going_on = {"messages": [user("prose"), {"role": "assistant", "content": "Hel"}], "continue_final_message": True,
                "add_generation_prompt": False, "max_tokens": 30, **strict}
    said = both(s, going_on)[0]  # in the midst of an answer
    assert not said.calls and "<|" not in said.content
    s.wait_idle()
    s.stop()


def test_required_where_the_mark_of_calls_ends_turns(tmp_path):
    """GigaChat 3, from a file that says so: the call comes without the mark."""
    doc = json.loads(oracle("tools/GigaChat3-10B-A1.8B.json").read_text(encoding="utf-8"))
    path = script(tmp_path, answer("Hello."), marks=["<|role_sep|>"], end="<|message_sep|>", bos=doc["variables"]["bos_token"],
                  template=oracle(f"templates/{doc['template']}.jinja"))
    s = Server(program(SERVER), path, template=False)
    for choice in "required", named("get_weather"):
        check_calls(both(s, body("x", tool_choice=choice, seed=1, **ANY))[0], SCHEMAS)
    said = both(s, body("x"))[0]
    assert (said.content, said.calls, said.finish) == ("Hello.", [], "stop")
    s.wait_idle()
    s.stop()


# What pydantic makes of classes: references, values that may be null; and texts that are bounded.
BOOK = {"type": "object", "$defs": {"Colour": {"enum": ["red", "green"], "type": "string"}, "Point": {
    "type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"],
    "additionalProperties": False}},
    "properties": {"code": {"type": "string", "pattern": "^[A-Z]{3}$"}, "short": {"type": "string", "minLength": 2, "maxLength": 5},
                   "day": {"type": "string", "format": "date"}, "colour": {"$ref": "#/$defs/Colour"}, "same": {"const": "a<b"},
                   "at": {"$ref": "#/$defs/Point"}, "maybe": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
                   "either": {"type": ["string", "integer"], "maxLength": 3, "maximum": 5, "minimum": 0}},
    "required": ["code", "short", "day", "colour", "same", "at", "maybe", "either"], "additionalProperties": False}


@pytest.mark.parametrize("form", FORMS)
def test_arguments_satisfy_all_of_their_schema(families, form):
    doc = families.models[form][1]
    if form in REFUSED:
        pytest.skip("calls cannot be required of it")
    for seed in range(4):
        said = both(families, {"model": form, "messages": [user("go on")], "tools": [function(parameters=BOOK)],
                               "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 700, "seed": seed, **ANY})[0]
        said.content = said.content.strip()
        check_calls(said, {"f"}, {"f": BOOK})


# ---- what a model writes, held to another schema --------------------------------------------------

BARE = {"llama3"}  # forms in which calls begin without a mark


def only(city, **more):
    """get_weather, of which no call of the oracle's first case is one."""
    return {"type": "function", "function": {"name": "get_weather", **more, "parameters": {
        "type": "object", "properties": {"city": {"enum": [city]}}, "required": ["city"], "additionalProperties": False}}}


@pytest.mark.parametrize("form", FORMS)
def test_strict_in_every_family(families, form):
    """The model calls for Rome, and may call for Oslo only. Where calls have no mark, only if one is required."""
    _, doc, cases = families.models[form]
    if form in REFUSED:
        pytest.skip("its template renders no tools")
    request = {"model": form, "messages": tagged([user("go on")], cases[0]["name"]), "max_tokens": 400}
    said = both(families, {**request, "tools": [only("Oslo")]})[0]
    assert values(said) == [("get_weather", {"city": "Rome"})]  # as the model wrote it
    if doc["form"] in BARE:
        said = both(families, {**request, "tools": [PING, only("Oslo", strict=True)]})[0]
        assert values(said) == [("get_weather", {"city": "Rome"})]
        said = both(families, {**request, "tools": [only("Oslo", strict=True)], "tool_choice": "required"})[0]
    else:
        said = both(families, {**request, "tools": [PING, only("Oslo", strict=True)]})[0]
    assert values(said) == [("get_weather", {"city": "Oslo"})] and said.finish == "tool_calls"


@pytest.mark.parametrize("form", FORMS)
def test_a_form_beside_calls_in_every_family(families, form):
    """An answer is of the form, or it is calls: the model that calls does, and one that raves does either."""
    _, _, cases = families.models[form]
    if form in REFUSED:
        pytest.skip("its template renders no tools")
    shape = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"], "additionalProperties": False}}}}
    request = {"model": form, "tools": [PING, only("Oslo")], "max_tokens": 400, "seed": 1, **shape}
    said = both(families, {**request, "messages": tagged([user("go on")], cases[0]["name"])})[0]
    assert values(said) == [("get_weather", {"city": "Oslo"})] and not said.content.strip(), said.shape()
    said = both(families, {**request, "messages": [user("nothing of the script")], "parallel_tool_calls": False})[0]
    if said.finish == "stop":
        assert not said.calls and json.loads(said.content) == {"a": 7}, said.shape()
    elif said.finish == "tool_calls":
        check_calls(said, {"ping", "get_weather"}, {"ping": {}, "get_weather": only("Oslo")["function"]["parameters"]})
