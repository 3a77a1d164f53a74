"""The chat of `conifer run`: its commands, what it keeps, and how an answer stands on the screen."""
import fcntl
import json
import os
import pathlib
import re
import stat

import pytest
from conftest import tiny_model
from terminal import Screen
from test_cli import Terminal, conifer, has_editor, read_until


@pytest.fixture
def shown(tmp_path):
    """A model that answers with the messages that it is sent, as an error."""
    (tmp_path / "t.jinja").write_text("{{ raise_exception('[' + messages | map(attribute='content') | join('|') + ']') }}")
    return ["--model", tiny_model(), "--chat-template", str(tmp_path / "t.jinja")]


def test_help(shown):
    with Terminal(*shown) as t:
        told = t.send(b"/?\n", b"as it is.")
        for word in (b"/set", b"/system", b"/model", b"/save", b"/clear", b"/exit"):
            assert word in told
        assert b"did you mean /system?" in t.send(b"/sytem x\n", b"lists them")


def test_a_dumb_terminal_has_no_colours():
    with Terminal("null:context=256", "--max-tokens", "4", term="dumb") as t:
        said = t.rest + t.send(b"hello\n", b"limit)") + t.send(b"/set\n", b"wrap")
        assert b"\x1b" not in said and b"hello" in said


def test_set():
    with Terminal("null:context=256", "-t", "0.5", "--max-tokens", "20") as t:
        told = t.send(b"/set\n")
        assert b"temperature          0.5\r" in told and b"max_tokens           20" in told
        assert b"seed                 random" in told and b"(the model's default)" in told
        assert b"0.25" in t.send(b"/set temperature=0.25\n")
        assert b"(the model's default)" in t.send(b"/set temperature default\n")
        assert b"temperature must be" in t.send(b"/set temperature 9\n")
        assert b"whole number" in t.send(b"/set max-tokens many\n")
        assert b"the nearest is top_p. /set lists them" in t.send(b"/set topp 1\n")
        assert b"must be on or off" in t.send(b"/set stats maybe\n")
        t.send(b"/set max_tokens 3\n")
        assert b"(cut off at 3 tokens; /set max_tokens sets the limit)" in t.send(b"hello\n", b"limit)")
        assert b"(3 tokens, " in t.send(b"hello\n", b" s)")
        t.send(b"/set stats off\n")
        assert b"(3 tokens, " not in t.send(b"hello\n", b"limit)") + t.send(b"/set stats\n", b"off")


def test_system(shown):
    with Terminal(*shown, "-s", "be brief") as t:
        t.send(b"hello\n", b"[be brief|hello]")
        assert b"be brief" in t.send(b"/system\n", b"brief")
        t.send(b"/system be long\n", b"is set)")
        t.send(b"hello\n", b"[be long|hello]")
        t.send(b'/system ""\n', b"is removed)")
        t.send(b"hello\n", b"[hello]")
        assert b"there is no system message" in t.send(b"/system\n", b"message)")


def test_another_model_goes_on_with_the_conversation():
    with Terminal("null:context=256", "--max-tokens", "4", "--quiet") as t:
        t.send(b"hello\n")
        assert b"in use: null" in t.send(b"/model\n", b"here:")
        t.prompt()
        told = t.send(b"/model nowhere-7b\n", b"still in use)")
        assert b"nowhere-7b" in told
        assert b"answers from now on, and the conversation goes on" in t.send(b"/model null:context=512\n", b"goes on)")
        t.prompt()
        told = t.send(("/model " + tiny_model() + "\n").encode(), b"answers from now on")
        t.prompt()
        t.send(b"hello again\n")
        assert t.ends(b"\x04") == 0


