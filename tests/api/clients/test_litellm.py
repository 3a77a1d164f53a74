"""litellm: completions, streams that its builder adds up, structured answers and tools."""
import asyncio
import json
import os

import pytest
from world import CITIES, FINAL, NAME_A_CITY, PARIS, QUESTION, REASON, WEATHER, City, agent, default, need

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for it
litellm = need("litellm")

pytestmark = pytest.mark.real_model
__all__ = ["agent", "default"]
TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def to(server, provider="openai"):
    return {"model": f"{provider}/{server.name}", "api_base": server.url + "/v1", "api_key": "none", "max_tokens": 400,
            "num_retries": 0}


def user(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_a_streamed_loop(agent, provider):
    messages = [user(QUESTION)]
    for step in 1, 2:
        chunks = list(litellm.completion(messages=messages, tools=[TOOL], stream=True, stream_options={"include_usage": True},
                                         **to(agent, provider)))
        whole = litellm.stream_chunk_builder(chunks, messages=messages)
        message = whole.choices[0].message
        assert whole.usage.completion_tokens > 5
        calls = message.tool_calls or []
        assert [json.loads(t.function.arguments) for t in calls] == ([{"city": c} for c in CITIES] if step == 1 else [])
        assert whole.choices[0].finish_reason == ("tool_calls" if step == 1 else "stop")
        assert step == 2 or message.reasoning_content == REASON
        messages.append(message)
        messages += ({"role": "tool", "tool_call_id": t.id, "content": WEATHER[json.loads(t.function.arguments)["city"]]}
                     for t in calls)
    assert message.content == FINAL


def test_a_structured_answer(agent, default):
    async def one(server, **more):
        a = await litellm.acompletion(messages=[user(NAME_A_CITY)], **to(server), **more)
        return a.choices[0].message.content

    for server in agent, default:
        schema = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": City.model_json_schema()}}
        for form in City, schema:
            city = City.model_validate_json(asyncio.run(one(server, response_format=form)))
            assert server is default or city == PARIS
        parts = litellm.completion(messages=[user(NAME_A_CITY)], stream=True, response_format=City, **to(server))
        assert City.model_validate_json("".join(p.choices[0].delta.content or "" for p in parts))
        assert isinstance(json.loads(asyncio.run(one(server, response_format={"type": "json_object"}))), dict)


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_calls_that_are_required(default, choice):
    more = {"messages": [user("Say hello.")], "tools": [TOOL], "tool_choice": choice, **to(default)}
    a = litellm.completion(**more)
    b = litellm.stream_chunk_builder(list(litellm.completion(stream=True, **more)))
    for m in a.choices[0].message, b.choices[0].message:
        assert m.tool_calls and all(isinstance(json.loads(t.function.arguments)["city"], str) for t in m.tool_calls)
