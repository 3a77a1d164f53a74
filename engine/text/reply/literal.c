/* Literals: a value as JSON, Python or Gemma writes it, byte by byte, into JSON (see reply.h).
 *
 * JSON passes unchanged: the readers of forms that write JSON rely on it, because the client sends
 * the arguments back and the prompt should then continue the one before. A closing quote is
 * certain only when something follows it that may follow a string: models forget to escape. Two
 * more things are held back: a word (a number, true, a bare key) until it ends, and a comma with
 * the white space after it, because it may be one too many. One object a value. */
#include "engine/text/reply/reply.h"

#include <stdio.h>
#include <string.h>

enum {
    VALUE,      /* a value must follow */
    ITEM,       /* a value, or the list's end */
    KEY,        /* a member's name, or the object's end */
    COLON,      /* after a name */
    AFTER,      /* after a value inside brackets */
    STRING,     /* in quotes */
    ESCAPE,     /* after a backslash */
    HEX,        /* in \u, \x or \U */
    CLOSING,    /* after a quote that may be the closing one */
    TRIPLE,     /* in three quotes */
    WORD,       /* a number or word */
    NUMBER,     /* one longer than a word: put out as it comes */
    OWN_KEY,    /* Gemma: a bare name, up to the colon */
    OWN_STRING, /* Gemma: between marks */
    DONE,
};

static const char closing_of[] = {['{'] = '}', ['['] = ']', ['('] = ')'};

void eng_lit_init(struct eng_lit *l, unsigned flags, const struct eng_schema *schema)
{
    *l = (struct eng_lit){.state = VALUE, .flags = (uint8_t)flags};
    l->schema[0] = schema;
}

static bool in_object(const struct eng_lit *l)
{
    return l->depth && l->stack[l->depth - 1] == '{';
}

