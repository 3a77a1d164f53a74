"""What the tests of conifer pull share: a hub or two, a home of their own, the program."""
import subprocess

import pytest
from conftest import CONIFER, program
from hub import Hub

NAME = "org/repo"
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy",
           "NO_PROXY", "HF_TOKEN")


@pytest.fixture
def hub():
    h = Hub()
    yield h
    h.close()


@pytest.fixture
def other():
    h = Hub()
    yield h
    h.close()


@pytest.fixture
def home(tmp_path, hub, monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CONIFER_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    return tmp_path / "models"


def start(*args, **more):
    return subprocess.Popen([program(CONIFER), *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **more)


def conifer(*args, want=0, timeout=120, **more):
    p = start(*args, **more)
    out, err = p.communicate(timeout=timeout)
    assert "Sanitizer" not in err and "runtime error" not in err, err
    assert p.returncode == want, (p.returncode, out, err)
    return (out if want == 0 else "") + err


def pull(*args, **more):
    return conifer("pull", *args, **more)


def left(home):
    return sorted(p.name for p in home.iterdir()) if home.exists() else []


def check(home, name, data):
    assert (home / name).read_bytes() == data
    assert not [n for n in left(home) if ".part" in n or n.endswith(".lock")], left(home)
