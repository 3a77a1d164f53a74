#!/usr/bin/env python3
"""Renders conversations with lists of text parts, system messages in odd places and calls through the chat
templates of the reference data, with the common chat-template renderer itself (transformers): the
expectations of test_parts_cases.c. The templates are other people's work, so only hashes are kept.
usage: make_parts_cases.py ORACLE/templates > parts_cases.json      (pip install transformers jinja2)

What a message should become is decided here from renderings of the reference and the rules of docs/API.md,
not from what the server does: a role takes lists if the reference renders a list of it with all texts in
order and no name of a member beside them."""
import copy
import datetime
import json
import pathlib
import sys
import types

import transformers.utils.chat_template_utils as renderer


class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 3, 4, 5)


renderer.datetime = Fixed
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Look up a word", "parameters": {
    "type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}}}


def parts(*texts, **more):
    return [{"type": "text", "text": t, **more} for t in texts]


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def user(content):
    return message("user", content)


def assistant(content, **more):
    return message("assistant", content, **more)


def system(content):
    return message("system", content)


def call(number=1, word="oak"):
    return {"id": f"call0000{number}", "type": "function",
            "function": {"name": "look_up", "arguments": {"word": word}}}


def result(content, number=1):
    return message("tool", content, tool_call_id=f"call0000{number}", name="look_up")


AB = ("first words", "then others")
ODD = ("it's \"quoted\" {braced} [listed]", "'text': \"type\"", " edges \n")
CALLED = assistant("", tool_calls=[call()])
CONVERSATIONS = {
    "user": [user(parts(*AB))],
    "user_one": [user(parts("alone"))],
    "user_none": [user([])],
    "user_blank": [user(parts("", "said", ""))],
    "user_many": [user(parts(*[f"piece {i}" for i in range(20)]))],
    "user_odd": [user(parts(*ODD))],
    "user_members": [user(parts(*AB, cache_control={"type": "ephemeral"}))],
    "user_again": [user(parts(*AB)), assistant("yes"), user(parts("more", "and more"))],
    "user_string": [user("as it is"), assistant("yes"), user(parts(*AB))],
    "system": [system(parts(*AB)), user("x")],
    "system_members": [system(parts(*AB, cache_control={"type": "ephemeral"})), user(parts("x"))],
    "assistant": [user("x"), assistant(parts(*AB)), user("y")],
    "assistant_odd": [user("x"), assistant(parts(*ODD)), user("y")],
    "assistant_last": [user("x"), assistant(parts(*AB))],
    "assistant_calls": [user("x"), assistant(parts(*AB), tool_calls=[call()]), result("a tree")],
    "tool": [user("x"), CALLED, result(parts(*AB))],
    "tool_one": [user("x"), CALLED, result(parts("a tree"))],
    "tool_string": [user(parts(*AB)), CALLED, result("a tree"), assistant("so"), user(parts("y"))],
    "all": [system(parts(*AB)), user(parts("u", "v")), assistant(parts("w", "s")), user("t"),
            CALLED, result(parts("r", "q")), assistant("p"), user(parts("o"))],
    "developer": [message("developer", "Be brief."), user("x")],
    "developer_parts": [message("developer", parts(*AB)), user("x")],
    "system_twice": [system("One."), system(parts("Two.", "Three.")), user("x")],
    "system_developer": [system("One."), message("developer", "Two."), user("x")],
    "system_middle": [system("One."), user("x"), assistant("y"), system("Two."), user("z")],
    "system_middle_parts": [user("x"), assistant("y"), system(parts("Two.", "Three.")),
                            message("developer", "Four."), user(parts("z", "w"))],
    "system_last": [user("x"), system("One.")],
    "system_after_answer": [user("x"), assistant("y"), system("One.")],
    "system_before_result": [user("x"), CALLED, system("One."), result("a tree"), assistant("y"),
                             user("z")],
    "system_after_result": [user("x"), CALLED, result("a tree"), system("One."), assistant("y"),
                            user("z")],
    "strings": [system("One."), user("x"), CALLED, result("a tree"), assistant("y"), user("z")],
}


def loosen(env):
    """Lets through what the renderer refuses although templates need it: those of Kimi K2 change lists, one of
    DeepSeek R1 prints a generator."""
    safe, tojson = env.is_safe_attribute, env.filters["tojson"]
    env.is_safe_attribute = lambda obj, name, value: \
        (isinstance(obj, list) and name in ("append", "pop")) or safe(obj, name, value)
    env.filters["tojson"] = lambda x, *args, **kw: \
        tojson(list(x) if isinstance(x, types.GeneratorType) else x, *args, **kw)


