#include "data/wordpiece.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>

enum {
    LONGEST_WORD = 100, /* characters; a longer word is unknown */
    LONGEST_CHARACTER = 4,
    DECOMPOSED = 32, /* code points that one decomposes into, at most */
};

struct tt_wordpiece {
    char *text; /* all pieces, each ended by a 0 */
    int count;
    const char **pieces; /* [count], into text */
    int32_t *table;      /* open addressing: ids, -1: free */
    size_t mask;         /* of the table; its size is a power of two */
    size_t longest;      /* bytes of the longest piece */
    bool folds;          /* lower-cases and strips accents */
};

/* --- the vocabulary --- */

bool tt_wordpiece_recognize(const char *path, const void *bytes, size_t size)
{
    static const char unknown[] = "[UNK]";
    const size_t length = sizeof unknown - 1;
    size_t name = strlen(path);
    if (name >= 4 && strcmp(path + name - 4, ".txt") == 0) {
        return true;
    }
    const char *text = bytes;
    for (size_t at = 0; at + length < size; at++) {
        const char *found = memchr(text + at, '[', size - length - at);
        if (found == NULL) {
            return false;
        }
        at = (size_t)(found - text);
        bool begins = at == 0 || text[at - 1] == '\n';
        bool ends = text[at + length] == '\n' || text[at + length] == '\r';
        if (begins && ends && memcmp(found, unknown, length) == 0) {
            return true;
        }
    }
    return false;
}

/* The place of a piece in the table: its own, or the free one where it would go. */
static size_t find_place(const tt_wordpiece *wordpiece, const char *piece, size_t length)
{
    size_t place = (size_t)XXH3_64bits(piece, length) & wordpiece->mask;
    while (wordpiece->table[place] >= 0) {
        const char *other = wordpiece->pieces[wordpiece->table[place]];
        if (strncmp(other, piece, length) == 0 && other[length] == '\0') {
            break;
        }
        place = (place + 1) & wordpiece->mask;
    }
    return place;
}

static int32_t find_piece(const tt_wordpiece *wordpiece, const char *piece, size_t length)
{
    return wordpiece->table[find_place(wordpiece, piece, length)];
}

static bool is_utf8(const char *text, size_t length)
{
    for (size_t at = 0; at < length;) {
        utf8proc_int32_t code_point;
        utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                  (utf8proc_ssize_t)(length - at), &code_point);
        if (bytes <= 0 || code_point == 0) {
            return false;
        }
        at += (size_t)bytes;
    }
    return true;
}

static tt_status add_line(tt_wordpiece *wordpiece, const char *path, const char *line,
                          size_t length, tt_error *error)
{
    int number = wordpiece->count + 1;
    if (length == 0 || !is_utf8(line, length)) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: line %d: expected a WordPiece piece, found %s", path, number,
                            length == 0 ? "an empty line" : "text that is not UTF-8");
    }
    size_t place = find_place(wordpiece, line, length);
    if (wordpiece->table[place] >= 0) {
        return tt_error_set(error, TT_INVALID_INPUT,
                            "%s: line %d: expected a new piece, found %.40s again, as in line %d",
                            path, number, line, wordpiece->table[place] + 1);
    }
    for (size_t i = 0; i < length && line[0] != '['; i++) {
        wordpiece->folds = wordpiece->folds && !(line[i] >= 'A' && line[i] <= 'Z');
    }
    wordpiece->pieces[wordpiece->count] = line;
    wordpiece->table[place] = wordpiece->count++;
    wordpiece->longest = length > wordpiece->longest ? length : wordpiece->longest;
    return TT_OK;
}

/* Cuts the text in place. */
static tt_status add_lines(tt_wordpiece *wordpiece, const char *path, size_t size, tt_error *error)
{
    static const char mark[] = "\xEF\xBB\xBF";
    char *line = wordpiece->text, *end = wordpiece->text + size;
    line += size >= 3 && memcmp(line, mark, 3) == 0 ? 3 : 0;
    while (line < end) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        stop = stop != NULL ? stop : end;
        size_t length = (size_t)(stop - line);
        length -= length > 0 && line[length - 1] == '\r' ? 1 : 0;
        line[length] = '\0';
        TT_TRY(add_line(wordpiece, path, line, length, error));
        line = stop + 1;
    }
    return wordpiece->count >= 6 ? TT_OK
                                 : tt_error_set(error, TT_INVALID_INPUT,
                                                "%s: expected a WordPiece vocabulary of at least 6 "
                                                "lines, found %d",
                                                path, wordpiece->count);
}

