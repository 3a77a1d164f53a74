"""A scripted null model through the whole daemon: tool loops with the real client, the same bytes in every way,
the replies of all families, and scripts that are refused."""
import concurrent.futures
import json
import subprocess

import pytest
from conftest import CONIFER, SERVER, Server, oracle_files, program, sse
from scripted import answer, call, played, script, tagged

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather in a city",
          "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
REASON, CALL = "I need the weather\nin Paris: 読む.", call("get_weather", city="Paris")
CALLED = [("get_weather", '{"city": "Paris"}')]
FINAL = "It is sunny in Paris, 21 °C.\n\n=== as a forecast ==="
LONG = " ".join(f"{i}. a sentence of the long answer," for i in range(40))


@pytest.fixture(scope="module", params=["cpu", "async"])
def server(request, tmp_path_factory):
    path = script(tmp_path_factory.mktemp("script"),
                  answer(f"<think>\n{REASON}\n</think>\n\n{CALL}", step=1, user="weather"),
                  answer(FINAL, step=2, user="weather"), answer(LONG, user="long"), answer("", user="nothing"))
    s = Server(program(SERVER), path, ["--set", f"engine.device={request.param}", "--threads", "2"],
               template=False)
    yield s
    s.wait_idle()
    s.stop()


def user(text):
    return {"role": "user", "content": text}


def ask(server, messages, **more):
    """(reasoning, content or calls, finish reason), whole."""
    a = server.client().chat.completions.create(model="null", messages=messages, **more)
    m = a.choices[0].message
    calls = [(t.function.name, t.function.arguments) for t in m.tool_calls or []]
    return getattr(m, "reasoning_content", None), calls or m.content, a.choices[0].finish_reason


def stream(server, messages, **more):
    """The same from a stream."""
    reasoning, content, finish, calls = "", "", None, []
    for c in server.client().chat.completions.create(model="null", messages=messages, stream=True, **more):
        if not c.choices:
            continue
        reasoning += getattr(c.choices[0].delta, "reasoning_content", None) or ""
        content += c.choices[0].delta.content or ""
        for t in c.choices[0].delta.tool_calls or []:
            if t.id:
                calls.append((t.function.name, ""))
            calls[t.index] = (calls[t.index][0], calls[t.index][1] + (t.function.arguments or ""))
        finish = c.choices[0].finish_reason or finish
    return reasoning or None, calls or content, finish


