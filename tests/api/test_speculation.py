"""scheduler.speculation: the same answers with it and without; what was guessed is in /metrics."""
import pytest
from conftest import SERVER, Server, program, tiny_model

RIGHT = 'conifer_drafted_tokens_total{result="accepted"}'
WRONG = 'conifer_drafted_tokens_total{result="rejected"}'
STEPS = "conifer_engine_steps_total"
HIST = "conifer_draft_step_tokens"


@pytest.fixture(scope="module", params=["auto", "off"])
def served(request):
    s = Server(program(SERVER), tiny_model(), config=f"scheduler:\n  speculation: {request.param}\n")
    s.speculation = request.param
    yield s
    s.stop()


ANSWERS = {}


def answer(s, **body):
    status, data = s.post("/v1/completions", {"prompt": "one two three one two", **body})
    assert status == 200
    key = str(sorted(body.items()))
    assert ANSWERS.setdefault(key, data["choices"]) == data["choices"]
    return data


def test_the_same_answers(served):
    """One token again and again is guessed right from the first tries on."""
    same = {"logit_bias": {"7": 100}, "max_tokens": 60, "ignore_eos": True, "logprobs": 2}
    before = served.metrics()
    data = answer(served, **same)
    m = served.ended(1)
    assert data["usage"]["completion_tokens"] == 60
    right, wrong = m[RIGHT] - before[RIGHT], m[WRONG] - before[WRONG]
    steps = m[STEPS] - before[STEPS]
    if served.speculation == "off":
        assert (right, wrong, steps) == (0, 0, 60)
        assert m[HIST + "_count"] == 0
        return
    assert right > 0
    # each guess that came true saves a step; the last step may have guessed past the end
    assert steps == 60 - right
    drafts = m[HIST + "_count"] - before[HIST + "_count"]
    assert m[HIST + "_sum"] - before[HIST + "_sum"] == right + drafts


def test_other_answers(served):
    for seed in range(6):
        answer(served, max_tokens=40, seed=seed, temperature=0.8 if seed % 2 else 0, n=1 + seed % 2,
               frequency_penalty=0.3 * (seed % 3), stop=["e", "zz"] if seed > 3 else None)
