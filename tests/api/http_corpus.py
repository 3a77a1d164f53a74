"""Requests that servers get wrong: what Http11Probe and the request-smuggling literature send, for
this server's endpoints. Each case: (name, bytes, what must come back).

  400, 501 ..   exactly that status, and the connection is closed
  REFUSED       an answer from 400 to 499, 501 or 505, or a close; nothing is handled
  OK            200
  EITHER        one of both
  WAITS         not whole: 408 or a close once the time is over
Names are those of Http11Probe in lower case where the case is one of its own."""

REFUSED, OK, EITHER, WAITS = "refused", "ok", "either", "waits"
HOST = b"Host: localhost\r\n"
BODY = b'{"prompt":""}'  # /tokenize answers it; 13 bytes, 0xd
N = b"%d" % len(BODY)
TE = b"Transfer-Encoding: chunked\r\n"
GET = b"GET /health/live HTTP/1.1\r\n" + HOST + b"\r\n"


def get(target=b"/health/live", headers=b"", version=b"HTTP/1.1", method=b"GET", host=HOST):
    return method + b" " + target + b" " + version + b"\r\n" + host + headers + b"\r\n"


def post(headers, body=BODY, version=b"HTTP/1.1", method=b"POST"):
    return get(b"/tokenize", headers, version, method) + body


def length(value, body=BODY, more=b""):
    return post(more + b"Content-Length:" + value + b"\r\n", body)


def coding(value, body=b"0\r\n\r\n", more=b""):
    return post(b"Transfer-Encoding:" + value + b"\r\n" + more, body)


def chunks(*parts, end=b"0\r\n\r\n"):
    return post(TE, b"".join(parts) + end)


def chunk(size=b"d", data=BODY, ext=b"", eol=b"\r\n"):
    return size + ext + b"\r\n" + data + eol


BOTH = b"Content-Length: " + N + b"\r\n"
SMUGGLED = b"0\r\n\r\n" + GET

LENGTHS = [
    ("duplicate-cl", length(b" 13\r\nContent-Length: 14"), 400),
    ("duplicate-cl-same", length(b" 13\r\nContent-Length: 13"), 400),
    ("duplicate-cl-smuggled-get", length(b" 4\r\nContent-Length: %d" % len(SMUGGLED), SMUGGLED), 400),
    ("cl-comma-different", length(b" 13, 14"), 400),
    ("cl-comma-same", length(b" 13, 13"), 400),
    ("cl-comma-triple", length(b" 13, 13, 13"), 400),
    ("cl-leading-zeros", length(b" 0013"), 400),
    ("cl-double-zero", length(b" 00", b""), 400),
    ("cl-negative", length(b" -1"), 400),
    ("cl-negative-zero", length(b" -0", b""), 400),
    ("cl-plus-sign", length(b" +13"), 400),
    ("cl-octal", length(b" 0o15"), 400),
    ("cl-hex-prefix", length(b" 0xd"), 400),
    ("cl-hex", length(b" d"), 400),
    ("cl-underscore", length(b" 1_3"), 400),
    ("cl-internal-space", length(b" 1 3"), 400),
    ("cl-fraction", length(b" 13.0"), 400),
    ("cl-exponent", length(b" 1e1"), 400),
    ("cl-non-numeric", length(b" abc"), 400),
    ("cl-empty", length(b""), 400),
    ("cl-blank", length(b" "), 400),
    ("cl-overflow", length(b" 99999999999999999999"), 400),
    ("cl-overflow-to-13", length(b" 18446744073709551629"), 400),
    ("cl-semicolon", length(b" 13;"), 400),
    ("cl-quoted", length(b' "13"'), 400),
    ("cl-nul", length(b" 13\0"), 400),
    ("cl-vertical-tab", length(b" \x0b13"), 400),
    ("cl-utf8-digits", length(" １３".encode()), 400),
    ("cl-obs-fold", length(b"\r\n 13"), 400),
    ("cl-space-before-colon", post(b"Content-Length : 13\r\n"), 400),
    ("cl-tab-before-value", length(b"\t13"), OK),
    ("cl-extra-leading-space", length(b"  13"), OK),
    ("cl-trailing-space", length(b" 13 "), OK),
    ("cl-name-underscore", get(headers=b"Content_Length: 13\r\n"), OK),
    ("post-cl-huge-no-body", length(b" 999999999", b""), 413),
    ("post-cl-undersend", length(b" 20"), WAITS),
    ("cl-2-63", length(b" 9223372036854775808"), REFUSED),
]