@pytest.mark.parametrize("way", [ask, stream])
def test_a_tool_loop(server, way):
    messages = [{"role": "system", "content": "Help."}, user("What is the weather like?")]
    assert way(server, messages, tools=TOOLS) == (REASON, CALLED, "tool_calls")
    messages += [{"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "clear"}'}]
    assert way(server, messages, tools=TOOLS) == (None, FINAL, "stop")
    messages += [{"role": "assistant", "content": FINAL}, user([{"type": "text", "text": "And the weather now?"}])]
    assert way(server, messages, tools=TOOLS) == (REASON, CALLED, "tool_calls")  # the loop begins again
    assert way(server, [*messages, {"role": "assistant", "content": "x"}, user("And the news?")]) == (
        None, "[The script has no answer to this conversation.]", "stop")


@pytest.mark.parametrize("way", [ask, stream])
def test_other_ends(server, way):
    weather = [user("The weather?")]
    closed = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    assert way(server, weather, **closed) == (None, CALL, "stop")
    assert way(server, [user("nothing")])[1:] in (("", "stop"), (None, "stop"))
    reasoning, content, finish = way(server, [user("long")], max_tokens=30)
    assert (reasoning, finish) == (None, "length") and content and LONG.startswith(content)
    assert way(server, [user("long")], stop=["3."])[1] == LONG[:LONG.index("3.")]


def test_marks_are_tokens(server):
    """One token each: so many fewer tokens than without."""
    def n(text, **more):
        return len(server.post("/tokenize", {"prompt": text, **more})[1]["tokens"])
    assert n("a<tool_call>b</think>c") == n("abc") + 2
    assert n("a<|script:1|>b") == n("ab") + 1  # in a plain prompt
    chat = {"messages": [user("<|script:1|>")]}
    prompt = server.post("/apply-template", {**chat, "tools": []})[1]["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n<|script:0|>") and "<|script:1|>" in prompt
    tokens = server.post("/tokenize", chat)[1]["tokens"]
    as_text = n("<|script:1|>", parse_special=False)  # what a client's message contains is text
    assert as_text > 5 and len(tokens) == n(prompt) + as_text - 1


def test_a_plain_prompt_may_name_the_answer(server):
    c = server.client().completions.create(model="null", prompt="anything<|script:2|>", max_tokens=200)
    assert c.choices[0].text == FINAL
    words = server.client().completions.create(model="null", prompt="anything", max_tokens=20).choices[0].text
    assert len(words.split()) == 20


def test_the_same_bytes_at_once_and_cached(server):
    """16 streams at once with other sampling, another 16 with prompts that are cached by then."""
    prefix = "This is what all requests begin with. " * 40
    wants = [("weather", (REASON, CALL, "stop")), ("long", (None, LONG, "stop")),
             ("news", (None, "[The script has no answer to this conversation.]", "stop"))]

    def one(i):
        topic, want = wants[i % 3]
        more = {"temperature": [0, 1, 2][i % 3], "top_p": 1, "seed": i, "presence_penalty": i % 2,
                "frequency_penalty": i % 3, "extra_body": {"repetition_penalty": 1.0 + i % 4 / 10}}
        got = (stream if i % 2 else ask)(server, [user(f"{prefix} {topic} {i % 5}")], **more)
        return got, want

    before = server.metrics()
    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for i, (got, want) in enumerate(pool.map(one, range(16))):
                assert got == want, i
    after = server.wait_idle()
    assert after["conifer_prompt_tokens_cached_total"] - before["conifer_prompt_tokens_cached_total"] > 10000


def test_several_choices(server):
    a = server.client().chat.completions.create(model="null", messages=[user("long")], n=4, temperature=1.5)
    assert {c.message.content for c in a.choices} == {LONG}


def test_the_same_bytes_preempted(start, tmp_path):
    path = script(tmp_path, answer(LONG), parameters="context=4096,")
    s = start.real("--set", "kv.memory_bytes=256KiB", "--threads", "1", model=path, template=False)

    def one(i):
        return ask(s, [user(f"{i} " * 100)], temperature=1)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert set(pool.map(one, range(24))) == {(None, LONG, "stop")}
    assert sum(v for k, v in s.wait_idle().items() if k.startswith("conifer_preemptions_total")) > 0


# ---- all families ---------------------------------------------------------------------------------

FORMS = [p.stem for p in oracle_files("tools/*.json")]


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """One daemon with a model for each form of oracle/tools, which says some of the form's replies."""
    folder = tmp_path_factory.mktemp("families")
    models = {form: played(folder, form, slice(None, None, 3)) for form in FORMS}
    config = "models:\n" + "".join(f"  - name: {form}\n    path: {json.dumps(path)}\n"
                                   for form, (path, _, _) in models.items())
    s = Server(program(SERVER), None, ["--threads", "1"], config=config)
    s.models = models
    yield s
    s.wait_idle()
    s.stop()


def said(server, body):
    """The message of an answer, whole and as its stream adds up; None where the template refuses the
    conversation."""
    body = {"max_tokens": 8000, **body}
    status, data = server.post("/v1/chat/completions", body)
    if status == 400 and data["error"]["code"] == "template_error":
        return None
    assert status == 200, data
    _, _, events = server.http("POST", "/v1/chat/completions", {**body, "stream": True})
    whole = data["choices"][0]["message"]
    streamed = {"content": "", "reasoning_content": "", "tool_calls": []}
    for c in (c for e in sse(events)[:-1] for c in e["choices"]):
        delta = c["delta"]
        streamed["content"] += delta.get("content") or ""
        streamed["reasoning_content"] += delta.get("reasoning_content") or ""
        for t in delta.get("tool_calls") or []:
            if "id" in t:  # a call begins: its place is the next one, and its name is whole
                assert t["index"] == len(streamed["tool_calls"]) and t["type"] == "function"
                streamed["tool_calls"].append({"id": t["id"], "name": t["function"]["name"], "arguments": ""})
            streamed["tool_calls"][t["index"]]["arguments"] += t["function"].get("arguments") or ""
    calls = [{"id": t["id"], **t["function"]} for t in whole.get("tool_calls") or []]
    ids = [t["id"] for t in calls]
    assert len(set(ids)) == len(ids)
    return {"content": whole["content"] or "", "reasoning_content": whole.get("reasoning_content") or "",
            "tool_calls": calls}, streamed, data["choices"][0]["finish_reason"]


# The prompt of one ends in a mark of its calls, that of the other in a mark of its own: a script's answer
# cannot begin there.
PROMPTED = ("meetkai-functionary-medium-v3.2", "tencent-Hy3")
REFUSING = ("Kimi-K2-Instruct", "llama-cpp-deepseek-r1", "meetkai-functionary-medium-v3.2")


@pytest.mark.parametrize("form", [f for f in FORMS if f not in PROMPTED])
def test_every_family(families, form):
    """The message that must come back (oracle/tools): content, reasoning and calls, streamed as well."""
    _, doc, cases = families.models[form]
    n = 0
    for c in cases:
        body = {"model": form, "messages": tagged(c["messages"], c["name"]), "tools": doc["tools"],
                "chat_template_kwargs": {k: v for k, v in c["kwargs"].items() if k != "enable_thinking"}}
        if "enable_thinking" in c["kwargs"]:
            body["enable_thinking"] = c["kwargs"]["enable_thinking"]
        told = said(families, body)
        if told is None or told[0]["content"].startswith("[The script has no answer"):
            continue  # refused, or a result that the template cannot show became text of the user's
        n += 1
        whole, streamed, finish = told
        for part in "content", "reasoning_content":
            assert streamed[part] == whole[part], c["name"]
        bare = [[{k: v for k, v in t.items() if k != "id"} for t in m["tool_calls"]] for m in (whole, streamed)]
        assert bare[0] == bare[1], c["name"]
        for t in whole["tool_calls"]:
            assert isinstance(json.loads(t["arguments"]), dict), c["name"]
        if c["level"] not in ("text", "token"):
            continue
        want = c["expect"]
        assert whole["content"].strip() == (want["content"] or "").strip(), c["name"]
        assert whole["reasoning_content"].strip() == (want["reasoning"] or "").strip(), c["name"]
        got = [{"name": t["name"], "arguments": json.loads(t["arguments"])} for t in whole["tool_calls"]]
        assert got == [{"name": t["name"], "arguments": t["arguments"]} for t in want["tool_calls"]], c["name"]
        assert finish == ("tool_calls" if got else "stop"), c["name"]
    assert n >= 5 or form in REFUSING, f"{n} of {len(cases)}"


# ---- refused --------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, says", [("=== answer\n=== anser\n", "script, line 2: a section is"),
                                        ("mark: x\n", "script, line 1: no setting"),
                                        ("template: none.jinja\n=== answer\n", "the script's template: No such file")])
