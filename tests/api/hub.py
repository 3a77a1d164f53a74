"""A hub on loopback that does what hubs do wrong.

Files are bytes at a path; `rules` are functions that may answer a request in place of the hub, tried
in order; each sees (hub, request) and returns True when it did. What was asked is in `seen`.
"""
import hashlib
import http.server
import threading


def gguf(n, seed=1):
    """n bytes that begin as a GGUF file does."""
    import random
    return b"GGUF" + random.Random(seed).randbytes(n - 4)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        hub = self.server.hub
        self.close_connection = True
        with hub.lock:
            hub.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        try:
            for rule in list(hub.rules):
                if rule(hub, self):
                    return
            hub.serve(self)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def head(self, status, **headers):
        """Status line and headers; names have _ for -."""
        self.send_response(status)
        headers.setdefault("Connection", "close")
        for k, v in headers.items():
            if v is not None:
                self.send_header(k.replace("_", "-"), str(v))
        self.end_headers()

    def range(self):
        """First byte asked for, or None."""
        value = self.headers.get("Range", "")
        return int(value[6:].rstrip("-")) if value.startswith("bytes=") else None


class Hub:
    def __init__(self):
        self.files, self.rules, self.seen, self.lock = {}, [], [], threading.Lock()
        self.linked = True  # says X-Linked-ETag, as a hub does
        self.etags = {}
        self.closed = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.hub = self
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()

    def add(self, repo, path, data):
        self.files[f"/{repo}/resolve/main/{path}"] = data
        return f"hf:{repo}/{path}"

    def once(self, rule, times=1):
        """The rule, for so many requests that it answers."""
        left = [times]

        def limited(hub, r):
            if left[0] <= 0:
                return False
            left[0] -= 1  # before it answers, which may take until the test's end
            done = rule(hub, r)
            left[0] += not done
            return done
        self.rules.append(limited)

    def stall(self, sent):
        """A rule: so much of the file, and then nothing for as long as the hub is there."""
        def rule(hub, r):
            hub.serve(r, send=sent)
            hub.closed.wait(600)
            return True
        return rule

    def etag(self, path):
        return self.etags.get(path, '"' + hashlib.md5(self.files[path]).hexdigest() + '"')

    def serve(self, r, send=None, status=None, **headers):
        """The file as it should be; `send` cuts what is sent, headers are added or replaced."""
        path = r.path.split("?")[0]
        data = self.files.get(path)
        if data is None:
            r.head(404, Content_Length=0, X_Error_Message="Entry not found")
            return
        start, etag = r.range(), self.etag(path)
        if start is not None and r.headers.get("If-Range") not in (None, etag):
            start = None
        if start is not None and start >= len(data):
            r.head(416, Content_Range=f"bytes */{len(data)}", Content_Length=0)
            return
        body = data[start or 0:]
        more = {"ETag": etag, "Content_Length": len(body)}
        if self.linked:
            more["X_Linked_ETag"] = '"' + hashlib.sha256(data).hexdigest() + '"'
            more["X_Linked_Size"] = len(data)
        if start is not None:
            more["Content_Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        more.update(headers)
        r.head(status or (200 if start is None else 206), **more)
        r.wfile.write(body if send is None else body[:send])
        r.wfile.flush()

    def ranges(self):
        """The Range of each request so far."""
        return [h.get("range") for _, h in self.seen]
