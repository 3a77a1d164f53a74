"""The words of conifer's command line: short options, commands, names that were mistyped, and what --json gives."""
import hashlib
import json
import pathlib
import subprocess

import pytest
from conftest import SERVER, Server, program, tiny_model
from test_cli import conifer

TINY = "null:layers=2,vocab=600,context=512"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A models folder with two of one model."""
    (tmp_path / "models").mkdir()
    for name in ("tiny-instruct", "another"):
        (tmp_path / f"models/{name}.gguf").symlink_to(pathlib.Path(tiny_model()).resolve())
    monkeypatch.setenv("CONIFER_HOME", str(tmp_path))
    return tmp_path


def test_short_options():
    long = conifer("run", "--model", TINY, "--temperature", "0", "--system", "Be short.", "--max-tokens", "4", "hi")
    assert conifer("run", "-m", TINY, "-t", "0", "-s", "Be short.", "--max-tokens", "4", "hi") == long
    assert conifer("show", "-m", TINY).splitlines()[:5] == conifer("show", TINY).splitlines()[:5]
    for word, says in (("-model", b"-model: a single dash takes one letter; did you mean --model?"),
                       ("-temperature", b"did you mean --temperature?"), ("-t0.5", b"the next word: -t 0.5"),
                       ("-mfoo", b"the next word: -m foo"), ("-hx", b"takes one letter"), ("-t", b"-t needs a value"),
                       ("-z", b"unknown option -z"), ("-m", b"-m needs a value")):
        assert says in conifer("run", "hi", word, want=2), word
    for command in ("serve", "plan", "show", "bench", "tokenize", "grammar"):
        assert b"did you mean --model?" in conifer(command, "-model", TINY, want=2)
    out = subprocess.run([program(SERVER), "-port", "1"], capture_output=True, timeout=60, check=False)
    assert out.returncode == 2 and b"did you mean --port?" in out.stderr
    conifer("run", "-m", TINY, "-s", "-x", "--max-tokens", "1", "hi")  # a value may begin with a dash


def test_mistyped_options_and_commands():
    assert b"unknown option --temprature; did you mean --temperature?" in conifer("run", "--temprature", "1", want=2)
    assert b"did you mean --config?" in conifer("serve", "--confg", "x", want=2)
    assert b"did you mean --json?" in conifer("list", "--jsn", want=2)
    assert b"did you mean" not in conifer("list", "--port", want=2)  # it takes no settings
    assert b"did you mean run?" in conifer("rnu", want=2)
    assert b"did you mean version?" in conifer("vers", want=2)
    assert b"did you mean" not in conifer("nonsense", want=2)
    assert b"conifer run smollm2-135m" in conifer("smollm2-135m", want=2)


def test_help_and_ls():
    for command in ("run", "serve", "list", "key"):
        assert conifer("help", command) == conifer(command, "-h")
    assert conifer("help") == conifer("-h") == conifer("--help")
    assert b"no command nonsense" in conifer("help", "nonsense", want=2)
    assert conifer("help", "ls") == conifer("list", "-h")
    assert conifer("ls", "--json") == conifer("list", "--json")


@pytest.mark.parametrize("command", [["show"], ["plan"], ["bench"], ["tokenize"], ["serve", "--port", "0"],
                                     ["run", "--max-tokens", "1", "--model"], ["pull"], ["rm"]])
def test_mistyped_models(home, command):
    """Of the models folder everywhere; of the catalog where one of it would do."""
    want = 2 if command == ["run"] else 1
    said = conifer(*command, "tiny-instrcut", want=want)
    assert b"did you mean tiny-instruct?" in said, said
    said = conifer(*command, "smolm2-135m", want=want)
    assert (b"did you mean smollm2-135m" in said) == (command != ["rm"]), said
    assert b"did you mean" not in conifer(*command, "zzzzzzzzzz", want=want)


def test_mistyped_models_of_run_and_config(home):
    assert b"did you mean tiny-instruct?" in conifer("run", "tinyinstrct", "hi", want=2)
    (home / "c.yaml").write_text(f"models: [{{name: lighthouse, path: {tiny_model()}}}]\n")
    said = conifer("show", "--config", str(home / "c.yaml"), "lighthose", want=1)
    assert b"did you mean lighthouse?" in said, said


def test_serve_takes_a_model(home):
    out = conifer("serve", "--check-config", "tiny-instruct")
    assert b"valid" in out
    assert conifer("serve", "--check-config", "nope-nope", want=1)
    assert b"b.gguf is one more" in conifer("serve", "a.gguf", "b.gguf", want=2)
    assert b"is one more" in conifer("serve", "-m", TINY, "b.gguf", want=2)
    s = Server(program(SERVER), None, [TINY])
    assert "serving null on" in s.text()
    s.stop()


def test_key_list(tmp_path):
    keys = [conifer("key", "new").decode().split() for _ in range(3)]
    config = tmp_path / "c.yaml"
    config.write_text("tenants:\n"
                      f"  - name: search\n    keys: ['{keys[0][1]}', '{keys[1][1]}']\n"
                      f"  - name: a-longer-name\n    keys: ['{keys[2][1]}']\n")
    ids = [hashlib.sha256(k.encode()).hexdigest()[:8] for k, _ in keys]
    rows = [line.split() for line in conifer("key", "list", "--config", str(config)).decode().splitlines()]
    assert rows == [["TENANT", "KEY"], ["search", ids[0]], ["search", ids[1]], ["a-longer-name", ids[2]]]
    data = json.loads(conifer("key", "list", "--json", "--config", str(config)))
    assert data[2] == {"tenant": "a-longer-name", "id": ids[2], "config": keys[2][1]} and len(data) == 3
    assert b"which config?" in conifer("key", "list", want=2)
    assert conifer("key", "list", "--config", str(tmp_path / "none.yaml"), want=1)
    config.write_text("tenants: [{name: a, keys: [x]}]\n")
    assert b"c.yaml:1:" in conifer("key", "list", "--config", str(config), want=2)
    config.write_text("server: {port: 1}\n")
    assert b"no tenants" in conifer("key", "list", "--config", str(config))
    assert b"key new, key list" in conifer("key", "lst", want=2)


def test_json(home):
    """The fields of docs/TERMINAL.md, each of its type."""
    page = (pathlib.Path(__file__).parents[2] / "docs/TERMINAL.md").read_text()
    assert list(json.loads(conifer("version", "--json"))) == ["version"]
    show = json.loads(conifer("show", "tiny-instruct", "--json"))
    assert show["id"] == "tiny-instruct" and show["family"] == "llama" and show["catalog"] is None
    assert show["context"] == 512 and show["chat_template"] is True and show["embeds"] is False
    assert show["sampling"]["from"] == "default" and show["sampling"]["temperature"] == 0.7
    assert show["memory"]["fits"] is True and show["memory"]["users"] > 0
    tight = json.loads(conifer("show", "tiny-instruct", "--json", "--set", "engine.memory_bytes=1MiB"))
    assert tight["memory"]["fits"] is False and "users" not in tight["memory"]
    here = json.loads(conifer("list", "--json"))
    assert {m["name"] for m in here if m["installed"]} == {"tiny-instruct", "another"}
    fields = {*show, *show["sampling"], *show["memory"], *here[0], *here[-1]}
    for field in fields:
        assert f"`{field}`" in page, field
