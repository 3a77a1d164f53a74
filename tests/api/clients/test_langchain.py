"""langchain-openai: bound tools, and structured output in its three ways."""
import functools
import operator

import pytest
from world import CITIES, FINAL, NAME_A_CITY, PARIS, QUESTION, City, agent, default, get_weather, need, pick_colour

need("langchain_openai")
from langchain_core.messages import HumanMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402

pytestmark = pytest.mark.real_model
__all__ = ["agent", "default"]
TOOLS = {t.name: t for t in (tool(get_weather), tool(pick_colour))}


def chat(server, **more):
    return ChatOpenAI(base_url=server.url + "/v1", api_key="none", model=server.name, max_retries=0, max_tokens=400, **more)


def added(chunks):
    return functools.reduce(operator.add, chunks)


@pytest.mark.parametrize("usage", [False, True])
def test_a_streamed_loop(agent, usage):
    model = chat(agent, stream_usage=usage).bind_tools(list(TOOLS.values()))
    messages = [HumanMessage(QUESTION)]
    for step in 1, 2:
        message = added(model.stream(messages))
        messages.append(message)
        assert bool(message.usage_metadata) == usage and not message.invalid_tool_calls
        for t in message.tool_calls:
            messages.append(ToolMessage(TOOLS[t["name"]].invoke(t["args"]), tool_call_id=t["id"]))
        assert [t["args"] for t in message.tool_calls] == ([{"city": city} for city in CITIES] if step == 1 else [])
        assert message.response_metadata["finish_reason"] == ("tool_calls" if step == 1 else "stop")
    assert message.content == FINAL


@pytest.mark.parametrize("choice, names", [("any", set(TOOLS)), ("pick_colour", {"pick_colour"}), (True, {"get_weather"})])
def test_calls_that_are_required(default, choice, names):
    tools = [TOOLS["get_weather"]] if choice is True else list(TOOLS.values())
    for more in {}, {"strict": True}, {"parallel_tool_calls": False}:
        model = chat(default).bind_tools(tools, tool_choice=choice, **more)
        for m in model.invoke("Say hello."), added(model.stream("Say hello.")):
            assert m.tool_calls and not m.invalid_tool_calls and {t["name"] for t in m.tool_calls} <= names
            assert "parallel_tool_calls" not in more or len(m.tool_calls) == 1


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(agent, default, method):
    """json_mode says nothing of the schema to the server: the model has to know it."""
    for server in [agent] if method == "json_mode" else [agent, default]:
        model = chat(server).with_structured_output(City, method=method)
        for city in model.invoke(NAME_A_CITY), list(model.stream(NAME_A_CITY))[-1]:
            assert isinstance(city, City) and (server is default or method == "function_calling" or city == PARIS)
    raw = chat(default).with_structured_output(City.model_json_schema(), method=method, include_raw=True)
    found = raw.invoke(NAME_A_CITY)
    assert isinstance(found["parsed"], dict) and found["parsing_error"] is None
    assert method == "json_mode" or City(**found["parsed"])
