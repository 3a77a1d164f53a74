"""Tools: every choice that clients make, calls as `tool_calls`, whole and streamed; calls that are required; and
what is refused. test_family_choices.py has what differs between families."""
import concurrent.futures
import json
import re

import jsonschema
import pytest
from answers import CHAT, both, values, whole
from conftest import SERVER, Server, program
from scripted import answer, call, script

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"], "additionalProperties": False}}}
PING = {"type": "function", "function": {"name": "ping"}}
PICK = {"type": "function", "function": {"name": "pick", "parameters": {
    "type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"],
    "additionalProperties": False}}}
TOOLS = [WEATHER, PING, PICK]
STRICT = {**PICK, "function": {**PICK["function"], "strict": True}}
SCHEMAS = {t["function"]["name"]: t["function"].get("parameters", {"type": "object"}) for t in TOOLS}
ANYTHING = {"type": "function", "function": {"name": "anything", "strict": True, "parameters": {
    "type": "object", "additionalProperties": {"type": "string", "maxLength": 20}}}}
WITH_ESCAPES = {"a": "é\n\u001b[0m", "b": "\U0001f600"}
ANY = {"temperature": 1, "top_p": 1, "min_p": 0}


def named(name):
    return {"type": "function", "function": {"name": name}}


def allowed(mode, *names):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(n) for n in names]}}


def user(text):
    return {"role": "user", "content": text}


def body(text="hi", **more):
    return {"messages": [user(text)], "tools": TOOLS, "max_tokens": 300, **more}


def check_calls(said, names, schemas=SCHEMAS):
    """Calls of these functions with valid arguments, and nothing beside them."""
    assert said.calls and said.finish == "tool_calls" and not said.content, said.shape()
    for name, arguments in values(said):
        assert name in names
        jsonschema.validate(arguments, schemas[name])
    for parts, (_, _, arguments) in zip(said.arguments, said.calls):
        assert all(arguments.startswith(part) for part in parts)


@pytest.fixture(scope="module")
def null():
    """A model whose next tokens are as good as random under a mask; its calls have the generic form."""
    s = Server(program(SERVER), "null:", template=False)
    yield s
    s.wait_idle()
    s.stop()


# ---- which calls ----------------------------------------------------------------------------------

@pytest.mark.parametrize("choice, names", [
    ("required", {"get_weather", "ping", "pick"}), (named("ping"), {"ping"}), (named("pick"), {"pick"}),
    (allowed("required", "ping", "pick"), {"ping", "pick"}), (allowed("required", "pick", "pick"), {"pick"})])
def test_required(null, choice, names):
    seen = set()
    for seed in range(12):
        said = both(null, body(tool_choice=choice, seed=seed, **ANY))[0]
        check_calls(said, names)
        seen |= {name for name, _ in values(said)}
        one = both(null, body(tool_choice=choice, seed=seed, parallel_tool_calls=False, **ANY))[0]
        check_calls(one, names)
        assert len(one.calls) == 1
    assert seen == names
    for said in both(null, body(tool_choice=choice, seed=1, n=3, **ANY), 3):
        check_calls(said, names)


def test_few_tokens(null):
    """They are closed in time; with fewer than any call has, what there is of it is a prefix."""
    least = len(null.post("/tokenize", {"prompt": call("pick", colour="red")})[1]["tokens"])
    for n in range(least, least + 30, 3):
        check_calls(both(null, body(tool_choice=named("pick"), max_tokens=n + 1, seed=n, **ANY))[0], {"pick"})
    said = both(null, body(tool_choice=named("pick"), max_tokens=least - 4))[0]
    assert said.finish == "length" and [c[1] for c in said.calls] in ([], ["pick"])
    for _, _, arguments in said.calls:
        assert re.sub(r"\s", "", arguments) in '{"colour":"red"}' or '{"colour":"green"}'.startswith(arguments)


def test_what_is_not_to_be_called(null):
    """auto and none leave the answer free; all tools of the request are described but for none."""
    plain = null.post("/apply-template", {"messages": [user("hi")]})[1]["prompt"]
    full = null.post("/apply-template", {"messages": [user("hi")], "tools": TOOLS})[1]["prompt"]
    for choice, prompt in ((None, full), ("auto", full), ("none", plain), ("required", full), (named("ping"), full),
                           (allowed("auto", "ping"), full)):
        more = {"tool_choice": choice} if choice else {}
        assert null.post("/apply-template", body(**more))[1]["prompt"] == prompt
    for choice in "auto", "none", allowed("auto", "ping"):
        said = both(null, body(tool_choice=choice, max_tokens=20))[0]
        assert said.content and not said.calls and said.finish == "length"


