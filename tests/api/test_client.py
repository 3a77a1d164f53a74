"""The real openai client, against the stand-in, a tiny model and SmolLM2."""
import concurrent.futures

import openai
import pytest

USER = [{"role": "user", "content": "Say something about the sea"}]


def chat(server, stream=False, messages=None, **more):
    more.setdefault("max_tokens", 24)
    more.setdefault("temperature", 0)
    return server.client().chat.completions.create(model=model(server), messages=messages or USER,
                                                   stream=stream, **more)


def model(server):
    return server.client().models.list().data[0].id


def streamed(chunks):
    """Texts by choice, finish reasons, usage; and the shape of every chunk on the way."""
    texts, reasons, usage, ids, roles = {}, {}, None, set(), {}
    for c in chunks:
        assert c.object == "chat.completion.chunk"
        ids.add(c.id)
        if c.usage is not None:
            usage = c.usage
            assert c.choices == []
        for ch in c.choices:
            assert ch.index not in reasons, "a chunk after the last one"
            if ch.delta.role:
                roles[ch.index] = ch.delta.role
                assert ch.index not in texts
            if ch.delta.content is not None:
                assert ch.index in roles
                texts[ch.index] = texts.get(ch.index, "") + ch.delta.content
            if ch.finish_reason:
                reasons[ch.index] = ch.finish_reason
    assert len(ids) == 1
    assert set(roles.values()) == {"assistant"}
    return texts, reasons, usage


def test_models(any_server):
    c = any_server.client()
    listed = c.models.list().data
    assert len(listed) == 1 and listed[0].object == "model"
    assert c.models.retrieve(listed[0].id).id == listed[0].id
    with pytest.raises(openai.NotFoundError) as e:
        c.models.retrieve("gpt-4o")
    assert e.value.code == "model_not_found"


def test_chat(any_server):
    a = chat(any_server)
    assert a.object == "chat.completion" and a.id.startswith("chatcmpl-")
    assert a.system_fingerprint.startswith("fp_")
    assert a.choices[0].message.role == "assistant"
    assert a.choices[0].finish_reason in ("stop", "length")
    assert a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens
    assert a.usage.prompt_tokens_details.cached_tokens >= 0
    if a.choices[0].finish_reason == "length":
        assert a.usage.completion_tokens == 24


@pytest.mark.parametrize("more", [{}, {"n": 3, "seed": 7, "temperature": 1.0},
                                  {"temperature": 0.8, "seed": 3, "top_p": 0.9},
                                  {"extra_body": {"top_k": 5, "min_p": 0.05}, "seed": 1,
                                   "temperature": 1.3}])
def test_stream_equals_whole(any_server, more):
    whole = chat(any_server, **more)
    texts, reasons, usage = streamed(chat(any_server, stream=True,
                                          stream_options={"include_usage": True}, **more))
    for ch in whole.choices:
        assert texts.get(ch.index, "") == ch.message.content
        assert reasons[ch.index] == ch.finish_reason
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_no_usage_unless_asked(any_server):
    for c in chat(any_server, stream=True):
        assert c.usage is None and c.choices


def test_seed(any_server):
    a, b = (chat(any_server, temperature=1.5, seed=42).choices[0].message.content for _ in range(2))
    assert a == b


def test_seeds_differ(tiny):
    texts = {chat(tiny, temperature=2, extra_body={"ignore_eos": True}).choices[0].message.content
             for _ in range(4)}
    assert len(texts) > 1


def test_choices_differ(tiny):
    a = chat(tiny, temperature=2, seed=5, n=4, extra_body={"ignore_eos": True})
    assert len({c.message.content for c in a.choices}) > 1
    assert [c.index for c in a.choices] == [0, 1, 2, 3]


def test_stop(any_server):
    whole = chat(any_server, max_tokens=40).choices[0].message.content
    if len(whole) < 8:
        pytest.skip("the model says too little to cut it")
    cut = whole[4:7]
    want = whole[:whole.index(cut)]
    for stop in (cut, [cut, "never there"]):
        a = chat(any_server, max_tokens=40, stop=stop).choices[0]
        assert a.message.content == want and a.finish_reason == "stop"
        texts, reasons, _ = streamed(chat(any_server, max_tokens=40, stop=stop, stream=True))
        assert texts.get(0, "") == want and reasons[0] == "stop"


