/* From a recipe's words to the structures of core/ and models/: what the recipe leaves open (mode
 * sizes, ranks) is chosen here. */
#ifndef TT_LAUNCH_MODEL_RECIPE_H
#define TT_LAUNCH_MODEL_RECIPE_H

#include "core/optimizer.h"
#include "launch/recipe.h"
#include "models/configuration.h"

/* `vocabulary_size` counts where the recipe says 0. The error names the recipe's key. */
tt_status tt_model_recipe_configuration(const tt_recipe *recipe, int64_t vocabulary_size,
                                        tt_configuration *configuration, tt_error *error);

/* Learnable numbers of the model that the recipe trains, in this configuration. */
int64_t tt_model_recipe_parameters(const tt_recipe *recipe, const tt_configuration *configuration);

/* Optimizer and learning rates of phase number `phase`. */
tt_optimizer_options tt_model_recipe_optimizer(const tt_recipe *recipe, int phase);

#endif
