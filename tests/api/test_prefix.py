"""A burst that shares a cold prefix computes it once; the metrics show it."""
import concurrent.futures
import random

import pytest


def burst(server, prefix_tokens, clients, vocab):
    rng = random.Random(7)
    prefix = [rng.randrange(300 if vocab > 1000 else 20, vocab) for _ in range(prefix_tokens)]
    model = server.client().models.list().data[0].id
    before = server.metrics()

    def one(i):
        return server.client().completions.create(model=model, prompt=prefix + [30 + i] * 8,
                                                  max_tokens=4, temperature=0)
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(one, range(clients)))
    after = server.wait_idle()

    def grown(name):
        return after[name] - before[name]
    cached = sum(a.usage.prompt_tokens_details.cached_tokens for a in answers)
    assert grown("conifer_prompt_tokens_total") == clients * (prefix_tokens + 8)
    assert grown("conifer_prompt_tokens_cached_total") == cached
    computed = grown("conifer_prompt_tokens_computed_total")
    assert computed + cached == clients * (prefix_tokens + 8)
    # the prefix once; of each client its own end, and less than two blocks of what was not whole
    assert computed <= prefix_tokens + clients * (8 + 32)
    return [a.choices[0].text for a in answers]


def test_tiny(tiny):
    first = burst(tiny, 400, 16, 250)
    assert len(first) == 16


@pytest.mark.real_model
def test_1500_tokens(real):
    burst(real, 1500, 16, 40000)
