"""Chat answers in one shape, whole and streamed. A stream is put together as the official client does it, and
what would lead that astray is an error here."""
import json

from conftest import sse

CHAT = "/v1/chat/completions"


class Said:
    """A choice of an answer. calls: [(id, name, arguments)]."""

    def __init__(self):
        self.role, self.content, self.reasoning, self.calls, self.finish, self.legacy = None, "", "", [], None, None
        self.contents = [""]  # a stream's, as it grows
        self.arguments = []  # likewise, of each call

    def shape(self):
        """What whole and streamed answers have in common; ids are made anew each time."""
        return self.role, self.content, self.reasoning, [c[1:] for c in self.calls], self.finish, self.legacy

    def take(self, delta):
        assert set(delta) <= {"role", "content", "reasoning_content", "reasoning", "tool_calls", "function_call"}
        if "role" in delta:
            assert self.role is None, "the role comes once"
            self.role = delta["role"]
        assert self.role == "assistant"
        assert delta.get("reasoning") == delta.get("reasoning_content")
        self.reasoning += delta.get("reasoning") or ""
        if delta.get("content"):
            self.content += delta["content"]
            self.contents.append(self.content)
        seen = set()
        for call in delta.get("tool_calls", ()):
            self.take_call(call, seen)
        if "function_call" in delta:
            part = delta["function_call"]
            assert ("name" in part) == (self.legacy is None)
            self.legacy = self.legacy or {"name": part["name"], "arguments": ""}
            self.legacy["arguments"] += part["arguments"]

    def take_call(self, call, seen):
        index, function = call["index"], call["function"]
        assert index not in seen, "one part of a call in a chunk"
        seen.add(index)
        if index == len(self.calls):
            assert call["type"] == "function" and call["id"] and function["name"]
            self.calls.append((call["id"], function["name"], ""))
            self.arguments.append([""])
        else:
            assert index == len(self.calls) - 1, "calls come one after the other"
            assert "id" not in call and "name" not in function
        i, name, arguments = self.calls[index]
        self.calls[index] = (i, name, arguments + function["arguments"])
        self.arguments[index].append(self.calls[index][2])


def whole(server, body, n=1):
    """[Said], usage."""
    status, answer = server.post(CHAT, body)
    assert status == 200, (body, answer)
    out = []
    for index, choice in enumerate(answer["choices"]):
        said, m = Said(), choice["message"]
        assert choice["index"] == index and m.get("reasoning") == m.get("reasoning_content")
        said.role, said.content, said.finish = m["role"], m["content"] or "", choice["finish_reason"]
        said.reasoning, said.legacy = m.get("reasoning") or "", m.get("function_call")
        assert m["content"] is not None or m.get("tool_calls") or said.legacy, "null stands beside calls only"
        for call in m.get("tool_calls", ()):
            assert call["type"] == "function"
            said.calls.append((call["id"], call["function"]["name"], call["function"]["arguments"]))
        out.append(said)
    assert len(out) == n
    return out, answer["usage"]


def streamed(server, body, n=1):
    """The same from a stream, whose chunks are looked at one by one."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    status, _, data = server.http("POST", CHAT, body)
    assert status == 200, (body, data)
    events = sse(data)
    assert events.pop() == "[DONE]"
    out, usage = [Said() for _ in range(n)], None
    assert len({(e["id"], e["created"], e["model"]) for e in events if "error" not in e}) == 1, data
    for e in events:
        assert "error" not in e, e
        assert usage is None, "the usage comes last"
        if not e["choices"]:
            usage = e["usage"]
            assert all(s.finish for s in out)
            continue
        for choice in e["choices"]:
            said = out[choice["index"]]
            assert said.finish is None, "a choice ends once"
            said.take(choice["delta"])
            said.finish = choice["finish_reason"]
    return out, usage


def both(server, body, n=1):
    """The choices, which are the same whole and streamed; those of the stream."""
    a, b = whole(server, body, n), streamed(server, body, n)
    assert [s.shape() for s in a[0]] == [s.shape() for s in b[0]], body
    assert a[1]["completion_tokens"] == b[1]["completion_tokens"]
    for s in a[0] + b[0]:
        ids = [c[0] for c in s.calls]
        assert len(set(ids)) == len(ids)
    return b[0]


def values(said):
    """[(name, arguments as a value)]."""
    return [(name, json.loads(arguments)) for _, name, arguments in said.calls]
