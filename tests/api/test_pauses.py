"""A machine that is put to sleep, or moved, holds all of the server still: that is no client's fault."""
import signal
import threading
import time

BODY = b'{"prompt":"' + b"a" * (6 << 20) + b'","max_tokens":1}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" \
       b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(BODY)


def test_a_body_that_could_not_be_sent(start):
    """More than a connection holds unread: its client could send nothing in the pause."""
    s = start("--set", "server.body_grace_s=1", "--set", "server.body_min_rate=4000000")
    with s.connect() as c:
        c.sendall(HEAD + BODY[:1000])
        time.sleep(0.3)
        s.process.send_signal(signal.SIGSTOP)
        rest = threading.Thread(target=c.sendall, args=(BODY[1000:],))
        rest.start()
        time.sleep(4)
        s.process.send_signal(signal.SIGCONT)
        rest.join()
        answer = b""
        while piece := c.recv(65536):
            answer += piece
    assert b"408" not in answer.split(b"\r\n")[0] and answer.startswith(b"HTTP/1.1 "), answer[:300]
