/* The recipe's keys as one table, and what can be done with a table of keys: set defaults, read a
 * value from text, check ranges, write YAML. Inside launch/recipe*.c only. */
#ifndef TT_LAUNCH_RECIPE_SCHEMA_H
#define TT_LAUNCH_RECIPE_SCHEMA_H

#include "launch/recipe.h"

enum { TT_RECIPE_PATH = 128 /* bytes of a key's path */ };

typedef enum {
    TT_FIELD_INTEGER,  /* int64_t */
    TT_FIELD_REAL,     /* double */
    TT_FIELD_BOOLEAN,  /* bool */
    TT_FIELD_CHOICE,   /* an enum; `choices` in the order of its values */
    TT_FIELD_TEXT,     /* char[TT_RECIPE_TEXT] */
    TT_FIELD_INTEGERS, /* list of int64_t */
    TT_FIELD_TEXTS,    /* list of char[TT_RECIPE_TEXT] */
    TT_FIELD_SECTION,  /* a struct described by `fields` */
    TT_FIELD_SECTIONS, /* list of such structs */
} tt_field_kind;

typedef struct tt_recipe_field {
    const char *key; /* NULL ends a table */
    tt_field_kind kind;
    bool above_minimum;  /* the minimum itself is not allowed */
    bool required;       /* an error when neither given nor filled in from a preset */
    size_t offset;       /* in the struct of its section */
    size_t count_offset; /* lists: of the uint64_t number of entries */
    size_t entry_size;   /* lists: bytes */
    uint64_t capacity;   /* lists: most entries */
    double minimum, maximum;
    double fallback;            /* the default of numbers, booleans and choices */
    const char *const *choices; /* ends with NULL */
    const struct tt_recipe_field *fields;
    const char *help;
} tt_recipe_field;

/* The root's keys. */
extern const tt_recipe_field tt_recipe_fields[];

/* A recipe being put together, and bytes of the same number: nonzero at the offset of each value
 * that was given. */
typedef struct {
    tt_recipe *recipe;
    unsigned char *given;
} tt_recipe_draft;

void tt_recipe_mark_given(const tt_recipe_draft *draft, const void *value);
bool tt_recipe_is_given(const tt_recipe_draft *draft, const void *value);

/* The field of `key` (of `length` bytes) in a table; NULL when there is none. */
const tt_recipe_field *tt_recipe_field_find(const tt_recipe_field *fields, const char *key,
                                            size_t length);
/* "did you mean KEY?" or "expected one of ...", for a key that is not in the table. */
void tt_recipe_field_hint(const tt_recipe_field *fields, const char *key, char *hint, size_t size);

/* The defaults of every field of a section; lists are emptied. */
void tt_recipe_fields_default(const tt_recipe_field *fields, void *section);

bool tt_recipe_field_is_list(const tt_recipe_field *field);
uint64_t *tt_recipe_field_count(const tt_recipe_field *field, void *section);

/* Reads a scalar field, or entry `index` of a list, from text. `path` is for the error. */
tt_status tt_recipe_field_set(const tt_recipe_field *field, void *section, uint64_t index,
                              const char *text, const char *path, tt_error *error);

/* "an integer from 1 to 8", "one of dense, tensor_train": what a scalar field expects. */
void tt_recipe_field_expected(const tt_recipe_field *field, char *text, size_t size);

/* Checks every value of a section against its range. */
tt_status tt_recipe_fields_check(const tt_recipe_field *fields, const void *section,
                                 const char *path, tt_error *error);

/* Reads YAML into a draft that holds the defaults. */
tt_status tt_recipe_read_yaml(const char *text, size_t length, const tt_recipe_draft *draft,
                              tt_error *error);

#endif
