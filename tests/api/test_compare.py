"""loadtest/compare, engines and measure: rounds, resuming, what is quoted."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, program, tiny_model

sys.path.insert(0, str(ROOT / "loadtest"))
import rounds  # noqa: E402

COMPARE = ROOT / "loadtest/compare"


def module(name):
    """A program of loadtest/, which has no .py."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "loadtest" / name))
    made = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(made)
    finally:
        sys.dont_write_bytecode = kept
    return made


def test_order_is_abba():
    assert "".join("".join(rounds.order("AB", k)) for k in range(4)) == "ABBABAAB"
    # each is first, and each position, as often as the others
    for k in range(0, 8, 2):
        assert sorted(rounds.order("ABC", k) + rounds.order("ABC", k + 1)) == sorted("AABBCC")


def test_ratios_are_of_rounds():
    ours, theirs = [10, 20, 30, None, 50], [5, 10, 10, 5, None]
    r = rounds.ratio(ours, theirs)
    assert (r["n"], r["median"], r["min"], r["max"]) == (3, 2, 2, 3)
    assert rounds.ratio([None], [1]) is None


def test_the_interval_holds_the_median_and_narrows():
    few, many = [1, 2, 3, 4, 10], [1, 2, 3, 4, 10] * 20
    for values in (few, many):
        low, high = rounds.interval(values)
        assert low <= statistics.median(values) <= high
    narrow, wide = rounds.interval(many), rounds.interval(few)
    assert narrow[1] - narrow[0] < wide[1] - wide[0]
    assert rounds.interval(few) == rounds.interval(few)


def test_a_file_made_anew_is_another(tmp_path):
    file = tmp_path / "model.gguf"
    assert rounds.stamp(str(file)) == []
    file.write_bytes(b"one")
    first = rounds.stamp(str(file))
    assert first and rounds.stamp(str(file)) == first
    file.write_bytes(b"other")
    assert rounds.stamp(str(file)) != first
    assert rounds.stamp("sh") == rounds.stamp(shutil.which("sh"))


def test_a_store_goes_on_where_it_was_cut(tmp_path):
    path = tmp_path / "a/b.jsonl"
    made = []

    def piece(k):
        made.append(k)
        return {"value": k}
    first = rounds.Store(path)
    for k in range(3):
        first.take(["x", k], lambda k=k: piece(k))
    second = rounds.Store(path)
    assert [second.take(["x", k], lambda k=k: piece(k))["value"] for k in range(5)] == [0, 1, 2, 3, 4]
    assert made == [0, 1, 2, 3, 4]
    late = rounds.Store(path, limit_s=1e-9)
    assert late.take(["x", 4], lambda: piece(9))["value"] == 4
    with pytest.raises(rounds.OutOfTime):
        late.take(["x", 5], lambda: piece(5))
    other = rounds.Store(path, tag="another build")
    assert other.take(["x", 0], lambda: piece(7))["value"] == 7


def test_another_build_has_another_tag(tmp_path):
    (tmp_path / "cli").mkdir()
    empty = rounds.build_tag(tmp_path)
    (tmp_path / "cli/conifer-server").write_bytes(b"one")
    one = rounds.build_tag(tmp_path)
    (tmp_path / "cli/conifer-server").write_bytes(b"two")
    assert len({empty, one, rounds.build_tag(tmp_path)}) == 3


def test_a_line_cut_in_the_middle_is_measured_again(tmp_path):
    kept = tmp_path / "pieces.jsonl"
    for n in (1, 2):
        rounds.Store(kept).take([n], lambda: {"v": "first"})
    kept.write_text(kept.read_text()[:-5])
    for n, v in ((1, "first"), (2, "again")):
        assert rounds.Store(kept).take([n], lambda: {"v": "again"})["v"] == v
    assert len(rounds.Store(kept).done) == 2


def test_probes_that_differ_are_seen():
    record = {"before": {"read_bytes_s": 30e9}, "after": {"read_bytes_s": 15e9}}
    assert rounds.unsteady(record) == pytest.approx(0.5)
    assert rounds.unsteady({"before": {}, "after": {}}) == 0