def test_logprobs(any_server):
    shown = {"extra_body": {"skip_special_tokens": False}}
    a = chat(any_server, logprobs=True, top_logprobs=3, max_tokens=8, **shown)
    content = a.choices[0].logprobs.content
    assert 0 < len(content) <= 8
    for t in content:
        assert t.logprob <= 0 and len(t.top_logprobs) == 3
        assert bytes(t.bytes).decode(errors="replace") == t.token
        tops = [x.logprob for x in t.top_logprobs]
        assert tops == sorted(tops, reverse=True)
    raw = b"".join(bytes(t.bytes) for t in content)
    try:
        assert raw.decode() == a.choices[0].message.content
    except UnicodeDecodeError:  # a random model may say what is no text
        assert "\ufffd" in a.choices[0].message.content
    parts = []
    for c in chat(any_server, logprobs=True, top_logprobs=3, max_tokens=8, stream=True,
                  **shown):
        for ch in c.choices:
            if ch.logprobs:
                parts += ch.logprobs.content
    assert [(t.token, t.logprob) for t in parts] == [(t.token, t.logprob) for t in content]


def test_token_ids(any_server):
    body = {"return_token_ids": True, "skip_special_tokens": False}
    a = chat(any_server, extra_body=body, max_tokens=6)
    ids = a.choices[0].model_dump()["token_ids"]
    assert len(ids) <= 6
    status, back = any_server.post("/detokenize", {"tokens": ids})
    assert status == 200 and back["prompt"].strip() == a.choices[0].message.content.strip()
    got = []
    for c in chat(any_server, extra_body=body, max_tokens=6, stream=True):
        for ch in c.choices:
            got += ch.model_dump().get("token_ids") or []
    assert got == ids


def test_min_tokens_and_bias(tiny):
    a = chat(tiny, max_tokens=12, extra_body={"ignore_eos": True})
    assert a.usage.completion_tokens == 12
    token = 43
    a = chat(tiny, max_tokens=5, logit_bias={str(token): 100},
             extra_body={"return_token_ids": True})
    assert a.choices[0].model_dump()["token_ids"] == [token] * 5


def completion(server, prompt, **more):
    more.setdefault("max_tokens", 8)
    more.setdefault("temperature", 0)
    return server.client().completions.create(model=model(server), prompt=prompt, **more)


def test_completions_shapes_of_prompt(any_server):
    text = "Once upon a time"
    status, tok = any_server.post("/tokenize", {"prompt": text})
    assert status == 200 and tok["count"] == len(tok["tokens"])
    a = completion(any_server, text)
    b = completion(any_server, tok["tokens"])
    assert a.object == "text_completion" and a.id.startswith("cmpl-")
    assert a.choices[0].text == b.choices[0].text
    assert a.usage.prompt_tokens == len(tok["tokens"])
    many = completion(any_server, [text, "The end", text], n=2)
    assert [c.index for c in many.choices] == list(range(6))
    assert many.choices[0].text == many.choices[4].text == a.choices[0].text
    lists = completion(any_server, [tok["tokens"], tok["tokens"]])
    assert [c.text for c in lists.choices] == [a.choices[0].text] * 2
    parts = {}
    for c in completion(any_server, [text, "The end", text], n=2, stream=True):
        for ch in c.choices:
            parts[ch.index] = parts.get(ch.index, "") + ch.text
    assert parts == {c.index: c.text for c in many.choices}


def test_many_prompts_at_once(any_server):
    """Enough work that a worker submits it; each answer stands where it belongs."""
    prompts = [f"{i} " * 120 for i in range(48)]
    a = completion(any_server, prompts, n=8, max_tokens=2)
    assert [c.index for c in a.choices] == list(range(48 * 8))
    one = completion(any_server, prompts[17], n=8, max_tokens=2)
    assert [c.text for c in a.choices[17 * 8:18 * 8]] == [c.text for c in one.choices]
    assert a.usage.completion_tokens <= 48 * 8 * 2
    any_server.wait_idle()


