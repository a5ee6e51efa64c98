/* How set-up functions fail: they return a status and fill an error with one line that says what
 * went wrong, where, what was expected and what was found. Nothing here prints or exits; only
 * launch/ does. */
#ifndef TT_CORE_ERROR_H
#define TT_CORE_ERROR_H

#include <stdbool.h>

typedef enum {
    TT_OK = 0,
    TT_INVALID_INPUT, /* a file, flag, recipe or environment value is wrong */
    TT_IO_FAILED,     /* the operating system or a file library refused */
    TT_OUT_OF_MEMORY,
    TT_DEVICE_FAILED, /* a product library or a driver refused */
    TT_PEER_FAILED,   /* another rank failed; its own line says why */
} tt_status;

typedef struct {
    tt_status status;
    bool shared; /* every rank of the run has this same error, so one of them may speak for all */
    char message[1024];
} tt_error;

/* Fills `error` (printf rules, one line, no final newline; control characters in it, such as those
 * of a file's name, become "?") and returns `status`, so that a function
 * can end with `return tt_error_set(error, TT_IO_FAILED, "%s: %s", path, strerror(errno));`.
 * `error` must not be NULL. */
tt_status tt_error_set(tt_error *error, tt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the message of a failed call, so that an outer function can say where. */
tt_status tt_error_prefix(tt_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Puts more behind it. */
tt_status tt_error_append(tt_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Leaves the calling function with the status of `call` when that is not TT_OK. */
#define TT_TRY(call)                                                                               \
    do {                                                                                           \
        tt_status try_status_ = (call);                                                            \
        if (try_status_ != TT_OK) {                                                                \
            return try_status_;                                                                    \
        }                                                                                          \
    } while (0)

#endif
