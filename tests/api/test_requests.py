"""Bodies: every field with wrong types and values, shapes of messages, tools, templates."""
import json

import pytest

from conftest import FAKE, Server, program, tiny_model

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
TEXT = {"prompt": "hi", "max_tokens": 2}
EMBED = {"input": "hi"}

WRONG = {
    "BOOL": [1, "true", [], {}],
    "INT": [1.5, "1", True, [], {}],
    "NUM": ["1", True, [], {}],
    "STR": [1, True, [], {}],
    "ARR": [1, "x", {}],
    "OBJ": [1, "x", []],
}


def fields():
    import pathlib
    import re
    text = (pathlib.Path(__file__).resolve().parents[2] / "server/params.def").read_text()
    found = re.findall(r'^PARAM\(([A-Z |]+), "(\w+)", (\w+), \w+, [^,]+, ([-\d]+), ([-\d]+),$', text,
                       re.M)
    assert len(found) > 30
    return found


def refused(server, path, body, param, status=400):
    got, answer = server.post(path, body)
    assert got == status, answer
    assert answer["error"]["param"] == param, answer
    assert answer["error"]["message"] and answer["error"]["code"] and answer["error"]["type"]
    return answer["error"]


def path_of(endpoint):
    return {"CHAT": ("/v1/chat/completions", CHAT), "TEXT": ("/v1/completions", TEXT),
            "EMBED": ("/v1/embeddings", EMBED), "TOK": ("/tokenize", {"prompt": "hi"}),
            "DETOK": ("/detokenize", {"tokens": [1]})}[endpoint]


@pytest.fixture(scope="module")
def server_of(fake):
    """Endpoint -> a server whose model has it: embeddings are a kind of model."""
    embedding = Server(program(FAKE), tiny_model(), env={"CONIFER_FAKE_EMBED": "8"})
    yield lambda endpoint: embedding if endpoint == "EMBED" else fake
    embedding.stop()


@pytest.mark.parametrize("endpoints,name,kind,low,high", fields())
def test_types_and_ranges(server_of, endpoints, name, kind, low, high):
    for endpoint in endpoints.split(" | "):
        path, base = path_of(endpoint)
        fake = server_of(endpoint)
        for value in WRONG.get(kind, []):
            error = refused(fake, path, {**base, name: value}, name)
            assert error["code"] == "invalid_type"
        if kind in ("INT", "NUM") and (low, high) != ("0", "0"):
            values = [int(low) - 1]
            if int(high) < 2**62:
                values += [int(high) + 1, 2**62, -2**62]
            for value in values:
                if abs(value) < 2**63:
                    error = refused(fake, path, {**base, name: value}, name)
                    assert error["code"] == "out_of_range"


def test_null_is_absent(server_of):
    for endpoints, name, *_ in fields():
        for endpoint in endpoints.split(" | "):
            path, base = path_of(endpoint)
            if name in base and name != "max_tokens":
                continue
            status, answer = server_of(endpoint).post(path, {**base, name: None})
            assert status == 200, (name, answer)


def test_unknown_fields_are_ignored(fake):
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        assert fake.post(path, {**body, "whatever": {"a": [1]}, "store": True})[0] == 200


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'"x"', b"{", b'{"a":1,"a":2}',
                                  b'{"messages": "\xff"}', b'{"a": NaN}',
                                  b"{" * 10000, b"[" * 100000, b'{"a":' * 65 + b"1" + b"}" * 65,
                                  b'{"a": 123456789012345678901234567890'])
def test_not_json(fake, body):
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize",
                 "/apply-template"):
        status, answer = fake.post(path, body)
        assert status == 400 and answer["error"]["code"] == "invalid_json"


def test_large_bodies_are_parsed_elsewhere_the_same(fake):
    long = "x" * 100000
    status, answer = fake.post("/v1/completions", {**TEXT, "user": long})
    assert status == 200
    assert fake.post("/tokenize", {"prompt": long})[1]["count"] > 1000
    status, answer = fake.post("/v1/completions", b'{"user":"' + long.encode() + b'","n":}')
    assert status == 400 and answer["error"]["code"] == "invalid_json"
    refused(fake, "/v1/completions", {**TEXT, "user": long, "n": "x"}, "n")


