// Makes pattern_cases.json: which texts a pattern matches, judged by a JavaScript engine (V8), whose
// regular expressions are those that JSON Schema refers to (ECMA-262).
//
// usage: node tests/text/make_pattern_cases.mjs > tests/text/pattern_cases.json      (node 20.20.2)
//
// Each case: p pattern, f flags (i, m, s), t texts, any: which of them hold a match, whole: which of
// them match from end to end ("1" or "0" each). A pattern that is not valid with the flag u is judged
// without it, as browsers read it. The random ones come from a fixed seed.

let seed = 20261;
const rnd = n => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0, (seed >>> 8) % n);
const pick = list => list[rnd(list.length)];

// Patterns that people write, and each part of the syntax.
const written = [
  // of schemas
  "^(0|[1-9][0-9]*)$", "^(?:[01]\\d|2[0-3]):[0-5]\\d$", "^(GET|POST|PUT)$", "^[0-9]{1,3}(,[0-9]{3})*$",
  "^[A-Z][a-z]*( [A-Z][a-z]*)*$", "^[A-Za-z_][A-Za-z0-9_]{0,15}$", "^[^\\s@]+@[^\\s@]+\\.[a-z]{2,}$",
  "^\\+?[0-9]{6,15}$", "^\\S.*\\S$", "^\\d{3}-\\d{2}-\\d{4}$", "^v[0-9]+\\.[0-9]+(\\.[0-9]+)?$", "ab+c",
  "^[\\w-\\.]+@([\\w-]+\\.)+[\\w-]{2,4}$", "^#?([a-f0-9]{6}|[a-f0-9]{3})$", "^[a-z0-9]+(?:-[a-z0-9]+)*$",
  "^(?=.*[A-Z])(?=.*\\d)[A-Za-z\\d]{4,}$", "^(?!.*--)[a-z-]+$", "^(?!(foo|bar)$).*$", "(?!a)b", "^(?=a)(?=ab)ab?",
  "^\\s*$", "\\s", "^$", "^", "$", "", "^.*$", "^[\\s\\S]*$", ".", "^.$", "^.{2}$", "x-", "^x-", "-x$",
  "^(a|b)?$", "^a|b$", "^(a|b$)", "(^a|b)$", "(^|,)a(,|$)", "a(?:^b|c$)", "(?:a|^)b", "(?:^|b)(?:a|$)", "a^b", "a$b", "^^a$$",
  // edges of words
  "\\bfoo\\b", "\\Bo", "o\\B", "\\b", "^\\b", "\\b$", "^\\B$", "\\B", "a\\b ", "a\\bb", "\\b-\\b", "(?:\\ba|b\\b)", "(?:\\bab? ?)+",
  "^(?:\\b\\w+\\b ?)*$", "(?:a\\b|\\Bb)+", "^(?:\\B-\\B|\\b\\w\\b)+$", "(?:\\b|a){3}", "(?:\\ba){0,2}b", "(?:a*\\b)*b", "\\w+\\b-", "(?:ab|-)*\\b",
  "(?:a?b?)*\\ba", "(?:a|-)*\\B", "\\b\\B", "(?:\\B|b)*a$", "^(?:(?:a\\b)*-)*$", "(?:(?:\\bb)+ )+", "\\b(?!a)\\w", "(?=\\b)b", "(?=a\\b)a", "(?!\\b)b",
  // classes
  "[abc]", "[^abc]", "[]", "[^]", "[a-]", "[-a]", "[a\\-b]", "[\\]]", "[\\\\]", "[.]", "[$^]", "[\\d\\-x]", "[\\w.-]", "[^\\W]", "[\\b]",
  "[\\u0061-c]", "[\\x61-\\x63]", "[а-я]", "[\\u{1F600}-\\u{1F64F}]", "[😀-😂]", "^😀*$", "^.😀$", "[^😀]", "\\ud83d\\ude00", "[\\D\\d]", "[^\\D\\d]", "[a-c-e]",
  "\\w", "\\W", "\\d", "\\D", "\\S", "^\\W+$", "\\t", "\\n", "\\r", "\\f", "\\v", "\\0", "\\cA", "\\x41", "\\u00e9", "\\u{e9}", "\\$", "\\/", "\\-", "\\_", "\\@", "\\\"", "\\'",
  // repetition
  "a*", "^a*$", "^a+$", "^a?$", "^a{2}$", "^a{2,}$", "^a{1,2}$", "^a*?$", "^a+?b", "^a{0}$", "^(ab){2}$", "^(a{2}){2}$", "^(a{0,2}){2}$", "^(a+)+$", "^(a*)*b$", "^(a|b)*c$",
  "^(a?){3}b", "^(?:a{2}){1,2}$", "^(?:a{2,3}){2}$", "^(?:(?:ab?){0,2}c){2}$", "a{,2}", "a{", "a{x}", "a{1", "{", "}", "]", "^{}$", "a{0,1000}b$", "^(?:a{3,4}){0,2}$", "^(?:a{3,}){2,}$",
  "(?:a|b)(?:c|d)?", "(?<name>a)b", "((a)(b))", "(?:)", "()", "a||b", "^(|a)$", "(?:|a)+b",
  // properties
  "^\\p{L}$", "^\\P{L}$", "\\p{Lu}", "\\p{Letter}\\d", "^\\p{Nd}+$", "\\p{Script=Greek}", "\\p{sc=Cyrillic}+", "\\p{Script_Extensions=Greek}", "[^\\p{L}\\p{Nd}]", "[\\p{P}\\p{S}]", "\\p{Alphabetic}",
  "\\p{White_Space}", "\\p{Emoji_Presentation}", "\\P{ASCII}", "\\p{Any}", "\\p{General_Category=Uppercase_Letter}", "\\p{gc=Ll}", "\\p{Lowercase}", "\\p{Script=Han}", "[\\p{Lu}a]",
].map(p => [p, ""]).concat([
  ["abc", "i"], ["[a-c]", "i"], ["[^a-c]", "i"], ["\\w", "i"], ["\\W", "i"], ["[^\\W]", "i"], ["s", "i"], ["k", "i"], ["ſ", "i"], ["K", "i"], ["σ", "i"], ["Σ", "i"], ["ß", "i"], ["ẞ", "i"], ["é", "i"], ["\\u00c9", "i"],
  ["ǆ", "i"], ["ǅ", "i"], ["İ", "i"], ["i", "i"], ["ı", "i"], ["Ω", "i"], ["Å", "i"], ["θ", "i"], ["ﬀ", "i"], ["Ꭰ", "i"], ["ꭰ", "i"], ["𐐀", "i"], ["\\p{Lu}", "i"], ["\\P{Lu}", "i"], ["[^\\p{Lu}]", "i"], ["\\bk", "i"], ["s\\b", "i"], ["\\Bſ", "i"],
  ["[А-Я]", "i"], ["µ", "i"], ["ÿ", "i"],
  ["^a", "m"], ["a$", "m"], ["^a$", "m"], ["^$", "m"], ["(?:^a$\\n?)+", "m"], ["^.$", "m"], ["^\\b", "m"], ["\\b$", "m"], ["(?:^|b)a", "m"], ["(?:a|\\n|^b)*$", "m"], ["a$b", "m"], ["a$\\nb", "m"], ["^^b", "m"], ["(?:^\\w+\\b.?)+$", "m"],
  [".", "s"], ["^.$", "s"], ["a.b", "s"], ["^.*$", "s"], ["^a.b$", "ims"], ["^a", "im"], ["^.", "ms"],
]);

