#!/usr/bin/env python3
"""Writes presplit.json: how Python's `regex` module (pip install regex) cuts texts by the
pre-tokenisers' expressions. test_presplit.c compares; run this only to add texts or kinds.

The expressions are the models' own, in the flavour of that module, written independently of
engine/text/pretokenizers.def. A text's pieces are given as their lengths in bytes of UTF-8."""
import json
import os
import random
import sys

import regex

CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PUNCT = "[" + "".join("\\" + c for c in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + "]"
LET = "".join(
    "-".join(chr(int(x, 16)) for x in r.split("-")) for r in """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386
388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA
1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57
1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB
1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D
212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3
A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A
FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF
1E900-1E943""".split())


def cased(upper, lower, suffix, digits, tail):
    return (rf"[^\r\n\p{{L}}\p{{N}}]?[{upper}]*[{lower}]+{suffix}"
            rf"|[^\r\n\p{{L}}\p{{N}}]?[{upper}]+[{lower}]*{suffix}"
            rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+{tail}|{TAIL}")


def llama3(digits):
    return (CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits +
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL)


PORO = r" ?[^(\s|.,!?…。，、।۔،)]+"
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
KINDS = {
    "GPT2": [GPT2],
    "LLAMA3": [llama3(r"\p{N}{1,3}")],
    "QWEN2": [llama3(r"\p{N}")],
    "QWEN35": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
               r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL],
    "GPT4O": [cased(UPPER, LOWER, CONTRACTION + "?", r"\p{N}{1,3}", r"[\r\n/]*")],
    "TEKKEN": [cased(UPPER, LOWER, "", r"\p{N}", r"[\r\n/]*")],
    "DSV3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
             PUNCT + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" +
             TAIL],
    "DSCODER": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
    "DSLLM": [r"[\r\n]", rf"\s?[{LET}]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+\Z", CJK,
              r"\p{N}+"],
    "DIGIT": [r"\p{N}", GPT2],
    "FALCON": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
    "DEFAULT": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "KIMI": [r"[\p{Han}]+|" + cased(UPPER + r"&&[^\p{Han}]", LOWER + r"&&[^\p{Han}]",
                                    CONTRACTION + "?", r"\p{N}{1,3}", r"[\r\n]*")],
    "BAILING": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
                r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "SEED": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + TAIL],
    "SUPERBPE": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "POROLIKE": [PORO],
    "VIKING": [PORO, r"\p{N}"],
    "MINICPM5": [r"\p{N}{1,3}", llama3(r"\p{N}+")],
    "LINES": [r"[^\n]+|[\n]+"],
}

TEXTS = [
    "Hello, y'all! How are you 😁 ?我想在apple工作1314151天～", "\t\n", " \n \n\n  x", "   a", "a   ",
    "I'LL we'Ve don't 'tis 'ſ it'ſ x's y'S'd", "École ÉTÉ ПриветМир HELLOworld HelloWORLD ǅabc ʰA",
    "हिन्दी में शब्द ก็ไทย က", "3333333 1 22 333 4444 55555 ²³½Ⅷ ٣٤٥٦", "a/b//\n/c !\n\n/ ?\r\n\r\n",
    "日本語テキストABCｱｲｳ々〇〻한국어", "foo.bar_baz(qux)[0] <= `x`; $y += \"z\"\\n",
    "\u00a0a\u2003\u2003b\u3000c\u0085d\u180ee\u200bf\u2028\u2029g", "e\u0301e\u0301 \u0301\u0301 \u20ddX",
    "ABCdefGHI'llJKL'RE a'b''s'", "x\r\ny\r\n\r\n  z\n ", "1,234,567.89 12345678901 1²3 a12b3456c",
    "👩‍👩‍👧‍👦🏽 €100 ©™ +-=<>^~|`", "\u0e01\u0e33AbC\u05d0\u0627bB", "(a|b.c,d!e?f…g。h，i、j।k۔l،m)",
    "𝒜𝒷 𝟘𝟙𝟚𝟛 𠀀𠀁 ﬀﬁ Ⴀა Ა",
]
ALPHABET = list("aZbS'tlredvm  \t\n\r\n019.,!/($|`_-") + list("éÉßſΩяЯ中日々〇ひーカ한कि्ا٣²Ⅷǅʰ́⃝€©😀") + [
    "\u200d", "\u00a0", "\u2003", "\u2028", "\u3000", "\u0085", "\u180e", "\ufffd", "𝒜", "𝟘", "𠀀",
    "'s", "'LL", "\x00", "\x7f", "\x1c"]


def split(text, patterns):
    pieces = [text]
    for pattern in patterns:
        out = []
        for piece in pieces:
            at = 0
            for m in pattern.finditer(piece):
                out += [piece[at:m.start()], m.group()]
                at = m.end()
            out.append(piece[at:])
        pieces = [p for p in out if p]
    return [len(p.encode()) for p in pieces]


def main():
    rng = random.Random(20240229)
    texts = TEXTS + ["".join(rng.choices(ALPHABET, k=rng.randint(1, 24))) for _ in range(110)]
    kinds = {k: [regex.compile(p, regex.V1) for p in v] for k, v in KINDS.items()}
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "presplit.json")
    with open(path, "w", encoding="ascii") as f:
        f.write("[\n")
        for i, text in enumerate(texts):
            case = {"text": text}
            case.update({k: " ".join(map(str, split(text, p))) for k, p in kinds.items()})
            f.write(json.dumps(case) + (",\n" if i + 1 < len(texts) else "\n"))
        f.write("]\n")
    print(f"{len(texts)} texts, {len(kinds)} kinds", file=sys.stderr)


if __name__ == "__main__":
    main()
