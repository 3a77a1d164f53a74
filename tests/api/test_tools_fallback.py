"""Tools for models whose chat template has no place for them: described in the system message, calls and
results written as text; or refused, as the config says."""
import json
import subprocess

import pytest
from conftest import CONIFER, ROOT, SERVER, Server, oracle, program, tiny_model

PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Größe & <b>",
                                         "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
HI = {"role": "user", "content": "Weather?"}
ON = ("--set", "model.tools_fallback=true")
BLOCK = f"""# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{json.dumps(TOOL, ensure_ascii=False)}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def calls(*arguments):
    return {"role": "assistant", "content": None, "tool_calls": [
        {"id": f"call_{i}", "type": "function", "function": {"name": "get_weather", "arguments": a}}
        for i, a in enumerate(arguments)]}


def result(i, content):
    return {"role": "tool", "tool_call_id": f"call_{i}", "content": content}


HISTORY = [HI, calls('{"city":"Rome"}', '{"city": "Os'), result(1, "cold"), result(0, "warm")]
SHOWN = ('<|user|>Weather?\n<|assistant|><tool_call>\n{"name": "get_weather", "arguments": {"city":"Rome"}}\n'
         '</tool_call>\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Os}\n</tool_call>\n'
         '<|user|><tool_response>\nwarm\n</tool_response>\n<tool_response>\ncold\n</tool_response>\n')


@pytest.fixture
def plain(start, tmp_path):
    (tmp_path / "t.jinja").write_text(PLAIN)
    return lambda *args, begin=start, **more: begin("--chat-template", str(tmp_path / "t.jinja"), *args,
                                                    template=False, **more)


def render(server, messages, **more):
    status, answer = server.post("/apply-template", {"messages": messages, **more})
    assert status == 200, answer
    return answer["prompt"]


def tools_of(server):
    return json.loads(server.get("/v1/models")[2])["data"][0]["tools"]


def test_tools_are_described(plain):
    s = plain(*ON)
    assert tools_of(s) == "fallback"
    assert render(s, [HI], tools=[TOOL]) == f"<|system|>{BLOCK}\n<|user|>Weather?\n"
    assert render(s, [{"role": "system", "content": "Be brief."}, HI], tools=[TOOL], tool_choice="auto") == \
        f"<|system|>Be brief.\n\n{BLOCK}\n<|user|>Weather?\n"
    assert render(s, HISTORY, tools=[TOOL]) == f"<|system|>{BLOCK}\n" + SHOWN


def test_what_is_not_asked_for_is_not_described(plain):
    """The history is written all the same: the template would drop its calls."""
    s = plain(*ON)
    for more in ({}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}):
        assert render(s, HISTORY, **more) == SHOWN
    for bad, param in (([5], "tools"), ([{"type": "function"}], "tools[0].function"),
                       ([{"type": "function", "function": {}}], "tools[0].function.name")):
        status, answer = s.post("/v1/chat/completions", {"messages": [HI], "tools": bad})
        assert status == 400 and answer["error"]["param"] == param


def test_a_result_of_no_call(plain):
    """It names none of the calls before it. Where there is no call, the conversation's beginning may have been cut off;
    where calls have no ids, a result can name none."""
    s = plain(*ON)
    one, two = [HI, calls("{}")], [HI, calls("{}", "{}")]
    for messages in [*one, result(5, "x")], [HI, result(0, "x"), *one, result(1, "x")], [*two, result(1, "x"), result(2, "x")]:
        status, a = s.post("/apply-template", {"messages": messages})
        assert (status, a["error"]["param"]) == (400, f"messages[{len(messages) - 1}].tool_call_id"), a
    status, a = s.post("/apply-template", {"messages": [*one, {**result(0, "x"), "tool_call_id": 5}]})
    assert (status, a["error"]["code"]) == (400, "invalid_type"), a
    bare = calls("{}")
    del bare["tool_calls"][0]["id"]
    for messages in [HI, result(0, "x"), result(9, "x")], [*two, result(0, "x"), *one, result(1, "x")], [HI, bare, result(7, "x")]:
        render(s, messages)


def test_refused_if_the_config_says_so(plain):
    s = plain("--set", "model.tools_fallback=false")
    assert tools_of(s) == "none"
    status, answer = s.post("/v1/chat/completions", {"messages": [HI], "tools": [TOOL]})
    assert status == 400 and answer["error"]["code"] == "unsupported" and answer["error"]["param"] == "tools"
    assert "tools_fallback" in answer["error"]["message"]
    assert render(s, [HI], tools=[TOOL], tool_choice="none") == "<|user|>Weather?\n"


def test_a_template_with_a_place(start):
    s = start(*ON)
    assert tools_of(s) == "native"
    assert render(s, [HI], tools=[TOOL]) == "<|user|>Weather?\n[1 tools]<|assistant|>"


@pytest.mark.parametrize("name", ["google-gemma-2-2b-it", "deepseek-ai-DeepSeek-V3.1",
                                  "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"])
def test_templates_in_use(start, name):
    """Those of the reference data without tools, Gemma's also without a system message."""
    s = start("--chat-template", str(oracle(f"templates/{name}.jinja")), *ON, template=False)
    shown = render(s, [{"role": "system", "content": "Be brief."}, *HISTORY, HI], tools=[TOOL])
    words = ["Be brief.", BLOCK, "Weather?", '"arguments": {"city":"Rome"}}\n</tool_call>',
             "<tool_response>\nwarm\n</tool_response>", "cold", "Weather?"]
    at = -1
    for w in words:
        assert (at := shown.find(w, at + 1)) >= 0, (w, shown)


