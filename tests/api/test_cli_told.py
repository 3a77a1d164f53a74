"""What conifer's commands tell who waits, or who asked for what is not there."""
import os
import pathlib
import pty
import re
import socket
import subprocess

import pytest
from conftest import CONIFER, SERVER, copy_tiny, program, tiny_model
from test_cli import Terminal, conifer, has_editor, json_args, read_until

TINY = "null:layers=2,vocab=600,context=512"


def test_a_long_prompt_is_seen_to_be_read(tmp_path):
    """On a terminal, in a line that is gone when the answer begins; elsewhere nothing is said."""
    path = tmp_path / "long.txt"
    args = [program(CONIFER), "run", "null:context=16777216", "--set", "engine.max_batch_rows=16", "--max-tokens", "5"]

    def read(words):
        path.write_text("sea hill wind house " * (words // 4))
        ours, theirs = pty.openpty()
        with open(path, "rb") as text, \
                subprocess.Popen(args, stdin=text, stdout=subprocess.PIPE, stderr=theirs) as p:
            os.close(theirs)
            said = read_until(ours, b"cut off")
            answer = p.stdout.read()
        os.close(ours)
        assert p.returncode == 0 and b"\x1b" not in answer and answer.count(b"\n") == 1
        return said.partition(b"(cut off")[0], answer
    for words in (100_000, 300_000, 900_000):  # until it takes this machine more than a second
        reading, answer = read(words)
        if reading:
            break
    assert reading.endswith(b"\r\x1b[K"), reading
    seen = [[int(n.replace(b",", b"")) for n in pair]
            for pair in re.findall(rb"\rreading the prompt: ([\d,]+) of ([\d,]+) tokens ", reading)]
    done, total = zip(*seen)
    assert list(done) == sorted(done) and 0 < done[-1] <= total[0] and len(set(total)) == 1 and b"," in reading
    with open(path, "rb") as text:
        out = subprocess.run(args, stdin=text, capture_output=True, check=True, timeout=60)
    assert b"reading" not in out.stderr and out.stdout == answer


def test_a_chat_whose_window_is_full_goes_on():
    """An answer is cut to the room that is left; then the oldest turns are left out, which is said. A text
    that leaves no room says what helps."""
    for more in ([], ["--max-tokens", "60"], ["--max-tokens", "0"]):
        with Terminal("null:context=128", *more) as t:
            said = b"".join(t.send(b"go on and on %d\n" % i) for i in range(8))
            assert b"(cut off" in said and b"more than" not in said and b"shorter" not in said, said
            assert re.search(rb"the window of 128 tokens is full: the oldest turn is left out from now on|"
                             rb"the \d+ oldest turns are left out", said), said
            assert b"forgotten" in t.send(b"/clear\n", b"forgotten")
            assert b"shorter text" in t.send(b"hello " * 80 + b"\n", b"needed")
    # memory that ends before the window does
    with Terminal("null:layers=2,vocab=600,context=8192", "--set", "kv.memory_bytes=256KiB", "--max-tokens", "9000") as t:
        assert b"KV memory is full" in t.send(b"hello\n", b"size)")
        assert b"left out from now on" in t.send(b"hello\n", b"from now on")


def test_too_little_memory_is_told_in_figures_and_by_the_key_that_was_set(tmp_path):
    config = tmp_path / "c.yaml"

    def told(key, value):
        section, name = key.split(".")
        config.write_text(f"{section}:\n  {name}: {value}\n")
        out = subprocess.run([program(SERVER), "--config", str(config), "--model", "null:", "--port", "0"],
                             capture_output=True, timeout=60, check=False)
        assert out.returncode == 1, out
        return out.stderr.decode()
    said = told("kv.memory_bytes", 1000)
    assert re.search(r"c.yaml:2:3: kv.memory_bytes: 1000 bytes of KV memory cannot hold 64 tokens, which take \d+\.\d KiB",
                     said), said
    said = told("engine.memory_bytes", 1000)
    need = re.search(r"c.yaml:2:3: engine.memory_bytes is 1000 bytes, and the model takes (\d+)\.\d KiB for weights", said)
    assert need, said
    said = told("engine.memory_bytes", f"{int(need[1]) + 2}KiB")
    assert re.search(r"c.yaml:2:3: engine.memory_bytes: \d\.\d KiB of KV memory are left, which cannot hold 64 tokens", said), said


def test_a_port_in_use_is_told_with_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = conifer("serve", TINY, "--port", str(port), want=1)
        assert b"port %d: " % port in said and b"another --port" in said


def test_a_model_named_by_a_word_is_told_without_its_option():
    for command in ("show", "serve", "bench"):
        said = conifer(command, "nowhere-7b", want=1)
        assert b"there is no model" in said and b"--model:" not in said, said


def test_bytes_that_are_no_text_are_named():
    """Refused with their place, never left out."""
    for data, byte, offset in ((b"x\xff\xffy", b"0xff", 1), (b"\xc3", b"0xc3", 0), ("grüße".encode() + b"\xed\xa0\x80", b"0xed", 7)):
        told = b"not valid UTF-8: byte %s at offset %d\n" % (byte, offset)
        for command in (["tokenize"], ["tokenize", "--ids"], ["run"], ["run", "hello"]):
            assert told in conifer(*command, "--model", tiny_model(), stdin=data, want=1)
        assert told in conifer("run", "--model", tiny_model(), data, want=1)


def test_tokenize_at_a_terminal_says_that_it_waits():
    ours, theirs = pty.openpty()
    with subprocess.Popen([program(CONIFER), "tokenize", tiny_model(), "--ids"], stdin=theirs,
                          stdout=subprocess.PIPE, stderr=theirs) as p:
        os.close(theirs)
        read_until(ours, b"Ctrl-D")
        os.write(ours, b"hello\n\x04")
        ids = p.stdout.read()
    os.close(ours)
    assert p.returncode == 0 and ids == conifer("tokenize", tiny_model(), "--ids", stdin=b"hello\n")


def test_run_names_the_models_that_are_here(tmp_path, monkeypatch):
    monkeypatch.setenv("CONIFER_HOME", str(tmp_path))
    said = conifer("run", "smollm2", "hi", want=2)
    assert b'"smollm2" is no model that is here; did you mean smollm2-135m, ' in said and b"? Installed: none." in said
    (tmp_path / "models").mkdir()
    for name in ("tiny", "another"):
        (tmp_path / f"models/{name}.gguf").symlink_to(pathlib.Path(tiny_model()).resolve())
    said = conifer("run", "smollm2", "hi", want=2)
    assert b"Installed: another, tiny. conifer list shows what can be pulled" in said and b"quotes" in said
    (tmp_path / "c.yaml").write_text(f"models: [{{name: mine, path: {tiny_model()}}}, {{name: tiny}}]\n")
    assert b"Installed: mine, another, tiny." in conifer("run", "--config", str(tmp_path / "c.yaml"), "smollm2", "hi", want=2)


def test_a_block_is_one_entry_of_the_history(json_args):
    """All of its lines, the quotes too, so that it can be sent again; one that was dropped can be ended."""
    if not has_editor():
        pytest.skip("built without libedit")
    up, home = b"\033[A", b"\033[H"

    def block(t, *lines, ends):
        for line in lines[:-1]:
            t.send(line + b"\n", b"...")
            t.rest = b">>>"  # it asks, in its way
        os.write(t.fd, lines[-1] + b"\n")
        t.rest = read_until(t.fd, ends)
    with Terminal(*json_args) as t:
        t.send(b"before\n", b'<"before">')
        block(t, b'"""one', b"", b"two", b'three"""', ends=rb'<"one\n\ntwo\nthree">')
        t.send(up + b"\n", rb'<"one\n\ntwo\nthree">')
        t.send(up + up + b"\n", b'<"before">')
        block(t, b'"""one', up + up + b"\x15half", b'"""', ends=rb'<"one\nhalf\n">')  # looked back within
        t.send(up + home + b"\033[C\033[C\033[Cno\n", rb'<"noone\nhalf\n">')
        t.send(b'"""dropped\n', b"...")
        os.write(t.fd, b"\x03")
        t.rest = read_until(t.fd, b"ends)")
        t.send(b"next\n", b'<"next">')
        t.send(up + up + b' no more"""\n', b'<"dropped no more">')
        t.prompt()
        assert t.ends(b"\x04") == 0


def test_instructions_that_are_not_there_are_named():
    """Beside those that are: no processor has all of them."""
    names = ["generic", "avx2", "avxvnni", "avx512", "neon", "i8mm"]
    there, refused = [], {}
    for isa in names:
        out = subprocess.run([program(CONIFER), "run", "--model", "null:", "--isa", isa, "--max-tokens", "1", "hi"],
                             input=b"", capture_output=True, timeout=60, check=False)
        if out.returncode:
            refused[isa] = out.stderr.decode()
        else:
            there.append(isa)
    assert refused and there[0] == "generic"
    for isa, said in refused.items():
        assert said == (f"conifer run: --isa: engine.isa: this processor lacks the instructions of {isa}; "
                        f"it has those of {', '.join(there)}\n")
        for command in ("show", "plan", "bench"):
            assert f"engine.isa: this processor lacks the instructions of {isa};".encode() in \
                conifer(command, "null:", "--isa", isa, want=1)
    said = subprocess.run([program(SERVER), "--model", "null:", "--port", "0", "--isa", isa], capture_output=True,
                          timeout=60, check=False).stderr
    assert b"engine.isa: this processor lacks" in said, said


def test_a_paste_is_a_message_as_it_is(json_args):
    """Quotes and a slash that it begins with mean nothing; a line's end may be of two characters."""
    if not has_editor():
        pytest.skip("built without libedit")
    up = b"\033[A"

    def pasted(data):
        return b"\033[200~" + data + b"\033[201~"
    quoted = rb'<"\"\"\"A module.\n\"\"\"\nimport os">'
    with Terminal(*json_args) as t:
        t.send(pasted(b"one\r\n\r\ntwo\rthree\n\nfour\r\r\r\n") + b"\n", rb'<"one\n\ntwo\nthree\n\nfour">')
        t.send(pasted(b'"""A module.\r\n"""\r\nimport os\r\n') + b"\n", quoted)
        t.send(b"after\n", b'<"after">')
        t.send(up + up + b"\n", quoted)  # and again from the history
        t.send(pasted(b'"""A module."""\n') + b"\n", rb'<"\"\"\"A module.\"\"\"">')
        t.send(pasted(b"/exit 1\nis no command") + b"\n", rb'<"/exit 1\nis no command">')
        t.send(pasted(b"/clear") + b"\n", b'<"/clear">')
        t.send(pasted(b'"""x') + b'\x15"""typed"""\n', b'<"typed">')  # dropped before it was sent
        t.send(b'"""see\n', b"...")
        t.rest = b">>>"
        t.send(pasted(b'"""A module."""\n\nimport os') + b'"""\n', rb'<"see\n\"\"\"A module.\"\"\"\n\nimport os">')
        t.prompt()
        assert t.ends(b"\x04") == 0


def test_ctrl_z_gives_the_terminal_back(json_args):
    """Pastes are not marked while another program has it, and are again afterwards; the line stays."""
    if not has_editor():
        pytest.skip("built without libedit")
    with Terminal(*json_args) as t:
        os.write(t.fd, b"half ")
        read_until(t.fd, b"half ")  # all of it: what is unread at the stop is dropped
        os.write(t.fd, b"\x1a")
        said = read_until(t.fd, b"\033[?2004l")
        if b"\033[?2004h" not in said.partition(b"\033[?2004l")[2]:  # nobody can continue it here: it goes on
            read_until(t.fd, b"\033[?2004h")
        t.rest = b">>>"
        t.send(b"a line\n", b'<"half a line">')
        t.prompt()
        assert t.ends(b"\x04") == 0


@pytest.mark.parametrize("text,fault", [
    ("server:\n  host: 0.0.0.0\n", "c.yaml:2:3: server.host: 0.0.0.0 can be reached"),
    ("models:\n  - name: a\n  - name: a\n", 'c.yaml:3:5: models.name: two models are named "a"')])
def test_an_error_of_a_rule_between_keys_is_told_once(tmp_path, text, fault):
    (tmp_path / "c.yaml").write_text(text)
    for more in ([], ["--check-config"]):
        out = subprocess.run([program(SERVER), "--config", str(tmp_path / "c.yaml"), *more], text=True,
                             capture_output=True, timeout=60, check=False)
        assert out.returncode == 2 and out.stderr.count(fault) == 1, out.stderr


def test_names_in_a_file_reach_no_terminal(tmp_path):
    """A file is of anywhere: its name and its template's words hold no control character that is written."""
    bad = "Model\x1b]0;title\x07\x1b[31m\u009b31m\nname: other"

    def change(key, value):
        return None if key in ("general.name", "tokenizer.chat_template") else value

    def add(writer):
        writer.add_string("general.name", bad)
        writer.add_string("tokenizer.chat_template", "{{ raise_exception('" + bad.replace("\n", "") + "') }}")
    path = str(copy_tiny(tmp_path / "bad.gguf", change, add))
    said = [conifer("show", path), conifer("show", path, "--json"), conifer("plan", path, "--users", "1"),
            conifer("run", path, "hi", want=1)]
    for text in said:
        text = text.decode()
        assert "title" in text and not set(text) & {chr(c) for c in (*range(10), *range(11, 32), *range(127, 160))}, text
        assert "\nname: other" not in text