static size_t count_lines(const char *text, size_t size)
{
    size_t lines = 1;
    for (size_t i = 0; i < size; i++) {
        lines += text[i] == '\n';
    }
    return lines;
}

static bool allocate(tt_wordpiece *wordpiece, const void *bytes, size_t size)
{
    size_t lines = count_lines(bytes, size), places = 16;
    while (places < 2 * lines) {
        places *= 2;
    }
    wordpiece->text = malloc(size + 1);
    wordpiece->pieces = malloc(lines * sizeof(char *));
    wordpiece->table = malloc(places * sizeof *wordpiece->table);
    wordpiece->mask = places - 1;
    if (wordpiece->text == NULL || wordpiece->pieces == NULL || wordpiece->table == NULL) {
        return false;
    }
    memcpy(wordpiece->text, bytes, size);
    wordpiece->text[size] = '\0';
    for (size_t i = 0; i < places; i++) {
        wordpiece->table[i] = -1;
    }
    return true;
}

tt_status tt_wordpiece_load(const char *path, const void *bytes, size_t size,
                            tt_wordpiece **wordpiece, tt_error *error)
{
    tt_wordpiece *created = calloc(1, sizeof *created);
    *wordpiece = NULL;
    if (created == NULL || !allocate(created, bytes, size)) {
        tt_wordpiece_free(created);
        return tt_error_set(error, TT_OUT_OF_MEMORY, "%s: no memory for its pieces", path);
    }
    created->folds = true;
    tt_status status = add_lines(created, path, size, error);
    if (status != TT_OK) {
        tt_wordpiece_free(created);
        return status;
    }
    *wordpiece = created;
    return TT_OK;
}

void tt_wordpiece_free(tt_wordpiece *wordpiece)
{
    if (wordpiece != NULL) {
        free(wordpiece->text);
        free(wordpiece->pieces);
        free(wordpiece->table);
        free(wordpiece);
    }
}

int tt_wordpiece_size(const tt_wordpiece *wordpiece)
{
    return wordpiece->count;
}

const char *tt_wordpiece_piece(const tt_wordpiece *wordpiece, int id)
{
    return wordpiece->pieces[id];
}

int tt_wordpiece_find(const tt_wordpiece *wordpiece, const char *piece)
{
    return find_piece(wordpiece, piece, strlen(piece));
}

/* --- words --- */

typedef enum { DROPPED, SPACE, ALONE, LETTER } character_kind;

static bool is_chinese(utf8proc_int32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static bool is_ascii_sign(utf8proc_int32_t c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
}

static character_kind kind_of(utf8proc_int32_t c)
{
    if (c == '\t' || c == '\n' || c == '\r') {
        return SPACE;
    }
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
        return DROPPED;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return SPACE;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return ALONE;
    default:
        return c == 0xFFFD ? DROPPED : is_chinese(c) || is_ascii_sign(c) ? ALONE : LETTER;
    }
}

/* A word being put together. */
typedef struct {
    const tt_wordpiece *wordpiece;
    int32_t unknown;
    tt_wordpiece_found found;
    void *user;
    int characters; /* counted on beyond LONGEST_WORD, but not kept */
    size_t length;  /* bytes */
    uint32_t begin, end;
    /* "##" stands before the word, so that a piece that continues it can be looked up in place. */
    char bytes[2 + LONGEST_WORD * LONGEST_CHARACTER];
    uint32_t begins[LONGEST_WORD * LONGEST_CHARACTER]; /* by byte: of its character in the text */
    uint32_t ends[LONGEST_WORD * LONGEST_CHARACTER];
} word_buffer;

