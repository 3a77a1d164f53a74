"""Scripts for the null model (docs/NULL.md): the answers that a test wants from the model.

    path = script(tmp_path, answer(call("get_weather", city="Paris"), step=1), answer("It is sunny.", step=2))
    s = Server(program(SERVER), path, template=False)

`played` makes a script of the oracle's replies, so that a model of any family says them."""
import json

from conftest import oracle

GAP = "\u2021\u2021"  # the script's `break`: no reply contains it
# Tokens in vocabularies of which <|end|> ends a message, not a reply.
MORE = {"openai-gpt-oss-120b": ["<|call|>", "<|return|>"], "upstage-Solar-Open-100B": ["<|calls|>", "<|flush|>"]}
# What prompts of a family end with, besides marks of reasoning that the model knows.
ENDS = {"tencent-Hy3": ["<think:opensource>", "</think:opensource>"], "meetkai-functionary-medium-v3.2": [">>>"]}


def answer(text, **conditions):
    """A section. conditions: turn, step, user."""
    lines = ["\\" + line if line.startswith("=== ") else line for line in text.split("\n")]
    said = "".join(f" {name}={conditions[name]}" for name in ("turn", "step", "user") if name in conditions)
    return f"=== answer{said}\n" + "\n".join(lines) + "\n"


def call(name, **arguments):
    """The text of a call in the form of the built-in template."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def quoted(texts):
    return " ".join(f'"{t}"' if " " in t else t for t in texts)


def script(folder, *answers, name="script.txt", parameters="", **settings):
    """Writes a script and returns the model's path. settings: control, end ...; marks and others that are
    lists may be lists."""
    lines = [f"{key}: {quoted(value) if isinstance(value, list) else value}\n" for key, value in settings.items()]
    (folder / name).write_text("".join(lines) + "".join(answers), encoding="utf-8")
    return f"null:{parameters}script={folder / name}"


def tagged(messages, tag):
    """The conversation with a tag in the user's last message, by which the script finds the answer."""
    out = [dict(m) for m in messages]
    last = max(i for i, m in enumerate(out) if m["role"] == "user")
    out[last]["content"] += f" ({tag})"
    return out


def played(folder, form, cases=slice(None)):
    """A script with the replies of a form of oracle/tools: (the model's path, the form's file, its cases). The
    conversation of a case must be tagged with the case's name. Marks are tokens, so cases in which text spells
    a mark are left out: tests/text/test_calls.c has them."""
    doc = json.loads(oracle(f"tools/{form}.json").read_text(encoding="utf-8"))
    chosen = [c for c in doc["cases"] if "raw" in c and "own" not in c["name"] and "with_call" not in c["name"]][cases]
    bos, marks = doc["variables"]["bos_token"], doc["marks"]
    # A mark inside replies cannot end them as well.
    end = next((c["ended_by"] for c in chosen if c.get("ended_by") and c["ended_by"] not in marks), "<|im_end|>")
    answers = []
    for c in chosen:
        text = c["raw"].replace(end, GAP.join(end))
        answers.append(answer(text, user=f"({c['name']})"))
    path = script(folder, *answers, name=f"{form}.txt", parameters="context=65536,", marks=marks, bos=bos,
                  end=end, control=[t for t in MORE.get(form, []) if t not in marks],
                  prompt_ends=ENDS.get(form, []), template=oracle(f"templates/{doc['template']}.jinja"),
                  **{"break": GAP})
    return path, doc, chosen
