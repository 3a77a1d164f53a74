"""What can be no tool: names that no call could have, and more functions than may be offered."""
import pytest
from conftest import SERVER, Server, program


@pytest.fixture(scope="module")
def server():
    s = Server(program(SERVER), "null:")
    yield s
    s.wait_idle()
    s.stop()


def peak(server):
    """Bytes of memory that the server has had at once."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) << 10


@pytest.mark.parametrize("field", ["tools", "functions"])
def test_what_can_be_no_tool(server, field):
    """Names that no call could have, and more functions than may be offered, which cost nothing then."""
    def offer(names):
        functions = [{"name": n} for n in names]
        tools = [{"type": "function", "function": f} for f in functions]
        return server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1,
                                                    field: tools if field == "tools" else functions})
    for name in "a b", "a\n", "a<b", 'a"b', "a{b", "a\0b", "[", "f" * 257:
        status, a = offer(["g", name])
        assert status == 400, a
        assert a["error"]["param"] == ("tools[1].function.name" if field == "tools" else "functions[1].name"), a
    for name in "get-weather.v2:x/y", "読む", "f" * 256:
        assert offer([name])[0] == 200
    before = peak(server)
    status, a = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], field: [1] * 400000})
    assert status == 400 and a["error"]["param"] == field and "4096" in a["error"]["message"], a
    assert peak(server) - before < 80 << 20