CODINGS = [
    ("cl-te-both", post(BOTH + TE, b"0\r\n\r\n"), 400),
    ("te-cl-both", post(TE + BOTH, b"0\r\n\r\n"), 400),
    ("clte-smuggled-get", post(b"Content-Length: %d\r\n" % len(SMUGGLED) + TE, SMUGGLED), 400),
    ("clte-smuggled-get-cl-plus", post(b"Content-Length: +%d\r\n" % len(SMUGGLED) + TE, SMUGGLED), 400),
    ("clte-smuggled-get-cl-non-numeric", post(b"Content-Length: %dx\r\n" % len(SMUGGLED) + TE, SMUGGLED),
     400),
    ("clte-desync", post(b"Content-Length: 6\r\n" + TE, b"0\r\n\r\nX"), 400),
    ("tecl-desync", post(TE + b"Content-Length: 30\r\n", b"0\r\n\r\nX"), 400),
    ("tecl-smuggled-get", post(TE + b"Content-Length: 4\r\n", b"%x\r\n" % len(GET) + GET + b"\r\n0\r\n\r\n"),
     400),
    ("te-xchunked", coding(b" xchunked"), REFUSED),
    ("te-xchunked-cl", coding(b" xchunked", BODY, BOTH), REFUSED),
    ("te-trailing-space-cl", coding(b" chunked ", BODY, BOTH), 400),
    ("te-space-before-colon", post(b"Transfer-Encoding : chunked\r\n" + BOTH), 400),
    ("te-double-chunked", coding(b" chunked, chunked"), REFUSED),
    ("te-double-chunked-cl", coding(b" chunked, chunked", BODY, BOTH), 400),
    ("te-not-final-chunked", coding(b" chunked, gzip"), 400),
    ("te-gzip-chunked", coding(b" gzip, chunked"), 501),
    ("te-gzip", coding(b" gzip", b""), REFUSED),
    ("te-identity", coding(b" identity", b""), REFUSED),
    ("te-identity-cl", coding(b" identity", BODY, BOTH), REFUSED),
    ("te-http10", post(TE, b"0\r\n\r\n", b"HTTP/1.0"), 400),
    ("te-http10-cl", post(TE + BOTH, BODY, b"HTTP/1.0"), 400),
    ("te-empty-value", coding(b" ", BODY, BOTH), 400),
    ("te-empty", coding(b""), REFUSED),
    ("te-leading-comma", coding(b" , chunked"), REFUSED),
    ("te-trailing-comma", coding(b" chunked,"), REFUSED),
    ("te-semicolon", coding(b" chunked;q=1"), REFUSED),
    ("te-quoted", coding(b' "chunked"'), REFUSED),
    ("te-duplicate-headers", post(TE + b"Transfer-Encoding: identity\r\n" + BOTH), 400),
    ("te-duplicate-same", post(TE + TE, b"0\r\n\r\n"), REFUSED),
    ("te-vtab", coding(b" \x0bchunked", BODY, BOTH), 400),
    ("te-formfeed", coding(b" \x0cchunked", BODY, BOTH), 400),
    ("te-null", coding(b" chunked\0", BODY, BOTH), 400),
    ("te-high-byte", coding(b" chunked\xa0", BODY, BOTH), REFUSED),
    ("te-obs-fold", coding(b"\r\n chunked", BODY, BOTH), 400),
    ("options-te-obs-fold", get(b"/tokenize", b"Transfer-Encoding:\r\n chunked\r\n" + BOTH, method=b"OPTIONS")
     + BODY, 400),
    ("te-tab-before-value-cl", coding(b"\tchunked", BODY, BOTH), 400),
    ("te-tab-before-value", coding(b"\tchunked", chunk() + b"0\r\n\r\n"), OK),
    ("te-case", coding(b" CHUNKED", chunk() + b"0\r\n\r\n"), OK),
    ("te-case-cl", coding(b" Chunked", BODY, BOTH), 400),
    ("te-name-underscore", post(b"Transfer_Encoding: chunked\r\n" + BOTH), EITHER),
]

