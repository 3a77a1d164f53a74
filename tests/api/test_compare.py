"""loadtest/compare, engines and measure: rounds, resuming, what is quoted."""
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, program, tiny_model

sys.path.insert(0, str(ROOT / "loadtest"))
import rounds  # noqa: E402

COMPARE = ROOT / "loadtest/compare"


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


def test_cut_by_the_clock(tmp_path, scenario):
    args = ["--server", "conifer", "--server", SAME, "--rounds", "2"]
    assert "call again" in compare(tmp_path, scenario, *args, "--limit-s", "0.000001",
                                   expect=rounds.NOT_DONE)


def test_a_server_that_does_not_start_is_a_result(tmp_path, scenario):
    out = json.loads(compare(tmp_path, scenario, "--server", "conifer", "--server", "no=false {port}",
                             "--rounds", "1", "--json"))
    row = out["scenarios"][0]["servers"]["no"]
    assert len(row["errors"]) == 1 and "ended with 1" in row["errors"][0]
    assert out["scenarios"][0]["ratios"]["no"]["requests"]["tokens/s"] is None


def test_wrong_commands(tmp_path, scenario):
    assert "nothing that can be filled in" in compare(
        tmp_path, scenario, "--server", "x=run {colour}", expect=1)
    assert "no server is known" in compare(tmp_path, scenario, "--server", "x", expect=1)


def test_probes_bracket_each_piece(tmp_path, scenario):
    compare(tmp_path, scenario, "--server", "conifer", "--rounds", "1", "--probe",
            "echo '{{\"read_bytes_s\": 2e9, \"path\": \"x\"}}'")
    (kept,) = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert kept["before"] == kept["after"] == {"read_bytes_s": 2e9}


def test_the_page_has_a_place_for_each_part():
    page = (ROOT / "docs/PERFORMANCE.md").read_text()
    source = (ROOT / "loadtest/measure").read_text()
    parts = eval(source.split("PARTS = ")[1].split("\n")[0])  # noqa: S307 - our own list of words
    for part in ["machine", *parts]:
        assert f"<!-- figures: {part} -->" in page
    for part in parts:
        if part != "engines":
            assert (ROOT / f"loadtest/scenarios/{part}.yaml").exists()
    assert pathlib.Path(ROOT / "loadtest/plot").exists()
