"""Calls that are required of models with a place for each parameter, in which strings have no quotes, or with values
in a syntax of their own: whatever the model does, the arguments satisfy the tool's schema, or the schema is refused by name."""
import json

import jsonschema
import pytest
from conftest import SERVER, Server, oracle, program

FORMS = ["Qwen3-Coder", "GLM-4.6", "ByteDance-Seed-OSS", "deepseek-ai-DeepSeek-V4", "google-gemma-4-31B-it-interleaved",
         "tencent-Hy3", "MiniMax-M3", "muse-glimmer", "LFM2-8B-A1B"]
OBJECTS = {"google-gemma-4-31B-it-interleaved", "LFM2-8B-A1B"}  # whose calls can have arguments that are one object
POINT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
VALUES = [
    # strings, of which only the schema says that they are
    {"type": "string", "pattern": "^[a-c]{3}$"}, {"type": "string", "maxLength": 5}, {"type": "string", "format": "date"},
    {"const": "abc"}, {"type": "string", "const": "</parameter>x", "description": "closed by its own text"},
    {"$ref": "#/$defs/word"}, {"allOf": [{"type": "string"}, {"pattern": "^[xy]+$"}, {"maxLength": 4}]},
    # or null, or another type
    {"anyOf": [{"type": "string", "maxLength": 6}, {"type": "null"}]}, {"type": ["string", "null"], "maxLength": 6},
    {"enum": ["null", "None", "nil", None]}, {"type": ["string", "boolean", "number"], "maxLength": 3},
    {"enum": ["1", 2, None, "two"]}, {"anyOf": [{"type": "array", "items": {"type": "integer"}, "maxItems": 2},
                                                {"type": "string", "maxLength": 3}]},
    # JSON
    {"$ref": "#/$defs/point"}, {"type": "array", "items": {"$ref": "#/$defs/word"}, "maxItems": 2}, {},
]
DEFS = {"word": {"type": "string", "enum": ["a", "b c"]}, "point": POINT}
ANY = {"temperature": 1, "top_p": 1, "min_p": 0, "max_tokens": 400, "parallel_tool_calls": False, "tool_choice": "required"}


@pytest.fixture(scope="module", params=FORMS)
def server(request):
    s = Server(program(SERVER), "null:", ["--chat-template", str(oracle(f"templates/{request.param}.jinja"))],
               template=False)
    s.form = request.param
    yield s
    s.wait_idle()
    s.stop()


@pytest.fixture(scope="module")
def plain():
    """A model with the built-in template: calls are JSON."""
    s = Server(program(SERVER), "null:")
    yield s
    s.wait_idle()
    s.stop()


def ask(server, schema, **more):
    tool = {"type": "function", "function": {"name": "f", "description": "x", "parameters": schema}}
    return server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [tool],
                                                **ANY, **more})


@pytest.mark.parametrize("i", range(len(VALUES)))
def test_arguments_satisfy_the_schema(server, i):
    schema = {"type": "object", "properties": {"v": VALUES[i]}, "required": ["v"], "additionalProperties": False,
              "$defs": DEFS}
    whole = 0
    for seed in range(3):
        status, a = ask(server, schema, seed=seed)
        if "</parameter>" in str(VALUES[i]) and status == 400:
            assert a["error"]["param"] == "tools[0].function.parameters.properties.v"
            return
        assert status == 200, a
        choice = a["choices"][0]
        if choice["finish_reason"] == "length":
            continue
        arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
        jsonschema.validate(arguments, schema)
        whole += 1
    assert whole


def test_what_is_required_and_not_described(server):
    schema = {"type": "object", "properties": {"v": {"type": "string"}}, "required": ["w"]}
    status, a = ask(server, schema)
    assert status == 200, a
    jsonschema.validate(json.loads(a["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]), schema)


@pytest.mark.parametrize("more, place, says", [
    ({"anyOf": [{"required": ["v"]}, {"required": ["w"]}]}, "", "anyOf"), ({"minProperties": 1}, "", "minProperties"),
    ({"properties": {"v": {"$ref": "#/$defs/none"}}}, ".properties.v", "#/$defs/none"),
    ({"properties": {"v": {"type": "string", "minLength": 3, "maxLength": 2}}, "required": ["v"]}, ".properties.v", "no value"),
    ({"properties": {"v": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"type": 5}}}, ".$defs.p", "type"),
])
def test_what_cannot_be_enforced_is_refused(server, more, place, says):
    status, a = ask(server, {"type": "object", "properties": {"v": {"type": "string"}}, **more})
    if server.form in OBJECTS and not place:
        assert status == 200, a
        return
    assert status == 400, a
    assert a["error"]["param"] == "tools[0].function.parameters" + place and says in a["error"]["message"], a


TEXT = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}, "required": ["a"],
        "additionalProperties": False}


@pytest.mark.parametrize("form", [{"guided_choice": ["x"]}, {"guided_regex": "x"}, {"grammar": 'root ::= "x"'},
                                  {"guided_grammar": 'start: "x"'}])
def test_calls_beside_an_answer_that_is_no_json(plain, form):
    """The arguments are JSON all the same, though the model likes quotes, line ends and backslashes."""
    called = 0
    for seed in range(8):
        status, a = ask(plain, TEXT, **form, tool_choice="auto", seed=seed, temperature=2,
                        logit_bias={str(ord(c)): 40 for c in '"\n\\'})
        assert status == 200, a
        message = a["choices"][0]["message"]
        assert message["content"] in (None, "x"), a
        for t in message.get("tool_calls", []):
            jsonschema.validate(json.loads(t["function"]["arguments"]), TEXT)
            called += 1
    assert called
