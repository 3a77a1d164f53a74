"""pydantic-ai: agents with tools, and outputs in its three ways."""
import asyncio

import pytest
from world import CITIES, FINAL, NAME_A_CITY, PARIS, QUESTION, REASON, City, agent, default, get_weather, need

need("pydantic_ai")
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

pytestmark = pytest.mark.real_model
__all__ = ["agent", "default"]


def model(server):
    return OpenAIChatModel(server.name, provider=OpenAIProvider(base_url=server.url + "/v1", api_key="none"))


def test_a_streamed_loop(agent):
    asked = []

    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return get_weather(city)

    weather.__name__ = "get_weather"

    async def run():
        a = Agent(model(agent), tools=[weather], instructions="Help.")
        async with a.run_stream(QUESTION) as answer:
            texts = [text async for text in answer.stream_text(delta=True, debounce_by=None)]
        return texts, answer.all_messages()

    texts, messages = asyncio.run(run())
    assert "".join(texts) == FINAL and sorted(asked) == CITIES
    thoughts = [p.content for m in messages for p in m.parts if p.part_kind == "thinking"]
    assert thoughts == [REASON]
    assert Agent(model(agent), tools=[weather]).run_sync(QUESTION).output == FINAL


@pytest.mark.parametrize("way", [NativeOutput, ToolOutput, PromptedOutput])
def test_structured_output(agent, default, way):
    """A prompted output is only JSON for the server: the model has to know its schema."""
    for server in [agent] if way is PromptedOutput else [agent, default]:
        a = Agent(model(server), output_type=way(City), retries=0, model_settings={"max_tokens": 400})
        city = a.run_sync(NAME_A_CITY).output
        assert isinstance(city, City) and (server is default or way is ToolOutput or city == PARIS)

        async def stream(a=a):
            async with a.run_stream(NAME_A_CITY) as answer:
                return [part async for part in answer.stream_output(debounce_by=None)]

        assert isinstance(asyncio.run(stream())[-1], City)


def test_calls_that_are_required(default):
    """An agent without a text as output asks for a call each time: of a tool, or of the output's."""
    a = Agent(model(default), output_type=[ToolOutput(City, name="a_city"), ToolOutput(bool, name="yes_or_no")], retries=0,
              model_settings={"max_tokens": 400})
    assert isinstance(a.run_sync("Is it cold?").output, (City, bool))
