/* The SentencePiece library behind C calls: the only door to C++ in this project. No exception
 * passes through; a failure returns false (or NULL) and puts one line, without a final newline,
 * into `message`. */
#ifndef TT_DATA_SENTENCEPIECE_SHIM_H
#define TT_DATA_SENTENCEPIECE_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tt_sentencepiece tt_sentencepiece;

/* The next line of training text, of `*length` bytes and valid until the next call; NULL at the
 * end. */
typedef const char *(*tt_sentencepiece_next)(void *user, size_t *length);

typedef struct {
    const char *key, *value;
} tt_sentencepiece_setting;

/* Trains a model with SentencePiece's own settings (`vocab_size`, `model_type`, ...) and returns it
 * as the bytes of a model file, which the caller frees; NULL on failure. `seed` settles which lines
 * are drawn where `input_sentence_size` limits their number. */
void *tt_sentencepiece_train(const tt_sentencepiece_setting *settings, size_t setting_count,
                             tt_sentencepiece_next next, void *user, size_t *size, char *message,
                             size_t message_size);

/* A model from the bytes of a model file; NULL on failure. */
tt_sentencepiece *tt_sentencepiece_load(const void *bytes, size_t size, char *message,
                                        size_t message_size);
void tt_sentencepiece_free(tt_sentencepiece *model);

int tt_sentencepiece_size(const tt_sentencepiece *model);
/* The piece with this id, 0 <= id < size; owned by the model. */
const char *tt_sentencepiece_piece(const tt_sentencepiece *model, int id);
/* The id of a piece, or -1 if the model has no such piece. */
int tt_sentencepiece_find(const tt_sentencepiece *model, const char *piece);
/* Whether text can never yield this id (control pieces, unused pieces). */
bool tt_sentencepiece_is_control(const tt_sentencepiece *model, int id);
bool tt_sentencepiece_is_unknown(const tt_sentencepiece *model, int id);

/* Calls `piece(user, id, begin, end)` for every piece of the text, with the bytes [begin, end) of
 * `text` that it stands for. */
typedef void (*tt_sentencepiece_found)(void *user, int32_t id, uint32_t begin, uint32_t end);
bool tt_sentencepiece_encode(const tt_sentencepiece *model, const char *text, size_t length,
                             tt_sentencepiece_found piece, void *user, char *message,
                             size_t message_size);

/* The text of `count` ids, NUL-terminated, which the caller frees; NULL on failure. */
char *tt_sentencepiece_decode(const tt_sentencepiece *model, const int32_t *ids, size_t count,
                              char *message, size_t message_size);

#ifdef __cplusplus
}
#endif

#endif
