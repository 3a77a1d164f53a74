"""instructor: answers as objects, through tools, JSON and JSON schemas; whole, in part and one after the other.
Its way with this API is the same in any environment; the other clients are tested in clients/."""
import json
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/api/clients"))
from world import CITIES, FINAL, NAME_A_CITY, NAME_CITIES, PARIS, QUESTION, ROME, WEATHER, City, agent, default  # noqa: E402

instructor = pytest.importorskip("instructor")
pytestmark = pytest.mark.real_model
__all__ = ["agent", "default"]
Mode = instructor.Mode
TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def client(server, mode):
    """It makes classes of its own of those that it is given, so that values are compared."""
    return instructor.from_openai(server.client(), mode=mode)


def user(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.JSON, Mode.JSON_SCHEMA])
def test_a_structured_answer(agent, default, mode):
    """In the mode JSON the server only hears of an object: the model has to know its schema. A call that is
    required of the scripted model is not in its text."""
    for server in {Mode.TOOLS: [default], Mode.JSON: [agent], Mode.JSON_SCHEMA: [agent, default]}[mode]:
        c = client(server, mode)
        more = {"model": server.name, "messages": [user(NAME_A_CITY)], "response_model": City, "max_tokens": 400,
                "max_retries": 0}
        city, raw = c.create_with_completion(**more)
        assert isinstance(city, City) and raw.usage.completion_tokens > 0
        parts = list(c.create_partial(**more))
        assert City.model_validate(parts[-1].model_dump())
        assert server is default or city.model_dump() == parts[-1].model_dump() == PARIS.model_dump()


def test_several_objects(agent):
    """In a stream of a call that is required. (Braces in strings, as a foolish model writes them, confuse the client.)"""
    cities = client(agent, Mode.TOOLS).create_iterable(model=agent.name, messages=[user(NAME_CITIES)], response_model=City,
                                                       max_tokens=400, max_retries=0)
    assert [city.model_dump() for city in cities] == [PARIS.model_dump(), ROME.model_dump()]


def test_a_streamed_loop(agent):
    """Without a model of the answer it gives what the official client gives."""
    c, messages = client(agent, Mode.TOOLS), [user(QUESTION)]
    for step in 1, 2:
        text, calls = "", []
        for chunk in c.create(model=agent.name, messages=messages, response_model=None, tools=[TOOL], stream=True):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            for part in delta.tool_calls or []:
                if part.id:
                    calls.append({"id": part.id, "type": "function", "function": {"name": part.function.name, "arguments": ""}})
                calls[part.index]["function"]["arguments"] += part.function.arguments
        asked = [json.loads(t["function"]["arguments"])["city"] for t in calls]
        assert asked == (CITIES if step == 1 else [])
        messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        messages += ({"role": "tool", "tool_call_id": t["id"], "content": WEATHER[city]} for t, city in zip(calls, asked))
    assert text == FINAL