@pytest.mark.parametrize("messages,param", [
    (["x"], "messages[0]"), ([{}], "messages[0].role"),
    ([{"role": 5, "content": "x"}], "messages[0].role"),
    ([{"role": "wizard", "content": "x"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
    ([{"role": "user", "content": [{"type": 5, "text": "x"}]}], "messages[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "poem", "text": "x"}]}], "messages[0].content[0].type"),
    ([{"role": "assistant", "content": [{"type": "refusal"}]}], "messages[0].content[0].refusal"),
    ([{"role": "user", "content": "x"},
      {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
     "messages[1].content[0].type"),
    ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls"),
])
def test_messages(fake, messages, param):
    refused(fake, "/v1/chat/completions", {**CHAT, "messages": messages}, param)


def test_missing(fake):
    assert refused(fake, "/v1/chat/completions", {}, "messages")["code"] == "missing_field"
    assert refused(fake, "/v1/completions", {}, "prompt")["code"] == "missing_field"
    assert refused(fake, "/detokenize", {}, "tokens")["code"] == "missing_field"


@pytest.mark.parametrize("more,param", [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    ({"tools": [5]}, "tools"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools[1].function.name"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
    ({"stop": 5}, "stop"), ({"stop": [""]}, "stop"), ({"stop": ["a", 5]}, "stop"),
    ({"stop": ["a"] * 100}, "stop"), ({"stop": "x" * 5000}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"), ({"stop_token_ids": ["a"]}, "stop_token_ids"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"1": "x"}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"), ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"n": 9}, "n"), ({"max_tokens": 0}, "max_tokens"),
    ({"min_tokens": 5, "max_tokens": 2}, "min_tokens"),
    ({"priority": "royal"}, "priority"), ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"top_p": 0}, "top_p"),
])
def test_values(fake, more, param):
    refused(fake, "/v1/chat/completions", {**CHAT, **more}, param)


@pytest.mark.parametrize("more,param", [
    ({"prompt": []}, "prompt"), ({"prompt": 5}, "prompt"), ({"prompt": {}}, "prompt"),
    ({"prompt": [[]]}, "prompt"), ({"prompt": ["a", 5]}, "prompt"), ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [10**6]}, "prompt"), ({"prompt": [-1]}, "prompt"), ({"prompt": ["a"] * 2000}, "prompt"),
    ({"suffix": "x"}, "suffix"), ({"best_of": 1, "n": 2}, "best_of"),
    ({"best_of": 3, "stream": True}, "best_of"), ({"max_tokens": 0}, "max_tokens"),
    ({"best_of": 9}, "best_of"), ({"prompt": ["a"] * 129, "n": 8}, "n"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
])
def test_completion_values(fake, more, param):
    refused(fake, "/v1/completions", {**TEXT, **more}, param)


FORMS = [("structured_outputs", {"json": {}}), ("guided_json", {"type": "object"}), ("guided_regex", "a+"),
         ("guided_choice", ["a", "b"]), ("guided_grammar", "root ::= \"x\""), ("json_schema", {}),
         ("grammar", "root ::= \"x\""), ("regex", "a+"), ("ebnf", "root ::= \"x\""),
         ("response_format", {"type": "json_object"}), ("structured_outputs", {"regex": "[ab]"}),
         ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}})]


@pytest.mark.parametrize("field,value", FORMS)
def test_forms_are_accepted_and_empty_ones_ask_for_nothing(fake, field, value):
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT),
                       ("/v1/chat/completions", {**CHAT, "stream": True})):
        assert fake.http("POST", path, {**body, field: value})[0] == 200
        for nothing in (None, "", [], {}, False):
            if field not in ("response_format", "structured_outputs") and (field, nothing) != ("guided_choice", []):
                assert fake.http("POST", path, {**body, field: nothing})[0] == 200