@pytest.fixture
def scenario(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text("name: small\nclasses:\n  - {clients: 2, requests: 4, prompt_tokens: 6, "
                    "answer_tokens: 5, ids_from: 5, ids_to: 100}\n")
    return file


def compare(tmp_path, scenario, *args, expect=0):
    program(BUILD / "cli/conifer-server")
    program(BUILD / "loadtest/conifer-load")
    out = subprocess.run([sys.executable, str(COMPARE), "--build", str(BUILD), "--model", tiny_model(),
                          "--threads", "1", "--out", str(tmp_path / "kept.jsonl"), *args, str(scenario)],
                         capture_output=True, text=True, timeout=300, check=False)
    assert out.returncode == expect, out.stdout + out.stderr
    return out.stdout + out.stderr if expect else out.stdout


SAME = "again={build}/cli/conifer-server --model {model} --port {port} --threads {threads}"


def test_two_servers_in_rounds(tmp_path, scenario):
    args = ["--server", "conifer", "--server", SAME, "--rounds", "2"]
    out = json.loads(compare(tmp_path, scenario, *args, "--json"))
    (s,) = out["scenarios"]
    assert set(s["servers"]) == {"conifer", "again"}
    for row in s["servers"].values():
        assert row["rounds"] == 2 and row["failed"] == 0 and row["errors"] == []
        assert row["classes"]["requests"]["tokens/s"]["n"] == 2
        assert row["ready_s"]["median"] > 0
    assert s["ratios"]["conifer"]["requests"]["tokens/s"]["median"] == 1
    kept = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert [(k["key"][3], k["key"][5]) for k in kept] == [("conifer", 0), ("again", 0), ("again", 1),
                                                          ("conifer", 1)]
    # each round has prompts of its own, the same for both
    assert [k["result"]["seed"] for k in kept] == [1000, 1000, 1001, 1001]
    # called again, nothing is measured again, and the table says the same
    before = (tmp_path / "kept.jsonl").read_bytes()
    text = compare(tmp_path, scenario, *args)
    assert (tmp_path / "kept.jsonl").read_bytes() == before
    assert "| tokens/s |" in text and "against again" in text
    assert "| ready s |" in text and "| peak RSS MB |" in text and "2 of conifer, 2 of again" in text


def test_cut_by_the_clock(tmp_path, scenario):
    args = ["--server", "conifer", "--server", SAME, "--rounds", "2"]
    assert "call again" in compare(tmp_path, scenario, *args, "--limit-s", "0.000001",
                                   expect=rounds.NOT_DONE)


def test_a_server_that_does_not_start_is_a_result(tmp_path, scenario):
    out = json.loads(compare(tmp_path, scenario, "--server", "conifer", "--server", "no=false {port}",
                             "--rounds", "1", "--json", expect=1))
    row = out["scenarios"][0]["servers"]["no"]
    assert len(row["errors"]) == 1 and "ended with 1" in row["errors"][0]
    assert out["scenarios"][0]["ratios"]["no"]["requests"]["tokens/s"] is None


def test_wrong_commands(tmp_path, scenario):
    assert "nothing that can be filled in" in compare(
        tmp_path, scenario, "--server", "x=run {colour}", expect=1)
    assert "no server is known" in compare(tmp_path, scenario, "--server", "x", expect=1)
    for where, args, message in [
            (tmp_path / "none.yaml", [], "none.yaml"), (f"{scenario}:abc", [], "not FILE[:SLOTS"),
            (f"{scenario}:1:2:3:4", [], "not FILE[:SLOTS"),
            (scenario, ["--server", "conifer=true"], "conifer: two have this name"),
            (scenario, ["--rounds-of", "other=3"], "other=3: nothing has this name"),
            (scenario, ["--rounds-of", "conifer=x"], "conifer=x: not NAME=ROUNDS"),
            (scenario, ["--rounds", "0"], "at least one round"),
            (scenario, ["--rounds-of", "conifer=0"], "conifer=0: not NAME=ROUNDS"),
            (scenario, ["--model", "no.gguf"], "no.gguf: no such file"),
            (scenario, ["--load", "no-load"], "no-load: no such file")]:
        text = compare(tmp_path, where, "--server", "conifer", *args, expect=1)
        assert message in text and "Traceback" not in text
    assert not (tmp_path / "kept.jsonl").exists()


STAND_IN = r"""
import http.server, json, pathlib, sys
port, mode, state = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[0] + ".state")
failing, asked = mode == "fails-once" and not state.exists(), []
state.write_text("")
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args):
        pass
    def say(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        asked.append(self.path)
        if mode == "no-http" and len(asked) < 4:
            self.wfile.write(b"what do you say?\r\n\r\n")
            self.close_connection = True
        elif self.path == "/v1/models":
            self.say(200, b'{"data": [{"id": "m"}]}')
        else:
            self.say(404 if mode == "no-health" else 200, b"{}")
    def do_POST(self):
        global failing
        n = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
        if failing:
            failing = False
            self.say(500, b"{}")
        else:
            self.say(200, b'data: {"choices": [{"text": "a"}]}\n\n' * n + b"data: [DONE]\n\n")
http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path):
    """The command of a small server that does what a mode says."""
    def make(mode):
        file = tmp_path / f"{mode}.py"
        file.write_text(STAND_IN)
        return f"{sys.executable} {file} {{port}} {mode}"
    return make


def test_a_round_with_failed_requests_is_left_out(tmp_path, scenario, stand_in):
    args = ["--server", f"good={stand_in('good')}", "--server", f"bad={stand_in('fails-once')}", "--rounds", "2"]
    (s,) = json.loads(compare(tmp_path, scenario, *args, "--json"))["scenarios"]
    bad = s["servers"]["bad"]
    assert (bad["failed"], bad["left_out"], bad["errors"]) == (1, 1, [])
    assert bad["classes"]["requests"]["tokens/s"]["n"] == s["ratios"]["bad"]["requests"]["tokens/s"]["n"] == 1
    assert s["servers"]["good"]["classes"]["requests"]["wall s"]["n"] == 2
    text = compare(tmp_path, scenario, *args)
    assert "2 of good, 1 of bad" in text and "bad: 1 requests failed, in 1 of 2 rounds" in text


@pytest.mark.parametrize("mode", ["no-health", "no-http"])
def test_servers_that_start_oddly(tmp_path, scenario, stand_in, mode):
    """One that has no /health; one that says something else than HTTP at first."""
    (s,) = json.loads(compare(tmp_path, scenario, "--server", f"x={stand_in(mode)}", "--rounds", "1", "--wait-s",
                              "30", "--json"))["scenarios"]
    assert s["servers"]["x"]["errors"] == [] and s["servers"]["x"]["failed"] == 0


def test_what_a_command_started_is_ended_too(tmp_path, scenario, stand_in):
    pid_file = tmp_path / "pid"
    # the shell dies of SIGTERM at once, what it started takes its time and says so
    slow = f"(trap \"sleep 0.5; touch {tmp_path}/gently; exit\" TERM; while :; do sleep 0.05; done) &"
    command = f"sh -c '{slow} {stand_in('good')} & echo $! > {pid_file}; wait'"
    (s,) = json.loads(compare(tmp_path, scenario, "--server", f"x={command}", "--rounds", "1",
                              "--json"))["scenarios"]
    assert s["servers"]["x"]["errors"] == []
    assert s["servers"]["x"]["peak_rss_mb"]["median"] > 8  # the interpreter's, not the shell's
    assert (tmp_path / "gently").exists()
    pid = int(pid_file.read_text())
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return
    if state not in "ZX":
        os.kill(pid, signal.SIGKILL)
        pytest.fail("it still runs")


def test_what_the_bound_gives_and_costs():
    """By hand: 700 tokens/s beside prompts of 2 x 4,000 ids (1,000 of them cached) and an answer of one
    each in 40 s; gaps of 16 ms beside, of 10 ms alone."""
    compare_, measure = module("compare"), module("measure")

    def record(beside_tokens_per_s, beside_s, p99):
        return {"result": {"wall_s": 1, "classes": [
            {"name": "streams", "split_by": "prompts", "failed": 0, "beside_s": beside_s,
             "beside_tokens_per_s": beside_tokens_per_s, "itl_alone_ms": {"p99": 10}, "itl_beside_ms": {"p99": p99}},
            {"name": "prompts", "failed": 0, "prompt_tokens": 8000, "cached_tokens": 1000, "answer_tokens": 2}]}}
    held, free = record(700, 40, 16), record(100, 10, 80)
    assert compare_.with_others(held["result"], 0) == pytest.approx(700 + 7002 / 40)
    assert compare_.stretch(held["result"], 0) == pytest.approx(1.6)
    assert compare_.with_others(held["result"], 1) is None and compare_.stretch(held["result"], 1) is None
    names = ["conifer", measure.NO_BOUND]
    s = compare_.summary({"name": "arrivals", "slots": 1, "slot_tokens": 1}, names,
                         {names[0]: [held], names[1]: [free]})
    said = measure.price_of_the_bound(s, compare_)
    assert "is 1.60 of that alone" in said and f"get {(700 + 7002 / 40) / (100 + 7002 / 10):.2f} of" in said
    assert f"| {compare_.STRETCH} | 1.60 | 8.00 | 5.00 |" in compare_.table(s, names)
    # a piece is found by its command, and parts name servers that there are
    args = measure.argparse.Namespace(llama_cpp=None, ik=None)
    assert [x.split("=")[0] for x in measure.servers_of(args, compare_)] == names
    assert measure.servers_of(args, compare_)[1].endswith("--set engine.step_stretch=0")


def test_engines_decode_behind_nothing(tmp_path):
    """As llama-bench does: the prompt's own measurement is another call."""
    fake = tmp_path / "cli/conifer"
    fake.parent.mkdir()
    fake.write_text(f"""#!/bin/sh
echo "$@" >> {tmp_path}/said
case "$*" in
*"--prompt-tokens 512"*) echo '{{"prefill_tok_s": 1000, "decode_tok_s": 1, "weight_bytes": 7}}' ;;
*) echo '{{"prefill_tok_s": 1, "decode_tok_s": 300, "weight_bytes": 7}}' ;;
esac
""")
    fake.chmod(0o755)
    engines = module("engines")
    args = engines.parser().parse_args(["--model", "m.gguf", "--build", str(tmp_path)])
    assert engines.conifer(args, "m.gguf", 2) == {"prefill": 1000, "decode": 300, "token_bytes": 7}
    said = (tmp_path / "said").read_text()
    assert f"--prompt-tokens 1 --new-tokens {args.new_tokens} " in said and said.count("--threads 2") == 2


def test_probes_bracket_each_piece(tmp_path, scenario):
    compare(tmp_path, scenario, "--server", "conifer", "--rounds", "1", "--probe",
            "echo '{{\"read_bytes_s\": 2e9, \"path\": \"x\"}}'")
    (kept,) = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert kept["before"] == kept["after"] == {"read_bytes_s": 2e9}


def test_shares_of_the_machine(tmp_path):
    """With tools that answer by rote: what is quoted of them, and that nothing is measured twice."""
    shares = module("shares")
    calls = tmp_path / "calls"
    build, synthetic = tmp_path / "build", tmp_path / "synthetic"
    synthetic.mkdir()
    for kind in shares.WHOLE:
        (synthetic / f"{kind}.gguf").write_text(kind)
    point = {"unit": "tok/s", "rounds": 2, "median": 100, "min": 90, "max": 110}
    points = [{**point, "what": "prefill", "streams": 1, "prompt_tokens": 256, "int8_share": 0.5, "read_share": None},
              {**point, "what": "decode", "streams": 1, "prompt_tokens": 256, "int8_share": 0.1, "read_share": 0.9},
              *({**point, "what": "decode", "streams": n, "prompt_tokens": 64, "median": n, "int8_share": 0.3,
                 "read_share": 0.4} for n in (1, 8, 64))]
    told = {"cli/conifer": {"weight_bytes": 1, "points": points},
            "tests/kernels/parity": {"batch": 64, "of_peak": 0.61},
            "tests/kernels/bench_attention": {"of_fma": 0.52, "of_read": 0.71}}
    for name, answer in told.items():
        file = build / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\necho \"$0 $*\" >> {calls}\ncat <<'E'\n{json.dumps(answer)}\nE\n")
        file.chmod(0o755)
    args = shares.parser().parse_args(["--model", str(synthetic / "Q4_0.gguf"), "--build", str(build), "--synthetic",
                                       str(synthetic), "--rounds", "2", "--threads", "2"])
    store = rounds.Store(tmp_path / "kept.jsonl")
    page = shares.table(args, store)
    assert "| 64 | 0.61 (0.61 to 0.61) |" in page and "| 512 | - |" in page
    assert "| Q6_K | 100 (90.0 to 110) | 0.50 | 100 (90.0 to 110) | 0.90 |" in page
    bound = page.split("| of the bound | ")[1].split(" |\n")[0].split(" | ")
    assert bound == ["0.90" if n in (1, 8, 64) else "-" for n in shares.BATCHES]  # .4 + .3 / .6
    assert "| decode behind 8,192 keys | 0.71 (0.71 to 0.71) | 0.71 (0.71 to 0.71) |" in page
    assert "--busy 1" in calls.read_text() and "| 1, 1 | 100 (90.0 to 110) |" in page
    before = len(calls.read_text().splitlines())
    assert shares.table(args, store) == page
    assert len(calls.read_text().splitlines()) == before and not args.failed
    # a tool that fails leaves a gap, and says so
    (build / "tests/kernels/parity").write_text("#!/bin/sh\nexit 3\n")
    assert "| 64 | - | - |" in shares.table(args, rounds.Store(None)) and args.failed


