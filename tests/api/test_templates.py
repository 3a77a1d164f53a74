"""Conversations as clients send them, through the chat templates in use: messages of calls without
text, and a last message that the model goes on with."""
import pytest
from conftest import FAKE, Server, oracle, oracle_files, program, tiny_model

TEMPLATES = oracle_files("templates/*.jinja")
CALL = {"id": "call00001", "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "now",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
QUESTION = {"role": "user", "content": "Weather?"}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "20"}


def rendered(server, **body):
    """The prompt, or the error that the template has with it."""
    status, answer = server.post("/apply-template", body)
    assert status in (200, 400), answer
    return answer.get("prompt") or answer["error"]["code"]


def test_a_call_beside_an_empty_list_of_calls(start):
    """Old clients have function_call; some write their empty tool_calls beside it."""
    s = start("--chat-template", str(oracle("templates/Qwen-Qwen2.5-7B-Instruct.jinja")), template=False)
    after = {"role": "function", "name": "get_weather", "content": "20"}
    alone, null, empty = (rendered(s, messages=[QUESTION, {"role": "assistant", "content": None, "function_call":
                                                           CALL["function"], **more}, after])
                          for more in ({}, {"tool_calls": None}, {"tool_calls": []}))
    assert alone == null == empty and '{"name": "get_weather", "arguments": {"city": "Rome"}}' in alone


@pytest.mark.parametrize("path", TEMPLATES, ids=[p.stem for p in TEMPLATES])
def test_no_text_beside_calls(path):
    """Null, as most clients send it, or absent: as an empty text, which every template knows."""
    s = Server(program(FAKE), tiny_model(), ["--chat-template", str(path)], template=False)
    try:
        for answer, after, more in (({"tool_calls": [CALL]}, RESULT, {"tools": [TOOL]}),
                                    ({}, {"role": "user", "content": "Again?"}, {})):
            if rendered(s, messages=[QUESTION], **more) == "unsupported":  # it has no place for tools
                assert "tools" not in path.read_text()
                more = {}
            empty, null, absent = (
                rendered(s, messages=[QUESTION, {"role": "assistant", **answer, **t}, after], **more)
                for t in ({"content": ""}, {"content": None}, {}))
            assert null == absent
            if answer and "R1-Distill" in path.name:  # asks for null itself: no turn without text
                outputs = "<｜tool▁outputs▁begin｜>"
                null = null.replace(outputs, "<｜Assistant｜><｜end▁of▁sentence｜>" + outputs)
            assert null == empty
            if null != "template_error":
                assert "None" not in null.rpartition("Weather?")[2]
    finally:
        s.stop()


@pytest.mark.parametrize("name,shown", [
    ("Qwen-Qwen2.5-7B-Instruct", None), ("LFM2.5-8B-A1B", "refused"), ("GLM-4.6", "refused"),
    ("meetkai-functionary-medium-v3.2", '{"city": "Ro<|eot_id|>'), ("ibm-granite-granite-4.0", '"arguments": {"city": "Ro}')])
def test_arguments_that_are_no_json(start, name, shown):
    """A call that was cut off is shown as text, or the error names it."""
    s = start("--chat-template", str(oracle(f"templates/{name}.jinja")), template=False)
    call = {**CALL, "function": {**CALL["function"], "arguments": '{"city": "Ro'}}
    body = {"messages": [QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT, QUESTION,
                         {"role": "assistant", "content": "", "tool_calls": [CALL, call]}, RESULT], "tools": [TOOL]}
    for path in ("/apply-template", "/v1/chat/completions"):
        status, answer = s.post(path, body)
        if shown == "refused":
            error = answer["error"]
            assert status == 400 and error["param"] == "messages[4].tool_calls[1].function.arguments"
            assert "is not a JSON object" in error["message"] and error["code"] == "template_error"
        elif path == "/apply-template":
            assert status == 200 and (shown or '{\\"city\\": \\"Ro') in answer["prompt"], answer
    # nothing at all stands for no arguments
    for nothing in ({"arguments": ""}, {"arguments": None}, {}, {"arguments": "{}"}):
        call = {**CALL, "function": {"name": "get_weather", **nothing}}
        messages = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}, RESULT]
        status, answer = s.post("/apply-template", {"messages": messages, "tools": [TOOL]})
        assert status == 200
        assert answer["prompt"] == s.post("/apply-template", {"messages": [
            QUESTION, {"role": "assistant", "content": "", "tool_calls": [
                {**CALL, "function": {"name": "get_weather", "arguments": {}}}]}, RESULT], "tools": [TOOL]})[1]["prompt"]


