"""What the tests of clients have in common: a model that calls tools, the tools, and what it says.

`agent` is a scripted null model, for answers that only a clever model gives of itself: it calls get_weather
twice, reads the results and answers. What a grammar holds is asked of `real`, the default model."""
import json

import pytest
from conftest import SERVER, Server, program, real_model_path
from pydantic import BaseModel, Field
from scripted import answer, call, script

def need(name):
    """The client's module; without it the tests of its file are skipped."""
    return pytest.importorskip(name, reason=f"{name} is not in this environment (tests/api/clients/requirements.txt)")


QUESTION = "What is the weather in Paris and Rome?"
REASON = "I need the weather of both."
CITIES = ["Paris", "Rome"]
FINAL = "Paris is sunny at 21 °C, and Rome\nhas rain."
WEATHER = {"Paris": "sunny, 21 °C", "Rome": "rain"}
NAME_A_CITY = "Name a city, as JSON."
NAME_CITIES = "Name two cities."


class City(BaseModel):
    """A city."""
    name: str = Field(max_length=40)
    population: int = Field(ge=0, le=10**8)


PARIS = City(name="Paris", population=2100000)
ROME = City(name="Rome", population=2800000)


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: The city's name.
    """
    return WEATHER[city]


def pick_colour(colour: str) -> str:
    """Picks a colour.

    Args:
        colour: The colour.
    """
    return colour


@pytest.fixture(scope="session")
def agent(tmp_path_factory):
    calls = "\n".join(call("get_weather", city=city) for city in CITIES)
    path = script(tmp_path_factory.mktemp("agent"),
                  answer(f"<think>\n{REASON}\n</think>\n\n{calls}", step=1, user=QUESTION),
                  answer(FINAL, step=2, user=QUESTION),
                  answer(call("IterableCity", tasks=[c.model_dump() for c in (PARIS, ROME)]), user=NAME_CITIES),
                  answer(f"<think>\n{REASON}\n</think>\n\n{PARIS.model_dump_json()}"))
    yield from served(path)


@pytest.fixture(scope="session")
def default():
    yield from served(real_model_path())


def served(model):
    """Clients keep connections, which the end does not wait for."""
    s = Server(program(SERVER), model, ["--set", "server.drain_timeout_s=0"], template=False)
    s.name = json.loads(s.get("/v1/models")[2])["data"][0]["id"]
    yield s
    s.wait_idle()
    s.stop()
