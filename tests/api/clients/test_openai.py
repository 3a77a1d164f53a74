"""The official client: streams and their helpers, parsed answers, tools, also in its asynchronous form."""
import asyncio
import json

import openai
import pytest
from pydantic import BaseModel
from world import CITIES, FINAL, NAME_A_CITY, PARIS, QUESTION, REASON, WEATHER, City, agent, default

pytestmark = pytest.mark.real_model
__all__ = ["agent", "default"]


class GetWeather(BaseModel):
    """The weather in a city."""
    city: str


TOOLS = [openai.pydantic_function_tool(GetWeather, name="get_weather")]


def user(text):
    return {"role": "user", "content": text}


def result(call):
    return {"role": "tool", "tool_call_id": call.id, "content": WEATHER[json.loads(call.function.arguments)["city"]]}


def test_a_loop_with_the_streams_helper(agent):
    """Its events, and the messages that it gives, sent back as they are."""
    c, messages, seen = agent.client(), [user(QUESTION)], []
    while True:
        with c.chat.completions.stream(model=agent.name, messages=messages, tools=TOOLS,
                                       stream_options={"include_usage": True}) as stream:
            events = list(stream)
        final = stream.get_final_completion()
        message = final.choices[0].message
        assert final.usage.completion_tokens > 0
        seen.append([e.type for e in events])
        messages.append(message)
        if not message.tool_calls:
            break
        assert final.choices[0].finish_reason == "tool_calls" and not message.content
        assert [t.function.parsed_arguments for t in message.tool_calls] == [GetWeather(city=city) for city in CITIES]
        done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
        assert [(e.index, e.name, e.parsed_arguments) for e in done] == [
            (i, "get_weather", GetWeather(city=city)) for i, city in enumerate(CITIES)]
        messages += map(result, message.tool_calls)
    assert message.content == FINAL and final.choices[0].finish_reason == "stop"
    assert "tool_calls.function.arguments.delta" in seen[0] and "content.delta" in seen[1]
    assert len(seen) == 2 and seen[1].count("content.done") == 1


def test_a_loop_with_chunks(agent):
    """Put together by hand, as agents do it, by the asynchronous client."""
    async def loop():
        c = openai.AsyncOpenAI(base_url=agent.url + "/v1", api_key="none", max_retries=0)
        messages, reasoning = [user(QUESTION)], ""
        while True:
            text, calls = "", []
            stream = await c.chat.completions.create(model=agent.name, messages=messages, tools=TOOLS, stream=True,
                                                     tool_choice="auto")
            async for chunk in stream:
                delta = chunk.choices[0].delta
                reasoning += getattr(delta, "reasoning_content", None) or ""
                text += delta.content or ""
                for part in delta.tool_calls or []:
                    if part.index == len(calls):
                        calls.append(part)
                    else:
                        calls[part.index].function.arguments += part.function.arguments
            if not calls:
                await c.close()
                return text, reasoning
            messages.append({"role": "assistant", "content": text or None,
                             "tool_calls": [t.model_dump(exclude={"index"}) for t in calls]})
            messages += map(result, reversed(calls))  # in the order in which they finish
    assert asyncio.run(loop()) == (FINAL, REASON)


def test_parsed_answers(agent, default):
    for server in agent, default:
        c = server.client()
        more = {"model": server.name, "messages": [user(NAME_A_CITY)], "response_format": City, "max_tokens": 400}
        m = c.chat.completions.parse(**more).choices[0].message
        assert isinstance(m.parsed, City) and (server is default or m.parsed == PARIS)
        with c.chat.completions.stream(**more) as stream:
            parts = [e.parsed for e in stream if e.type == "content.delta" and e.parsed]
        final = stream.get_final_completion().choices[0].message.parsed
        assert isinstance(final, City) and parts[-1] == final.model_dump()
    with pytest.raises(openai.LengthFinishReasonError):
        c.chat.completions.parse(**{**more, "max_tokens": 3})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_calls_that_are_required(default, choice):
    c = default.client()
    more = {"model": default.name, "messages": [user("Say hello.")], "tools": TOOLS, "tool_choice": choice,
            "max_tokens": 200}
    calls = c.chat.completions.parse(**more).choices[0].message.tool_calls
    assert calls and all(isinstance(t.function.parsed_arguments, GetWeather) for t in calls)
    with c.chat.completions.stream(**more) as stream:
        list(stream)
    calls = stream.get_final_completion().choices[0].message.tool_calls
    assert calls and all(isinstance(t.function.parsed_arguments, GetWeather) for t in calls)
    with pytest.raises(openai.BadRequestError) as e:
        c.chat.completions.create(**{**more, "tool_choice": {"type": "function", "function": {"name": "nope"}}})
    assert e.value.param == "tool_choice" and e.value.code == "invalid_value"
