"""Tools: every choice that clients make, calls of all families as `tool_calls`, whole and streamed; calls that
are required; histories in all orders that clients send; and what is refused."""
import concurrent.futures
import json
import re

import jsonschema
import pytest
from answers import CHAT, both, values, whole
from conftest import SERVER, Server, oracle, oracle_files, program
from scripted import answer, call, played, script

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


# ---- all families ---------------------------------------------------------------------------------

FORMS = [p.stem for p in oracle_files("tools/*.json")]
REFUSED = {"llama-cpp-deepseek-r1"}  # its template dumps a generator, which no renderer does
# Forms whose calls are read, and cannot be required.
FREE = {"gemma4", "muse", "hy3", "minimax-m3", "functionary32"}


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
            if doc["form"] in FREE:
                status, a = families.post(CHAT, request)
                assert status == 400 and a["error"]["param"] == "tool_choice" and doc["form"] in a["error"]["message"]
                continue
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
    if form in REFUSED or doc["form"] in FREE:
        pytest.skip("calls cannot be required of it")
    for seed in range(4):
        said = both(families, {"model": form, "messages": [user("go on")], "tools": [function(parameters=BOOK)],
                               "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 700, "seed": seed, **ANY})[0]
        said.content = said.content.strip()
        check_calls(said, {"f"}, {"f": BOOK})
