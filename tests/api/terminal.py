"""A terminal for tests: what a program wrote is what stands on its screen.

It knows the sequences that line editors use and fails on any other, wraps at its edge as xterm does
(the cursor stays in the last column until one more character comes), answers where its cursor is,
and on a resize either leaves its lines as they are (xterm, the Linux console) or wraps them anew
(most others)."""
import fcntl
import os
import re
import select
import struct
import termios
import time
import unicodedata

SEQUENCE = re.compile(rb"\x1b\[([?0-9;]*)([@-~])|\x1b([=>78])")


def width(c):
    return 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1


class Screen:
    def __init__(self, fd, rows, columns, rewraps):
        self.fd, self.rewraps = fd, rewraps
        self.rows, self.columns = rows, columns
        self.lines, self.soft = [[]], [False]  # from the first to the last; soft: goes on in the next
        self.y = self.x = 0  # y counts from the first line of all
        self.rest = b""
        self.asked = 0
        self.size()

    def size(self):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, self.columns, 0, 0))

    # ---- drawing

    def line(self, y):
        while len(self.lines) <= y:
            self.lines.append([])
            self.soft.append(False)
        return self.lines[y]

    def put(self, c):
        w = width(c)
        if self.x + w > self.columns:
            self.soft[self.y] = True
            self.y, self.x = self.y + 1, 0
        line = self.line(self.y)
        line.extend(" " * (self.x + w - len(line)))
        line[self.x:self.x + w] = [c] + [""] * (w - 1)
        self.x += w

    def clear(self, y, start, end=None):
        line = self.line(y)
        if end is None:
            del line[start:]
            self.soft[y] = False
        else:
            line[start:end] = " " * (min(end, len(line)) - start)

    def sequence(self, args, final):
        n = int(args) if args.isdigit() else 0
        line = self.line(self.y)
        at = min(self.x, self.columns - 1)
        if final == "A":
            self.y, self.x = max(self.y - max(n, 1), len(self.lines) - self.rows, 0), at
        elif final == "B":
            self.y, self.x = self.y + max(n, 1), at
        elif final == "C":
            self.x = min(at + max(n, 1), self.columns - 1)
        elif final == "D":
            self.x = max(at - max(n, 1), 0)
        elif final == "G":
            self.x = max(n, 1) - 1
        elif final == "K" and n == 0:
            self.clear(self.y, at)
        elif final == "J" and n == 0:
            self.clear(self.y, at)
            del self.lines[self.y + 1:], self.soft[self.y + 1:]
        elif final == "P":
            del line[at:at + max(n, 1)]
        elif final == "@":
            line[at:at] = " " * max(n, 1)
            del line[self.columns:]
        elif final == "n" and n == 6:
            self.asked += 1
            top = max(len(self.lines) - self.rows, 0)
            os.write(self.fd, b"\x1b[%d;%dR" % (self.y - top + 1, at + 1))
        elif final not in "mhl":
            raise AssertionError(f"unknown sequence ESC [ {args} {final}")
        self.line(self.y)

    def feed(self, data):
        data = self.rest + data
        self.rest = b""
        i = 0
        while i < len(data):
            c = data[i]
            if c == 0x1b:
                m = SEQUENCE.match(data, i)
                if not m:
                    self.rest = data[i:]
                    assert len(self.rest) < 16, self.rest
                    return
                if m[2]:
                    self.sequence(m[1].decode(), m[2].decode())
                i = m.end()
                continue
            if c == 13:
                self.x = 0
            elif c == 10:
                self.y += 1
                self.line(self.y)
            elif c == 8:
                self.x = max(min(self.x, self.columns - 1) - 1, 0)
            elif c >= 32:
                n = 1 if c < 0x80 else 2 if c < 0xe0 else 3 if c < 0xf0 else 4
                if i + n > len(data):
                    self.rest = data[i:]
                    return
                self.put(data[i:i + n].decode())
                i += n - 1
            elif c != 7:
                raise AssertionError(f"unknown control {c}")
            i += 1

    # ---- what a test does

    def run(self, quiet=0.3, until=None, seconds=60):
        """Takes what comes until `until` stands on the screen and nothing came for a while."""
        end = time.time() + seconds
        while time.time() < end:
            if select.select([self.fd], [], [], quiet)[0]:
                self.feed(os.read(self.fd, 65536))
            elif until is None or until in self.text():
                return
        raise AssertionError(f"no {until!r} on the screen:\n{self.text()}")

    def resize(self, columns):
        if self.rewraps:
            self.rewrap(columns)
        else:
            for line in self.lines:
                del line[columns:]
            self.x = min(self.x, columns - 1)
        self.columns = columns
        self.size()

    def rewrap(self, columns):
        old, soft, y, x = self.lines, self.soft, self.y, self.x
        self.lines, self.soft = [], []
        whole, at = [], None
        for i, line in enumerate(old):
            if i == y:
                at = len(whole) + x
            whole += line
            if soft[i]:
                continue
            first, row = len(self.lines), 0
            self.lines.append([])
            self.soft.append(False)
            for c in [c for c in whole if c != ""]:
                w = width(c)
                if len(self.lines[-1]) + w > columns:
                    self.soft[-1] = True
                    self.lines.append([])
                    self.soft.append(False)
                    row += 1
                self.lines[-1] += [c] + [""] * (w - 1)
            if at is not None:
                self.y, self.x = first + at // columns, at % columns
                self.columns = columns
                self.line(self.y)
                at = None
            whole = []

    def text(self):
        return "\n".join("".join(line).rstrip() for line in self.lines).rstrip("\n")

    def wrapped(self, text):
        """A text of narrow characters as it should stand here."""
        return "\n".join(text[i:i + self.columns].rstrip() for i in range(0, len(text), self.columns))
