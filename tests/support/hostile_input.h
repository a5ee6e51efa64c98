/* What must hold for any bytes at all as a recipe or a safetensors header; aborts where it does
 * not. For the fuzzers and for the mutation tests that always run. */
#ifndef TT_TESTS_SUPPORT_HOSTILE_INPUT_H
#define TT_TESTS_SUPPORT_HOSTILE_INPUT_H

#include "launch/recipe.h"
#include "launch/safetensors.h"

#include <stdlib.h>
#include <string.h>

#define HOSTILE_UNUSED __attribute__((unused))

static HOSTILE_UNUSED void hostile_require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static HOSTILE_UNUSED void hostile_error(const tt_error *error)
{
    hostile_require(error->status != TT_OK && error->message[0] != '\0');
    hostile_require(strchr(error->message, '\n') == NULL);
    hostile_require(strlen(error->message) < sizeof error->message);
}

/* A recipe is refused in one line, or is what its own text says. Returns whether it was read. */
static HOSTILE_UNUSED bool hostile_recipe(const void *bytes, size_t size)
{
    static tt_recipe recipe, again;
    tt_error error = {.status = TT_OK};
    if (tt_recipe_parse("fuzz.yaml", bytes, size, NULL, 0, &recipe, &error) != TT_OK) {
        hostile_error(&error);
        return false;
    }
    char *text = tt_recipe_text(&recipe);
    hostile_require(text != NULL);
    hostile_require(tt_recipe_parse("text.yaml", text, strlen(text), NULL, 0, &again, &error) ==
                    TT_OK);
    char *text_again = tt_recipe_text(&again);
    hostile_require(text_again != NULL && strcmp(text, text_again) == 0);
    free(text);
    free(text_again);
    return true;
}

/* A header is refused in one line, or its tensors fill the data without gap or overlap. */
static HOSTILE_UNUSED bool hostile_header(const void *bytes, size_t size, uint64_t data_size)
{
    tt_safetensors_tensor *tensors;
    int count;
    tt_error error = {.status = TT_OK};
    if (tt_safetensors_parse("fuzz", bytes, size, data_size, &tensors, &count, &error) != TT_OK) {
        hostile_error(&error);
        hostile_require(tensors == NULL && count == 0);
        return false;
    }
    uint64_t at = 0;
    for (int i = 0; i < count; i++) {
        uint64_t elements = 1;
        hostile_require(tensors[i].dimensions >= 0 &&
                        tensors[i].dimensions <= TT_SAFETENSORS_DIMENSIONS);
        for (int j = 0; j < tensors[i].dimensions; j++) {
            hostile_require(tensors[i].shape[j] >= 0);
            elements *= (uint64_t)tensors[i].shape[j];
        }
        uint64_t length = elements * (uint64_t)tt_safetensors_type_size(tensors[i].type);
        hostile_require(tensors[i].begin == at && tensors[i].end == at + length);
        at = tensors[i].end;
    }
    hostile_require(at == data_size);
    free(tensors);
    return true;
}

#endif
