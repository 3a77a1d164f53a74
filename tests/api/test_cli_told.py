"""What conifer's commands tell who waits, or who asked for what is not there."""
import os
import pty
import re
import subprocess

from conftest import CONIFER, program
from test_cli import read_until


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