@pytest.mark.parametrize("more,param", [
    ({"guided_json": {"type": "object"}, "guided_regex": "a+"}, "guided_regex"),
    ({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}, "guided_choice"),
    ({"guided_regex": 5}, "guided_regex"), ({"guided_choice": "a"}, "guided_choice"), ({"guided_choice": [1]}, "guided_choice"),
    ({"guided_regex": "(a"}, "guided_regex"), ({"grammar": "root ::= ("}, "grammar"),
    ({"guided_json": {"type": "text"}}, "guided_json"),
    ({"guided_json": {"properties": {"a": {"$ref": "http://x/y"}}}}, "guided_json.properties.a"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"allOf": [{"type": "string"}, {"type": "null"}]}}}},
     "response_format.json_schema.schema"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex"),
    ({"structured_outputs": {}}, "structured_outputs"), ({"structured_outputs": {"regx": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"), ({"guided_choice": []}, "guided_choice"),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"regex": "", "json": None}}, "structured_outputs.regex"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs")])
def test_forms_that_cannot_be_kept_are_refused_by_name(fake, more, param):
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        refused(fake, path, {**body, **more}, param)


PARTS = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}, {"type": "input_image", "image_url": "x"},
         {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, {"type": "file", "file": {"file_id": "f"}},
         {"type": "input_file", "file_id": "f"}, {"type": "video_url", "video_url": {"url": "x"}}, {"type": "audio_url"}]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_parts_that_are_not_text_are_refused_by_name(fake, part, role):
    messages = [{"role": "user", "content": "x"}, {"role": role, "content": [{"type": "text", "text": "see:"}, part]}]
    for path in "/v1/chat/completions", "/apply-template":
        error = refused(fake, path, {**CHAT, "messages": messages}, "messages[1].content[1].type")
        assert error["code"] == "unsupported" and f"type is {part['type']}," in error["message"]


@pytest.mark.parametrize("field", ["images", "audio", "video", "videos", "files"])
def test_media_beside_the_content_are_refused(fake, field):
    message = {"role": "user", "content": "what is this?", field: ["AA=="]}
    error = refused(fake, "/v1/chat/completions", {**CHAT, "messages": [message]}, f"messages[0].{field}")
    assert error["code"] == "unsupported"
    for nothing in None, []:
        assert fake.post("/v1/chat/completions", {**CHAT, "messages": [{**message, field: nothing}]})[0] == 200


@pytest.mark.parametrize("field,value", [
    ("adapter", "mine"), ("adapter", 3), ("adapters", ["mine"]), ("adapter_id", "mine"), ("lora", [{"id": 0, "scale": 1.0}]),
    ("loras", ["mine"]), ("lora_adapter", "mine"), ("lora_name", "mine"), ("lora_path", "mine"),
    ("lora_request", {"lora_name": "mine"}), ("audio", {"voice": "alloy", "format": "wav"}), ("image_data", [{"data": "AA=="}]),
    ("images", ["AA=="]), ("multi_modal_data", {"image": "AA=="}), ("mm_processor_kwargs", {"num_crops": 4}),
    ("modalities", ["text", "audio"])])
def test_adapters_and_media_are_refused_by_name(fake, field, value):
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        error = refused(fake, path, {**body, field: value}, field)
        assert error["code"] == "unsupported" and field in error["message"]
        for nothing in (None, [], {}) if field != "modalities" else (None, [], ["text"]):
            assert fake.post(path, {**body, field: nothing})[0] == 200


def test_accepted_values(fake):
    for more in ({"tool_choice": "auto"}, {"tool_choice": "none"}, {"response_format": {"type": "text"}},
                 {"max_completion_tokens": 1}, {"n": 8}, {"user": "me"}, {"priority": "background"},
                 {"top_k": -1}, {"top_k": 0}, {"seed": -5}, {"seed": 2**63 - 1},
                 {"deadline_ms": 60000}, {"metadata": {"a": "b"}}, {"stop": []}, {"logit_bias": {}}):
        status, answer = fake.post("/v1/chat/completions", {**CHAT, **more})
        assert status == 200, (more, answer)
    status, answer = fake.post("/v1/chat/completions", {**CHAT, "max_completion_tokens": 5})
    assert answer["usage"]["completion_tokens"] == 5


def render(server, **body):
    status, answer = server.post("/apply-template", body)
    assert status == 200, answer
    return answer["prompt"]