def test_beside_a_form(null):
    """With both, the answer has the form or is a call; with a choice that requires calls, it is a call."""
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}}}}
    seen = set()
    for seed in range(12):
        said = both(null, body(seed=seed, **form, **ANY))[0]
        seen.add(bool(said.calls))
        if said.calls:
            check_calls(said, SCHEMAS)
        else:
            assert set(json.loads(said.content)) == {"a"} and said.finish == "stop"
    assert seen == {True, False}
    check_calls(both(null, body(tool_choice="required", seed=1, **form, **ANY))[0], SCHEMAS)
    assert set(json.loads(both(null, body(tool_choice="none", seed=1, **form))[0].content)) == {"a"}


@pytest.mark.parametrize("form, fits", [({"guided_choice": ["red", "<b>"]}, "red|<b>"), ({"guided_regex": "<[a-z]>"}, "<[a-z]>"),
                                        ({"grammar": 'root ::= "x" | "yy"'}, "x|yy"), ({"guided_grammar": 'start: "a" B\nB: /b+/'}, "ab+")])
def test_beside_a_form_that_is_not_json(null, form, fits):
    """Arguments are JSON all the same."""
    tool = function(parameters={"type": "object", "properties": {"a": {"enum": ['"', "\\", "\n\"x"]}}, "required": ["a"],
                                "additionalProperties": False})
    seen = set()
    for seed in range(24):
        said = both(null, {**body(seed=seed, **form, **ANY), "tools": [tool], "max_tokens": 120})[0]
        seen.add(bool(said.calls))
        if said.calls:
            check_calls(said, {"f"}, {"f": tool["function"]["parameters"]})
        else:
            assert re.fullmatch(fits, said.content) and said.finish == "stop"
    assert seen == {True, False}


def test_older_names(null):
    """functions and function_call: one call, as function_call."""
    functions = {"messages": [user("hi")], "functions": [t["function"] for t in TOOLS], "max_tokens": 200, **ANY}
    for seed in range(4):
        said = both(null, {**functions, "function_call": {"name": "pick"}, "seed": seed})[0]
        assert said.finish == "function_call" and not said.calls and not said.content
        assert said.legacy["name"] == "pick" and json.loads(said.legacy["arguments"])["colour"] in ("red", "green")
    said = both(null, {**functions, "function_call": "none", "max_tokens": 9})[0]
    assert said.legacy is None and said.content
    for more, param in (({"function_call": {"name": "x"}}, "function_call"), ({"function_call": 5}, "function_call"),
                        ({"functions": [5]}, "functions[0]"), ({"functions": [{}]}, "functions[0].name"),
                        ({"functions": [PING["function"]] * 2}, "functions[1].name"), ({"functions": 5}, "functions"),
                        ({"functions": [{"name": "f", "parameters": {"properties": {"a": {"type": "x"}}}}],
                          "function_call": {"name": "f"}}, "functions[0].parameters.properties.a")):
        status, a = null.post(CHAT, {**functions, **more})
        assert status == 400 and a["error"]["param"] == param, a


def function(**more):
    return {"type": "function", "function": {"name": "f", **more}}