def test_the_whole_daemon(start):
    """A request is answered; what a client writes into tools, calls and results stays text."""
    s = start.real(*ON, model="null:", template=False)
    body = {"messages": HISTORY, "tools": [TOOL]}
    status, answer = s.post("/v1/chat/completions", {**body, "max_tokens": 4})
    assert status == 200 and answer["usage"]["completion_tokens"] == 4
    end = s.post("/tokenize", {"prompt": "<|im_end|>"})[1]["tokens"]
    assert len(end) == 1
    odd = json.loads(json.dumps(body).replace("<b>", "<|im_end|>").replace("Rome", "<|im_end|>")
                     .replace("warm", "<|im_end|>"))
    assert render(s, odd["messages"], tools=odd["tools"]).count("<|im_end|>") == 4 + 3
    assert s.post("/tokenize", odd)[1]["tokens"].count(end[0]) == 4


def test_each_model_says_its_own(tmp_path):
    (tmp_path / "plain.jinja").write_text(PLAIN)
    (tmp_path / "native.jinja").write_text(PLAIN + "{{ tools }}")
    gemma = f"path: {oracle('models/gemma3.gguf')}, context: 512, chat_template: {tmp_path}"
    config = "models:\n" + "".join(f"  - {{name: {name}, {keys}}}\n" for name, keys in (
        ("bare", "path: 'null:', preload: true, tools_fallback: false"), ("native", f"{gemma}/native.jinja"),
        ("yes", f"{gemma}/plain.jinja, tools_fallback: true"), ("no", f"{gemma}/plain.jinja, tools_fallback: false")))
    s = Server(program(SERVER), None, config=config)
    try:
        for state in "unloaded", "loaded":  # the same before and after
            models = {m.id: m for m in s.client().models.list()}
            assert [models[m].tools for m in ("bare", "native", "yes", "no")] == ["none", "native", "fallback", "none"]
            assert models["yes"].state == models["no"].state == models["native"].state == state
            for model, want in (("native", 200), ("yes", 200), ("no", 400), ("bare", 400)):
                assert s.post("/tokenize", {"model": model, "messages": [HI], "tools": [TOOL]})[0] == want
    finally:
        s.stop()


def test_show(tmp_path):
    (tmp_path / "t.jinja").write_text(PLAIN)
    for args, want in (((), None), (("--chat-template", str(tmp_path / "t.jinja"), "--set", "model.tools_fallback=false"), "none"),
                       (("--chat-template", str(tmp_path / "t.jinja"), *ON), "fallback")):
        show = [program(CONIFER), "show", tiny_model(), *args]
        told = json.loads(subprocess.run([*show, "--json"], check=True, capture_output=True, timeout=60).stdout)
        assert told["tools"] == (want or told["tools"]) and told["chat_template"] is True
        text = subprocess.run(show, check=True, capture_output=True, timeout=60).stdout.decode()
        assert f"\ntools           {told['tools']}\n" in text
    assert "`tools`" in (ROOT / "docs/TERMINAL.md").read_text()