def test_an_answer_with_calls_sent_back(any_server):
    """What a client has of an answer with calls goes into the next request as it is."""
    from openai.types.chat import ChatCompletionMessage
    client = any_server.client()
    model = client.models.list().data[0].id
    tokens = []
    for content in (None, ""):
        said = ChatCompletionMessage(role="assistant", content=content, tool_calls=[CALL])
        answer = client.chat.completions.create(model=model, max_tokens=4, messages=[
            QUESTION, said, {k: RESULT[k] for k in ("role", "tool_call_id", "content")}])
        tokens.append(answer.usage.prompt_tokens)
    assert tokens[0] == tokens[1]


def open_ended(content, **more):
    return {"messages": [QUESTION, {"role": "assistant", "content": content}],
            "continue_final_message": True, **more}


def test_what_goes_on(fake):
    parts = [{"type": "text", "text": "It"}, {"type": "text", "text": "is"}]
    for content in ("It is", " It is \n", "", "It is <|eos|>", parts):
        text = "It\nis" if content == parts else content
        want = "<|user|>Weather?\n<|assistant|>" + text
        for more in ({}, {"add_generation_prompt": False}, {"add_generation_prompt": None}):
            body = open_ended(content, **more)
            assert rendered(fake, **body) == want
            status, ids = fake.post("/tokenize", body)
            assert status == 200
            assert fake.post("/detokenize", {"tokens": ids["tokens"]})[1]["prompt"] == want
    # what a client writes is text, here too
    spelled = fake.post("/tokenize", open_ended("<|eos|>"))[1]["count"]
    assert spelled > fake.post("/tokenize", open_ended(""))[1]["count"] + 1


@pytest.mark.parametrize("body,says", [
    (open_ended("It is", add_generation_prompt=True), "exclude"),
    ({"messages": [], "continue_final_message": True}, "has no content"),
    ({**open_ended("x"), "messages": [{"role": "user", "content": None}]}, "is missing"),
])
def test_what_does_not_go_on(fake, body, says):
    for path in ("/v1/chat/completions", "/apply-template"):
        status, answer = fake.post(path, body)
        assert status == 400 and says in answer["error"]["message"]


def test_a_text_that_the_template_changes(start):
    path = oracle("templates/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja")
    s = start("--chat-template", str(path), template=False)
    status, answer = s.post("/v1/chat/completions", open_ended("<think>Rain.</think>It is"))
    assert status == 400 and answer["error"]["param"] == "continue_final_message"
    assert answer["error"]["code"] == "invalid_value"
    assert rendered(s, **open_ended("<think>Rain.")).endswith("<｜Assistant｜><think>Rain.")


def test_the_model_goes_on(any_server):
    """As from the same text given as a prompt, streamed or not; the answer is what is new."""
    client = any_server.client()
    model = client.models.list().data[0].id
    body = open_ended("The weather is ")
    prompt = rendered(any_server, **body)
    assert prompt.endswith("The weather is ")
    more = {"model": model, "max_tokens": 8, "temperature": 0}
    want = client.completions.create(prompt=prompt, **more,
                                     extra_body={"add_special_tokens": False})
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    got = client.chat.completions.create(messages=body["messages"], extra_body=extra, **more)
    assert got.choices[0].message.content == want.choices[0].text != ""
    assert got.usage.prompt_tokens == want.usage.prompt_tokens
    stream = client.chat.completions.create(messages=body["messages"], extra_body=extra,
                                            stream=True, **more)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == want.choices[0].text