int eng_lit_escape(char c, struct cn_buf *out)
{
    static const char letters[] = {
        ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    unsigned char u = (unsigned char)c;

    if (c == '"' || c == '\\') return cn_buf_printf(out, "\\%c", c);
    if (u >= 0x20) return cn_buf_putc(out, c);
    if (u < sizeof letters && letters[u]) return cn_buf_printf(out, "\\%c", letters[u]);
    return cn_buf_printf(out, "\\u%04x", u);
}

static void put_string(const char *s, size_t n, struct cn_buf *out)
{
    cn_buf_putc(out, '"');
    for (size_t i = 0; i < n; i++)
        eng_lit_escape(s[i], out);
    cn_buf_putc(out, '"');
}

/* A value is complete. */
static enum eng_lit_result complete(struct eng_lit *l)
{
    l->state = l->depth ? AFTER : DONE;
    return l->depth ? ENG_LIT_MORE : ENG_LIT_DONE;
}

static enum eng_lit_result push(struct eng_lit *l, char c, struct cn_buf *out)
{
    if (l->depth == ENG_LIT_DEPTH) return ENG_LIT_BAD;
    const struct eng_schema *s = l->schema[l->depth];
    l->stack[l->depth++] = c;
    l->schema[l->depth] = c == '{' ? NULL : eng_schema_items(s);
    cn_buf_putc(out, c == '{' ? '{' : '[');
    l->state = c != '{' ? ITEM : l->flags & ENG_LIT_OWN ? OWN_KEY : KEY;
    l->n_word = 0;
    l->empty = true; /* the brackets */
    return ENG_LIT_MORE;
}

static enum eng_lit_result pop(struct eng_lit *l, struct cn_buf *out)
{
    cn_buf_putc(out, l->stack[--l->depth] == '{' ? '}' : ']');
    return complete(l);
}

/* Gives out the comma that was held, and the white space after it. */
static void flush_comma(struct eng_lit *l, bool comma, struct cn_buf *out)
{
    if (l->comma && comma) cn_buf_putc(out, ',');
    cn_buf_append(out, l->gap, l->n_gap);
    l->comma = false;
    l->n_gap = 0;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* How much of a JSON number has come. */
enum { NO_NUMBER, START, MINUS, ZERO, WHOLE, POINT, FRACTION, LETTER_E, SIGN, EXPONENT };

static uint8_t number_next(uint8_t at, char c)
{
    bool digit = c >= '0' && c <= '9', e = (c | 32) == 'e';
    switch (at) {
    case START:
    case MINUS:
        if (at == START && c == '-') return MINUS;
        return !digit ? NO_NUMBER : c == '0' ? ZERO : WHOLE;
    case ZERO:
    case WHOLE:
        if (digit) return at == WHOLE ? WHOLE : NO_NUMBER;
        return c == '.' ? POINT : e ? LETTER_E : NO_NUMBER;
    case POINT:
    case FRACTION:
        if (digit) return FRACTION;
        return at == FRACTION && e ? LETTER_E : NO_NUMBER;
    case LETTER_E:
        if (c == '+' || c == '-') return SIGN;
        return digit ? EXPONENT : NO_NUMBER;
    case SIGN:
    case EXPONENT:
        return digit ? EXPONENT : NO_NUMBER;
    }
    return NO_NUMBER;
}

static uint8_t number_of(const char *s, size_t n)
{
    uint8_t at = START;
    for (size_t i = 0; i < n; i++)
        at = number_next(at, s[i]);
    return at;
}

static bool may_end(uint8_t at)
{
    return at == ZERO || at == WHOLE || at == FRACTION || at == EXPONENT;
}

static bool is_number(const char *s, size_t n)
{
    return may_end(number_of(s, n));
}

/* JSON's name of a constant; NULL: the word is not a constant. */
static const char *constant(const char *s, size_t n)
{
    static const char *const words[][2] = {
        {"true", "true"},   {"false", "false"}, {"null", "null"},     {"True", "true"},
        {"False", "false"}, {"None", "null"},   {"NaN", "null"},      {"nan", "null"},
        {"inf", "null"},    {"-inf", "null"},   {"Infinity", "null"}, {"-Infinity", "null"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(words); i++)
        if (n == strlen(words[i][0]) && !memcmp(s, words[i][0], n)) return words[i][1];
    return NULL;
}

/* Python's .5, 5. and +5. */
static bool put_odd_number(const char *s, size_t n, struct cn_buf *out)
{
    char text[ENG_LIT_WORD + 8];
    size_t to = 0;
    if (n && *s == '+') {
        s++;
        n--;
    }
    if (n && *s == '-') {
        text[to++] = '-';
        s++;
        n--;
    }
    if (n && *s == '.') text[to++] = '0';
    memcpy(text + to, s, n);
    to += n;
    if (n && s[n - 1] == '.') text[to++] = '0';
    if (!is_number(text, to)) return false;
    cn_buf_append(out, text, to);
    return true;
}

static void end_word(struct eng_lit *l, struct cn_buf *out)
{
    const char *s = l->word, *known;
    size_t n = l->n_word;
    bool own = l->flags & ENG_LIT_OWN;

    l->n_word = 0;
    while (n && eng_is_space(s[n - 1]))
        n--;
    if (own && eng_schema_types(l->schema[l->depth]) == ENG_T_STRING)
        put_string(s, n, out);
    else if (is_number(s, n))
        cn_buf_append(out, s, n);
    else if ((known = constant(s, n)))
        cn_buf_puts(out, known);
    else if (!put_odd_number(s, n, out))
        put_string(s, n, out);
    complete(l);
}

static bool is_word(const struct eng_lit *l, char c)
{
    if (l->flags & ENG_LIT_OWN) return c != ',' && c != '}' && c != ']';
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("_.+-$", c)) || (c & 0x80);
}

/* ---- names of members ------------------------------------------------------------------------ */

static void enter_member(struct eng_lit *l, const char *s, size_t n)
{
    if (l->flags & ENG_LIT_OWN)
        l->schema[l->depth] =
            eng_schema_member(l->schema[l->depth - 1], (struct eng_str){s, n}, NULL);
}

/* Gemma's bare name: all up to the colon. One in quotes that the schema knows without them is
 * meant without them. */
static enum eng_lit_result own_key(struct eng_lit *l, char c, struct cn_buf *out)
{
    bool known = false;
    if (c != ':') {
        if (c == '}' && !l->n_word) {
            l->comma = false;
            return pop(l, out);
        }
        if (!l->n_word && eng_is_space(c)) return ENG_LIT_MORE;
        if (l->n_word == sizeof l->word) return ENG_LIT_BAD;
        l->word[l->n_word++] = c;
        return ENG_LIT_MORE;
    }
    const char *s = l->word;
    size_t n = l->n_word;
    while (n && eng_is_space(s[n - 1]))
        n--;
    if (n >= 2 && (*s == '"' || *s == '\'') && s[n - 1] == *s) {
        struct eng_str inner = {s + 1, n - 2};
        eng_schema_member(l->schema[l->depth - 1], inner, &known);
    }
    flush_comma(l, true, out);
    put_string(s + known, n - 2 * known, out);
    cn_buf_putc(out, ':');
    enter_member(l, s + known, n - 2 * known);
    l->n_word = 0;
    l->state = VALUE;
    return ENG_LIT_MORE;
}

/* ---- strings --------------------------------------------------------------------------------- */

static enum eng_lit_result end_string(struct eng_lit *l, struct cn_buf *out)
{
    cn_buf_putc(out, '"');
    if (!l->key) return complete(l);
    l->state = COLON;
    return ENG_LIT_MORE;
}

static void begin_string(struct eng_lit *l, char quote, struct cn_buf *out)
{
    l->quote = (uint8_t)quote;
    l->empty = true;
    l->triple = false;
    l->n_gap = 0;
    l->state = quote ? STRING : OWN_STRING;
    cn_buf_putc(out, '"');
}

static enum eng_lit_result escape(struct eng_lit *l, char c, struct cn_buf *out)
{
    l->state = STRING;
    l->empty = false;
    if (c && strchr("\"\\/bfnrt", c)) {
        cn_buf_putc(out, '\\');
        cn_buf_putc(out, c);
    } else if (c == 'u' || c == 'x' || c == 'U') {
        l->hex = c == 'u' ? 4 : c == 'x' ? 2 : 8;
        l->word[0] = c;
        l->n_word = 1;
        l->state = HEX;
    } else if (c == '\'' || c == '\n') {
        if (c == '\'') cn_buf_putc(out, c); /* a line's end after a backslash is nothing */
    } else {
        cn_buf_puts(out, "\\\\");
        eng_lit_escape(c, out);
    }
    return ENG_LIT_MORE;
}

static void put_code_point(const char *hex, size_t n, struct cn_buf *out)
{
    uint32_t cp = 0;
    for (size_t i = 0; i < n; i++)
        cp = cp << 4 | (uint32_t)cn_hex_digit(hex[i]);
    if (cp > 0x10FFFF) cp = 0xFFFD;
    if (cp < 0x10000)
        cn_buf_printf(out, "\\u%04x", cp);
    else
        cn_buf_printf(out, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                      0xDC00 + ((cp - 0x10000) & 0x3FF));
}

/* False: the byte is not a digit, and what came before it is text. */
static bool hex_digit(struct eng_lit *l, char c, struct cn_buf *out)
{
    bool digit = cn_hex_digit(c) >= 0;
    if (digit) l->word[l->n_word++] = c;
    if (!digit) {
        cn_buf_puts(out, "\\\\");
        cn_buf_append(out, l->word, l->n_word);
    } else if (l->n_word <= l->hex) {
        return true;
    } else if (l->hex == 4) {
        cn_buf_putc(out, '\\');
        cn_buf_append(out, l->word, l->n_word);
    } else {
        put_code_point(l->word + 1, l->hex, out);
    }
    l->n_word = 0;
    l->state = STRING;
    return digit;
}

/* In three quotes: n_gap of them may be the closing ones. */
static enum eng_lit_result triple_byte(struct eng_lit *l, char c, struct cn_buf *out)
{
    if (c == (char)l->quote) {
        if (++l->n_gap < 3) return ENG_LIT_MORE;
        l->n_gap = 0;
        return end_string(l, out);
    }
    for (; l->n_gap; l->n_gap--)
        eng_lit_escape((char)l->quote, out);
    if (c == '\\')
        l->state = ESCAPE;
    else
        eng_lit_escape(c, out);
    return ENG_LIT_MORE;
}

static enum eng_lit_result string_byte(struct eng_lit *l, char c, struct cn_buf *out)
{
    if (l->triple) return triple_byte(l, c, out);
    if (c == (char)l->quote) {
        l->state = CLOSING;
        l->n_gap = 0;
        return ENG_LIT_MORE;
    }
    if (c == '\\') {
        l->state = ESCAPE;
        return ENG_LIT_MORE;
    }
    l->empty = false;
    eng_lit_escape(c, out);
    return ENG_LIT_MORE;
}

static bool may_follow(const struct eng_lit *l, char c)
{
    if (l->key) return c == ':';
    return c == ',' || c == '}' || c == ']' || (c == ')' && l->flags & ENG_LIT_PYTHON);
}

/* After a quote. True: the byte is taken. */
static bool closing_byte(struct eng_lit *l, char c, struct cn_buf *out)
{
    if (c == (char)l->quote && l->empty && !l->n_gap) {
        l->triple = true;
        l->empty = false;
        l->state = STRING;
        return true;
    }
    if (eng_is_space(c) && l->n_gap < sizeof l->gap) {
        l->gap[l->n_gap++] = c;
        return true;
    }
    if (may_follow(l, c) || eng_is_space(c)) {
        end_string(l, out);
        cn_buf_append(out, l->gap, l->n_gap);
    } else { /* a quote of the text */
        eng_lit_escape((char)l->quote, out);
        for (size_t i = 0; i < l->n_gap; i++)
            eng_lit_escape(l->gap[i], out);
        l->empty = false;
        l->state = STRING;
    }
    l->n_gap = 0;
    return false;
}

/* ---- values ---------------------------------------------------------------------------------- */

static enum eng_lit_result begin_value(struct eng_lit *l, char c, struct cn_buf *out)
{
    l->key = l->state == KEY;
    if (c == '"' || c == '\'') {
        begin_string(l, c, out);
        return ENG_LIT_MORE;
    }
    if (!l->key && (c == '{' || c == '[' || (c == '(' && l->flags & ENG_LIT_PYTHON)))
        return push(l, c, out);
    if (!is_word(l, c)) return ENG_LIT_BAD;
    l->word[0] = c;
    l->n_word = 1;
    l->state = WORD;
    return ENG_LIT_MORE;
}

/* VALUE, ITEM or KEY. */
static enum eng_lit_result value_byte(struct eng_lit *l, char c, struct cn_buf *out)
{
    bool closes = l->depth && c == closing_of[(int)l->stack[l->depth - 1]];
    if (eng_is_space(c)) {
        if (l->comma && l->n_gap < sizeof l->gap) {
            l->gap[l->n_gap++] = c;
            return ENG_LIT_MORE;
        }
        flush_comma(l, true, out);
        cn_buf_putc(out, c);
        return ENG_LIT_MORE;
    }
    if (closes && l->state != VALUE && (l->comma || l->empty)) {
        flush_comma(l, false, out);
        return pop(l, out);
    }
    flush_comma(l, true, out);
    return begin_value(l, c, out);
}

static enum eng_lit_result after_byte(struct eng_lit *l, char c, struct cn_buf *out)
{
    if (eng_is_space(c)) {
        cn_buf_putc(out, c);
        return ENG_LIT_MORE;
    }
    if (c == closing_of[(int)l->stack[l->depth - 1]]) return pop(l, out);
    if (c != ',') return ENG_LIT_BAD;
    l->comma = true;
    l->empty = false;
    l->n_gap = 0;
    l->n_word = 0;
    l->state = !in_object(l) ? ITEM : l->flags & ENG_LIT_OWN ? OWN_KEY : KEY;
    return ENG_LIT_MORE;
}

static enum eng_lit_result colon_byte(struct eng_lit *l, char c, struct cn_buf *out)
{
    if (c != ':' && !eng_is_space(c)) return ENG_LIT_BAD;
    cn_buf_putc(out, c);
    if (c == ':') l->state = VALUE;
    return ENG_LIT_MORE;
}

/* True: the byte belongs to the number. */
static bool number_byte(struct eng_lit *l, char c, struct cn_buf *out)
{
    uint8_t next = number_next(l->number, c);
    if (next != NO_NUMBER) {
        l->number = next;
        cn_buf_putc(out, c);
        return true;
    }
    if (may_end(l->number)) complete(l); /* else it stays, and no byte fits */
    return false;
}

/* A word that is full goes on if it is a number: true. */
static bool begin_number(struct eng_lit *l, struct cn_buf *out)
{
    bool text = l->flags & ENG_LIT_OWN && eng_schema_types(l->schema[l->depth]) == ENG_T_STRING;
    l->number = number_of(l->word, l->n_word);
    if (l->key || text || l->number == NO_NUMBER) return false;
    cn_buf_append(out, l->word, l->n_word);
    l->n_word = 0;
    l->state = NUMBER;
    return true;
}

/* True: the byte belongs to the word. */
static bool word_byte(struct eng_lit *l, char c, struct cn_buf *out)
{
    if (is_word(l, c) && l->n_word < sizeof l->word) {
        l->word[l->n_word++] = c;
        return true;
    }
    if (is_word(l, c) && begin_number(l, out)) return number_byte(l, c, out);
    if (l->key) {
        put_string(l->word, l->n_word, out);
        l->n_word = 0;
        l->state = COLON;
    } else {
        end_word(l, out);
    }
    return false;
}

enum eng_lit_result eng_lit_byte(struct eng_lit *l, char c, struct cn_buf *out)
{
    /* Four states end only at the byte after them, which then is looked at again. */
    if (l->state == WORD && word_byte(l, c, out)) return ENG_LIT_MORE;
    if (l->state == NUMBER && number_byte(l, c, out)) return ENG_LIT_MORE;
    if (l->state == CLOSING && closing_byte(l, c, out)) return ENG_LIT_MORE;
    if (l->state == HEX && hex_digit(l, c, out)) return ENG_LIT_MORE;
    switch (l->state) {
    case VALUE:
    case ITEM:
    case KEY:
        return value_byte(l, c, out);
    case COLON:
        return colon_byte(l, c, out);
    case AFTER:
        return after_byte(l, c, out);
    case STRING:
        return string_byte(l, c, out);
    case ESCAPE:
        return escape(l, c, out);
    case OWN_KEY:
        return own_key(l, c, out);
    case OWN_STRING:
        eng_lit_escape(c, out);
        return ENG_LIT_MORE;
    case DONE:
        return ENG_LIT_END;
    }
    return ENG_LIT_BAD;
}

enum eng_lit_result eng_lit_quote(struct eng_lit *l, struct cn_buf *out)
{
    if (l->state == OWN_STRING) return end_string(l, out);
    bool key = l->state == OWN_KEY && !l->n_word, value = l->state == VALUE || l->state == ITEM;
    if (!(l->flags & ENG_LIT_OWN) || (!key && !value)) return ENG_LIT_BAD;
    flush_comma(l, true, out);
    l->key = key;
    if (key) l->schema[l->depth] = NULL;
    begin_string(l, 0, out);
    return ENG_LIT_MORE;
}

enum eng_lit_result eng_lit_finish(struct eng_lit *l, struct cn_buf *out)
{
    if (l->depth) return ENG_LIT_BAD;
    if (l->state == WORD) end_word(l, out);
    if (l->state == NUMBER && may_end(l->number)) complete(l);
    if (l->state == CLOSING) end_string(l, out);
    return l->state == DONE ? ENG_LIT_DONE : ENG_LIT_BAD;
}

void eng_lit_cut(const struct eng_lit *l, struct cn_buf *out)
{
    static const char *const constants[] = {"true", "false", "null"};
    bool begins = l->n_word && number_next(START, l->word[0]) != NO_NUMBER;
    if (l->state != WORD || l->key || l->flags & ENG_LIT_OWN) return;
    for (size_t i = 0; i < CN_ARRAY_LEN(constants) && !begins; i++)
        begins = l->n_word <= strlen(constants[i]) && !memcmp(l->word, constants[i], l->n_word);
    if (begins) cn_buf_append(out, l->word, l->n_word);
}

bool eng_lit_whole(const char *s, size_t n, bool python, struct cn_buf *out)
{
    size_t from = out->len;
    struct eng_lit l;
    enum eng_lit_result rc = ENG_LIT_MORE;

    eng_lit_init(&l, python ? ENG_LIT_PYTHON : 0, NULL);
    for (size_t i = 0; i < n && rc == ENG_LIT_MORE; i++) {
        rc = eng_lit_byte(&l, s[i], out);
        if (rc == ENG_LIT_DONE && i + 1 < n) rc = ENG_LIT_BAD;
    }
    if (rc == ENG_LIT_MORE) rc = eng_lit_finish(&l, out);
    bool whole = rc == ENG_LIT_DONE && !out->failed &&
                 (python || (out->len - from == n && !memcmp(out->data + from, s, n)));
    if (!whole) out->len = from;
    return whole;
}