class Template:
    def __init__(self, text):
        self.text = text
        self.compiled = renderer._compile_jinja_template(text)
        loosen(self.compiled.environment)
        self.tools = None
        if self.render([user("x")]) is None:  # one for nothing but tools
            self.tools = [TOOL]
        self.parts = {role: self.takes_parts(name, role) for name, role in (
            ("system", "system"), ("user", "user"), ("assistant", "assistant"), ("tool", "tool"))}
        self.developer = "'developer'" in text or '"developer"' in text
        self.system = "SYS" in (self.render([system("SYS"), user("x")]) or "")
        self.systems = self.system and in_order(self.render(
            [system("SYSA"), system("SYSB"), user("x"), assistant("y"), system("SYSC"), user("z")]),
            ("SYSA", "SYSB", "SYSC"))
        self.user_after_result = self.render([user("x"), CALLED, result("r"), user("y")]) is not None

    def render(self, messages):
        messages = copy.deepcopy(messages)
        tools = [TOOL] if any(m.get("tool_calls") for m in messages) else self.tools
        last = messages[-1]["role"]
        try:
            return self.compiled.render(messages=messages, tools=tools, documents=None,
                                        add_generation_prompt=last != "assistant", bos_token="<BOS>",
                                        eos_token="<EOS>", pad_token="<PAD>", unk_token="<UNK>")
        except Exception:  # whatever a template stumbles over
            return None

    def takes_parts(self, name, role):
        listed, joined = self.render(CONVERSATIONS[name]), self.render(
            [join(m) for m in CONVERSATIONS[name]])
        if listed is None or not in_order(listed, AB):
            return False
        return all(listed.count(q + word + q) == (joined or "").count(q + word + q)
                   for q in "'\"" for word in ("text", "type"))


def in_order(text, words):
    at = -1
    for w in words:
        at = (text or "").find(w, at + 1)
        if at < 0:
            return False
    return True


def text_of(m):
    content = m["content"]
    return content if isinstance(content, str) else "\n".join(p["text"] for p in content if p["text"])


def join(m):
    return {**m, "content": text_of(m)}


def paragraphs(*texts):
    return "\n\n".join(t for t in texts if t)


def place_systems(t, messages):
    """One system message at the beginning, or none; the others are the user's text."""
    def is_system(m):
        return m["role"] in ("system", "developer")

    first = 0
    while t.system and first < len(messages) and is_system(messages[first]):
        first += 1
    out = messages[:first]
    if first > 1:
        out = [{**messages[0], "content": paragraphs(*map(text_of, out))}]
    late = []

    def put(before):
        if not late:
            return
        text = paragraphs(*late)
        late.clear()
        if out and (out[-1]["role"] == "user" or out[-1]["role"] == "tool" and not t.user_after_result):
            out[-1] = {**out[-1], "content": paragraphs(text_of(out[-1]), text)}
        elif before and before["role"] == "user":
            before["content"] = paragraphs(text, text_of(before))
        else:
            out.append(user(text))

    for m in map(dict, messages[first:]):
        if is_system(m):
            late.append(text_of(m))
            continue
        if m["role"] != "tool":
            put(m)
        out.append(m)
    put(None)
    return out


def fit(t, messages):
    out = copy.deepcopy(messages)
    for m in out:
        if m["role"] == "developer" and not t.developer:
            m["role"] = "system"
    if not t.systems:
        out = place_systems(t, out)
    return [m if t.parts["system" if m["role"] == "developer" else m["role"]] else join(m) for m in out]


def as_text(messages):
    """Arguments as JSON text, for templates that fail with an object."""
    out = copy.deepcopy(messages)
    for c in (c for m in out for c in m.get("tool_calls", [])):
        c["function"]["arguments"] = json.dumps(c["function"]["arguments"])
    return out


def digest(text):
    """FNV-1a of 64 bits."""
    h = 0xcbf29ce484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{h:016x}"


def expect(t, messages):
    fitted = fit(t, messages)
    text = t.render(fitted)
    if text is None:
        text = t.render(as_text(fitted))
    lists = sum(isinstance(m["content"], list) for m in fitted)
    # with a list in it, without any, or refused by the reference
    return None if text is None else ("list " if lists else "text ") + digest(text)


def main():
    templates = {}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        t = Template(path.read_text("utf-8"))
        templates[path.stem] = {"tools": t.tools is not None,
                                "cases": {k: expect(t, m) for k, m in CONVERSATIONS.items()}}
        print(path.stem, t.parts, t.developer, t.system, t.systems, file=sys.stderr)
    json.dump({"now": "2026-01-02T03:04:05", "tool": TOOL, "conversations": CONVERSATIONS, "templates": templates},
              sys.stdout, indent=0, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
