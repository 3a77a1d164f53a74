"""Calls of tools: choices that require them, with the real model, whose template has no place for tools."""
import json

import jsonschema
import pytest
from conftest import sse

pytestmark = pytest.mark.real_model
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["C", "F"]}},
           "required": ["city"], "additionalProperties": False}
ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
       "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "add": ADD}
TOOLS = [{"type": "function", "function": {"name": n, "description": n, "parameters": s}} for n, s in SCHEMAS.items()]
NAMED = {"type": "function", "function": {"name": "add"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {
    "mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}
BODY = {"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "tools": TOOLS, "max_tokens": 200,
        "temperature": 1}


def calls_of(message):
    calls = message["tool_calls"]
    for c in calls:
        assert c["type"] == "function" and c["id"]
        jsonschema.validate(json.loads(c["function"]["arguments"]), SCHEMAS[c["function"]["name"]])
    assert len({c["id"] for c in calls}) == len(calls)
    return [c["function"]["name"] for c in calls]


@pytest.mark.parametrize("choice, names", [("required", {"get_weather", "add"}), (NAMED, {"add"}), (ALLOWED, {"get_weather"})])
@pytest.mark.parametrize("many", [True, False])
def test_calls_that_are_required(real, choice, names, many):
    for seed in range(4):
        body = {**BODY, "tool_choice": choice, "parallel_tool_calls": many, "seed": seed}
        status, a = real.post("/v1/chat/completions", body)
        assert status == 200, a
        m = a["choices"][0]["message"]
        got = calls_of(m)
        assert m["content"] is None and got and set(got) <= names and (many or len(got) == 1)
        assert a["choices"][0]["finish_reason"] == "tool_calls"


def test_a_stream_of_calls(real):
    body = {**BODY, "tool_choice": "required", "seed": 3}
    whole = real.post("/v1/chat/completions", body)[1]["choices"][0]["message"]
    _, _, events = real.http("POST", "/v1/chat/completions", {**body, "stream": True})
    calls = []
    chunks = sse(events)[:-1]
    for d in (c["delta"] for e in chunks for c in e["choices"]):
        for t in d.get("tool_calls") or []:
            if "id" in t:
                assert t["index"] == len(calls) and t["function"]["name"]
                calls.append([t["function"]["name"], ""])
            else:
                assert "name" not in t["function"]
            calls[t["index"]][1] += t["function"].get("arguments") or ""
    assert calls == [[c["function"]["name"], c["function"]["arguments"]] for c in whole["tool_calls"]]
    assert [c["finish_reason"] for e in chunks for c in e["choices"]][-1] == "tool_calls"


def test_the_older_fields(real):
    body = {k: v for k, v in BODY.items() if k != "tools"}
    body |= {"functions": [t["function"] for t in TOOLS], "function_call": {"name": "add"}}
    a = real.post("/v1/chat/completions", body)[1]["choices"][0]
    call = a["message"]["function_call"]
    assert call["name"] == "add" and a["finish_reason"] == "function_call"
    jsonschema.validate(json.loads(call["arguments"]), ADD)
    _, _, events = real.http("POST", "/v1/chat/completions", {**body, "stream": True, "seed": 1})
    deltas = [c["delta"]["function_call"] for e in sse(events)[:-1] for c in e["choices"] if "function_call" in c["delta"]]
    assert deltas[0]["name"] == "add" and not any("name" in d for d in deltas[1:])
    jsonschema.validate(json.loads("".join(d["arguments"] for d in deltas)), ADD)


def test_results_come_back(real):
    body = {**BODY, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 100}
    first = real.post("/v1/chat/completions", body)[1]["choices"][0]["message"]
    messages = [*BODY["messages"], first, {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "21"}]
    for more in ({}, {"tool_choice": "none"}, {"tools": []}):
        status, a = real.post("/v1/chat/completions", {**BODY, "messages": messages, "max_tokens": 8, **more})
        assert status == 200 and a["choices"][0]["message"]["content"] is not None, a


@pytest.mark.parametrize("more, param", [
    ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"), ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "never", "tools": []}}}, "tool_choice.allowed_tools.mode"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"$ref": "http://x"}}}}}],
      "tool_choice": "required"}, "tools[0].function.parameters.properties.a")])
def test_what_is_wrong_is_named(real, more, param):
    status, a = real.post("/v1/chat/completions", {**BODY, **more})
    assert status == 400 and a["error"]["param"] == param, a