@pytest.mark.parametrize("more, param", [
    ({"tools": [PING, PING]}, "tools[1].function.name"), ({"tools": [PING, {"type": "web_search"}]}, "tools[1].type"),
    ({"tools": 5}, "tools"), ({"tools": [5]}, "tools"), ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": 5}]}, "tools[0].function"),
    ({"tools": [function(name=5)]}, "tools[0].function.name"), ({"tools": [function(name="")]}, "tools[0].function.name"),
    ({"tools": [function(parameters=5)]}, "tools[0].function.parameters"),
    ({"tools": [function(parameters={"type": "string"})]}, "tools[0].function.parameters"),
    ({"tools": [function(parameters={"type": "object", "properties": {"a": {"$recursiveRef": "#"}}})],
      "tool_choice": "required"}, "tools[0].function.parameters.properties.a"),
    ({"tool_choice": "sometimes"}, "tool_choice"), ({"tool_choice": 5}, "tool_choice"), ({"tool_choice": {}}, "tool_choice"),
    ({"tool_choice": named("nope")}, "tool_choice"), ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tool_choice": {"type": "custom", "custom": {"name": "ping"}}}, "tool_choice"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"), ({"tools": None, "tool_choice": named("ping")}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools.mode"),
    ({"tool_choice": allowed("none", "ping")}, "tool_choice.allowed_tools.mode"),
    ({"tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
    ({"tool_choice": allowed("auto", "nope")}, "tool_choice.allowed_tools.tools"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ({"functions": [PING["function"]]}, "functions"), ({"function_call": "auto"}, "function_call"),
    ({"tools": None, "functions": [PING["function"]], "function_call": "auto", "tool_choice": "auto"}, "function_call"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "tools[0].function.strict"),
    ({"tools": None, "functions": [{"name": "f", "strict": 1}]}, "functions[0].strict"),
])
def test_refused(null, more, param):
    for stream in False, True:
        status, a = null.post(CHAT, {**body(stream=stream), **more})
        assert status == 400 and a["error"]["param"] == param, a
        assert param.split(".")[0] in a["error"]["message"]


# ---- loops, with a model that says what it is to say ------------------------------------------------

REASON = "I need the weather."
TWO = call("get_weather", city="Paris") + "\n" + call("get_weather", city="Rome", days=2)
PARIS, ROME = ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome", "days": 2})


@pytest.fixture(scope="module", params=["cpu", "async"])
def agent(request, tmp_path_factory):
    path = script(tmp_path_factory.mktemp("agent"),
                  answer(f"<think>\n{REASON}\n</think>\n\nLet me see.\n{TWO}", step=1, user="both"),
                  answer("Warm in both.", step=2, user="both"), answer(call("ping"), user="ping"),
                  answer(f"<think>\n{REASON}{call('ping')}", user="thinks"),
                  answer(call("ping") + "\n" + call("nope", a=1) + "\nand text", user="odd"),
                  answer("It is cold, I guess. " * 20, user="prose"))
    s = Server(program(SERVER), path, ["--set", f"engine.device={request.param}", "--threads", "2"], template=False)
    s.device, s.model = request.param, path
    yield s
    s.wait_idle()
    s.stop()


def test_a_loop(agent):
    said = both(agent, body("both", max_tokens=2000))[0]
    assert (said.reasoning, said.content, values(said), said.finish) == (REASON, "Let me see.", [PARIS, ROME], "tool_calls")
    assert all(re.fullmatch("call_[0-9a-f]{24}", i) for i, _, _ in said.calls)
    history = [user("both"), {"role": "assistant", "content": said.content, "reasoning_content": said.reasoning,
                              "tool_calls": [{"id": i, "type": "function", "function": {"name": n, "arguments": a}}
                                             for i, n, a in said.calls]},
               *({"role": "tool", "tool_call_id": i, "content": "warm"} for i, _, _ in reversed(said.calls))]
    said = both(agent, {**body(max_tokens=2000), "messages": history})[0]
    assert (said.content, said.calls, said.finish) == ("Warm in both.", [], "stop")
    ids = {i for s in whole(agent, body("both", max_tokens=2000, n=4), 4)[0] for i, _, _ in s.calls}
    assert len(ids) == 8  # of all choices


def test_one_call_at_most(agent):
    for more in {"parallel_tool_calls": False}, {"parallel_tool_calls": False, "tool_choice": "auto"}:
        said = both(agent, body("both", max_tokens=2000, **more))[0]
        assert values(said) == [PARIS] and said.finish == "tool_calls" and said.content == "Let me see."
        # what would follow is not generated either
        used, all_of_it = (whole(agent, body("both", max_tokens=2000, **m))[1]["completion_tokens"] for m in (more, {}))
        assert used < all_of_it - 40, (used, all_of_it)
    functions = {"messages": [user("both")], "functions": [WEATHER["function"]], "max_tokens": 2000}
    said = both(agent, functions)[0]
    assert said.legacy["name"] == "get_weather" and json.loads(said.legacy["arguments"]) == PARIS[1]
    assert said.finish == "function_call"


def test_odd_calls(agent):
    """Without arguments; before the thoughts are closed; of a function that is not offered, which is content."""
    said = both(agent, body("ping"))[0]
    assert (said.content, values(said), said.finish) == ("", [("ping", {})], "tool_calls")
    said = both(agent, body("thinks"))[0]
    assert (said.reasoning, values(said), said.finish) == (REASON, [("ping", {})], "tool_calls")
    said = both(agent, body("odd", max_tokens=2000))[0]
    assert values(said) == [("ping", {})] and call("nope", a=1) in said.content and said.content.endswith("and text")
    said = both(agent, body("odd", max_tokens=2000, tool_choice=allowed("auto", "pick")))[0]
    assert not said.calls and call("ping") in said.content and said.finish == "stop"
    said = both(agent, body("odd", max_tokens=2000, tool_choice="none"))[0]
    assert not said.calls and call("ping") in said.content


@pytest.mark.parametrize("marks", [{}, {"marks": []}])
@pytest.mark.parametrize("device", ["cpu", "async"])
def test_strict_tools_that_need_not_be_called(tmp_path, marks, device):
    """Whether to call is the model's choice; what it then calls has arguments of its schema. Marks are tokens, or text."""
    wrong = call("pick", colour="blue", extra="x" * 40)
    path = script(tmp_path, answer(f"Let me see.\n{wrong}", user="wrong"), answer(f"Two.\n{call('pick', colour='red')}\n{wrong}", user="two"),
                  answer(call("pick", colour="red") + "\n", user="line end"),
                  answer(call("anything", **WITH_ESCAPES), user="escapes"),
                  answer("I say <tool and <tool_cal, no more.", user="prose"), answer(f"Then\n{call('nope', a=1)}", user="other"),
                  answer(f"<think>\n{REASON}\n</think>\n\n{wrong}", user="thinks"), **marks)
    s = Server(program(SERVER), path, ["--set", f"engine.device={device}", "--threads", "1"], template=False)
    thinks = not marks
    for seed in range(3):
        more = {"seed": seed, "n": 2, "tools": [WEATHER, STRICT], **ANY}
        for said in both(s, body("wrong", **more), 2):
            assert said.content.strip() == "Let me see."
            said.content = ""
            check_calls(said, {"pick"})
        for said in both(s, body("two", **more), 2):
            assert said.content.strip() == "Two." and values(said)[0] == ("pick", {"colour": "red"})
            said.content = ""
            check_calls(said, {"pick", "get_weather"})
        for said in both(s, body("other", **more), 2):
            assert said.content.strip() == "Then"
            said.content = ""
            check_calls(said, {"pick", "get_weather"})
        for said in both(s, body("prose", **more), 2):
            assert (said.content, said.calls, said.finish) == ("I say <tool and <tool_cal, no more.", [], "stop")
        for said in both(s, body("thinks", **more), 2) if thinks else ():
            assert said.reasoning == REASON
            check_calls(said, {"pick"})
    said = both(s, body("line end", tools=[WEATHER, STRICT]))[0]  # white space behind a call asks for no other
    assert values(said) == [("pick", {"colour": "red"})] and said.finish == "tool_calls", said.shape()
    said = both(s, body("escapes", tools=[ANYTHING]))[0]
    assert [c[1:] for c in said.calls] == [("anything", json.dumps(WITH_ESCAPES))], said.shape()
    for n in range(4, 60, 5):  # a call that is cut is a beginning of the model's
        said = both(s, body("two", tools=[PING, STRICT], max_tokens=n))[0]
        assert said.finish == "length" and [c[1] for c in said.calls] in ([], ["pick"]), said.shape()
    said = both(s, body("wrong", tools=[PICK]))[0]
    assert values(said) == [("pick", {"colour": "blue", "extra": "x" * 40})]  # as the model wrote it
    bad = {"type": "function", "function": {"name": "g", "strict": True, "parameters": {
        "type": "object", "properties": {"a": {"$recursiveRef": "#"}}}}}
    status, a = s.post(CHAT, body("wrong", tools=[STRICT, bad]))
    assert status == 400 and a["error"]["param"] == "tools[1].function.parameters.properties.a"
    s.wait_idle()
    s.stop()


def test_required_of_one_that_would_talk(agent):
    """With reasoning or without, what comes is a call."""
    for topic in "prose", "both", "ping":
        for more in {}, {"enable_thinking": False}:
            said = both(agent, body(topic, tool_choice=named("pick"), max_tokens=600, seed=1, **more))[0]
            check_calls(said, {"pick"})
            assert said.reasoning == REASON if topic == "both" and not more else True
    said = both(agent, body("both", tool_choice="required", max_tokens=2000))[0]
    assert values(said)[0] == PARIS and said.reasoning == REASON


def test_cut_anywhere(agent):
    """What has come is whole or a prefix, and the finish reason says so."""
    want = both(agent, body("both", max_tokens=2000))[0]
    n = whole(agent, body("both", max_tokens=2000))[1]["completion_tokens"]
    for k in range(1, n, 3):
        said = both(agent, body("both", max_tokens=k))[0]
        assert said.finish == "length"
        assert want.content.startswith(said.content) and want.reasoning.startswith(said.reasoning)
        for (_, name, arguments), (_, its, all_of_it) in zip(said.calls, want.calls):
            assert name == its and all_of_it.startswith(arguments)
        assert [c[2] for c in said.calls[:-1]] == [c[2] for c in want.calls[:len(said.calls[:-1])]]


def test_functions_without_parameters(null):
    """They are called with none, and others with no more than they list."""
    for parameters in {}, {"parameters": {}}, {"parameters": {"type": "object", "properties": {}}}:
        tools = [{"type": "function", "function": {"name": "ping", **parameters}}]
        for seed in range(3):
            said = both(null, {"messages": [user("x")], "tools": tools, "tool_choice": "required", "seed": seed,
                               "max_tokens": 300, "parallel_tool_calls": False, **ANY})[0]
            assert [json.loads(a) for _, _, a in said.calls] == [{}]


# ---- the same bytes -------------------------------------------------------------------------------

def asked(i, prefix=""):
    """One of several requests: calls that are required, of other tools, or the answer's form beside tools."""
    choice = ("required", named("get_weather"), allowed("required", "ping", "pick"), "auto")[i % 4]
    more = {"response_format": {"type": "json_object"}} if choice == "auto" else {}
    return body(f"{prefix} {i}", tool_choice=choice, seed=i, parallel_tool_calls=i % 3 == 0, **more, **ANY)


def thought(i, prefix=""):
    """Reasoning of bounded and unbounded length, then a call, an answer in a form, or both in turn."""
    more = [{"tool_choice": named("pick")}, {"tool_choice": "required"}, {"thinking_token_budget": 9},
            {"thinking_token_budget": 9, "response_format": {"type": "json_object"}}, {"enable_thinking": False}][i % 5]
    return body(f"{prefix} {'both' if i % 2 else 'thinks'} {i}", seed=i, max_tokens=600, **more, **ANY)


def ways(server, requests):
    """What the server says to them one by one, and at once."""
    alone = [both(server, r)[0].shape() for r in requests]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda r: both(server, r)[0].shape(), requests)) == alone
    return alone


OTHERS = [("engine.device=async",), ("scheduler.speculation=off",), ("engine.device=async", "scheduler.speculation=off")]


@pytest.mark.parametrize("kind", [asked, thought])
def test_in_all_ways(null, agent, start, kind):
    """Alone, sixteen at once, with their prompts cached, with another device and without drafts."""
    server = null if kind is asked else agent
    want = ways(server, [kind(i) for i in range(16)])
    prefix = "What all begin with. " * 60
    first = [whole(server, kind(i, prefix))[0][0].shape() for i in range(8)]
    again = [whole(server, kind(i, prefix)) for i in range(8)]
    assert [a[0][0].shape() for a in again] == first
    assert all(a[1]["prompt_tokens_details"]["cached_tokens"] > 300 for a in again)
    if kind is asked or server.device == "cpu":
        for args in OTHERS:
            s = start.real(*(a for arg in args for a in ("--set", arg)), model="null:" if kind is asked else server.model,
                           template=False)
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                assert list(pool.map(lambda i, s=s: whole(s, kind(i))[0][0].shape(), range(16))) == want


@pytest.mark.parametrize("device", ["cpu", "async"])
def test_preempted(agent, start, device):
    """Reasoning, then calls, where the blocks of keys and values are too few for all."""
    tool = function(parameters={"type": "object", "properties": {"a": {"type": "array", "items": {
        "type": "integer", "minimum": 0, "maximum": 9999}, "minItems": 60, "maxItems": 60}}, "required": ["a"]})
    bodies = [{"messages": [user(f"{i} " * 100 + ("thinks" if i % 2 else "prose"))], "tools": [tool], "tool_choice": "required",
               "parallel_tool_calls": False, "max_tokens": 900, "seed": i, **ANY} for i in range(12)]
    want = [whole(agent, b)[0][0].shape() for b in bodies]
    assert any(w[2] for w in want) and all(w[3] for w in want)
    s = start.real("--set", "kv.memory_bytes=320KiB", "--set", f"engine.device={device}", "--threads", "1",
                   model=agent.model.replace("null:", "null:context=4096,"), template=False)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda b: whole(s, b)[0][0].shape(), bodies)) == want
    assert sum(v for k, v in s.wait_idle().items() if k.startswith("conifer_preemptions_total")) > 0


def test_who_leaves_in_the_midst(null):
    tool = function(parameters={"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "minItems": 900}},
                                "required": ["a"]})
    for _ in range(3):
        with null.client().chat.completions.create(model="null", messages=[user("x")], stream=True, max_tokens=7000,
                                                   tools=[tool], tool_choice="required") as stream:
            for i, _ in enumerate(stream):
                if i == 5:
                    break
    null.wait_idle()