static void add_character(word_buffer *word, utf8proc_int32_t c, uint32_t begin, uint32_t end)
{
    if (word->characters == 0) {
        word->begin = begin;
        word->length = 0;
    }
    word->end = end;
    if (word->characters++ >= LONGEST_WORD) {
        return;
    }
    utf8proc_uint8_t encoded[LONGEST_CHARACTER];
    size_t length = (size_t)utf8proc_encode_char(c, encoded);
    for (size_t i = 0; i < length; i++) {
        word->bytes[2 + word->length] = (char)encoded[i];
        word->begins[word->length] = begin;
        word->ends[word->length] = end;
        word->length++;
    }
}

/* The longest piece that the word goes on with from byte `at`; its length goes to `*length`. */
static int32_t longest_piece(word_buffer *word, size_t at, size_t *length)
{
    char kept[2];
    size_t mark = at > 0 ? 2 : 0, left = word->length - at;
    size_t most = word->wordpiece->longest > mark ? word->wordpiece->longest - mark : 0;
    char *text = word->bytes + 2 + at - mark;
    memcpy(kept, text, 2);
    if (mark > 0) {
        text[0] = text[1] = '#';
    }
    int32_t id = -1;
    for (*length = left < most ? left : most; *length > 0; (*length)--) {
        bool whole = *length == left || ((unsigned char)text[mark + *length] & 0xC0) != 0x80;
        id = whole ? find_piece(word->wordpiece, text, mark + *length) : -1;
        if (id >= 0) {
            break;
        }
    }
    if (mark > 0) {
        memcpy(text, kept, 2);
    }
    return id;
}

static void end_word(word_buffer *word)
{
    int32_t ids[LONGEST_WORD];
    size_t lengths[LONGEST_WORD], at = 0;
    int count = 0;
    bool known = word->characters <= LONGEST_WORD;
    while (known && word->characters > 0 && at < word->length) {
        ids[count] = longest_piece(word, at, &lengths[count]);
        known = ids[count] >= 0;
        at += lengths[count];
        count++;
    }
    if (!known) {
        word->found(word->user, word->unknown, word->begin, word->end);
    }
    at = 0;
    for (int i = 0; known && i < count; i++) {
        word->found(word->user, ids[i], word->begins[at], word->ends[at + lengths[i] - 1]);
        at += lengths[i];
    }
    word->characters = 0;
}

/* Adds the character as the vocabulary writes it: in several parts, or not at all. */
static void add_folded(word_buffer *word, utf8proc_int32_t c, uint32_t begin, uint32_t end)
{
    utf8proc_int32_t parts[DECOMPOSED];
    utf8proc_ssize_t count =
        utf8proc_decompose_char(c, parts, DECOMPOSED, UTF8PROC_DECOMPOSE, NULL);
    if (count < 1 || count > DECOMPOSED) {
        parts[0] = c;
        count = 1;
    }
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        if (utf8proc_category(parts[i]) != UTF8PROC_CATEGORY_MN) {
            add_character(word, utf8proc_tolower(parts[i]), begin, end);
        }
    }
}

void tt_wordpiece_encode(const tt_wordpiece *wordpiece, const char *text, size_t length,
                         int32_t unknown, tt_wordpiece_found found, void *user)
{
    word_buffer word = {
        .wordpiece = wordpiece, .unknown = unknown, .found = found, .user = user, .characters = 0};
    for (size_t at = 0; at < length;) {
        utf8proc_int32_t c = -1;
        utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                  (utf8proc_ssize_t)(length - at), &c);
        uint32_t begin = (uint32_t)at;
        at += bytes > 0 ? (size_t)bytes : 1;
        character_kind kind = bytes > 0 ? kind_of(c) : DROPPED;
        if (kind == DROPPED) {
            continue;
        }
        if (kind != LETTER) {
            end_word(&word);
        }
        if (kind != SPACE && wordpiece->folds) {
            add_folded(&word, c, begin, (uint32_t)at);
        } else if (kind != SPACE) {
            add_character(&word, c, begin, (uint32_t)at);
        }
        if (kind == ALONE) {
            end_word(&word);
        }
    }
    end_word(&word);
}
