"""conifer grammar: which texts belong to a grammar, and how long its masks take."""
import json
import re

import pytest
from conftest import oracle_files, tiny_model
from test_cli import conifer


@pytest.fixture
def put(tmp_path):
    """Writes a file; its path."""
    count = iter(range(1000))

    def write(text):
        path = tmp_path / f"f{next(count)}"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)
    return write


LISTS = 'root ::= "[" (root ("," root)*)? "]" | [0-9]+'


def test_accepts_each_file(put):
    texts = [put(x) for x in ("[1,[2,3]]", "[1,2", "[1,a]", "[]\n", "[]\n\n", "")]
    out = conifer("grammar", "--gbnf", put(LISTS), "--accepts", *texts)
    assert out == (b"accept\nreject at byte 4\nreject at byte 3\naccept\nreject at byte 2\nreject at byte 0\n")
    assert conifer("grammar", "--accepts", texts[0], "--accepts", texts[1], "--gbnf", put(LISTS)) == \
        b"accept\nreject at byte 4\n"


@pytest.mark.parametrize("option,grammar,good,bad", [
    ("--regex", "(ab)+c?", "ababc", "abca"),
    ("--choice", '["yes", "no\\n"]', "no\n\n", "yes no"),
    ("--gbnf", LISTS, "[[]]", "[[]"),
    ("--lark", 'start: "a" start "b" | NAME\n%import common.CNAME -> NAME\n', "aaxbb", "a b"),
    ("--json-schema", '{"type": "array", "items": {"type": "integer"}, "maxItems": 2}', "[1, 2]", "[1, 2, 3]"),
])
def test_kinds(put, option, grammar, good, bad):
    word = grammar if option == "--regex" else put(grammar)
    out = conifer("grammar", option, word, "--accepts", put(good), put(bad))
    assert re.fullmatch(rb"accept\nreject at byte \d+\n", out), out
    assert re.fullmatch(rb"compiled in [0-9.]+ us, [0-9.]+ \w+\n", conifer("grammar", option, word))


def test_json_object(put):
    out = conifer("grammar", "--json-object", "--accepts", put('{"a": [1.0, "\\u0041"]}'), put("[]"))
    assert out == b"accept\nreject at byte 0\n"


def test_every_spelling_of_a_schema(put):
    schema = put('{"const": {"a": "A", "b": 1}}')
    texts = [put(x) for x in ('{"a":"A","b":1}', ' { "\\u0061" : "\\u0041", "b": 1.0 } ', '{"a":"B","b":1}')]
    out = conifer("grammar", "--json-schema", schema, "--accepts", *texts).splitlines()
    assert out[0] == b"accept" and out[2].startswith(b"reject")


LLAMA = [p for p in oracle_files("vocab/*.gguf") if p.stem.endswith("vocab-llama-bpe")]


@pytest.mark.parametrize("path", LLAMA, ids=lambda p: p.stem)
def test_tokens(put, path):
    """A model's control tokens, by their text and by their id."""
    grammar = put('root ::= <|start_header_id|> [a-z]+ <|end_header_id|> !<|eot_id|>*')
    texts = [put(x) for x in ("<|start_header_id|>user<|end_header_id|>Hi <b>\u00e9<|end_header_id|>",
                              "<|start_header_id|>user<|eot_id|>", "user", "<|start_header_id|>a<|end_header_id|><|eot_id|>")]
    out = conifer("grammar", "--gbnf", grammar, "--model", str(path), "--accepts", *texts)
    assert out == b"accept\nreject at byte 23\nreject at byte 0\nreject at byte 37\n"
    assert b"by its text: there is no vocabulary" in conifer("grammar", "--gbnf", grammar, want=1)
    assert conifer("grammar", "--gbnf", put('root ::= <[128006]> "a"'), "--model", str(path), "--accepts",
                   put("<|start_header_id|>a")) == b"accept\n"
    assert b"the vocabulary has no token <|none|>" in \
        conifer("grammar", "--gbnf", put("root ::= <|none|>"), "--model", str(path), want=1)


def test_bench(put):
    text = "[" + ",".join(str(i) for i in range(200)) + "]"
    out = conifer("grammar", "--gbnf", put(LISTS), "--model", tiny_model(), "--bench", put(text)).decode()
    got = dict(re.findall(r"^(\w+) +([0-9.]+)", out, re.M))
    assert list(got) == ["compiled", "masks", "mean", "p50", "p99", "max", "first"], out
    assert int(got["masks"]) > 200 and "leaves the grammar" not in out
    assert float(got["p50"]) <= float(got["p99"]) <= float(got["max"])
    computed, found = map(int, re.search(r"\((\d+) computed, (\d+) found\)", out).groups())
    assert 0 < computed < int(got["masks"]) == computed + found
    out = conifer("grammar", "--gbnf", put(LISTS), "--model", tiny_model(), "--bench", put("[1,x]")).decode()
    assert re.search(r"the text leaves the grammar at byte [0-3] of 5", out), out


@pytest.mark.parametrize("path", LLAMA, ids=lambda p: p.stem)
def test_bench_large_vocabulary(put, path):
    text = json.dumps([{"name": f"n{i}", "value": i * 0.5} for i in range(20)])
    out = conifer("grammar", "--json-schema", put('{"type": "array"}'), "--model", str(path), "--bench", put(text))
    assert b"leaves the grammar" not in out, out


def test_wrong_use(put):
    lists = put(LISTS)
    assert b"which grammar?" in conifer("grammar", want=2)
    assert b"one grammar is expected" in conifer("grammar", "--gbnf", lists, "--regex", "a", want=2)
    assert b"is not an option" in conifer("grammar", "--gbnf", lists, lists, want=2)
    assert b"needs the vocabulary of a model" in conifer("grammar", "--gbnf", lists, "--bench", lists, want=2)
    assert b"unknown option --gbfn; did you mean --gbnf?" in conifer("grammar", "--gbfn", lists, want=2)
    assert b"line 1, column 10: a is not defined" in conifer("grammar", "--gbnf", put("root ::= a"), want=1)
    assert b"No such file" in conifer("grammar", "--gbnf", "/nonexistent", want=1)
    assert b"No such file" in conifer("grammar", "--regex", "a", "--accepts", "/nonexistent", want=1)
    assert b"line 2" in conifer("grammar", "--choice", put('["a",\n'), want=1)
    assert b"satisfies" in conifer("grammar", "--json-schema", put("false"), want=1)
