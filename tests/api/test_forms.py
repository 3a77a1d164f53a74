"""Answers that hold a form: JSON schemas, expressions, choices and grammars, with the real model."""
import concurrent.futures
import json
import os
import re

import jsonschema
import pytest
from conftest import SERVER, Server, oracle_files, program, real_model_path, sse
from scripted import answer, script

pytestmark = pytest.mark.real_model
PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "email": {"type": "string", "format": "email"},
    "tags": {"type": "array", "items": {"enum": ["new", "old", "hot"]}, "uniqueItems": True, "minItems": 1}},
    "required": ["name", "age", "tags"], "additionalProperties": False}
ALICE = [{"role": "user", "content": "Tell me about Alice, who is 30."}]


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def ask(server, **more):
    status, a = server.post("/v1/chat/completions", {"messages": ALICE, "max_tokens": 300, "temperature": 1, **more})
    assert status == 200, a
    return [(c["message"]["content"], c["finish_reason"]) for c in a["choices"]]


# jsonschema's own check of "time" reads at most six digits of a fraction; RFC 3339 allows any number.
FORMATS = jsonschema.FormatChecker(set(jsonschema.FormatChecker.checkers) - {"time"})


def valid(text, schema):
    jsonschema.validate(json.loads(text), schema, format_checker=FORMATS)


def test_a_schema_holds(real):
    for seed in range(6):
        for text, finish in ask(real, seed=seed, n=2, response_format=schema_format(PERSON)):
            assert finish == "stop"
            valid(text, PERSON)


@pytest.mark.parametrize("bound", [22, 30, 50])
def test_an_answer_is_closed_in_time(real, bound):
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "string"}}},
              "required": ["a", "b"]}
    for seed in range(5):
        for text, finish in ask(real, seed=seed, max_tokens=bound, response_format=schema_format(schema)):
            assert finish == "stop", text
            valid(text, schema)


def test_schemas_of_all_kinds(real):
    """Of the oracle's schemas; all of them with CONIFER_LONG."""
    schemas = json.loads(next(p for p in oracle_files("schemas/schemas.json")).read_text())["schemas"]
    some = schemas if os.environ.get("CONIFER_LONG") else schemas[::15]

    def one(i):
        s = some[i]
        return s, ask(real, seed=i, max_tokens=700, response_format=schema_format(s["schema"]))[0]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for s, (text, finish) in pool.map(one, range(len(some))):
            assert finish == "stop", (s["name"], text)
            valid(text, s["schema"])


