/* From a recipe to the model that it describes. */
#ifndef TT_LAUNCH_RECIPE_CONFIGURATION_H
#define TT_LAUNCH_RECIPE_CONFIGURATION_H

#include "launch/recipe.h"
#include "models/configuration.h"

/* The model of a checked recipe. `vocabulary_size`: what the tokenizer or the shards say, used
 * where the recipe gives none; when both are given the recipe's must not be smaller. Mode sizes and
 * ranks that the recipe leaves open are chosen: three modes a side where the width has as many
 * factors (or what `order` says), and the largest uniform rank that reaches `compression` and stays
 * at or below `rank`. */
tt_status tt_recipe_configuration(const tt_recipe *recipe, int64_t vocabulary_size,
                                  tt_configuration *configuration, tt_error *error);

#endif
