"""Where a daemon's files lie is for its log alone: no answer says it, whatever is wrong with them."""
import json
import pathlib
import shutil

import pytest
from conftest import SERVER, Server, program, tiny_model

ASK = {"prompt": "x", "max_tokens": 1}
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Models with every kind of fault, all in one folder; one that is well is the default."""
    folder = tmp_path_factory.mktemp("hidden folder")
    good = folder / "well.gguf"
    shutil.copy(tiny_model(), good)
    data = good.read_bytes()
    files = {"gone": None, "empty": b"", "other": b"nonsense" * 9, "head": data[:3000], "cut": data[:-5000],
             "version": b"GGUF\x09" + data[5:]}
    for name, content in files.items():
        if content is not None:
            (folder / f"{name}.gguf").write_bytes(content)
    (folder / "folder.gguf").mkdir()
    (folder / "bad.jinja").write_text("{% if %}{{")
    models = [(name, f"{folder}/{name}.gguf", "") for name in [*files, "folder"]]
    models += [("no-template", good, f"    chat_template: {folder}/gone.jinja\n"),
               ("bad-template", good, f"    chat_template: {folder}/bad.jinja\n"),
               ("wide", good, "    context: 99999\n"),
               ("long", f"{folder}/{'l' * 200}/{'m' * 200}/{'n' * 200}.gguf", "")]
    text = f"models:\n  - name: well\n    path: {json.dumps(str(good))}\n    preload: true\n"
    for name, path, more in models:
        text += f"  - name: {name}\n    path: {json.dumps(str(path))}\n{more}"
    s = Server(program(SERVER), None, config=text)
    s.names, s.folder = [name for name, *_ in models], folder
    yield s
    s.stop()


def test_no_answer_names_a_folder(broken):
    texts = {}
    for name in broken.names:
        for path, body in (("/v1/completions", ASK), ("/v1/chat/completions", CHAT),
                           ("/v1/completions", {**ASK, "stream": True}), ("/tokenize", {"prompt": "x"}),
                           ("/v1/embeddings", {"input": "x"})):
            status, _, data = broken.http("POST", path, {**body, "model": name})
            assert status == 503, (name, data)
            message = json.loads(data)["error"]["message"]
            assert message.startswith(f"the model {name} could not be loaded: "), message
            texts[name] = message
            assert "hidden folder" not in message and "/" not in message, message
    assert "context is 99999 tokens" in texts["wide"] and "not a GGUF file" in texts["other"]
    for path in ("/v1/models", "/version", "/metrics", *(f"/v1/models/{n}" for n in broken.names)):
        assert b"hidden folder" not in broken.get(path)[2], path
    listed = {m["id"]: m for m in json.loads(broken.get("/v1/models")[2])["data"]}
    assert all(listed[n]["state"] == "failed" and listed[n]["error"] for n in texts)
    log = broken.text()
    assert str(broken.folder / "other.gguf") in log and "gone.jinja" in log


def test_a_file_that_changes_is_not_named(tmp_path):
    good = tmp_path / "hidden.gguf"
    shutil.copy(pathlib.Path(tiny_model()), good)
    s = Server(program(SERVER), None, config=f"models:\n  - name: one\n    path: {good}\n")
    try:
        assert s.post("/v1/completions", ASK)[0] == 200
        good.write_bytes(good.read_bytes()[:2000])
        status = 200
        while status == 200:
            status, _, data = s.http("POST", "/v1/completions", ASK)
        assert status == 503 and b"changed while it was served" in data, data
        for data in (data, s.get("/v1/models")[2], s.http("POST", "/v1/completions", ASK)[2]):
            assert str(tmp_path).encode() not in data
    finally:
        s.stop()
