"""`conifer run` in a terminal that is resized: the line that is typed is drawn anew, nothing of it
stays behind and nothing above it is lost, whether the terminal wraps its lines anew or not."""
import os
import pty
import random
import signal
import subprocess
import time

import pytest
from conftest import CONIFER, program, tiny_model
from terminal import Screen

LINE = "the quick brown fox jumps over the lazy dog and then it goes on to find more of them to jump over"


@pytest.fixture(params=[True, False], ids=["rewraps", "stays"])
def chat(request, tmp_path):
    (tmp_path / "t.jinja").write_text("{{ raise_exception('<' + messages[-1].content + '>') }}")
    if b"libedit" not in subprocess.run(["ldd", program(CONIFER)], capture_output=True,
                                        check=False).stdout:
        pytest.skip("built without libedit")
    model = tiny_model()  # before the fork: it may skip the test
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        while os.get_terminal_size(0).columns != 60:
            time.sleep(0.01)
        os.execv(program(CONIFER), ["conifer", "run", "--model", model, "--chat-template",
                                    str(tmp_path / "t.jinja")])
    screen = Screen(fd, 24, 60, request.param)
    screen.run(until=">>>")
    screen.before = screen.text()[:screen.text().index(">>>")]
    yield screen
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)


def above(screen):
    """What stands above the prompt, however it is wrapped now."""
    return screen.text()[:screen.text().index(">>>")].replace("\n", "").replace(" ", "")


def check(screen, line, kept=True):
    """What is to stand there in the end: it may be drawn only after it was quiet for a moment."""
    end = time.time() + 20
    while True:
        try:
            return look(screen, line, kept)
        except AssertionError:
            if time.time() > end:
                raise
        screen.run()


def look(screen, line, kept):
    text = screen.text()
    assert text.count(">>>") == 1 or not kept, text
    assert text[text.rindex(">>>"):] == screen.wrapped(">>> " + line), text
    if screen.rewraps and kept:
        assert above(screen) == screen.before.replace("\n", "").replace(" ", ""), text


def settles(screen, what):
    end = time.time() + 20
    while not what(screen.text()):
        assert time.time() < end, screen.text()
        screen.run()


@pytest.mark.parametrize("sizes", [[30], [100], [30, 20, 100], [59, 58, 57], [101, 25, 60], [104, 52, 26]])
def test_a_wrapped_line(chat, sizes):
    os.write(chat.fd, LINE.encode())
    chat.run(until="over")
    check(chat, LINE)
    for columns in sizes:
        chat.resize(columns)
        chat.run()
        check(chat, LINE)
    os.write(chat.fd, b" now\n")
    settles(chat, lambda text: (LINE + " now>").replace(" ", "") in text.replace("\n", "").replace(" ", ""))


@pytest.mark.parametrize("sizes", [[30], [100], [30, 70, 20]])
def test_the_cursor_within_the_line(chat, sizes):
    os.write(chat.fd, LINE.encode() + b"\x01" + b"\033[C" * 65)
    chat.run(until="over")
    for columns in sizes:
        chat.resize(columns)
        chat.run()
        check(chat, LINE)
    os.write(chat.fd, b"#")  # it is typed where the cursor stands
    chat.run(until="#")
    check(chat, LINE[:65] + "#" + LINE[65:])


def test_keys_while_it_is_resized(chat):
    """What is typed while the terminal is asked for its cursor is not lost or mixed up. (Where widths
    change faster than the answers come, lines above may be drawn over or stay: no terminal tells which
    width an answer was for.)"""
    os.write(chat.fd, LINE.encode())
    chat.run(until="over")
    typed = LINE
    draw = random.Random(5)
    for i in range(12):
        chat.resize(draw.randrange(18, 110))
        more = "".join(draw.choice("abcdefgh") for _ in range(3))
        os.write(chat.fd, more.encode())
        typed += more
        if i % 4 == 3:
            chat.run()
            check(chat, typed, kept=False)
    assert chat.asked
    os.write(chat.fd, b"\n")
    chat.run(until=">>>")


def test_a_short_line_asks_nothing(chat):
    os.write(chat.fd, b"short")
    chat.run(until="short")
    for columns in (30, 100, 40):
        chat.resize(columns)
        chat.run()
        check(chat, "short")
    assert not chat.asked


def test_wide_characters(chat):
    os.write(chat.fd, ("日本語 " * 14).encode())
    chat.run(until="日本語")
    for columns in (31, 44, 90):
        chat.resize(columns)
        chat.run()
        settles(chat, lambda text: text.count(">>>") == 1 and text.count("日") == 14)
    os.write(chat.fd, b"\n")
    chat.run(until=">>>")


def test_a_terminal_that_does_not_answer(chat):
    """It is asked once, and the line goes on."""
    real, chat.sequence = chat.sequence, lambda args, final: None if final == "n" else real(args, final)
    os.write(chat.fd, LINE.encode())
    chat.run(until="over")
    chat.resize(30)
    chat.run(quiet=1.5)
    assert ">>>" in chat.text()
    os.write(chat.fd, b"\n")
    chat.run(until="<the quick")
