"""llm: its own configuration for servers of this API; tools, schemas, and its command."""
import json
import os
import subprocess
import sys

import pytest
import yaml
from world import CITIES, FINAL, NAME_A_CITY, PARIS, QUESTION, City, agent, default, get_weather, need

llm = need("llm")

pytestmark = pytest.mark.real_model
__all__ = ["agent", "default"]


@pytest.fixture
def home(agent, default, tmp_path, monkeypatch):
    """Its folder, with both servers in its configuration."""
    models = [{"model_id": name, "model_name": server.name, "api_base": server.url + "/v1", "supports_schema": True,
               "supports_tools": True} for name, server in (("agent", agent), ("default", default))]
    (tmp_path / "extra-openai-models.yaml").write_text(yaml.safe_dump(models))
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("stream", [True, False])
def test_a_loop(home, stream):
    asked = []

    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return get_weather(city)

    weather.__name__ = "get_weather"
    texts = list(llm.get_model("agent").chain(QUESTION, tools=[weather], stream=stream))
    assert "".join(texts).strip() == FINAL and asked == CITIES


def test_schemas(home):
    for name in "agent", "default":
        for schema in City, City.model_json_schema():
            for stream in True, False:
                text = llm.get_model(name).prompt(NAME_A_CITY, schema=schema, stream=stream, max_tokens=400).text()
                city = City.model_validate_json(text)
                assert name == "default" or city == PARIS


def test_the_command(home):
    def run(*args):
        out = subprocess.run([sys.executable, "-m", "llm", *args], capture_output=True, text=True, timeout=120,
                             env=dict(os.environ), check=False)
        assert out.returncode == 0, out
        return out.stdout

    functions = "def get_weather(city: str) -> str:\n    'The weather.'\n    return 'sunny in ' + city\n"
    assert run("-m", "agent", "--functions", functions, QUESTION).strip() == FINAL
    person = json.loads(run("-m", "default", "--schema", "name, age int", "A person.", "-o", "max_tokens", "400"))
    assert isinstance(person["name"], str) and isinstance(person["age"], int)