PAGE = """<!-- figures: machine -->
<!-- end -->
<!-- figures: engines -->
| smollm.gguf, 1 | ik_llama.cpp, 6 | 580 |
| gemma-3.gguf, 2 | conifer, 9 | 600 |
<!-- end -->
<!-- figures: sixteen -->
| | conifer | llama.cpp | against llama.cpp |
<!-- end -->
<!-- figures: arrivals -->
| | conifer | conifer (no bound) |
<!-- end -->
"""


def test_no_figures_are_lost_by_writing(tmp_path, monkeypatch, capsys):
    """A part is written as a whole: without those whose rows it has it is refused before anything is run."""
    measure = module("measure")
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    monkeypatch.setattr(measure, "PAGE", page)

    def said(*more):
        monkeypatch.setattr(sys, "argv", ["measure", "--smollm", "x", *more])
        try:
            measure.parse()
        except SystemExit as e:
            assert e.code == 2
            err = capsys.readouterr().err
            return err.split("give ")[-1].split("; or")[0].split("error: docs/PERFORMANCE.md ")[-1].strip()
        return ""
    assert said("--write", "--only", "sixteen,arrivals") == "--llama-cpp (for sixteen)"
    assert said("--write", "--only", "engines,sixteen", "--llama-cpp", "y", "--threads", "2") == \
        "--ik (for engines); --gemma (for engines); --threads 1 (for engines)"
    for fine in (["--only", "engines,sixteen"], ["--write", "--only", "arrivals"],
                 ["--write", "--only", "engines,sixteen", "--ik", "x", "--llama-cpp", "y", "--gemma", "z",
                  "--threads", "1", "--threads", "2"]):
        assert said(*fine) == ""
    measure.write_page({"sixteen": r"new \1"})
    old = "| | conifer | llama.cpp | against llama.cpp |"
    new = PAGE.replace(old, r"XXnew \1XX".replace("XX", "\n"))
    assert page.read_text() == new
    # another machine's have places of their own
    page.write_text(new + """<!-- figures: machine old -->
<!-- end -->
<!-- figures: sixteen old -->
| | llama.cpp |
<!-- end -->
""")
    assert said("--write", "--only", "sixteen", "--beside", "old") == "--llama-cpp (for sixteen)"
    assert said("--write", "--only", "sixteen", "--beside", "old", "--llama-cpp", "y") == ""
    measure.write_page({"sixteen old": "theirs"})
    assert page.read_text().startswith(new) and "\ntheirs\n" in page.read_text()
    assert said("--write", "--only", "crowd", "--beside", "old").startswith("has no place for crowd old")


def test_the_page_has_a_place_for_each_part():
    page = (ROOT / "docs/PERFORMANCE.md").read_text()
    source = (ROOT / "loadtest/measure").read_text()
    parts = eval(source.split("PARTS = ")[1].split("\n")[0])  # noqa: S307 - our own list of words
    for part in ["machine", *parts]:
        assert f"<!-- figures: {part} -->" in page
    for part in parts:
        if part not in ("engines", "shares"):
            assert (ROOT / f"loadtest/scenarios/{part}.yaml").exists()
    assert pathlib.Path(ROOT / "loadtest/plot").exists()
