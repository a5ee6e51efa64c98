#include "launch/stages.h"

#include <math.h>
#include <stdio.h>

/* --- which steps --- */

bool tt_stages_count_epochs(const tt_recipe *recipe)
{
    for (uint64_t i = 0; i < recipe->stage_count; i++) {
        if (recipe->stages[i].epochs > 0) {
            return true;
        }
    }
    return false;
}

static int64_t total_steps(const tt_recipe *recipe)
{
    int64_t steps = 0;
    for (uint64_t i = 0; i < recipe->phase_count; i++) {
        steps += recipe->phases[i].steps;
    }
    return steps;
}

/* The step at which `epochs` passes that began with step `first` are over. */
static int64_t end_of_epochs(const tt_recipe *recipe, const int64_t *phase_rows, int64_t first,
                             double epochs)
{
    int64_t phase_first = 0;
    for (uint64_t i = 0; i < recipe->phase_count; i++) {
        const tt_recipe_phase *phase = &recipe->phases[i];
        int64_t phase_end = phase_first + phase->steps;
        if (first < phase_end) {
            double epoch = (double)phase_rows[i] / (double)phase->global_batch; /* steps */
            /* What rounding adds to whole epochs is no step more. */
            double steps = ceil(epochs * epoch - 1e-9);
            if (steps <= (double)(phase_end - first)) {
                return first + (int64_t)steps;
            }
            epochs -= (double)(phase_end - first) / epoch;
            first = phase_end;
        }
        phase_first = phase_end;
    }
    return first;
}

tt_status tt_stages_plan(const tt_recipe *recipe, const int64_t *phase_rows, tt_stage_plan *plan,
                         tt_error *error)
{
    *plan = (tt_stage_plan){0};
    int64_t first = 0, last = total_steps(recipe);
    for (uint64_t i = 0; i < recipe->stage_count; i++) {
        const tt_recipe_stage *stage = &recipe->stages[i];
        int64_t end = stage->steps > 0 ? first + stage->steps
                                       : end_of_epochs(recipe, phase_rows, first, stage->epochs);
        end = end < last ? end : last;
        if (end <= first) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "stages.%llu: expected a step before the run ends with step %lld, "
                                "found a stage with no steps, after step %lld",
                                (unsigned long long)i, (long long)last, (long long)first);
        }
        plan->spans[plan->count++] = (tt_stage_span){first, end};
        first = end;
    }
    return TT_OK;
}

int tt_stages_at(const tt_stage_plan *plan, int64_t step)
{
    for (int i = 0; i < plan->count; i++) {
        if (step >= plan->spans[i].first && step < plan->spans[i].end) {
            return i;
        }
    }
    return -1;
}

/* --- targets --- */

/* Parameters that are in no tensor train. */
static int64_t parameters_besides(const tt_model *model)
{
    const tt_parameters *parameters = &model->parameters;
    int64_t count = 0;
    for (int i = 0; i < parameters->count; i++) {
        count += parameters->items[i].group == TT_GROUP_DENSE ? parameters->items[i].count : 0;
    }
    return count;
}

/* Parameters that the recipe's model begins with, whatever a checkpoint has left of it. */
static int64_t parameters_at_first(const tt_model *model)
{
    return model->kind.classes > 0 ? tt_configuration_classification_parameters(
                                         &model->configuration, model->kind.classes)
                                   : tt_configuration_pretraining_parameters(&model->configuration);
}

tt_status tt_stages_check_targets(const tt_recipe *recipe, const tt_model *model, tt_error *error)
{
    int64_t besides = parameters_besides(model), most = parameters_at_first(model);
    for (uint64_t i = 0; i < recipe->stage_count; i++) {
        int64_t target = recipe->stages[i].target_parameters;
        if (target > 0 && target <= besides) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "stages.%llu.target_parameters: expected more than %lld, which the "
                                "model has with every tensor-train map removed; found %lld",
                                (unsigned long long)i, (long long)besides, (long long)target);
        }
        if (target > most) {
            return tt_error_set(error, TT_INVALID_INPUT,
                                "stages.%llu.target_parameters: expected at most %lld, the "
                                "parameters that the model begins with; found %lld",
                                (unsigned long long)i, (long long)most, (long long)target);
        }
    }
    return TT_OK;
}