CHUNKS = [
    ("chunked-body", chunks(chunk()), OK),
    ("chunked-multi", chunks(chunk(b"5", BODY[:5]), chunk(b"8", BODY[5:])), OK),
    ("chunked-hex-uppercase", chunks(chunk(b"D")), OK),
    ("chunk-leading-zeros", chunks(chunk(b"000d")), OK),
    ("chunked-extension", chunks(chunk(ext=b";ext=value")), OK),
    ("chunked-extension-quoted", chunks(chunk(ext=b';ext="a;b"')), OK),
    ("chunked-trailer-valid", chunks(chunk(), end=b"0\r\nX-Checksum: abc\r\n\r\n"), OK),
    ("chunked-no-final", chunks(chunk(), end=b""), WAITS),
    ("chunk-bare-semicolon", chunks(chunk(ext=b";")), 400),
    ("chunk-ext-invalid-token", chunks(chunk(ext=b";bad[=x")), 400),
    ("chunk-ext-ctrl", chunks(chunk(ext=b";\0")), 400),
    ("chunk-ext-cr", chunks(chunk(ext=b";a\rb")), 400),
    ("chunk-ext-lf", post(TE, b"d;\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("chunk-ext-64k", chunks(chunk(ext=b";ext=" + b"x" * 65536)), 400),
    ("chunk-size-empty", chunks(chunk(b"")), 400),
    ("chunk-underscore", chunks(chunk(b"0_d")), 400),
    ("chunk-hex-prefix", chunks(chunk(b"0xd")), 400),
    ("chunk-size-plus", chunks(chunk(b"+d")), 400),
    ("chunk-negative", chunks(chunk(b"-1")), 400),
    ("chunk-size-trailing-ows", chunks(chunk(b"d ")), 400),
    ("chunk-size-trailing-tab", chunks(chunk(b"d\t")), 400),
    ("chunk-leading-sp", chunks(chunk(b" d")), 400),
    ("chunk-size-overflow", chunks(chunk(b"FFFFFFFFFFFFFFFF0")), 400),
    ("chunk-size-overflow-to-13", chunks(chunk(b"1000000000000000d")), 400),
    ("chunk-size-huge", chunks(chunk(b"7fffffffffffffff")), 413),
    ("chunk-size-g", chunks(chunk(b"g")), 400),
    ("chunk-size-nul", chunks(chunk(b"d\0")), 400),
    ("chunk-missing-trailing-crlf", chunks(chunk(eol=b"")), 400),
    ("chunk-spill", chunks(chunk(data=BODY + b"!!")), 400),
    ("chunk-lf-term", chunks(chunk(eol=b"\n")), 400),
    ("chunk-cr-term", chunks(chunk(eol=b"\r")), 400),
    ("chunk-bare-cr-size", post(TE, b"d\r" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("chunk-bare-lf-size", post(TE, b"d\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    ("chunk-lf-trailer", chunks(chunk(), end=b"0\r\n\n"), 400),
    ("chunk-invalid-size-desync", post(TE, b"+0\r\n\r\nX"), 400),
    ("trailer-obs-fold", chunks(chunk(), end=b"0\r\nX: a\r\n b\r\n\r\n"), 400),
    ("trailer-no-colon", chunks(chunk(), end=b"0\r\nnonsense\r\n\r\n"), 400),
    ("trailer-nul", chunks(chunk(), end=b"0\r\nX: a\0\r\n\r\n"), 400),
    ("trailer-cl", chunks(chunk(), end=b"0\r\nContent-Length: 50\r\n\r\n"), EITHER),
    ("trailer-te", chunks(chunk(), end=b"0\r\nTransfer-Encoding: chunked\r\n\r\n"), EITHER),
    ("trailer-host", chunks(chunk(), end=b"0\r\nHost: evil.example.com\r\n\r\n"), OK),
    ("trailer-auth", chunks(chunk(), end=b"0\r\nAuthorization: Bearer evil\r\n\r\n"), OK),
    ("trailer-content-type", chunks(chunk(), end=b"0\r\nContent-Type: text/evil\r\n\r\n"), OK),
    ("trailers-64k", chunks(chunk(), end=b"0\r\n" + b"X: y\r\n" * 11000 + b"\r\n"), REFUSED),
]

LINES = [
    ("baseline", get(), OK),
    ("leading-crlf", b"\r\n\r\n" + get(), OK),
    ("bare-lf-request-line", b"GET /health/live HTTP/1.1\n" + HOST + b"\r\n", 400),
    ("bare-lf-header", get(headers=b"X-Test: value\nY: z\r\n"), 400),
    ("bare-lf-end", b"GET /health/live HTTP/1.1\r\n" + HOST + b"\n", 400),
    ("cr-only-line-ending", b"GET /health/live HTTP/1.1\r" + HOST + b"\r\n", 400),
    ("double-cr", b"GET /health/live HTTP/1.1\r\r\n" + HOST + b"\r\n", 400),
    ("multi-sp-request-line", b"GET  /health/live HTTP/1.1\r\n" + HOST + b"\r\n", EITHER),
    ("multi-sp-version", b"GET /health/live  HTTP/1.1\r\n" + HOST + b"\r\n", EITHER),
    ("trailing-sp-version", b"GET /health/live HTTP/1.1 \r\n" + HOST + b"\r\n", REFUSED),
    ("request-line-tab", b"GET\t/health/live HTTP/1.1\r\n" + HOST + b"\r\n", REFUSED),
    ("leading-sp", b" GET /health/live HTTP/1.1\r\n" + HOST + b"\r\n", REFUSED),
    ("space-in-target", get(b"/health /live"), 400),
    ("missing-target", b"GET HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    ("http09-request", b"GET /health/live\r\n\r\n", REFUSED),
    ("invalid-version", get(version=b"HTTP/9.9"), REFUSED),
    ("http12-version", get(version=b"HTTP/1.2"), EITHER),
    ("http2-version", get(version=b"HTTP/2.0"), REFUSED),
    ("http11-as-10-digits", get(version=b"HTTP/1.10"), 400),
    ("version-missing-minor", get(version=b"HTTP/1"), 400),
    ("version-leading-zeros", get(version=b"HTTP/01.01"), 400),
    ("version-whitespace", get(version=b"HTTP/ 1.1"), 400),
    ("version-case", get(version=b"http/1.1"), 400),
    ("version-other", get(version=b"HTPP/1.1"), 400),
    ("method-case", get(method=b"get"), REFUSED),
    ("unknown-method", get(method=b"FOOBAR"), REFUSED),
    ("method-with-brackets", get(method=b"G[T"), REFUSED),
    ("long-method", get(method=b"A" * 100000), REFUSED),
    ("method-connect", get(b"localhost:443", method=b"CONNECT"), REFUSED),
    ("method-trace", get(method=b"TRACE", headers=b"Authorization: Bearer secret\r\n"), REFUSED),
    ("h2-preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", REFUSED),
    ("whitespace-only-line", b"   \r\n\r\n", REFUSED),
    ("binary-garbage", bytes((i * 167 + 13) % 256 for i in range(256)), REFUSED),
    ("incomplete-request", get()[:-4], WAITS),
    ("empty-request", b"", WAITS),
    ("http10-no-host", b"GET /health/live HTTP/1.0\r\n\r\n", OK),
    ("http10-connection-close", get(version=b"HTTP/1.0"), OK),
]

TARGETS = [
    ("asterisk-with-get", get(b"*"), 400),
    ("options-star", get(b"*", method=b"OPTIONS"), EITHER),
    ("fragment-in-target", get(b"/health/live#frag"), 400),
    ("url-backslash", get(b"/health\\live"), 400),
    ("url-percent-null", get(b"/health/live%00"), 400),
    ("url-percent-crlf", get(b"/health/live%0d%0aX-Injected:%20true"), 400),
    ("url-percent-half", get(b"/health/live%4"), 400),
    ("url-percent-nonsense", get(b"/health/live%zz"), 400),
    ("url-overlong-utf8", get(b"/health\xc0\xaflive"), 400),
    ("non-ascii-url", get("/health/live\u00e9".encode()), 400),
    ("nul-in-url", get(b"/\0test"), 400),
    ("control-in-url", get(b"/health/live\x07"), 400),
    ("quote-in-url", get(b'/health/live"'), 400),
    ("long-url", get(b"/" + b"x" * 100000), REFUSED),
    ("long-url-ok", get(b"/health/live?" + b"x" * 7900), OK),
    ("absolute-form", get(b"http://localhost/health/live"), OK),
    ("absolute-uri-host-mismatch", get(b"http://other.example.com/health/live"), 400),
    ("absolute-userinfo", get(b"http://u:p@localhost/health/live"), 400),
    ("absolute-other-scheme", get(b"ftp://localhost/health/live"), 400),
    ("absolute-empty-host", get(b"http:///health/live"), 400),
    ("authority-form-with-get", get(b"localhost:80"), 400),
    ("relative", get(b"health/live"), 400),
]

HEADERS = [
    ("obs-fold", get(headers=b"X-Test: value\r\n continued\r\n"), 400),
    ("obs-fold-tab", get(headers=b"X-Test: value\r\n\tcontinued\r\n"), 400),
    ("sp-before-colon", get(headers=b"X-Test : value\r\n"), 400),
    ("tab-before-colon", get(headers=b"X-Test\t: value\r\n"), 400),
    ("whitespace-before-headers", b"GET /health/live HTTP/1.1\r\n \r\n" + HOST + b"\r\n", 400),
    ("empty-header-name", get(headers=b": empty-name\r\n"), 400),
    ("invalid-header-name", get(headers=b"Bad[Name: value\r\n"), 400),
    ("header-name-space", get(headers=b"Bad Name: value\r\n"), 400),
    ("header-name-nul", get(headers=b"Bad\0Name: value\r\n"), 400),
    ("non-ascii-header-name", get(headers="X-T\u00ebst: value\r\n".encode()), 400),
    ("header-no-colon", get(headers=b"NoColonHere\r\n"), 400),
    ("bare-cr-header-value", get(headers=b"X-Test: val\rue\r\n"), 400),
    ("nul-in-header-value", get(headers=b"X-Test: val\0ue\r\n"), 400),
    ("control-chars-header", get(headers=b"X-Test: abc\x07\x08\x0bdef\r\n"), 400),
    ("delete-in-header", get(headers=b"X-Test: a\x7fb\r\n"), 400),
    ("high-bytes-in-header", get(headers=b"X-Test: caf\xe9\r\n"), EITHER),
    ("long-header-value", get(headers=b"X-Big: " + b"x" * 100000 + b"\r\n"), 431),
    ("long-header-name", get(headers=b"x" * 100000 + b": val\r\n"), REFUSED),
    ("many-headers", get(headers=b"".join(b"X-H-%d: value\r\n" % i for i in range(10000))), 431),
    ("missing-host", b"GET /health/live HTTP/1.1\r\n\r\n", 400),
    ("duplicate-host", get(headers=b"Host: other.example.com\r\n"), 400),
    ("duplicate-host-same", get(headers=HOST), 400),
    ("host-with-userinfo", get(host=b"Host: user@localhost\r\n"), 400),
    ("host-with-path", get(host=b"Host: localhost/path\r\n"), 400),
    ("host-with-query", get(host=b"Host: localhost?x\r\n"), 400),
    ("host-empty-value", get(host=b"Host: \r\n"), 400),
    ("multiple-host-comma", get(host=b"Host: localhost, other.example.com\r\n"), 400),
    ("host-bad-port", get(host=b"Host: localhost:x\r\n"), 400),
    ("host-large-port", get(host=b"Host: localhost:65536\r\n"), 400),
    ("host-open-bracket", get(host=b"Host: [::1\r\n"), 400),
    ("host-space-before-colon", get(host=b"Host : localhost\r\n"), 400),
    ("host-nul", get(host=b"Host: localhost\0\r\n"), 400),
    ("duplicate-content-type", post(BOTH + b"Content-Type: text/plain\r\nContent-Type: application/json\r\n"), 400),
    ("unsupported-content-type", post(BOTH + b"Content-Type: application/x-nonsense\r\n"), 415),
    ("expect-unknown", get(headers=b"Expect: 200-ok\r\n"), 417),
    ("upgrade-post", post(BOTH + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"), OK),
    ("upgrade-unknown", get(headers=b"Connection: Upgrade\r\nUpgrade: totally-made-up/1.0\r\n"), OK),
    ("upgrade-h2c", get(headers=b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
                        b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n"), OK),
    ("upgrade-missing-connection", get(headers=b"Upgrade: websocket\r\n"), OK),
    ("range-overlapping", get(headers=b"Range: bytes=" + b",".join([b"0-"] * 1000) + b"\r\n"), OK),
    ("range-invalid", get(headers=b"Range: bytes=abc-xyz\r\n"), OK),
    ("accept-nonsense", get(headers=b"Accept: application/x-nonsense\r\n"), OK),
    ("connection-nonsense", get(headers=b"Connection: ,,;=\r\n"), EITHER),
    ("get-with-cl-body", get(headers=BOTH) + BODY, OK),
    ("get-with-chunked-body", get(headers=TE) + chunk() + b"0\r\n\r\n", OK),
    ("head-cl-body", get(headers=BOTH, method=b"HEAD") + BODY, OK),
]

CASES = LENGTHS + CODINGS + CHUNKS + LINES + TARGETS + HEADERS
assert len({name for name, _, _ in CASES}) == len(CASES)