FORMS = [({"structured_outputs": {"regex": "(red|green) [0-9]{3}"}}, lambda t: re.fullmatch("(red|green) [0-9]{3}", t)),
         ({"guided_regex": "[a-z]+@[a-z]+\\.com"}, lambda t: re.fullmatch("[a-z]+@[a-z]+\\.com", t)),
         ({"guided_choice": ["yes", "no", "perhaps"]}, lambda t: t in ("yes", "no", "perhaps")),
         ({"structured_outputs": {"choice": ["a b", "a c"]}}, lambda t: t in ("a b", "a c")),
         ({"grammar": 'root ::= "<" item ("," item){1,3} ">"\nitem ::= [a-c]+ | "(" item ")"'},
          lambda t: re.fullmatch("<[abc()]+(,[abc()]+){1,3}>", t) and t.count("(") == t.count(")")),
         ({"guided_grammar": 'start: "x" NUMBER+\nNUMBER: /[0-9]/'}, lambda t: re.fullmatch("x[0-9]+", t)),
         ({"response_format": {"type": "json_object"}}, lambda t: isinstance(json.loads(t), dict)),
         ({"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}},
          lambda t: valid(t, PERSON) or t == json.dumps(json.loads(t), separators=(",", ":"), ensure_ascii=False))]


@pytest.mark.parametrize("form, holds", FORMS)
def test_forms(real, form, holds):
    for seed in range(3):
        for text, finish in ask(real, seed=seed, max_tokens=80, **form):
            assert finish == "stop" and holds(text), text
    status, a = real.post("/v1/completions", {"prompt": ["Once", "Twice"], "n": 2, "max_tokens": 80, "temperature": 1, **form})
    assert status == 200 and len(a["choices"]) == 4
    for c in a["choices"]:
        assert c["finish_reason"] == "stop" and holds(c["text"]), c


def test_a_stream_is_the_same(real):
    body = {"messages": ALICE, "max_tokens": 200, "temperature": 1, "seed": 5, "response_format": schema_format(PERSON)}
    whole = real.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    _, _, events = real.http("POST", "/v1/chat/completions", {**body, "stream": True})
    deltas = [c["delta"].get("content") or "" for e in sse(events)[:-1] for c in e["choices"]]
    assert "".join(deltas) == whole and len([d for d in deltas if d]) > 5


@pytest.mark.parametrize("device", ["cpu", "async"])
def test_the_same_bytes_at_once(device):
    """Alone, sixteen at once among free ones, and with their prompts cached."""
    s = Server(program(SERVER), real_model_path(), ["--set", f"engine.device={device}", "--threads", "2"])

    def one(i):
        more = {"response_format": schema_format(PERSON)} if i % 4 else {}
        return ask(s, seed=i, max_tokens=60, messages=[{"role": "user", "content": f"Tell me about {i}."}], **more)

    alone = [one(i) for i in range(16)]
    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            assert list(pool.map(one, range(16))) == alone
    s.wait_idle()
    s.stop()


@pytest.mark.parametrize("device", ["cpu", "async"])
def test_a_form_begins_after_the_reasoning(device, tmp_path):
    path = script(tmp_path, answer('<think>\nI think {"a": 2}.\n</think>\n\n{"a": 1}', user="json"),
                  answer('{"a": 3}', user="at once"))
    s = Server(program(SERVER), path, ["--set", f"engine.device={device}"], template=False)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    for words, want in (("json", 1), ("at once", 3)):
        status, a = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": words}], "max_tokens": 200,
                                                    "response_format": schema_format(schema)})
        m = a["choices"][0]["message"]
        assert status == 200 and json.loads(m["content"]) == {"a": want}, m
        assert (m.get("reasoning_content") == 'I think {"a": 2}.') == (want == 1), m
    s.wait_idle()
    s.stop()


def test_reasoning_has_a_budget(tmp_path):
    path = script(tmp_path, answer("<think>\n" + "again and " * 200 + "\n</think>\n\nDone."))
    s = Server(program(SERVER), path, template=False)
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 900, "thinking_token_budget": 30}
    a = s.post("/v1/chat/completions", body)[1]
    m = a["choices"][0]["message"]
    assert m["content"].strip() == "Done." and "again and" in m["reasoning_content"]
    assert a["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 40
    s.wait_idle()
    s.stop()


def test_hostile_forms_are_refused_soon(real):
    """Each is refused by name or answered, and a neighbour's request is answered meanwhile."""
    deep = {"type": "object"}
    for _ in range(60):
        deep = {"properties": {"a": deep}, "anyOf": [{"type": "object"}, {"required": ["a"]}]}
    forms = [{"guided_regex": "((a{0,1000}){0,1000}){0,1000}b{99999}"}, {"guided_regex": "(" * 5000},
             {"guided_json": {"enum": [f"value {i}" for i in range(10000)]}},
             {"guided_json": {"oneOf": [{"not": {"anyOf": [{"minimum": i}, {"type": "string"}]}} for i in range(200)]}},
             {"guided_json": deep}, {"guided_json": {"$ref": "#"}}, {"grammar": "root ::= root root | root"},
             {"grammar": "root ::= (" * 3000}, {"guided_json": {"pattern": "(a|a)*" * 200, "type": "string"}}]
    with concurrent.futures.ThreadPoolExecutor(len(forms)) as pool:
        jobs = [pool.submit(real.post, "/v1/chat/completions", {"messages": ALICE, "max_tokens": 8, **f}) for f in forms]
        for seed in range(3):
            assert real.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "seed": seed})[0] == 200
        for job, form in zip(jobs, forms):
            status, a = job.result()
            assert status == 200 or (status in (400, 429) and a["error"]["message"]), (form, a)