def test_apply_template(fake):
    hi = [{"role": "user", "content": "hi"}]
    assert render(fake, messages=hi) == "<|user|>hi\n<|assistant|>"
    assert render(fake, messages=hi, add_generation_prompt=False) == "<|user|>hi\n"
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert render(fake, messages=parts) == "<|user|>a\nb\n<|assistant|>"
    # only what was given reaches the template
    assert "thinking" not in render(fake, messages=hi)
    assert "[thinking False]" in render(fake, messages=hi, enable_thinking=False)
    assert "[red]" in render(fake, messages=hi, chat_template_kwargs={"colour": "red"})
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert "[1 tools]" in render(fake, messages=hi, tools=[tool])
    assert "tools" not in render(fake, messages=hi, tools=[tool], tool_choice="none")
    assert "tools" not in render(fake, messages=hi, tools=[])
    odd = "quotes \" \\ \u2028 \U0001f600 \x01 tab\t"
    assert render(fake, messages=[{"role": "user", "content": odd}]) == f"<|user|>{odd}\n<|assistant|>"


def test_tools_that_the_template_would_not_show_are_refused(start, tmp_path):
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    s = start("--chat-template", str(tmp_path / "t.jinja"), "--set", "model.tools_fallback=false", template=False)
    body = {**CHAT, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
    for more in ({}, {"tool_choice": "auto"}, {"stream": True}):
        assert refused(s, "/v1/chat/completions", {**body, **more}, "tools")["code"] == "unsupported"
    assert s.post("/v1/chat/completions", {**body, "tool_choice": "none"})[0] == 200
    assert s.post("/v1/chat/completions", {**body, "tools": []})[0] == 200


def test_tokenize_and_back(fake):
    for text in ("Hello there", "\U0001f600 caf\u00e9", " leading", ""):
        status, a = fake.post("/tokenize", {"prompt": text, "return_token_strs": True,
                                            "add_special_tokens": False})
        assert status == 200 and a["count"] == len(a["tokens"]) == len(a["token_strs"])
        assert a["max_model_len"] > 0
        status, b = fake.post("/detokenize", {"tokens": a["tokens"]})
        assert status == 200 and b["prompt"] == text
    hi = [{"role": "user", "content": "hi"}]
    a = fake.post("/tokenize", {"messages": hi})[1]
    b = fake.post("/tokenize", {"prompt": render(fake, messages=hi), "add_special_tokens": False})[1]
    assert a["tokens"] == b["tokens"]
    for bad in ([10**9], [-1], ["a"], [1.5]):
        refused(fake, "/detokenize", {"tokens": bad}, "tokens")


def test_the_stand_in_is_exact(fake):
    """What the other tests build on."""
    a = fake.post("/v1/completions", {"prompt": "abcdef", "max_tokens": 4, "n": 2})[1]
    assert [c["text"] for c in a["choices"]] == ["abcd", "bcde"]
    assert a["usage"] == {"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14,
                          "prompt_tokens_details": {"cached_tokens": 0}}
    a = fake.post("/v1/completions", {"prompt": "abcdef", "max_tokens": 60, "stop": ["ef", "cd"]})[1]
    assert a["choices"][0]["text"] == "ab" and a["choices"][0]["stop_reason"] == "cd"


def test_control_tokens_come_from_the_template_only(tiny):
    """A client's text that spells a control token stays text."""
    data = json.loads(tiny.get("/v1/models")[2])["data"][0]
    assert data["max_model_len"] > 0
    eos = "<eos>"
    typed = tiny.post("/tokenize", {"prompt": eos, "add_special_tokens": False})[1]["count"]
    plain = tiny.post("/tokenize", {"prompt": eos, "add_special_tokens": False,
                                    "parse_special": False})[1]["count"]
    assert plain >= typed
    one = tiny.post("/tokenize", {"messages": [{"role": "user", "content": eos}]})[1]["count"]
    other = tiny.post("/tokenize", {"messages": [{"role": "user", "content": "xxxxx"}]})[1]["count"]
    assert one >= other - 5 + plain - 1


@pytest.mark.parametrize("value", ["abc", "-5", "0", "1.5", "+5", "0x10", "5 6", "5ms", "864000001",
                                   "9" * 19, "9" * 400, "1e3"])
def test_deadline_header_is_an_integer(fake, value):
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        status, _, data = fake.http("POST", path, body, {"X-Deadline-Ms": value})
        error = json.loads(data)["error"]
        assert status == 400 and error["param"] == "X-Deadline-Ms", (value, error)
        assert error["code"] == "out_of_range"


def test_deadline_header_is_taken(fake, start):
    assert fake.http("POST", "/v1/completions", TEXT, {"X-Deadline-Ms": "864000000"})[0] == 200
    s = start(env={"CONIFER_FAKE_DELAY_US": "60000000"})
    status, _, data = s.http("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 400},
                             {"X-Deadline-Ms": "100"})
    assert status == 504, data


def test_nothing_asked_for_is_cut(fake):
    """max_tokens is kept or refused, with the numbers; the prompt's field has the endpoint's name."""
    window = fake.post("/tokenize", {"prompt": "x"})[1]["max_model_len"]
    used = fake.post("/v1/completions", TEXT)[1]["usage"]["prompt_tokens"]
    status, answer = fake.post("/v1/completions", {**TEXT, "max_tokens": window - used})
    assert status == 200 and answer["usage"]["completion_tokens"] == window - used
    error = refused(fake, "/v1/completions", {**TEXT, "max_tokens": window - used + 1}, "max_tokens")
    assert error["code"] == "context_length_exceeded"
    for number in (window, used, window - used, window - used + 1):
        assert str(number) in error["message"]
    refused(fake, "/v1/completions", {**TEXT, "prompt": ["hi", "hi there"], "max_tokens": window - used},
            "max_tokens")
    used = fake.post("/v1/chat/completions", CHAT)[1]["usage"]["prompt_tokens"]
    for name in ("max_tokens", "max_completion_tokens"):
        body = {"messages": CHAT["messages"], name: window - used}
        assert fake.post("/v1/chat/completions", body)[1]["usage"]["completion_tokens"] == window - used
        for more in (1, 10**6):
            error = refused(fake, "/v1/chat/completions", {**body, name: window - used + more}, name)
            assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("n", [0, 1, 5])
def test_prompt_over_the_window(fake, n):
    window = fake.post("/tokenize", {"prompt": "x"})[1]["max_model_len"]
    for stream in (False, True):
        error = refused(fake, "/v1/completions", {"prompt": [5] * (window + n), "stream": stream}, "prompt")
        assert error["code"] == "context_length_exceeded"
    text = {"messages": [{"role": "user", "content": "word " * 8 * window}]}
    assert refused(fake, "/v1/chat/completions", text, "messages")["code"] == "context_length_exceeded"
    assert refused(fake, "/v1/completions", {"prompt": "word " * 8 * window},
                   "prompt")["code"] == "context_length_exceeded"


def test_a_limit_of_the_config_gives_way_to_the_window(start):
    s = start("--set", "limits.max_tokens=500")
    chat = {"messages": [{"role": "user", "content": "word and " * 20}]}
    status, answer = s.post("/v1/chat/completions", chat)
    assert status == 200 and answer["usage"]["prompt_tokens"] > 12
    assert answer["usage"]["completion_tokens"] == 512 - answer["usage"]["prompt_tokens"]
    s = start("--set", "limits.max_tokens=5")
    status, answer = s.post("/v1/completions", {"prompt": [5] * 100})
    assert status == 200 and answer["usage"]["completion_tokens"] == 5


def test_a_limit_of_the_config_is_named(start):
    s = start("--set", "limits.max_tokens=500", "--set", "limits.max_n=2")
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        assert "limits.max_tokens" in refused(s, path, {**body, "max_tokens": 501}, "max_tokens")["message"]
        assert "limits.max_n" in refused(s, path, {**body, "n": 3}, "n")["message"]
    status, _, body = s.http("POST", "/v1/completions", b"{}", {"Content-Type": "text/plain"})
    assert status == 415 and b"Content-Type" in body


def test_priority_above_the_ceiling(fake):
    error = refused(fake, "/v1/completions", {**TEXT, "priority": "interactive"}, "priority")
    assert "normal" in error["message"]


def test_json_within_json_counts(fake):
    """tool_calls' arguments are parsed too: out of the same budget."""
    def call(n, size):
        one = {"type": "function", "function": {"name": "f", "arguments": '{"a":[0' + ",0" * size + "]}"}}
        return {"messages": [{"role": "assistant", "tool_calls": [one] * n}]}
    assert fake.post("/apply-template", call(2, 400000))[0] == 200
    error = refused(fake, "/apply-template", call(3, 400000), "messages[0].tool_calls")
    assert error["code"] == "limit_exceeded"
