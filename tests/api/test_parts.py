"""Messages in the form that the model's template takes: lists of parts, the role developer, system
messages after the first, and a conversation without messages."""
import subprocess

import pytest
from conftest import CONIFER, oracle, program, tiny_model

# Takes lists of the user alone, and marks each part and its further members.
LISTS = ("{% for m in messages %}<{{ m.role }}>"
         "{% if m.role == 'user' and m.content is not string %}"
         "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}"
         "{% for k in p if k not in ['type', 'text'] %}+{{ k }}{% endfor %}{% endif %}{% endfor %}"
         "{% else %}{{ m.content }}{% endif %}{% endfor %}"
         "{% if add_generation_prompt %}<assistant>{% endif %}")


def text(*texts, **more):
    return [{"type": "text", "text": t, **more} for t in texts]


def render(server, *messages, **more):
    status, answer = server.post("/apply-template", {"messages": messages, **more})
    assert status == 200, answer
    return answer["prompt"]


@pytest.fixture
def with_template(start, tmp_path):
    """Starts a server with a template's text, or with a template of the reference data."""
    def make(source):
        path = tmp_path / "t.jinja"
        if source.startswith("templates/"):
            path = oracle(source)
        else:
            path.write_text(source)
        return start("--chat-template", str(path), "--set", "model.tools_fallback=false", template=False)
    return make


def test_parts_reach_the_template(with_template):
    s = with_template(LISTS)
    user = {"role": "user", "content": text("a", "b")}
    assert render(s, user) == "<user>ab<assistant>"
    assert render(s, {"role": "user", "content": text("a", "b", cache_control={"type": "ephemeral"})}) == \
        "<user>a+cache_controlb+cache_control<assistant>"
    # A string stays a string, and lists of roles that want one become one.
    others = [{"role": r, "content": text("a", "", "b"), **m} for r, m in (
        ("system", {}), ("assistant", {}), ("tool", {"tool_call_id": "c"}))]
    assert render(s, others[0], user, others[1], {"role": "user", "content": "[1]"}, others[2]) == \
        "<system>a\nb<user>ab<assistant>a\nb<user>[1]<tool>a\nb<assistant>"
    assert render(s, {"role": "user", "content": []}) == "<user><assistant>"


def test_names_of_text_parts(with_template):
    """As other APIs name them; a refusal is what the assistant said."""
    s = with_template(LISTS)
    assert render(s, {"role": "user", "content": [{"type": "input_text", "text": "a"}, *text("b")]},
                  {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []},
                                                    {"type": "refusal", "refusal": "no"}]}) == \
        "<user>ab<assistant>c\nno<assistant>"


def test_a_list_goes_on(with_template):
    s = with_template(LISTS.replace("'user' and", "'assistant' and") + "<end>")
    answer = {"role": "assistant", "content": text("It ", "is ")}
    assert render(s, {"role": "user", "content": text("x", "y")}, answer, continue_final_message=True) == \
        "<user>x\ny<assistant>It is "


@pytest.mark.parametrize("name,want", [
    ("Qwen3.5-4B", "<|im_start|>user\nabc<|im_end|>\n"),
    ("ibm-granite-granite-4.0", "<|start_of_role|>user<|end_of_role|>a\nb\nc<|end_of_text|>\n"),
    ("Qwen-Qwen2.5-7B-Instruct", "<|im_start|>user\na\nb\nc<|im_end|>\n"),
    ("meta-llama-Llama-3.2-3B-Instruct", "<|end_header_id|>\n\na\nb\nc<|eot_id|>"),
])
def test_templates_in_use(with_template, name, want):
    s = with_template(f"templates/{name}.jinja")
    user = {"role": "user", "content": text("a", "b", "c", cache_control={"type": "ephemeral"})}
    assert want in render(s, user)
    assert want.replace("a\nb\nc", "abc") in render(s, {"role": "user", "content": "abc"})


def test_developer(with_template):
    messages = [{"role": r, "content": r.upper()} for r in ("developer", "user")]
    s = with_template("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    assert render(s, *messages) == "<system>DEVELOPER<user>USER"
    s = with_template("templates/google-gemma-4-31B-it-interleaved.jinja")
    assert "<|turn>system\nDEVELOPER<turn|>" in render(s, *messages)


@pytest.mark.parametrize("name", ["Qwen3.5-4B", "mistralai-Mistral-Nemo-Instruct-2407", "google-gemma-2-2b-it",
                                  "NVIDIA-Nemotron-Nano-v2", "Qwen-Qwen2.5-7B-Instruct"])
def test_system_in_the_middle(with_template, name):
    """Nothing is refused and nothing lost, whether the template takes several, one, or none."""
    s = with_template(f"templates/{name}.jinja")
    words = ["first", "second", "question", "answer", "third", "again"]
    roles = ["system", "developer", "user", "assistant", "developer", "user"]
    shown = render(s, *({"role": r, "content": w} for r, w in zip(roles, words)))
    at = [shown.find(w) for w in words]
    assert min(at) >= 0, shown
    assert at == sorted(at) or "Mistral-Nemo" in name  # puts the system message before the last question


def test_no_messages(with_template, fake):
    """The template says whether there may be none."""
    assert render(fake) == "<|assistant|>"
    status, answer = fake.post("/v1/chat/completions", {"messages": [], "max_tokens": 2})
    assert status == 200 and answer["usage"]["completion_tokens"] == 2
    s = with_template("templates/Qwen3.5-4B.jinja")
    for path in "/v1/chat/completions", "/apply-template":
        status, answer = s.post(path, {"messages": []})
        assert status == 400 and answer["error"]["code"] == "template_error"
        assert answer["error"]["param"] == "messages" and "No messages provided" in answer["error"]["message"]
    s = with_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    status, answer = s.post("/v1/chat/completions", {"messages": []})
    assert status == 400 and answer["error"]["param"] == "messages" and "nothing" in answer["error"]["message"]


def test_parts_from_a_client(any_server):
    client = any_server.client()
    model = client.models.list().data[0].id
    said = [{"role": "user", "content": text("Hello", "there", cache_control={"type": "ephemeral"})}]
    answer = client.chat.completions.create(model=model, messages=said, max_tokens=4, temperature=0)
    assert answer.choices[0].message.content is not None and answer.usage.prompt_tokens > 4


def test_a_system_message_at_the_terminal():
    """A template that takes none gets it with the question, as from the server."""
    path = oracle("templates/google-gemma-2-2b-it.jinja")
    said = [subprocess.run([program(CONIFER), "run", "--model", tiny_model(), "--chat-template", str(path),
                            "--temperature", "0", "--max-tokens", "8", *args], check=True, timeout=60,
                           stdin=subprocess.DEVNULL, capture_output=True).stdout
            for args in (["--system", "Be brief.", "Hello"], ["Be brief.\n\nHello"], ["Hello"])]
    assert said[0] == said[1] != said[2]