/* Core entries that a stage comes down to. */
static double target_size(const tt_recipe_stage *stage, const tt_training_state *state,
                          const tt_model *model)
{
    return stage->target_parameters > 0
               ? (double)(stage->target_parameters - parameters_besides(model))
               : stage->target_ratio * (double)state->stage_size;
}

/* --- a step's stage --- */

static bool stops(const tt_recipe_stage *stage)
{
    return stage->kind == TT_RECIPE_LATE && stage->stop_at_target;
}

static tt_rank_settings settings_of(const tt_recipe *recipe, int number,
                                    const tt_training_state *state, const tt_model *model)
{
    double unit = state->stage_size > 0 ? (double)state->stage_size : 1.0;
    if (number < 0) {
        int64_t last = state->stage - 1; /* a resumed recipe may have fewer */
        bool known = last >= 0 && last < (int64_t)recipe->stage_count;
        return (tt_rank_settings){.unit = unit,
                                  .stage = TT_RANKS_LEFT,
                                  .stops_at_target = known && stops(&recipe->stages[last]),
                                  .number = -1};
    }
    const tt_recipe_stage *stage = &recipe->stages[number];
    bool late = stage->kind == TT_RECIPE_LATE;
    return (tt_rank_settings){.unit = unit,
                              .target = late ? target_size(stage, state, model) : 0.0,
                              .gamma = (float)stage->gamma,
                              .beta = (float)stage->beta,
                              .rho = (float)stage->rho,
                              .w1 = (float)stage->w1,
                              .w2 = (float)stage->w2,
                              .target_loss = (float)stage->target_loss,
                              .stage = late ? TT_RANKS_LATE : TT_RANKS_EARLY,
                              .of_the_mean = recipe->rank.objective == TT_RECIPE_REFERENCE,
                              .stops_at_target = stops(stage),
                              .number = number};
}

tt_status tt_stages_enter(const tt_recipe *recipe, const tt_stage_plan *plan,
                          tt_training_state *state, tt_step *step, bool *began, tt_error *error)
{
    int number = tt_stages_at(plan, state->step);
    *began = number >= 0 && number + 1 != state->stage;
    if (*began) {
        int64_t size = tt_rank_objective_size(step->ranks);
        if (size < 0) {
            return tt_error_set(error, TT_OUT_OF_MEMORY, "no memory to measure the model's size");
        }
        state->stage = number + 1;
        state->stage_size = size;
    }
    step->stage = settings_of(recipe, number, state, step->model);
    return TT_OK;
}

/* --- what people and metrics.jsonl are told --- */

void tt_stages_describe(const tt_recipe *recipe, const tt_stage_plan *plan,
                        const tt_training_state *state, const tt_model *model, char *text,
                        size_t size)
{
    int number = (int)state->stage - 1;
    const tt_recipe_stage *stage = &recipe->stages[number];
    const tt_stage_span *span = &plan->spans[number];
    int used =
        snprintf(text, size, "stage %s: steps %lld to %lld, from %lld core entries", stage->name,
                 (long long)span->first + 1, (long long)span->end, (long long)state->stage_size);
    if (stage->kind == TT_RECIPE_LATE && used >= 0 && (size_t)used < size) {
        snprintf(text + used, size - (size_t)used, " to %.0f, towards a loss of %g",
                 target_size(stage, state, model), stage->target_loss);
    }
}

void tt_stages_report(const tt_recipe *recipe, const tt_step_result *result,
                      tt_metrics_record *record)
{
    static const char *const branches[] = {NULL, "loss", "size"};
    record->has_ranks = result->has_ranks;
    if (result->has_ranks) {
        int number = result->stage.number;
        record->size = result->ranks.size;
        record->relaxed_size = result->ranks.relaxed_size;
        record->size_ratio = result->ranks.size / result->stage.unit;
        record->stage = number >= 0 ? recipe->stages[number].name : NULL;
        record->branch = branches[result->ranks.branch];
    }
}