def test_what_a_script_cannot_be_is_refused(tmp_path, text, says):
    (tmp_path / "s.txt").write_text(text)
    model = f"null:script={tmp_path / 's.txt'}"
    for command in ([CONIFER, "run", model, "hi"], [CONIFER, "show", model],
                    [SERVER, "--model", model, "--check-config"], [SERVER, "--model", model, "--port", "0"]):
        out = subprocess.run([program(command[0]), *command[1:]], capture_output=True, text=True,
                             timeout=60, check=False)
        assert out.returncode in (1, 2) and says in out.stderr, (command, out)


def test_clients_see_no_folder(tmp_path):
    (tmp_path / "bad.txt").write_text("template: gone.jinja\n=== answer\n")
    (tmp_path / "syntax.txt").write_text("=== template\n{% if %}\n=== answer\n")
    models = ["none", "bad", "syntax"]
    text = "models:\n" + "".join(f"  - name: {m}\n    path: \"null:script={tmp_path}/{m}.txt\"\n" for m in models)
    s = Server(program(SERVER), None, config=text + "  - name: good\n    path: \"null:\"\n    preload: true\n")
    for m in models:
        status, _, data = s.http("POST", "/v1/chat/completions", {"model": m, "messages": [user("x")]})
        assert status == 503 and str(tmp_path).encode() not in data, data
        assert f"the model {m} could not be loaded" in json.loads(data)["error"]["message"]
    s.stop()


def test_at_the_terminal(tmp_path):
    path = script(tmp_path, answer("Hello,\nworld."))
    out = subprocess.run([program(CONIFER), "run", path, "Say hi"], capture_output=True, text=True, timeout=60,
                         check=False)
    assert (out.returncode, out.stdout) == (0, "Hello,\nworld.\n"), out