def test_another_model_without_a_template(tmp_path):
    """It is told of a system message only where there is one."""
    base = tmp_path / "base.gguf"
    base.write_bytes(pathlib.Path(tiny_model()).read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_templatX"))
    for system in (False, True):
        with Terminal("null:context=256", "--max-tokens", "4", *(["-s", "be brief"] if system else [])) as t:
            t.send(b"hello\n")
            told = t.send(f"/model {base}\n".encode())
            assert b"neither chats nor remembers" in told and b"conversation goes on" not in told
            assert (b"the system message is not used" in told) == system, told


def test_a_speed_is_told_only_where_it_was_seen():
    """The null model's tokens come at once: no millions a second."""
    with Terminal("null:context=256", "--max-tokens", "4") as t:
        told = re.search(rb"\(4 tokens(?:, (\S+) tokens/s)?, the first after", t.send(b"hello\n", b" s)"))
        assert float(told[1] or 0) <= 300  # three in 10 ms, should the machine have stood that long


def test_save(tmp_path):
    text, data = tmp_path / "talk.txt", tmp_path / "talk.json"
    with Terminal("null:context=256", "--max-tokens", "4", "-s", "be brief") as t:
        t.send("grüße\n".encode())
        assert b"(3 messages are in" in t.send(f"/save {text}\n".encode(), b"as text)")
        t.send(f"/save {data}\n".encode(), b"as JSON)")
        assert b"is there already; /save --force" in t.send(f"/save {data}\n".encode(), b"overwrites it")
        data.chmod(0o640)
        (tmp_path / "link.json").symlink_to(data)
        t.send(f"/save --force {tmp_path}/link.json\n".encode(), b"as JSON)")
        assert b"No such file" in t.send(f"/save {tmp_path}/no/where\n".encode(), b"directory")
        assert b"takes the name" in t.send(b"/save\n", b"of a file.")
        assert b"takes the name" in t.send(b"/save --force\n", b"of a file.")
    saved = json.loads(data.read_text())
    assert [m["role"] for m in saved["messages"]] == ["system", "user", "assistant"]
    assert saved["messages"][1]["content"] == "grüße" and saved["model"]
    assert text.read_text().startswith("## system\n\nbe brief\n\n## user\n\ngrüße\n\n## assistant\n")
    assert stat.S_IMODE(text.stat().st_mode) == 0o600
    assert stat.S_IMODE(data.stat().st_mode) == 0o640 and (tmp_path / "link.json").is_symlink()
    assert len(list(tmp_path.iterdir())) == 3  # nothing beside them


def test_history_across_chats(tmp_path, shown):
    """A file of the user's alone, bounded; what cannot be used is as if it were not there."""
    if not has_editor():
        pytest.skip("built without a line editor")
    path = tmp_path / "deep/history"
    env = {"CONIFER_HISTORY": str(path)}
    with Terminal(*shown, env=env) as t:
        t.send(b"one thing\n", b"[one thing]")
        t.send(b"another\n", b"[another]")
        assert t.ends(b"\x04") == 0
    assert path.read_text() == "one thing\nanother\n" and stat.S_IMODE(path.stat().st_mode) == 0o600
    with Terminal(*shown, env=env) as t:
        t.send(b"\x1b[A\x1b[A\n", b"[one thing]")
    path.write_bytes(b"".join(b"line %d\n" % i for i in range(5000)) + b"\xff\xfe\nlast one\n")
    with Terminal(*shown, env=env) as t:
        t.send(b"\x1b[A\n", b"[last one]")
    assert len(path.read_bytes().splitlines()) <= 1202
    for bad in ("folder", "link"):
        other = tmp_path / bad
        other.mkdir() if bad == "folder" else other.symlink_to("/dev/zero")
        with Terminal(*shown, env={"CONIFER_HISTORY": str(other)}) as t:
            t.send(b"hello\n", b"[hello]")
    with path.open("r+") as held:  # locked for ever by another: nobody waits for it
        fcntl.flock(held, fcntl.LOCK_EX)
        with Terminal(*shown, env=env) as t:
            t.send(b"\x1b[A\n", b">>>")
    with Terminal(*shown, env={"CONIFER_HISTORY": "", "HOME": str(tmp_path / "home")}) as t:
        t.send(b"hello\n", b"[hello]")
    assert not (tmp_path / "home").exists()


def test_where_the_history_is(tmp_path, shown):
    """The XDG state folder; nowhere without a home."""
    if not has_editor():
        pytest.skip("built without a line editor")
    for name, env, path in (("a", {"XDG_STATE_HOME": str(tmp_path / "a")}, "a/conifer/history"),
                            ("b", {"HOME": str(tmp_path / "b"), "XDG_STATE_HOME": ""}, "b/.local/state/conifer/history"),
                            ("c", {"HOME": "", "XDG_STATE_HOME": "relative"}, None)):
        with Terminal(*shown, env={"CONIFER_HISTORY": None, **env}) as t:
            t.send(b"hello\n", b"[hello]")
            assert t.ends(b"\x04") == 0
        found = [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file() and p.name == "history"]
        assert [f for f in found if f.startswith(name)] == ([path] if path else []), found
        assert not path or (tmp_path / path).stat().st_mode & 0o777 == 0o600


def test_words_are_wrapped_for_a_terminal_alone(tmp_path):
    """No word is cut at the edge, and nothing moves: what stands there is the text of the answer with line
    ends in place of spaces. Elsewhere it is the text itself."""
    args = ["null:context=600,vocab=600", "--max-tokens", "300", "--seed", "1", "--quiet"]
    plain = conifer("run", *args, "hello").decode()
    for columns in (20, 47, 80):
        with Terminal(*args, columns=columns) as t:
            screen = Screen(t.fd, 24, columns, False)
            os.write(t.fd, b"hello\n")
            data = read_until(t.fd, b"cut off")
            screen.feed(t.rest + data)
            rows = screen.text().splitlines()
            assert all(len(r) <= columns for r in rows)
        start = next(i for i, r in enumerate(rows) if r.startswith(">>> hello")) + 1
        seen = " ".join(" ".join(rows[start:]).split("(cut off")[0].split())
        words = plain.split()
        assert len(words) > 20 and max(map(len, words)) <= 20
        assert seen == " ".join(words)
    assert "\x1b" not in plain