// Random patterns.
const chars = ["a", "b", "c", "1", "_", " ", "-", "\\n", "é", "😀", "\\.", "s", "k", "Z"];
const classes = ["\\w", "\\W", "\\d", "\\s", "\\S", ".", "[ab]", "[^a]", "[a-c1]", "[^\\w]", "[\\n ]", "[^]", "[é-ü]"];
const asserts = ["^", "$", "\\b", "\\B"];
const counts = ["*", "+", "?", "{2}", "{0,2}", "{1,3}", "{2,}", "*?", "{0,1}"];
function make(depth, looped) {
  const k = rnd(16);
  if (depth === 0 || k < 4) return pick(chars);
  if (k < 6) return pick(classes);
  if (k < 8) return pick(asserts);
  if (k < 11) return make(depth - 1, looped) + make(depth - 1, looped) + make(depth - 1, looped);
  if (k < 13) return "(?:" + make(depth - 1, looped) + "|" + make(depth - 1, looped) + ")";
  if (k < 15 || looped) {
    const count = pick(counts);
    return "(?:" + make(depth - 1, true) + ")" + count;
  }
  return (rnd(2) ? "(?=" : "(?!") + make(depth - 1, false) + ")";
}
for (let i = 0; i < 450; i++) written.push([make(2 + rnd(4), false), rnd(4) ? "" : pick(["i", "m", "s", "im"])]);