def test_echo_and_logprobs(any_server):
    text = "Once upon a time"
    plain = completion(any_server, text, max_tokens=4)
    a = completion(any_server, text, echo=True, logprobs=2, max_tokens=4)
    assert a.choices[0].text == text + plain.choices[0].text
    lp = a.choices[0].logprobs
    n = len(lp.tokens)
    assert n == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset)
    assert n == a.usage.prompt_tokens + a.usage.completion_tokens or \
        a.choices[0].finish_reason == "stop"
    assert lp.token_logprobs[0] is None and lp.top_logprobs[0] is None
    assert all(x <= 0 for x in lp.token_logprobs[1:])
    assert lp.text_offset == sorted(lp.text_offset)
    again = completion(any_server, text, echo=True, logprobs=2, max_tokens=4)  # prefix is there now
    assert again.choices[0].logprobs.token_logprobs[1:] == lp.token_logprobs[1:]
    score = completion(any_server, text, echo=True, logprobs=1, max_tokens=0)
    assert score.choices[0].text == text and score.usage.completion_tokens == 0
    assert score.choices[0].finish_reason == "length"
    assert score.choices[0].logprobs.token_logprobs[1:] == \
        lp.token_logprobs[1:a.usage.prompt_tokens]
    streamed_text = "".join(ch.text for c in completion(any_server, text, echo=True, stream=True,
                                                        max_tokens=4) for ch in c.choices)
    assert streamed_text == a.choices[0].text


def test_tokens_that_are_no_text(fake):
    """A character of several tokens: each shows its bytes, the text has the character."""
    a = completion(fake, "\U0001f600", echo=True, logprobs=0, max_tokens=4)
    lp = a.choices[0].logprobs
    assert a.choices[0].text == "\U0001f600" * 2
    assert lp.tokens[:4] == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80"]
    assert lp.text_offset == [0, 0, 0, 0, 1, 1, 1, 1]
    assert all(len(x) == 1 for x in lp.top_logprobs[1:])


def test_best_of(tiny):
    a = completion(tiny, "Once", best_of=4, n=2, temperature=1.5, seed=3, max_tokens=6, logprobs=0)
    assert [c.index for c in a.choices] == [0, 1]
    means = [sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in a.choices]
    assert means[0] >= means[1]
    everything = completion(tiny, "Once", n=4, temperature=1.5, seed=3, max_tokens=6, logprobs=0)
    all_means = sorted((sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs)
                        for c in everything.choices), reverse=True)
    assert means == pytest.approx(all_means[:2])


def test_parallel(any_server):
    alone = [chat(any_server, messages=[{"role": "user", "content": f"Number {i}"}]).choices[0].message
             .content for i in range(16)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        def one(i):
            texts, _, _ = streamed(chat(any_server, stream=True,
                                        messages=[{"role": "user", "content": f"Number {i}"}]))
            return texts.get(0, "")
        assert list(pool.map(one, range(16))) == alone


def test_cancel_mid_stream(any_server):
    stream = chat(any_server, stream=True, max_tokens=400, extra_body={"ignore_eos": True})
    for i, _ in enumerate(stream):
        if i == 3:
            break
    stream.close()
    any_server.wait_idle()


def test_errors_map_to_exceptions(any_server):
    c = any_server.client()
    with pytest.raises(openai.NotFoundError) as e:
        c.chat.completions.create(model="gpt-4o", messages=USER)
    assert e.value.code == "model_not_found" and e.value.param == "model"
    with pytest.raises(openai.BadRequestError) as e:
        chat(any_server, temperature=9)
    assert e.value.param == "temperature" and e.value.code == "out_of_range"
    with pytest.raises(openai.BadRequestError) as e:
        chat(any_server, messages=[{"role": "user", "content": "word " * 100000}])
    assert e.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as e:  # before the 200, though streamed
        chat(any_server, messages=[{"role": "user", "content": "word " * 100000}], stream=True)
    assert e.value.code == "context_length_exceeded"


def test_prefix_is_cached(tiny):
    text = [{"role": "user", "content": "the same beginning " * 12}]
    first = chat(tiny, messages=text, max_tokens=4)
    second = chat(tiny, messages=text, max_tokens=4)
    assert second.usage.prompt_tokens_details.cached_tokens >= 16
    assert first.choices[0].message.content == second.choices[0].message.content


@pytest.mark.real_model
def test_a_real_answer(real):
    assert "Paris" in completion(real, "The capital of France is").choices[0].text
    hello = chat(real, messages=[{"role": "user", "content": "Write the word hello"}])
    assert "hello" in hello.choices[0].message.content.lower()
