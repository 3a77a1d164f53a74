"""tools/measure_server.py: what it started and did not come about is not left running."""
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import measure_server  # noqa: E402


@pytest.fixture
def started(monkeypatch):
    """The processes that are started."""
    made, popen = [], subprocess.Popen

    def begin(*args, **options):
        made.append(popen(*args, **options))
        return made[-1]
    monkeypatch.setattr(subprocess, "Popen", begin)
    yield made
    for p in made:
        if p.poll() is None:
            p.kill()
            p.wait()


def stand_in(build, name, text):
    file = build / name
    file.parent.mkdir(parents=True)
    file.write_text("#!/bin/sh\n" + text)
    file.chmod(0o755)


def test_a_daemon_that_is_never_ready_is_ended(tmp_path, monkeypatch, started):
    monkeypatch.setattr(measure_server.Daemon, "wait_s", 0.5, raising=False)
    stand_in(tmp_path, "cli/conifer-server", "echo still at it; exec sleep 600\n")
    with pytest.raises(RuntimeError, match="did not start"):
        measure_server.Daemon(tmp_path)
    assert [p.poll() is None for p in started] == [False]


def test_streams_that_do_not_come_about_are_ended(tmp_path, started):
    stand_in(tmp_path, "tests/server/streams", "echo no; exec sleep 600\n")
    with pytest.raises(RuntimeError, match="did not come about"):
        measure_server.Streams(tmp_path, 1, "hold", 1)
    assert [p.poll() is None for p in started] == [False]