// Texts: of the pattern's own characters, of all kinds, and some that are known to be hard.
const alphabet = [..."aabbc1_ -\nsſkK\u212aéÉ😀Zß.,\r\u2028"];
const hard = ["", "a", "b", "ab", "a b", "foo", "a foo b", "foobar", "\n", "a\n", "\na", "a\nb", "aa", "aaa", "aaaa", "aaab", "é", "É", "😀", "1", "-", "_", "  ", "A1bc", "a-b", "--", "ab-ab", "b ab", "a,b",
  "GET", "12,345", "12:30", "a@b.co", "x-y", "\u212a", "ſ", "σ", "ς", "Σ", "ß", "ẞ", "SS", "ss", "İ", "i", "ı", "I", "ω", "Ω", "Ω", "å", "Å", "ǅ", "Ǆ", "ﬀ", "ꭰ", "Ꭰ", "𐐨", "µ", "μ", "Ÿ", "\0", "\x01", "\x07", "\b", "\t", "\f", "\v", "\\", "]", "[", "{", "}", "^", "$", "/",
  "a{1", "a{,2}", "a{x}", "\u00a0", "\ufeff", "\u180e", "\u2029", "я", "中", "५", "«", "€", "😀😂", "🐉", "Å"];
function texts(pattern) {
  const own = [...pattern].filter(c => !"\\()[]{}?*+|".includes(c));
  const out = new Set();
  for (let i = 0; i < 14; i++) {
    let t = "";
    for (let n = rnd(7); n > 0; n--) t += rnd(3) && own.length ? pick(own) : pick(alphabet);
    out.add(t.replace(/[\ud800-\udfff](?![\udc00-\udfff])/gu, ""));
  }
  for (let i = 0; i < 12; i++) out.add(pick(hard));
  return [...out];
}

// Whether a match begins at any character. (A plain search of V8 also looks inside of surrogate pairs.)
function found(re, t) {
  const at = [t.length];
  for (let i = 0; i < t.length; i += t.codePointAt(i) > 0xffff ? 2 : 1) at.push(i);
  return at.some(i => (re.lastIndex = i, re.test(t)));
}

const cases = [];
for (const [p, f] of written) {
  let flags = f + "u";
  try { new RegExp(p, flags); } catch { flags = f; }
  let any, whole;
  try {
    any = new RegExp(p, flags + "y");
    whole = new RegExp("(?:" + p + ")(?![^])", flags + "y"); // y: from the beginning
  } catch { continue; }
  let list = texts(p);
  if (!flags.includes("u")) list = list.filter(t => !/[\ud800-\udfff]/.test(t));
  cases.push({ p, f, t: list, any: list.map(t => +found(any, t)).join(""), whole: list.map(t => (whole.lastIndex = 0, +whole.test(t))).join("") });
}
console.log("[\n" + cases.map(c => JSON.stringify(c)).join(",\n") + "\n]");
